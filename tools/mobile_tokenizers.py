"""The tokenization of the mobile text APIs in Python, for comparison with ours.

Their C++ code does not expose ids. This module follows mediapipe's bert_tokenizer.h and
bert_preprocessor_calculator.cc, tflite-support's bert_question_answerer.cc and tensorflow-text's
wordpiece_tokenizer.cc; check_mobile_apis verifies with scores that it is equivalent.
"""

import unicodedata
from collections.abc import Callable, Iterator

import numpy as np
import sentencepiece

from bertfam_tf.export.tflite_metadata import SENTENCEPIECE, VOCABULARY
from tests.support.tflite_metadata import Metadata

_SPACES = " \t\n\f\r"
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_MAX_BYTES = 100
_MAX_QUESTION = 64
_SMALL = str.maketrans({chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)})

Split = Callable[[str], list[int]]


def _alone(char: str) -> bool:
    code = ord(char)
    return (
        (code < 128 and char.isprintable() and not char.isalnum() and char != " ")
        or unicodedata.category(char)[0] == "P"
        or any(start <= code <= end for start, end in _CHINESE)
    )


def _words(text: str) -> Iterator[str]:
    word = ""
    for char in text:
        if char in _SPACES or _alone(char):
            if word:
                yield word
            word = ""
            if char not in _SPACES:
                yield char
        else:
            word += char
    if word:
        yield word


def _word_piece(vocabulary: list[str]) -> Split:
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    unknown = ids["[UNK]"]

    def pieces(word: str) -> list[int]:
        if len(word.encode("utf-8")) > _MAX_BYTES:
            return [unknown]
        found, start = [], 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                if mark + word[start:end] in ids:
                    found.append(ids[mark + word[start:end]])
                    start = end
                    break
            else:
                return [unknown]
        return found

    # This tokenizer truncates texts at the first NUL.
    return lambda text: [
        i for word in _words(text.partition("\0")[0].translate(_SMALL)) for i in pieces(word)
    ]


class MobileTokenizer:
    """Tokenizes like the APIs, with the vocabulary in a file.

    Args:
        metadata: the metadata of the file.
    """

    def __init__(self, metadata: Metadata):
        content = metadata.files[metadata.tokenizer]
        if metadata.tokenizer == SENTENCEPIECE:
            model = sentencepiece.SentencePieceProcessor(model_proto=content)
            self._split: Split = lambda text: model.encode(text.translate(_SMALL))
            self._cls, self._sep = (model.piece_to_id(piece) for piece in ("[CLS]", "[SEP]"))
        else:
            assert metadata.tokenizer == VOCABULARY
            pieces = content.decode("utf-8").split("\n")[:-1]
            self._split = _word_piece(pieces)
            self._cls, self._sep = pieces.index("[CLS]"), pieces.index("[SEP]")

    def text(self, text: str, length: int) -> dict[str, np.ndarray]:
        """``ids``, ``mask`` and ``segment_ids`` of a text, int32 (1, length)."""
        ids = [self._cls, *self._split(text)[: length - 2], self._sep]
        return _row(ids, len(ids), length)

    def pair(self, question: str, context: str, length: int) -> dict[str, np.ndarray]:
        """The same for a question and a context, which is split at spaces first."""
        asked = [self._cls, *self._split(question)[:_MAX_QUESTION], self._sep]
        read = [i for word in context.split(" ") for i in self._split(word)]
        return _row([*asked, *read[: length - len(asked) - 1], self._sep], len(asked), length)


def _row(ids: list[int], first: int, length: int) -> dict[str, np.ndarray]:
    row = np.zeros((3, 1, length), np.int32)
    row[0, 0, : len(ids)] = ids
    row[1, 0, : len(ids)] = 1
    row[2, 0, first : len(ids)] = 1
    return dict(zip(("ids", "mask", "segment_ids"), row, strict=True))

"""The tokenizers to compare, ours and the reference's, built from the published files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.texts import DATA, decoded, decoded_with_offsets

VOCABULARIES = DATA / "vocab"
BERT_SPECIAL = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A published tokenizer.

    Args:
        name: the folder of its vocabulary.
        make: builds ours from that folder.
        live: builds the reference from that folder with the `tokenizers` library; None if the
            reference ids are in files (tools/make_tokenizer_references.py).
        by_language: whether `make` needs the language of the text.
    """

    name: str
    make: Callable[..., Any]
    live: Callable[[Path], Any] | None = None
    by_language: bool = False

    def ours(self, language: str = "en") -> Any:
        """Returns our tokenizer."""
        options = {"language": language} if self.by_language else {}
        return self.make(VOCABULARIES / self.name, **options)

    def reference(self) -> Any:
        """Returns the reference's tokenizer."""
        assert self.live is not None
        return self.live(VOCABULARIES / self.name)


# The reference's tokenizers, built like transformers' fast classes.


def bert_reference(vocabulary: Path, lower_case: bool, **flags: Any) -> Any:
    """Builds BertTokenizerFast's pipeline from a vocab.txt."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = vocabulary.read_text(encoding="utf-8").split("\n")[:-1]
    model = models.WordPiece({piece: index for index, piece in enumerate(pieces)},
                             unk_token="[UNK]", max_input_chars_per_word=100)  # fmt: skip
    made = Tokenizer(model)
    settings = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    made.normalizer = normalizers.BertNormalizer(**(settings | {"lowercase": lower_case} | flags))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _add_special(made, BERT_SPECIAL)
    return made


def byte_level_reference(folder: Path, special: list[str], processor: Any) -> Any:
    """Builds the pipeline of GPT2TokenizerFast and RobertaTokenizerFast."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processor
    _add_special(made, special, lstrip=("<mask>",))
    return made


def _add_special(made: Any, special: list[str], lstrip: tuple[str, ...] = ()) -> None:
    from tokenizers import AddedToken

    made.add_special_tokens([AddedToken(token, special=True, normalized=False,
                                        lstrip=token in lstrip) for token in special])  # fmt: skip


def _gpt2_reference(folder: Path) -> Any:
    from tokenizers import processors

    return byte_level_reference(folder, ["<|endoftext|>"], processors.ByteLevel(trim_offsets=False))


def _roberta_reference(folder: Path) -> Any:
    from tokenizers import processors

    processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    special = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    return byte_level_reference(folder, special, processor)


def expected(reference: Any, line: bytes | str) -> tuple[list[int], list[int], list[int]]:
    """Returns the reference's ids, and its offsets converted from characters to bytes."""
    return expected_rows(reference, [line])[0]


def expected_rows(reference: Any, lines: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """Returns the same for each of several lines."""
    encodings = reference.encode_batch(list(map(decoded, lines)), add_special_tokens=False)
    rows = []
    for line, encoding in zip(lines, encodings, strict=True):
        at = decoded_with_offsets(line)[1]
        starts, ends = zip(*encoding.offsets, strict=True) if encoding.offsets else ((), ())
        rows.append((encoding.ids, [at[i] for i in starts], [at[i] for i in ends]))
    return rows


# Our tokenizers.


def _wordpiece(folder: Path) -> Any:
    from bertfam_tf.text import WordPieceTokenizer

    return WordPieceTokenizer.load(folder)


def _byte_bpe(folder: Path) -> Any:
    from bertfam_tf.text import ByteBPETokenizer

    return ByteBPETokenizer.load(folder)


def _albert(folder: Path) -> Any:
    from bertfam_tf.text import SentencePieceTokenizer

    return SentencePieceTokenizer.load(folder)


def _xlnet(folder: Path) -> Any:
    from bertfam_tf.text import SentencePieceTokenizer

    return SentencePieceTokenizer.load(folder)


def _gpt(folder: Path) -> Any:
    from bertfam_tf.text import BPETokenizer

    return BPETokenizer.load(folder)


def _xlm(folder: Path, language: str) -> Any:
    from bertfam_tf.text import BPETokenizer

    return BPETokenizer.load(folder, language=language)


def _bert(name: str, lower_case: bool) -> Subject:
    return Subject(
        name, _wordpiece, lambda folder: bert_reference(folder / "vocab.txt", lower_case)
    )


SUBJECTS = {
    subject.name: subject
    for subject in (
        _bert("bert-base-uncased", True),
        _bert("bert-base-cased", False),
        _bert("bert-base-multilingual-cased", False),
        Subject("gpt2", _byte_bpe, _gpt2_reference),
        Subject("roberta-base", _byte_bpe, _roberta_reference),
        Subject("albert-base-v2", _albert),
        Subject("xlnet-base-cased", _xlnet),
        Subject("openai-gpt", _gpt),
        Subject("xlm-mlm-xnli15-1024", _xlm, by_language=True),
    )
}

"""Byte-pair encoding with marked word ends as a TensorFlow graph: the tokenizers of GPT and XLM.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016); Radford et
al., "Improving Language Understanding by Generative Pre-Training" (2018); Lample and Conneau,
"Cross-lingual Language Model Pretraining" (2019).  Equal to the Python classes OpenAIGPTTokenizer
and XLMTokenizer of Hugging Face's transformers 4.57 (GPT without spaCy and ftfy).

FastBertNormalize with a character map of our own sets words apart by spaces.  A WordPiece kernel
whose vocabulary is the words that are one piece gives the ids of most of them; the others are
merged.
"""

from __future__ import annotations

import itertools
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.names import shown
from bertfam_tf.text import _models, _unicode
from bertfam_tf.text._files import (
    CONFIG_FILE,
    JSON_FILE,
    ROLES,
    in_order,
    index_of_pieces,
    naming_files,
    read_ids,
    read_json,
    read_lines,
    read_merge_lines,
    read_tokenizer_config,
    read_vocabulary_json,
    section,
    stated_special_tokens,
    token_text,
    write_json,
    write_text,
)
from bertfam_tf.text._graph import Pieces, original_spans, row_of_each, unlikely, windows_equal
from bertfam_tf.text._merges import Merger, reachable_merges, read_merges
from bertfam_tf.text._moses import DOT, LANGUAGES, MosesWords, nonbreaking_prefixes
from bertfam_tf.text.packing import A_THEN_B, CLS_A_SEP, Layout
from bertfam_tf.text.tokenizer import Tokenizer, _SpecialTokens

END = "</w>"
# Characters of the kernels' alphabet that no text has: every character that the vocabulary lacks,
# the end of a word, and what opens the placeholders of pieces that are no whole words.
_UNKNOWN = "\ue000"
_END = "\ue001"
_PLACEHOLDER = "\ue002"
_FIRST_FREE = 0xE003
# The longest word that the WordPiece kernel takes.
_MAX_WORD_BYTES = 256
SPLITTERS = ("bert", "moses")

_XLM_SPECIAL = tuple(f"<special{index}>" for index in range(10))
# What the published classes fix, by the name that `tokenizer_config.json` gives.
PRESETS: dict[str, dict[str, Any]] = {
    "OpenAIGPTTokenizer": {"splitter": "bert", "unk_token": "<unk>", "layout": A_THEN_B},
    "XLMTokenizer": {
        "splitter": "moses",
        "unk_token": "<unk>",
        "cls_token": "</s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "mask_token": "<special1>",
        "bos_token": "<s>",
        "additional_special_tokens": _XLM_SPECIAL,
        # As the model was trained (its code opens and closes with </s>); the Python class of
        # transformers opens with <s>.
        "layout": CLS_A_SEP,
    },
}


class BPETokenizer(Tokenizer):
    """GPT's and XLM's tokenizer: text in, piece ids and byte offsets out, all in the graph.

    Ids are those of the Python classes OpenAIGPTTokenizer (without spaCy and ftfy) and
    XLMTokenizer of transformers 4.57 on Python 3.11, without special tokens around them.  Each
    character that the vocabulary lacks is one unknown piece.  Special tokens are found in text
    in any case where the text is lower-cased, "<UNK>" for "<unk>", as the Python classes find
    them.  There is no TFLite kernel for it.

    The splitter "bert" is BERT's: words are cut at white space, punctuation and Chinese
    characters.  "moses" normalizes punctuation and cuts words by the rules of Moses for a
    language.  For Chinese, Japanese and Thai, whose words other programs cut, it takes the words
    that stand apart by spaces in the text.

    A piece covers the bytes of the characters its letters came from, as for WordPieceTokenizer.
    With "moses", where two single quotation marks become a double one, the first is covered; and
    where Moses moves a full stop or comma into a quotation, the two marks have each other's place.

    `detokenize` puts spaces where words end and around special tokens.  Lost are case and accents
    (with `lower_case`), unknown characters, the kind and number of spaces, and whether
    punctuation stood apart.

    Args:
        vocabulary: the pieces in the order of their ids, "</w>" behind those that end a word, or
            the path of a `vocab.json`.
        merges: the pairs of pieces to merge, best first, or the path of a `merges.txt`.
        splitter: "bert" or "moses".
        language: for "moses", the ISO 639-1 code of the texts' language.
        prefixes: for "moses", the words that keep their full stop, "#" behind those that do so
            only before a number; None for Moses' own list of the language, which the package
            sacremoses brings.  It is saved with the tokenizer.
        lower_case: whether to lower-case and strip accents.
        special_tokens_in_text: as for WordPieceTokenizer.
        unk_token: the piece for unknown characters; must be in the vocabulary.
        cls_token, sep_token, pad_token, mask_token, bos_token, eos_token: the pieces for these
            parts, or None.
        additional_special_tokens: further pieces of the vocabulary to be treated as special.
        lstrip_tokens: special tokens that swallow the white space before them.
        layout: where the special tokens stand around one text, and around two.

    Raises:
        FileNotFoundError: a path leads nowhere.
        ImportError: Moses' list is wanted and sacremoses is not installed.
        ValueError: vocabulary or merges are damaged or do not belong together, the splitter or
            language is unknown, or a special token cannot be found in text (see
            WordPieceTokenizer).
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        merges: Sequence[tuple[str, str]] | str | os.PathLike[str],
        *,
        splitter: str = "bert",
        language: str = "en",
        prefixes: Sequence[str] | None = None,
        lower_case: bool = True,
        special_tokens_in_text: bool = True,
        unk_token: str = "<unk>",
        cls_token: str | None = None,
        sep_token: str | None = None,
        pad_token: str | None = None,
        mask_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        additional_special_tokens: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        layout: Layout = A_THEN_B,
    ) -> None:
        if splitter not in SPLITTERS:
            raise ValueError(f"splitter {splitter!r}, expected one of {', '.join(SPLITTERS)}")
        if splitter == "moses" and prefixes is None:
            if language not in LANGUAGES:
                raise ValueError(f"language {language!r}, expected one of {', '.join(LANGUAGES)}")
            prefixes = nonbreaking_prefixes(language)
        sources = ["the vocabulary", "the merges"]
        if isinstance(vocabulary, str | os.PathLike):
            sources[0] = os.fspath(vocabulary)
            vocabulary = read_vocabulary_json(Path(vocabulary))
        if isinstance(merges, str | os.PathLike):
            sources[1] = os.fspath(merges)
            merges = read_merges(read_lines(Path(merges)), sources[1])
        options: dict[str, Any] = {
            "merges": [(left, right) for left, right in merges],
            "splitter": splitter,
            "language": language,
            "prefixes": None if prefixes is None else tuple(prefixes),
            "lower_case": lower_case,
            "special_tokens_in_text": special_tokens_in_text,
            "unk_token": unk_token,
            "cls_token": cls_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "mask_token": mask_token,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "additional_special_tokens": tuple(additional_special_tokens),
            "lstrip_tokens": tuple(lstrip_tokens),
            "layout": layout,
        }
        super().__init__(vocabulary, options, name="bpe_tokenizer", source=sources[0])
        spelling = _spelling(_alphabet(options["merges"], self._table.pieces))
        symbols, ids = _symbols(options["merges"], self._table.ids, spelling, sources[1])
        made = sum(symbol in ids for symbol in symbols if len(symbol) > 1)
        if options["merges"] and not made:
            raise ValueError(
                f"{sources[1]}: {sources[0]} has none of the pieces that these merges make; "
                f"expected the files of one tokenizer, with {END!r} at the ends of words"
            )
        words = _word_model(symbols, ids, self.vocab_size, self.unk_id)
        with tf.init_scope():
            self._moses = None
            if splitter == "moses":
                self._moses = MosesWords(language, lower_case, prefixes or ())
            self._normalizer = tf_text.FastBertNormalizer(
                model_buffer=tf.constant(_normalizer_model(splitter, lower_case, spelling))
            )
            self._words = tf_text.FastWordpieceTokenizer(
                model_buffer=tf.constant(words), token_out_type=tf.int32
            )
            self._merger = Merger(symbols, ids, self.unk_id)
            self._written = tf.constant(self._written_pieces())

    def _written_pieces(self) -> list[str]:
        """Returns what each piece is in text, spaces included."""
        options = self._table.options
        roles = [options[f"{role}_token"] for role in ROLES]
        special = {*roles, *options["additional_special_tokens"]}
        return [f" {piece} " if piece in special else piece.replace(END, " ")
                for piece in self._table.pieces]  # fmt: skip

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(
            ids.with_values(tf.gather(self._written, ids.values)), axis=-1
        )
        return tf.strings.strip(tf.strings.regex_replace(texts, " +", " "))

    # Files.

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `vocab.json`, `merges.txt` and `tokenizer_config.json`.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / _VOCABULARY_FILE, json.dumps(self._table.ids, ensure_ascii=False) + "\n")
        options = self._table.options
        by_moses = options["splitter"] == "moses"
        # Of the two Python classes, one skips the first line and the other one does not.
        head = [] if by_moses else ["#version: 0.2\n"]
        lines = [f"{left} {right}\n" for left, right in options["merges"]]
        write_text(path / _MERGES_FILE, "".join([*head, *lines]))
        config = {
            "tokenizer_class": "XLMTokenizer" if by_moses else "OpenAIGPTTokenizer",
            "language": options["language"],
            "nonbreaking_prefixes": options["prefixes"],
            "do_lowercase_and_remove_accent": options["lower_case"],
            **self._special_config(),
        }
        write_json(path / CONFIG_FILE, config)

    @classmethod
    @naming_files
    def load(
        cls, directory: str | os.PathLike[str], *, max_pieces: int | None = None, **options: Any
    ) -> Self:
        """Reads a tokenizer from a directory.

        Vocabulary and merges are those of `vocab.json` and `merges.txt`, of OpenAI's
        `encoder_bpe_40000.json` and `vocab_40000.bpe`, of `tokenizer.json`, or of fastBPE's
        `vocab…` and `codes…` (XLM's own files, before whose pieces the 14 special tokens come).
        Each option is taken from the first that states it: the argument, `tokenizer_config.json`,
        `tokenizer.json`, what the published class has that `tokenizer_config.json` names; without
        such a name it is XLM's if the vocabulary has "<special0>", else GPT's.

        Args:
            directory: the directory, or one of these files in it.
            max_pieces: how many pieces of a fastBPE vocabulary to read, special tokens included.
                `None` means as many as `n_words` in `config.json` says; without that file 95,000
                of `vocab_xnli_15`, as the published models have, and all of others.
            **options: keyword arguments of the constructor.

        Raises:
            FileNotFoundError: there are no such files.
            ValueError: a file is damaged or describes another kind of tokenizer.
        """
        path = Path(directory)
        if path.is_file():
            path = path.parent
        pieces, merges, stated = _read_files(path, max_pieces)
        config = path / CONFIG_FILE
        content = read_tokenizer_config(config) if config.is_file() else {}
        default = "XLMTokenizer" if _XLM_SPECIAL[0] in pieces else "OpenAIGPTTokenizer"
        name = str(content.get("tokenizer_class") or default).removesuffix("Fast")
        stated = PRESETS.get(name, PRESETS[default]) | stated
        for key, option in _CONFIG_KEYS.items():
            if key in content:
                stated[option] = content[key]
        stated |= stated_special_tokens(content, config)
        index_of_pieces(pieces, str(path), (stated | options).get("unk_token"))
        return cls(pieces, merges, **(stated | options))

    # The graph.

    def _describe_special_tokens(self) -> _SpecialTokens | None:
        special = super()._describe_special_tokens()
        if special is None or not self._table.options["lower_case"]:
            return special
        return _LoweredTokens(special)

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if not offsets:
            words = texts if self._moses is None else self._moses(texts)
            return self._look_up(self._normalizer.normalize(words), offsets)
        if self._moses is None:
            normalized, source = self._normalizer.normalize_with_offsets(texts)
        else:
            words, given, splits = self._moses.with_sources(texts)
            normalized, source = self._normalizer.normalize_with_offsets(words)
            row = row_of_each(source.row_splits, tf.size(source.values, tf.int64))
            place = tf.gather(splits, row) + tf.cast(source.values, tf.int64)
            source = source.with_values(tf.gather(given, place))
        pieces = self._look_up(normalized, offsets)
        raw = self._bytes.split(texts)
        spans = original_spans if self._moses is None else _spans_of_characters
        start, end = spans(raw, source, pieces.rows(), pieces.starts, pieces.ends)
        return Pieces(pieces.ids, start, end, pieces.splits)

    def _look_up(self, normalized: tf.Tensor, offsets: bool) -> Pieces:
        """Splits rows, string [n], in the kernels' alphabet and with spaces between words."""
        ids, starts, ends = self._words.tokenize_with_offsets(normalized)
        words = Pieces(ids.values, starts.values, ends.values, ids.row_splits)
        rare = words.ids == self.unk_id
        kept = [part for part in (words if offsets else words._replace(starts=None, ends=None))
                if part is not None]  # fmt: skip

        def merged(*tensors: tf.Tensor) -> list[tf.Tensor]:
            found = self._merge(Pieces(*tensors[-5:-1]), tensors[-1], offsets)
            return [part for part in found if part is not None]

        kept = unlikely(tf.reduce_any(rare), merged, kept, [*words, normalized])
        return Pieces(*kept) if offsets else Pieces(kept[0], None, None, kept[1])

    def _merge(self, words: Pieces, normalized: tf.Tensor, offsets: bool) -> Pieces:
        """Replaces unknown words by the pieces that they consist of."""
        is_rare = words.ids == self.unk_id
        rare = words.keep(is_rare)
        spans = (rare.ragged(tf.cast(at, tf.int32)) for at in (rare.starts, rare.ends))
        texts = self._bytes.split_by_offsets(normalized, *spans).values
        marked = tf.strings.join([texts, _END])
        size = tf.size(words.ids, tf.int64)
        if offsets:
            found, begin, end = self._merger.with_offsets(marked)
            word = row_of_each(found.row_splits, tf.size(found.values, tf.int64))
            base = tf.gather(rare.starts, word)
            begin = base + tf.cast(begin.values, base.dtype)
            # The mark of the end has bytes of its own.
            end = tf.minimum(base + tf.cast(end.values, base.dtype), tf.gather(rare.ends, word))
        else:
            found = self._merger(marked)
        # A row of one piece for each word, then the rows of merged ones; each word takes its row.
        rows = tf.RaggedTensor.from_row_splits(
            tf.range(size + tf.size(found.values, tf.int64)),
            tf.concat([tf.range(size), size + found.row_splits], 0),
            validate=False,
        )
        where = tf.where(is_rare)
        row = tf.tensor_scatter_nd_update(
            tf.range(size), where, size + tf.range(tf.size(where, tf.int64))
        )
        taken = tf.gather(rows, row)

        def woven(known: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.concat([known, others], 0), taken.values)

        return Pieces(
            woven(words.ids, found.values),
            woven(words.starts, begin) if offsets else None,
            woven(words.ends, end) if offsets else None,
            tf.gather(taken.row_splits, words.splits),
        )


def _spans_of_characters(
    raw: tf.RaggedTensor, source: tf.RaggedTensor, rows: tf.Tensor, starts: Any, ends: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Does what `original_spans` does, for a `source` of which each place is the first byte of a
    character or of what is not UTF-8."""
    base = tf.gather(source.row_splits, rows)
    start = tf.gather(source.values, base + starts)
    last = tf.gather(source.values, base + ends - 1)
    row, row_end = (tf.gather(raw.row_splits, rows + more) for more in (0, 1))
    data = tf.cast(raw.values, tf.int32)
    lead = tf.where((data < 0x80) | (data >= 0xC0))[:, 0]
    lead = tf.concat([lead, raw.row_splits[-1:]], 0)
    behind = tf.gather(lead, tf.searchsorted(lead, row + last + 1))
    byte = tf.gather(data, row + last)
    alone = (byte < 0xC2) | (byte >= 0xF5)
    end = tf.where(alone, last + 1, tf.minimum(behind, row_end) - row)
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)


# Ways to write a token double with each.
_MOST_KELVINS = 10


class _LoweredTokens(_SpecialTokens):
    """Special tokens as the Python classes find them: after the text is lower-cased.

    So "<UNK>" is found for "<unk>".  A token that has capitals itself is found as it is.
    """

    def __init__(self, special: _SpecialTokens) -> None:
        # One more character becomes an ASCII letter when it is lower-cased: the sign for kelvin.
        kelvin = "\N{KELVIN SIGN}".encode()
        chosen, texts = [], []
        for index, text in enumerate(special.texts):
            parts = text.split(b"k")
            either = text == text.lower() and len(parts) <= _MOST_KELVINS
            letters = (b"k", kelvin) if either else (b"k",)
            for way in itertools.product(letters, repeat=len(parts) - 1):
                texts.append(b"".join(itertools.chain(*zip(parts, (*way, b""), strict=True))))
                chosen.append(index)
        super().__init__(special.ids[chosen], texts, special.lstrip[chosen])
        self._exact = np.array([text != text.lower() for text in texts])

    def find(self, data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        data = tf.cast(data, tf.int32)
        capital = (data >= ord("A")) & (data <= ord("Z"))
        at, found = super().find(tf.where(capital, data + 32, data))
        if self._exact.any():
            found = tf.where(self._exact, windows_equal(data, at, self.patterns), found)
        return at, found


# From vocabulary and rules to what the kernels read.


def _alphabet(merges: Sequence[tuple[str, str]], pieces: Sequence[str]) -> list[str]:
    """Returns the characters that merges use or that are pieces, in order."""
    singles = [piece.removesuffix(END) for piece in pieces]
    letters = {char for char in singles if len(char) == 1}
    for pair in merges:
        for part in pair:
            letters.update(part.removesuffix(END))
    return sorted(letters)


def _spelling(alphabet: Sequence[str]) -> dict[str, str]:
    """Returns how the kernels' alphabet writes each character.

    The WordPiece kernel cuts at what its own Unicode tables call white space, punctuation or
    Chinese.  All but plain letters are therefore written as private-use characters.
    """
    spare = (chr(code) for code in (*range(_FIRST_FREE, 0xF900), *range(0xF0000, 0xFFFFE)))
    return {char: char if _is_plain(char) else next(spare) for char in alphabet}


def _is_plain(char: str) -> bool:
    chinese = any(start <= ord(char) < end for start, end in _KERNEL_CHINESE)
    return not chinese and unicodedata.category(char)[0] in "LN"


_KERNEL_CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2CEB0),
    (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip


def _symbols(
    merges: Sequence[tuple[str, str]], ids: Mapping[str, int], spelling: dict[str, str], source: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns ranks and ids of the symbols that words can be made of, in the kernels' alphabet.

    Words have the mark of their end as a character of its own.  What the vocabulary has no id for
    is left out of the ids.
    """
    table = str.maketrans(spelling)

    def spelled(part: str) -> str:
        return part.removesuffix(END).translate(table) + (_END if part.endswith(END) else "")

    letters = [_UNKNOWN, *spelling.values()]
    marked = [(letter, _END) for letter in letters]
    pairs = [(spelled(left), spelled(right)) for left, right in merges if not left.endswith(END)]
    symbols = reachable_merges([*letters, _END], marked + pairs, source)
    return symbols, {spelled(piece): number for piece, number in ids.items()}


def _word_model(
    symbols: Mapping[str, int], ids: Mapping[str, int], pieces: int, unk_id: int
) -> np.ndarray:
    """Returns a WordPiece model of the words that are one piece; any other is unknown to it."""
    vocabulary = [f"{_PLACEHOLDER}{index:x}" for index in range(pieces)]
    for symbol in symbols:
        word = symbol.removesuffix(_END)
        if word != symbol and symbol in ids and len(word.encode("utf-8")) <= _MAX_WORD_BYTES:
            vocabulary[ids[symbol]] = word
    return _models.sentence_model(
        tf_text.build_fast_wordpiece_model(
            vocabulary, _MAX_WORD_BYTES, "##", vocabulary[unk_id], True, False
        )
    )


def _normalizer_model(splitter: str, lower_case: bool, spelling: Mapping[str, str]) -> np.ndarray:
    """Returns the map of each character to what the kernels' alphabet writes for it."""
    bert = splitter == "bert"
    rules = _unicode.Rules(lower_case, lower_case, bert, bert, _unicode.python_classes)
    changed, removed, apart = rules.changed(), rules.removed(), rules.apart()
    if not bert:
        changed[ord(DOT)] = "."
        apart = np.zeros_like(apart)
    strings = [""]
    places: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in places:
            places[text] = len(strings)
            strings.append(text)
        return places[text]

    def written(char: str) -> str:
        text = spelling.get(char, _UNKNOWN)
        return f" {text} " if apart[ord(char)] else text

    choice = np.full(_unicode.CODEPOINTS, place(_UNKNOWN))
    choice[apart] = place(f" {_UNKNOWN} ")
    choice[ord(" ")] = 0
    for char in spelling:
        text = written(char)
        choice[ord(char)] = 0 if text == char else place(text)
    for codepoint, text in changed.items():
        choice[codepoint] = place("".join(char if char == " " else written(char) for char in text))
    choice[removed] = place("")
    replacement = strings[choice[0xFFFD]] if choice[0xFFFD] else "\ufffd"
    return _models.normalizer_model(
        [text.encode("utf-8") for text in strings], choice, replacement.encode("utf-8")
    )


# Files.

_VOCABULARY_FILE = "vocab.json"
_MERGES_FILE = "merges.txt"
_PAIRS_OF_FILES = (
    (_VOCABULARY_FILE, _MERGES_FILE),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)
_CONFIG_KEYS = {
    "language": "language",
    "nonbreaking_prefixes": "prefixes",
    "do_lowercase_and_remove_accent": "lower_case",
}
# What XLM's code puts before the pieces of a fastBPE vocabulary.
_BEFORE_PIECES = ("<s>", "</s>", "<pad>", "<unk>", *_XLM_SPECIAL)
_UNFINISHED = "@@"
_PUBLISHED_SIZES = {"vocab_xnli_15": 95_000}


def _read_files(
    path: Path, max_pieces: int | None
) -> tuple[list[str], list[tuple[str, str]], dict[str, Any]]:
    """Returns vocabulary, merges, and the constructor's arguments that these files state."""
    for files in _PAIRS_OF_FILES:
        vocabulary, merges = (path / name for name in files)
        if vocabulary.is_file() and merges.is_file():
            lines = read_lines(merges)
            # XLM's merges.txt is fastBPE's list under another name.
            counted = bool(lines) and len(lines[0].split(" ")) == 3
            pairs = _read_codes(merges) if counted else read_merges(lines, str(merges))
            return read_vocabulary_json(vocabulary), pairs, {}
    if (path / JSON_FILE).is_file():
        return _read_tokenizer_json(path / JSON_FILE)
    vocabularies = [file for file in sorted(path.glob("vocab*")) if not file.suffix]
    codes = [file for file in sorted(path.glob("codes*")) if not file.suffix]
    if len(vocabularies) == len(codes) == 1:
        if max_pieces is None:
            model = path / "config.json"
            stated = read_json(model).get("n_words") if model.is_file() else None
            max_pieces = stated or _PUBLISHED_SIZES.get(vocabularies[0].name)
        pieces = _read_fast_bpe_vocabulary(vocabularies[0])[:max_pieces]
        return pieces, _read_codes(codes[0]), {}
    raise FileNotFoundError(
        f"{path}: found neither {_VOCABULARY_FILE} with {_MERGES_FILE} nor {JSON_FILE} nor one "
        "vocab… and one codes… of fastBPE, expected them beside the weights"
    )


def _read_fast_bpe_vocabulary(path: Path) -> list[str]:
    """Returns the pieces of a list of counted ones; "@@" is behind those that end no word."""
    pieces = list(_BEFORE_PIECES)
    for number, line in enumerate(read_lines(path), 1):
        piece, _, count = line.rpartition(" ")
        if not piece or not count.isdigit():
            raise ValueError(f"{path}: line {number} is {line[:40]!r}, expected a piece, a count")
        unfinished = piece.endswith(_UNFINISHED)
        pieces.append(piece.removesuffix(_UNFINISHED) if unfinished else piece + END)
    return pieces


def _read_codes(path: Path) -> list[tuple[str, str]]:
    """Returns the merges of fastBPE's list of counted pairs."""
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split(" ")
        if len(parts) != 3 or not all(parts) or not parts[2].isdigit():
            raise ValueError(
                f"{path}: line {number} is {line[:40]!r}, expected two symbols and a count"
            )
        merges.append((parts[0], parts[1]))
    return merges


def _read_tokenizer_json(path: Path) -> tuple[list[str], list[tuple[str, str]], dict[str, Any]]:
    """Returns vocabulary, merges, and the constructor's arguments that a tokenizer.json states."""
    content = read_json(path)
    model, normalizer = (section(content, name, path) for name in ("model", "normalizer"))
    lower_case = bool(normalizer.get("lowercase", True))
    accents = normalizer.get("strip_accents")
    for what, found, expected in (
        ("model", model.get("type"), "BPE"),
        ("suffix of words", model.get("end_of_word_suffix"), END),
        ("prefix inside words", model.get("continuing_subword_prefix") or None, None),
        ("joining of unknown pieces", bool(model.get("fuse_unk")), False),
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("stripping of accents", lower_case if accents is None else accents, lower_case),
        ("cleaning of text", normalizer.get("clean_text", True), True),
        ("splitting of Chinese", normalizer.get("handle_chinese_chars", True), True),
        ("pre-tokenizer", section(content, "pre_tokenizer", path).get("type"), "BertPreTokenizer"),
    ):
        if found != expected:
            raise ValueError(f"{path}: the {what} is {shown(found)}, expected {expected!r}")
    ids, added = read_ids(content, path)
    special = [token_text(token, path) for token in added]
    unk_token = model.get("unk_token") or "<unk>"
    merges = read_merge_lines(content, path)
    stated = {
        "lower_case": lower_case,
        "unk_token": unk_token,
        "additional_special_tokens": tuple(token for token in special if token != unk_token),
    }
    return in_order(ids, path), read_merges(merges, str(path)), stated

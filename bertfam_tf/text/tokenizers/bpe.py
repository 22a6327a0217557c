"""Byte-pair encoding with marked word ends as a TensorFlow graph: the tokenizers of GPT and XLM.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016); Radford et
al., "Improving Language Understanding by Generative Pre-Training" (2018); Lample and Conneau,
"Cross-lingual Language Model Pretraining" (2019). Equal to the Python classes OpenAIGPTTokenizer
and XLMTokenizer of Hugging Face's transformers 4.57 (GPT without spaCy and ftfy).

FastBertNormalize with a character map separates words by spaces. A WordPiece kernel, whose
vocabulary is the words that are a single piece, gives the ids of most words; merges are computed
only for the other words.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text.files import vocabulary_and_merges, write_merges
from bertfam_tf.text.kernels.character_map import CharacterMap, separate_words
from bertfam_tf.text.kernels.graph import Pieces, original_spans, row_of_each, unlikely
from bertfam_tf.text.kernels.internals import breaks_words, bytes_of, fast_wordpiece, parts_of
from bertfam_tf.text.kernels.merges import Merger, pieces_of_words, reachable_merges
from bertfam_tf.text.kernels.moses import DOT, LANGUAGES, MosesWords, nonbreaking_prefixes
from bertfam_tf.text.kernels.unicode import Classes, Rules, classes, python_classes
from bertfam_tf.text.special_tokens import A_THEN_B, Layout, SpecialTokens
from bertfam_tf.text.tokenizers.base import State, Tokenizer
from bertfam_tf.text.tokenizers.bpe_files import END, read_files
from bertfam_tf.text.tokenizers.matching import LowerCasingMatcher, SpecialTokenMatcher
from bertfam_tf.validation import one_of

SPECIAL_TOKENS = SpecialTokens(unk_token="<unk>")
SPLITTERS = ("bert", "moses")
# Characters of the kernels' alphabet that do not occur in text: for characters outside of the
# vocabulary, for the end of a word, and for the beginning of placeholders of pieces that are not
# whole words.
_UNKNOWN = "\ue000"
_END = "\ue001"
_PLACEHOLDER = "\ue002"
_FIRST_FREE = 0xE003
# The maximum length of words in the WordPiece kernel.
_MAX_WORD_BYTES = 256


class BPETokenizer(Tokenizer):
    """GPT's and XLM's tokenizer: converts text to piece ids and byte offsets in the graph.

    Ids equal the Python classes OpenAIGPTTokenizer (without spaCy and ftfy) and
    XLMTokenizer of transformers 4.57 on Python 3.11, without the special tokens around them. Each
    character that the vocabulary lacks is one unknown piece. If text is lower-cased, special
    tokens are found in any case ("<UNK>" for "<unk>"), as in the Python classes. It is not
    available in TFLite.

    The splitter "bert" splits words as BERT does: at white space, punctuation and Chinese
    characters. "moses" normalizes punctuation and splits words by Moses' rules for a language;
    Chinese, Japanese and Thai are split at spaces and have to be segmented beforehand.

    A piece covers the bytes of the characters that it comes from, as in WordPieceTokenizer. With
    "moses", where two single quotation marks become a double one, the first is covered; where Moses
    moves a full stop or comma into a quotation, the two marks have each other's offsets.

    ``detokenize`` puts spaces at the ends of words and around special tokens. Case and accents
    (with ``lower_case``), unknown characters, the kind and number of spaces, and whether
    punctuation was separate are lost.

    Files: ``vocab.json`` and ``merges.txt``; OpenAI's ``encoder_bpe_40000.json`` and
    ``vocab_40000.bpe``; ``tokenizer.json``; or fastBPE's ``vocab…`` and ``codes…`` (XLM's original
    files, to which 14 special tokens are added in front). The argument ``max_pieces`` of ``load``
    limits the pieces that are read from a fastBPE vocabulary, special tokens included; the default
    is ``n_words`` in ``config.json``, and without that file 95,000 for ``vocab_xnli_15``, as in the
    published models, and no limit for others.

    Args:
        vocabulary: the pieces in the order of their ids, with "</w>" after those that end a word,
            or the path of a ``vocab.json``.
        merges: the pairs of pieces to merge, best first, or the path of a ``merges.txt``.
        splitter: "bert" or "moses".
        language: for "moses", the ISO 639-1 code of the texts' language.
        prefixes: for "moses", the words that keep their full stop, with "#" after those that keep
            it only before a number; None for Moses' list for the language, which the package
            sacremoses provides. It is saved with the tokenizer.
        lower_case: whether to lower-case and remove accents.
        fast: whether character classes and special tokens follow the ``tokenizers`` library, as in
            a ``tokenizer.json``, instead of the Python classes.
        special_tokens: the special tokens; ``unk_token`` must be in the vocabulary.
        layout: the positions of the special tokens.

    Raises:
        FileNotFoundError: if there is no file at a path.
        ImportError: Moses' list is needed and sacremoses is not installed.
        ValueError: vocabulary or merges are invalid or do not belong together, the splitter or
            language is unknown; or as ``Tokenizer``.
    """

    kind = "bpe"
    default_special_tokens = SPECIAL_TOKENS
    _config_keys = {
        "language": "language",
        "nonbreaking_prefixes": "prefixes",
        "do_lowercase_and_remove_accent": "lower_case",
        "fast": "fast",
    }
    _file_options = ("max_pieces",)

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        merges: Sequence[tuple[str, str]] | str | os.PathLike[str],
        *,
        splitter: str = "bert",
        language: str = "en",
        prefixes: Sequence[str] | None = None,
        lower_case: bool = True,
        fast: bool = False,
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
        layout: Layout = A_THEN_B,
    ) -> None:
        one_of("splitter", splitter, SPLITTERS)
        if fast and splitter != "bert":
            raise ValueError("fast needs the splitter 'bert', the library has no other one.")
        if splitter == "moses":
            one_of("language", language, LANGUAGES)
            prefixes = nonbreaking_prefixes(language) if prefixes is None else prefixes
        vocabulary, merges, sources = vocabulary_and_merges(vocabulary, merges)
        options: dict[str, Any] = {
            "merges": merges,
            "splitter": splitter,
            "language": language,
            "prefixes": None if prefixes is None else tuple(prefixes),
            "lower_case": lower_case,
            "fast": fast,
        }
        super().__init__(
            vocabulary, special_tokens, layout, options, name="bpe_tokenizer", source=sources[0]
        )
        spelling = _spelling(_alphabet(merges, self._state.pieces))
        symbols, ids = _symbols(merges, self._state.ids, spelling, sources[1])
        in_vocabulary = sum(symbol in ids for symbol in symbols if len(symbol) > 1)
        if merges and not in_vocabulary:
            raise ValueError(
                f"{sources[1]}: {sources[0]} has none of the pieces that these merges make; "
                f"expected the files of one tokenizer, with {END!r} at the ends of words."
            )
        with tf.init_scope():
            self._moses = None
            if splitter == "moses":
                self._moses = MosesWords(language, lower_case, prefixes or ())
            tables = classes if fast else python_classes
            self._normalizer = _normalizer(splitter, lower_case, tables, spelling)
            self._words = _word_kernel(symbols, ids, self.vocab_size, self.unk_id)
            self._merger = Merger(symbols, ids, self.unk_id)
            self._written = tf.constant(self._surface_forms())

    def in_language(self, language: str) -> BPETokenizer:
        """Returns the tokenizer of texts of a language, as ``Tokenizer.in_language``.

        Raises:
            ImportError: Moses' list of abbreviations is needed and sacremoses is not installed.
        """
        options = self._state.options
        if self._moses is None or language == options["language"] or language not in LANGUAGES:
            return self
        known = self._state.in_languages
        known.setdefault(options["language"], self)
        if language not in known:
            known[language] = self._with_rules(language)
        return known[language]

    def _with_rules(self, language: str) -> BPETokenizer:
        """Returns a tokenizer with Moses' rules for a language and the tables of this one."""
        prefixes = tuple(nonbreaking_prefixes(language))
        options = {**self._state.options, "language": language, "prefixes": prefixes}
        tokenizer = type(self).__new__(type(self))
        # Assigning attributes would add them to what this tokenizer tracks, which is shared too.
        tokenizer.__dict__.update(
            self.__dict__,
            _state=State(self._state.pieces, self._state.ids, options, self._state.in_languages),
            _moses=MosesWords(language, options["lower_case"], prefixes),
        )
        tokenizer.__dict__.update(
            zip(("_ids", "_ids_and_offsets"), tokenizer._functions(), strict=True)
        )
        return tokenizer

    def _surface_forms(self) -> list[str]:
        """Returns the text of each piece, spaces included."""
        special = set(self.special_tokens)
        return [f" {piece} " if piece in special else piece.replace(END, " ")
                for piece in self._state.pieces]  # fmt: skip

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(
            ids.with_values(tf.gather(self._written, ids.values)), axis=-1
        )
        return tf.strings.strip(tf.strings.regex_replace(texts, " +", " "))

    def _make_matcher(self) -> SpecialTokenMatcher | None:
        exact = super()._make_matcher()
        if exact is None or self._state.options["fast"] or not self._state.options["lower_case"]:
            return exact
        return LowerCasingMatcher(exact)

    # Files.

    def _write_files(self, directory: Path) -> dict[str, Any]:
        options = self._state.options
        # Only GPT's Python class skips the first line.
        header = [] if options["splitter"] == "moses" else ["#version: 0.2"]
        write_merges(directory, self._state.ids, options["merges"], header)
        return {theirs: options[ours] for theirs, ours in self._config_keys.items()}

    @classmethod
    def _read_files(
        cls, path: Path, folder: Path, max_pieces: int | None = None
    ) -> tuple[dict[str, Any], Path]:
        return read_files(folder, max_pieces), folder

    def _is_preset(self, options: Mapping[str, Any]) -> bool:
        return options.get("splitter", "bert") == self._state.options["splitter"]

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if not offsets:
            words = texts if self._moses is None else self._moses(texts)
            return self._look_up(self._normalizer.normalize(words), offsets)
        if self._moses is None:
            normalized, source = self._normalizer.normalize_with_offsets(texts)
        else:
            words, sources, splits = self._moses.with_sources(texts)
            normalized, source = self._normalizer.normalize_with_offsets(words)
            row = row_of_each(source.row_splits, tf.size(source.values, tf.int64))
            place = tf.gather(splits, row) + tf.cast(source.values, tf.int64)
            source = source.with_values(tf.gather(sources, place))
        pieces = self._look_up(normalized, offsets)
        raw = bytes_of(texts)
        spans = original_spans if self._moses is None else _spans_of_characters
        start, end = spans(raw, source, pieces.rows(), pieces.starts, pieces.ends)
        return Pieces(pieces.ids, start, end, pieces.splits)

    def _look_up(self, normalized: tf.Tensor, offsets: bool) -> Pieces:
        """Splits texts, string [n], in the kernels' alphabet and with spaces between words."""
        ids, starts, ends = self._words.tokenize_with_offsets(normalized)
        words = Pieces(ids.values, starts.values, ends.values, ids.row_splits)
        rare = words.ids == self.unk_id
        kept = words if offsets else words._replace(starts=None, ends=None)

        def merged(*tensors: tf.Tensor) -> list[tf.Tensor]:
            return self._merge(Pieces(*tensors[-5:-1]), tensors[-1], offsets).tensors()

        others = [*words, normalized]
        return Pieces.from_tensors(unlikely(tf.reduce_any(rare), merged, kept.tensors(), others))

    def _merge(self, words: Pieces, normalized: tf.Tensor, offsets: bool) -> Pieces:
        """Replaces unknown words by the pieces that they consist of."""
        is_rare = words.ids == self.unk_id
        rare = words.keep(is_rare)
        texts = parts_of(normalized, rare.starts, rare.ends, rare.splits)
        marked = tf.strings.join([texts, _END])
        size = tf.size(words.ids, tf.int64)
        if offsets:
            merged, begin, end = self._merger.with_offsets(marked)
            word = row_of_each(merged.row_splits, tf.size(merged.values, tf.int64))
            base = tf.gather(rare.starts, word)
            begin = base + tf.cast(begin.values, base.dtype)
            # The end-of-word mark has additional bytes.
            end = tf.minimum(base + tf.cast(end.values, base.dtype), tf.gather(rare.ends, word))
        else:
            merged = self._merger(marked)
        index = tf.range(size + tf.size(merged.values, tf.int64))
        where = tf.where(is_rare)[:, 0]
        which = tf.range(tf.size(where, tf.int64))
        pieces = pieces_of_words(index, size, where, merged.row_splits, which)

        def merged_values(known: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.concat([known, others], 0), pieces.values)

        return Pieces(
            merged_values(words.ids, merged.values),
            merged_values(words.starts, begin) if offsets else None,
            merged_values(words.ends, end) if offsets else None,
            tf.gather(pieces.row_splits, words.splits),
        )


def _spans_of_characters(
    raw: tf.RaggedTensor, source: tf.RaggedTensor, rows: tf.Tensor, starts: Any, ends: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Like ``original_spans``, for a ``source`` whose offsets all are of the first byte of a
    character, or of a sequence that is not UTF-8."""
    base = tf.gather(source.row_splits, rows)
    start = tf.gather(source.values, base + starts)
    last = tf.gather(source.values, base + ends - 1)
    row, row_end = (tf.gather(raw.row_splits, rows + more) for more in (0, 1))
    data = tf.cast(raw.values, tf.int32)
    lead = tf.where((data < 0x80) | (data >= 0xC0))[:, 0]
    lead = tf.concat([lead, raw.row_splits[-1:]], 0)
    after = tf.gather(lead, tf.searchsorted(lead, row + last + 1))
    byte = tf.gather(data, row + last)
    alone = (byte < 0xC2) | (byte >= 0xF5)
    end = tf.where(alone, last + 1, tf.minimum(after, row_end) - row)
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)


# Building the kernels.


def _alphabet(merges: Sequence[tuple[str, str]], pieces: Sequence[str]) -> list[str]:
    """Returns the characters of merges, and those that are pieces, sorted."""
    singles = [piece.removesuffix(END) for piece in pieces]
    letters = {char for char in singles if len(char) == 1}
    for pair in merges:
        for part in pair:
            letters.update(part.removesuffix(END))
    return sorted(letters)


def _spelling(alphabet: Sequence[str]) -> dict[str, str]:
    """Returns the character of the kernels' alphabet that represents each character.

    The WordPiece kernel splits at white space, punctuation and Chinese characters of its own
    Unicode tables. All but letters and numbers are therefore replaced by private-use characters.
    """
    spare = (chr(code) for code in (*range(_FIRST_FREE, 0xF900), *range(0xF0000, 0xFFFFE)))
    return {char: char if _is_plain(char) else next(spare) for char in alphabet}


def _is_plain(char: str) -> bool:
    return not breaks_words(char) and unicodedata.category(char)[0] in "LN"


def _symbols(
    merges: Sequence[tuple[str, str]], ids: Mapping[str, int], spelling: dict[str, str], source: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the ranks of the symbols that merges can produce, and the ids of the vocabulary's, in
    the kernels' alphabet, in which the end of a word is a character of its own."""
    table = str.maketrans(spelling)

    def spelled(part: str) -> str:
        return part.removesuffix(END).translate(table) + (_END if part.endswith(END) else "")

    letters = [_UNKNOWN, *spelling.values()]
    marked = [(letter, _END) for letter in letters]
    pairs = [(spelled(left), spelled(right)) for left, right in merges if not left.endswith(END)]
    symbols = reachable_merges([*letters, _END], marked + pairs, source)
    return symbols, {spelled(piece): number for piece, number in ids.items()}


def _word_kernel(
    symbols: Mapping[str, int], ids: Mapping[str, int], pieces: int, unk_id: int
) -> tf_text.FastWordpieceTokenizer:
    """Returns the kernel for words that are a single piece; all others are unknown to it."""
    vocabulary = [f"{_PLACEHOLDER}{index:x}" for index in range(pieces)]
    for symbol in symbols:
        word = symbol.removesuffix(_END)
        if word != symbol and symbol in ids and len(word.encode("utf-8")) <= _MAX_WORD_BYTES:
            vocabulary[ids[symbol]] = word
    return fast_wordpiece(vocabulary, _MAX_WORD_BYTES, "##", vocabulary[unk_id])


def _normalizer(
    splitter: str,
    lower_case: bool,
    tables: Callable[[], Classes],
    spelling: Mapping[str, str],
) -> tf_text.FastBertNormalizer:
    """Returns the kernel that separates words and writes them in the kernels' alphabet."""
    bert = splitter == "bert"
    rules = Rules(lower_case, lower_case, bert, bert, tables)
    changed, isolated = rules.changed(), rules.isolated()
    if not bert:
        changed[ord(DOT)] = "."
        isolated = np.zeros_like(isolated)
    characters = CharacterMap(_UNKNOWN)
    separate_words(
        characters,
        unknown=_UNKNOWN,
        isolated=isolated,
        removed=rules.removed(),
        changed=changed,
        known=spelling,
        written=lambda char: spelling.get(char, _UNKNOWN),
    )
    return characters.kernel()

"""Word-level tokenization, as in Transformer-XL (arXiv 1901.02860): words between white space.

FastBertNormalize replaces each white space character by a space (and optionally lower-cases),
StringSplit splits there, and a static table has the words.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf import files, parsing
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.text import pickles
from bertfam_tf.text.files import JSON_FILE, MODEL_CONFIG_FILE, missing_files, read_lines
from bertfam_tf.text.kernels import unicode
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.graph import Pieces, row_of_each, word_edges
from bertfam_tf.text.kernels.normalization import SPACES
from bertfam_tf.text.special_tokens import Layout, SpecialTokens
from bertfam_tf.text.tokenizer_json import Pipeline, read
from bertfam_tf.text.tokenizers.base import Tokenizer

SPECIAL_TOKENS = SpecialTokens(unk_token="<unk>", eos_token="<eos>", special_tokens_in_text=False)
_VOCABULARY_FILE = "vocab.txt"
_PICKLE_FILE = "vocab.pkl"


class WordTokenizer(Tokenizer):
    """Splits text at white space, as in the paper's preprocessing of WikiText-103.

    White space is defined as in Python's ``str.split``, or as in the ``tokenizers`` library, which
    does not split at U+001C to U+001F. Adjacent punctuation is part of a word: text
    is expected to be tokenized already, like WikiText. (Hugging Face's TransfoXLTokenizer first
    runs Moses' tokenizer, in Python, on raw text.)  Words may have any length.

    ``detokenize`` puts one space between words. The kind and number of spaces, unknown words and,
    with ``lower_case``, case are lost.

    Files: ``vocab.txt``, ``tokenizer.json`` that splits at white space only, or ``vocab.pkl`` of
    published checkpoints; only text and numbers are read from a pickle, and no code in it runs.
    ``cutoffs`` may be in the model's ``config.json``.

    Args:
        vocabulary: the words in the order of their ids, or the path of a file with one per line and
            optionally its count after a space or tab.
        counts: the frequency of each word, or None; for sampling by frequency.
        cutoffs: the cut-offs of the adaptive softmax: the number of words up to the end of each
            cluster except the last, increasing, such as ``(20000, 40000, 200000)``.
        add_eos: whether to append ``eos_token`` to each text, as for each line of WikiText-103.
        lower_case: whether to lower-case, character by character (unlike ``str.lower``, which has a
            rule for final sigmas).
        fast: whether white space is defined as in the ``tokenizers`` library.
        special_tokens: the special tokens; ``unk_token`` must be in the vocabulary. They are always
            found as separate words; with ``special_tokens_in_text`` also inside other words.
        layout: the positions of the special tokens; None for ``eos_token`` after each text, or for
            no special tokens if ``add_eos`` adds it already or the vocabulary lacks it.

    Raises:
        FileNotFoundError: if the vocabulary is a path and there is no such file.
        ValueError: if the vocabulary is invalid, lacks ``unk_token``, or has a word with white
            space; counts or cut-offs do not fit it; or as ``Tokenizer``.
    """

    kind = "words"
    default_special_tokens = SPECIAL_TOKENS
    _any_special_token = True
    _config_keys = {
        "do_lower_case": "lower_case", "lower_case": "lower_case", "add_eos": "add_eos",
        "fast": "fast",
    }  # fmt: skip

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        *,
        counts: Sequence[int] | None = None,
        cutoffs: Sequence[int] = (),
        add_eos: bool = False,
        lower_case: bool = False,
        fast: bool = False,
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
        layout: Layout | None = None,
    ) -> None:
        source = "the vocabulary"
        if isinstance(vocabulary, str | os.PathLike):
            source = os.fspath(vocabulary)
            vocabulary, read_counts = _read_vocabulary(Path(vocabulary))
            counts = read_counts if counts is None else counts
        words = list(vocabulary)
        _check(words, counts, cutoffs, source)
        options: dict[str, Any] = {
            "counts": None if counts is None else tuple(map(int, counts)),
            "cutoffs": tuple(map(int, cutoffs)),
            "add_eos": add_eos,
            "lower_case": lower_case,
            "fast": fast,
        }
        eos = special_tokens.eos_token
        if layout is None:
            layout = _layout(eos in words and not add_eos)
        super().__init__(
            words, special_tokens, layout, options, name="word_tokenizer", source=source
        )
        if add_eos and "eos" not in self.special_ids:
            raise ValueError(f"{source}: found no {eos!r}, which add_eos needs.")
        with tf.init_scope():
            self._spaces = _normalizer(lower_case, SPACES if fast else unicode.SPACES)
            known = tf.lookup.KeyValueTensorInitializer(self._texts, tf.range(len(words)))
            self._lookup = tf.lookup.StaticHashTable(known, self.unk_id)

    @property
    def counts(self) -> tuple[int, ...] | None:
        """The frequencies of the words, in the order of the ids, or None."""
        return self._state.options["counts"]

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The cut-offs of the adaptive softmax."""
        return self._state.options["cutoffs"]

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        special: Sequence[str] = ("<eos>", "<unk>"),
        **options: Any,
    ) -> Self:
        """Builds a tokenizer for the most frequent words.

        As in the paper's code: special tokens, then words by decreasing frequency, words of equal
        frequency in the order of ``counts``, which for a corpus is the order of first occurrence.

        Args:
            counts: the frequencies of words.
            min_count: the minimum frequency of a word in the vocabulary.
            max_size: the maximum size of the vocabulary, special tokens included; None for no
                limit.
            special: the special tokens, which get the first ids.
            **options: arguments of the constructor, or fields of ``SpecialTokens``.

        Raises:
            ValueError: ``max_size`` is not more than the number of special tokens; or as the
                constructor.
        """
        if max_size is not None and max_size <= len(special):
            raise ValueError(
                f"max_size must be above the {len(special)} special tokens, got {max_size}."
            )
        room = None if max_size is None else max_size - len(special)
        words = sorted(
            (word for word, count in counts.items() if count >= min_count and word not in special),
            key=lambda word: -counts[word],
        )
        vocabulary = [*special, *words[:room]]
        known = [counts.get(word, 0) for word in vocabulary]
        return cls.from_config({"vocabulary": vocabulary, "counts": known, **options})

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        words = ids.with_values(tf.gather(self._texts, ids.values))
        return tf.strings.reduce_join(words, axis=-1, separator=" ")

    # Files.

    def _write_files(self, directory: Path) -> dict[str, Any]:
        lines = self.vocabulary
        if self.counts is not None:
            pairs = zip(lines, self.counts, strict=True)
            lines = [f"{word}\t{count}" for word, count in pairs]
        files.write(directory / _VOCABULARY_FILE, "".join(f"{line}\n" for line in lines))
        options = self._state.options
        return {name: options[name] for name in ("lower_case", "add_eos", "fast", "cutoffs")}

    @classmethod
    def _read_files(cls, path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
        arguments: dict[str, Any] = {}
        config = folder / MODEL_CONFIG_FILE
        if config.is_file() and "cutoffs" in (model := parsing.read_object(config)):
            arguments["cutoffs"] = model["cutoffs"]
        source = folder / _VOCABULARY_FILE
        if source.is_file():
            words, arguments["counts"] = _read_vocabulary(source)
            return arguments | {"vocabulary": words}, source
        source = folder / JSON_FILE
        if source.is_file():
            return arguments | cls._of_pipeline(read(source, "WordLevel")), source
        source = folder / _PICKLE_FILE
        if source.is_file():
            return arguments | _read_pickle(source), source
        raise missing_files(folder, _VOCABULARY_FILE, JSON_FILE, _PICKLE_FILE)

    @staticmethod
    def _of_pipeline(pipeline: Pipeline) -> dict[str, Any]:
        """Returns the arguments that a tokenizer.json defines."""
        pipeline.splitter("WhitespaceSplit")
        pipeline.without_normalized_tokens()
        kinds = [step.kind for step in pipeline.normalizers]
        if kinds not in ([], ["Lowercase"]):
            pipeline.refuse("normalizer", kinds, "none or 'Lowercase'")
        return {
            **pipeline.arguments(),
            "lower_case": bool(kinds),
            "fast": True,
            "special_tokens_in_text": True,
        }

    @classmethod
    def _stated(
        cls, config: dict[str, Any], path: Path, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        stated = super()._stated(config, path, arguments)
        if config.get("cutoffs"):
            stated["cutoffs"] = config["cutoffs"]
        # Published configs list "<formula>" even if it is not in the vocabulary.
        known = set(arguments["vocabulary"])
        additional = stated.get("additional_special_tokens", ())
        stated["additional_special_tokens"] = tuple(token for token in additional if token in known)
        return stated

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if offsets:
            spaced, source = self._spaces.normalize_with_offsets(texts)
        else:
            spaced, source = self._spaces.normalize(texts), None
        words = tf.raw_ops.StringSplitV2(input=spaced, sep="")
        ids = self._lookup.lookup(words.values)
        rows = words.indices[:, 0]
        counts = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, tf.size(texts, rows.dtype))
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        if source is None:
            return Pieces(ids, None, None, splits)
        data = tf.io.decode_raw(tf.strings.reduce_join(spaced), tf.uint8)
        _, first, last = word_edges(data, source)
        starts, ends = (tf.gather(source.values, at + rows) for at in (first, last + 1))
        return Pieces(ids, starts, ends, splits)

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        parts = super()._ragged(texts, offsets)
        if not self._state.options["add_eos"]:
            return parts
        end = tf.strings.length(texts)
        lasts = [tf.fill(tf.shape(texts), self.eos_id), end, end][: len(parts)]
        return tuple(map(_with_last, parts, lasts))


def count_words(lines: Iterable[str], *, lower_case: bool = False) -> Counter[str]:
    """Returns the frequencies of words, in the order of first occurrence.

    Args:
        lines: texts.
        lower_case: whether to lower-case, as ``WordTokenizer`` does.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    if not lower_case:
        return counts
    small = unicode.classes().lower
    lowered: Counter[str] = Counter()
    for word, count in counts.items():
        lowered[word.translate(small)] += count
    return lowered


def _layout(eos: bool) -> Layout:
    if eos:
        return Layout(("a", "eos"), ("a", "eos", "b", "eos"), (0, 0), (0, 0, 1, 1))
    return Layout(("a",), ("a", "b"), (0,), (0, 1))


def _normalizer(lower_case: bool, spaces: Sequence[int]) -> tf_text.FastBertNormalizer:
    """Returns the kernel that replaces white space by spaces."""
    characters = CharacterMap()
    characters.put(list(spaces), " ")
    for codepoint, text in unicode.classes().lower.items() if lower_case else ():
        characters.put(codepoint, text)
    return characters.kernel()


def _with_last(rows: tf.RaggedTensor, last: tf.Tensor) -> tf.RaggedTensor:
    """Appends ``last``, int32 [batch], to ``rows``, ragged [batch, (n)]."""
    size = tf.size(rows.values, tf.int64)
    splits = rows.row_splits + tf.range(tf.size(rows.row_splits, tf.int64))
    moved = tf.range(size) + row_of_each(rows.row_splits, size)
    values = tf.scatter_nd(
        tf.concat([moved, splits[1:] - 1], 0)[:, tf.newaxis],
        tf.concat([tf.cast(rows.values, tf.int32), last], 0),
        splits[-1:],
    )
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# Files.


def _check(
    words: Sequence[str], counts: Sequence[int] | None, cutoffs: Sequence[int], source: str
) -> None:
    """Raises ValueError for invalid words, counts or cut-offs."""
    if any(isinstance(word, str) and word.split() not in ([word], []) for word in words):
        index, word = next((i, word) for i, word in enumerate(words) if word.split() != [word])
        raise ValueError(f"{source}: word {index} is {word!r}, expected no white space in it.")
    if counts is not None and len(counts) != len(words):
        raise ValueError(f"{source}: found {len(counts)} counts for {len(words)} words.")
    limits = [0, *cutoffs, len(words)]
    numbers = all(isinstance(limit, int) for limit in limits)
    if not numbers or any(after <= before for before, after in itertools.pairwise(limits)):
        raise ValueError(
            f"{source}: cut-offs {truncated_repr(list(cutoffs))}, expected numbers that "
            f"increase, from 1 to {len(words) - 1}."
        )


def _read_vocabulary(path: Path) -> tuple[list[str], list[int] | None]:
    """Returns the words of a file, and their counts, None if not every line has one."""
    rows = [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) > 2 or (len(row) == 2 and not row[1].isdecimal()):
            raise ValueError(
                f"{path}: line {number} is {' '.join(row)[:40]!r}, expected a word, or a word "
                "and its count, separated by a space or tab."
            )
    words = [row[0] if row else "" for row in rows]
    return words, [int(row[1]) for row in rows] if all(len(row) == 2 for row in rows) else None


def _read_pickle(path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments that a ``vocab.pkl`` defines."""
    data = parsing.read_bytes(path)
    try:
        state = pickles.read(data)
        words, counter = state["idx2sym"], state.get("counter") or {}
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise TypeError("idx2sym is not a list of words.")
        stated = {"vocabulary": words, "lower_case": bool(state.get("lower_case"))}
        if counter:
            stated["counts"] = [int(counter.get(word, 0)) for word in words]
    except Exception as error:  # damaged data may raise any type
        raise ValueError(
            f"{path}: not the pickled vocabulary of a Transformer-XL "
            f"({type(error).__name__}: {truncated(error)})."
        ) from error
    if state.get("delimiter") not in (None, " "):
        raise ValueError(
            f"{path}: words are split at {truncated_repr(state['delimiter'])}, expected white "
            "space."
        )
    return stated

"""Word-level text as Transformer-XL (arXiv:1901.02860) reads it: words stand between white space.

FastBertNormalize makes one space of each character of white space (and lower-cases, if asked to),
StringSplit cuts there, and a table that never changes knows the words.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf import parsing
from bertfam_tf.names import short, shown
from bertfam_tf.text import _models, _pickle, _unicode
from bertfam_tf.text._files import (
    CONFIG_FILE,
    naming_files,
    read_json,
    read_lines,
    read_tokenizer_config,
    stated_special_tokens,
    stream_lines,
    write_json,
    write_text,
)
from bertfam_tf.text._graph import Pieces, row_of_each
from bertfam_tf.text.packing import Layout
from bertfam_tf.text.splitting import SPACES, word_edges
from bertfam_tf.text.tokenizer import Tokenizer

EOS, UNK = "<eos>", "<unk>"
_VOCABULARY_FILE = "vocab.txt"
_PICKLE_FILE = "vocab.pkl"
_MODEL_FILE = "config.json"


class WordTokenizer(Tokenizer):
    """Words between white space, as in the paper's preparation of WikiText-103.

    White space is what Python's `str.split` takes for it.  Punctuation belongs to the word it
    touches: text is expected to be tokenized already, as WikiText is.  (Hugging Face's
    TransfoXLTokenizer runs Moses' tokenizer, in Python, over raw text first.)  A word may have any
    length.

    `detokenize` puts one space between words.  Lost are the kind and number of spaces, unknown
    words and, with `lower_case`, case.

    Args:
        vocabulary: the words in the order of their ids, or the path of a file with one a line and,
            if they are known, their counts after a space or tab.
        counts: how often each word was seen, where known; kept for what samples by frequency.
        cutoffs: where the adaptive softmax divides the vocabulary: the number of words up to the
            end of each cluster but the last, increasing, such as `(20000, 40000, 200000)`.
        add_eos: whether `eos_token` follows each row, as it follows each line of WikiText-103.
        lower_case: whether to lower-case, character by character (`str.lower` writes a final sigma
            in its own way; this does not).
        unk_token: the word for unknown words; must be in the vocabulary.
        eos_token: the word that ends a line.
        pad_token: the word that fills up; the paper has none.
        additional_special_tokens: further words to be treated as special.
        special_tokens_in_text: whether special tokens are also found within other words; as words
            of their own they always are.
        layout: where the special tokens stand around one text, and around two; `None` means
            `eos_token` behind each text, unless `add_eos` puts it there or there is none.

    Raises:
        FileNotFoundError: the vocabulary is a path and there is no such file.
        ValueError: the vocabulary is damaged, lacks `unk_token`, or has a word with white space in
            it; counts or cut-offs do not fit it; or see `Tokenizer`.
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        *,
        counts: Sequence[int] | None = None,
        cutoffs: Sequence[int] = (),
        add_eos: bool = False,
        lower_case: bool = False,
        unk_token: str = UNK,
        eos_token: str = EOS,
        pad_token: str | None = None,
        additional_special_tokens: Sequence[str] = (),
        special_tokens_in_text: bool = False,
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
            "unk_token": unk_token,
            "eos_token": eos_token,
            "pad_token": pad_token,
            "additional_special_tokens": tuple(additional_special_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            "layout": _layout(eos_token in words and not add_eos) if layout is None else layout,
        }
        super().__init__(words, options, name="word_tokenizer", source=source)
        if add_eos and "eos" not in self.special_ids:
            raise ValueError(f"{source}: found no {eos_token!r}, expected it with add_eos")
        with tf.init_scope():
            self._spaces = tf_text.FastBertNormalizer(
                model_buffer=tf.constant(_normalizer(lower_case))
            )
            known = tf.lookup.KeyValueTensorInitializer(self._texts, tf.range(len(words)))
            self._lookup = tf.lookup.StaticHashTable(known, self.unk_id)

    @property
    def counts(self) -> tuple[int, ...] | None:
        """How often each word was seen, in the order of the ids, or None."""
        return self._table.options["counts"]

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """Where the adaptive softmax divides the vocabulary."""
        return self._table.options["cutoffs"]

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        special: Sequence[str] = (EOS, UNK),
        **options: Any,
    ) -> WordTokenizer:
        """Makes a vocabulary of the most frequent words.

        As in the paper's code: the special tokens come first, then words by falling count, those
        of equal count in the order of `counts`, which for a corpus is that of first appearance.

        Args:
            counts: words and how often each was seen.
            min_count: words seen less often are left out.
            max_size: most entries of the vocabulary, special ones included; `None`: no limit.
            special: entries that come first, whether seen or not.
            **options: keyword arguments of the constructor.

        Raises:
            ValueError: `max_size` leaves no room for a word; or as the constructor.
        """
        if max_size is not None and max_size <= len(special):
            raise ValueError(
                f"max_size is {max_size}, expected more than the {len(special)} special tokens"
            )
        room = None if max_size is None else max_size - len(special)
        words = sorted(
            (word for word, count in counts.items() if count >= min_count and word not in special),
            key=lambda word: -counts[word],
        )
        vocabulary = [*special, *words[:room]]
        return cls(vocabulary, counts=[counts.get(word, 0) for word in vocabulary], **options)

    @classmethod
    def from_corpus(
        cls, files: Iterable[str | os.PathLike[str]], *, lower_case: bool = False, **options: Any
    ) -> WordTokenizer:
        """Makes a vocabulary of the most frequent words of text files, read line by line.

        Args:
            files: UTF-8 text.
            lower_case: whether to lower-case, here and in the tokenizer.
            **options: as for `from_counts`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a file is not UTF-8 (the line is named); or as `from_counts`.
        """
        lines = itertools.chain.from_iterable(stream_lines(Path(file)) for file in files)
        counts = count_words(lines, lower_case=lower_case)
        return cls.from_counts(counts, lower_case=lower_case, **options)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        words = ids.with_values(tf.gather(self._texts, ids.values))
        return tf.strings.reduce_join(words, axis=-1, separator=" ")

    # Files.

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `vocab.txt`, with counts where they are known, and `tokenizer_config.json`.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        lines = self.vocabulary
        if self.counts is not None:
            pairs = zip(lines, self.counts, strict=True)
            lines = [f"{word}\t{count}" for word, count in pairs]
        write_text(path / _VOCABULARY_FILE, "".join(f"{line}\n" for line in lines))
        config = {
            "tokenizer_class": "TransfoXLTokenizer",
            "lower_case": self._table.options["lower_case"],
            "add_eos": self._table.options["add_eos"],
            "cutoffs": self.cutoffs,
            **self._special_config(),
        }
        write_json(path / CONFIG_FILE, config)

    @classmethod
    @naming_files
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> WordTokenizer:
        """Reads a tokenizer from a directory.

        The vocabulary is that of `vocab.txt`, or of `vocab.pkl`, which published checkpoints have;
        of a pickle only text and numbers are read, and nothing in it is run.  Each option is taken
        from the first that states it: the argument, `tokenizer_config.json`, `vocab.pkl`, for the
        cut-offs the model's `config.json`, the constructor's default.

        Args:
            directory: the directory, or one of these files in it.
            **options: keyword arguments of the constructor.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: there is neither `vocab.txt` nor `vocab.pkl`.
            ValueError: a file is damaged.
        """
        path = Path(directory)
        if path.is_file():
            path = path.parent
        source = path / _VOCABULARY_FILE
        stated: dict[str, Any] = {}
        if (path / _MODEL_FILE).is_file() and "cutoffs" in (model := read_json(path / _MODEL_FILE)):
            stated["cutoffs"] = model["cutoffs"]
        if source.is_file():
            words, stated["counts"] = _read_vocabulary(source)
        elif (path / _PICKLE_FILE).is_file():
            source = path / _PICKLE_FILE
            words, found = _read_pickle(source)
            stated |= found
        else:
            raise FileNotFoundError(
                f"{path}: found neither {_VOCABULARY_FILE} nor {_PICKLE_FILE}, "
                "expected one of them beside the weights"
            )
        if (path / CONFIG_FILE).is_file():
            stated |= _read_config(path / CONFIG_FILE, words)
        _check(words, stated.get("counts"), (), str(source))
        return cls(words, **stated | options)

    # The graph.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        if offsets:
            spaced, source = self._spaces.normalize_with_offsets(texts)
        else:
            spaced, source = self._spaces.normalize(texts), None
        found = tf.raw_ops.StringSplitV2(input=spaced, sep="")
        ids = self._lookup.lookup(found.values)
        rows = found.indices[:, 0]
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
        if not self._table.options["add_eos"]:
            return parts
        behind = tf.strings.length(texts)
        lasts = [tf.fill(tf.shape(texts), self.eos_id), behind, behind][: len(parts)]
        return tuple(map(_with_last, parts, lasts))


def count_words(lines: Iterable[str], *, lower_case: bool = False) -> Counter[str]:
    """Counts words, in the order of first appearance.

    Args:
        lines: text.
        lower_case: whether to lower-case, as `WordTokenizer` does.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split())
    if not lower_case:
        return counts
    small = _unicode.classes().lower
    lowered: Counter[str] = Counter()
    for word, count in counts.items():
        lowered[word.translate(small)] += count
    return lowered


def _layout(eos: bool) -> Layout:
    if eos:
        return Layout(("a", "eos"), ("a", "eos", "b", "eos"), (0, 0), (0, 0, 1, 1))
    return Layout(("a",), ("a", "b"), (0,), (0, 1))


def _normalizer(lower_case: bool) -> np.ndarray:
    """Returns the model that makes spaces of white space."""
    strings = [b"", b" "]
    choice = np.zeros(_unicode.CODEPOINTS, np.int64)
    choice[list(SPACES)] = 1
    if lower_case:
        for codepoint, small in _unicode.classes().lower.items():
            choice[codepoint] = len(strings)
            strings.append(small.encode("utf-8"))
    return _models.normalizer_model(strings, choice, "\ufffd".encode())


def _with_last(rows: tf.RaggedTensor, last: tf.Tensor) -> tf.RaggedTensor:
    """Returns `rows`, ragged [batch, (n)], with a value of `last`, int32 [batch], behind each."""
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
    """Raises ValueError for words, counts or cut-offs that cannot be used."""
    if any(isinstance(word, str) and word.split() not in ([word], []) for word in words):
        index, word = next((i, word) for i, word in enumerate(words) if word.split() != [word])
        raise ValueError(f"{source}: word {index} is {word!r}, expected no white space in it")
    if counts is not None and len(counts) != len(words):
        raise ValueError(f"{source}: found {len(counts)} counts for {len(words)} words")
    limits = [0, *cutoffs, len(words)]
    numbers = all(isinstance(limit, int) for limit in limits)
    if not numbers or any(after <= before for before, after in itertools.pairwise(limits)):
        raise ValueError(
            f"{source}: cut-offs {shown(list(cutoffs))}, expected numbers that increase, from 1 to "
            f"{len(words) - 1}"
        )


def _read_vocabulary(path: Path) -> tuple[list[str], list[int] | None]:
    """Returns the words of a file and their counts, None where a line has none."""
    rows = [line.split() for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) > 2 or (len(row) == 2 and not row[1].isdecimal()):
            raise ValueError(
                f"{path}: line {number} is {' '.join(row)[:40]!r}, expected a word and, behind a "
                "space or tab, its count if that is known"
            )
    words = [row[0] if row else "" for row in rows]
    return words, [int(row[1]) for row in rows] if all(len(row) == 2 for row in rows) else None


def _read_config(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer_config.json states."""
    config = read_tokenizer_config(path)
    names = {"do_lower_case": "lower_case", "lower_case": "lower_case", "add_eos": "add_eos"}
    stated = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
    if config.get("cutoffs"):
        stated["cutoffs"] = config["cutoffs"]
    stated |= stated_special_tokens(config, path)
    # Published ones name "<formula>" whether their vocabulary has it or not.
    known = set(words)
    additional = stated.get("additional_special_tokens", ())
    stated["additional_special_tokens"] = tuple(token for token in additional if token in known)
    return stated


def _read_pickle(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Returns the words of a `vocab.pkl` and the constructor's arguments that it states."""
    data = parsing.read_bytes(path)
    try:
        state = _pickle.read(data)
        words, counter = state["idx2sym"], state.get("counter") or {}
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise TypeError("idx2sym is not a list of words")
        stated: dict[str, Any] = {"lower_case": bool(state.get("lower_case"))}
        if counter:
            stated["counts"] = [int(counter.get(word, 0)) for word in words]
    except Exception as error:  # whatever damaged bytes may lead to
        raise ValueError(
            f"{path}: not the pickled vocabulary of a Transformer-XL "
            f"({type(error).__name__}: {short(error)})"
        ) from error
    if state.get("delimiter") not in (None, " "):
        raise ValueError(
            f"{path}: words are cut at {shown(state['delimiter'])}, expected white space"
        )
    return words, stated

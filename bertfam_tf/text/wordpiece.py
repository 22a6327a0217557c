"""BERT's WordPiece tokenizer as a TensorFlow graph, equal to Hugging Face's `tokenizers`.

Three kernels of tensorflow-text do the work: FastBertNormalize with a character map of our own
(which removes, lower-cases, decomposes and sets words apart by spaces as the reference does, so
that no decision is left to the kernels' Unicode tables), FastWordpieceTokenizeWithOffsets with a
model that knows nothing but the vocabulary, and ByteSplit.  All of them exist in TF Serving and in
TFLite.  Two things that no character map can say are put right afterwards, and only where they
occur: words of more than 100 characters, and special tokens typed in the text.
"""

from __future__ import annotations

import json
import os
import string
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text import _models, _unicode

_SUFFIX = "##"
# Neither character survives cleaning, and the vocabulary handed to the kernel has the first
# nowhere: every character that the vocabulary lacks is written so.  The second opens the
# placeholders of pieces that no text can produce.
_UNKNOWN_CHARACTER = "\x01"
_PLACEHOLDER = "\x02"
_MAX_PIECE_BYTES = 256
_SPECIAL_NAMES = ("unk_token", "cls_token", "sep_token", "pad_token", "mask_token")
_VOCABULARY_FILE = "vocab.txt"
_CONFIG_FILE = "tokenizer_config.json"
_JSON_FILE = "tokenizer.json"

TextLike: TypeAlias = str | Sequence[str] | tf.Tensor | tf.RaggedTensor


class WordPieceTokenizer(tf.Module):
    """BERT's tokenizer: text in, piece ids and byte offsets out, all in the graph.

    Ids are those of Hugging Face's BertTokenizerFast without [CLS] and [SEP] around them.  Works
    eagerly, in `tf.data`, `tf.function`, SavedModels and, with tensorflow-text's custom ops, in
    TFLite.  Input that is not UTF-8 is read as `bytes.decode("utf-8", errors="replace")` reads it.

    Args:
        vocabulary: the pieces in the order of their ids, or the path of a file with one a line.
        lower_case: whether to lower-case.
        strip_accents: whether to strip accents; `None` means as `lower_case`.
        split_chinese: whether each Chinese character is a word.
        special_tokens_in_text: whether "[MASK]" and the other special tokens, when they stand in
            the text exactly so, become their single ids, as in Hugging Face's tokenizer; that is
            also what lets a masked-word question be asked as text.  Give `False` for text from
            strangers who should not be able to place a [SEP]: such text is then split like any.
        max_chars_per_word: a word of more characters becomes one unknown piece.
        unk_token: the piece for unknown words; must be in the vocabulary.
        cls_token: the piece that opens a sequence.
        sep_token: the piece that closes a segment.
        pad_token: the piece that fills up.
        mask_token: the piece that hides a word.
        additional_special_tokens: further pieces of the vocabulary to be treated as special.
        clean_text: whether control characters are removed; every published BERT does so.

    Raises:
        FileNotFoundError: the vocabulary is a path and there is no such file.
        ValueError: the vocabulary is damaged or lacks `unk_token`, or a special token cannot be
            found in text (it must begin and end with an ASCII punctuation mark, the first of
            which may occur in it only once).
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike[str],
        *,
        lower_case: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens_in_text: bool = True,
        max_chars_per_word: int = 100,
        unk_token: str = "[UNK]",
        cls_token: str = "[CLS]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        mask_token: str = "[MASK]",
        additional_special_tokens: Sequence[str] = (),
        clean_text: bool = True,
    ) -> None:
        super().__init__(name="word_piece_tokenizer")
        source = "the vocabulary"
        if isinstance(vocabulary, str | os.PathLike):
            source = os.fspath(vocabulary)
            vocabulary = _read_vocabulary(Path(vocabulary))
        pieces = list(vocabulary)
        if max_chars_per_word < 1:
            raise ValueError(f"max_chars_per_word is {max_chars_per_word}, expected 1 or more")
        options: dict[str, Any] = {
            "lower_case": lower_case,
            "strip_accents": strip_accents,
            "split_chinese": split_chinese,
            "special_tokens_in_text": special_tokens_in_text,
            "max_chars_per_word": max_chars_per_word,
            "unk_token": unk_token,
            "cls_token": cls_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "mask_token": mask_token,
            "additional_special_tokens": tuple(additional_special_tokens),
            "clean_text": clean_text,
        }
        self._table = _Table(pieces, _index(pieces, unk_token, source), options)
        rules = _unicode.Rules(
            lower_case=lower_case,
            strip_accents=lower_case if strip_accents is None else strip_accents,
            split_chinese=split_chinese,
            clean_text=clean_text,
        )
        normalizer, words = _build_models(pieces, self.unk_id, rules, max_chars_per_word)
        # The tokenizer may be made inside a function that is being traced; the models must not
        # belong to that function's graph.
        with tf.init_scope():
            self._normalizer = tf_text.FastBertNormalizer(model_buffer=tf.constant(normalizer))
            self._words = tf_text.FastWordpieceTokenizer(
                model_buffer=tf.constant(words), token_out_type=tf.int32
            )
            self._bytes = tf_text.ByteSplitter()
            self._texts = tf.constant(pieces)
            self._special = None
            if special_tokens_in_text:
                self._special = self._describe_special_tokens(additional_special_tokens)
        # Functions of their own make the eager calls as quick as those from a graph.
        rows = [tf.TensorSpec([None], tf.string)]
        self._ids = tf.function(
            lambda texts: self._ragged(texts, offsets=False), rows, autograph=False
        )
        self._ids_and_offsets = tf.function(
            lambda texts: self._ragged(texts, offsets=True), rows, autograph=False
        )

    # Names and numbers.

    @property
    def vocabulary(self) -> list[str]:
        """The pieces, in the order of their ids."""
        return list(self._table.pieces)

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""
        return len(self._table.pieces)

    @property
    def unk_id(self) -> int:
        """The id of unknown words."""
        return self._table.ids[self._table.options["unk_token"]]

    @property
    def cls_id(self) -> int:
        """The id of `cls_token`. Raises ValueError if the vocabulary lacks it."""
        return self.token_to_id(self._table.options["cls_token"])

    @property
    def sep_id(self) -> int:
        """The id of `sep_token`. Raises ValueError if the vocabulary lacks it."""
        return self.token_to_id(self._table.options["sep_token"])

    @property
    def pad_id(self) -> int:
        """The id of `pad_token`. Raises ValueError if the vocabulary lacks it."""
        return self.token_to_id(self._table.options["pad_token"])

    @property
    def mask_id(self) -> int:
        """The id of `mask_token`. Raises ValueError if the vocabulary lacks it."""
        return self.token_to_id(self._table.options["mask_token"])

    def token_to_id(self, token: str) -> int:
        """Returns the id of a piece, or raises ValueError if there is no such piece."""
        if token not in self._table.ids:
            raise ValueError(
                f"{token!r} is not one of the {self.vocab_size} pieces of the vocabulary"
            )
        return self._table.ids[token]

    def id_to_token(self, ids: int | tf.Tensor | tf.RaggedTensor) -> Any:
        """Returns the piece of an id: a `str` for an `int`, else strings in the shape of `ids`.

        Raises:
            ValueError: an `int` outside the vocabulary.
            tf.errors.InvalidArgumentError: a tensor with such an id.
        """
        if isinstance(ids, int | np.integer):
            if not 0 <= ids < self.vocab_size:
                raise ValueError(f"id {ids} is outside the vocabulary, 0 to {self.vocab_size - 1}")
            return self._table.pieces[ids]
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(tf.gather(self._texts, ids.flat_values))
        return tf.gather(self._texts, ids)

    # Text to pieces.

    @tf.autograph.experimental.do_not_convert
    def tokenize(self, text: TextLike) -> tf.Tensor | tf.RaggedTensor:
        """Splits text into piece ids.

        Args:
            text: string [batch], or a `str`, a list, a scalar, or a tensor or ragged tensor of
                more dimensions.

        Returns:
            int32 ids: ragged [batch, (pieces)]; for a scalar a tensor [pieces]; in general ragged
            with one dimension more than `text`.

        Raises:
            ValueError: `text` has no known rank.
            TypeError: `text` is not of strings.
        """
        return self._over_any_rank(text, self._ids)[0]

    @tf.autograph.experimental.do_not_convert
    def tokenize_with_offsets(self, text: TextLike) -> tuple[Any, Any, Any]:
        """Splits text into piece ids, and says which bytes of the text each piece comes from.

        A piece covers the bytes from the first byte of the character its first letter came from
        to the last byte of the character its last letter came from, like the reference (whose
        offsets count characters).  Accents and control characters that were dropped lie within
        a piece if they stood inside it and outside if they stood at its end.  Where one character
        gives several pieces (Hangul, with accents stripped), each of them covers all of it.
        One case differs from the reference, only with `strip_accents`: for a word with one of
        the 83 rare marks that stripping leaves and canonical order moves (U+302E, say), the
        reference gives the place that the mark moved to.  Its ids are the same as long as the
        vocabulary has no piece with two such marks; no published one has any.

        Args:
            text: as for `tokenize`.

        Returns:
            `(ids, starts, ends)`, int32, each shaped as `tokenize` returns it; bytes `starts` up
            to but not including `ends`, counted in the text as given.

        Raises:
            ValueError, TypeError: as `tokenize`.
        """
        ids, starts, ends = self._over_any_rank(text, self._ids_and_offsets)
        return ids, starts, ends

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Joins pieces into text: a space before each, except that "##" glues to the one before.

        The text is the normalized one.  Lost are case and accents (where the tokenizer drops
        them), the words behind [UNK], control characters, the kind and number of spaces, and
        whether punctuation stood apart: "don't" comes back as "don ' t".  Special tokens,
        padding among them, are written out.

        Args:
            ids: integers, ragged [batch, (pieces)], dense [batch, pieces], or [pieces].

        Returns:
            string [batch], or a scalar for [pieces].

        Raises:
            tf.errors.InvalidArgumentError: an id outside the vocabulary.
            ValueError: `ids` has neither one dimension nor two.
        """
        if not isinstance(ids, tf.Tensor | tf.RaggedTensor):
            ids = tf.ragged.constant(ids, tf.int32)
        rank = ids.shape.rank
        if rank == 1:
            return self.detokenize(ids[tf.newaxis])[0]
        if rank != 2:
            raise ValueError(f"ids have rank {rank}, expected [pieces] or [batch, pieces]")
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        texts = tf.gather(self._texts, ids.values)
        length = tf.strings.length(texts)
        glued = (tf.strings.substr(texts, 0, 2) == _SUFFIX) & (length > 2)
        first = _flags(ids.row_splits, tf.size(ids.values, ids.row_splits.dtype))
        texts = tf.where(
            first,
            texts,
            tf.where(
                glued,
                tf.strings.substr(texts, tf.where(glued, 2, 0), length),
                tf.strings.join([" ", texts]),
            ),
        )
        return tf.strings.reduce_join(ids.with_values(texts), axis=-1)

    # Files.

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make this tokenizer again, the vocabulary among them."""
        return {"vocabulary": self.vocabulary} | self._table.options

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WordPieceTokenizer:
        """Makes a tokenizer from what `get_config` returned."""
        return cls(**config)

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs cannot be copied or pickled; the arguments can, and Keras copies its layers.
        return type(self).from_config, (self.get_config(),)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `vocab.txt` and `tokenizer_config.json`, which Hugging Face's classes read too.

        Args:
            directory: where to; made if missing.
        """
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{piece}\n" for piece in self._table.pieces)
        (path / _VOCABULARY_FILE).write_bytes(lines.encode("utf-8"))
        options = self._table.options
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": options["lower_case"],
            "strip_accents": options["strip_accents"],
            "tokenize_chinese_chars": options["split_chinese"],
            "clean_text": options["clean_text"],
            "split_special_tokens": not options["special_tokens_in_text"],
            "max_input_chars_per_word": options["max_chars_per_word"],
            **{name: options[name] for name in _SPECIAL_NAMES},
            "additional_special_tokens": list(options["additional_special_tokens"]),
        }
        text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
        (path / _CONFIG_FILE).write_bytes(text.encode("utf-8"))

    @classmethod
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> WordPieceTokenizer:
        """Reads a tokenizer from a directory.

        The vocabulary is that of `vocab.txt`, or of `tokenizer.json` where that stands alone.
        Each option is taken from the first that states it: the argument, `tokenizer_config.json`,
        `tokenizer.json`, the constructor's default.  Where nothing says whether to lower-case, a
        vocabulary is held to be cased if one of its pieces, other than those in brackets, has
        a letter from A to Z.

        Args:
            directory: the directory, or one of these files in it.
            **options: keyword arguments of the constructor.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: there is neither `vocab.txt` nor `tokenizer.json`.
            ValueError: a file is damaged or describes a tokenizer that is not BERT's.
        """
        path = Path(directory)
        if path.is_file():
            path = path.parent
        vocabulary, config, whole = (
            path / name for name in (_VOCABULARY_FILE, _CONFIG_FILE, _JSON_FILE)
        )
        stated: dict[str, Any] = {}
        if whole.is_file():
            pieces, stated = _read_tokenizer_json(whole)
        elif not vocabulary.is_file():
            raise FileNotFoundError(
                f"{path}: found neither {_VOCABULARY_FILE} nor {_JSON_FILE}, "
                "expected one of them beside the weights"
            )
        if vocabulary.is_file():
            pieces = _read_vocabulary(vocabulary)
        if config.is_file():
            stated |= _read_tokenizer_config(config)
        stated |= options
        if "lower_case" not in stated:
            stated["lower_case"] = not any(
                not _ASCII_CAPITALS.isdisjoint(piece) and piece[0] + piece[-1] not in ("[]", "<>")
                for piece in pieces
            )
        source = vocabulary if vocabulary.is_file() else whole
        _index(pieces, stated.get("unk_token", "[UNK]"), str(source))
        return cls(pieces, **stated)

    # The graph.

    def _over_any_rank(self, text: TextLike, function: Any) -> tuple[Any, ...]:
        """Applies `function`, string [n] -> ragged [n, (pieces)] tuples, to text of any shape."""
        if not isinstance(text, tf.Tensor | tf.RaggedTensor):
            make = tf.ragged.constant if _is_nested(text) else tf.constant
            text = make(text, tf.string)
        if text.dtype != tf.string:
            raise TypeError(f"text has dtype {text.dtype.name}, expected string")
        rank = text.shape.rank
        if rank is None:
            raise ValueError("text has no known rank, expected a scalar or string [batch]")
        if rank == 0:
            return tuple(rows.values for rows in function(text[tf.newaxis]))
        if isinstance(text, tf.RaggedTensor):
            outer = text
            return tuple(outer.with_flat_values(rows) for rows in function(outer.flat_values))
        if rank == 1:
            return tuple(function(text))
        outer = tf.RaggedTensor.from_tensor(text, ragged_rank=rank - 1)
        return tuple(outer.with_flat_values(rows) for rows in function(outer.flat_values))

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        """Tokenizes string [n]; returns ids, or ids, starts and ends, each ragged [n, (pieces)]."""
        if offsets:
            normalized, source = self._normalizer.normalize_with_offsets(texts)
        else:
            normalized, source = self._normalizer.normalize(texts), None
        ids, starts, ends = self._words.tokenize_with_offsets(normalized)
        pieces = _Pieces(ids.values, starts.values, ends.values, ids.row_splits)

        wanted = self._has_long_run(pieces) | self._has_special_pieces(pieces)
        pieces = _Pieces(*_unlikely(wanted, self._repair, [*pieces], [normalized, texts]))
        if source is None:
            return (pieces.ragged(pieces.ids),)
        rows = pieces.rows()
        raw = self._bytes.split(texts)
        base = tf.gather(source.row_splits, rows)
        start = tf.gather(source.values, base + pieces.starts)
        last = tf.gather(source.values, base + pieces.ends - 1)
        # The offset of an altered character's bytes is that of the character's first byte, from
        # which its width is read; bytes of unaltered ones have their own.
        byte = tf.cast(tf.gather(raw.values, tf.gather(raw.row_splits, rows) + last), tf.int32)
        wide = [tf.cast(byte >= lead, tf.int32) for lead in (0xC2, 0xE0, 0xF0)]
        end = tf.cast(last, tf.int32) + 1 + wide[0] + wide[1] + wide[2]
        return (
            pieces.ragged(pieces.ids),
            pieces.ragged(tf.cast(start, tf.int32)),
            pieces.ragged(end),
        )

    def _repair(self, *tensors: tf.Tensor) -> _Pieces:
        """Puts right what neither a character map nor a vocabulary can say.

        Args:
            *tensors: the four parts of `_Pieces`, the normalized texts and the texts.
        """
        *parts, normalized, texts = tensors
        pieces = self._mark_long_words(_Pieces(*parts), normalized)
        return self._merge_special_tokens(pieces, texts)

    def _has_long_run(self, pieces: _Pieces) -> tf.Tensor:
        """Returns whether any word has more bytes than a word may have characters."""
        # Pieces of a word touch, words do not.  Rows are ignored here: a run that by chance goes
        # on into the next row is only longer.
        gaps = tf.where(pieces.starts[1:] != pieces.ends[:-1])[:, 0]
        starts = tf.concat([pieces.starts[:1], tf.gather(pieces.starts, gaps + 1)], 0)
        ends = tf.concat([tf.gather(pieces.ends, gaps), pieces.ends[-1:]], 0)
        return tf.reduce_any(ends - starts > self._table.options["max_chars_per_word"])

    def _mark_long_words(self, pieces: _Pieces, normalized: tf.Tensor) -> _Pieces:
        """Makes one unknown piece of each word that has too many characters."""
        size = tf.size(pieces.ids, tf.int64)
        inner = tf.where(pieces.starts[1:] != pieces.ends[:-1])[:, 0] + 1
        opens = _flags(tf.concat([pieces.splits, inner], 0), size)
        word = tf.cumsum(tf.cast(opens, tf.int64)) - 1
        first = tf.where(opens)[:, 0]
        start = tf.gather(pieces.starts, first)
        end = tf.gather(pieces.ends, tf.concat([first[1:], [size]], 0)[: tf.size(first)] - 1)
        split = self._bytes.split(normalized)
        byte = tf.cast(split.values, tf.int32)
        count = tf.cumsum(tf.cast((byte < 0x80) | (byte >= 0xC0), tf.int32))
        count = tf.concat([[0], count], 0)
        row = tf.gather(split.row_splits, tf.gather(pieces.rows(), first))
        length = tf.gather(count, row + end) - tf.gather(count, row + start)
        long = tf.gather(length > self._table.options["max_chars_per_word"], word)
        marked = _Pieces(
            tf.where(long, self.unk_id, pieces.ids),
            pieces.starts,
            tf.where(long, tf.gather(end, word), pieces.ends),
            pieces.splits,
        )
        return marked.keep(opens | ~long)

    def _special_openings(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the pieces that a special token typed in the text would be split into.

        Returns:
            int64 [k], indices of pieces that such tokens begin with, and bool [k, tokens],
            whether that token's pieces follow.
        """
        special = self._special
        assert special is not None
        opens = ids == special.opening[0]
        for piece in special.opening[1:]:
            opens |= ids == piece
        at = tf.where(opens)[:, 0]
        return at, _windows_equal(ids, at, special.pieces)

    def _has_special_pieces(self, pieces: _Pieces) -> tf.Tensor:
        """Returns whether special tokens may stand in the text."""
        if self._special is None:
            return tf.constant(False)
        return tf.reduce_any(self._special_openings(pieces.ids)[1])

    def _merge_special_tokens(self, pieces: _Pieces, texts: tf.Tensor) -> _Pieces:
        """Puts one piece for the several that a special token typed in the text was split into."""
        special = self._special
        if special is None:
            return pieces
        source = self._normalizer.normalize_with_offsets(texts)[1]
        opening, found = self._special_openings(pieces.ids)
        # "[ mask ]" gives the same pieces as "[MASK]": the bytes decide.
        raw = self._bytes.split(texts)
        rows = tf.gather(pieces.rows(), opening)
        position = tf.gather(
            source.values, tf.gather(source.row_splits, rows) + tf.gather(pieces.starts, opening)
        )
        position += tf.gather(raw.row_splits, rows)
        room = tf.gather(raw.row_splits, rows + 1) - position
        found &= _windows_equal(tf.cast(raw.values, tf.int32), position, special.bytes)
        found &= room[:, tf.newaxis] >= special.byte_counts
        hits = tf.where(found)
        which = hits[:, 1]
        start = tf.gather(opening, hits[:, 0])
        stop = start + tf.gather(special.piece_counts, which)
        size = tf.shape(pieces.ids, tf.int64)

        def spread(values: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(start[:, tf.newaxis], values, size)

        steps = tf.scatter_nd(
            tf.concat([start + 1, stop], 0)[:, tf.newaxis],
            tf.concat([tf.ones_like(start), -tf.ones_like(stop)], 0),
            size + 1,
        )
        is_special = spread(tf.ones_like(start)) > 0
        merged = _Pieces(
            tf.where(is_special, spread(tf.gather(special.ids, which)), pieces.ids),
            pieces.starts,
            tf.where(is_special, spread(tf.gather(pieces.ends, stop - 1)), pieces.ends),
            pieces.splits,
        )
        return merged.keep(tf.cumsum(steps)[:-1] == 0)

    def _describe_special_tokens(self, additional: Sequence[str]) -> _SpecialTokens | None:
        names = [self._table.options[name] for name in _SPECIAL_NAMES] + list(additional)
        tokens = [token for token in dict.fromkeys(names) if token in self._table.ids]
        missing = [token for token in additional if token not in self._table.ids]
        if missing:
            raise ValueError(f"additional special tokens {missing} are not in the vocabulary")
        for token in tokens:
            inner = "".join(other[1:] for other in tokens)
            if token[0] in inner or not {token[0], token[-1]} <= set(string.punctuation):
                raise ValueError(
                    f"special token {token!r} cannot be found in text: expected it to begin and "
                    "end with an ASCII punctuation mark, and the first mark nowhere else in a "
                    "special token; special_tokens_in_text=False does without"
                )
            if any(other != token and other.startswith(token) for other in tokens):
                raise ValueError(f"special token {token!r} is the beginning of another one")
        if not tokens:
            return None
        # As the tokens begin and end with marks that are words of their own, they are split into
        # the same pieces wherever they stand.
        rows = self._words.tokenize(self._normalizer.normalize(tf.constant(tokens)))
        pieces = [row.numpy() for row in rows]
        texts = [np.frombuffer(token.encode("utf-8"), np.uint8) for token in tokens]
        return _SpecialTokens(
            ids=np.array([self._table.ids[token] for token in tokens], np.int32),
            opening=np.unique([row[0] for row in pieces]).astype(np.int32),
            pieces=_padded(pieces),
            piece_counts=np.array([len(row) for row in pieces], np.int64),
            bytes=_padded(texts),
            byte_counts=np.array([len(text) for text in texts], np.int64),
        )


class _Table:
    """Vocabulary and arguments, out of the sight of tf.Module, which would wrap each container."""

    def __init__(self, pieces: list[str], ids: dict[str, int], options: dict[str, Any]) -> None:
        self.pieces = pieces
        self.ids = ids
        self.options = options


class _SpecialTokens:
    """What the graph needs to find special tokens: per token its pieces and bytes, -1 behind."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.ids = arrays["ids"]
        self.opening = arrays["opening"]
        self.pieces = arrays["pieces"]
        self.piece_counts = arrays["piece_counts"]
        self.bytes = arrays["bytes"]
        self.byte_counts = arrays["byte_counts"]


class _Pieces(NamedTuple):
    """Pieces of all rows on end: ids int32 [n], offsets int64 [n] in the normalized rows."""

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor

    def rows(self) -> tf.Tensor:
        """Returns int64 [n], the row of each piece."""
        size = tf.size(self.ids, tf.int64)
        steps = tf.scatter_nd(
            self.splits[1:-1, tf.newaxis], tf.ones_like(self.splits[1:-1]), [size + 1]
        )
        return tf.cumsum(steps)[:-1]

    def keep(self, mask: tf.Tensor) -> _Pieces:
        """Returns the pieces where `mask`, bool [n], holds."""
        kept = tf.where(mask)[:, 0]
        before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], 0)
        return _Pieces(
            tf.gather(self.ids, kept),
            tf.gather(self.starts, kept),
            tf.gather(self.ends, kept),
            tf.gather(before, self.splits),
        )

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """Returns `values`, [n], cut into rows."""
        return tf.RaggedTensor.from_row_splits(values, self.splits, validate=False)


def _unlikely(
    condition: tf.Tensor,
    function: Callable[..., Sequence[tf.Tensor]],
    values: list[tf.Tensor],
    others: list[tf.Tensor],
) -> list[tf.Tensor]:
    """Returns `function(*values, *others)` if `condition` holds, else `values`.

    `tf.cond` in a graph visits, one by one, the nodes of the branch not taken; for the few pieces
    of a sentence that takes longer than to tokenize it.  The operation used here leaves them be.
    """

    def concrete(body: Callable[..., Any], inputs: list[tf.Tensor]) -> Any:
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in inputs]
        return tf.function(body, autograph=False).get_concrete_function(*specs)

    inputs = values + others
    taken = concrete(lambda *tensors: tuple(function(*tensors)), inputs)
    inputs = inputs + list(taken.captured_inputs)
    left = concrete(lambda *tensors: tensors[: len(values)], inputs)
    results = tf.raw_ops.StatelessIf(
        cond=condition,
        input=inputs,
        Tout=[value.dtype for value in values],
        then_branch=taken,
        else_branch=left,
    )
    for result, value in zip(results, values, strict=True):
        result.set_shape([None] * value.shape.rank)
    return results


def _flags(positions: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns bool [size], true at `positions`; a position equal to `size` is ignored."""
    counts = tf.scatter_nd(positions[:, tf.newaxis], tf.ones_like(positions), [size + 1])
    return counts[:-1] > 0


def _windows_equal(values: tf.Tensor, positions: tf.Tensor, patterns: np.ndarray) -> tf.Tensor:
    """Returns bool [positions, patterns]: whether `values` from there on begin with the pattern.

    Args:
        values: int32 [n].
        positions: int64 [k].
        patterns: int32 [p, m], -1 behind a shorter one.
    """
    width = patterns.shape[1]
    padded = tf.concat([values, tf.fill([width], -2)], 0)
    window = tf.gather(padded, positions[:, tf.newaxis] + tf.range(width, dtype=tf.int64))
    return tf.reduce_all((window[:, tf.newaxis] == patterns) | (patterns < 0), -1)


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    result = np.full((len(rows), max(map(len, rows))), -1, np.int32)
    for index, row in enumerate(rows):
        result[index, : len(row)] = row
    return result


def _is_nested(text: Any) -> bool:
    return isinstance(text, list | tuple) and any(isinstance(row, list | tuple) for row in text)


# From vocabulary and rules to the models of the kernels.


def _codepoints(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _build_models(
    pieces: list[str], unk_id: int, rules: _unicode.Rules, max_chars: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the flatbuffers of the normalizer and of the word model."""
    changed, removed, apart = rules.changed(), rules.removed(), rules.apart()
    produced = ~removed
    produced[list(changed)] = False
    produced[_codepoints("".join(set("".join(changed.values()))))] = True
    produced[ord(" ")] = False

    # A piece that the normalizer's output cannot contain keeps its id but matches nothing.
    suffix = np.array([len(piece) > 2 and piece.startswith(_SUFFIX) for piece in pieces])
    bodies = [piece[2:] if glued else piece for piece, glued in zip(pieces, suffix, strict=True)]
    letters = _codepoints("".join(bodies))
    lengths = np.array([len(body) for body in bodies])
    begins = np.cumsum(lengths) - lengths
    reachable = np.logical_and.reduceat(produced[letters], begins)
    reachable &= ~np.logical_or.reduceat(apart[letters], begins) | ((lengths == 1) & ~suffix)
    known = np.zeros(_unicode.CODEPOINTS, bool)
    known[letters[np.repeat(reachable, lengths)]] = True

    stand_ins = _stand_ins(known & ~apart)
    words = []
    for index, body in enumerate(bodies):
        if not reachable[index]:
            words.append(f"{_PLACEHOLDER}{index:x}")
            continue
        body = body.translate(stand_ins)
        size = len(body.encode("utf-8"))
        if size > _MAX_PIECE_BYTES:
            raise ValueError(
                f"piece {index}, {pieces[index][:20]!r}…, takes {size} bytes, "
                f"expected at most {_MAX_PIECE_BYTES}"
            )
        words.append(_SUFFIX + body if suffix[index] else body)
    word_model = _models.sentence_model(
        tf_text.build_fast_wordpiece_model(
            words, 4 * max_chars, _SUFFIX, words[unk_id], True, False
        )
    )

    strings = [""]
    places: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in places:
            places[text] = len(strings)
            strings.append(text)
        return places[text]

    def written(char: str) -> str:
        text = stand_ins.get(ord(char), char) if known[ord(char)] else _UNKNOWN_CHARACTER
        return f" {text} " if apart[ord(char)] else text

    choice = np.full(_unicode.CODEPOINTS, place(_UNKNOWN_CHARACTER))
    choice[apart] = place(f" {_UNKNOWN_CHARACTER} ")
    choice[known] = 0
    choice[ord(" ")] = 0
    for codepoint in [*np.flatnonzero(known & apart).tolist(), *stand_ins]:
        choice[codepoint] = place(written(chr(codepoint)))
    for codepoint, text in changed.items():
        choice[codepoint] = place("".join(char if char == " " else written(char) for char in text))
    choice[removed] = place("")
    replacement = strings[choice[0xFFFD]] if choice[0xFFFD] else "\ufffd"
    normalizer = _models.normalizer_model(
        [text.encode("utf-8") for text in strings], choice, replacement.encode("utf-8")
    )
    return normalizer, word_model


def _stand_ins(letters: np.ndarray) -> dict[int, str]:
    """Returns private-use characters for letters that the kernel might take for word ends.

    The kernel cuts at what its own Unicode tables call white space, punctuation or Chinese
    wherever the vocabulary does not continue.  Here such a character (Chinese if
    `split_chinese` is off, say) is a letter like any other.
    """
    free = (chr(codepoint) for codepoint in range(0xE000, 0xF900) if not letters[codepoint])
    spare = (chr(codepoint) for codepoint in range(0xF0000, 0xFFFFE) if not letters[codepoint])
    result: dict[int, str] = {}
    for codepoint in np.flatnonzero(letters).tolist():
        chinese = any(start <= codepoint < end for start, end in _KERNEL_CHINESE)
        if chinese or unicodedata.category(chr(codepoint))[0] not in "LMNS":
            result[codepoint] = next(free, "") or next(spare)
    return result


_KERNEL_CHINESE = (
    (0x4E00, 0xA000), (0x3400, 0x4DC0), (0x20000, 0x2A6E0), (0x2A700, 0x2CEB0),
    (0xF900, 0xFB00), (0x2F800, 0x2FA20),
)  # fmt: skip
_ASCII_CAPITALS = frozenset(string.ascii_uppercase)


# Files.


def _index(pieces: list[str], unk_token: str, source: str) -> dict[str, int]:
    """Returns the ids of the pieces, or raises ValueError for a vocabulary that cannot be used."""
    ids: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        if not isinstance(piece, str):
            raise ValueError(f"{source}: piece {index} is {piece!r}, expected a string")
        if not piece:
            raise ValueError(
                f"{source}: line {index + 1} is blank, expected one piece a line (each line is "
                "an id, so none can be skipped)"
            )
        if piece in ids:
            raise ValueError(
                f"{source}: line {index + 1} repeats {piece!r} of line {ids[piece] + 1}, "
                "expected each piece once"
            )
        ids[piece] = index
    if unk_token not in ids:
        raise ValueError(
            f"{source}: found {len(pieces)} pieces but no {unk_token!r}, expected the piece for "
            "unknown words among them"
        )
    return ids


def _read_vocabulary(path: Path) -> list[str]:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: line {line} holds the byte 0x{data[error.start]:02x}, expected UTF-8"
        ) from error
    # Only "\n" ends a line: some vocabularies hold other characters that Python counts as ends.
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON in UTF-8 ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: found a {type(content).__name__}, expected a JSON object")
    return content


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Returns the constructor's arguments that a tokenizer_config.json states."""
    config = _read_json(path)
    names = {
        "do_lower_case": "lower_case",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "split_chinese",
        "clean_text": "clean_text",
        "max_input_chars_per_word": "max_chars_per_word",
    }
    stated = {ours: config[theirs] for theirs, ours in names.items() if theirs in config}
    if "split_special_tokens" in config:
        stated["special_tokens_in_text"] = not config["split_special_tokens"]
    for name in _SPECIAL_NAMES:
        if config.get(name) is not None:
            stated[name] = _content(config[name], path)
    if config.get("additional_special_tokens"):
        stated["additional_special_tokens"] = tuple(
            _content(token, path) for token in config["additional_special_tokens"]
        )
    return stated


def _content(token: Any, path: Path) -> str:
    """Returns the text of a special token, stored plainly or with its settings."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"{path}: special token {token!r}, expected a string")
    return text


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Returns the vocabulary and the constructor's arguments that a tokenizer.json states."""
    content = _read_json(path)
    model = content.get("model") or {}
    # Early files state no type; the prefix then tells WordPiece.
    kind = model.get("type") or ("WordPiece" if "continuing_subword_prefix" in model else None)
    normalizer = content.get("normalizer") or {}
    splitter = (content.get("pre_tokenizer") or {}).get("type")
    for what, found, expected in (
        ("model", kind, "WordPiece"),
        ("continuing prefix", model.get("continuing_subword_prefix"), _SUFFIX),
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("pre-tokenizer", splitter, "BertPreTokenizer"),
    ):
        if found != expected:
            raise ValueError(f"{path}: the {what} is {found!r}, expected {expected!r}")
    ids = dict(model["vocab"])
    added = content.get("added_tokens") or []
    for token in added:
        text = _content(token, path)
        if ids.setdefault(text, token["id"]) != token["id"]:
            raise ValueError(f"{path}: {text!r} has the ids {ids[text]} and {token['id']}")
        settings = [name for name in ("single_word", "lstrip", "rstrip", "normalized")
                    if token.get(name)]  # fmt: skip
        if settings or not token.get("special"):
            raise ValueError(
                f"{path}: added token {text!r} with {', '.join(settings) or 'special off'}, "
                "expected only special tokens without such settings"
            )
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise ValueError(f"{path}: the ids of {len(pieces)} pieces are not 0 to {len(pieces) - 1}")
    stated = {
        "lower_case": normalizer.get("lowercase", True),
        "strip_accents": normalizer.get("strip_accents"),
        "split_chinese": normalizer.get("handle_chinese_chars", True),
        "clean_text": normalizer.get("clean_text", True),
        "max_chars_per_word": model.get("max_input_chars_per_word", 100),
        "unk_token": model.get("unk_token", "[UNK]"),
    }
    standard = {stated["unk_token"], "[CLS]", "[SEP]", "[PAD]", "[MASK]"}
    others = tuple(token["content"] for token in added if token["content"] not in standard)
    if others:
        stated["additional_special_tokens"] = others
    return pieces, stated

"""What the tokenizers have in common: names and numbers, shapes, special tokens in the text."""

from __future__ import annotations

import dataclasses
import os
import string
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text._files import ROLES, index_of_pieces
from bertfam_tf.text._graph import Pieces, flags, padded, row_of_each, unlikely, windows_equal
from bertfam_tf.text.packing import Layout

TextLike: TypeAlias = str | Sequence[str] | tf.Tensor | tf.RaggedTensor


class Tokenizer(tf.Module):
    """Text in, piece ids and byte offsets out, all in the graph.

    A subclass says how plain text becomes pieces (`_encode`) and pieces text (`_join`).  Works
    eagerly, in `tf.data`, `tf.function` and SavedModels.  Input that is not UTF-8 is read as
    `bytes.decode("utf-8", errors="replace")` reads it.

    Args:
        pieces: the vocabulary in the order of the ids.
        options: the subclass's arguments other than the vocabulary, as `get_config` returns them.
            Of these are read here: `<role>_token` (text or None) for each of `ROLES`,
            `additional_special_tokens`, `special_tokens_in_text`, `lstrip_tokens` (special tokens
            that swallow the white space before them) and `layout`.
        source: what to call the vocabulary in errors.

    Raises:
        ValueError: the vocabulary repeats or lacks a piece, or a special token cannot be found in
            text (it must begin and end with an ASCII punctuation mark, the first of which may
            occur in it only once).
    """

    # Whether its graph can run on phones.
    has_tflite_kernels = False

    def __init__(
        self,
        pieces: Sequence[str],
        options: Mapping[str, Any],
        *,
        name: str,
        source: str = "the vocabulary",
    ) -> None:
        super().__init__(name=name)
        ids = index_of_pieces(pieces, source, options.get("unk_token"))
        self._table = _Table(list(pieces), ids, dict(options))
        # The tokenizer may be made inside a function that is being traced; what it holds must not
        # belong to that function's graph.
        with tf.init_scope():
            self._texts = tf.constant(self._table.pieces)
            self._bytes = tf_text.ByteSplitter()
        self._special = self._describe_special_tokens()
        # Functions of their own make the eager calls as quick as those from a graph.
        rows = [tf.TensorSpec([None], tf.string)]
        self._ids = tf.function(
            lambda texts: self._ragged(texts, offsets=False), rows, autograph=False
        )
        self._ids_and_offsets = tf.function(
            lambda texts: self._ragged(texts, offsets=True), rows, autograph=False
        )

    # What a subclass has to say.

    def _encode(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Splits rows, string [n], that hold no special tokens.

        Returns:
            their pieces; `starts` and `ends`, int32 bytes of the rows, if `offsets`, else None.
        """
        raise NotImplementedError

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Joins pieces, ragged int [batch, (pieces)], into text, string [batch]."""
        raise NotImplementedError

    def _finish(self, pieces: Pieces) -> Pieces:
        """Puts a last hand to pieces with offsets, special tokens among them."""
        return pieces

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
    def layout(self) -> Layout:
        """Where the special tokens stand around one text, and around two."""
        return self._table.options["layout"]

    def special_id(self, role: str) -> int:
        """Returns the id of the special token that plays a part, one of `ROLES`.

        Raises:
            ValueError: this tokenizer has no such token, or its vocabulary lacks it.
        """
        if role not in ROLES:
            raise ValueError(f"role {role!r}, expected one of {', '.join(ROLES)}")
        token = self._table.options.get(f"{role}_token")
        if token is None:
            raise ValueError(f"this {type(self).__name__} has no {role}_token")
        return self.token_to_id(token)

    @property
    def unk_id(self) -> int:
        """The id of unknown words. Raises ValueError if there is none."""
        return self.special_id("unk")

    @property
    def cls_id(self) -> int:
        """The id of `cls_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("cls")

    @property
    def sep_id(self) -> int:
        """The id of `sep_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("sep")

    @property
    def pad_id(self) -> int:
        """The id of `pad_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("pad")

    @property
    def mask_id(self) -> int:
        """The id of `mask_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("mask")

    @property
    def bos_id(self) -> int:
        """The id of `bos_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("bos")

    @property
    def eos_id(self) -> int:
        """The id of `eos_token`. Raises ValueError if the vocabulary lacks it."""
        return self.special_id("eos")

    @property
    def special_ids(self) -> dict[str, int]:
        """The id of each role that this tokenizer has a token for."""
        options, ids = self._table.options, self._table.ids
        tokens = {role: options.get(f"{role}_token") for role in ROLES}
        return {role: ids[token] for role, token in tokens.items() if token in ids}

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

    # Text to pieces, pieces to text.

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
        return _over_any_rank(text, self._ids.get_concrete_function())[0]

    @tf.autograph.experimental.do_not_convert
    def tokenize_with_offsets(self, text: TextLike) -> tuple[Any, Any, Any]:
        """Splits text into piece ids, and says which bytes of the text each piece comes from.

        Args:
            text: as for `tokenize`.

        Returns:
            `(ids, starts, ends)`, int32, each shaped as `tokenize` returns it; bytes `starts` up
            to but not including `ends`, counted in the text as given.

        Raises:
            ValueError, TypeError: as `tokenize`.
        """
        function = self._ids_and_offsets.get_concrete_function()
        ids, starts, ends = _over_any_rank(text, function)
        return ids, starts, ends

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Joins pieces into text.

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
        return self._join(ids)

    # Files.

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make this tokenizer again, the vocabulary among them."""
        return {"vocabulary": self.vocabulary} | self._table.options

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer from what `get_config` returned."""
        return cls(**config)

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs cannot be copied or pickled; the arguments can, and Keras copies its layers.
        return type(self).from_config, (self.get_config(),)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the files that `load` reads.

        Args:
            directory: where to; made if missing.
        """
        raise NotImplementedError

    @classmethod
    def load(cls, directory: str | os.PathLike[str], **options: Any) -> Self:
        """Reads a tokenizer from a directory.

        Args:
            directory: the directory, or one of the tokenizer's files in it.
            **options: keyword arguments of the constructor, which go before what the files say.

        Raises:
            FileNotFoundError: there are no such files.
            ValueError: a file is damaged or describes another kind of tokenizer.
        """
        raise NotImplementedError

    def _special_config(self) -> dict[str, Any]:
        """Returns what `tokenizer_config.json` says of special tokens and their layout."""
        options = self._table.options
        lstrip = options.get("lstrip_tokens", ())

        def stored(token: str) -> Any:
            return {"content": token, "lstrip": True} if token in lstrip else token

        tokens = {f"{role}_token": options.get(f"{role}_token") for role in ROLES}
        return {
            **{name: stored(token) for name, token in tokens.items() if token is not None},
            "additional_special_tokens": list(map(stored, options["additional_special_tokens"])),
            "split_special_tokens": not options["special_tokens_in_text"],
            "layout": dataclasses.asdict(self.layout),
        }

    # The graph.

    def _ragged(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, ...]:
        """Tokenizes string [n]; returns ids, or ids, starts and ends, each ragged [n, (pieces)]."""
        pieces = self._encode(texts, offsets)
        if self._special is not None:
            kept = [part for part in pieces if part is not None]

            def again(*tensors: tf.Tensor) -> list[tf.Tensor]:
                found = self._encode_around_special_tokens(tensors[-1], offsets)
                return [part for part in found if part is not None]

            kept = unlikely(self._may_hold_special(texts, pieces), again, kept, [texts])
            pieces = Pieces(*kept) if offsets else Pieces(kept[0], None, None, kept[1])
        if not offsets:
            return (pieces.ragged(pieces.ids),)
        pieces = self._finish(pieces)
        return tuple(pieces.ragged(part) for part in (pieces.ids, pieces.starts, pieces.ends))

    def _may_hold_special(self, texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
        """Returns whether special tokens may stand in the text; a quick look at its bytes."""
        assert self._special is not None
        data = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.reduce_any(self._special.find(data)[1])

    def _encode_around_special_tokens(self, texts: tf.Tensor, offsets: bool) -> Pieces:
        """Cuts out the special tokens, and splits the text between them."""
        special = self._special
        assert special is not None
        raw = self._bytes.split(texts)
        size = tf.size(raw.values, tf.int64)
        row = row_of_each(raw.row_splits, size)
        at, found = special.find(raw.values)
        room = tf.gather(raw.row_splits, tf.gather(row, at) + 1) - at
        found &= room[:, tf.newaxis] >= special.byte_counts
        # Where one special token begins with another, the longer one counts.
        which = tf.argmax(tf.where(found, tf.cast(special.byte_counts, tf.int32), 0), -1)
        hit = tf.where(tf.reduce_any(found, -1))[:, 0]
        which, first = tf.gather(which, hit), tf.gather(at, hit)
        behind = first + tf.gather(special.byte_counts, which)

        # The segments between cuts tile the bytes of all rows.
        cuts = flags(tf.concat([raw.row_splits, first, behind], 0), size)
        start = tf.where(cuts)[:, 0]
        end = tf.concat([start[1:], [size]], 0)[: tf.size(start)]
        before = tf.concat([[0], tf.cumsum(tf.cast(cuts, tf.int64))], 0)
        splits = tf.gather(before, raw.row_splits)
        token = tf.gather(
            tf.tensor_scatter_nd_update(
                tf.fill(tf.reshape(size, [1]), tf.constant(-1, tf.int64)),
                first[:, tf.newaxis],
                which,
            ),
            start,
        )
        row = tf.gather(row, start)
        base = tf.gather(raw.row_splits, row)
        start, end = start - base, end - base
        is_token = token >= 0
        segments = self._bytes.split_by_offsets(
            texts,
            *(
                tf.RaggedTensor.from_row_splits(tf.cast(values, tf.int32), splits, validate=False)
                for values in (start, end)
            ),
        ).values
        if special.lstrip.any():
            segments, swallowed, end = _strip_before(
                segments, start, end, row, is_token, tf.gather(special.lstrip, tf.maximum(token, 0))
            )
            if not self._table.options.get("trim_offsets"):
                start = swallowed
        plain = tf.where(~is_token)[:, 0]
        token_at = tf.where(is_token)[:, 0]
        inner = self._encode(tf.gather(segments, plain), offsets)
        rows = inner.rows()

        counts = tf.tensor_scatter_nd_update(
            tf.ones_like(start), plain[:, tf.newaxis], inner.splits[1:] - inner.splits[:-1]
        )
        begins = tf.concat([[0], tf.cumsum(counts)], 0)
        move = tf.gather(begins, plain) - inner.splits[:-1]
        places = tf.concat(
            [
                tf.range(tf.size(inner.ids, tf.int64)) + tf.gather(move, rows),
                tf.gather(begins, token_at),
            ],
            0,
        )[:, tf.newaxis]

        def woven(of_text: tf.Tensor, of_segments: tf.Tensor) -> tf.Tensor:
            of_tokens = tf.cast(tf.gather(of_segments, token_at), of_text.dtype)
            return tf.scatter_nd(places, tf.concat([of_text, of_tokens], 0), begins[-1:])

        ids = woven(inner.ids, tf.gather(special.ids, tf.maximum(token, 0)))
        splits = tf.gather(begins, splits)
        if inner.starts is None or inner.ends is None:
            return Pieces(ids, None, None, splits)
        begin = tf.cast(tf.gather(tf.gather(start, plain), rows), inner.starts.dtype)
        return Pieces(
            ids, woven(inner.starts + begin, start), woven(inner.ends + begin, end), splits
        )

    def _describe_special_tokens(self) -> _SpecialTokens | None:
        options, ids = self._table.options, self._table.ids
        additional = list(options["additional_special_tokens"])
        missing = [token for token in additional if token not in ids]
        if missing:
            raise ValueError(f"additional special tokens {missing} are not in the vocabulary")
        if not options["special_tokens_in_text"]:
            return None
        names = [options.get(f"{role}_token") for role in ROLES] + additional
        tokens = [token for token in dict.fromkeys(names) if token in ids]
        longest = max((len(token.encode("utf-8")) for token in tokens), default=0)
        if len(tokens) * longest > _MOST_SPECIAL_BYTES:
            raise ValueError(
                f"{len(tokens)} special tokens of up to {longest} bytes are more than can be found "
                "in text; special_tokens_in_text=False does without"
            )
        inner = "".join(other[1:] for other in tokens)
        for token in tokens:
            if token[0] in inner or not {token[0], token[-1]} <= set(string.punctuation):
                raise ValueError(
                    f"special token {token!r} cannot be found in text: expected it to begin and "
                    "end with an ASCII punctuation mark, and the first mark nowhere else in a "
                    "special token; special_tokens_in_text=False does without"
                )
        if not tokens:
            return None
        lstrip = options.get("lstrip_tokens", ())
        return _SpecialTokens(
            ids=np.array([ids[token] for token in tokens], np.int32),
            texts=[token.encode("utf-8") for token in tokens],
            lstrip=np.array([token in lstrip for token in tokens]),
        )


# They stand in a table as wide as the longest.
_MOST_SPECIAL_BYTES = 1 << 20


class _Table:
    """Vocabulary and arguments, out of the sight of tf.Module, which would wrap each container."""

    def __init__(self, pieces: list[str], ids: dict[str, int], options: dict[str, Any]) -> None:
        self.pieces = pieces
        self.ids = ids
        self.options = options


class _SpecialTokens:
    """What the graph needs to find special tokens in text.

    Args:
        ids: int32 [tokens].
        texts: their bytes.
        lstrip: bool [tokens], whether white space before the token belongs to it.
    """

    def __init__(self, ids: np.ndarray, texts: Sequence[bytes], lstrip: np.ndarray) -> None:
        self.ids = ids
        self.texts = list(texts)
        self.lstrip = lstrip
        self.patterns = padded([np.frombuffer(text, np.uint8) for text in texts])
        self.byte_counts = np.array([len(text) for text in texts], np.int64)
        self._openings = sorted({text[0] for text in texts})

    def find(self, data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds special tokens among bytes, uint8 [n].

        Returns:
            int64 [k], the places of bytes that such tokens begin with, and bool [k, tokens],
            whether that token stands there (or would, but for a row that ends within it).
        """
        # TFLite compares bytes as quantized numbers, and stops at those without a scale.
        data = tf.cast(data, tf.int32)
        opens = data == self._openings[0]
        for byte in self._openings[1:]:
            opens |= data == byte
        at = tf.where(opens)[:, 0]
        return at, windows_equal(data, at, self.patterns)


def _strip_before(
    segments: tf.Tensor,
    start: tf.Tensor,
    end: tf.Tensor,
    row: tf.Tensor,
    is_token: tf.Tensor,
    lstrip: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gives the white space at the end of a segment to the special token that follows it."""
    swallows = is_token & lstrip
    same_row = row[1:] == row[:-1]
    strip = tf.concat([swallows[1:] & same_row & ~is_token[:-1], [False]], 0)[: tf.size(row)]
    stripped = tf.strings.regex_replace(segments, r"[\s\x{0B}\x{85}\pZ]+$", "")
    segments = tf.where(strip, stripped, segments)
    end = tf.where(strip, start + tf.cast(tf.strings.length(segments), tf.int64), end)
    before = tf.concat([[False], strip[:-1]], 0)[: tf.size(row)]
    start = tf.where(before, tf.concat([[0], end[:-1]], 0)[: tf.size(row)], start)
    return segments, start, end


def _over_any_rank(text: TextLike, function: Any) -> tuple[Any, ...]:
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


def _is_nested(text: Any) -> bool:
    return isinstance(text, list | tuple) and any(isinstance(row, list | tuple) for row in text)

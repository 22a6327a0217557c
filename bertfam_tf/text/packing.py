"""Packs pieces as a model's inputs: special tokens, truncation, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import tensorflow as tf

from bertfam_tf.text.special_tokens import TEXTS, Layout
from bertfam_tf.validation import one_of

Truncation: TypeAlias = Literal["longest_first", "only_first", "only_second"]
Padding: TypeAlias = Literal["longest", "max_length"] | Sequence[int]


class Filled(NamedTuple):
    """The sequences that ``Frame.fill`` returns.

    Fields:
        inputs: int32 (batch, length): ``token_ids``, ``padding_mask``, ``segment_ids``; token ids
            have further axes if the tokenizer's ids do.
        position: int32, broadcasts to (batch, length): the position id of each token, counted
            without padding; negative or beyond the last token at padding.
        begins: for each text, int32 (1 or batch, 1), the position of its first piece.
        counts: for each text, int32 (batch, 1), its number of pieces.
        firsts: for each text, int32 (batch, 1) or 0, the index of its first piece that is packed.
    """

    inputs: dict[str, tf.Tensor]
    position: tf.Tensor
    begins: list[tf.Tensor]
    counts: list[tf.Tensor]
    firsts: Sequence[tf.Tensor | int] = (0, 0)

    def pieces(self, text: int) -> tf.Tensor:
        """Returns int32 (batch, length), the index of each token among the pieces of a text; -1 at
        other tokens and padding."""
        index = self.position - self.begins[text]
        inside = (index >= 0) & (index < self.counts[text])
        return tf.where(inside, index + self.firsts[text], -1)


class Frame:
    """A layout with the ids of a tokenizer's special tokens.

    Args:
        layout: the positions of the special tokens.
        ids: the ids of the special tokens by role, as ``Tokenizer.special_ids``; without ``"pad"``
            the padding is 0. Rows of ids for tokenizers whose tokens are rows of ids.
        widths: the padded lengths, ascending. A batch is padded to the first that holds its longest
            row, which must fit the last. None pads to the longest row.

    Raises:
        ValueError: if the layout has a role that is not in ``ids``.
    """

    def __init__(
        self, layout: Layout, ids: Mapping[str, Any], widths: Sequence[int] | None = None
    ) -> None:
        missing = [e for e in layout.single + layout.pair if e not in TEXTS and e not in ids]
        if missing:
            raise ValueError(
                f"the layout uses a {missing[0]!r} token, which the tokenizer does not have; it "
                f"has {', '.join(ids) or 'none'}."
            )
        self.layout = layout
        self.ids = dict(ids)
        self.widths = None if widths is None else tuple(widths)

    @property
    def padding(self) -> dict[str, Any]:
        """The value of each input at padding."""
        return {
            "token_ids": self.ids.get("pad", 0),
            "padding_mask": 0,
            "segment_ids": self.layout.pad_segment,
        }

    def fill(
        self,
        values: Sequence[tf.Tensor],
        starts: Sequence[tf.Tensor],
        counts: Sequence[tf.Tensor],
    ) -> Filled:
        """Adds special tokens to spans of one or two texts, and pads.

        Args:
            values: for each text, int32 [pieces, …], the pieces of the whole batch, concatenated.
            starts: for each text, int32 [batch], the start of the spans in ``values``.
            counts: for each text, int32 [batch], the lengths of the spans.
        """
        # All tokens are gathered from one table: padding, special tokens in order, texts. Within
        # an entry of the layout, the index in the table is the position plus a constant.
        entries = self.layout.entries(len(values))
        special = [self.padding["token_ids"]]
        special += [self.ids[entry] for entry, _ in entries if entry not in TEXTS]
        table = tf.concat([special, *values], 0)
        places = [len(special), len(special) + tf.shape(values[0])[0]]
        # (1 or batch, 1): before the first text, the same in all rows.
        begin = tf.zeros([1, 1], tf.int32)
        begins, moves, text_begins, text_counts = [], [], [], []
        last, seen = "", 0
        for entry, _ in entries:
            begins.append(begin)
            if entry in TEXTS:
                text = TEXTS.index(entry)
                count = counts[text][:, tf.newaxis]
                moves.append(places[text] + starts[text][:, tf.newaxis] - begin)
                text_begins.append(begin)
                text_counts.append(count)
                begin += count
            else:
                seen += 1
                together = bool(last) and last not in TEXTS
                moves.append(moves[-1] if together else seen - begin)
                begin += 1
            last = entry
        width = self._width(begin)
        position = tf.range(width)[tf.newaxis]  # (1, length)
        if self.layout.pad_left:
            position += begin - width  # (batch, length)
            mask = position >= 0
        else:
            mask = position < begin

        def at_positions(values: Sequence[tf.Tensor | int]) -> tf.Tensor:
            """Broadcasts a value for each entry to the positions of the entry."""
            result = values[0]
            for before, value, start in zip(values, values[1:], begins[1:], strict=False):
                if value is not before:
                    result = tf.where(position >= start, value, result)
            return result

        token_ids = tf.gather(table, tf.where(mask, position + at_positions(moves), 0))
        segments = at_positions([segment for _, segment in entries])
        inputs = {
            "token_ids": token_ids,
            "padding_mask": tf.cast(mask, tf.int32),
            "segment_ids": tf.where(mask, segments, self.padding["segment_ids"]),
        }
        return Filled(inputs, position, text_begins, text_counts)

    def _width(self, lengths: tf.Tensor) -> tf.Tensor | int:
        """Returns the padded length of rows of these lengths, int32 (batch, 1)."""
        if self.widths is not None and len(self.widths) == 1:
            return self.widths[0]
        # The encoder's kernels refuse a length of 0.
        longest = tf.maximum(tf.reduce_max(lengths), 1)
        if self.widths is None:
            return longest
        return tf.gather(self.widths, tf.searchsorted(self.widths, [longest])[0])


def starts_and_counts(text: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the start of each text and its number of pieces, int32 [batch] each."""
    splits = tf.cast(text.row_splits, tf.int32)
    return splits[:-1], splits[1:] - splits[:-1]


def widths_of(padding: Padding, max_length: int) -> tuple[int, ...] | None:
    """Returns the padded lengths that ``Frame`` takes.

    Args:
        padding: ``"longest"`` pads to the longest row of each batch, ``"max_length"`` to one
            length, a list of lengths to the first that is enough, else to ``max_length``. XLA and
            TPUs compile once for each length.
        max_length: the maximum number of tokens of a row.

    Raises:
        ValueError: if ``padding`` is another string, or has a length below 1.
    """
    if padding == "longest":
        return None
    if padding == "max_length":
        return (max_length,)
    if isinstance(padding, str) or not all(type(width) is int and width > 0 for width in padding):
        raise ValueError(
            f"padding must be 'longest', 'max_length' or widths of at least 1, got {padding!r}."
        )
    return (*sorted({width for width in padding if width < max_length}), max_length)


class Packer:
    """Packs one or two texts with a layout's special tokens, as in ``[CLS] a [SEP] b [SEP]``.

    Truncation gives the same result as Hugging Face's fast tokenizers.

    Args:
        layout: the positions of the special tokens.
        ids: the ids of the special tokens by role, as ``Tokenizer.special_ids``; without ``"pad"``
            the padding is 0.
        max_length: the maximum number of tokens, special tokens included.
        truncation: which text of a pair is truncated, at the side that the layout says:
            ``"longest_first"``, the longer one; ``"only_first"`` or ``"only_second"``, that text,
            and if nothing of it is left, also the other one (where Hugging Face raises). Single
            texts are always truncated.
        padding: the padded lengths of batches; see ``widths_of``.

    Raises:
        ValueError: ``max_length`` leaves no room for a piece of each of two texts, the layout has a
            role that is not in ``ids``, or ``truncation`` or ``padding`` is unknown.
    """

    def __init__(
        self,
        layout: Layout,
        ids: Mapping[str, Any],
        max_length: int,
        truncation: Truncation = "longest_first",
        padding: Padding = "longest",
    ) -> None:
        if max_length < len(layout.pair):
            raise ValueError(
                f"max_length {max_length} is too small; a pair needs {len(layout.pair)} tokens."
            )
        one_of("truncation", truncation, get_args(Truncation))
        self.frame = Frame(layout, ids, widths_of(padding, max_length))
        self.max_length = max_length
        self.truncation = truncation

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: Sequence[tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        """Packs a batch.

        Args:
            texts: one or two ragged int32 tensors (batch, (pieces), …).

        Returns:
            int32 tensors (batch, length): ``token_ids`` (with the texts' further axes),
            ``padding_mask`` (1 at tokens, 0 at padding) and ``segment_ids``. ``padding`` determines
            the length: by default the length of the longest example, and 1 for an empty batch.

        Raises:
            ValueError: if the number of texts is not 1 or 2.
        """
        return self.fill(texts).inputs

    def fill(self, texts: Sequence[tf.RaggedTensor]) -> Filled:
        """Packs a batch as ``packer(texts)`` does, and also returns the position of each piece."""
        if len(texts) not in (1, 2):
            raise ValueError(f"texts must be one or two, got {len(texts)}.")
        starts, counts = zip(*map(starts_and_counts, texts), strict=True)
        values, kept = [text.values for text in texts], self._kept(counts)
        if not self.frame.layout.truncate_left:
            return self.frame.fill(values, starts, kept)
        cut = [count - rest for count, rest in zip(counts, kept, strict=True)]
        starts = tuple(start + lost for start, lost in zip(starts, cut, strict=True))
        filled = self.frame.fill(values, starts, kept)
        return filled._replace(firsts=[lost[:, tf.newaxis] for lost in cut])

    def _kept(self, counts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the number of pieces of each text that fit, int32 [batch] each."""
        room = self.max_length - self.frame.layout.special_count(len(counts))
        if len(counts) == 1:
            return [tf.minimum(counts[0], room)]
        a, b = counts
        if self.truncation == "longest_first":
            return _longest_first(a, b, room)
        if self.truncation == "only_first":
            b = tf.minimum(b, room)
            return [tf.minimum(a, room - b), b]
        a = tf.minimum(a, room)
        return [a, tf.minimum(b, room - a)]


def _longest_first(a: tf.Tensor, b: tf.Tensor, room: int) -> list[tf.Tensor]:
    # The shorter text keeps up to half of the room; if the room is odd, the longer text gets the
    # extra token, or the second one if both are equally long.
    shorter = tf.minimum(a, b)
    longer = tf.maximum(shorter, room - shorter)
    both_cut = shorter + longer > room
    shorter = tf.where(both_cut, room // 2, shorter)
    longer = tf.where(both_cut, room - room // 2, longer)
    a_is_longer = a > b
    return [
        tf.minimum(a, tf.where(a_is_longer, longer, shorter)),
        tf.minimum(b, tf.where(a_is_longer, shorter, longer)),
    ]

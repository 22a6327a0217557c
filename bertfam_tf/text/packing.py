"""From pieces to a model's inputs: special tokens, truncation, padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import tensorflow as tf

# The parts a special token can play; each is an option `<role>_token` of a tokenizer.
ROLES = ("unk", "cls", "sep", "pad", "mask", "bos", "eos")
_TEXTS = ("a", "b")

Truncation: TypeAlias = Literal["longest_first", "only_first", "only_second"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where special tokens stand around one text, and around two.

    Args:
        single: roles of special tokens (``"cls"``, ``"sep"``, ``"bos"``, …) around the one text
            ``"a"``, in order.
        pair: the same around the texts ``"a"`` and ``"b"``.
        single_segments: the segment id of each entry of ``single``.
        pair_segments: the segment id of each entry of ``pair``.
        pad_left: whether padding stands before the tokens instead of behind them.
        pad_segment: the segment id of padding.

    Raises:
        ValueError: an entry is neither a role nor a text, a text is missing, repeated or out of
            order, or there is not one segment id for each entry.
    """

    single: tuple[str, ...] = ("cls", "a", "sep")
    pair: tuple[str, ...] = ("cls", "a", "sep", "b", "sep")
    single_segments: tuple[int, ...] = (0, 0, 0)
    pair_segments: tuple[int, ...] = (0, 0, 0, 1, 1)
    pad_left: bool = False
    pad_segment: int = 0

    def __post_init__(self) -> None:
        # From a JSON file they come as lists, which would not compare equal.
        for name in ("single", "pair", "single_segments", "pair_segments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, count in (("single", 1), ("pair", 2)):
            entries, segments = getattr(self, name), getattr(self, f"{name}_segments")
            unknown = [entry for entry in entries if entry not in ROLES + _TEXTS]
            if unknown:
                raise ValueError(
                    f"layout.{name} has {unknown[0]!r}, expected 'a', 'b' or one of the roles "
                    f"{', '.join(ROLES)}"
                )
            texts = tuple(entry for entry in entries if entry in _TEXTS)
            if texts != _TEXTS[:count]:
                expected = " and then ".join(map(repr, _TEXTS[:count]))
                raise ValueError(f"layout.{name} is {entries}, expected {expected}, once")
            if len(segments) != len(entries):
                raise ValueError(
                    f"layout.{name}_segments has {len(segments)} entries, expected one for each "
                    f"of the {len(entries)} of layout.{name}"
                )

    def entries(self, texts: int) -> tuple[tuple[str, int], ...]:
        """Returns role or text, and segment id, of each entry around one text, or two."""
        if texts == 1:
            return tuple(zip(self.single, self.single_segments, strict=True))
        return tuple(zip(self.pair, self.pair_segments, strict=True))

    def special_count(self, texts: int) -> int:
        """Returns how many special tokens stand around one text, or two."""
        return len(self.entries(texts)) - texts


CLS_A_SEP = Layout()
CLS_A_SEP_SEP = Layout(
    pair=("cls", "a", "sep", "sep", "b", "sep"), pair_segments=(0, 0, 0, 0, 0, 0)
)
A_THEN_B = Layout(("a",), ("a", "b"), (0,), (0, 0))


class Filled(NamedTuple):
    """Rows of a `Frame`.

    Fields:
        inputs: int32 (rows, longest): ``token_ids``, ``padding_mask``, ``segment_ids``.
        position: int32, broadcasts to (rows, longest): how many tokens stand before in the row;
            negative or too large at padding.
        begins: of each text, int32 [rows, 1], the position of its first piece.
        counts: of each text, int32 [rows, 1], how many pieces the row has of it.
    """

    inputs: dict[str, tf.Tensor]
    position: tf.Tensor
    begins: list[tf.Tensor]
    counts: list[tf.Tensor]

    def pieces(self, text: int) -> tf.Tensor:
        """Returns int32 (rows, longest): which piece of the text, of those in the row, stands at
        each position; -1 at others."""
        index = self.position - self.begins[text]
        return tf.where((index >= 0) & (index < self.counts[text]), index, -1)

    def columns(self, text: int) -> tf.Tensor:
        """Returns int32 [rows], the column that holds, or would hold, the text's first piece."""
        return (self.begins[text] - self.position[:, :1])[:, 0]


class Frame:
    """The special tokens of a layout, with the ids that a tokenizer has for them.

    Args:
        layout: where special tokens stand.
        ids: the id of each role, as ``Tokenizer.special_ids``.  Without ``"pad"`` padding is 0.

    Raises:
        ValueError: the layout has a role that is not in ``ids``.
    """

    def __init__(self, layout: Layout, ids: Mapping[str, int]) -> None:
        missing = [e for e in layout.single + layout.pair if e not in _TEXTS and e not in ids]
        if missing:
            raise ValueError(
                f"the layout has a {missing[0]!r} token, expected the tokenizer to have one; it "
                f"has {', '.join(ids) or 'none'}"
            )
        self.layout = layout
        self.ids = dict(ids)

    @property
    def padding(self) -> dict[str, int]:
        """What each of the inputs has where there is no token."""
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
        """Makes rows of stretches of one text or two.

        Args:
            values: of each text, int32 [pieces].
            starts: of each text, int32 [rows], where in ``values`` the row's stretch begins.
            counts: of each text, int32 [rows], how many pieces it has.
        """
        # Every token comes from one table: padding, special tokens in their order, the texts.
        # Within an entry of the layout the place in the table is the position plus a constant.
        entries = self.layout.entries(len(values))
        special = [self.padding["token_ids"]]
        special += [self.ids[entry] for entry, _ in entries if entry not in _TEXTS]
        table = tf.concat([special, *values], 0)
        places = [len(special), len(special) + tf.size(values[0])]
        begin = tf.zeros([tf.size(counts[0]), 1], tf.int32)
        begins, moves, text_begins, text_counts = [], [], [], []
        last, seen = "", 0
        for entry, _ in entries:
            begins.append(begin)
            if entry in _TEXTS:
                text = _TEXTS.index(entry)
                count = counts[text][:, tf.newaxis]
                moves.append(places[text] + starts[text][:, tf.newaxis] - begin)
                text_begins.append(begin)
                text_counts.append(count)
                begin += count
            else:
                seen += 1
                together = bool(last) and last not in _TEXTS
                moves.append(moves[-1] if together else seen - begin)
                begin += 1
            last = entry
        # A width of 0 would be refused by the encoder's kernels.
        width = tf.maximum(tf.reduce_max(begin), 1)
        position = tf.range(width)[tf.newaxis]
        if self.layout.pad_left:
            position += begin - width
            mask = position >= 0
        else:
            mask = position < begin

        def of_entries(of_each: Sequence[tf.Tensor | int]) -> tf.Tensor:
            result = of_each[0]
            for before, value, start in zip(of_each, of_each[1:], begins[1:], strict=False):
                if value is not before:
                    result = tf.where(position >= start, value, result)
            return result

        token_ids = tf.gather(table, tf.where(mask, position + of_entries(moves), 0))
        segments = of_entries([segment for _, segment in entries])
        inputs = {
            "token_ids": token_ids,
            "padding_mask": tf.cast(mask, tf.int32),
            "segment_ids": tf.where(mask, segments, self.padding["segment_ids"]),
        }
        return Filled(inputs, position, text_begins, text_counts)


class Packer:
    """Packs one text or two with the special tokens of a layout, as ``[CLS] a [SEP] b [SEP]``.

    Rows that are too long are cut as Hugging Face's fast tokenizers cut them.

    Args:
        layout: where special tokens stand.
        ids: the id of each role, as ``Tokenizer.special_ids``; padding is 0 where a tokenizer has
            no token for it.
        max_length: most tokens in a row, special ones included.
        truncation: what a row that is too long loses pieces from, at the end: ``"longest_first"``,
            the longer text; ``"only_first"``, ``"only_second"``, that text, and once nothing is
            left of it the other one (where Hugging Face refuses).  A single text is cut under any.

    Raises:
        ValueError: when ``max_length`` leaves no room for a piece of each of two texts, the layout
            has a role that ``ids`` lacks, or ``truncation`` is not known.
    """

    def __init__(
        self,
        layout: Layout,
        ids: Mapping[str, int],
        max_length: int,
        truncation: Truncation = "longest_first",
    ) -> None:
        if max_length < len(layout.pair):
            raise ValueError(
                f"max_length {max_length} is too small; a pair needs {len(layout.pair)} tokens."
            )
        if truncation not in get_args(Truncation):
            raise ValueError(
                f"truncation {truncation!r}, expected one of {', '.join(get_args(Truncation))}"
            )
        self.frame = Frame(layout, ids)
        self.max_length = max_length
        self.truncation = truncation

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: Sequence[tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        """Packs a batch.

        Args:
            texts: one or two ragged int32 tensors (batch, (pieces)).

        Returns:
            int32 tensors (batch, longest row): ``token_ids``, ``padding_mask`` (1 at real tokens)
            and ``segment_ids``, as the layout has them.  A batch without rows has width 1.

        Raises:
            ValueError: there are neither one nor two texts.
        """
        return self.fill(texts).inputs

    def fill(self, texts: Sequence[tf.RaggedTensor]) -> Filled:
        """Packs a batch as ``packer(texts)`` does, and keeps account of where each piece went."""
        if len(texts) not in (1, 2):
            raise ValueError(f"{len(texts)} texts, expected one or two")
        starts = [tf.cast(text.row_splits[:-1], tf.int32) for text in texts]
        counts = [tf.cast(text.row_lengths(), tf.int32) for text in texts]
        return self.frame.fill([text.values for text in texts], starts, self._kept(counts))

    def _kept(self, counts: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns how many pieces of each text fit, each int32 [batch]."""
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
    # The shorter keeps what it has up to half of the room; of an odd room the second (of
    # equally long ones: the longer) gets the extra token.
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

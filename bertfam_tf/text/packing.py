"""From pieces to a model's inputs: special tokens, truncation, padding."""

from collections.abc import Sequence

import tensorflow as tf


class Packer:
    """Packs one or two segments as ``[CLS] a [SEP]`` or ``[CLS] a [SEP] b [SEP]``.

    A row that is too long loses pieces at the end of its longer segment, as Hugging Face's
    ``longest_first`` does it, until it fits.

    Args:
        cls_id: id in front of every row.
        sep_id: id after each segment.
        pad_id: id that fills rows up to the longest of the batch.
        max_length: most tokens in a row, special ones included.

    Raises:
        ValueError: when ``max_length`` leaves no room for a piece of each segment.
    """

    def __init__(self, cls_id: int, sep_id: int, pad_id: int, max_length: int):
        if max_length < 5:
            raise ValueError(f"max_length {max_length} is too small; a pair needs 5 tokens.")
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.pad_id = pad_id
        self.max_length = max_length

    def __call__(self, segments: Sequence[tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        """Packs a batch.

        Args:
            segments: one or two ragged int32 tensors (batch, (pieces)).

        Returns:
            int32 tensors (batch, longest row): ``token_ids``, ``padding_mask`` (1 at real tokens)
            and ``segment_ids`` (0 up to the first separator, 1 after it).
        """
        segments = self._truncate(list(segments))
        batch = segments[0].nrows(out_type=tf.int32)
        separator = tf.RaggedTensor.from_tensor(tf.fill((batch, 1), self.sep_id))
        parts = [tf.RaggedTensor.from_tensor(tf.fill((batch, 1), self.cls_id))]
        for segment in segments:
            parts += [segment, separator]
        rows = tf.concat(parts, axis=1)
        token_ids = rows.to_tensor(default_value=self.pad_id)
        # A batch without rows gets one column: the encoder's kernels refuse a width of 0.
        token_ids = tf.pad(token_ids, [[0, 0], [0, tf.cast(tf.equal(batch, 0), tf.int32)]])
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        width = tf.shape(token_ids)[1]
        mask = tf.sequence_mask(lengths, width)
        first = tf.cast(segments[0].row_lengths(), tf.int32) + 2
        second = tf.logical_and(mask, tf.logical_not(tf.sequence_mask(first, width)))
        return {
            "token_ids": token_ids,
            "padding_mask": tf.cast(mask, tf.int32),
            "segment_ids": tf.cast(second, tf.int32),
        }

    def _truncate(self, segments: list[tf.RaggedTensor]) -> list[tf.RaggedTensor]:
        room = self.max_length - 1 - len(segments)
        if len(segments) == 1:
            return [segments[0][:, :room]]
        a, b = (tf.cast(segment.row_lengths(), tf.int32) for segment in segments)
        # The shorter keeps what it has up to half of the room; of an odd room the second (of
        # equally long ones: the longer) gets the extra token.
        shorter = tf.minimum(a, b)
        longer = tf.maximum(shorter, room - shorter)
        both_cut = shorter + longer > room
        shorter = tf.where(both_cut, room // 2, shorter)
        longer = tf.where(both_cut, room - room // 2, longer)
        a_is_longer = a > b
        keep_a = tf.minimum(a, tf.where(a_is_longer, longer, shorter))
        keep_b = tf.minimum(b, tf.where(a_is_longer, shorter, longer))
        return [_keep(segments[0], keep_a), _keep(segments[1], keep_b)]


def _keep(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first ``lengths[i]`` values of each row i."""
    starts = tf.cast(rows.row_starts(), tf.int32)
    position = tf.range(tf.size(rows.values)) - tf.gather(
        starts, tf.cast(rows.value_rowids(), tf.int32)
    )
    kept = position < tf.gather(lengths, tf.cast(rows.value_rowids(), tf.int32))
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(rows.values, kept), tf.cast(lengths, tf.int64), validate=False
    )

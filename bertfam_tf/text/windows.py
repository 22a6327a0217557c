"""Long documents as overlapping windows (as BERT reads SQuAD, arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bertfam_tf.text.kernels.graph import row_of_each
from bertfam_tf.text.packing import Filled, Frame, Padding, starts_and_counts, widths_of
from bertfam_tf.text.special_tokens import Layout
from bertfam_tf.validation import in_range


class Windows:
    """Splits documents into overlapping windows and packs each one, optionally with a question.

    The windows are the same as in Hugging Face's fast tokenizers with ``stride`` and
    ``return_overflowing_tokens``: each is as long as possible, the next begins ``stride`` pieces
    before its end, and the first to reach the end of the document is the last. An empty document
    has one. With a layout that truncates on the left, windows are counted from the document's end,
    so that the first one may be shorter.

    Args:
        layout: the positions of the special tokens, and the side on which a question is truncated.
        ids: the ids of the special tokens by role, as ``Tokenizer.special_ids``.
        max_length: the maximum number of tokens of a window, question and special tokens included.
        stride: the overlap of consecutive windows, in pieces.
        max_question: the maximum number of pieces of a question; longer ones are truncated. None
            for half of what special tokens and ``stride`` leave, so that a long question cannot
            multiply the windows.
        padding: the padded lengths of windows; see ``packing.widths_of``.

    Raises:
        ValueError: if a window would have no more than ``stride`` pieces of the document, so that
            windows could not advance; a number is negative; or the layout has a role that is not in
            ``ids``.
    """

    def __init__(
        self,
        layout: Layout,
        ids: Mapping[str, Any],
        max_length: int,
        stride: int,
        max_question: int | None = None,
        padding: Padding = "longest",
    ) -> None:
        in_range("stride", stride, at_least=0, integer=True)
        spare = max_length - layout.special_count(2) - stride
        if max_question is None:
            max_question = max(spare, 0) // 2
        in_range("max_question", max_question, at_least=0, integer=True)
        if spare <= max_question:
            raise ValueError(
                "max_length must be above stride + max_question + the "
                f"{layout.special_count(2)} special tokens, so that each window advances; got "
                f"{max_length=}, {stride=}, {max_question=}."
            )
        self.frame = Frame(layout, ids, widths_of(padding, max_length))
        self.max_length = max_length
        self.stride = stride
        self.max_question = max_question

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: Sequence[tf.RaggedTensor]) -> dict[str, tf.Tensor]:
        """Splits and packs a batch.

        Args:
            texts: ragged int32 (batch, (pieces)): documents, or questions and documents.

        Returns:
            A dict; the windows of the first document come first:

            * ``token_ids``, ``padding_mask``, ``segment_ids``: int32 (windows, length).
            * ``document``: int32 [windows], the index of the document in the batch.
            * ``first_piece``: int32 [windows], the index of the window's first piece in its
              document.
            * ``piece``: int32 (windows, length), the index of each piece in its document; -1 at the
              question, special tokens and padding.
            * ``max_context``: bool (windows, length), whether the piece has the most context in
              this window, true once for each piece. As in BERT's SQuAD code, context is the
              smaller of the numbers of pieces before and after it in the window, plus a hundredth
              of the window's pieces; among equal windows, the first one is used.

        Raises:
            ValueError: if the number of texts is not 1 or 2.
        """
        if len(texts) not in (1, 2):
            raise ValueError(
                f"texts must be documents, or questions and documents, got {len(texts)}."
            )
        *questions, documents = texts
        truncate_left = self.frame.layout.truncate_left
        room = self.max_length - self.frame.layout.special_count(len(texts))
        questions = [starts_and_counts(question) for question in questions]
        if questions:
            start, count = questions[0]
            kept = tf.minimum(count, self.max_question)
            questions = [(start + count - kept if truncate_left else start, kept)]
            room -= kept
        begin, size = starts_and_counts(documents)

        step = room - self.stride
        # The number of steps needed to reach the end of the document.
        windows = 1 + tf.maximum(0, -((room - size) // step))
        splits = tf.concat([[0], tf.cumsum(tf.cast(windows, tf.int64))], 0)
        document = tf.cast(row_of_each(splits, splits[-1]), tf.int32)
        index = tf.range(tf.size(document))

        def of_document(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.broadcast_to(values, tf.shape(size)), document)

        if truncate_left:
            later = tf.cast(tf.gather(splits[1:], document), tf.int32) - 1 - index
            end = of_document(size) - later * of_document(step)
            first = tf.maximum(end - of_document(room), 0)
            count = end - first
        else:
            earlier = index - tf.cast(tf.gather(splits, document), tf.int32)
            first = earlier * of_document(step)
            count = tf.minimum(of_document(room), of_document(size) - first)
        filled = self.frame.fill(
            [text.values for text in texts],
            [of_document(start) for start, _ in questions] + [of_document(begin) + first],
            [of_document(kept) for _, kept in questions] + [count],
        )
        inside = filled.pieces(-1)
        piece = tf.where(inside >= 0, first[:, tf.newaxis] + inside, -1)
        return filled.inputs | {
            "document": document,
            "first_piece": first,
            "piece": piece,
            "max_context": _max_context(
                filled, piece, of_document(begin), tf.shape(documents.values)[0]
            ),
        }


def spans_of(
    windows: Mapping[str, tf.Tensor], starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the byte offsets in the documents of each token of their windows.

    Args:
        windows: the result of ``Windows``.
        starts, ends: int32 (batch, (pieces)), of the documents, from ``tokenize_with_offsets``.

    Returns:
        ``(starts, ends)``, int32 (windows, length), end exclusive; -1 where ``piece`` is.
    """
    piece = windows["piece"]
    begin = tf.gather(tf.cast(starts.row_splits, tf.int32), windows["document"])
    index = tf.where(piece >= 0, begin[:, tf.newaxis] + piece + 1, 0)
    start, end = (
        tf.gather(tf.concat([[-1], offsets.values], 0), index) for offsets in (starts, ends)
    )
    return start, end


def _max_context(
    filled: Filled, piece: tf.Tensor, begin: tf.Tensor, pieces: tf.Tensor
) -> tf.Tensor:
    inside, count = filled.pieces(-1), filled.counts[-1]
    here = piece >= 0
    place = tf.where(here, begin[:, tf.newaxis] + piece + 1, 0)

    def best(values: tf.Tensor) -> tf.Tensor:
        """Returns bool (windows, length), whether a value is the largest of its piece."""
        flat, segments = (tf.reshape(tensor, [-1]) for tensor in (values, place))
        return values == tf.gather(tf.math.unsorted_segment_max(flat, segments, pieces + 1), place)

    context = 100 * tf.minimum(inside, count - 1 - inside) + count
    rank = tf.range(tf.size(begin), 0, -1)[:, tf.newaxis]
    return here & best(tf.where(best(context), rank, 0))

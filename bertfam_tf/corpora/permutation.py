"""Permutation language modeling (XLNet, arXiv 1906.08237, section 2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from bertfam_tf.corpora.masking import ORDER, Masking, Numbers, token_index


class Permuted(NamedTuple):
    """A batch with an order of prediction.

    Fields:
        perm_mask: int32 (batch, length, length), 1 where a token (second axis) must not attend to
            another (third axis).
        target_mapping: int32 (batch, predictions, length), 1 at the position of each prediction.
        targets: int32 (batch, predictions), the tokens there.
        weights: float32 (batch, predictions), 0 after an example's last prediction.
    """

    perm_mask: tf.Tensor
    target_mapping: tf.Tensor
    targets: tf.Tensor
    weights: tf.Tensor


class Permutation:
    """Draws the order of prediction, and the tokens to predict (partial prediction).

    Tokens that are not predicted come first, and all tokens attend to them. The predicted ones, and
    special tokens, follow in random order; each attends to those before it, and predicted tokens
    not to themselves. Nothing is replaced by a mask.

    Args:
        masking: selects the tokens to predict. The paper's are n-grams of up to five words, with a
            rate of about 1/6: ``Masking(tokenizer, 1 / 6, "word", ngrams(5))``.
    """

    def __init__(self, masking: Masking):
        self.masking = masking

    def __call__(self, token_ids: Any, padding_mask: Any, seeds: Any) -> Permuted:
        """Draws an order for a batch; the arguments are the same as for ``Masking``."""
        masked = self.masking(token_ids, padding_mask, seeds)
        order = self.order(token_ids, masked.positions, masked.weights, seeds, padding_mask)
        return Permuted(*order, masked.targets, masked.weights)

    def order(
        self, token_ids: Any, positions: Any, weights: Any, seeds: Any, padding_mask: Any = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the order of a batch whose predictions are known.

        Args:
            token_ids, seeds: the same as for ``Masking``.
            positions, weights: (batch, predictions), the fields of ``Masked``.
            padding_mask: the same as for ``Masking``; None without padding on the left.

        Returns:
            ``perm_mask`` and ``target_mapping``, as in ``Permuted``.
        """
        token_ids = tf.convert_to_tensor(token_ids, tf.int32)
        length = tf.shape(token_ids)[1]
        mapping = tf.one_hot(positions, length, dtype=tf.int32)
        mapping *= tf.cast(weights, tf.int32)[..., None]
        predicted = tf.reduce_sum(mapping, axis=1) > 0  # (batch, length)
        ordered = predicted | self.masking.is_special(token_ids)
        # The order of all tokens; those that come first share the smallest.
        real = tf.ones_like(token_ids) if padding_mask is None else padding_mask
        index = token_index(tf.cast(real, tf.bool))
        order = tf.where(ordered, Numbers(seeds).positions(ORDER, index), -1.0)
        not_before = order[:, None, :] >= order[:, :, None]
        itself = tf.eye(length, dtype=tf.bool)[None] & ~predicted[:, None, :]
        hidden = not_before & ordered[:, None, :] & ~itself
        return tf.cast(hidden, tf.int32), mapping

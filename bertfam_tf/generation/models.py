"""The interface between generation and a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf


class Step(Protocol):
    """A function that computes the next token's logits from tokens and a state."""

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """Processes tokens.

        Args:
            token_ids: int32 (batch, length), the tokens that are not in ``state``.
            padding_mask: int32 (batch, all tokens so far), padded on the left.
            state: the state from the previous call; None in the first call.

        Returns:
            ``(logits, state)``: logits of the next token, float32 (batch, vocabulary); and a nested
            structure of tensors whose first dimension is the batch, so that beam search can
            reorder them.
        """
        ...


class CachedDecoder:
    """A causal model as a ``Step``; its state is the cache or memory of the backbone.

    Args:
        backbone: a backbone with the input and the output ``cache`` or ``memory``, and the output
            ``last_token``.
        head: a function from (batch, hidden) to logits (batch, vocabulary).
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head
        self.kept = "cache" if "cache" in backbone.input else "memory"

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        inputs |= {} if state is None else {self.kept: state}
        outputs = self.backbone(inputs, training=False)
        return tf.cast(self.head(outputs["last_token"]), tf.float32), outputs[self.kept]


class PermutationDecoder:
    """A permutation language model as a ``Step`` (XLNet, arXiv 1906.08237).

    The model predicts one position after the last token, which no query attends to. The memory must
    only contain hidden states that were computed when the next token was known; each call therefore
    computes the last two positions again, and the memory ends before them.

    Args:
        backbone: a backbone with the inputs ``perm_mask``, ``target_mapping`` and ``memory``, and
            the outputs ``query_output`` and ``memory``.
        head: a function from (batch, hidden) to logits (batch, vocabulary).
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        before, memory = (token_ids[:, :0], None) if state is None else state
        tokens = tf.concat([before, token_ids], axis=1)
        one = tf.ones_like(tokens[:, :1])  # (batch, 1)
        # (batch, 1, length + 1)
        last = tf.concat([tf.zeros_like(tokens), one], axis=1)[:, tf.newaxis]
        inputs = {
            "token_ids": tf.concat([tokens, one], axis=1),
            "padding_mask": tf.concat([padding_mask, one], axis=1),
            "perm_mask": last,
            "target_mapping": last,
        }
        inputs |= {} if memory is None else {"memory": memory}
        outputs = self.backbone(inputs, training=False)
        known = tf.nest.map_structure(lambda x: x[:, :-2], outputs["memory"])
        logits = tf.cast(self.head(outputs["query_output"][:, 0]), tf.float32)
        return logits, (tokens[:, -1:], known)


def decoder(backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> Step:
    """Returns the ``Step`` for a backbone, by its inputs; ``head`` as for ``CachedDecoder``."""
    kind = PermutationDecoder if "target_mapping" in backbone.input else CachedDecoder
    return kind(backbone, head)

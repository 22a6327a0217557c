"""What generation asks of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf


class Step(Protocol):
    """A function from tokens and what is remembered to the next token's logits."""

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """One call.

        Args:
            token_ids: int32 (rows, length), the tokens that ``state`` has not seen.
            padding_mask: int32 (rows, all tokens so far); padding stands on the left.
            state: from the call before; None in the first.

        Returns:
            ``(logits, state)``: float32 (rows, vocabulary) of the token behind the last; and a
            structure of tensors whose dim 0 is the rows, so that beam search can choose among
            them.
        """
        ...


class CachedDecoder:
    """A decoder's backbone and head as a ``Step`` that keeps what the backbone remembers.

    That is all keys and values, or a memory of as many tokens as the backbone's config says.

    Args:
        backbone: has the input and the output ``cache`` or ``memory``, and the output
            ``last_token``.
        head: logits (rows, vocabulary) of vectors (rows, hidden).
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head
        self.kept = "cache" if "cache" in backbone.input else "memory"

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        given = {"token_ids": token_ids, "padding_mask": padding_mask}
        given |= {} if state is None else {self.kept: state}
        outputs = self.backbone(given, training=False)
        return tf.cast(self.head(outputs["last_token"]), tf.float32), outputs[self.kept]


class PermutationDecoder:
    """A ``Step`` of a model that predicts in any order (XLNet, arXiv 1906.08237).

    Behind the last token stands a place whose content nobody sees, and which is predicted. A
    token is remembered as it was read when one more had followed it; so the last two are read
    again, and those before them stand in the memory.

    Args:
        backbone: has the inputs ``perm_mask``, ``target_mapping`` and ``memory``, and the outputs
            ``query_output`` and ``memory``.
        head: logits (rows, vocabulary) of vectors (rows, hidden).
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        before, memory = (token_ids[:, :0], None) if state is None else state
        tokens = tf.concat([before, token_ids], axis=1)
        place = tf.ones_like(tokens[:, :1])
        last = tf.concat([tf.zeros_like(tokens), place], axis=1)[:, tf.newaxis]
        given = {
            "token_ids": tf.concat([tokens, place], axis=1),
            "padding_mask": tf.concat([padding_mask, place], axis=1),
            "perm_mask": last,
            "target_mapping": last,
        }
        given |= {} if memory is None else {"memory": memory}
        outputs = self.backbone(given, training=False)
        known = tf.nest.map_structure(lambda x: x[:, :-2], outputs["memory"])
        logits = tf.cast(self.head(outputs["query_output"][:, 0]), tf.float32)
        return logits, (tokens[:, -1:], known)


def decoder(backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> Step:
    """The ``Step`` that a backbone's inputs ask for; ``head`` as for ``CachedDecoder``."""
    kind = PermutationDecoder if "target_mapping" in backbone.input else CachedDecoder
    return kind(backbone, head)

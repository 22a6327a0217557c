"""The interface between generation and a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from bertfam_tf.layers.memory import updated_memory


class Step(Protocol):
    """A function that computes the next token's logits from tokens and a state."""

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        """Processes tokens.

        Args:
            token_ids: int32 (batch, length), the tokens that are not in ``state``.
            padding_mask: int32 (batch, all tokens so far), padded on the left.
            state: the state from the previous call, which ``reserve`` has made room in for the
                tokens; None in the first call.

        Returns:
            ``(logits, state)``: logits of the next token, float32 (batch, vocabulary); and a nested
            structure of tensors whose first dimension is the batch, so that beam search can
            reorder them.
        """
        ...


def reserve(step: Step, state: Any, tokens: Any) -> Any:
    """Returns a state with room for this number of further tokens.

    A step may have a method ``reserve(state, tokens)``; others make room in each call.

    Args:
        step: the step.
        state: a state that it returned.
        tokens: int32 scalar.
    """
    grow = getattr(step, "reserve", None)
    return state if grow is None else grow(state, tokens)


class Decoder:
    """A backbone and a head as a ``Step``.

    Args:
        backbone: a backbone with the inputs and outputs that the subclass lists.
        head: a function from (batch, hidden) to logits (batch, vocabulary).
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head


class CachedDecoder(Decoder):
    """A causal model with a cache: the input and the output ``cache``, the output ``last_token``.

    Its state is the cache, as buffers with room for further tokens, into which each call writes;
    and a mask (batch, positions) of the buffers, 0 at padding. The mask is 1 at free positions,
    which are hidden from earlier tokens anyway, so that no call has to change it.
    """

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        if state is None:
            inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
            mask = padding_mask
        else:
            cache, mask = state
            before = tf.shape(padding_mask)[1] - tf.shape(token_ids)[1]
            inputs = {"token_ids": token_ids, "padding_mask": mask}
            inputs |= {"cache": cache, "cache_length": before}
        outputs = self.backbone(inputs, training=False, outputs=("last_token", "cache"))
        logits = tf.cast(self.head(outputs["last_token"]), tf.float32)
        return logits, (outputs["cache"], mask)

    def reserve(self, state: Any, tokens: Any) -> Any:
        cache, mask = state
        more = tf.stack([tf.shape(mask)[0], tokens])
        mask = tf.concat([mask, tf.ones(more, mask.dtype)], axis=1)
        return tf.nest.map_structure(
            lambda x: tf.pad(x, [[0, 0], [0, 0], [0, tokens], [0, 0]]), cache
        ), mask


class MemoryDecoder(Decoder):
    """A causal model with the input and the output ``memory`` (Transformer-XL, arXiv 1901.02860).

    Its state is the memory.
    """

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        inputs |= {} if state is None else {"memory": state}
        outputs = self.backbone(inputs, training=False, outputs=("last_token", "memory"))
        return tf.cast(self.head(outputs["last_token"]), tf.float32), outputs["memory"]


class PermutationDecoder(Decoder):
    """A permutation language model (XLNet, arXiv 1906.08237).

    It has the inputs ``perm_mask``, ``target_mapping`` and ``memory``, and the outputs
    ``query_output`` and ``hidden_states``. The config's ``reuse_len`` does not count: it is the
    part of a segment of pretraining that the next one reads, and would drop the end of a prompt.

    The model predicts one position after the last token, which no query attends to. The memory must
    only contain hidden states that were computed when the next token was known; each call therefore
    computes the last two positions again, and the memory ends before them.
    """

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
        outputs = self.backbone(inputs, training=False, outputs=("query_output", "hidden_states"))
        inputs_of_layers = outputs["hidden_states"][:-1]
        old = [x[:, :0] for x in inputs_of_layers] if memory is None else memory
        mem_len = self.backbone.config.mem_len
        known = tuple(
            updated_memory(before, x, mem_len)[:, :-2]
            for before, x in zip(old, inputs_of_layers, strict=True)
        )
        logits = tf.cast(self.head(outputs["query_output"][:, 0]), tf.float32)
        return logits, (tokens[:, -1:], known)


def decoder(backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> Step:
    """Returns the ``Step`` for a backbone, by its inputs; ``head`` as for ``Decoder``."""
    kinds: dict[str, Any] = {
        "target_mapping": PermutationDecoder,
        "cache": CachedDecoder,
        "memory": MemoryDecoder,
    }
    kind = next(kind for name, kind in kinds.items() if name in backbone.input)
    return kind(backbone, head)

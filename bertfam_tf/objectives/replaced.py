"""Replaced token detection (ELECTRA, arXiv 2003.10555)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from bertfam_tf.heads import Head
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.masked_lm import MaskedTokens
from bertfam_tf.objectives.objective import Batch, SumAndCount, mean


class SampledTokens(keras.layers.Layer):
    """Replaces masked tokens by samples of a generator.

    Samples are drawn from the generator's distribution; no gradient flows through them.

    Args:
        head: the generator's head, over the vocabulary.
        seed: the seed of the samples.

    Call:
        hidden: (batch, length, width), the output of ``head.select``.
        token_ids: int32 (batch, length), with masks.
        positions: int32 (batch, predictions), of the masks; of several predictions at one position
            the first counts.
        weights: (batch, predictions), 0 for predictions that only pad their example.

    Returns:
        int32 (batch, length).
    """

    def __init__(self, head: Head, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.draw = keras.random.SeedGenerator(seed)
        self._head = (head,)  # in a tuple, so that Keras does not track it a second time

    def call(self, hidden, token_ids, positions, weights):
        [head] = self._head
        at = ops.expand_dims(positions, -1)
        logits = head.logits(ops.take_along_axis(hidden, at, axis=1))  # (batch, predictions, ids)
        logits = ops.cast(ops.stop_gradient(logits), "float32")
        noise = keras.random.uniform(ops.shape(logits), seed=self.draw)
        # The Gumbel trick: the index of the largest is a sample of the softmax.
        sampled = ops.argmax(logits - ops.log(-ops.log(noise + 1e-9) + 1e-9), axis=-1)
        length = ops.shape(token_ids)[1]
        counted = ops.expand_dims(ops.cast(weights > 0, token_ids.dtype), -1)
        hits = ops.cast(ops.equal(at, ops.arange(length, dtype=positions.dtype)), token_ids.dtype)
        # One more at the end, because TensorFlow has no argmax of no predictions.
        hits = ops.pad(hits * counted, ((0, 0), (0, 1), (0, 0)))  # (batch, predictions + 1, length)
        sampled = ops.pad(ops.cast(sampled, token_ids.dtype), ((0, 0), (0, 1)))
        index = ops.argmax(hits, axis=1)  # (batch, length)
        replacements = ops.take_along_axis(sampled, index, axis=1)
        return ops.where(ops.max(hits, axis=1) > 0, replacements, token_ids)

    def compute_output_spec(self, hidden, token_ids, positions, weights):
        return keras.KerasTensor(token_ids.shape, token_ids.dtype)


def replaced_tokens_network(
    generator: Backbone, generator_head: Head, discriminator: Backbone, seed: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Builds inputs and outputs of a generator and a discriminator, for ``Learner``.

    The inputs are the backbones' inputs, with masks; ``positions``, int32 (batch, predictions), of
    the masks; and ``weights``, float32 of the same shape. Outputs are ``generator`` and
    ``discriminator``, outputs of the backbones, and ``token_ids``, the discriminator's input, int32
    (batch, length).

    The embeddings are shared by building both backbones from the same parts, as
    ``Backbone(…, parts=generator.parts.subset("token_embedding", …))`` does.
    """
    inputs = {
        **generator.token_inputs,
        "positions": keras.Input((None,), dtype="int32", name="positions"),
        "weights": keras.Input((None,), dtype="float32", name="weights"),
    }
    generator_inputs = {name: inputs[name] for name in generator.token_inputs}
    outputs = generator(generator_inputs)
    sampled = SampledTokens(generator_head, seed, name="sampled_tokens")(
        generator_head.select(outputs),
        generator_inputs["token_ids"],
        inputs["positions"],
        inputs["weights"],
    )
    return inputs, {
        "generator": outputs,
        "discriminator": discriminator({**generator_inputs, "token_ids": sampled}),
        "token_ids": sampled,
    }


class ReplacedTokens:
    """Masked language modeling for the generator, replaced token detection for the discriminator.

    The loss ``masked_lm`` is the same as for ``MaskedTokens``, on the generator, and ``rtd`` the
    binary cross-entropy over all real tokens; a sample that equals the original counts as original
    (section 2). Targets are ``token_ids``, int32 (batch, predictions), and ``originals``, int32
    (batch, length), the tokens before masking.

    Metrics are the same as for ``MaskedTokens``, for the generator, and ``rtd_accuracy``, the
    proportion of real tokens that are classified correctly. Most tokens are original: a
    discriminator that never detects a replaced token already reaches the proportion of original
    tokens.

    Args:
        generator_head: the head over the vocabulary.
        head: the discriminator's head, with one logit for each token.
        weight: the weight of ``rtd`` in the total (λ in section 2; 50 in the paper).
    """

    def __init__(self, generator_head: Head, head: Head, weight: float = 50.0):
        self.heads: Mapping[str, Head] = {"masked_lm": generator_head, "rtd": head}
        self.weights: Mapping[str, float] = {"masked_lm": 1.0, "rtd": weight}
        self._masked = MaskedTokens(generator_head)
        self.metrics: Mapping[str, Any] = {**self._masked.metrics, "rtd_accuracy": mean}

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        targets = {
            "positions": batch.inputs["positions"],
            "token_ids": batch.targets["token_ids"],
        }
        masked = Batch(batch.inputs, targets, batch.inputs["weights"])
        logits = ops.cast(heads["rtd"](outputs["discriminator"]), "float32")  # (batch, length)
        replaced = ops.not_equal(outputs["token_ids"], batch.targets["originals"])
        losses = ops.binary_crossentropy(ops.cast(replaced, "float32"), logits, from_logits=True)
        real = ops.cast(batch.inputs["padding_mask"], "float32")
        hits, count = ops.cast(ops.equal(logits > 0, replaced), "float32"), ops.sum(real)
        return {
            **self._masked.loss(outputs["generator"], heads, masked),
            "rtd": (ops.sum(losses * real), count),
            "rtd_accuracy": (ops.sum(hits * real), count),
        }

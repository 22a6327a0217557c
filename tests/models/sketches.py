"""Wiring of future families from existing layers: what their modules will contain.

Sizes are those of a test; what differs between sizes is no part of the wiring.
"""

from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers, registry
from bertfam_tf.models import bert, encoder
from bertfam_tf.models.parts import Parts


@dataclass(frozen=True)
class Config(bert.BertConfig):
    vocab_size: int = 40
    hidden_size: int = 16
    num_layers: int = 4
    num_heads: int = 4
    intermediate_size: int = 24
    max_positions: int = 32
    num_segments: int = 0
    pooler: bool = False


def _family(name: str, config: type, wire: Any) -> registry.Family:
    return replace(
        registry.get("bert"), name=name, config=config, wire=wire, sizes={"tiny": {}}, heads={}
    )


# MobileBERT (arXiv 2004.02984) -----------------------------------------------------------------


@dataclass(frozen=True)
class MobileBertConfig(Config):
    embedding_size: int = 8
    inner_size: int = 12
    activation: str = "relu"
    num_segments: int = 2
    num_feed_forwards: int = 3


class NoNorm(keras.layers.Layer):
    def build(self, input_shape):
        self.gamma = self.add_weight(shape=input_shape[-1:], initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="beta")

    def call(self, x):
        return x * self.gamma + self.beta


class Trigrams(keras.layers.Layer):
    """(batch, length, width) to (batch, length, 3 · width): next token, token, token before."""

    def call(self, x):
        after = ops.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0)))
        before = ops.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return ops.concatenate([after, x, before], axis=-1)


def wire_mobilebert(config: MobileBertConfig, parts: Parts) -> tuple[dict, dict]:
    def dense(name, width, x):
        return parts(name, keras.layers.Dense, width)(x)

    def norm(name, x):
        return parts(f"{name}_norm", NoNorm)(x)

    inputs, inner = encoder.inputs(config), config.inner_size
    x = parts("token_embedding", encoder.table, config, config.vocab_size, config.embedding_size)(
        inputs["token_ids"]
    )
    x = dense("embedding_projection", config.hidden_size, parts("trigrams", Trigrams)(x))
    x = x + parts("position_embedding", layers.PositionEmbedding, config.max_positions)(x)
    x = x + parts("segment_embedding", encoder.table, config, 2)(inputs["segment_ids"])
    x = norm("embedding", x)
    mask = layers.attention_mask_from_padding(inputs["padding_mask"])
    hidden_states, attention_scores = [x], []
    for i in range(config.num_layers):
        name, before = f"layer_{i}", x
        x = norm(f"{name}_in", dense(f"{name}_in", inner, before))
        shared = norm(f"{name}_shared", dense(f"{name}_shared", inner, before))
        attention = parts(
            f"{name}_attention", layers.SelfAttention, config.num_heads, inner // config.num_heads
        )
        attended, scores = attention(shared, attention_mask=mask, value=before)
        x = norm(f"{name}_attention", attended + x)
        for k in range(config.num_feed_forwards):
            part = parts(f"{name}_feed_forward_{k}", encoder.feed_forward, config)
            x = norm(f"{name}_feed_forward_{k}", part(x) + x)
        x = norm(f"{name}_out", dense(f"{name}_out", config.hidden_size, x) + before)
        hidden_states.append(x)
        attention_scores.append(scores)
    return inputs, {
        "sequence_output": x,
        "hidden_states": hidden_states,
        "attention_scores": attention_scores,
    }


FAMILIES = {
    family.name: family for family in (_family("mobilebert", MobileBertConfig, wire_mobilebert),)
}

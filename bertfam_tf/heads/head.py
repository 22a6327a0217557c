"""A head's layers, made from what the family's card says of it."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers, registry
from bertfam_tf.models.base import Backbone
from bertfam_tf.names import unknown

_SUFFIX = "_head"


class Head(keras.layers.Layer):
    """A row of parts between a backbone's outputs and logits.

    Args:
        reads: as ``registry.Head`` has it.
        parts: layers, called one after the other.
        scalar: whether the logits' last axis, of width 1, is left out.

    Call:
        outputs: a backbone's dict.
        targets: int (batch, length), tokens, for the log-probabilities of these alone: (batch,
            length). Heads over the vocabulary take it.

    Returns:
        Logits (from an adaptive softmax log-probabilities), float32 (float64 under that policy):
        (batch, labels) for heads that read one vector of each row, (batch, length, labels) for
        those that read all; without the last axis where there is one score.
    """

    def __init__(
        self, reads: str, parts: list[keras.layers.Layer], scalar: bool = False, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.reads = reads
        self.parts = parts
        self.scalar = scalar

    @property
    def kind(self) -> str:
        """What it is called on the family's card."""
        return self.name.removesuffix(_SUFFIX)

    @property
    def source(self) -> str:
        """The backbone's output that it reads, or reads a part of."""
        return "sequence_output" if self.reads == "first_token" else self.reads

    def build(self, input_shape):
        shape = input_shape[self.source]
        if self.reads == "first_token":
            shape = (shape[0], shape[2])
        for part in self.parts:
            part.build(shape)
            shape = part.compute_output_shape(shape)

    def call(self, outputs, targets=None, training=None):
        x = outputs[self.source]
        if self.reads == "first_token":
            x = x[:, 0, :]
        for part in self.parts[:-1]:
            x = part(x)
        x = self.parts[-1](x) if targets is None else self.parts[-1](x, targets=targets)
        return ops.squeeze(x, -1) if self.scalar else x


class TokenDecoder(keras.layers.Layer):
    """Logits over the vocabulary: the token embedding turned round, and a bias where there is one.

    The table stays the backbone's weight; this layer has the bias alone.

    Args:
        table: gives the table, (vocabulary, width).
        size: of the vocabulary.
        bias: whether there is one.

    Call:
        x: (…, width).
        targets: int (…), one token each; None for all tokens.

    Returns:
        (…, vocabulary); with ``targets`` their log-probabilities, (…).
    """

    def __init__(self, table: Callable[[], Any], size: int, bias: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.table = table
        self.size = size
        self.use_bias = bias

    def build(self, input_shape):
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.size,), initializer="zeros", name="bias")

    def call(self, x, targets=None):
        logits = ops.matmul(x, ops.transpose(ops.cast(self.table(), x.dtype)))
        logits = logits + self.bias if self.use_bias else logits
        if targets is None:
            return logits
        chosen = ops.take_along_axis(
            ops.log_softmax(logits, axis=-1), ops.expand_dims(targets, -1), axis=-1
        )
        return ops.squeeze(chosen, -1)

    def compute_output_shape(self, input_shape, targets_shape=None):
        return (*input_shape[:-1], self.size) if targets_shape is None else targets_shape


def build(backbone: Backbone, name: str, num_labels: int | None = None) -> Head:
    """A head for ``backbone`` with random weights, called ``NAME_head``.

    Args:
        backbone: the encoder below; a language model's head shares its token embedding.
        name: one of the heads that the family's card lists.
        num_labels: width of the logits, for heads whose width is not fixed.

    Raises:
        ValueError: for a head that the family does not have, one that reads a pooled output where
            the backbone has no pooler, or a missing or unwanted ``num_labels``.
    """
    card = registry.get(backbone.family)
    if name not in card.heads:
        raise ValueError(unknown(f"head of {card.name}", name, card.heads))
    head = card.heads[name]
    if head.reads == "pooled_output" and head.reads not in backbone.output:
        raise ValueError(
            f"This {card.name} backbone has no pooler, whose output the {name} head reads."
        )
    last = head.parts[-1]
    free = isinstance(last, registry.Dense) and last.width == "labels"
    if free != (num_labels is not None):
        says = "needs num_labels" if free else "has a fixed width and takes no num_labels"
        raise ValueError(f"The {name} head of {card.name} {says}.")
    values = _Values(backbone, num_labels)
    # What is trained for scores is computed in full precision: half of it is too coarse there.
    half = keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16")
    parts = []
    for i, part in enumerate(head.parts):
        dtype = "float32" if half and part is last else None
        parts.append(_LAYERS[type(part)](part, values, name=f"part_{i}", dtype=dtype))
    scalar = isinstance(last, registry.Dense) and last.width == 1
    return Head(head.reads, parts, scalar, name=name + _SUFFIX)


class _Values:
    """What the words in a card's parts stand for: a config field's name is its value."""

    def __init__(self, backbone: Backbone, num_labels: int | None):
        self.backbone = backbone
        self.config = backbone.config
        self.num_labels = num_labels

    def __call__(self, word: Any) -> Any:
        if word == "labels":
            return self.num_labels
        return getattr(self.config, word, word) if isinstance(word, str) else word


def _dropout(part: registry.Dropout, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    rate = values(part.rate)
    return keras.layers.Dropout(values.config.dropout if rate is None else rate, **kwargs)


def _dense(part: registry.Dense, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    activation = values(part.activation)
    return keras.layers.Dense(
        values(part.width),
        activation=layers.activation(activation) if activation else None,
        use_bias=part.bias,
        # Not cut, which would take an eighth off: at the rates of fine-tuning a head hardly moves,
        # so its size is how fast its logits do.
        kernel_initializer=keras.initializers.RandomNormal(stddev=values.config.initializer_range),
        **{**kwargs, "name": part.name},
    )


def _norm(part: registry.Norm, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(
        epsilon=values(part.epsilon), **{**kwargs, "name": part.name}
    )


def _decoder(part: registry.Decoder, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    embedding = values.backbone.get_layer("token_embedding")
    # In a function, so that Keras does not count the table among the head's own weights.
    return TokenDecoder(
        lambda: embedding.embeddings,
        values.config.vocab_size,
        bias=part.bias is not None,
        **{**kwargs, "name": part.name},
    )


def _adaptive_softmax(
    part: registry.AdaptiveSoftmax, values: _Values, **kwargs: Any
) -> keras.layers.Layer:
    embedding = values.backbone.get_layer("token_embedding")
    return layers.AdaptiveSoftmax(
        lambda: embedding, values.config.initializer_range, **{**kwargs, "name": part.name}
    )


_LAYERS: dict[type, Callable[..., keras.layers.Layer]] = {
    registry.Dropout: _dropout,
    registry.Dense: _dense,
    registry.Norm: _norm,
    registry.Decoder: _decoder,
    registry.AdaptiveSoftmax: _adaptive_softmax,
}

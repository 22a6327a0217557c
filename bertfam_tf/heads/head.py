"""A head's layers, made from its description on the family's card."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers, registry
from bertfam_tf.models.base import Backbone
from bertfam_tf.names import unknown

_SUFFIX = "_head"


class Head(keras.layers.Layer):
    """From a backbone's outputs to logits: ``logits(select(outputs))``.

    Args:
        reads: as ``registry.HeadSpec`` has it.
        parts: layers, called one after the other.
        scalar: whether the logits' last axis, of width 1, is left out.

    Call:
        outputs: a backbone's dict.
        targets: as ``logits`` takes them.

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

    def select(self, outputs: dict[str, Any]) -> Any:
        """What the head reads of a backbone's outputs: (batch, width) or (batch, length, width)."""
        if self.reads == "first_token":
            return outputs["sequence_output"][:, 0, :]
        return outputs[self.reads]

    def logits(self, x: Any, targets: Any = None) -> Any:
        """Logits of vectors, all that ``select`` gives or some of them, as of masked tokens.

        Args:
            x: (…, width).
            targets: int (…), tokens, for the log-probabilities of these alone. Heads over the
                vocabulary take it.

        Returns:
            (…, labels), or (…) for one score; with ``targets`` log-probabilities (…).
        """
        for part in self.parts[:-1]:
            x = part(x)
        x = self.parts[-1](x) if targets is None else self.parts[-1](x, targets=targets)
        return ops.squeeze(x, -1) if self.scalar else x

    def build(self, input_shape):
        sequence = input_shape["sequence_output"]
        first = (sequence[0], sequence[-1])
        shape = first if self.reads == "first_token" else input_shape[self.reads]
        for part in self.parts:
            part.build(shape)
            shape = part.compute_output_shape(shape)

    def call(self, outputs, targets=None, training=None):
        return self.logits(self.select(outputs), targets)


class TiedOutput(keras.layers.Layer):
    """Logits over the vocabulary: an output projection tied to the token embedding, and a bias.

    The table stays the backbone's weight; this layer has the bias alone.

    Args:
        table: gives the table, (vocabulary, width).
        size: of the vocabulary.
        use_bias: whether there is a bias.

    Call:
        x: (…, width).
        targets: int (…), one token each; None for all tokens.

    Returns:
        (…, vocabulary); with ``targets`` their log-probabilities, (…).
    """

    def __init__(self, table: Callable[[], Any], size: int, use_bias: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.table = table
        self.size = size
        self.use_bias = use_bias

    def build(self, input_shape):
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.size,), initializer="zeros", name="bias")

    def call(self, x, targets=None):
        logits = ops.matmul(x, ops.transpose(ops.cast(self.table(), x.dtype)))
        logits = logits + self.bias if self.use_bias else logits  # (…, vocabulary)
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

    It has the backbone's dtype policy, but for its last layer, which is float32 where that is of
    half precision.

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
    spec = card.heads[name]
    if spec.reads == "pooled_output" and spec.reads not in backbone.output:
        raise ValueError(
            f"This {card.name} backbone has no pooler, whose output the {name} head reads."
        )
    if spec.has_labels != (num_labels is not None):
        says = (
            "needs num_labels" if spec.has_labels else "has a fixed width and takes no num_labels"
        )
        raise ValueError(f"The {name} head of {card.name} {says}.")
    values, policy = _Values(backbone, num_labels), backbone.dtype_policy
    parts = []
    for i, part in enumerate(spec.parts):
        dtype = policy
        # Logits are computed in full precision: half of it is too coarse for a loss.
        if part is spec.parts[-1] and policy.compute_dtype in ("float16", "bfloat16"):
            dtype = "float32"
        named = getattr(part, "name", f"part_{i}")
        parts.append(_LAYERS[type(part)](part, values, name=named, dtype=dtype))
    scalar = getattr(spec.parts[-1], "width", None) == 1
    head = Head(spec.reads, parts, scalar, name=name + _SUFFIX, dtype=policy)
    head.build({key: x.shape for key, x in backbone.output.items() if hasattr(x, "shape")})
    return head


class _Values:
    """What stands in a head's description, for one backbone."""

    def __init__(self, backbone: Backbone, num_labels: int | None):
        self.backbone = backbone
        self.config = backbone.config
        self.num_labels = num_labels

    def __call__(self, value: Any) -> Any:
        if value is registry.LABELS:
            return self.num_labels
        return getattr(self.config, value.name) if isinstance(value, registry.Field) else value


def _dropout(part: registry.DropoutSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    rate = values(part.rate)
    return keras.layers.Dropout(values.config.dropout if rate is None else rate, **kwargs)


def _dense(part: registry.DenseSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    activation = values(part.activation)
    return keras.layers.Dense(
        values(part.width),
        activation=layers.activation(activation) if activation else None,
        use_bias=part.bias,
        # Not truncated, which would take an eighth off: at the rates of fine-tuning a head hardly
        # moves, so its size is how fast its logits do.
        kernel_initializer=keras.initializers.RandomNormal(stddev=values.config.initializer_range),
        **kwargs,
    )


def _norm(part: registry.NormSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=values(part.epsilon), **kwargs)


def _tied_output(
    part: registry.TiedOutputSpec, values: _Values, **kwargs: Any
) -> keras.layers.Layer:
    embedding = values.backbone.parts["token_embedding"]
    # In a function, so that Keras does not count the table among the head's own weights.
    return TiedOutput(
        lambda: embedding.embeddings,
        values.config.vocab_size,
        use_bias=part.bias is not None,
        **kwargs,
    )


def _adaptive_softmax(
    part: registry.AdaptiveSoftmaxSpec, values: _Values, **kwargs: Any
) -> keras.layers.Layer:
    embedding = values.backbone.parts["token_embedding"]
    return layers.AdaptiveSoftmax(lambda: embedding, values.config.initializer_range, **kwargs)


_LAYERS: dict[type, Callable[..., keras.layers.Layer]] = {
    registry.DropoutSpec: _dropout,
    registry.DenseSpec: _dense,
    registry.NormSpec: _norm,
    registry.TiedOutputSpec: _tied_output,
    registry.AdaptiveSoftmaxSpec: _adaptive_softmax,
}

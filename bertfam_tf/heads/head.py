"""A head, built from its spec in the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers as building
from bertfam_tf import registry
from bertfam_tf.models.base import Backbone
from bertfam_tf.names import unknown

_SUFFIX = "_head"


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Head(keras.layers.Layer):
    """A head, which maps a backbone's outputs to logits: ``logits(select(outputs))``.

    Args:
        reads: the output that the head reads, see ``registry.HeadSpec``.
        parts: the layers, applied one after the other.
        scalar: whether the logits' last axis, of width 1, is squeezed.
        num_labels: the number of labels; None for heads that have none.
        layers: which hidden states ``combination`` takes, by their index from 0; none of them where
            ``reads`` is a tensor.
        combination: the layer that combines them into the head's input; None without ``layers``.
        origin: how ``build`` made it, for ``get_config``; None for a head of other layers.

    Call:
        outputs: the outputs of a backbone. The first call of a head from ``from_config`` that is
            tied to a token embedding must be on symbolic ones: it is tied to their backbone.
        targets: the same as for ``logits``.

    Returns:
        Logits, or log-probabilities from an adaptive softmax, float32 (float64 under that policy):
        (batch, labels) for heads that read one vector per example, (batch, length, labels) for
        those that read the sequence; without the last axis if ``scalar``.
    """

    def __init__(
        self,
        reads: str,
        parts: list[keras.layers.Layer],
        scalar: bool = False,
        num_labels: int | None = None,
        layers: Sequence[int] = (),
        combination: keras.layers.Layer | None = None,
        origin: Origin | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._origin = origin
        self.reads = reads
        self.layers = tuple(layers)
        self.combination = combination
        self.parts = parts
        self.scalar = scalar
        self.num_labels = num_labels

    @property
    def kind(self) -> str:
        """Its name in the family's ``heads``."""
        return self.name.removesuffix(_SUFFIX)

    def select(self, outputs: dict[str, Any]) -> Any:
        """Returns the input of ``logits``: (batch, width) or (batch, length, width)."""
        hidden = outputs[self.reads]
        return hidden if self.combination is None else self.combination(self._chosen(hidden))

    def _chosen(self, states: Sequence[Any]) -> list[Any]:
        return [states[i] for i in self.layers]

    def logits(self, x: Any, targets: Any = None) -> Any:
        """Computes logits of vectors: of all that ``select`` returns, or only of masked tokens.

        Args:
            x: (…, width).
            targets: int (…), one token for each vector, whose log-probabilities to compute; only
                for heads over the vocabulary. None for all logits.

        Returns:
            (…, labels), or (…) if ``scalar``; with ``targets`` log-probabilities (…).
        """
        for part in self.parts[:-1]:
            x = part(x)
        x = self.parts[-1](x) if targets is None else self.parts[-1](x, targets=targets)
        return ops.squeeze(x, -1) if self.scalar else x

    def logits_of_few(self, x: Any) -> Any:
        """Computes ``logits`` of few vectors (batch, width), as the steps of generation do.

        The results are the same; an output projection tied to the token embedding is faster.
        """
        if not isinstance(self.parts[-1], TiedOutput):
            return self.logits(x)
        for part in self.parts[:-1]:
            x = part(x)
        return self.parts[-1](x, few=True)

    def __call__(self, outputs, *args, **kwargs):
        if self._origin is not None:
            self._origin.tie(outputs, self)
        return super().__call__(outputs, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        if self._origin is None:
            return super().get_config()
        return {
            "family": self._origin.family,
            "config": self._origin.config.to_dict(),
            "kind": self.kind,
            "num_labels": self.num_labels,
            "layers": list(self.layers) or None,
            "combine": None if self.combination is None else self.combination.how,
            **super().get_config(),  # name, trainable, dtype
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Head:
        fields = dict(config)
        record = registry.get(fields.pop("family"))
        typed: Any = record.config.from_dict(fields.pop("config"))
        policy = keras.dtype_policies.get(fields.pop("dtype"))
        return _make(
            Origin(record.name, typed),
            _spec(record, fields.pop("kind")),
            policy,
            fields.pop("num_labels"),
            fields.pop("layers") or (),
            fields.pop("combine"),
            **fields,
        )

    def get_build_config(self) -> None:
        """Leaves building to the first call, which has the backbone's shapes and embedding."""

    def build(self, input_shape):
        shape = input_shape[self.reads]
        if self.combination is not None:
            shapes = self._chosen(shape)
            self.combination.build(shapes)
            shape = self.combination.compute_output_shape(shapes)
        for part in self.parts:
            part.build(shape)
            shape = part.compute_output_shape(shape)

    def call(self, outputs, targets=None, training=None):
        return self.logits(self.select(outputs), targets)


class TiedOutput(keras.layers.Layer):
    """Logits over the vocabulary: an output projection tied to the token embedding, and a bias.

    The embedding stays the backbone's weight; this layer has only the bias.

    Args:
        table: a function that returns the embedding, (vocabulary, width).
        size: the size of the vocabulary.
        use_bias: whether to add a bias.
        wider: whether the units that inputs have beyond the embedding's have a matrix of their own.
        stddev: the standard deviation of that matrix's initial weights.

    Call:
        x: (…, width).
        targets: int (…), one token for each vector; None for all tokens.
        few: whether ``x`` is a matrix of up to some hundred vectors, for which TensorFlow's product
            without oneDNN is several times faster with the embedding as its first operand. The
            results are the same.

    Returns:
        (…, vocabulary); with ``targets`` their log-probabilities, (…).
    """

    def __init__(
        self,
        table: Callable[[], Any],
        size: int,
        use_bias: bool = True,
        wider: bool = False,
        stddev: float = 0.02,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.table = table
        self.size = size
        self.use_bias = use_bias
        self.wider = wider
        self.stddev = stddev
        self.more = None

    def build(self, input_shape):
        units = input_shape[-1] - self.table().shape[-1]
        if self.wider and units < 0:
            raise ValueError(
                f"Inputs must be at least as wide as the embedding, {self.table().shape[-1]}, got "
                f"{input_shape[-1]}."
            )
        if self.wider and units:
            self.more = self.add_weight(
                shape=(units, self.size), initializer=building.normal(self.stddev), name="more"
            )
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.size,), initializer="zeros", name="bias")

    def call(self, x, targets=None, few=False):
        table = ops.cast(self.table(), x.dtype)
        if few and self.more is None:
            logits = ops.transpose(ops.matmul(table, ops.transpose(x)))
        else:
            matrix = ops.transpose(table)
            if self.more is not None:
                matrix = ops.concatenate([matrix, ops.cast(self.more, x.dtype)], axis=0)
            logits = ops.matmul(x, matrix)  # (…, vocabulary)
        if self.use_bias:
            logits = logits + self.bias
        if targets is None:
            return logits
        return -ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)

    def compute_output_shape(self, input_shape, targets_shape=None):
        return (*input_shape[:-1], self.size) if targets_shape is None else targets_shape


def build(
    backbone: Backbone,
    name: str,
    num_labels: int | None = None,
    *,
    layers: Sequence[int] | str | None = None,
    combine: str = "concatenate",
) -> Head:
    """Returns a head for ``backbone`` with random weights; its name is ``NAME_head``.

    Its dtype policy is the backbone's, except that the last layer is float32 if that computes in
    half precision.

    Args:
        backbone: the model to put it on; a language model's head is tied to its token embedding.
        name: the name of a head in the family's ``heads``.
        num_labels: the number of labels, for heads that have labels; None for others.
        layers: the layers whose outputs the head reads in place of the last one's: indices of
            ``hidden_states``, or ``"all"`` but 0, the embeddings' output. None for the last one's.
        combine: makes one vector of them, as ``layers.LayerCombination`` does.

    Raises:
        ValueError: if the family lacks the head; the head reads the pooled output, but the backbone
            has no pooler; ``num_labels`` is missing or superfluous; or ``layers`` do not exist, are
            repeated, have different widths where they are added, or are passed for a head that does
            not read the vectors of all tokens.
    """
    record = registry.get(backbone.family)
    spec = _spec(record, name)
    if spec.reads == "pooled_output" and spec.reads not in backbone.output:
        raise ValueError(
            f"This {record.name} backbone has no pooler, whose output the {name} head reads; "
            "load_backbone(path, pooler=True) has one."
        )
    if spec.has_labels != (num_labels is not None):
        says = (
            "needs num_labels" if spec.has_labels else "has a fixed width and takes no num_labels"
        )
        raise ValueError(f"The {name} head of {record.name} {says}.")
    reads, chosen = spec.reads, []
    shapes: dict[str, Any] = {
        key: x.shape for key, x in backbone.output.items() if hasattr(x, "shape")
    }
    if layers is not None:
        if reads != "sequence_output":
            raise ValueError(
                f"The {name} head of {record.name} reads {reads}; layers are for heads that read "
                "the vectors of all tokens."
            )
        shapes["hidden_states"] = [x.shape for x in backbone.output["hidden_states"]]
        chosen = chosen_layers(layers, shapes["hidden_states"], combine)
    origin = Origin(backbone.family, backbone.config)
    origin.embedding = backbone.parts["token_embedding"] if origin.ties(spec) else None
    head = _make(
        origin,
        spec,
        backbone.dtype_policy,
        num_labels,
        chosen,
        combine if chosen else None,
        name=name + _SUFFIX,
    )
    head.build(shapes)
    return head


def chosen_layers(layers: Sequence[int] | str, shapes: Sequence[Any], combine: str) -> list[int]:
    """Returns indices of hidden states, from 0, checked to exist and to be distinct.

    Raises:
        ValueError: as ``build`` does.
    """
    last = len(shapes) - 1
    if isinstance(layers, str) and layers != "all":
        raise ValueError(f"Layers must be numbers or 'all', got {layers!r}.")
    requested: Sequence[int] = range(1, last + 1) if isinstance(layers, str) else layers
    if combine not in building.LayerCombination.KINDS:
        raise ValueError(unknown("combination of layers", combine, building.LayerCombination.KINDS))
    wrong = [i for i in requested if not -last - 1 <= i <= last]
    if wrong:
        raise ValueError(
            f"Layers are from 0, the embeddings' output, to {last}, or from -1 to {-last - 1}, got "
            f"{wrong[0]}."
        )
    chosen = [i % (last + 1) for i in requested]
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"Layers must be non-empty and distinct, got {list(requested)}.")
    widths = {i: shapes[i][-1] for i in chosen}
    if combine != "concatenate" and len(set(widths.values())) > 1:
        raise ValueError(
            f"Only layers of the same width can be added, got widths by layer {widths}; "
            "concatenate them, or leave the embeddings' output, layer 0, out."
        )
    return chosen


class Origin:
    """The family and config that a head's layers are made for, and the embedding it is tied to.

    Args:
        family: the family of the backbone.
        config: the config of the backbone.

    Attributes:
        embedding: the backbone's token embedding; None for a head that is not tied to it, or not
            yet. It stays the backbone's layer: Keras does not look into this class.
    """

    def __init__(self, family: str, config: Any):
        self.family = family
        self.config = config
        self.embedding: Any = None

    @staticmethod
    def ties(spec: registry.HeadSpec) -> bool:
        """Returns whether a head has the weights of the token embedding."""
        return any(type(part) in _TIED for part in spec.parts)

    def tie(self, outputs: Any, head: Head) -> None:
        """Ties the head to the embedding of the backbone whose outputs these are.

        Raises:
            ValueError: for a head that is not tied to an embedding yet, if the outputs are not
                symbolic outputs of a backbone.
        """
        if self.embedding is not None or not self.ties(_spec(registry.get(self.family), head.kind)):
            return
        for tensor in keras.tree.flatten(outputs):
            backbone = getattr(getattr(tensor, "_keras_history", None), "operation", None)
            if isinstance(backbone, Backbone):
                self.embedding = backbone.parts["token_embedding"]
                return
        raise ValueError(
            f"The {head.kind} head is tied to the token embedding of its backbone: its first call "
            "must be on the backbone's symbolic outputs, as in a functional model; or make it with "
            "heads.build(backbone, …)."
        )


def _spec(record: registry.Family, name: str) -> registry.HeadSpec:
    if name not in record.heads:
        raise ValueError(unknown(f"head of {record.name}", name, record.heads))
    return record.heads[name]


def _make(
    origin: Origin,
    spec: registry.HeadSpec,
    policy: keras.DTypePolicy,
    num_labels: int | None,
    layers: Sequence[int],
    combine: str | None,
    **kwargs: Any,
) -> Head:
    """Returns a head that is not built yet."""
    values = _Values(origin, num_labels)
    parts = []
    for i, part in enumerate(spec.parts):
        dtype: Any = policy
        # Logits are computed in full precision: half of it is too coarse for a loss.
        if part is spec.parts[-1] and policy.compute_dtype in ("float16", "bfloat16"):
            dtype = "float32"
        layer_name = getattr(part, "name", f"part_{i}")
        parts.append(_LAYERS[type(part)](part, values, name=layer_name, dtype=dtype))
    scalar = getattr(spec.parts[-1], "width", None) == 1
    reads, combination = spec.reads, None
    if combine is not None:
        reads = "hidden_states"
        combination = building.LayerCombination(combine, name="features", dtype=policy)
    return Head(
        reads, parts, scalar, num_labels, layers, combination, origin, dtype=policy, **kwargs
    )


class _Values:
    """The values of a spec's fields for one backbone."""

    def __init__(self, origin: Origin, num_labels: int | None):
        self.origin = origin
        self.config = origin.config
        self.num_labels = num_labels

    def __call__(self, value: Any) -> Any:
        if value is registry.LABELS:
            return self.num_labels
        if isinstance(value, registry.Field):
            field_value = getattr(self.config, value.name)
            return self(value.otherwise) if field_value is None else field_value
        return value


def _dropout(part: registry.DropoutSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    rate = values(part.rate)
    return building.Dropout(values.config.dropout if rate is None else rate, **kwargs)


def _dense(part: registry.DenseSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    activation = values(part.activation)
    return building.Dense(
        values(part.width),
        activation=building.activation(activation) if activation else None,
        use_bias=part.bias,
        # A truncated distribution has a standard deviation smaller by an eighth. At the learning
        # rates of fine-tuning the initial scale decides how fast a head's logits change.
        kernel_initializer=keras.initializers.RandomNormal(stddev=values.config.initializer_range),
        **kwargs,
    )


def _norm(part: registry.NormSpec, values: _Values, **kwargs: Any) -> keras.layers.Layer:
    return building.LayerNormalization(epsilon=values(part.epsilon), center=part.bias, **kwargs)


def _tied_output(
    part: registry.TiedOutputSpec, values: _Values, **kwargs: Any
) -> keras.layers.Layer:
    origin = values.origin
    # In a function, so that Keras does not count the table among the head's own weights.
    return TiedOutput(
        lambda: origin.embedding.embeddings,
        values.config.vocab_size,
        use_bias=part.bias is not None,
        wider=part.more is not None,
        stddev=values.config.initializer_range,
        **kwargs,
    )


def _adaptive_softmax(
    part: registry.AdaptiveSoftmaxSpec, values: _Values, **kwargs: Any
) -> keras.layers.Layer:
    origin = values.origin
    return building.AdaptiveSoftmax(
        lambda: origin.embedding, values.config.initializer_range, **kwargs
    )


_LAYERS: dict[type, Callable[..., keras.layers.Layer]] = {
    registry.DropoutSpec: _dropout,
    registry.DenseSpec: _dense,
    registry.NormSpec: _norm,
    registry.TiedOutputSpec: _tied_output,
    registry.AdaptiveSoftmaxSpec: _adaptive_softmax,
}
_TIED = (registry.TiedOutputSpec, registry.AdaptiveSoftmaxSpec)

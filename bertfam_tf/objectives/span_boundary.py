"""The span boundary objective (SpanBERT, arXiv 1907.10529, section 3.2)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from bertfam_tf import layers
from bertfam_tf.heads.head import TiedOutput
from bertfam_tf.models import Backbone
from bertfam_tf.objectives.objective import Batch, SumAndCount
from bertfam_tf.objectives.predictions import counted, in_batch, token_loss, token_metrics, vectors


class Boundaries(NamedTuple):
    """The tokens just outside both ends of a span, for each token inside it.

    Fields:
        left, right: int (batch, predictions), the positions before a span's first token and after
            its last one; 0 where the weight is 0.
        offsets: int (batch, predictions), the index of the token in its span; 0 where the weight is
            0.
        weights: float32 (batch, predictions), 0 where a span has no token outside of one end.
    """

    left: Any
    right: Any
    offsets: Any
    weights: Any

    @property
    def places(self) -> Any:
        """The former name of ``offsets``."""
        warnings.warn(
            "Boundaries.places is now offsets; the old name is for version 0.1 only.",
            FutureWarning,
            stacklevel=2,
        )
        return self.offsets


def span_boundaries(
    positions: Any,
    starts: Any,
    ends: Any,
    padding_mask: Any,
    weights: Any = None,
    longest: int | None = None,
) -> Boundaries:
    """Finds the tokens from which the tokens of spans are predicted.

    It uses only Keras operations, so it works in an input pipeline and in a loss. Special tokens
    count as outside tokens: a span after ``[CLS]`` has a left boundary. A span at an end of its row
    has only one boundary, and weights of 0.

    Args:
        positions, starts, ends: int (batch, predictions): positions of tokens, and of the first and
            the last token of the span of each, as ``Masking`` selected them or as given.
        padding_mask: int (batch, length), 1 at real tokens.
        weights: float (batch, predictions), 0 where there is no prediction; None for 1.
        longest: the number of tokens of a span that are predicted, from its first; others have a
            weight of 0. None for all.

    Raises:
        ValueError: if positions, starts, ends and weights have different shapes.
    """
    shape = ops.convert_to_tensor(positions).shape
    for name, value in {"starts": starts, "ends": ends, "weights": weights}.items():
        actual = shape if value is None else ops.convert_to_tensor(value).shape
        if len(actual) != len(shape) or any(
            None not in pair and pair[0] != pair[1] for pair in zip(actual, shape, strict=True)
        ):
            raise ValueError(f"{name} must have the shape of positions, {shape}, got {actual}.")
    positions, starts, ends, mask = (
        ops.cast(x, "int32") for x in (positions, starts, ends, padding_mask)
    )
    length = ops.shape(mask)[1]
    left, right, offsets = starts - 1, ends + 1, positions - starts
    valid = ops.logical_and(left >= 0, right < length)
    valid = ops.logical_and(valid, offsets >= 0)
    if longest is not None:
        valid = ops.logical_and(valid, offsets < longest)
    left, right, offsets = (ops.where(valid, x, 0) for x in (left, right, offsets))
    # The neighbor of a span is padding where the row is shorter than the batch.
    real = ops.take_along_axis(mask, left, axis=1) * ops.take_along_axis(mask, right, axis=1)
    counts = ops.cast(ops.logical_and(valid, real > 0), "float32")
    return Boundaries(left, right, offsets, counts if weights is None else counts * weights)


class SpanBoundaryHead(keras.layers.Layer):
    """A head that predicts a span's tokens from the outputs at the span's boundaries.

    It concatenates the two outputs and the embedding of the position in the span, and applies two
    dense layers, each with GELU and a norm, and an output projection tied to the token embedding.

    Args:
        stack: the layers after the concatenation, in order.
        offset_embedding: the embedding of the positions in a span.

    Call:
        left, right: (…, width), outputs at the boundaries.
        offsets: int (…), positions in the span, from 0 to ``longest`` - 1.
        targets: int (…), one token for each; None for all logits.

    Returns:
        (…, vocabulary); with ``targets`` their log-probabilities, (…).
    """

    def __init__(
        self,
        stack: list[keras.layers.Layer],
        offset_embedding: keras.layers.Embedding,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.stack = stack
        self.offset_embedding = offset_embedding

    @property
    def longest(self) -> int:
        """The number of positions in a span that have an embedding."""
        return self.offset_embedding.input_dim

    def build(self, left_shape, right_shape=None, offsets_shape=None):
        self.offset_embedding.build(offsets_shape)
        shape = (*left_shape[:-1], 2 * left_shape[-1] + self.offset_embedding.output_dim)
        for layer in self.stack:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, left, right, offsets, targets=None):
        x = ops.concatenate([left, right, self.offset_embedding(offsets)], axis=-1)
        for layer in self.stack[:-1]:
            x = layer(x)
        return self.stack[-1](x) if targets is None else self.stack[-1](x, targets=targets)


def span_boundary_head(
    backbone: Backbone, longest: int = 15, place_size: int = 200
) -> SpanBoundaryHead:
    """Returns a head for ``backbone`` with random weights, as in SpanBERT's code.

    Its dtype policy is the backbone's, except that logits are float32 if that computes in half
    precision.

    Args:
        backbone: the backbone whose token embedding the output projection is tied to.
        longest: the number of positions in a span that have an embedding, ``max-pair-targets`` of
            SpanBERT's recipe. Spans can be longer than drawn, because adjacent spans are joined.
        place_size: the width of the embedding of positions in a span.

    Raises:
        ValueError: if the backbone's token embedding is not one table, or a size is below 1.
    """
    for name, size in (("longest", longest), ("place_size", place_size)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}.")
    embedding, config = backbone.parts["token_embedding"], backbone.config
    if not isinstance(embedding, keras.layers.Embedding):
        raise ValueError(
            f"token_embedding must be one table, got {type(embedding).__name__} of "
            f"{backbone.family}."
        )
    policy = backbone.dtype_policy
    scale = config.initializer_range

    def dense(width: int, name: str) -> keras.layers.Layer:
        return layers.Dense(
            width,
            activation=layers.activation("gelu"),
            kernel_initializer=layers.normal(scale),
            name=name,
            dtype=policy,
        )

    def norm(name: str) -> keras.layers.Layer:
        return layers.LayerNormalization(epsilon=config.norm_epsilon, name=name, dtype=policy)

    stack = [
        dense(config.hidden_size, "dense"),
        norm("norm"),
        dense(embedding.output_dim, "second_dense"),
        norm("second_norm"),
        TiedOutput(
            lambda: embedding.embeddings,
            config.vocab_size,
            name="decoder",
            dtype="float32" if policy.compute_dtype in ("float16", "bfloat16") else policy,
        ),
    ]
    offset_embedding = layers.Embedding(
        longest,
        place_size,
        embeddings_initializer=layers.normal(scale),
        name="place_embedding",
        dtype=policy,
    )
    head = SpanBoundaryHead(stack, offset_embedding, name="sbo_head", dtype=policy)
    shape = (None, backbone.output["sequence_output"].shape[-1])
    head.build(shape, shape, (None,))
    return head


class SpanBoundary:
    """Cross-entropy of spans' tokens, from the outputs outside of both ends: the loss ``sbo``.

    A batch has the targets and weights of ``MaskedTokens``, so that both train together, and the
    targets ``starts`` and ``ends``, int32 (batch, predictions), as ``Masking`` returns them with
    ``lengths=geometric(), unit="word", together=True``. The input ``padding_mask`` of the network
    is read. Spans at a row's end, and positions beyond the head's ``longest``, have no loss.

    The loss is the mean over the sum of the weights. SpanBERT's code divides the sum by the number
    of predicted tokens of each replica, plus 1. Metrics are ``sbo_accuracy`` and
    ``sbo_perplexity``, computed as in ``MaskedTokens``.

    Args:
        head: ``span_boundary_head(backbone)``.
        weight: the weight of the loss in the total.

    Raises:
        ValueError: in training, for a batch without one of the targets.
    """

    def __init__(self, head: SpanBoundaryHead, weight: float = 1.0):
        self.heads: Mapping[str, SpanBoundaryHead] = {"sbo": head}
        self.weights: Mapping[str, float] = {"sbo": weight}
        self.metrics = token_metrics("sbo")

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        head, targets = heads["sbo"], batch.targets
        for name in ("positions", "token_ids", "starts", "ends"):
            if name not in targets:
                raise ValueError(f"targets must contain {name!r}, got {', '.join(targets)}.")
        boundaries = span_boundaries(
            targets["positions"],
            targets["starts"],
            targets["ends"],
            batch.inputs["padding_mask"],
            batch.weights,
            head.longest,
        )
        x = outputs["sequence_output"]  # (batch, length, width)
        left, right = (
            in_batch(side, ops.shape(x)[1]) for side in (boundaries.left, boundaries.right)
        )
        weights, left, right, offsets, tokens = counted(
            boundaries.weights, left, right, boundaries.offsets, targets["token_ids"]
        )
        logits = head(vectors(x, left), vectors(x, right), offsets)
        return token_loss("sbo", logits, tokens, weights)

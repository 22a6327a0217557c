"""One Transformer layer, assembled from sublayers."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras

from bertfam_tf.layers.attention import Projections, merged_arguments
from bertfam_tf.layers.fused import Dropout, LayerNormalization
from bertfam_tf.layers.tracing import call_once_traced
from bertfam_tf.validation import one_of

_SCOPE = threading.local()


@contextlib.contextmanager
def residual_sums(add: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Returns a scope in which blocks compute their residual sums by ``add(x, output)``."""
    _SCOPE.add = add
    try:
        yield
    finally:
        _SCOPE.add = None


def _residual_sum(x, output):
    add = getattr(_SCOPE, "add", None)
    return x + output if add is None else add(x, output)


class TransformerBlock(keras.layers.Layer):
    """An attention and a feed-forward sublayer, each with a residual connection, dropout and a
    norm.

    The layers are arguments, so that blocks can share them.

    Args:
        attention: a layer called with ``(x, attention_mask=…, …)`` that returns ``(output, …)``.
        feed_forward: a layer called with ``x``.
        norm: ``"post"`` normalises after each residual sum (arXiv 1706.03762), ``"pre"`` before
            each sublayer, leaving the residual path untouched (GPT-2).
        epsilon: the epsilon of the norms.
        dropout: the dropout rate of each sublayer's output.
        attention_norm, feed_forward_norm: the norms; None for layer norms. ``Identity`` layers for
            a block without norms.
        attention_output_dropout: the dropout of the attention's output; None for one of the rate
            ``dropout``.

    Call:
        x: (batch, length, width).
        query: (batch, width), the one vector of each example's ``x`` whose output is needed; None
            for all. Only for attention that accepts it.
        return_scores: whether to return the attention's scores; only for attention that accepts it.
        attention_mask and further arguments: passed to the attention.

    Returns:
        ``(output, …)``: (batch, length, width), or the shape of ``query``; and the attention's
        other outputs: its scores unless ``return_scores`` is false, and its cache if it has one.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        norm: Literal["post", "pre"] = "post",
        epsilon: float = 1e-12,
        dropout: float = 0.0,
        attention_norm: keras.layers.Layer | None = None,
        feed_forward_norm: keras.layers.Layer | None = None,
        attention_output_dropout: keras.layers.Layer | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        one_of("norm", norm, ("post", "pre"))
        self.norm = norm
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_norm = attention_norm or LayerNormalization(
            epsilon=epsilon, name="attention_norm", dtype=self.dtype_policy
        )
        self.feed_forward_norm = feed_forward_norm or LayerNormalization(
            epsilon=epsilon, name="feed_forward_norm", dtype=self.dtype_policy
        )
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)
        # No second name for the same layer: .keras files have its state by the name.
        self.attention_output_dropout = attention_output_dropout

    def build(self, x_shape, query_shape=None):
        for part in (
            self.attention,
            self.feed_forward,
            self.attention_norm,
            self.feed_forward_norm,
        ):
            if not part.built:
                part.build(x_shape)

    def compute_output_shape(self, x_shape, query_shape=None):
        # A symbolic call then need not trace the block: models are built several times faster.
        query_argument = {} if query_shape is None else {"query_shape": query_shape}
        return query_shape or x_shape, *self.attention.compute_output_shape(
            x_shape, **query_argument
        )[1:]

    def compute_output_spec(self, x, return_scores=True, **options):
        output, scores, *more = super().compute_output_spec(x, **options)
        return output, *([scores] if return_scores else []), *more

    def call(
        self, x, attention_mask=None, query=None, return_scores=True, training=None, **options
    ):
        options |= {"attention_mask": attention_mask, "query": query, "training": training}
        if not return_scores:
            options["return_scores"] = False
        options |= merged_arguments(self.attention, query is not None)
        return call_once_traced(self, "_call", x, **options)

    def projections(self, **kwargs):
        """Returns a layer from the block's input to queries, keys and values."""
        return Projections(self, **kwargs)

    def attention_inputs(self, x):
        """Returns the inputs of queries and keys, and of values; None for the same."""
        return (self.attention_norm(x) if self.norm == "pre" else x), None

    def _dropped(self, attended, training):
        return (self.attention_output_dropout or self.dropout)(attended, training=training)

    def _call(self, x, query, training, **options):
        options["training"] = training
        if self.norm == "pre":
            if query is not None:
                options["query"] = self.attention_norm(query)
            attended, *more = self.attention(self.attention_norm(x), **options)
            x = x if query is None else query
            x = _residual_sum(x, self._dropped(attended, training))
            out = self.feed_forward(self.feed_forward_norm(x))
            return _residual_sum(x, self.dropout(out, training=training)), *more
        if query is not None:
            options["query"] = query
        attended, *more = self.attention(x, **options)
        x = x if query is None else query
        x = self.attention_norm(_residual_sum(x, self._dropped(attended, training)))
        out = self.feed_forward(x)
        x = _residual_sum(x, self.dropout(out, training=training))
        return self.feed_forward_norm(x), *more

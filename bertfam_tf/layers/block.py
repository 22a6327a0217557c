"""One Transformer layer, assembled from parts."""

from typing import Literal

import keras

from bertfam_tf.layers.attention import Projections
from bertfam_tf.layers.fused import LayerNormalization
from bertfam_tf.layers.tracing import call_once_traced


class TransformerBlock(keras.layers.Layer):
    """Attention and feed-forward, each with a residual connection, dropout and a norm.

    The layers are arguments, so that blocks can share them.

    Args:
        attention: layer called with ``(x, attention_mask=…, …)``, returns ``(output, …)``.
        feed_forward: layer called with ``x``.
        norm: ``"post"`` normalises after each residual sum (arXiv 1706.03762), ``"pre"`` before
            each part, leaving the residual path untouched (GPT-2).
        epsilon: of the norms.
        dropout: rate on each part's output.
        attention_norm, feed_forward_norm: the norms; None for layer norms. ``Identity`` layers
            for a block without.

    Call:
        x: (batch, length, width).
        query: (batch, width), those of ``x`` whose output is needed, one of each example; None for
            all. Only for attention that takes it.
        return_scores: whether to return the attention's scores; only for attention that takes it.
        attention_mask and further arguments: of the attention.

    Returns:
        ``(output, …)``: (batch, length, width), or as ``query``; and the attention's other outputs:
        its scores unless ``return_scores`` is false, and its cache if it has one.
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
        **kwargs,
    ):
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(f"norm must be 'post' or 'pre', got {norm!r}.")
        self.norm = norm
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_norm = attention_norm or LayerNormalization(
            epsilon=epsilon, name="attention_norm", dtype=self.dtype_policy
        )
        self.feed_forward_norm = feed_forward_norm or LayerNormalization(
            epsilon=epsilon, name="feed_forward_norm", dtype=self.dtype_policy
        )
        self.dropout = keras.layers.Dropout(dropout, name="dropout", dtype=self.dtype_policy)

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
        # Saves a symbolic call the tracing of the block: models are built several times faster.
        given = {} if query_shape is None else {"query_shape": query_shape}
        return query_shape or x_shape, *self.attention.compute_output_shape(x_shape, **given)[1:]

    def compute_output_spec(self, x, return_scores=True, **given):
        output, scores, *more = super().compute_output_spec(x, **given)
        return output, *([scores] if return_scores else []), *more

    def call(self, x, attention_mask=None, query=None, return_scores=True, training=None, **given):
        given |= {"attention_mask": attention_mask, "query": query, "training": training}
        if not return_scores:
            given["return_scores"] = False
        return call_once_traced(self, "_call", x, **given)

    def projections(self, **kwargs):
        """A layer from the input of the block to queries, keys and values, without new weights."""
        return Projections(self, **kwargs)

    def attention_inputs(self, x):
        """What queries and keys, and what values are computed from; None for the same."""
        return (self.attention_norm(x) if self.norm == "pre" else x), None

    def _call(self, x, query, training, **given):
        given["training"] = training
        if self.norm == "pre":
            if query is not None:
                given["query"] = self.attention_norm(query)
            attended, *more = self.attention(self.attention_norm(x), **given)
            x = x if query is None else query
            x = x + self.dropout(attended, training=training)
            out = self.feed_forward(self.feed_forward_norm(x))
            return x + self.dropout(out, training=training), *more
        if query is not None:
            given["query"] = query
        attended, *more = self.attention(x, **given)
        x = x if query is None else query
        x = self.attention_norm(x + self.dropout(attended, training=training))
        out = self.feed_forward(x)
        return self.feed_forward_norm(x + self.dropout(out, training=training)), *more

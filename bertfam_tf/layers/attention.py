"""Multi-head scaled dot-product attention (arXiv 1706.03762), assembled from sublayers.

The order is: projections, split into heads, positions, scores, mask, probabilities, gate per head,
merge of heads. An optional sublayer that is None adds no operation to the graph.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from bertfam_tf.layers.fused import Dense, Dropout, take, write
from bertfam_tf.layers.initializers import normal
from bertfam_tf.layers.masks import score_bounds
from bertfam_tf.layers.unpadding import (
    SingleExample,
    heads_by_group,
    in_order,
    pad,
    projections_by_group,
    tokens_of_groups,
    unpad,
)

_SCOPE = threading.local()


@contextlib.contextmanager
def merged_projections(merged: Callable[[Any, bool], Callable | None]) -> Iterator[None]:
    """Returns a scope in which blocks compute the projections of their input as one product.

    Args:
        merged: a function of a block's attention, and of whether the block gets a ``query``. It
            returns the argument ``merged`` of the attention, or None for separate products.
    """
    _SCOPE.merged = merged
    try:
        yield
    finally:
        _SCOPE.merged = None


def merged_arguments(attention: Any, has_query: bool) -> dict[str, Any]:
    """Returns the argument of ``attention`` by which ``merged_projections`` merges products."""
    merged = getattr(_SCOPE, "merged", None)
    product = None if merged is None else merged(attention, has_query)
    return {} if product is None else {"merged": product}


def attention_probabilities(scores, attention_mask=None):
    """Computes the softmax of the masked scores over the keys.

    Args:
        scores: (batch, heads, queries, keys).
        attention_mask: boolean, broadcastable to the scores, true where a query may attend to a
            key; or its ``masks.score_bounds``; None for no mask. A fully masked query gets uniform
            attention.

    Returns:
        The same shape and dtype.
    """
    if scores.shape[-1] == 1:
        return ops.ones_like(scores)  # of a single key; Keras warns about its softmax
    # In half precision exp() overflows and sums lose digits long before float32 does.
    half = keras.backend.standardize_dtype(scores.dtype) in ("float16", "bfloat16")
    logits = ops.cast(scores, "float32") if half else scores
    if attention_mask is not None:
        if keras.backend.standardize_dtype(attention_mask.dtype) == "bool":
            attention_mask = score_bounds(attention_mask)
        logits = ops.minimum(logits, ops.cast(attention_mask, logits.dtype))
    return ops.cast(ops.softmax(logits, axis=-1), scores.dtype)


def split_heads(x, num_heads):
    """Reshapes (batch, length, heads · head size) to (batch, heads, length, head size)."""
    batch, length, width = ops.shape(x)
    if isinstance(length, int) and length == 1:
        return ops.reshape(x, (-1, num_heads, 1, width // num_heads))
    x = ops.reshape(x, (batch, length, num_heads, width // num_heads))
    return ops.transpose(x, (0, 2, 1, 3))  # (batch, heads, length, head size)


def merge_heads(x):
    """Reshapes (batch, heads, length, head size) to (batch, length, heads · head size)."""
    batch, heads, length, size = ops.shape(x)
    if isinstance(length, int) and length == 1:
        return ops.reshape(x, (-1, 1, heads * size))
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def _heads_of_tokens(x, num_heads, layout):
    """Splits ``x`` by ``layout`` into (batch, heads, length, head size)."""
    if layout is None:
        return split_heads(x, num_heads)
    # Split before padding and merged after it, no shape is computed while the graph runs.
    x = ops.reshape(x, (-1, num_heads, x.shape[-1] // num_heads))  # (tokens, heads, head size)
    return ops.transpose(pad(x, layout), (0, 2, 1, 3))


def _tokens_of_heads(x, layout):
    """Merges (batch, heads, length, head size) into (…, heads · head size) by ``layout``."""
    if layout is None:
        return merge_heads(x)
    x = unpad(ops.transpose(x, (0, 2, 1, 3)), layout)  # (tokens, heads, head size)
    return ops.reshape(x, (-1, x.shape[1] * x.shape[2]))


class HeadGate(keras.layers.Layer):
    """A trainable factor for the output of each head (arXiv 1905.10650); 0 turns a head off.

    Call:
        context: (batch, heads, queries, head size).

    Returns:
        The same shape. The factors start at 1.
    """

    def build(self, context_shape):
        self.gate = self.add_weight(shape=(context_shape[1],), initializer="ones", name="gate")

    def call(self, context):
        return context * ops.expand_dims(ops.expand_dims(self.gate, -1), -1)


class Attention(keras.layers.Layer):
    """Base class of attention layers: computes the heads' output from scores and values.

    Args:
        num_heads, head_size: their product may differ from the width of the model, so that heads
            can be pruned.
        dropout: the dropout rate of the attention probabilities.
        gate: a layer applied to the output of the heads (batch, heads, queries, head size) before
            they are merged, such as ``HeadGate``; None for no gate.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        dropout: float = 0.0,
        gate: keras.layers.Layer | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_heads < 1 or head_size < 1:
            raise ValueError(f"Attention needs heads: num_heads={num_heads}, {head_size=}.")
        self.num_heads = num_heads
        self.head_size = head_size
        self.gate = gate
        self.dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def _build_gate(self):
        if self.gate is not None and not self.gate.built:
            self.gate.build((None, self.num_heads, None, self.head_size))

    def _context(self, scores, value, attention_mask, training):
        """Computes the probability-weighted values, (batch, heads, queries, head size)."""
        probabilities = attention_probabilities(scores, attention_mask)
        context = ops.matmul(self.dropout(probabilities, training=training), value)
        return context if self.gate is None else self.gate(context)


class _DotProductAttention(Attention):
    """Dense projections and scaled dot products. Arguments as for ``SelfAttention``."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        dropout: float = 0.0,
        stddev: float = 0.02,
        *,
        scale: float | None = None,
        output_stddev: float | None = None,
        use_bias: bool = True,
        positions: Callable | None = None,
        gate: keras.layers.Layer | None = None,
        **kwargs,
    ):
        super().__init__(num_heads, head_size, dropout, gate, **kwargs)
        self.scale = head_size**-0.5 if scale is None else scale
        self.stddev = stddev
        self.output_stddev = output_stddev or stddev
        self.use_bias = use_bias
        self.positions = positions

    def _dense(self, width, name, stddev=None):
        return Dense(
            width,
            use_bias=self.use_bias,
            kernel_initializer=normal(stddev or self.stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    def _build_output(self, x_shape):
        width = self.num_heads * self.head_size
        self.output_dense = self._dense(x_shape[-1], "output", self.output_stddev)
        self.output_dense.build((*x_shape[:-1], width))
        if isinstance(self.positions, keras.layers.Layer) and not self.positions.built:
            self.positions.build((None, self.num_heads, None, self.head_size))
        self._build_gate()

    def _scores(self, query, key, positions=None, scaled=False):
        bias = None
        if self.positions is not None:
            query, key, bias = self.positions(query, key, positions)
        key = ops.transpose(key, (0, 1, 3, 2))  # (batch, heads, head size, keys)
        query = query if scaled else query * self.scale
        scores = ops.matmul(query, key)  # (batch, heads, queries, keys)
        return scores if bias is None else scores + bias

    def _attend(
        self, query, key, value, attention_mask, positions, training, layout=None, scaled=False
    ):
        scores = self._scores(query, key, positions, scaled)
        context = self._context(scores, value, attention_mask, training)
        return self.output_dense(_tokens_of_heads(context, layout)), scores


class SelfAttention(_DotProductAttention):
    """Self-attention, masked by ``attention_mask``.

    Args:
        num_heads, head_size: their product may differ from the width of input and output.
        dropout: the dropout rate of the attention probabilities.
        stddev: the standard deviation of the initial weights.
        scale: the factor of the scores; None for 1/√(head size).
        output_stddev: the standard deviation of the output projection's initial weights; None for
            ``stddev``.
        use_bias: whether the dense layers have biases.
        positions: a function or layer that takes ``(query, key, positions)``, query and key (batch,
            num_heads, length, head size), and returns ``(query, key, bias)``; the bias, or None, is
            added to the scaled scores. See ``bertfam_tf.layers.positions``. None for no positions
            within attention.
        gate: a layer applied to the output of the heads before they are merged, such as
            ``HeadGate``.

    Call:
        x: (batch, length, width).
        attention_mask: boolean, broadcastable to (batch, num_heads, length, length), true where
            a query (third axis) may attend to a key (fourth). A fully masked query gets uniform
            attention.
        positions: the third argument of the layer ``positions``.
        value: (batch, length, any width), the input of the value projection; None for ``x``.
        query: (batch, width), the input of the query projection where one query per example is
            enough; None for ``x``. Not together with ``positions``.
        layout: a ``TokenLayout`` where ``x`` and ``value`` are unpadded, (tokens, width); None
            where they are not.
        groups: the result of ``AttentionGroups``, to compute attention by groups of examples, with
            their masks in place of ``attention_mask``; None to compute the batch at once. Only
            with ``layout``, and not together with ``positions``.
        merged: a function of ``x`` to queries, keys and values side by side, or to keys and values
            with ``query``, in place of the separate dense layers. Queries are scaled, except in
            attention with positions. It has no effect together with ``value``.
        return_scores: whether to return the scores.

    Returns:
        ``(output, scores)``: the output has the shape of ``x``; the scores are scaled, before mask
        and softmax, (batch, num_heads, length, length). With ``query``, the output has its shape,
        and the scores are (batch, num_heads, 1, length). ``(output,)`` if ``return_scores`` is
        false.

    Raises:
        ValueError: if ``query`` or ``groups`` is passed to attention with ``positions``, which
            would not fit them.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        dropout: float = 0.0,
        stddev: float = 0.02,
        **kwargs,
    ):
        super().__init__(num_heads, head_size, dropout, stddev, **kwargs)
        width = num_heads * head_size
        self.query, self.key, self.value = (
            self._dense(width, name) for name in ("query", "key", "value")
        )

    def build(self, x_shape, value_shape=None, query_shape=None):
        self.query.build(x_shape)
        self.key.build(x_shape)
        self.value.build(value_shape or x_shape)
        self._build_output(x_shape)

    def compute_output_shape(self, x_shape, value_shape=None, query_shape=None):
        batch, length = x_shape[:-1] if len(x_shape) == 3 else (None, None)
        if query_shape is not None:
            return query_shape, (query_shape[0], self.num_heads, 1, length)
        return x_shape, (batch, self.num_heads, length, length)

    def call(
        self,
        x,
        attention_mask=None,
        positions=None,
        value=None,
        query=None,
        layout=None,
        groups=None,
        merged=None,
        return_scores=True,
        training=None,
    ):
        if self.positions is not None and (query is not None or groups is not None):
            raise ValueError("Attention with positions accepts neither query nor groups.")
        single = query is not None  # query for each example
        if merged is not None and value is None:
            projected = merged(x)
            count = 2 if single else 3
        else:
            projected = (self.key(x), self.value(x if value is None else value))
            projected = projected if single else (self.query(x), *projected)
            count = 1
        query = self.query(query) if single else None
        unmasked = isinstance(layout, SingleExample) and attention_mask is None
        if unmasked and self.positions is None:
            context, scores = self._single_example(projected, count, query, training)
            output = self.output_dense(context)
            return (output, scores) if return_scores else (output,)
        output = None
        if groups is not None:
            context = self._by_group(projected, count, query, groups, training)
            output = self.output_dense(context)
            if not return_scores:
                return (output,)
        scaled = count == 3 and self.positions is None
        if count > 1:
            projected = ops.split(projected, count, axis=-1)
        key, value = projected[-2:]
        query = query if single else projected[0]
        # each (batch, heads, length or 1, head size)
        key, value = (
            _heads_of_tokens(projected, self.num_heads, layout) for projected in (key, value)
        )
        if single:
            query = ops.reshape(query, (-1, self.num_heads, 1, self.head_size))
        else:
            query = _heads_of_tokens(query, self.num_heads, layout)
        if output is not None:
            return output, self._scores(query, key, scaled=scaled)
        layout = None if single else layout
        output, scores = self._attend(
            query, key, value, attention_mask, positions, training, layout, scaled
        )
        output = output[:, 0] if single else output
        return (output, scores) if return_scores else (output,)

    def _by_group(self, projected, count, query, groups, training):
        """Computes the context of unpadded queries, (tokens, heads · head size) or as ``query``.

        Args:
            projected: (tokens, ``count`` · heads · head size) from ``merged``, or with a ``count``
                of 1 a tuple of separate tensors.
            query: a query for each example, (batch, heads · head size); None if it is the first of
                ``projected``.
        """
        if count > 1:
            projected = zip(*projections_by_group(projected, groups, count), strict=True)
        else:
            if query is None:
                projected = (projected[0] * self.scale, *projected[1:])
            projected = [heads_by_group(x, groups) for x in projected]
        if query is None:
            queries, keys, values = projected
        else:
            query = ops.reshape(query * self.scale, (-1, self.num_heads, 1, self.head_size))
            queries = [take(query, group.examples) for group in groups]
            keys, values = projected
        contexts = [
            self._context(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), v, group.bounds, training)
            for q, k, v, group in zip(queries, keys, values, groups, strict=True)
        ]
        if query is None:
            return tokens_of_groups(contexts, groups)
        context = in_order(contexts, groups)  # (batch, heads, 1, head size)
        return ops.reshape(context, (-1, self.num_heads * self.head_size))

    def _single_example(self, projected, count, query, training):
        """Computes context and scores of one example without a mask; arguments as ``_by_group``."""
        projected = [projected] if count > 1 else projected
        tensors = []
        for x in projected:
            x = ops.reshape(x, (-1, count, self.num_heads, self.head_size))
            # By projection first, so that each is contiguous.
            tensors += ops.unstack(ops.transpose(x, (1, 2, 0, 3)), count)
        if query is not None:
            tensors.insert(0, ops.reshape(query, (self.num_heads, 1, self.head_size)))
        query, key, value = tensors  # (heads, length, head size)
        query = query if count == 3 else query * self.scale
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1)))  # (heads, queries, keys)
        if self.gate is None:
            context = self._context(scores, value, None, training)
        else:
            context = self._context(ops.expand_dims(scores, 0), value, None, training)[0]
        context = ops.transpose(context, (1, 0, 2))  # (queries, heads, head size)
        context = ops.reshape(context, (-1, self.num_heads * self.head_size))
        return context, ops.expand_dims(scores, 0)


class Projections(keras.layers.Layer):
    """Queries, keys and values of a block's ``SelfAttention``, split into heads.

    Args:
        block: the block whose dense layers are used.

    Call:
        x: the input of the block, (batch, length, width), or (tokens, width) with a ``layout``.
        layout: the same as for ``SelfAttention``.

    Returns:
        ``(queries, keys, values)``, each (batch, num_heads, length, head size); queries are not
        scaled.
    """

    def __init__(self, block: keras.layers.Layer, **kwargs):
        super().__init__(**kwargs)
        self.block = block

    def build(self, x_shape):
        pass  # The block owns and builds the layers.

    def call(self, x, layout=None):
        attention = self.block.attention
        x, value = self.block.attention_inputs(x)
        value = x if value is None else value
        projected = (attention.query(x), attention.key(x), attention.value(value))
        return tuple(_heads_of_tokens(tensor, attention.num_heads, layout) for tensor in projected)

    def compute_output_spec(self, x, layout=None):
        batch, length = x.shape[:-1] if len(x.shape) == 3 else (None, None)
        attention = self.block.attention
        shape = (batch, attention.num_heads, length, attention.head_size)
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for _ in range(3))


class CachedSelfAttention(_DotProductAttention):
    """Self-attention with a cache: keys and values of earlier tokens are inputs and outputs.

    One dense layer computes queries, keys and values (GPT, Radford et al. 2018). The mask makes it
    causal. The arguments are the same as for ``SelfAttention``.

    Call:
        x: (batch, length, width).
        cache: ``(keys, values)`` of earlier tokens, both (batch, num_heads, cached length, head
            size); None for no earlier tokens.
        cache_length: the number of positions of ``cache`` that are used, an int32 scalar; keys and
            values are then written after them, into the rest of the cache. None if all are used;
            keys and values are then appended.
        attention_mask: boolean, broadcastable to (batch, num_heads, length, keys), where keys are
            cached length + length, or the length of a cache that is written to.
        positions: the third argument of the layer ``positions``, which gets all keys.

    Returns:
        ``(output, scores, cache)``: the first two are the same as from ``SelfAttention``; the cache
        is the keys and values of all tokens, for the next call.
    """

    def __init__(self, num_heads, head_size, dropout=0.0, stddev=0.02, **kwargs):
        super().__init__(num_heads, head_size, dropout, stddev, **kwargs)
        self.query_key_value = self._dense(3 * num_heads * head_size, "query_key_value")

    def build(self, x_shape):
        self.query_key_value.build(x_shape)
        self._build_output(x_shape)

    def compute_output_shape(self, x_shape):
        batch, length, _ = x_shape
        cached = (batch, self.num_heads, None, self.head_size)
        return x_shape, (batch, self.num_heads, length, None), (cached, cached)

    def call(
        self,
        x,
        cache=None,
        cache_length=None,
        attention_mask=None,
        positions=None,
        training=None,
    ):
        projected = ops.split(self.query_key_value(x), 3, axis=-1)
        query, key, value = (split_heads(tensor, self.num_heads) for tensor in projected)
        if cache_length is not None:
            key, value = (
                write(buffer, new, cache_length, axis=2)
                for buffer, new in zip(cache, (key, value), strict=True)
            )
        elif cache is not None:
            key = ops.concatenate([cache[0], key], axis=2)  # (batch, heads, keys, head size)
            value = ops.concatenate([cache[1], value], axis=2)  # (batch, heads, keys, head size)
        output, scores = self._attend(query, key, value, attention_mask, positions, training)
        return output, scores, (key, value)

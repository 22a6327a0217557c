"""Gradient accumulation: a step needs the memory of one micro-batch, and updates as a full batch.

Keras' ``gradient_accumulation_steps`` averages the means of several batches, so a batch with few
labels counts as much as one with many, and it fails in replicas (keras#20582). Here a batch is
split, and its sums are divided by the counts of the full batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from bertfam_tf.training import replicas

if keras.backend.backend() == "tensorflow":  # where models accumulate
    import tensorflow as tf


def split(data: Any, parts: int) -> tuple[Any, Callable[[Any], Any]]:
    """Splits a batch, or a replica's shard of it, into micro-batches of consecutive rows.

    Args:
        data: tensors with the same number of rows, in any structure; None is kept.
        parts: the number of micro-batches, at least one; fewer if there are fewer rows.

    Returns:
        The number of micro-batches, an int32 scalar, all but the last with the same number of rows;
        and a function from the index of a micro-batch to its data.
    """
    tensors = [x for x in keras.tree.flatten(data) if x is not None]
    rows = tf.shape(tensors[0])[0]
    checks = [
        tf.debugging.assert_equal(tf.shape(x)[0], rows, "Tensors of a batch need equal rows.")
        for x in tensors[1:]
    ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        size = tf.maximum(-(-rows // parts), 1)

    def micro_batch(index: Any) -> Any:
        return keras.tree.map_structure(
            lambda x: x if x is None else x[index * size : (index + 1) * size], data
        )

    return tf.maximum(-(-rows // size), 1), micro_batch


def total_counts(
    counts: Callable[[Any], Mapping[str, Any]], names: list[str], number: Any
) -> dict[str, Any]:
    """Sums counts over all micro-batches and replicas.

    Args:
        counts: returns the counts of a micro-batch by name. TensorFlow prunes operations that they
            do not depend on from the graph.
        names: the names of the counts.
        number: the number of micro-batches.
    """

    def body(index: Any, sums: tuple) -> tuple:
        new = counts(index)
        added = (x + tf.cast(new[n], "float32") for n, x in zip(names, sums, strict=True))
        return index + 1, tuple(added)

    _, sums = tf.while_loop(
        lambda index, _: index < number,
        body,
        (tf.constant(0), tuple(tf.zeros(()) for _ in names)),
        parallel_iterations=1,
    )
    return {name: replicas.total(x) for name, x in zip(names, sums, strict=True)}


def summed_gradients(
    loss: Callable[[Any], Any], variables: list[keras.Variable], number: Any
) -> list[Any]:
    """Sums the gradients of all micro-batches.

    Args:
        loss: returns the loss of a micro-batch, a scalar.
        variables: the variables to differentiate by.
        number: the number of micro-batches.

    Returns:
        A dense gradient for each variable; None for variables that the loss does not depend on.
    """
    reached = [False] * len(variables)

    def body(index: Any, sums: tuple) -> tuple:
        with tf.GradientTape() as tape:
            value = loss(index)
        added = []
        for i, gradient in enumerate(tape.gradient(value, variables)):
            reached[i] = gradient is not None
            # An embedding's gradient has a slice for each token that was looked up.
            dense = 0 if gradient is None else tf.convert_to_tensor(gradient)
            added.append(sums[i] if gradient is None else sums[i] + tf.cast(dense, sums[i].dtype))
        return index + 1, tuple(added)

    _, sums = tf.while_loop(
        lambda index, _: index < number,
        body,
        (tf.constant(0), tuple(tf.zeros(v.shape, v.dtype) for v in variables)),
        parallel_iterations=1,
    )
    return [x if has_gradient else None for x, has_gradient in zip(sums, reached, strict=True)]

"""A training step in parts: as much memory as one part needs, the gradients of the whole batch.

Keras' ``gradient_accumulation_steps`` takes the mean of several batches' means, in which a batch of
few labels counts as much as one of many, and fails in replicas (keras#20582). Here a batch is
split, and its sums are divided by the counts of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from bertfam_tf.training import replicas


def split(data: Any, parts: int) -> tuple[Any, Callable[[Any], Any]]:
    """Splits a batch, or a replica's part of it, into parts of consecutive rows.

    Args:
        data: tensors with the same number of rows, in any structure; None is kept.
        parts: their number, if there are as many rows; at least one.

    Returns:
        The number of parts, an int32 scalar, all but the last with the same number of rows; and a
        function from the index of a part to its data.
    """
    import tensorflow as tf

    tensors = [each for each in keras.tree.flatten(data) if each is not None]
    rows = tf.shape(tensors[0])[0]
    same = [
        tf.debugging.assert_equal(tf.shape(each)[0], rows, "Parts of a batch need equal rows.")
        for each in tensors[1:]
    ]
    with tf.control_dependencies([each for each in same if each is not None]):
        size = tf.maximum(-(-rows // parts), 1)

    def part(index: Any) -> Any:
        return keras.tree.map_structure(
            lambda x: x if x is None else x[index * size : (index + 1) * size], data
        )

    return tf.maximum(-(-rows // size), 1), part


def total_counts(
    counts: Callable[[Any], Mapping[str, Any]], names: list[str], number: Any
) -> dict[str, Any]:
    """The counts of a batch: of all parts, and of all replicas.

    Args:
        counts: from the index of a part to its counts by name. What they do not depend on is not
            computed: TensorFlow removes it from the graph.
        names: of the counts.
        number: of parts.
    """
    import tensorflow as tf

    def body(index: Any, sums: tuple) -> tuple:
        found = counts(index)
        added = (x + tf.cast(found[n], "float32") for n, x in zip(names, sums, strict=True))
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
    """The sum of the gradients of all parts.

    Args:
        loss: from the index of a part to a scalar.
        variables: what gradients are of.
        number: of parts.

    Returns:
        A dense gradient for each variable, None where there is none.
    """
    import tensorflow as tf

    reached = [False] * len(variables)

    def body(index: Any, sums: tuple) -> tuple:
        with tf.GradientTape() as tape:
            value = loss(index)
        added = []
        for i, gradient in enumerate(tape.gradient(value, variables)):
            reached[i] = gradient is not None
            # That of an embedding has a slice for each token that was looked up.
            dense = 0 if gradient is None else tf.convert_to_tensor(gradient)
            added.append(sums[i] if gradient is None else sums[i] + tf.cast(dense, sums[i].dtype))
        return index + 1, tuple(added)

    _, sums = tf.while_loop(
        lambda index, _: index < number,
        body,
        (tf.constant(0), tuple(tf.zeros(v.shape, v.dtype) for v in variables)),
        parallel_iterations=1,
    )
    return [x if found else None for x, found in zip(sums, reached, strict=True)]

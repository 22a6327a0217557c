"""Requests that are answered together, by the graph itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class BatchingOptions:
    """In-graph batching (``tf.nondifferentiable_batch_function``); names as in TensorFlow Serving.

    Rows of requests that arrive at one time are computed as one batch, in any server, without its
    settings; not to be combined with Serving's ``--enable_batching``. A request of more rows than
    the largest allowed batch is split. At low load each request waits for the timeout.

    Args:
        max_batch_size: most rows of one request; more are refused.
        allowed_batch_sizes: batches are filled up to the next of these sizes with copies of a
            row, so that few sizes of tensors arise; the last is the largest batch.
        batch_timeout_micros: how long a batch waits for more rows, in microseconds.
        num_batch_threads: batches that are computed at one time.
        max_enqueued_batches: batches that may wait; requests beyond them are refused.

    Raises:
        ValueError: for numbers below 1 (of the timeout below 0), sizes that do not grow, or one
            above ``max_batch_size``.
    """

    max_batch_size: int = 1024
    allowed_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    batch_timeout_micros: int = 2000
    num_batch_threads: int = 2
    max_enqueued_batches: int = 1000

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "num_batch_threads", "max_enqueued_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more.")
        if self.batch_timeout_micros < 0:
            raise ValueError(
                f"batch_timeout_micros is {self.batch_timeout_micros}, expected 0 or more."
            )
        sizes = self.allowed_batch_sizes
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ValueError(
                f"allowed_batch_sizes are {sizes}, expected numbers that grow, from 1."
            )
        if sizes[-1] > self.max_batch_size:
            raise ValueError(
                f"The batch size {sizes[-1]} is above max_batch_size, {self.max_batch_size}."
            )


def batched(
    function: Callable[..., dict[str, tf.Tensor]], name: str, options: BatchingOptions
) -> Callable[..., dict[str, tf.Tensor]]:
    """``function`` on rows of several calls at one time.

    Args:
        function: tensors to tensors by name; dim 0 of all is the batch.
        name: for people who look at the graph.
        options: see there.
    """
    # All functions of one name in a process share a queue, those of other models and versions too
    # where a process loads several with `tf.saved_model.load`, and get each other's rows.
    queue = f"{name}_{uuid.uuid4().hex}"
    shapes: dict[str, tf.TensorShape] = {}

    def recorded(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        answers = function(*tensors)
        shapes.update({key: value.shape for key, value in answers.items()})
        return answers

    together = tf.nondifferentiable_batch_function(
        num_batch_threads=options.num_batch_threads,
        max_batch_size=options.max_batch_size,
        batch_timeout_micros=options.batch_timeout_micros,
        allowed_batch_sizes=list(options.allowed_batch_sizes),
        max_enqueued_batches=options.max_enqueued_batches,
        autograph=False,
    )(recorded)

    def called(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.name_scope(queue):
            answers = together(*tensors)
        return {key: _shaped(value, shapes[key]) for key, value in answers.items()}

    return called


def _shaped(value: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """What comes out of a batch with its shape; of no rows at all it would have one axis."""
    if shape[1:].is_fully_defined():
        return tf.reshape(value, [-1, *shape[1:]])
    value.set_shape(shape)
    return value

"""Batching of concurrent requests inside the exported graph."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from bertfam_tf.validation import check, setting

# Names of prompts are names of signatures, and may have spaces.
_NOT_IN_SCOPES = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class BatchingOptions:
    """In-graph batching (``tf.nondifferentiable_batch_function``); names as in TensorFlow Serving.

    The rows of concurrent requests are computed as one batch, in any server and without settings
    of the server. Do not combine it with Serving's ``--enable_batching``. A request with more rows
    than the largest allowed batch is split. At low load every request waits for the timeout.

    Args:
        max_batch_size: the largest number of rows in one request; larger requests are rejected.
        allowed_batch_sizes: batches are padded to the next of these sizes with copies of a row, so
            that the graph runs on few different shapes; the last is the largest batch.
        batch_timeout_micros: how long a batch waits for more rows, in microseconds.
        num_batch_threads: the number of batches that are computed concurrently.
        max_enqueued_batches: the number of batches that may wait; further requests are rejected.

    Raises:
        ValueError: if a number is below 1 (the timeout below 0), sizes do not increase, or a size
            is above ``max_batch_size``.
    """

    max_batch_size: int = setting(1024, at_least=1)
    allowed_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    batch_timeout_micros: int = setting(2000, at_least=0)
    num_batch_threads: int = setting(2, at_least=1)
    max_enqueued_batches: int = setting(1000, at_least=1)

    def __post_init__(self) -> None:
        check(self)
        sizes = self.allowed_batch_sizes
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"allowed_batch_sizes must be at least 1 and increase, got {sizes}.")
        if sizes[-1] > self.max_batch_size:
            raise ValueError(
                f"The batch size {sizes[-1]} is above max_batch_size, {self.max_batch_size}."
            )


def batch_requests(
    function: Callable[..., dict[str, tf.Tensor]], name: str, options: BatchingOptions
) -> Callable[..., dict[str, tf.Tensor]]:
    """Wraps a function so that it batches concurrent requests.

    Args:
        function: takes tensors, returns tensors by name; dim 0 of all of them is the batch.
        name: a readable part of the queue's name in the graph.
        options: sizes, timeout and queue.
    """
    # All batch functions of one name in a process share a queue. A process that loads several
    # models or versions would otherwise mix up their rows.
    queue = f"batch_{_NOT_IN_SCOPES.sub('_', name)}_{uuid.uuid4().hex}"
    shapes: dict[str, tf.TensorShape] = {}

    def recorded(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        answers = function(*tensors)
        shapes.update({key: value.shape for key, value in answers.items()})
        return answers

    batch_function = tf.nondifferentiable_batch_function(
        num_batch_threads=options.num_batch_threads,
        max_batch_size=options.max_batch_size,
        batch_timeout_micros=options.batch_timeout_micros,
        allowed_batch_sizes=list(options.allowed_batch_sizes),
        max_enqueued_batches=options.max_enqueued_batches,
        autograph=False,
    )(recorded)

    def called(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.name_scope(queue):
            answers = batch_function(*tensors)
        return {key: _shaped(value, shapes[key]) for key, value in answers.items()}

    return called


def _shaped(value: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Restores the static shape, which the output of an empty batch does not have."""
    if shape[1:].is_fully_defined():
        return tf.reshape(value, [-1, *shape[1:]])
    value.set_shape(shape)
    return value

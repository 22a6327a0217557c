"""Batching parameters, and the configuration file that they are read from."""

import dataclasses
import itertools
import os
from typing import Any

from bertfam_serve import text_format
from bertfam_tf.export.runtime.status import ServingError, invalid


@dataclasses.dataclass(frozen=True)
class BatchingParameters:
    """Batching parameters with the names and defaults of TensorFlow Serving.

    Attributes:
        max_batch_size: the largest number of rows in a batch, or in a request if large requests
            are split.
        batch_timeout_micros: how long the first request of a batch waits for others, in
            microseconds.
        max_enqueued_batches: the number of batches that may wait in each queue; further requests
            are refused with UNAVAILABLE.
        num_batch_threads: the number of batches that run concurrently, over all models.
        thread_pool_name: the prefix of the threads' names.
        allowed_batch_sizes: ascending; the last must be ``max_batch_size``. A batch is padded to
            the next of these sizes with copies of a row. Empty allows all sizes.
        pad_variable_length_inputs: whether inputs that differ in dimensions other than the first
            are padded with their first element; otherwise they fail the batch.
        enable_large_batch_splitting: whether a request may be split into several batches.
        max_execution_batch_size: the largest number of rows in a batch if requests are split; 0
            means ``max_batch_size``.

    Raises:
        ServingError: INVALID_ARGUMENT for invalid or inconsistent values.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = dataclasses.field(default_factory=lambda: os.cpu_count() or 1)
    thread_pool_name: str = "batch_threads"
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int = 0

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
            if getattr(self, name) < 1:
                raise invalid(f"{name} must be positive; was {getattr(self, name)}")
        for name in ("batch_timeout_micros", "max_execution_batch_size"):
            if getattr(self, name) < 0:
                raise invalid(f"{name} must be non-negative; was {getattr(self, name)}")
        sizes = (0, *self.allowed_batch_sizes)
        if any(left >= right for left, right in itertools.pairwise(sizes)):
            raise invalid(
                "allowed_batch_sizes entries must be positive and monotonically increasing; "
                f"were {list(self.allowed_batch_sizes)}"
            )
        if self.allowed_batch_sizes and sizes[-1] != self.max_batch_size:
            raise invalid(
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
                f"{sizes[-1]}; expected {self.max_batch_size}"
            )
        if self.enable_large_batch_splitting and self.rows_executed > self.max_batch_size:
            raise invalid(
                "When enable_large_batch_splitting is true, max_batch_size must be greater than "
                f"or equal to max_execution_batch_size; {self.max_batch_size} is less than "
                f"{self.max_execution_batch_size}"
            )

    @property
    def rows_executed(self) -> int:
        """The number of rows of the largest batch that is run."""
        if not self.enable_large_batch_splitting:
            return self.max_batch_size
        return self.max_execution_batch_size or self.max_batch_size


def read_parameters(path: str | os.PathLike[str]) -> BatchingParameters:
    """Reads a file as Serving's ``--batching_parameters_file`` takes it.

    The format is BatchingParameters in protobuf text format, e.g. ``max_batch_size { value: 32 }``.

    Raises:
        ServingError: NOT_FOUND if the file does not exist; INVALID_ARGUMENT if it does not parse
            (with line, column and field), or for invalid or inconsistent values.
    """
    message = text_format.read(path, text_format.message("BatchingParameters"))
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name == "allowed_batch_sizes":
            values[field.name] = tuple(value)
        else:
            values[field.name] = getattr(value, "value", value)
    try:
        return BatchingParameters(**values)
    except ServingError as error:
        raise invalid(f"{error.message} (in {path})") from None

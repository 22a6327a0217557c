"""How requests are batched, and the file that says so."""

import dataclasses
import itertools
import os
from typing import Any

from bertfam_tf.serve import config_text
from bertfam_tf.serve.status import ServingError, invalid


@dataclasses.dataclass(frozen=True)
class BatchingParameters:
    """How requests are batched, under the names and with the defaults of Serving.

    Attributes:
        max_batch_size: rows in a batch at most, and in a request unless those are split.
        batch_timeout_micros: how long the first request of a batch waits for others.
        max_enqueued_batches: batches that wait in each queue; more are refused, UNAVAILABLE.
        num_batch_threads: batches that run at a time, over all models.
        thread_pool_name: begins the threads' names.
        allowed_batch_sizes: ascending, the last being `max_batch_size`; a batch is filled to the
            next of them with copies of a row. Empty allows all.
        pad_variable_length_inputs: requests whose dimensions beyond the first differ are filled
            with their first element, where they would fail the batch otherwise.
        enable_large_batch_splitting: a request may be run in several batches.
        max_execution_batch_size: rows in a batch at most where requests are split; 0 is
            `max_batch_size`.

    Raises:
        ServingError: INVALID_ARGUMENT for values that do not go together.
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
        """Rows of the largest batch that is run."""
        if not self.enable_large_batch_splitting:
            return self.max_batch_size
        return self.max_execution_batch_size or self.max_batch_size


def read_parameters(path: str | os.PathLike[str]) -> BatchingParameters:
    """The parameters in a file such as Serving's `--batching_parameters_file` names.

    It is the protobuf text format of BatchingParameters, e.g. `max_batch_size { value: 32 }`.

    Raises:
        ServingError: NOT_FOUND without the file; INVALID_ARGUMENT, with line, column and field,
            for a mistake in it, and for values that do not go together.
    """
    message = config_text.read(path, config_text.message("BatchingParameters"))
    given: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name == "allowed_batch_sizes":
            given[field.name] = tuple(value)
        else:
            given[field.name] = getattr(value, "value", value)
    try:
        return BatchingParameters(**given)
    except ServingError as error:
        raise invalid(f"{error.message} (in {path})") from None

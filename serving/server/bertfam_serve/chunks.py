"""Runs large requests in chunks of rows, which bounds the memory of a run."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tensorflow.core.framework import tensor_pb2

from bertfam_serve import merging
from bertfam_tf.export.runtime import capi, tensor_protos
from bertfam_tf.export.runtime.servable import Inputs, Servable
from bertfam_tf.export.runtime.status import Code, ServingError

# The largest size of a chunk's inputs, unless a single row is larger: 3,000 to 4,000 tokens.
# TensorFlow checks deadlines between runs rather than within one, and keeps the memory of the
# largest run: eight rows of 512 tokens in MiniLM take seconds and 170 MiB.
_BYTES_PER_RUN = 16 << 10

Arrays = Mapping[str, np.ndarray]


class ChunkedServable(Servable):
    """A servable that runs large requests in chunks of rows.

    Only for models whose outputs for a row do not depend on other rows.
    """

    def __init__(self, session: capi.Session, model: str, *, rows_per_run: int) -> None:
        """Initializes the servable.

        Args:
            session: the session that holds the model.
            model: the model's name.
            rows_per_run: the same as for ``run_in_chunks``.
        """
        super().__init__(session, model)
        self._rows_per_run = rows_per_run

    def run(
        self,
        signature: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> dict[str, np.ndarray]:
        def run(inputs: Inputs, timeout_ms: int) -> list[dict[str, np.ndarray]]:
            whole = super(ChunkedServable, self).run
            return [whole(signature, inputs, outputs=outputs, timeout_ms=timeout_ms)]

        rows = self._rows_per_run
        return run_in_chunks(run, inputs, rows_per_run=rows, timeout_ms=timeout_ms)[0]

    def run_together(
        self, signatures: Sequence[str], inputs: Inputs, *, timeout_ms: int = 0
    ) -> list[dict[str, np.ndarray]]:
        def run(inputs: Inputs, timeout_ms: int) -> list[dict[str, np.ndarray]]:
            whole = super(ChunkedServable, self).run_together
            return whole(signatures, inputs, timeout_ms=timeout_ms)

        rows = self._rows_per_run
        return run_in_chunks(run, inputs, rows_per_run=rows, timeout_ms=timeout_ms)


def run_in_chunks(
    run: Callable[[Inputs, int], list[dict[str, np.ndarray]]],
    inputs: Inputs,
    *,
    rows_per_run: int,
    timeout_ms: int = 0,
) -> list[dict[str, np.ndarray]]:
    """Runs a request in chunks of rows and concatenates the outputs.

    Only for models whose outputs for a row do not depend on other rows. Requests without a common
    number of rows (scalars, inputs of different lengths) run as a whole, and so do requests whose
    outputs do not have one row for each row of the inputs.

    Args:
        run: takes inputs and a timeout in milliseconds (0 means no limit), and returns a list of
            dicts of output name to array.
        inputs: input name to value, (rows, …).
        rows_per_run: the largest number of rows, or strings of one input, in a chunk; chunks of
            long rows have fewer.
        timeout_ms: for all chunks together; 0 means no limit.

    Returns:
        As ``run``, with the rows of all chunks.

    Raises:
        ServingError: DEADLINE_EXCEEDED between two chunks; any error of ``run``.
    """
    deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else math.inf
    arrays = _as_arrays(inputs)
    ends = _chunk_ends(arrays, rows_per_run)
    if len(ends) < 2:
        return run(inputs, timeout_ms)
    answers: list[list[dict[str, np.ndarray]]] = []
    start = 0
    for end in ends:
        chunk = {name: array[start:end] for name, array in arrays.items()}
        outputs = run(chunk, _milliseconds_to(deadline))
        if not _has_row_for_each(outputs, end - start, answers):
            return run(inputs, _milliseconds_to(deadline))
        answers.append(outputs)
        start = end
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*answers, strict=True)
    ]


def _as_arrays(inputs: Inputs) -> dict[str, np.ndarray]:
    """The inputs as arrays; empty if one is not readable, so that TensorFlow reports the error."""
    arrays = {}
    for name, value in inputs.items():
        array = tensor_protos.read(value) if isinstance(value, tensor_pb2.TensorProto) else value
        if array is None:
            return {}
        arrays[name] = array
    return arrays


def _chunk_ends(inputs: Arrays, rows_per_run: int) -> list[int]:
    """The row at which each chunk ends (exclusive); empty if the request has no rows."""
    try:
        rows = merging.rows(inputs)
    except ServingError:
        return []
    # A row of a multiple-choice model has several texts, and each of them is a sequence.
    strings = [math.prod(a.shape[1:]) for a in inputs.values() if a.dtype == object]
    max_rows = max(1, rows_per_run // max([1, *strings]))
    sizes = np.sum([_bytes_of_rows(array) for array in inputs.values()], axis=0).tolist()
    ends, start, total = [], 0, 0
    for row, size in enumerate(sizes):
        if row > start and (row - start == max_rows or total + size > _BYTES_PER_RUN):
            ends.append(row)
            start, total = row, 0
        total += size
    return [*ends, rows]


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return np.full(len(array), array[:1].nbytes)
    if not array.size:
        return np.zeros(len(array), int)
    return np.array([sum(map(len, row.flat)) for row in array.reshape(len(array), -1)])


def _has_row_for_each(
    outputs: list[dict[str, np.ndarray]], rows: int, before: list[list[dict[str, np.ndarray]]]
) -> bool:
    """Whether every output has as many rows as the chunk, in the shape of the chunks before."""
    expected = before[0] if before else outputs
    return all(
        array.shape[:1] == (rows,) and array.shape[1:] == wide[name].shape[1:]
        for some, wide in zip(outputs, expected, strict=True)
        for name, array in some.items()
    )


def _milliseconds_to(deadline: float) -> int:
    if deadline == math.inf:
        return 0
    left = deadline - time.monotonic()
    if left <= 0:
        raise ServingError(Code.DEADLINE_EXCEEDED, "Timed out between two chunks of the request")
    return max(1, int(left * 1000))

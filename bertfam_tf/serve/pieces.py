"""Large requests run in pieces of some rows, so that the memory of a run has a bound."""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
from tensorflow.core.framework import tensor_pb2

from bertfam_tf.serve import arrays, merging
from bertfam_tf.serve.status import Code, ServingError

MAX_ROWS_PER_RUN = 32
# Of an input's texts or numbers in one piece, unless a row has more: some 3,000 to 4,000 tokens.
# TensorFlow heeds a deadline between runs rather than within one, and keeps the memory of the
# largest: eight rows of 512 tokens of MiniLM take seconds and 170 MiB.
_BYTES_PER_RUN = 16 << 10

Arrays = Mapping[str, np.ndarray]
Inputs = Mapping[str, np.ndarray | tensor_pb2.TensorProto]


def run_in_pieces(
    run: Callable[[Inputs, int], list[dict[str, np.ndarray]]],
    inputs: Inputs,
    *,
    rows_per_run: int,
    timeout_ms: int = 0,
) -> list[dict[str, np.ndarray]]:
    """Runs the rows of a request a piece at a time, and joins the answers.

    Only for models whose answer for a row does not depend on the other rows. A request that says
    nothing of rows (scalars, inputs of different length) runs whole, and so does one whose
    outputs turn out not to be one for each row.

    Args:
        run: runs inputs within so many milliseconds (0 is any time), and returns some dicts of
            output name to array.
        inputs: input name to value.
        rows_per_run: at most so many rows, or strings of one input, run at once, and fewer where
            they are long.
        timeout_ms: for all pieces together; 0 is never.

    Raises:
        ServingError: DEADLINE_EXCEEDED between two pieces; whatever `run` raises.
    """
    deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else math.inf
    found = _as_arrays(inputs)
    stops = _stops(found, rows_per_run)
    if len(stops) < 2:
        return run(inputs, timeout_ms)
    answers: list[list[dict[str, np.ndarray]]] = []
    start = 0
    for stop in stops:
        piece = {name: array[start:stop] for name, array in found.items()}
        outputs = run(piece, _milliseconds_to(deadline))
        if not _is_for_each_row(outputs, stop - start, answers):
            return run(inputs, _milliseconds_to(deadline))
        answers.append(outputs)
        start = stop
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*answers, strict=True)
    ]


def _as_arrays(inputs: Inputs) -> dict[str, np.ndarray]:
    """Empty where a message's tensor cannot be read: TensorFlow is to say why."""
    found = {}
    for name, value in inputs.items():
        array = arrays.read(value) if isinstance(value, tensor_pb2.TensorProto) else value
        if array is None:
            return {}
        found[name] = array
    return found


def _stops(inputs: Arrays, rows_per_run: int) -> list[int]:
    """Where each piece ends, as a row's number; empty where the request has no rows."""
    try:
        rows = merging.rows(inputs)
    except ServingError:
        return []
    # A row of a multiple choice has several texts, and each is a sequence for the model.
    strings = [math.prod(a.shape[1:]) for a in inputs.values() if a.dtype == object]
    most = max(1, rows_per_run // max([1, *strings]))
    sizes = np.sum([_bytes_of_rows(array) for array in inputs.values()], axis=0).tolist()
    stops, start, total = [], 0, 0
    for row, size in enumerate(sizes):
        if row > start and (row - start == most or total + size > _BYTES_PER_RUN):
            stops.append(row)
            start, total = row, 0
        total += size
    return [*stops, rows]


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    if array.dtype != object:
        return np.full(len(array), array[:1].nbytes)
    if not array.size:
        return np.zeros(len(array), int)
    return np.array([sum(map(len, row.flat)) for row in array.reshape(len(array), -1)])


def _is_for_each_row(
    outputs: list[dict[str, np.ndarray]], rows: int, before: list[list[dict[str, np.ndarray]]]
) -> bool:
    """Whether every output has a row for each of the piece's, as wide as those before."""
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
        raise ServingError(Code.DEADLINE_EXCEEDED, "Timed out between two pieces of the request")
    return max(1, int(left * 1000))

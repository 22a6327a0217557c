"""Large requests run in pieces of some rows, so that the memory of a run has a bound."""

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from tensorflow.core.framework import tensor_pb2

from bertfam_tf.serve import arrays, merging
from bertfam_tf.serve.status import Code, ServingError

MAX_ROWS_PER_RUN = 64

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
        rows_per_run: at most so many rows, or strings of one input, run at once.
        timeout_ms: for all pieces together; 0 is never.

    Raises:
        ServingError: DEADLINE_EXCEEDED between two pieces; whatever `run` raises.
    """
    deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else math.inf
    found = _as_arrays(inputs)
    size = _rows_of_piece(found, rows_per_run)
    if not size:
        return run(inputs, timeout_ms)
    answers: list[list[dict[str, np.ndarray]]] = []
    for piece in _pieces(found, size):
        outputs = run(piece, _milliseconds_to(deadline))
        if not _is_for_each_row(outputs, len(next(iter(piece.values()))), answers):
            return run(inputs, _milliseconds_to(deadline))
        answers.append(outputs)
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


def _rows_of_piece(inputs: Arrays, rows_per_run: int) -> int:
    """How many rows a piece has; 0 where the request runs whole."""
    try:
        rows = merging.rows(inputs)
    except ServingError:
        return 0
    # A row of a multiple choice has several texts, and each is a sequence for the model.
    strings = [math.prod(a.shape[1:]) for a in inputs.values() if a.dtype == object]
    size = max(1, rows_per_run // max([1, *strings]))
    return size if rows > size else 0


def _pieces(inputs: Arrays, size: int) -> Iterator[Arrays]:
    for start in range(0, merging.rows(inputs), size):
        yield {name: array[start : start + size] for name, array in inputs.items()}


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

"""Requests put together along dimension 0, and their answers taken apart again."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertfam_tf.serve.status import Code, ServingError, invalid

Arrays = Mapping[str, np.ndarray]
_RANKS_PADDED = range(1, 7)


def rows(inputs: Arrays) -> int:
    """The number of rows of a request.

    Raises:
        ServingError: INVALID_ARGUMENT without inputs, for a scalar, and for inputs of different
            numbers of rows.
    """
    if not inputs:
        raise invalid("Batching Run() must have at least one input tensor")
    sizes = set()
    for array in inputs.values():
        if array.ndim == 0:
            raise invalid("Batching Run() input tensors must have at least one dimension")
        sizes.add(len(array))
    if len(sizes) > 1:
        raise invalid("Batching Run() input tensors must have equal 0th-dimension size")
    return sizes.pop()


def allowed_size(size: int, allowed: Sequence[int]) -> int:
    """The smallest allowed size that holds `size` rows; `size` itself where none does."""
    return next((candidate for candidate in allowed if candidate >= size), size)


def merge(requests: Sequence[Arrays], *, size: int, pad: bool) -> dict[str, np.ndarray]:
    """One array for each input: the requests' rows in order, then copies of the last one's first.

    A single request that fills the batch is handed on as it is; otherwise the one copy is that
    into the batch.

    Args:
        requests: input name to array [rows, …], each with a row or more, all of one dtype.
        size: the number of rows that come back.
        pad: fills shorter dimensions, after the first, with the array's first element; its
            values reach the model as if they had been sent.

    Raises:
        ServingError: FAILED_PRECONDITION for dimensions that differ and are not filled;
            INVALID_ARGUMENT for what Serving does not fill: no elements, or more than 6
            dimensions.
    """
    surplus = size - sum(map(rows, requests))
    merged = {}
    for name in requests[0]:
        arrays = [request[name] for request in requests]
        if pad:
            arrays = _fill(name, arrays)
        elif len({array.shape[1:] for array in arrays}) > 1:
            raise _uneven(name)
        if surplus:
            first = arrays[-1][:1]
            arrays.append(np.broadcast_to(first, (surplus, *first.shape[1:])))
        merged[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return merged


def split(outputs: Arrays, sizes: Sequence[int], size: int) -> list[dict[str, np.ndarray]]:
    """The outputs of each request, as views; what is beyond them is dropped.

    Args:
        outputs: output name to array [size, …].
        sizes: rows of each request.
        size: rows of the batch, `sum(sizes)` or more.

    Raises:
        ServingError: FAILED_PRECONDITION for an output with no dimension or other than `size`
            rows.
    """
    for array in outputs.values():
        if array.ndim == 0:
            raise ServingError(Code.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions")
        if len(array) != size:
            raise ServingError(
                Code.FAILED_PRECONDITION,
                "Batched output tensor's 0th dimension does not equal the sum of the "
                "0th dimension sizes of the input tensors",
            )
    answers = []
    start = 0
    for count in sizes:
        answers.append({name: array[start : start + count] for name, array in outputs.items()})
        start += count
    return answers


def _fill(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    if len({array.ndim for array in arrays}) > 1:
        raise _uneven(name)
    if arrays[0].ndim not in _RANKS_PADDED:
        raise invalid("Only tensors with rank from 1 to 6 can be padded.")
    shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
    return [_filled(array, (len(array), *shape)) for array in arrays]


def _filled(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape == shape:
        return array
    if not array.size:
        raise invalid("Got empty tensor in batch of non-empty tensors.")
    filled = np.empty(shape, array.dtype)
    filled[...] = array.flat[0]
    filled[tuple(map(slice, array.shape))] = array
    return filled


def _uneven(name: str) -> ServingError:
    return ServingError(
        Code.FAILED_PRECONDITION,
        f"Tensors with name '{name}' from different tasks have different shapes and padding is "
        "turned off. Set pad_variable_length_inputs to true, or ensure that all tensors with the "
        "same name have equal dimensions starting with the first dim.",
    )

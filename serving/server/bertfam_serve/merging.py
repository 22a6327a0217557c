"""Concatenates requests along dimension 0 to a batch, and splits its outputs again."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertfam_tf.export.runtime.status import Code, ServingError, invalid

Arrays = Mapping[str, np.ndarray]
_RANKS_PADDED = range(1, 7)


def rows(inputs: Arrays) -> int:
    """Returns the number of rows of a request: dimension 0 of its inputs.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no inputs, one of them is a scalar, or their
            numbers of rows differ.
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
    """Returns the smallest allowed size of at least ``size`` rows; ``size`` if there is none."""
    return next((candidate for candidate in allowed if candidate >= size), size)


def merge(requests: Sequence[Arrays], *, size: int, pad: bool) -> dict[str, np.ndarray]:
    """Concatenates the rows of requests, and pads the batch with copies of a row.

    As in Serving, the padding is the first row of the last request. A single request that fills
    the batch is not copied.

    Args:
        requests: for each request, input name to array (rows, …), with at least one row and the
            same dtype in all requests.
        size: the number of rows of the batch.
        pad: whether dimensions other than the first are padded to the longest, with the array's
            first element. The model cannot tell the padding from values that were sent.

    Returns:
        Input name to array (size, …).

    Raises:
        ServingError: FAILED_PRECONDITION for dimensions that differ and are not padded;
            INVALID_ARGUMENT for arrays that Serving does not pad: without elements, or with more
            than 6 dimensions.
    """
    padding = size - sum(map(rows, requests))
    merged = {}
    for name in requests[0]:
        arrays = [request[name] for request in requests]
        if pad:
            arrays = _pad_arrays(name, arrays)
        elif len({array.shape[1:] for array in arrays}) > 1:
            raise _shape_mismatch(name)
        if padding:
            first = arrays[-1][:1]
            arrays.append(np.broadcast_to(first, (padding, *first.shape[1:])))
        merged[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return merged


def split(outputs: Arrays, sizes: Sequence[int], size: int) -> list[dict[str, np.ndarray]]:
    """Splits the outputs of a batch, as views, and drops the padding rows.

    Args:
        outputs: output name to array (size, …).
        sizes: the number of rows of each request.
        size: the number of rows of the batch, at least ``sum(sizes)``.

    Returns:
        For each request, output name to array (rows, …).

    Raises:
        ServingError: FAILED_PRECONDITION for an output that is a scalar or has not ``size`` rows.
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


def _pad_arrays(name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    if len({array.ndim for array in arrays}) > 1:
        raise _shape_mismatch(name)
    if arrays[0].ndim not in _RANKS_PADDED:
        raise invalid("Only tensors with rank from 1 to 6 can be padded.")
    shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
    return [_pad_array(array, (len(array), *shape)) for array in arrays]


def _pad_array(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape == shape:
        return array
    if not array.size:
        raise invalid("Got empty tensor in batch of non-empty tensors.")
    padded = np.empty(shape, array.dtype)
    padded[...] = array.flat[0]
    padded[tuple(map(slice, array.shape))] = array
    return padded


def _shape_mismatch(name: str) -> ServingError:
    return ServingError(
        Code.FAILED_PRECONDITION,
        f"Tensors with name '{name}' from different tasks have different shapes and padding is "
        "turned off. Set pad_variable_length_inputs to true, or ensure that all tensors with the "
        "same name have equal dimensions starting with the first dim.",
    )

"""The JSON of Predict: requests to tensors, outputs to JSON.

TensorFlow Serving accepts the same requests, and answers them with the same layout and number
formats. Error messages are this server's own.
"""

import base64
import binascii
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_serve.json_numbers import format_floats
from bertfam_serve.json_text import (
    TOO_LARGE,
    describe,
    non_empty_array,
    parse,
    quote,
    signature_name,
)
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime.status import ServingError, invalid, unimplemented

# The number of names that an error lists, and of characters of each name.
_MAX_SHOWN = 20
_NO_LIMITS = RequestLimits(sys.maxsize, sys.maxsize, sys.maxsize)

InputMap = Mapping[str, meta_graph_pb2.TensorInfo]
Location = Callable[[Sequence[int]], str]
"""Returns the JSON path of a value, given its index in a tensor, for error messages."""


class PredictRequest(NamedTuple):
    """A decoded request.

    Attributes:
        signature: the signature's name in the request; empty if there is none.
        row: true for the row format ("instances"), false for the columnar format ("inputs"); the
            response has the same format.
        inputs: input name to array with the input's dtype; strings are object arrays of bytes.
    """

    signature: str
    row: bool
    inputs: dict[str, np.ndarray]


# --------------------------------------------------------------------------------- requests


def decode_predict(
    body: bytes, inputs_of: Callable[[str], InputMap], limits: RequestLimits | None = None
) -> PredictRequest:
    """Parses the body of a Predict request.

    Args:
        body: JSON text. Strings may contain bytes that are not UTF-8, as in Serving.
        inputs_of: returns the inputs of a signature by its name, or raises ServingError.
        limits: limits of the request; None for no limits.

    Raises:
        ServingError: INVALID_ARGUMENT for a malformed body; UNIMPLEMENTED for a dtype that is not
            supported in JSON.
    """
    limits = limits or _NO_LIMITS
    limits.check_json(body)
    document = parse(body)
    signature = signature_name(document)
    info = dict(sorted(inputs_of(signature).items()))
    if not info:
        raise invalid(f"The signature {signature!r} has no inputs.")
    row = "instances" in document
    if row == ("inputs" in document):
        raise invalid("The body must have either 'instances' or 'inputs'.")
    if row:
        instances = non_empty_array(document, "instances")
        limits.check_rows(len(instances), "the request")
        try:
            inputs = _from_rows(instances, info)
        except ServingError as error:  # as in Serving, never UNIMPLEMENTED
            raise invalid(error.message) from None
    else:
        inputs = _from_columns(document["inputs"], info)
    limits.check_inputs(inputs)
    return PredictRequest(signature, row, inputs)


def _from_columns(value: Any, info: InputMap) -> dict[str, np.ndarray]:
    if not _is_named(value):
        if len(info) > 1:
            raise invalid(f"'inputs' must be an object with the names {_listed(info)}.")
        (name,) = info
        return {name: _tensor(value, _dtype(info, name), lambda at: f"inputs{_index(at)}")}

    def location(name: str) -> Location:
        return lambda at: f"inputs[{quote(name)}]{_index(at)}"

    tensors = {}
    for name in info:
        if name not in value:
            raise invalid(f"'inputs' has no value for {quote(name)}.")
        tensors[name] = _tensor(value[name], _dtype(info, name), location(name))
    return tensors


def _from_rows(instances: list[Any], info: InputMap) -> dict[str, np.ndarray]:
    is_named = _is_named(instances[0])
    if not is_named and len(info) > 1:
        raise invalid(f"Each of 'instances' must be an object with the names {_listed(info)}.")
    expected = "an object" if is_named else "a value"
    for i, row in enumerate(instances):
        if _is_named(row) != is_named:
            raise invalid(
                f"instances[{i}] is {describe(row)}, expected {expected} as in instances[0]."
            )
        if is_named and row.keys() != info.keys():
            raise invalid(f"instances[{i}] has the names {_listed(row)}, expected {_listed(info)}.")
    if not is_named:
        (name,) = info
        return {name: _tensor(instances, _dtype(info, name), lambda at: f"instances{_index(at)}")}

    def location(name: str) -> Location:
        return lambda at: f"instances{_index(at[:1])}[{quote(name)}]{_index(at[1:])}"

    columns = {name: [row[name] for row in instances] for name in info}
    return {
        name: _tensor(column, _dtype(info, name), location(name))
        for name, column in columns.items()
    }


def _is_named(value: Any) -> bool:
    """Whether a value is an object with inputs by name."""
    return isinstance(value, dict) and not is_base64(value)


def _dtype(info: InputMap, name: str) -> tf.DType:
    return tf.as_dtype(info[name].dtype)


def _listed(names: Iterable[str]) -> str:
    shown = [quote(name[:_MAX_SHOWN]) for name in itertools.islice(names, _MAX_SHOWN)]
    return ", ".join(shown) or "none"


def _index(at: Sequence[int]) -> str:
    return "".join(f"[{i}]" for i in at)


# ------------------------------------------------------------------------ values to arrays


class _Leaf(NamedTuple):
    """The values that a dtype accepts: Python types and the range of integers."""

    types: frozenset[type]
    wide: type
    expected: str
    low: int = 0
    high: int = 0


def _integers(wide: type, low: int, high: int) -> _Leaf:
    return _Leaf(frozenset({int}), wide, f"an integer from {low} to {high}", low, high)


_FLOAT = _Leaf(frozenset({int, float}), np.float64, "a number")
# As in Serving, small integers are parsed as int32 and then cast, so 300 is a valid int8 (44).
_INT32 = _integers(np.int64, -(2**31), 2**31 - 1)
_LEAVES = {
    tf.float32: _FLOAT,
    tf.float64: _FLOAT,
    tf.int8: _INT32,
    tf.uint8: _INT32,
    tf.int16: _INT32,
    tf.int32: _INT32,
    tf.int64: _integers(np.int64, -(2**63), 2**63 - 1),
    tf.uint32: _integers(np.int64, 0, 2**32 - 1),
    tf.uint64: _integers(np.uint64, 0, 2**64 - 1),
    tf.bool: _Leaf(frozenset({bool}), np.bool_, "true or false"),
    tf.string: _Leaf(frozenset({str, dict}), object, 'a string or {"b64": "…"}'),
}
# Other dtypes can only be sent as empty arrays.
_UNSUPPORTED = _Leaf(frozenset(), np.float64, "nothing")
_MAX_DIMENSIONS = 64  # numpy's limit; TensorFlow's is 254


def _tensor(value: Any, dtype: tf.DType, location: Location) -> np.ndarray:
    """Converts a JSON value, a scalar or nested arrays, to an array."""
    if dtype not in _LEAVES:
        _refuse_first_leaf(value, dtype, location)
    leaf = _LEAVES.get(dtype, _UNSUPPORTED)
    # Level by level: this is fast.
    flat: list[Any] = [value]
    shape: list[int] = []
    while flat and type(flat[0]) is list:
        size = len(flat[0])
        if set(map(type, flat)) != {list} or set(map(len, flat)) != {size}:
            wrong = [type(item) is not list or len(item) != size for item in flat]
            raise _misfit(flat, shape, location, wrong, f"{describe(flat[0])} like the first")
        shape.append(size)
        if len(shape) > _MAX_DIMENSIONS:
            raise invalid(f"A tensor may have at most {_MAX_DIMENSIONS} dimensions.")
        flat = list(itertools.chain.from_iterable(flat))
    expected = f"{leaf.expected} ({dtype.name})"
    if not set(map(type, flat)) <= leaf.types:
        wrong = [type(item) not in leaf.types for item in flat]
        raise _misfit(flat, shape, location, wrong, expected)
    if leaf.low != leaf.high and flat and not leaf.low <= min(flat) <= max(flat) <= leaf.high:
        wrong = [not leaf.low <= item <= leaf.high for item in flat]
        raise _misfit(flat, shape, location, wrong, expected)
    if dtype == tf.string:
        return _strings(flat, shape, location)
    try:
        wide: np.ndarray = np.array(flat, leaf.wide)
    except OverflowError:
        raise invalid(f"{location([])} has {TOO_LARGE}.") from None
    with np.errstate(over="ignore"):  # overflow silently becomes infinity
        return wide.astype(dtype.as_numpy_dtype).reshape(shape)


def _refuse_first_leaf(value: Any, dtype: tf.DType, location: Location) -> None:
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    if not isinstance(value, list | dict):
        raise unimplemented(
            f"{location([0] * depth)}: JSON cannot carry tensors of type {dtype.name}."
        )


def _misfit(
    flat: list[Any], shape: Sequence[int], location: Location, wrong: list[bool], expected: str
) -> ServingError:
    """The error for the first wrong value of a level."""
    i = wrong.index(True)
    where = location(_unraveled(i, shape))
    return invalid(f"{where} is {describe(flat[i])}, expected {expected}.")


def _unraveled(i: int, shape: Sequence[int]) -> list[int]:
    return [int(axis) for axis in np.unravel_index(i, shape)]


def _strings(flat: list[Any], shape: Sequence[int], location: Location) -> np.ndarray:
    array = np.empty(len(flat), object)
    for i, item in enumerate(flat):
        try:
            array[i] = encode_text(item) if isinstance(item, str) else decode_base64(item)
        except ServingError as error:
            raise invalid(f"{location(_unraveled(i, shape))}: {error.message}") from None
    return array.reshape(shape)


def encode_text(text: str) -> bytes:
    """Returns the bytes of a JSON string, which need not be UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise invalid("The string has half of a surrogate pair.") from None


def is_base64(value: Any) -> bool:
    """Returns whether a JSON value is of the form {"b64": "…"}."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def decode_base64(value: Any) -> bytes:
    """Returns the bytes of {"b64": "…"}."""
    if not is_base64(value):
        raise invalid('An object in place of a string must be {"b64": "…"}.')
    # Whitespace is ignored. Padding is optional, but must be correct.
    text = "".join(value["b64"].split())
    try:
        if "=" not in text:
            text += "=" * (-len(text) % 4)
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid('The value of "b64" is not base64.') from None


# --------------------------------------------------------------------------------- answers


def encode_predict(outputs: Mapping[str, np.ndarray], row: bool) -> bytes:
    """Returns a Predict response: {"predictions": …} in row format, {"outputs": …} in columnar.

    Args:
        outputs: output name to array; strings are object arrays of bytes. The name of a single
            output is omitted. String outputs whose names end in ``_bytes`` are written as base64.
        row: whether the response is in row format.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no outputs, for a dtype that is not supported
            in JSON, and, in row format, for scalars and outputs with different numbers of rows.
    """
    if not outputs:
        raise invalid("The model returned no outputs.")
    outputs = dict(sorted(outputs.items()))
    text = _rows(outputs) if row else _columns(outputs)
    return text.encode("utf-8", "surrogateescape")


def _rows(outputs: Mapping[str, np.ndarray]) -> str:
    batch = -1
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid(
                f"The output {name!r} is a scalar, which the row format cannot have. "
                "Send 'inputs' instead of 'instances'."
            )
        if batch not in (-1, len(array)):
            raise invalid(
                f"The output {name!r} has {len(array)} rows, expected {batch} as in other outputs. "
                "Send 'inputs' instead of 'instances'."
            )
        batch = len(array)
    several = len(outputs) > 1
    columns = []
    for name, array in outputs.items():
        tokens = _tokens(name, array, depth=array.ndim + 1 + several)
        columns.append(_nest_in_line(tokens, array.shape[1:], batch))
    if not several:
        rows = ", ".join(columns[0])
    else:
        heads = [f"            {quote(name)}: " for name in outputs]
        rows = ",".join(
            "\n        {\n"
            + ",\n".join(head + cell for head, cell in zip(heads, cells, strict=True))
            + "\n        }"
            for cells in zip(*columns, strict=True)
        )
    return f'{{\n    "predictions": [{rows}' + ("\n    ]\n}" if batch else "]\n}")


def _columns(outputs: Mapping[str, np.ndarray]) -> str:
    several = len(outputs) > 1
    cells = [
        _nest_in_lines(
            _tokens(name, array, depth=1 + several + array.ndim), array.shape, 1 + several
        )
        for name, array in outputs.items()
    ]
    if not several:
        return f'{{\n    "outputs": {cells[0]}\n}}'
    members = (f"        {quote(n)}: {cell}" for n, cell in zip(outputs, cells, strict=True))
    return '{\n    "outputs": {\n' + ",\n".join(members) + "\n    }\n}"


def _groups(items: list[str], shape: Sequence[int]) -> Iterator[list[str]]:
    """Groups consecutive items, one group for each innermost list of an array of this shape."""
    size = shape[-1]
    for i in range(math.prod(shape[:-1])):
        yield items[i * size : (i + 1) * size]


def _nest_in_line(items: list[str], shape: Sequence[int], batch: int) -> list[str]:
    full = (batch, *shape)
    while len(full) > 1:
        items = [f"[{', '.join(group)}]" for group in _groups(items, full)]
        full = full[:-1]
    return items


def _nest_in_lines(items: list[str], shape: Sequence[int], depth: int) -> str:
    while shape:
        indent = "\n" + "    " * (depth + len(shape))
        items = [
            f"[{indent}{(',' + indent).join(group)}{indent[:-4]}]" if group else "[]"
            for group in _groups(items, shape)
        ]
        shape = shape[:-1]
    return items[0]


def _tokens(name: str, array: np.ndarray, depth: int) -> list[str]:
    """The elements in order, as JSON; ``depth`` is their nesting level, for base64 objects."""
    flat = array.ravel()
    if array.dtype == object:
        if name.endswith("_bytes"):
            indent = "\n" + "    " * depth
            return [
                f'{{{indent}    "b64": "{base64.b64encode(item).decode()}"{indent}}}'
                for item in flat
            ]
        return [quote(item.decode("utf-8", "surrogateescape")) for item in flat]
    dtype = tf.as_dtype(array.dtype)
    if dtype in (tf.float32, tf.float64):
        return format_floats(flat)
    if dtype == tf.bool:
        return ["true" if item else "false" for item in flat.tolist()]
    if dtype in _LEAVES:
        return list(map(str, flat.tolist()))
    if not flat.size:
        return []
    raise invalid(f"The output {name!r} has the type {dtype.name}, which JSON cannot carry.")

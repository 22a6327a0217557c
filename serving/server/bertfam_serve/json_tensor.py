"""The JSON of Predict: requests to tensors, outputs to JSON.

Serving uses RapidJSON. What clients see of that library (error texts, offsets, layout, number
formats) is reproduced here.
"""

import base64
import binascii
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_serve.json_numbers import format_floats
from bertfam_serve.json_text import (
    TOO_BIG,
    debug_string,
    format_error,
    json_type,
    parse,
    quote,
    signature_name,
)
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime.status import ServingError, invalid, unimplemented

_NO_LIMITS = RequestLimits(sys.maxsize, sys.maxsize, sys.maxsize)

InputMap = Mapping[str, meta_graph_pb2.TensorInfo]


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
    """Parses a Predict body.

    Args:
        body: JSON text. Strings may contain bytes that are not UTF-8, as in Serving.
        inputs_of: returns the inputs of a signature by its name, or raises ServingError.
        limits: limits of the request; None for no limits.

    Raises:
        ServingError: INVALID_ARGUMENT for a malformed body; UNIMPLEMENTED for a dtype that is not
            supported in JSON.
    """
    try:
        return _decode_predict(body, inputs_of, limits or _NO_LIMITS)
    except RecursionError:
        # Serving's parser is not recursive and has no such limit.
        raise invalid("JSON Parse error: The document is nested too deeply.") from None


def _decode_predict(
    body: bytes, inputs_of: Callable[[str], InputMap], limits: RequestLimits
) -> PredictRequest:
    limits.check_json(body)
    document = parse(body)
    signature = signature_name(document)
    info = dict(sorted(inputs_of(signature).items()))
    if not info:
        raise invalid(f"Failed to get input map for signature: {signature or 'DEFAULT'}")
    if "instances" in document and "inputs" in document:
        raise format_error(
            document,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ",
        )
    if "instances" in document:
        instances = document["instances"]
        if not isinstance(instances, list):
            raise format_error(document, "Expecting 'instances' to be an list/array")
        if not instances:
            raise format_error(document, "No values in 'instances' array")
        limits.check_rows(len(instances), "the request")
        return _checked(PredictRequest(signature, True, _from_rows(instances, info)), limits)
    if "inputs" in document:
        inputs = _from_columns(document["inputs"], info)
        return _checked(PredictRequest(signature, False, inputs), limits)
    raise invalid("Missing 'inputs' or 'instances' key")


def _checked(request: PredictRequest, limits: RequestLimits) -> PredictRequest:
    limits.check_inputs(request.inputs)
    return request


# ------------------------------------------------------------------------ values to arrays


class _Leaf(NamedTuple):
    """The Python types that a dtype accepts, and the range of integers."""

    types: frozenset[type]
    wide: type
    low: int = 0
    high: int = 0


def _integers(wide: type, low: int, high: int) -> _Leaf:
    return _Leaf(frozenset({int}), wide, low, high)


# As in Serving, small integers are parsed as int32 and then cast, so 300 is a valid int8 (44).
_INT32 = _integers(np.int64, -(2**31), 2**31 - 1)
_LEAVES = {
    tf.float32: _Leaf(frozenset({int, float}), np.float64),
    tf.float64: _Leaf(frozenset({int, float}), np.float64),
    tf.int8: _INT32,
    tf.uint8: _INT32,
    tf.int16: _INT32,
    tf.int32: _INT32,
    tf.int64: _integers(np.int64, -(2**63), 2**63 - 1),
    tf.uint32: _integers(np.int64, 0, 2**32 - 1),
    tf.uint64: _integers(np.uint64, 0, 2**64 - 1),
    tf.bool: _Leaf(frozenset({bool}), np.bool_),
    tf.string: _Leaf(frozenset({str}), object),
}
_MAX_DIMENSIONS = 64  # numpy's limit; TensorFlow's is 254


def _tensor(value: Any, dtype: tf.DType) -> np.ndarray:
    """Converts a JSON value, a scalar or nested lists, to an array; raises for the first error."""
    array = _uniform_tensor(value, dtype)
    if array is None:
        shape = _shape(value)
        array = _array(list(_leaves(value, dtype, shape)), shape, dtype)
    return array


def _uniform_tensor(value: Any, dtype: tf.DType) -> np.ndarray | None:
    """As `_tensor`, but level by level, which is fast; None if there is any error."""
    leaf = _LEAVES.get(dtype)
    if leaf is None:
        return None
    flat, shape = [value], []
    while flat and type(flat[0]) is list:
        size = len(flat[0])
        if set(map(type, flat)) != {list} or set(map(len, flat)) != {size}:
            return None
        shape.append(size)
        flat = list(itertools.chain.from_iterable(flat))
    if not set(map(type, flat)) <= leaf.types:
        return None
    if leaf.low != leaf.high and flat and not leaf.low <= min(flat) <= max(flat) <= leaf.high:
        return None
    return _array(flat, shape, dtype)


def _array(flat: list[Any], shape: Sequence[int], dtype: tf.DType) -> np.ndarray:
    if len(shape) > _MAX_DIMENSIONS:
        raise invalid(f"A tensor of {len(shape)} dimensions is more than this server handles")
    if dtype == tf.string:
        array = np.empty(len(flat), object)
        array[:] = [item if isinstance(item, bytes) else encode_text(item) for item in flat]
        return array.reshape(shape)
    try:
        wide: np.ndarray = np.array(flat, _LEAVES[dtype].wide)
    except OverflowError:
        raise invalid(f"JSON Parse error: {TOO_BIG}") from None
    with np.errstate(over="ignore"):  # overflow silently becomes infinity
        return wide.astype(dtype.as_numpy_dtype).reshape(shape)


def encode_text(text: str) -> bytes:
    """The bytes of a JSON string, which need not be UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise invalid("JSON Parse error: The surrogate pair in string is invalid.") from None


def _shape(value: Any) -> list[int]:
    """The shape according to the first element of each level."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def _leaves(value: Any, dtype: tf.DType, shape: Sequence[int], level: int = 0) -> Iterator[Any]:
    """Yields the elements in order and checks every value and list size."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {debug_string(value)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {len(shape)}"
            )
        yield _leaf(value, dtype)
        return
    if level >= len(shape):
        raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for item in value:
        yield from _leaves(item, dtype, shape, level + 1)


def _leaf(value: Any, dtype: tf.DType) -> Any:
    leaf = _LEAVES.get(dtype)
    if isinstance(value, dict) and dtype == tf.string:
        return decode_base64(value)
    if leaf is None and not isinstance(value, dict):
        raise unimplemented(
            f"Conversion of JSON Value: {debug_string(value)} to type: {_type_name(dtype)}"
        )
    if (
        leaf is None
        or type(value) not in leaf.types
        or (leaf.low != leaf.high and not leaf.low <= value <= leaf.high)
    ):
        raise invalid(
            f"JSON Value: {debug_string(value)} Type: {json_type(value)} "
            f"is not of expected type: {_type_name(dtype)}"
        )
    return value


def is_base64(value: Any) -> bool:
    """Whether a JSON value is of the form {"b64": "…"}."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def decode_base64(value: Any) -> bytes:
    """The bytes of {"b64": "…"}."""
    if not is_base64(value):
        raise format_error(value, "not formatted correctly for base64 data")
    # Whitespace is ignored. Padding is optional, but must be correct.
    text = "".join(value["b64"].split())
    try:
        if "=" not in text:
            text += "=" * (-len(text) % 4)
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None


def _from_columns(value: Any, info: InputMap) -> dict[str, np.ndarray]:
    if not isinstance(value, dict) or is_base64(value):
        if len(info) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        value = {next(iter(info)): value}
    tensors = {}
    for name in info:
        if name not in value:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
        tensors[name] = _tensor(value[name], _dtype(info, name))
    return tensors


def _from_rows(instances: list[Any], info: InputMap) -> dict[str, np.ndarray]:
    if not isinstance(instances[0], dict) and len(info) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    return _from_uniform_rows(instances, info) or _from_checked_rows(instances, info)


def _from_uniform_rows(instances: list[Any], info: InputMap) -> dict[str, np.ndarray] | None:
    """As `_from_checked_rows`, but column by column, which is fast; None if there is any error."""
    if not isinstance(instances[0], dict):
        columns = {next(iter(info)): instances}
    elif all(isinstance(row, dict) and row.keys() == info.keys() for row in instances):
        columns = {name: [row[name] for row in instances] for name in info}
    else:
        return None
    tensors = {}
    for name, column in columns.items():
        tensor = _uniform_tensor(column, _dtype(info, name))
        if tensor is None:
            return None
        tensors[name] = tensor
    return tensors


def _from_checked_rows(instances: list[Any], info: InputMap) -> dict[str, np.ndarray]:
    def is_named(row: Any) -> bool:
        return isinstance(row, dict) and not is_base64(row)

    named = is_named(instances[0])
    columns: dict[str, list[np.ndarray]] = {}
    for position, row in enumerate(instances):
        if named and not is_named(row):
            raise invalid(f"Expecting object but got list at item {position} of input list")
        if not named and is_named(row):
            raise invalid(f"Expecting value/list but got object at item {position} of input list")
        for name, value in (row if named else {next(iter(info)): row}).items():
            try:
                _add_row(value, name, info, columns)
            except ServingError as error:
                key = f" key: {name}" if named else ""
                raise invalid(
                    f"Failed to process element: {position}{key} of 'instances' list. "
                    f"Error: {error}"
                ) from None
        if named and row.keys() != info.keys():
            raise invalid(
                f"Failed to process element: {position} of 'instances' list. JSON object: "
                f"{debug_string(row)} keys must be equal to: {','.join(info)}"
            )
    return {name: np.stack(rows) for name, rows in columns.items()}


def _add_row(value: Any, name: str, info: InputMap, columns: dict[str, list[np.ndarray]]) -> None:
    if name not in info:
        raise invalid(f"JSON object: does not have named input: {name}")
    row = _tensor(value, _dtype(info, name))
    rows = columns.setdefault(name, [])
    rows.append(row)
    if rows[0].size != row.size:
        raise invalid(f"Expecting tensor size: {rows[0].size} but got: {row.size}")
    if rows[0].shape != row.shape:
        raise invalid(f"Expecting shape {_shape_string(rows[0])} but got: {_shape_string(row)}")


def _dtype(info: InputMap, name: str) -> tf.DType:
    return tf.as_dtype(info[name].dtype)


def _shape_string(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


_CPP_NAMES = {tf.float16: "half", tf.float32: "float", tf.float64: "double"}


def _type_name(dtype: tf.DType) -> str:
    return _CPP_NAMES.get(dtype, dtype.name)


# --------------------------------------------------------------------------------- answers


def encode_predict(outputs: Mapping[str, np.ndarray], row: bool) -> bytes:
    """Formats a Predict response: {"predictions": …} in row format, {"outputs": …} in columnar.

    Args:
        outputs: output name to array; strings are object arrays of bytes. The name of a single
            output is omitted. String outputs whose names end in `_bytes` are written as base64.
        row: whether the response is in row format.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no outputs, for a dtype that is not supported
            in JSON, and, in row format, for scalars and outputs with different numbers of rows.
    """
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    outputs = dict(sorted(outputs.items()))
    text = _rows(outputs) if row else _columns(outputs)
    return text.encode("utf-8", "surrogateescape")


def encode_error(message: str) -> bytes:
    """The body of an error response."""
    return f'{{\n    "error": {quote(message)}\n}}'.encode("utf-8", "replace")


def _rows(outputs: Mapping[str, np.ndarray]) -> str:
    batch = -1
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if batch not in (-1, len(array)):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {batch}"
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
    """The elements in order, as JSON; `depth` is their nesting level, for base64 objects."""
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
    raise invalid(f"Failed to write JSON value for tensor type: {_type_name(dtype)}")

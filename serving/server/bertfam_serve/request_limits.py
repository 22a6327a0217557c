"""Limits on the rows, text and JSON values of a request, checked before tensors are created.

Each error names the limit and the flag of ``bertfam serve`` that raises it. The fields of
``bertfam_serve.Options`` have the same names as the flags.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import input_pb2

from bertfam_tf.export.runtime import capi
from bertfam_tf.export.runtime.servable import Inputs
from bertfam_tf.export.runtime.status import ServingError, invalid

_STRING = tf.string.as_datatype_enum
_CHUNK = 1 << 20
_QUOTE, _SEPARATORS = ord('"'), tuple(b",[{")


@dataclasses.dataclass(frozen=True)
class RequestLimits:
    """Limits of one request over REST or gRPC.

    Attributes:
        max_rows: the largest number of rows (dimension 0) of an input, and of strings in it.
        max_text_bytes: the size of all strings together, including serialized tf.Examples.
        max_json_values: the number of values in a REST body, including lists and objects.
    """

    max_rows: int = 4096
    # The slowest kind of text takes the slowest tokenizer 2.6 s per MiB on one busy core.
    max_text_bytes: int = 1 << 19
    # Python's JSON parser blocks other threads: 0.05 s for a million numbers, 0.3 s for lists.
    max_json_values: int = 1_000_000

    def check_inputs(self, inputs: Inputs) -> None:
        """Checks the rows and the text of all inputs.

        Args:
            inputs: input name to array or proto.

        Raises:
            ServingError: INVALID_ARGUMENT for too many rows or too much text.
        """
        text = 0
        for name, value in inputs.items():
            if isinstance(value, tensor_pb2.TensorProto):
                rows, size = _proto_size(value)
            else:
                rows, size = _array_size(value)
            self.check_rows(rows, f'input "{name}"')
            text += size
        self._check_text(text)

    def check_examples(self, request_input: input_pb2.Input) -> None:
        """Checks tf.Examples as ``check_inputs`` does; the context counts once for each example."""
        context = 0
        examples = request_input.example_list.examples
        if request_input.WhichOneof("kind") == "example_list_with_context":
            examples = request_input.example_list_with_context.examples
            context = request_input.example_list_with_context.context.ByteSize()
        self.check_rows(len(examples), "the request")
        self._check_text(sum(example.ByteSize() + context for example in examples))

    def check_json(self, body: bytes) -> None:
        """Checks the number of values in a JSON text without parsing it.

        Unlike the parser, counting does not block other threads.

        Raises:
            ServingError: INVALID_ARGUMENT for too many values.
        """
        if len(body) <= self.max_json_values:  # each value takes at least a byte
            return
        count = _count_values(body)
        if count > self.max_json_values:
            raise _limit_exceeded(f"{count} JSON values", self.max_json_values, "--max-json-values")

    def check_rows(self, rows: int, where: str) -> None:
        """Checks a number of rows or strings; ``where`` names the input for the error.

        Raises:
            ServingError: INVALID_ARGUMENT for too many rows.
        """
        if rows > self.max_rows:
            raise _limit_exceeded(f"{rows} rows in {where}", self.max_rows, "--max-rows")

    def _check_text(self, size: int) -> None:
        if size > self.max_text_bytes:
            raise _limit_exceeded(f"{size} bytes of text", self.max_text_bytes, "--max-text-bytes")


def _limit_exceeded(what: str, limit: int, flag: str) -> ServingError:
    return invalid(
        f"{what}: this server takes at most {limit} in one request. Send several requests, "
        f"or start the server with a higher {flag}."
    )


def _array_size(array: np.ndarray) -> tuple[int, int]:
    """The number of rows, or of strings, of an array, and the size of its strings in bytes."""
    if array.dtype != object:
        return _rows(array.shape), 0
    return array.size, sum(map(len, array.flat))


def _proto_size(proto: tensor_pb2.TensorProto) -> tuple[int, int]:
    """As ``_array_size``, for the tensor that a proto declares; the last string fills the rest."""
    if capi.declares_too_much(proto):
        return 0, 0  # refused later, with Serving's text
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.dtype != _STRING:
        return _rows(shape), 0
    strings = proto.string_val
    number = len(strings)
    if min(shape, default=0) >= 0:
        number = max(number, math.prod(shape))
    size = sum(map(len, strings)) + len(proto.tensor_content)
    if strings:
        size += (number - len(strings)) * len(strings[-1])
    return number, size


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if len(shape) else 0


def _count_values(body: bytes) -> int:
    """An upper bound of the number of JSON values: commas and brackets outside of strings."""
    count, inside, escape = 1, 0, b""
    for start in range(0, len(body), _CHUNK):
        chunk = escape + body[start : start + _CHUNK]
        # An escape sequence may continue in the next chunk.
        content = chunk.rstrip(b"\\")
        escape = b"\\" * ((len(chunk) - len(content)) % 2)
        # Pairs of backslashes first: a quote after them is not escaped.
        codes = np.frombuffer(content.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if not codes.size:
            continue
        quotes = np.cumsum(codes == _QUOTE, dtype=np.uint8) + np.uint8(inside)
        inside = int(quotes[-1]) % 2
        separates = np.logical_or.reduce([codes == code for code in _SEPARATORS])
        count += int(np.count_nonzero(separates & (quotes % 2 == 0)))
    return count

"""What one request may ask for: rows, text, JSON values. Counted before any of it becomes tensors.

Each error names the limit and the flag of `bertfam serve` that raises it; the fields of
`serve.Options` have the flags' names.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import input_pb2

from bertfam_tf.serve import capi
from bertfam_tf.serve.servable import Inputs
from bertfam_tf.serve.status import ServingError, invalid

_STRING = tf.string.as_datatype_enum
_CHUNK = 1 << 20
_QUOTE, _SEPARATORS = ord('"'), tuple(b",[{")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one request, over REST and gRPC alike.

    Attributes:
        max_rows: rows (dimension 0) of any input, and strings of any input of strings.
        max_text_bytes: bytes of all strings together, serialized tf.Examples among them.
        max_json_values: values in the JSON of a REST body, lists and objects counted too.
    """

    max_rows: int = 4096
    # Tokenizing 1 MiB of text takes a core some 2 s.
    max_text_bytes: int = 4 << 20
    # Python's parser lets no other thread run: some 0.05 s for a million numbers, 0.3 s for lists.
    max_json_values: int = 1_000_000

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ServingError, INVALID_ARGUMENT, for inputs with too many rows or too much text."""
        text = 0
        for name, value in inputs.items():
            if isinstance(value, tensor_pb2.TensorProto):
                rows, size = _declared(value)
            else:
                rows, size = _held(value)
            self.check_rows(rows, f'input "{name}"')
            text += size
        self._check_text(text)

    def check_examples(self, given: input_pb2.Input) -> None:
        """As `check_inputs`, of tf.Examples; a context counts once for each of them."""
        context = 0
        examples = given.example_list.examples
        if given.WhichOneof("kind") == "example_list_with_context":
            examples = given.example_list_with_context.examples
            context = given.example_list_with_context.context.ByteSize()
        self.check_rows(len(examples), "the request")
        self._check_text(sum(example.ByteSize() + context for example in examples))

    def check_json(self, body: bytes) -> None:
        """Raises ServingError, INVALID_ARGUMENT, for JSON with too many values.

        Others run meanwhile, which they do not while JSON is parsed.
        """
        if len(body) <= self.max_json_values:  # a value takes a byte or more
            return
        count = _count_values(body)
        if count > self.max_json_values:
            raise _too_much(f"{count} JSON values", self.max_json_values, "--max-json-values")

    def check_rows(self, rows: int, where: str) -> None:
        """Raises ServingError, INVALID_ARGUMENT, for so many rows, or strings, in `where`."""
        if rows > self.max_rows:
            raise _too_much(f"{rows} rows in {where}", self.max_rows, "--max-rows")

    def _check_text(self, size: int) -> None:
        if size > self.max_text_bytes:
            raise _too_much(f"{size} bytes of text", self.max_text_bytes, "--max-text-bytes")


def _too_much(what: str, limit: int, flag: str) -> ServingError:
    return invalid(
        f"{what}: this server takes {limit} at most in one request. Send several requests, "
        f"or start the server with a higher {flag}."
    )


def _held(array: np.ndarray) -> tuple[int, int]:
    """Rows of an array, and bytes of its strings."""
    if array.dtype != object:
        return _rows(array.shape), 0
    return array.size, sum(map(len, array.flat))


def _declared(proto: tensor_pb2.TensorProto) -> tuple[int, int]:
    """Rows of a message's tensor, and bytes of its strings, the last of which fills the rest."""
    if capi.declares_too_much(proto):
        return 0, 0  # refused for that, with Serving's text
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
    """How many values a JSON text has at most: one for each comma and bracket outside strings."""
    count, inside, escape = 1, 0, b""
    for start in range(0, len(body), _CHUNK):
        chunk = escape + body[start : start + _CHUNK]
        # An escape may go on in the next chunk.
        content = chunk.rstrip(b"\\")
        escape = b"\\" * ((len(chunk) - len(content)) % 2)
        # Pairs first: the quote after \\ is not escaped.
        codes = np.frombuffer(content.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if not codes.size:
            continue
        quotes = np.cumsum(codes == _QUOTE, dtype=np.uint8) + np.uint8(inside)
        inside = int(quotes[-1]) % 2
        count += int(np.count_nonzero(_any_of(codes, _SEPARATORS) & (quotes % 2 == 0)))
    return count


def _any_of(codes: np.ndarray, wanted: Iterable[int]) -> Any:
    return np.logical_or.reduce([codes == code for code in wanted])

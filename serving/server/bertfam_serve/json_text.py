"""Parses the JSON documents that TensorFlow Serving's parser accepts."""

import gc
import json
import math
import re
from json.encoder import encode_basestring as quote
from typing import Any

from bertfam_tf.export.runtime.status import invalid

# The closing quote is optional, so that unterminated strings do not take quadratic time.
_STRING_OR_SHORT_NAME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|-NaN|-?Inf(?:inity)?', re.DOTALL)
_SHORT_NAMES = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}
TOO_LARGE = "a number that is too large for a 64-bit float"
_MAX_SHOWN = 100


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(TOO_LARGE)
    return value


_DECODER = json.JSONDecoder(parse_float=_float)


def parse(body: bytes) -> dict[str, Any]:
    """Parses the JSON object at the start of a body; text after it is ignored.

    NaN, Inf and Infinity are numbers, with or without a minus sign. Bytes in strings that are not
    UTF-8 become lone surrogates (``surrogateescape``).

    Raises:
        ServingError: INVALID_ARGUMENT, with the byte at which the body is not JSON.
    """
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    try:
        try:
            document = _decoded(text)
        except json.JSONDecodeError as error:
            if not text.startswith(tuple(_SHORT_NAMES), error.pos):
                raise
            # Names that Python does not accept.
            text = _STRING_OR_SHORT_NAME.sub(lambda m: _SHORT_NAMES.get(m[0], m[0]), text)
            document = _decoded(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8", "surrogateescape"))
        raise invalid(f"The body is not JSON: {error.msg} (byte {offset}).") from None
    except ValueError:  # also for an integer with more digits than Python converts
        raise invalid(f"The body has {TOO_LARGE}.") from None
    except RecursionError:
        # Serving's parser has no such limit.
        raise invalid("The body is nested too deeply.") from None
    if not isinstance(document, dict):
        raise invalid(f"The body must be a JSON object, got {describe(document)}.")
    return document


def _decoded(text: str) -> Any:
    # Garbage collection would make creating half a million lists ten times slower, and other
    # threads are blocked meanwhile. JSON has no reference cycles.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = len(text) - len(text.lstrip(" \t\n\r"))
        return _DECODER.raw_decode(text, start)[0]
    finally:
        if was_enabled:
            gc.enable()


def signature_name(document: dict[str, Any]) -> str:
    """Returns the signature's name in a request; empty if there is none.

    Raises:
        ServingError: INVALID_ARGUMENT if it is not a string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"'signature_name' must be a string, got {describe(name)}.")
    return name


def non_empty_array(document: dict[str, Any], name: str) -> list[Any]:
    """Returns an array of a request.

    Raises:
        ServingError: INVALID_ARGUMENT if it is missing, empty or of another type.
    """
    value = document.get(name)
    if not isinstance(value, list) or not value:
        got = describe(value) if name in document else "none"
        raise invalid(f"{name!r} must be a non-empty array, got {got}.")
    return value


def describe(value: Any) -> str:
    """Returns a JSON value as an error message shows it: shortened, and without nested values."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}" if value else "an empty array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def encode_error(message: str) -> bytes:
    """Returns the body of an error response."""
    return f'{{\n    "error": {quote(message)}\n}}'.encode("utf-8", "replace")

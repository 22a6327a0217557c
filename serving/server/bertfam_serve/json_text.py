"""Parses JSON, and formats values for error messages, as RapidJSON does in Serving."""

import gc
import json
import math
import re
from collections.abc import Iterator
from json.encoder import encode_basestring as quote
from typing import Any

import numpy as np

from bertfam_serve.status import ServingError, invalid

_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid escape character in string.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
}
_IN_ARRAY = "Missing a comma or ] after an array element."
_IN_OBJECT = "Missing a comma or } after an object member."
TOO_BIG = "Number too big to be stored in double."

# The closing quote is optional, so that unterminated strings do not take quadratic time.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"?'
_STRING_OR_BRACKET = re.compile(rf"{_STRING}|[\[\]{{}}]", re.DOTALL)
_STRING_OR_SHORT_NAME = re.compile(rf"{_STRING}|-NaN|-?Inf(?:inity)?", re.DOTALL)
_SHORT_NAMES = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}


class _TooBig(Exception):
    pass


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _TooBig
    return value


_DECODER = json.JSONDecoder(parse_float=_float)


def parse(body: bytes) -> dict[str, Any]:
    """Parses the JSON object at the start of a body; text after it is ignored.

    Bytes in strings that are not UTF-8 become lone surrogates (`surrogateescape`).

    Raises:
        ServingError: INVALID_ARGUMENT, with RapidJSON's text and byte offset.
        RecursionError: for more than about a thousand levels of nesting.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    text = body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    start = len(text) - len(text.lstrip(" \t\n\r"))
    if start == len(text):
        raise _parse_error("The document is empty.", text, start)
    try:
        try:
            document = _decoded(text, start)
        except json.JSONDecodeError as error:
            if not text.startswith(tuple(_SHORT_NAMES), error.pos):
                raise
            # RapidJSON accepts three more names of non-finite numbers than Python.
            renamed = _STRING_OR_SHORT_NAME.sub(lambda m: _SHORT_NAMES.get(m[0], m[0]), text)
            document = _decoded(renamed, start)
    except json.JSONDecodeError as error:
        if error.msg == "Expecting ',' delimiter":
            reason = _IN_ARRAY if _innermost(text[: error.pos]) == "[" else _IN_OBJECT
        else:
            reason = _PARSE_ERRORS.get(error.msg, "Invalid value.")
        position = error.pos
        if error.msg.startswith("Illegal trailing comma"):
            # Python 3.13 reports the comma; RapidJSON, as older versions, what follows it.
            after = text[position + 1 :]
            position = len(text) - len(after.lstrip(" \t\n\r"))
        raise _parse_error(reason, text, position) from None
    except (_TooBig, ValueError):  # ValueError: an integer with more digits than Python converts
        raise _parse_error(TOO_BIG, text, start) from None
    if not isinstance(document, dict):
        raise format_error(document, "Is not object")
    return document


def _decoded(text: str, start: int) -> Any:
    # Garbage collection would make creating half a million lists ten times slower, and other
    # threads are blocked meanwhile. JSON has no reference cycles.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _DECODER.raw_decode(text, start)[0]
    finally:
        if was_enabled:
            gc.enable()


def signature_name(document: dict[str, Any]) -> str:
    """The signature's name in a request; empty if there is none.

    Raises:
        ServingError: INVALID_ARGUMENT if it is not a string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise format_error(
            document, "not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def _parse_error(reason: str, text: str, position: int) -> ServingError:
    offset = len(text[:position].encode("utf-8", "surrogateescape"))
    return invalid(f"JSON Parse error: {reason} at offset: {offset}")


def _innermost(text: str) -> str:
    """The innermost bracket that is open at the end of `text`."""
    open_brackets = [""]
    for token in _STRING_OR_BRACKET.findall(text):
        if token in "[{":
            open_brackets.append(token)
        elif token in "]}":
            open_brackets.pop()
    return open_brackets[-1]


def json_type(value: Any) -> str:
    """RapidJSON's name for the type of a value."""
    if isinstance(value, bool):
        return str(value)
    names = {dict: "Object", list: "Array", str: "String", type(None): "Null"}
    return names.get(type(value), "Number")


def format_error(value: Any, reason: str) -> ServingError:
    """An INVALID_ARGUMENT error that quotes a JSON value."""
    return invalid(f"JSON Value: {debug_string(value)} {reason}")


_DEBUG_BYTES = 256


def debug_string(value: Any) -> str:
    """Formats a value as Serving quotes it in errors.

    As in Serving, no token is added once the text has 256 bytes. Unlike in Serving, a token with
    more than 256 characters is truncated too.
    """
    tokens: list[str] = []
    size = 0
    for token in _debug_tokens(value, 0):
        tokens.append(token if len(token) <= _DEBUG_BYTES else token[:_DEBUG_BYTES] + "…")
        size += len(token.encode("utf-8", "replace"))
        if size >= _DEBUG_BYTES:
            break
    return "".join(tokens)


def _debug_tokens(value: Any, depth: int, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        yield prefix + "{"
        indent = "\n" + "    " * (depth + 1)
        comma = ""
        for key, item in value.items():
            yield comma + indent + quote(key[:_DEBUG_BYTES])
            yield from _debug_tokens(item, depth + 1, ": ")
            comma = ","
        yield indent[:-4] + "}" if value else "}"
    elif isinstance(value, list):
        yield prefix + "["
        for position, item in enumerate(value):
            yield from _debug_tokens(item, depth + 1, ", " if position else "")
        yield "]"
    elif isinstance(value, float):
        yield prefix + _debug_float(value)
    else:
        shown = value[: _DEBUG_BYTES + 1] if isinstance(value, str) else value
        yield prefix + json.dumps(shown, ensure_ascii=False)


def _debug_float(value: float) -> str:
    if 1e16 <= abs(value) < 1e21 or 1e-6 <= abs(value) < 1e-4:
        return np.format_float_positional(value, trim="0")
    return re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), repr(value))

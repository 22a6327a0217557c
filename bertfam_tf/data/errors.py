"""Raises errors of assertions in the graph as Python's ``ValueError``."""

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import tensorflow as tf

_T = TypeVar("_T")

# Marks the beginning of such an error message, which ends with a full stop.
MARK = "bertfam_tf: "


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Raises marked assertion errors as a ``ValueError``, without TensorFlow's wrapping."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = re.search(re.escape(MARK) + r"([^\n]*\.)\]", error.message)
        if not match:
            raise
        # TensorFlow escapes the strings of an assertion as in C.
        text = codecs.escape_decode(match[1].encode())[0]
        raise ValueError(text.decode("utf-8", "replace")) from None


def marked(rows: Iterable[_T]) -> Iterator[_T]:
    """Marks the errors of Python code that a data set reads from; it keeps only their text."""
    try:
        yield from rows
    except ValueError as error:
        text = str(error).replace("\\", r"\\").replace("\n", r"\n")
        raise ValueError(f"{MARK}{text}]") from None

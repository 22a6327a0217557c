"""Raises TensorFlow's errors as Python's: assertions in the graph, and writes to files."""

from __future__ import annotations

import codecs
import errno
import os
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


@tf.autograph.experimental.do_not_convert
def checked(values: tf.Tensor, condition: tf.Tensor, *text: str | tf.Tensor) -> tf.Tensor:
    """Returns a tensor unchanged, in a graph that raises an error unless a condition holds.

    Args:
        values: the tensor.
        condition: bool, of any shape: all have to be true.
        *text: the parts of the message: texts, and tensors of at most one string or number.

    Raises:
        InvalidArgumentError: at run time, which ``as_value_errors`` raises as a ``ValueError``.
    """

    def shown(part: tf.Tensor) -> tf.Tensor:
        strings = part if part.dtype == tf.string else tf.strings.as_string(part)
        return strings if part.shape.rank == 0 else tf.strings.reduce_join(strings)

    parts = [part if isinstance(part, str) else shown(part) for part in (MARK, *text)]
    plain = all(isinstance(part, str) for part in parts)
    message = "".join(parts) if plain else tf.strings.join(parts)
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(condition), [message])]):
        return tf.identity(values)


def marked(rows: Iterable[_T]) -> Iterator[_T]:
    """Marks the errors of Python code that a data set reads from; it keeps only their text."""
    try:
        yield from rows
    except ValueError as error:
        text = str(error).replace("\\", r"\\").replace("\n", r"\n")
        raise ValueError(f"{MARK}{text}]") from None


@contextmanager
def os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns errors while ``path`` is written into an ``OSError`` that names it.

    TensorFlow raises errors of its own, and errors of writes to an open file have no name.

    Raises:
        OSError: with ``ENOSPC`` for a full disk or quota, or ``EIO`` for other errors of
            TensorFlow.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error
    except tf.errors.ResourceExhaustedError as error:  # the disk or a quota is full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from error
    except tf.errors.OpError as error:
        text = f"TensorFlow cannot write: {error.message}"
        raise OSError(errno.EIO, text, os.fspath(path)) from error

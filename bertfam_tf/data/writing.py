"""Errors of the operating system in files that TensorFlow writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


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

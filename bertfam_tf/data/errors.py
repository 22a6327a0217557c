"""Raises errors of assertions in the graph as Python's ``ValueError``."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

# Marks the beginning of such an error message, which ends with a full stop.
MARK = "bertfam_tf: "


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Raises marked assertion errors as a ``ValueError``, without TensorFlow's wrapping."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(re.escape(MARK) + r"([^\n]*\.)\]", error.message)
        if not found:
            raise
        # TensorFlow escapes the strings of an assertion as in C.
        text = codecs.escape_decode(found[1].encode())[0]
        raise ValueError(text.decode("utf-8", "replace")) from None

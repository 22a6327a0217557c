"""Hides messages of the TFLite converter and LiteRT that no log level hides."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# Absl's logging is not initialized in Python, so these are written at every level.
_KNOWN = (
    b"All log messages before absl::InitializeLog",
    b"Ignored output_format.",
    b"Ignored drop_control_dependency.",
    b"MLIR V1 optimization pass is not enabled",
    b"Created TensorFlow Lite XNNPACK delegate",
)


@contextmanager
def known_messages_hidden() -> Iterator[None]:
    """Holds back what C++ code writes to standard error, and writes it without the known messages.

    With ``TF_CPP_MIN_LOG_LEVEL=0``, nothing is held back.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
    try:
        original = os.dup(2) if level != "0" else None
    except OSError:  # there is no standard error
        original = None
    if original is None:
        yield
        return
    # Not a pipe, which would block the converter when it is full.
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            for line in file:
                if not any(text in line for text in _KNOWN):
                    os.write(2, line)

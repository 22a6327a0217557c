"""Fixtures for tests of training."""

import pytest

from bertfam_tf.training.callbacks import curves


@pytest.fixture(autouse=True)
def draw(monkeypatch):
    """What draws pictures; runs leave a file in its place, because drawing takes a second."""
    drawing = curves.draw
    monkeypatch.setattr(curves, "draw", lambda lines, file: file.write_bytes(b"\x89PNG"))
    return drawing

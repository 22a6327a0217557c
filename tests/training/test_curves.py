"""Pictures of runs, and what is said where they cannot be drawn."""

import importlib.util
import logging

import numpy as np
import pytest

from bertfam_tf.training.callbacks import curves
from bertfam_tf.training.callbacks.curves import Curves
from bertfam_tf.training.callbacks.logs import StepLog

LOGS = [
    {"loss": 3.0, "a_accuracy": 0.1, "a_perplexity": 20.0, "val_loss": 2.9, "val_a_accuracy": 0.2},
    {"loss": 2.0, "a_accuracy": 0.3, "a_perplexity": 7.4, "val_loss": 2.5, "val_a_accuracy": 0.3},
]


def _train(folder, seconds=0.0):
    """Two epochs of four steps, as they are logged."""
    log = StepLog(folder / "metrics.jsonl", folder / "tensorboard")
    picture = Curves(log, folder / "curves.png")
    log.on_train_begin()
    picture.on_train_begin()
    picture._next = seconds
    for epoch, logs in enumerate(LOGS):
        for step in (2, 4):
            log.step = 4 * epoch + step
            log._write({"loss": 4.0 - epoch, "learning_rate": 0.1, "gradient_norm": float("inf")})
        log.on_epoch_end(epoch, logs)
        picture.on_epoch_end(epoch, logs)
    return log.lines


def test_each_metric_has_a_panel(tmp_path, monkeypatch, draw):
    figure = pytest.importorskip("matplotlib.figure", reason="pip install 'bertfam_tf[plots]'")
    saved = []
    original = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure,
        "savefig",
        lambda self, *a, **k: saved.append(self) or original(self, *a, **k),
    )
    lines = _train(tmp_path)
    draw(lines, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    loss, accuracy, perplexity, rate, norm = saved[-1].axes
    titles = ["loss", "a_accuracy", "a_perplexity", "learning_rate", "gradient_norm"]
    assert [p.get_title() for p in saved[-1].axes] == titles
    found = {line.get_label(): [*line.get_xdata(), *line.get_ydata()] for line in loss.lines}
    assert found == {
        "each step": [2, 4, 6, 8, 4.0, 4.0, 3.0, 3.0],
        "training": [4, 8, 3.0, 2.0],
        "held-out": [4, 8, 2.9, 2.5],
    }
    assert [*accuracy.lines[1].get_ydata()] == [0.2, 0.3]
    assert (len(perplexity.lines), perplexity.get_yscale()) == (1, "log")
    assert [*rate.lines[0].get_ydata()] == [0.1] * 4
    assert np.isnan(norm.lines[0].get_ydata()).all()


def test_when_pictures_are_drawn(tmp_path, monkeypatch):
    """After epochs, but rarely: short epochs are not slowed down."""
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda lines, file: drawn.append(len(lines)))
    _train(tmp_path)
    assert drawn == [3]
    drawn.clear()
    _train(tmp_path, seconds=1e9)
    assert not drawn


def test_the_last_epoch_is_left_to_the_end_of_the_run(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves, "draw", lambda lines, file: drawn.append(file))
    picture = Curves(StepLog(tmp_path / "metrics.jsonl", tmp_path / "tensorboard"), tmp_path)
    picture.set_params({"epochs": 2})
    for epoch in range(2):
        picture._next = 0.0
        picture.on_epoch_end(epoch)
        assert len(drawn) == 1


def test_without_matplotlib(tmp_path, monkeypatch, caplog):
    found = importlib.util.find_spec

    def missing(name, *rest):
        return None if name == "matplotlib" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with caplog.at_level(logging.INFO, "bertfam_tf"):
        _train(tmp_path)
    [line] = caplog.messages
    assert "without matplotlib: pip install 'bertfam_tf[plots]'" in line
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["metrics.jsonl", "tensorboard"]

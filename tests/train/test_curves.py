"""Pictures of runs, and what is said where they cannot be drawn."""

import importlib.util
import logging

import pytest

from bertfam_tf.train.curves import Curves, draw
from bertfam_tf.train.history import History

LOGS = [
    {"loss": 3.0, "a_accuracy": 0.1, "a_perplexity": 20.0, "val_loss": 2.9, "val_a_accuracy": 0.2},
    {"loss": 2.0, "a_accuracy": 0.3, "a_perplexity": 7.4, "val_loss": 2.5, "val_a_accuracy": 0.3},
]


def _epochs(folder):
    history = History(folder / "history.csv")
    curves = Curves(history, folder / "curves.png")
    for epoch, logs in enumerate(LOGS):
        history.on_epoch_end(epoch, logs)
        curves.on_epoch_end(epoch, logs)
    return history


def test_each_metric_has_a_panel(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="pip install 'bertfam_tf[plots]'")
    saved = []
    original = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure,
        "savefig",
        lambda self, *a, **k: saved.append(self) or original(self, *a, **k),
    )
    history = _epochs(tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    loss, accuracy, perplexity = saved[-1].axes
    assert [p.get_title() for p in saved[-1].axes] == ["loss", "a_accuracy", "a_perplexity"]
    lines = {line.get_label(): [*line.get_xdata(), *line.get_ydata()] for line in loss.lines}
    assert lines == {"training": [1, 2, 3.0, 2.0], "held-out": [1, 2, 2.9, 2.5]}
    assert [*accuracy.lines[1].get_ydata()] == [0.2, 0.3]
    assert (len(perplexity.lines), perplexity.get_yscale()) == (1, "log")
    # Four metrics leave panels empty, which are removed.
    rows = [{**row, "b": "1"} for row in history.rows]
    draw(rows, tmp_path / "curves.png")
    assert len(saved[-1].axes) == 4


def test_without_matplotlib(tmp_path, monkeypatch, caplog):
    found = importlib.util.find_spec

    def missing(name, *rest):
        return None if name == "matplotlib" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with caplog.at_level(logging.INFO, "bertfam_tf"):
        _epochs(tmp_path)
    [line] = caplog.messages
    assert "without matplotlib: pip install 'bertfam_tf[plots]'" in line
    assert [file.name for file in tmp_path.iterdir()] == ["history.csv"]

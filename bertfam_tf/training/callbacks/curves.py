"""Plots the losses and metrics of a run."""

import importlib.util
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from bertfam_tf.files import atomic
from bertfam_tf.training.callbacks.logs import StepLog

_COLUMNS = 3
_SECONDS = 30.0
# Values of steps with a panel of their own; the loss of steps shares a panel with epochs.
_STEP_PANELS = ("learning_rate", "gradient_norm")
_log = logging.getLogger(__name__)


class Curves(keras.callbacks.Callback):
    """Plots the log after an epoch, at most every 30 seconds; logs once if matplotlib is missing.

    The end of the run must call ``draw`` for the complete plot: a run that is killed after its last
    epoch does not train again. The last epoch is therefore not plotted here.

    Args:
        steps: the log, a callback that is called before this one.
        file: the PNG file, which is written atomically.
    """

    def __init__(self, steps: StepLog, file: Path):
        super().__init__()
        self.steps = steps
        self.file = file
        self._next = 0.0
        if not drawable():
            _log.info("No curves are drawn without matplotlib: pip install 'bertfam_tf[plots]'.")

    def on_train_begin(self, logs=None):
        self._next = time.monotonic() + _SECONDS

    def on_epoch_end(self, epoch, logs=None):
        last = self.params is not None and epoch + 1 >= self.params.get("epochs", 0)
        if drawable() and not last and time.monotonic() >= self._next:
            draw(self.steps.lines, self.file)
            self._next = time.monotonic() + _SECONDS


def drawable() -> bool:
    """Returns whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Plots each loss and metric by step, for training and held-out text.

    Training values of an epoch are means over its steps, held-out values are from its end. The
    panel of the loss also shows single steps; learning rate and gradient norm have their own
    panels. Perplexities have a logarithmic axis.

    Args:
        lines: the lines of a ``StepLog``, with at least one epoch.
        file: the PNG file to write.
    """
    # pyplot needs a display on some systems, and keeps figures in memory.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    epochs = [line for line in lines if "epoch" in line]
    steps = [line for line in lines if "epoch" not in line]
    if not epochs:  # the log was damaged
        return
    names = sorted({name.removeprefix("val_") for name in epochs[-1]} - {"step", "epoch"})
    names.sort(key=lambda name: name != "loss")
    names += [name for name in _STEP_PANELS if steps]
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for name, panel in zip(names, panels, strict=False):
        if steps and name in ("loss", *_STEP_PANELS):
            _plot(panel, steps, name, "each step", color="0.75", linewidth=0.8)
        if name not in _STEP_PANELS:
            for column, label in ((name, "training"), (f"val_{name}", "held-out")):
                if column in epochs[-1]:
                    _plot(panel, epochs, column, label, marker=".")
        panel.set(title=name, xlabel="step")
        panel.grid(alpha=0.3)
        if name.endswith("perplexity"):
            panel.set_yscale("log")
            # By default, labels of less than a decade are powers of ten, such as 1.7 x 10^1.
            for set_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
                set_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1, 0.4)))
    for panel in list(panels):
        panel.remove()
    figure.axes[0].legend()
    with atomic(file) as path:
        figure.savefig(path, format="png", dpi=100)


def _plot(
    panel: Any, lines: Sequence[Mapping[str, Any]], name: str, label: str, **style: Any
) -> None:
    values = [float("nan") if line.get(name) is None else line[name] for line in lines]
    panel.plot([line["step"] for line in lines], values, label=label, **style)

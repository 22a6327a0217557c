"""A picture of the losses and metrics of a run."""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras

from bertfam_tf.files import atomic
from bertfam_tf.train.history import History

_COLUMNS = 3  # of panels
_log = logging.getLogger(__name__)


class Curves(keras.callbacks.Callback):
    """Draws the epochs so far after each epoch, or logs once that matplotlib is missing.

    Args:
        history: the log of epochs, which is called before this.
        file: the picture, a PNG file, which is written atomically.
    """

    def __init__(self, history: History, file: Path):
        super().__init__()
        self.history = history
        self.file = file
        self._drawing = importlib.util.find_spec("matplotlib") is not None
        if not self._drawing:
            _log.info("No curves are drawn without matplotlib: pip install 'bertfam_tf[plots]'.")

    def on_epoch_end(self, epoch, logs=None):
        if self._drawing:
            draw(self.history.rows, self.file)


def draw(rows: Sequence[Mapping[str, str]], file: Path) -> None:
    """Draws each loss and metric by epoch, of the training and of the held-out text.

    The training values of an epoch are means over its steps, those of the held-out text belong to
    its end. Perplexities have a logarithmic axis.

    Args:
        rows: of ``History``, at least one.
        file: the PNG file to write.
    """
    # Without pyplot, which needs a display on some systems and keeps figures in memory.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = sorted({name.removeprefix("val_") for name in rows[-1]} - {"epoch"})
    names.sort(key=lambda name: name != "loss")
    columns = min(_COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 2.8 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    epochs = [int(row["epoch"]) + 1 for row in rows]
    for name, panel in zip(names, panels, strict=False):
        for column, label in ((name, "training"), (f"val_{name}", "held-out")):
            if column in rows[-1]:
                values = [float(row.get(column) or "nan") for row in rows]
                panel.plot(epochs, values, label=label, marker=".")
        panel.set(title=name, xlabel="epoch")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.3)
        if name.endswith("perplexity"):
            panel.set_yscale("log")
    for panel in list(panels):
        panel.remove()
    figure.axes[0].legend()
    with atomic(file) as path:
        figure.savefig(path, format="png", dpi=100)

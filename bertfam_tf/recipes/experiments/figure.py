"""The figure of an experiment."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from bertfam_tf.files import atomic
from bertfam_tf.recipes.experiments.cells import Cell
from bertfam_tf.recipes.experiments.report import values
from bertfam_tf.recipes.experiments.settings import Experiment


def draw(experiment: Experiment, cells: Sequence[Cell], file: Path) -> None:
    """Plots each measured value as a dot, and means over seeds as lines, with a panel a column.

    Published values are not plotted: of other models and data, they would compress the axes.

    Args:
        experiment: the experiment.
        cells: the result of ``plan_cells``.
        file: the PNG file to write.

    Raises:
        ImportError: without matplotlib.
        ValueError: if a finished run lacks a metric.
    """
    # pyplot needs a display on some systems, and keeps figures in memory.
    from matplotlib.figure import Figure

    measured = values(experiment, cells)
    rows, columns = list(experiment.rows), experiment.columns
    size = (1.5 + 2.5 * len(columns), 1.0 + 0.3 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for column, panel in zip(columns, panels, strict=True):
        for place, row in enumerate(rows):
            numbers = list(measured.get((row, column.name), {}).values())
            panel.plot(numbers, [place] * len(numbers), "o", color="C0", alpha=0.5)
            if len(numbers) > 1:
                panel.vlines(statistics.mean(numbers), place - 0.3, place + 0.3, color="C0")
        direction = "← better" if column.lower_is_better else "better →"
        panel.set(title=column.name, xlabel=direction)
        panel.grid(alpha=0.3)
    panels[0].set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.5))
    with atomic(file) as path:
        figure.savefig(path, format="png", dpi=100)

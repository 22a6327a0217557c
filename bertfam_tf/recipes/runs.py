"""Runs beside each other: what they have in their directories, as a table and as curves."""

from __future__ import annotations

import itertools
import json
import logging
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertfam_tf import parsing
from bertfam_tf.files import PNG, atomic, check_kind
from bertfam_tf.names import unknown
from bertfam_tf.recipes.directory import HISTORY, METRICS, RECIPE, Flops, flat
from bertfam_tf.recipes.multi_task import train
from bertfam_tf.recipes.reading import expand, load_run
from bertfam_tf.training.callbacks.history import History

SEED = "train.seed"
_WITHOUT_NAME = ("output",)
_log = logging.getLogger(__name__)


class Run(NamedTuple):
    """A run directory.

    Fields:
        path: of the directory.
        settings: the keys of its recipe, with dots, and their values.
        metrics: its results; empty for a run that is not finished.
        epochs: the rows of its history.
        finished: whether it is.
    """

    path: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, Any]
    epochs: Sequence[Mapping[str, str]]
    finished: bool


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """The runs in directories, and in the directories inside of them, sorted by path.

    Runs with a damaged file are logged and left out.

    Raises:
        ValueError: if there is none, or all are damaged.
    """
    given = [Path(path) for path in paths]
    found = sorted({file.parent for path in given for file in path.rglob(RECIPE)})
    if not found:
        raise ValueError(f"There is no {RECIPE} of a run in {', '.join(map(str, given))}.")
    runs: list[Run] = []
    errors: list[Exception] = []
    for path in found:
        try:
            runs.append(_read(path))
        except (ValueError, OSError) as error:
            errors.append(error)
    if not runs:
        raise errors[0]
    for damage in errors:
        _log.warning("Left out: %s", damage)
    return runs


def _read(path: Path) -> Run:
    file = path / METRICS
    finished = os.path.lexists(file)
    metrics = parsing.read_json(file) if finished else {}
    recipe = parsing.read_yaml(path / RECIPE)
    for source, values in ((file, metrics), (path / RECIPE, recipe)):
        if not isinstance(values, dict):
            raise ValueError(f"{source} is not a mapping of names to values; it may be damaged.")
    return Run(path, dict(flat(recipe)), metrics, History(path / HISTORY).rows, finished)


def differing(runs: Sequence[Run]) -> list[str]:
    """Keys of the recipes whose values are not the same in all runs, without the output."""
    keys = dict.fromkeys(key for each in runs for key in each.settings)
    return [
        key
        for key in keys
        if key not in _WITHOUT_NAME and len({repr(each.settings.get(key)) for each in runs}) > 1
    ]


def table(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each run after the head: its path, what its recipe has of its own, its results.

    Results of a run that is not finished are those of its last epoch.
    """
    keys = differing(runs)
    results = [each.metrics or _last(each) for each in runs]
    names = list(dict.fromkeys(n for each in results for n, v in each.items() if _is_number(v)))
    rows = [["run", *keys, "epochs", *names]]
    for each, found in zip(runs, results, strict=True):
        values = [_text(each.settings.get(key)) for key in keys]
        numbers = [_text(found.get(name)) for name in names]
        epochs = f"{len(each.epochs)}{'' if each.finished else ', unfinished'}"
        rows.append([str(each.path), *values, epochs, *numbers])
    return rows


def _last(run: Run) -> dict[str, float]:
    last = run.epochs[-1] if run.epochs else {}
    return {n.removeprefix("val_"): float(v) for n, v in last.items() if n.startswith("val_") and v}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw(runs: Sequence[Run], file: str | Path, metric: str | None = None) -> None:
    """Draws a metric of each run by epoch.

    Args:
        runs: at least one with a finished epoch.
        file: the PNG file to write.
        metric: a column of the history, such as ``val_accuracy``; None for ``val_loss``, or
            ``loss`` if a run has no dev split.

    Raises:
        ValueError: for a metric that no run has.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    check_kind(file, *PNG)
    known = dict.fromkeys(name for each in runs for row in each.epochs for name in row)
    if metric is None:
        metric = "val_loss" if all("val_loss" in row for r in runs for row in r.epochs) else "loss"
    if metric not in known:
        raise ValueError(unknown("metric", metric, [n for n in known if n != "epoch"]))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    keys = differing(runs)
    for each in runs:
        rows = [row for row in each.epochs if row.get(metric)]
        label = ", ".join(f"{k.rpartition('.')[2]} {_text(each.settings.get(k))}" for k in keys)
        panel.plot(
            [int(row["epoch"]) + 1 for row in rows],
            [float(row[metric]) for row in rows],
            label=label or each.path.name,
            marker=".",
        )
    panel.set(xlabel="epoch", ylabel=metric)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
    with atomic(Path(file)) as path:
        figure.savefig(path, format="png", dpi=100)


def sweep(
    file: str | Path,
    values: Mapping[str, Sequence[str]],
    overrides: list[str] | tuple[str, ...] = (),
    *,
    flops: Flops | None = None,
) -> list[Run]:
    """Runs a recipe of fine-tuning for each combination of values, one after the other.

    Each run has a directory of its own in the recipe's output, named after its values. A sweep that
    was interrupted goes on where it was when it is started again.

    Args:
        file: the recipe.
        values: of keys with dots, such as ``{"train.seed": ["0", "1", "2"]}``, as YAML.
        overrides: ``key=value``, for all runs.
        flops: as for ``RunDirectory``.

    Raises:
        ValueError: for no values, or as ``run`` does.
    """
    if not values or not all(values.values()):
        raise ValueError("A sweep needs at least one key with values, such as train.seed=0,1,2.")
    base = load_run(file, overrides)
    recipes = []
    for each in itertools.product(*values.values()):
        given = [f"{key}={value}" for key, value in zip(values, each, strict=True)]
        name = ",".join(item.rpartition(".")[2] for item in given).replace("/", "_")
        output = f"output={json.dumps(f'{base.output}/{name}')}"
        recipes.append(load_run(file, [*overrides, *given, output]))
    for recipe in recipes:
        train(recipe, flops=flops)
    return [_read(expand(recipe.output)) for recipe in recipes]


def summary(runs: Sequence[Run]) -> list[list[str]]:
    """Means of runs that differ in their seed alone, with the lowest and the highest value."""
    keys = [key for key in differing(runs) if key != SEED]
    groups: dict[tuple, list[Run]] = {}
    for each in runs:
        groups.setdefault(tuple(_text(each.settings.get(key)) for key in keys), []).append(each)
    names = [n for n in runs[0].metrics if all(_is_number(x.metrics.get(n)) for x in runs)]
    rows = [[*keys, "runs", *names]]
    for values, group in groups.items():
        cells = []
        for name in names:
            found = [float(each.metrics[name]) for each in group]
            spread = f" ({min(found):.4g} to {max(found):.4g})" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.4g}{spread}")
        rows.append([*values, str(len(group)), *cells])
    return rows

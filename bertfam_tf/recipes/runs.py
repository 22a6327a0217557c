"""Compares runs, as a table and as curves; sweeps over settings."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bertfam_tf import parsing
from bertfam_tf.files import PNG, atomic, check_kind
from bertfam_tf.names import unknown
from bertfam_tf.recipes.directory import HISTORY, METRICS, RECIPE, Flops, flat, is_run
from bertfam_tf.recipes.multi_task import train
from bertfam_tf.recipes.reading import expand, load_recipe
from bertfam_tf.recipes.schema import MultiTaskRecipe, Recipe
from bertfam_tf.recipes.search_space import Values, combinations
from bertfam_tf.training.callbacks.best import direction
from bertfam_tf.training.callbacks.logs import History

SEED = "train.seed"
# Bytes of a directory's name: Linux allows 255, of which its temporary copy takes 14.
_LONGEST_NAME, _SHORTENED = 240, 200
_log = logging.getLogger(__name__)


class Run(NamedTuple):
    """The contents of a run directory.

    Fields:
        path: the path of the directory.
        settings: the values of its recipe by dotted keys.
        metrics: its results; empty if the run is not finished.
        epochs: the rows of its history.
        finished: whether the run is finished.
    """

    path: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, Any]
    epochs: Sequence[Mapping[str, str]]
    finished: bool


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Reads the runs in directories, recursively, sorted by path.

    Runs with a damaged file are logged and skipped.

    Raises:
        ValueError: if there are no runs, or all are damaged.
    """
    roots = [Path(path) for path in paths]
    described = {file.parent for root in roots for file in root.rglob(RECIPE)}
    directories = sorted(filter(is_run, described))
    if not directories:
        raise ValueError(f"There is no {RECIPE} of a run in {', '.join(map(str, roots))}.")
    runs: list[Run] = []
    errors: list[Exception] = []
    for directory in directories:
        try:
            runs.append(_read(directory))
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
    """Returns the keys of the recipes with different values, except the output."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [
        key
        for key in keys
        if key != "output" and len({repr(run.settings.get(key)) for run in runs}) > 1
    ]


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Returns a header, and for each run its path, differing settings, epochs and results.

    The results of a run that is not finished are from its last epoch.
    """
    keys = differing(runs)
    results = [run.metrics or _last(run) for run in runs]
    names = list(dict.fromkeys(n for result in results for n, v in result.items() if _is_number(v)))
    rows = [["run", *keys, "epochs", *names]]
    for run, result in zip(runs, results, strict=True):
        values = [_text(run.settings.get(key)) for key in keys]
        numbers = [_text(result.get(name)) for name in names]
        epochs = f"{len(run.epochs)}{'' if run.finished else ', unfinished'}"
        rows.append([str(run.path), *values, epochs, *numbers])
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
    """Plots a metric of each run by epoch.

    Args:
        runs: the runs; at least one has a finished epoch.
        file: the PNG file to write.
        metric: a column of the history, such as ``val_accuracy``; None for ``val_loss``, or
            ``loss`` if a run has no dev split.

    Raises:
        ValueError: if no run has the metric.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    check_kind(file, *PNG)
    known = dict.fromkeys(name for run in runs for row in run.epochs for name in row)
    if metric is None:
        metric = "val_loss" if all("val_loss" in row for r in runs for row in r.epochs) else "loss"
    if metric not in known:
        raise ValueError(unknown("metric", metric, [n for n in known if n != "epoch"]))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    keys = differing(runs)
    for run in runs:
        rows = [row for row in run.epochs if row.get(metric)]
        label = ", ".join(f"{k.rpartition('.')[2]} {_text(run.settings.get(k))}" for k in keys)
        panel.plot(
            [int(row["epoch"]) + 1 for row in rows],
            [float(row[metric]) for row in rows],
            label=label or run.path.name,
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
    values: Mapping[str, Values],
    overrides: list[str] | tuple[str, ...] = (),
    *,
    search: str = "grid",
    trials: int | None = None,
    seed: int = 0,
    flops: Flops | None = None,
) -> list[Run]:
    """Runs a recipe of fine-tuning for each combination of values, or for samples of them.

    Each run has its own directory in the recipe's output, named after its values. An interrupted
    sweep resumes when it is started again, and a random search with more trials continues one with
    fewer.

    Args:
        file: the recipe.
        values: values by dotted keys: lists of YAML, such as ``{"train.seed": ["0", "1"]}``; for a
            random search also the distributions of ``search_space.values_of``.
        overrides: ``key=value`` for all runs.
        search, trials, seed: the same as for ``search_space.combinations``.
        flops: the same as for ``RunDirectory``.

    Raises:
        ValueError: if there are no values or a value twice, or as for ``combinations`` and ``run``.
    """
    if not values or not all(values.values()):
        raise ValueError("A sweep needs at least one key with values, such as train.seed=0,1,2.")
    recipes = []
    for combination in combinations(values, search, trials, seed):
        pairs = list(zip(values, combination, strict=True))
        chosen = [f"{key}={value}" for key, value in pairs]
        recipe = load_recipe(file, [*overrides, *chosen], Recipe | MultiTaskRecipe)
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in pairs)
        recipes.append(replace(recipe, output=f"{recipe.output}/{_directory_name(name)}"))
    outputs = [recipe.output for recipe in recipes]
    if len(set(outputs)) < len(outputs):
        same = max(outputs, key=outputs.count)
        raise ValueError(f"The values of a sweep must be different, got {same} twice.")
    for recipe in recipes:
        train(recipe, flops=flops)
    return [_read(expand(recipe.output)) for recipe in recipes]


def _directory_name(values: str) -> str:
    """Returns a run's name for its values, within the length that file systems allow."""
    name = values.replace("/", "_").replace("$", "_")  # outputs expand $NAME
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    return f"{name.encode()[:_SHORTENED].decode(errors='ignore')}…{digest}"


def best(runs: Sequence[Run]) -> tuple[str, Run] | None:
    """Returns the monitored metric and the run with its best value; None if runs lack the metric.

    The metric is ``train.monitor`` of the recipes; higher is better, except for a loss and a
    perplexity. NaN is never the best.
    """
    metric = runs[0].settings.get("train.monitor")
    if not isinstance(metric, str) or not all(_is_number(run.metrics.get(metric)) for run in runs):
        return None
    sign = direction(metric)
    scored = [run for run in runs if not math.isnan(run.metrics[metric])]
    if not scored:
        return None
    return metric, max(scored, key=lambda run: sign * run.metrics[metric])


def summary(runs: Sequence[Run]) -> list[list[str]]:
    """Returns the means of runs that only differ in their seed, with lowest and highest values."""
    keys = [key for key in differing(runs) if key != SEED]
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        # Not as they are printed, which rounds them.
        groups.setdefault(tuple(repr(run.settings.get(key)) for key in keys), []).append(run)
    names = [n for n in runs[0].metrics if all(_is_number(x.metrics.get(n)) for x in runs)]
    rows = [[*keys, "runs", *names]]
    for group in groups.values():
        values = [_text(group[0].settings.get(key)) for key in keys]
        cells = []
        for name in names:
            numbers = [float(run.metrics[name]) for run in group]
            spread = f" ({min(numbers):.4g} to {max(numbers):.4g})" if len(numbers) > 1 else ""
            cells.append(f"{statistics.mean(numbers):.4g}{spread}")
        rows.append([*values, str(len(group)), *cells])
    return rows

"""Settings of experiments: rows of overrides, columns of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfam_tf.names import unknown
from bertfam_tf.recipes.reading import build, build_section, parse_override, read_values
from bertfam_tf.training.callbacks.best import direction

# The name of the step of an experiment with one recipe.
ONLY = "run"


@dataclass(frozen=True)
class StepConfig:
    """A step, which is one run in each cell.

    Attributes:
        recipe: a recipe of any kind, relative to the experiment's file; or ``evaluate``.
        evaluate: an earlier step, whose model is scored on another split, or on minimal pairs.
        split: with ``evaluate``, ``dev`` or ``test``.
        minimal_pairs: with ``evaluate``, a folder of minimal pairs, such as BLiMP's, which a
            language model is scored on instead of a split; metrics are the paradigms and ``mean``.
        takes: for keys of the recipe, such as ``model.path`` or ``teacher``, the earlier step whose
            model is the key's value; or a list of steps.
        overrides: values for keys of the recipe in all rows.
        seed: a seed that replaces the experiment's, for a step that runs once.
    """

    recipe: str | None = None
    evaluate: str | None = None
    split: str = "dev"
    minimal_pairs: str | None = None
    takes: dict[str, str | list[str]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self):
        if (self.recipe is None) == (self.evaluate is None):
            raise ValueError("A step must have either a recipe or evaluate.")
        if self.split not in ("dev", "test"):
            raise ValueError(f"split must be dev or test, got {self.split!r}.")
        if self.minimal_pairs is not None and self.evaluate is None:
            raise ValueError("minimal_pairs needs evaluate, the step whose model is scored.")


@dataclass(frozen=True)
class ColumnConfig:
    """A column of the table.

    Attributes:
        metric: a metric in ``metrics.json``, prefixed with the step's name if there are several
            steps, such as ``mrpc.accuracy``; or a list of metrics, for their mean.
        title: the title; None for the metric.
        scale: a factor, such as 100.
        digits: the number of digits after the decimal point.
        best: ``higher`` or ``lower``; None for ``lower`` if the metric is a loss, a perplexity or
            an error, such as ``masked_lm`` or ``mse``, else ``higher``.
    """

    metric: str | list[str]
    title: str | None = None
    scale: float = 1.0
    digits: int = 3
    best: str | None = None

    def __post_init__(self):
        if self.best not in (None, "higher", "lower"):
            raise ValueError(f"best must be higher or lower, got {self.best!r}.")

    @property
    def metrics(self) -> list[str]:
        """The metrics whose mean the column shows."""
        return [self.metric] if isinstance(self.metric, str) else list(self.metric)

    @property
    def name(self) -> str:
        """The title, or the metric."""
        return self.title or ", ".join(self.metrics)

    @property
    def lower_is_better(self) -> bool:
        """Whether the lowest value is the best."""
        if self.best is not None:
            return self.best == "lower"
        names = [metric.rpartition(".")[2] for metric in self.metrics]
        return any(direction(name) < 0 for name in names)


@dataclass(frozen=True)
class ComparisonConfig:
    """A published claim that one row is better than others.

    Attributes:
        better: a row.
        than: another row, or a list of rows.
        columns: names of columns; None for all.
        source: the source of the claim, such as "RoBERTa, table 1"; None for the experiment's.
    """

    better: str
    than: str | list[str]
    columns: list[str] | None = None
    source: str | None = None

    @property
    def others(self) -> list[str]:
        """The rows that are compared."""
        return [self.than] if isinstance(self.than, str) else list(self.than)


@dataclass(frozen=True)
class PublishedConfig:
    """Values of a paper, which the table shows next to the measured ones.

    Attributes:
        source: the paper, its table and the differences to this experiment.
        rows: values by row and name of a column, scaled as the column.
    """

    source: str
    rows: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment, with a cell of one or more runs for each row and seed.

    Attributes:
        title: the title of the table.
        output: the directory of the runs.
        rows: the overrides of each row by key of the recipe, prefixed with the step's name, or
            several names separated by commas, if there are several steps:
            ``{static: {pretrain.masking.copies: 10}}``. A step's ``recipe``, ``evaluate`` and
            ``takes`` can also be overridden; null for ``recipe`` or ``evaluate`` omits the step.
        columns: the columns of the table: metrics, or columns with more settings.
        recipe: the recipe of each cell, relative to this file; or ``steps``.
        steps: recipes by name, which run in this order.
        seeds: the seeds; each row has a cell for each.
        overrides: overrides for all rows.
        compare: published claims.
        published: published values.
        prepare: commands that write the files that the recipes read; they are not run, but
            shown by ``--plan`` and after a failure.
        description: a text above the table.
        table: the Markdown file of the table, relative to this file; None for ``table.md`` in the
            output directory.
    """

    title: str
    output: str
    rows: dict[str, dict[str, Any] | None]
    columns: list[ColumnConfig]
    recipe: str | None = None
    steps: dict[str, StepConfig] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    overrides: dict[str, Any] = field(default_factory=dict)
    compare: list[ComparisonConfig] = field(default_factory=list)
    published: PublishedConfig | None = None
    prepare: list[str] = field(default_factory=list)
    description: str | None = None
    table: str | None = None

    def __post_init__(self):
        for name in ("rows", "columns", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty.")
        if (self.recipe is None) == (not self.steps):
            raise ValueError("An experiment must have either a recipe or steps.")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}.")
        if self.recipe is not None:
            object.__setattr__(self, "steps", {ONLY: StepConfig(recipe=self.recipe)})
        _check_steps(self.steps)
        _check_rows(self.rows)
        for column in self.columns:
            for metric in column.metrics:
                self.split_metric(metric)
        self._check_claims()

    @property
    def single(self) -> bool:
        """Whether cells have one run, so that keys and metrics have no prefix."""
        return self.recipe is not None

    def split_key(self, key: str) -> tuple[list[str], str]:
        """Returns the steps of an override and the key of their recipes."""
        return self._split(key, "step of an override")

    def split_metric(self, metric: str) -> tuple[str, str]:
        """Returns the step and the name of a metric of ``metrics.json``."""
        steps, name = self._split(metric, "step of a column")
        return steps[0], name

    def step(
        self, name: str, changes: Mapping[str, Any]
    ) -> tuple[StepConfig | None, dict[str, Any]]:
        """Returns a step with a row's changes, None if the row omits it, and the other changes.

        Raises:
            ValueError: if the row changes a setting to an invalid value.
        """
        step, rest = self.steps[name], dict(changes)
        own: dict[str, Any] = {
            key: rest.pop(key) for key in ("recipe", "evaluate", "takes") if key in rest
        }
        if None in [value for key, value in own.items() if key != "takes"]:
            return None, rest
        changed = build_section({**vars(step), **own}, StepConfig, f"steps.{name}")
        _check_steps({**self.steps, name: changed})
        return changed, rest

    def column(self, name: str) -> ColumnConfig:
        """Returns the column of a name."""
        return next(column for column in self.columns if column.name == name)

    def _split(self, name: str, kind: str) -> tuple[list[str], str]:
        if self.single:
            return [ONLY], name
        first, dot, rest = name.partition(".")
        steps = [step.strip() for step in first.split(",")]
        for step in steps:
            if step not in self.steps:
                raise ValueError(f"{name}: {unknown(kind, step, self.steps)}")
        if not dot:
            raise ValueError(f"{name!r} must have a name after the step's, such as {first}.loss.")
        return steps, rest

    def _check_claims(self) -> None:
        columns = [column.name for column in self.columns]
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns must have different names, got {', '.join(columns)}.")
        for number, claim in enumerate(self.compare):
            where = f"compare.{number}"
            _check_known(f"row of {where}", [claim.better, *claim.others], self.rows)
            _check_known(f"column of {where}", claim.columns or [], columns)
        for row, values in (self.published.rows if self.published else {}).items():
            _check_known("row of published", [row], self.rows)
            _check_known(f"column of published.rows.{row}", values, columns)


def load_experiment(file: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Reads the file of an experiment.

    Args:
        file: the YAML file.
        overrides: ``key=value`` for all rows, which rows can override; the value is YAML.
            ``output=…`` is the directory of the experiment.

    Raises:
        ValueError: if the file is missing or invalid; the error names the key.
    """
    path = Path(file)
    values = read_values(path)
    steps, columns = values.get("steps"), values.get("columns")
    if isinstance(steps, dict):
        short = {n: {"recipe": x} if isinstance(x, str) else x for n, x in steps.items()}
        values["steps"] = short
    if isinstance(columns, list):
        values["columns"] = [{"metric": x} if isinstance(x, str) else x for x in columns]
    changed = dict(map(parse_override, overrides))
    if "output" in changed:
        values["output"] = str(changed.pop("output"))
    written = values.get("overrides") or {}
    if changed and isinstance(written, dict):  # else the error names it
        values["overrides"] = {**written, **changed}
    experiment = build(values, path, Experiment)
    for key in changed:
        experiment.split_key(key)
    return experiment


def _check_steps(steps: dict[str, StepConfig]) -> None:
    earlier: list[str] = []
    for name, step in steps.items():
        if set(name) & set(".,") or not _is_file_name(name):
            raise ValueError(
                f"The name of a step must be a file name without dots and commas, got {name!r}."
            )
        sources = [step.evaluate] if step.evaluate else []
        for source in step.takes.values():
            sources += [source] if isinstance(source, str) else source
        _check_known(f"earlier step of steps.{name}", sources, earlier)
        earlier.append(name)


def _check_rows(rows: dict[str, Any]) -> None:
    for name in rows:
        if not _is_file_name(name):
            raise ValueError(f"The name of a row must be a file name, got {name!r}.")


def _is_file_name(name: str) -> bool:
    return bool(name) and not name.startswith(".") and "/" not in name and "\0" not in name


def _check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in list(known):
            raise ValueError(unknown(kind, name, known))

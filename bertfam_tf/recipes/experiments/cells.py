"""The runs of an experiment: one for each step of each row and seed."""

from __future__ import annotations

import copy
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bertfam_tf import parsing
from bertfam_tf.files import write
from bertfam_tf.names import truncated
from bertfam_tf.recipes.directory import METRICS, MODEL, flat
from bertfam_tf.recipes.experiments.settings import Experiment, StepConfig
from bertfam_tf.recipes.reading import build, expand, kind_of, read_values, set_value
from bertfam_tf.recipes.schema import DistillRecipe, PretrainRecipe

EVALUATE = "evaluate"
# The setting of an evaluation on minimal pairs: their folder.
PAIRS = "minimal_pairs"
# Its scores so far, in the directory of the evaluation.
PAIRS_FILE = "minimal_pairs.json"


@dataclass(frozen=True)
class Cell:
    """A row of the table with one seed.

    Attributes:
        row, seed: the row and the seed.
        runs: the runs by the names of steps, without steps that the row omits.
    """

    row: str
    seed: int
    runs: Mapping[str, Run]


@dataclass(eq=False)
class Run:
    """A run of one cell, or of several cells with the same settings.

    Attributes:
        name: its row, seed and step.
        directory: the run directory.
        verb: the command of ``bertfam``.
        recipe: the recipe's file; for an evaluation, the directory that is evaluated.
        overrides: ``key=value`` arguments after the recipe.
        settings: all keys and values of the recipe except the output.
        parents: the runs whose models it reads.
        loaded: the recipe; None for an evaluation.
    """

    name: str
    directory: Path
    verb: str
    recipe: Path
    overrides: tuple[str, ...]
    settings: Mapping[str, Any]
    parents: tuple[Run, ...]
    loaded: Any = field(default=None, repr=False)

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``bertfam``."""
        return [self.verb, str(self.recipe), *self.overrides]

    @property
    def command(self) -> str:
        """The command for a shell."""
        return shlex.join(["bertfam", *self.arguments])

    @property
    def log(self) -> Path:
        """The file of the command's output."""
        return self.directory.with_name(f"{self.directory.name}.log")

    @property
    def _record(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.json")

    @property
    def started(self) -> bool:
        """Whether the run was started, finished or not."""
        return self._record.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has metrics."""
        return (self.directory / METRICS).is_file()

    def metrics(self) -> dict[str, Any] | None:
        """Returns the metrics of a finished run, or None.

        Raises:
            ValueError: if the directory has a run with other settings, or a damaged file.
        """
        self.check()
        if not self.finished:
            return None
        metrics = parsing.read_json(self.directory / METRICS)
        if not isinstance(metrics, dict):
            raise ValueError(f"{self.directory / METRICS} has no metrics of a run; remove it.")
        return metrics

    def record(self) -> dict[str, Any]:
        """Returns the run's ``seconds``, ``cpu_seconds``, ``machine`` and ``versions``."""
        if not self.started:
            return {}
        record = parsing.read_json(self._record)
        if not isinstance(record, dict):
            raise ValueError(f"{self._record} is not the record of a run; remove it.")
        return record

    def write_record(self, values: Mapping[str, Any]) -> None:
        """Adds values to the record."""
        content = {**self.record(), "settings": _plain(self.settings), **values}
        write(self._record, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def has_settings(self) -> bool:
        """Returns whether the directory's run was started with these settings."""
        return self.started and self.record().get("settings") == _plain(self.settings)

    def check(self) -> None:
        """Raises ValueError if the directory has a run with other settings."""
        if not self.started or not self.directory.exists() or self.has_settings():
            return
        stored = self.record().get("settings")
        ours, theirs = dict(flat(_plain(self.settings))), {}
        if isinstance(stored, dict):
            theirs = dict(flat(stored))
        changed = [k for k in {**theirs, **ours} if theirs.get(k, "") != ours.get(k, "")]
        key = changed[0] if changed else "other settings"
        raise ValueError(
            f"{self.directory} has a run with {key} {truncated(theirs.get(key, 'missing'))}, "
            f"expected {truncated(ours.get(key, 'missing'))}; remove {self.directory} and "
            f"{self._record.name}, or choose another output."
        )


def plan_cells(
    experiment: Experiment, file: str | Path, seeds: Sequence[int] | None = None
) -> list[Cell]:
    """Reads and checks the recipes of an experiment, and returns its cells.

    Cells share runs with the same settings, such as a teacher of all rows, in the directory of one
    of them.

    Args:
        experiment: the experiment.
        file: its file; recipes are relative to it.
        seeds: the seeds; None for the experiment's.

    Raises:
        ValueError: if a recipe does not have the key of an override; the error names row, step and
            key.
    """
    read = cache(lambda name: read_values(_path(file, name)))
    changes = {row: _by_step(experiment, row) for row in experiment.rows}
    places = itertools.product(experiment.rows, experiment.seeds if seeds is None else seeds)
    runs: dict[tuple[str, int], dict[str, Run]] = {place: {} for place in places}
    groups: dict[str, list[Run]] = {}
    for name in experiment.steps:
        within = "" if experiment.single else f"/{name}"
        for (row, seed), earlier in runs.items():
            place = f"{experiment.output}/{row}/{seed}{within}"
            try:
                step, rest = experiment.step(name, changes[row][name])
                run = None
                if step is not None:
                    run = _run(step, rest, seed, place, earlier, file, read)
            except ValueError as error:
                where = f"row {row}" if experiment.single else f"row {row}, step {name}"
                raise ValueError(f"{file}: {where}: {error}") from None
            if run is not None:
                run.name = f"{row}/{seed}{within}"
                groups.setdefault(_key(run), []).append(run)
                earlier[name] = run
        # The first that was started, so that a new row does not move the runs of other rows.
        chosen = {
            key: next((run for run in same if run.has_settings()), same[0])
            for key, same in groups.items()
        }
        for earlier in runs.values():
            if name in earlier:
                earlier[name] = chosen[_key(earlier[name])]
    return [Cell(row, seed, by_step) for (row, seed), by_step in runs.items()]


def _path(file: str | Path, name: str) -> Path:
    return Path(file).parent / name


def _plain(values: Any) -> Any:
    return json.loads(json.dumps(values, default=str))


def _key(run: Run) -> str:
    return json.dumps([run.verb, _plain(run.settings)], sort_keys=True)


def _by_step(experiment: Experiment, row: str) -> dict[str, dict[str, Any]]:
    """Returns the overrides of a row for each step, by key of its recipe."""
    changes: dict[str, dict[str, Any]] = {name: {} for name in experiment.steps}
    for values in (experiment.overrides, experiment.rows[row] or {}):
        for key, value in values.items():
            steps, rest = experiment.split_key(key)
            if rest in ("output", "train.seed"):
                raise ValueError(
                    f"row {row}: {key} must not be overridden; use "
                    f"{'seeds' if rest != 'output' else 'output'} of the experiment."
                )
            for step in steps:
                changes[step].pop(rest, None)
                changes[step][rest] = value
    return changes


def _run(
    step: StepConfig,
    changes: Mapping[str, Any],
    seed: int,
    place: str,
    runs: Mapping[str, Run],
    file: str | Path,
    read: Any,
) -> Run | None:
    """Returns the run of a step in a cell; None if the row omits it."""
    changes = {**step.overrides, **changes}
    if step.evaluate is not None:
        return _evaluation(step, changes, place, runs)
    recipe = str(step.recipe)
    values = copy.deepcopy(read(recipe))
    parents = []
    for key, sources in step.takes.items():
        names = [sources] if isinstance(sources, str) else sources
        # If the row omits a source, the recipe's value stays.
        if not all(name in runs for name in names):
            continue
        parents += [runs[name] for name in names]
        models = [f"{runs[name].directory}/{MODEL}" for name in names]
        # Moved to the end, so that no override of a whole section replaces it.
        changes.pop(key, None)
        changes[key] = models[0] if isinstance(sources, str) else models
    for key, value in changes.items():
        _set(values, key, value)
    kind = kind_of(values)
    number = seed if step.seed is None else step.seed
    for key in _seed_keys(kind, values):
        changes.pop(key, None)
        changes[key] = number
        _set(values, key, number)
    values["output"] = place
    path = _path(file, recipe)
    loaded = build(values, path, kind)
    overrides = [*changes.items(), ("output", place)]
    return Run(
        name=place,
        directory=expand(place),
        verb={DistillRecipe: "distill", PretrainRecipe: "pretrain"}.get(kind, "train"),
        recipe=path,
        overrides=tuple(f"{key}={_yaml(value)}" for key, value in overrides),
        settings={key: value for key, value in values.items() if key != "output"},
        parents=tuple(dict.fromkeys(parents)),
        loaded=loaded,
    )


def _evaluation(
    step: StepConfig, changes: Mapping[str, Any], place: str, runs: Mapping[str, Run]
) -> Run | None:
    if step.evaluate is None or step.evaluate not in runs:
        return None
    parent = runs[step.evaluate]
    if step.minimal_pairs is not None:
        if changes:
            raise ValueError(
                f"A step with minimal_pairs has no overrides, got {', '.join(changes)}."
            )
        return Run(
            name=place,
            directory=expand(place),
            verb=EVALUATE,
            recipe=parent.directory,
            overrides=(
                f"--blimp={step.minimal_pairs}",
                f"--output={expand(place) / PAIRS_FILE}",
            ),
            settings={"evaluate": str(parent.directory), PAIRS: step.minimal_pairs},
            parents=(parent,),
        )
    values = copy.deepcopy(dict(parent.settings))
    for key, value in changes.items():
        _set(values, key, value)
    build({**values, "output": place}, parent.recipe, kind_of(values))
    overrides = [f"{key}={_yaml(value)}" for key, value in changes.items()]
    return Run(
        name=place,
        directory=expand(place),
        verb=EVALUATE,
        recipe=parent.directory,
        overrides=(*overrides, f"--split={step.split}"),
        settings={"evaluate": str(parent.directory), "split": step.split, **changes},
        parents=(parent,),
    )


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    try:
        set_value(values, key, copy.deepcopy(value))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _seed_keys(kind: type, values: Mapping[str, Any]) -> list[str]:
    """Returns the keys of a recipe that a seed sets."""
    if kind is DistillRecipe:
        return [f"stages.{number}.train.seed" for number in range(len(values.get("stages") or []))]
    return ["train.seed"]


class _WithoutAliases(yaml.SafeDumper):
    """Repeats equal values, because recipes must not have YAML aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(value: Any) -> str:
    """Returns a value as one line of YAML, for ``key=value``."""
    text = yaml.dump(
        value,
        Dumper=_WithoutAliases,
        default_flow_style=True,
        width=1 << 30,
        sort_keys=False,
        allow_unicode=True,
    )
    return text.removesuffix("\n").removesuffix("\n...")

"""The table of an experiment, as Markdown."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bertfam_tf.names import printable
from bertfam_tf.recipes.directory import Flops, logged_steps
from bertfam_tf.recipes.experiments.cells import EVALUATE, Cell, Run
from bertfam_tf.recipes.experiments.running import runs_of
from bertfam_tf.recipes.experiments.settings import (
    ColumnConfig,
    ComparisonConfig,
    Experiment,
)
from bertfam_tf.recipes.experiments.statistics import Difference, paired_difference
from bertfam_tf.recipes.schema import PretrainRecipe
from bertfam_tf.training.settings import Stage

_log = logging.getLogger(__name__)
_NOTHING = "–"
AGREES, DISAGREES, NOT_DECIDED = "agrees", "disagrees", "not decided"


class Verdict(NamedTuple):
    """The result of a comparison.

    Fields:
        better, than, column: the rows and the column that are compared.
        source: the source of the claim; may be empty.
        difference: the first row minus the second, scaled as the column; None if they have no
            common seed.
        published: the published difference, or None.
        verdict: ``agrees``, ``disagrees`` or ``not decided``.
    """

    better: str
    than: str
    column: ColumnConfig
    source: str
    difference: Difference | None
    published: float | None
    verdict: str


def values(
    experiment: Experiment, cells: Sequence[Cell]
) -> dict[tuple[str, str], dict[int, float]]:
    """Returns the measured values by row and column, and by seed.

    Raises:
        ValueError: if a finished run lacks a metric.
    """
    measured: dict[tuple[str, str], dict[int, float]] = {}
    for cell in cells:
        for column in experiment.columns:
            numbers = [_metric(experiment, cell, name) for name in column.metrics]
            present = [number for number in numbers if number is not None]
            if len(present) == len(numbers):
                mean = column.scale * statistics.mean(present)
                measured.setdefault((cell.row, column.name), {})[cell.seed] = mean
    return measured


def _metric(experiment: Experiment, cell: Cell, name: str) -> float | None:
    """Returns the value of a metric in a cell; None if its run is not finished or omitted."""
    step, key = experiment.split_metric(name)
    if step not in cell.runs:
        return None
    metrics = cell.runs[step].metrics()
    if metrics is None:
        return None
    value: Any = metrics
    for part in [key] if key in metrics else key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, int | float):
        known = [k for k, v in metrics.items() if isinstance(v, int | float)]
        raise ValueError(
            f"{cell.runs[step].directory} has no metric {key!r} for the column {name}; it has "
            f"{', '.join(known)}."
        )
    return float(value)


def comparisons(experiment: Experiment, cells: Sequence[Cell]) -> list[Verdict]:
    """Returns the verdict on each claim of the experiment, for each of its columns."""
    measured = values(experiment, cells)
    return [
        _verdict(experiment, claim, than, column, measured)
        for claim in experiment.compare
        for than in claim.others
        for column in experiment.columns
        if claim.columns is None or column.name in claim.columns
    ]


def _verdict(
    experiment: Experiment,
    claim: ComparisonConfig,
    than: str,
    column: ColumnConfig,
    measured: Mapping[tuple[str, str], Mapping[int, float]],
) -> Verdict:
    first, second = (measured.get((row, column.name), {}) for row in (claim.better, than))
    pairs = [first[seed] - second[seed] for seed in first if seed in second]
    difference = paired_difference(pairs) if pairs else None
    verdict = NOT_DECIDED
    if difference is not None and difference.decided:
        verdict = AGREES if (difference.mean < 0) == column.lower_is_better else DISAGREES
    published = experiment.published
    published_rows = published.rows if published else {}
    both = [published_rows.get(row, {}).get(column.name) for row in (claim.better, than)]
    gap = None if both[0] is None or both[1] is None else both[0] - both[1]
    source = claim.source or (published.source if published else "")
    return Verdict(claim.better, than, column, source, difference, gap, verdict)


def table(
    experiment: Experiment,
    cells: Sequence[Cell],
    command: str,
    *,
    flops: Flops | None = None,
) -> str:
    """Returns the table of the finished runs as Markdown.

    Args:
        experiment: the experiment.
        cells: the result of ``plan_cells``.
        command: the command that writes the table.
        flops: the same as for ``RunDirectory``; None omits FLOPs.

    Raises:
        ValueError: if a finished run lacks a metric.
    """
    sections = [
        [f"# {experiment.title}"],
        [_facts(cells, command)],
        *([[experiment.description.strip()]] if experiment.description else []),
        _rows(experiment, cells),
        *_claims(experiment, cells),
        *_budgets(experiment, cells, flops),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _facts(cells: Sequence[Cell], command: str) -> str:
    runs = runs_of(cells)
    records = [run.record() for run in runs if run.finished]
    text = f"`{command}`"
    for name in ("date", "machine", "versions"):
        seen = sorted({record[name] for record in records if name in record})
        text += f"; {' and '.join(seen)}" if seen else ""
    minutes = sum(record.get("cpu_seconds", 0.0) for record in records) / 60
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(cell.seed for cell in cells))
    text += f"; {minutes:.1f} minutes of processor time. Seeds: {seeds}."
    done = len(records)
    if done < len(runs):
        text += f" **Not finished: {done} of {len(runs)} runs are.**"
    return text


def _rows(experiment: Experiment, cells: Sequence[Cell]) -> list[str]:
    measured = values(experiment, cells)
    published = experiment.published
    head, align = ["row"], ["---"]
    shown = {}
    for column in experiment.columns:
        published_rows = published.rows.values() if published else ()
        shown[column.name] = any(column.name in row for row in published_rows)
        arrow = "↓" if column.lower_is_better else "↑"
        head += [f"{column.name} {arrow}", *["published"] * shown[column.name]]
        align += ["---:"] * (1 + shown[column.name])
    table = [head, align]
    for row in experiment.rows:
        line = [row]
        for column in experiment.columns:
            numbers = list(measured.get((row, column.name), {}).values())
            line.append(_cell(numbers, column.digits))
            if published and shown[column.name]:
                value = published.rows.get(row, {}).get(column.name)
                line.append(_NOTHING if value is None else f"{value:g}")
        table.append(line)
    several = len({cell.seed for cell in cells}) > 1
    note = "Mean ± standard deviation over seeds (lowest to highest)." if several else "One seed."
    lines = [*_markdown(table), "", f"{note} ↑: higher is better, ↓: lower is better."]
    if published:
        lines[-1] += f" Published: {published.source}"
        lines[-1] += "" if published.source.endswith(".") else "."
    return lines


def _cell(numbers: Sequence[float], digits: int) -> str:
    if not numbers:
        return _NOTHING
    mean = f"{statistics.mean(numbers):.{digits}f}"
    if len(numbers) < 2:
        return mean
    ends = f"{min(numbers):.{digits}f} to {max(numbers):.{digits}f}"
    return f"{mean} ± {statistics.stdev(numbers):.{digits}f} ({ends})"


def _claims(experiment: Experiment, cells: Sequence[Cell]) -> list[list[str]]:
    verdicts = comparisons(experiment, cells)
    if not verdicts:
        return []
    table = [
        ["claim", "column", "difference", "95 % interval", "published difference", "verdict"],
        ["---", "---", "---:", "---:", "---:", "---"],
    ]
    for row in verdicts:
        digits = row.column.digits
        difference, interval = _NOTHING, _NOTHING
        if row.difference is not None:
            mean, half = row.difference.mean, row.difference.half
            difference = f"{mean:+.{digits}f}"
            if row.difference.count > 1:
                interval = f"{mean - half:+.{digits}f} to {mean + half:+.{digits}f}"
        published = _NOTHING if row.published is None else f"{row.published:+g}"
        claim = f"{row.better} better than {row.than}"
        claim += f" ({row.source})" if row.source else ""
        verdict = row.verdict
        if verdict == NOT_DECIDED:
            verdict += f": {_why_not(row.difference)}"
        table.append([claim, row.column.name, difference, interval, published, verdict])
    note = (
        "Differences are means over seeds of the first row minus the second one with the same "
        "seed; intervals are of Student's t. Each claim is tested alone, without a correction for "
        "their number."
    )
    return [["## Comparisons"], _markdown(table), [note]]


def _why_not(difference: Difference | None) -> str:
    if difference is None:
        return "no seed has both"
    if difference.count < 2:
        return "one seed has no spread"
    if difference.deviation == 0:
        return "no difference"
    needed = difference.seeds_needed()
    if needed is None:
        return f"{difference.count} seeds; a thousand would not do"
    return f"{difference.count} seeds; about {needed} would decide such a difference"


def _budgets(experiment: Experiment, cells: Sequence[Cell], flops: Flops | None) -> list[list[str]]:
    """Returns the budgets of the runs of each row, as means over seeds."""
    table = [
        ["row", "step", "steps", "tokens", "TFLOP", "seconds", "of the processor"],
        ["---", "---", *["---:"] * 5],
    ]
    seen: dict[Run, str] = {}
    for row in experiment.rows:
        for step in experiment.steps:
            runs = [c.runs[step] for c in cells if c.row == row and step in c.runs]
            runs = [run for run in dict.fromkeys(runs) if run.finished]
            if not runs or runs[0].verb == EVALUATE:
                continue
            if runs[0] in seen:
                shared = f"{step}, as of {seen[runs[0]]}"
                table.append([row, shared, *[""] * 5])
                continue
            seen[runs[0]] = row
            budget = _budget(runs[0], flops)
            records = [run.record() for run in runs]
            times = [
                f"{statistics.mean(recorded):,.0f}" if recorded else _NOTHING
                for recorded in (
                    [record[name] for record in records if name in record]
                    for name in ("seconds", "cpu_seconds")
                )
            ]
            table.append([row, step, *budget, *times])
    if len(table) == 2:
        return []
    if experiment.single:
        table = [[line[0], *line[2:]] for line in table]
    note = (
        "Tokens and FLOPs are of pretraining with full examples: matrix products, forward and "
        "backward, without evaluation. Seconds are means over seeds, with the start of the process."
    )
    return [["## Budget"], _markdown(table), [note]]


def _budget(run: Run, flops: Flops | None) -> list[str]:
    """Returns steps, tokens and TFLOP; a dash for unknown values."""
    recipe = run.loaded
    if not isinstance(recipe, PretrainRecipe):
        steps = logged_steps(run.directory)
        return [_NOTHING if steps is None else f"{steps:,}", _NOTHING, _NOTHING]
    logged = logged_steps(run.directory) or recipe.train.steps or 0
    stages = recipe.stages or [Stage(steps=logged)] if logged or recipe.stages else []
    tokens = [
        stage.steps * (recipe.train.batch_tokens or _batch(recipe, stage)) for stage in stages
    ]
    total = None
    if flops is not None and stages:
        per_token = _flops_of(run, recipe, len(stages), flops)
        if None not in per_token:
            total = sum(t * f for t, f in zip(tokens, per_token, strict=True) if f is not None)
    return [
        f"{sum(stage.steps for stage in stages):,}" if stages else _NOTHING,
        f"{sum(tokens):,}" if stages else _NOTHING,
        _NOTHING if total is None else f"{total / 1e12:.2f}",
    ]


def _batch(recipe: PretrainRecipe, stage: Stage) -> int:
    return (stage.batch_size or recipe.train.batch_size or 0) * (stage.length or recipe.data.length)


def _flops_of(run: Run, recipe: PretrainRecipe, stages: int, flops: Flops) -> list[float | None]:
    """Returns the FLOPs per token of each stage, and keeps them in the run's record."""
    recorded = run.record().get("flops_per_token")
    if isinstance(recorded, list) and len(recorded) == stages:
        return recorded
    counts = [flops(recipe, recipe.data.length, stage) for stage in range(stages)]
    run.write_record({"flops_per_token": counts})
    return counts


def _markdown(table: Iterable[Sequence[str]]) -> list[str]:
    escaped = ([printable(cell).replace("|", "\\|") for cell in line] for line in table)
    return [f"| {' | '.join(line)} |" for line in escaped]

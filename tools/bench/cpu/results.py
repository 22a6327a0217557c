"""Measurements, and how far the answers of two engines agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tools.bench.cpu.turns import Spread, ratios, spread
from tools.bench.cpu.workloads import Shape, Workload


@dataclasses.dataclass
class Measured:
    """What one workload took at one batch size.

    Fields:
        workload: its rows.
        size: rows in a batch.
        found: by engine, what ``Host.time`` returned in each round.
        clock: "cpu" or "wall", which of the seconds count.
    """

    workload: Workload
    size: int
    found: dict[str, list[dict[str, float]]]
    clock: str = "cpu"

    def rates(self, engine: str) -> list[float]:
        """Rows per second in each round."""
        return [each["rows"] / each[self.clock] for each in self.found[engine]]

    def rate(self, engine: str) -> Spread | None:
        """The same over all rounds; None for who did not answer."""
        return spread(self.rates(engine)) if self.found.get(engine) else None

    def ratio(self, engine: str, other: str) -> Spread | None:
        """How many times as many rows per second as the other; None without one of them."""
        if not (self.found.get(engine) and self.found.get(other)):
            return None
        return ratios(self.rates(engine), self.rates(other))

    def busy(self) -> float:
        """By what share more time went by than was computed, at most: others ran beside."""
        every = [each for values in self.found.values() for each in values if "cpu" in each]
        return max((each["wall"] / each["cpu"] - 1 for each in every), default=0.0)


@dataclasses.dataclass
class Results:
    """All measurements.

    Fields:
        shape, length_of: the model's shape, and a function of the number of tokens of a row.
        tables: the measurements by section.
        rates: floating-point operations per second of products, by library, of all rounds.
        agreement: by kind and engine, the share of rows that are as ours, the largest difference.
        memory: by engine, megabytes when the model is loaded, and at most, by workload.
        growth: by what grows and engine, pairs of a size and seconds.
        fit: by engine, seconds of no token, seconds of a token, and R².
        equal: by engine, seconds of a mixed batch divided by those of equal rows.
        base: operations per second of BERT-base.
        training: by task and trainer, what ``Trainer.steps`` returned in each round.
        first: by trainer, what ``Trainer.warm_up`` returned for fine-tuning.
        failures: who was left out, and why.
    """

    shape: Shape
    length_of: Callable[[list], list[int]]
    tables: dict[str, list[Measured]] = dataclasses.field(default_factory=dict)
    rates: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    agreement: dict[tuple[str, str], tuple[float, float]] = dataclasses.field(default_factory=dict)
    memory: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    growth: dict[str, dict[str, list[tuple[int, float]]]] = dataclasses.field(default_factory=dict)
    fit: dict[str, tuple[float, float, float]] = dataclasses.field(default_factory=dict)
    equal: dict[str, Spread] = dataclasses.field(default_factory=dict)
    base: Spread | None = None
    training: dict[str, dict[str, list[dict[str, float]]]] = dataclasses.field(default_factory=dict)
    first: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def best_rate(self) -> float | None:
        """The highest product rate of any library; None when none was measured."""
        return max((spread(values).median for values in self.rates.values()), default=None)

    def share(self, measured: Measured, engine: str) -> float | None:
        """The part of the best product rate that an engine has, counting real tokens alone."""
        if not (self.best_rate and measured.found.get(engine)):
            return None
        lengths = self.length_of(measured.workload.rows)
        shares = [
            self.shape.operations(lengths[: int(each["rows"])])
            / each[measured.clock]
            / self.best_rate
            for each in measured.found[engine]
        ]
        return spread(shares).median


def agreeing(
    found: list[np.ndarray], expected: list[np.ndarray], tolerance: float
) -> tuple[float, float]:
    """The share of rows that differ by at most ``tolerance`` in each value; the most in any.

    Raises:
        ValueError: for answers of another shape.
    """
    shapes = [each.shape for each in found], [each.shape for each in expected]
    if shapes[0] != shapes[1]:
        raise ValueError(f"Answers have shapes {shapes[0]}, expected {shapes[1]}.")
    apart = [
        np.abs(a.astype(np.float64) - b).reshape(len(a), -1).max(-1)
        for a, b in zip(found, expected, strict=True)
    ]
    largest = np.concatenate(apart)
    return float((largest <= tolerance).mean()), float(largest.max())

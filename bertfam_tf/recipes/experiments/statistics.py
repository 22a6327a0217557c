"""Paired differences over seeds: intervals and verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
_MOST_SEEDS = 1000


def student_t_cdf(t: float, degrees: int) -> float:
    """Returns the distribution function of Student's t, by its finite series.

    Args:
        t: the value.
        degrees: the degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        term, total = cosine, 0.0
        for k in range(1, degrees // 2 + 1):
            total += term
            term *= cosine**2 * 2 * k / (2 * k + 1)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term, total = 1.0, 0.0
        for k in range(1, degrees // 2 + 1):
            total += term
            term *= cosine**2 * (2 * k - 1) / (2 * k)
        inside = sine * total
    return 0.5 + inside / 2


def student_t_quantile(probability: float, degrees: int) -> float:
    """Returns the quantile of Student's t for a probability above 0.5."""
    low, high = 0.0, 1.0
    while student_t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if student_t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its interval.

    Attributes:
        mean: the mean.
        half: half the width of the 95 % interval by Student's t; infinite for one pair.
        deviation: the standard deviation of the differences; nan for one pair.
        count: the number of pairs.
    """

    mean: float
    half: float
    deviation: float
    count: int

    @property
    def decided(self) -> bool:
        """Whether the interval does not include 0."""
        return abs(self.mean) > self.half

    def seeds_needed(self) -> int | None:
        """Returns the number of seeds whose interval would not include 0 with the same mean and
        deviation; None for one pair, or if more than a thousand are needed."""
        if self.count < 2 or self.mean == 0:
            return None
        for count in range(2, _MOST_SEEDS + 1):
            quantile = student_t_quantile((1 + CONFIDENCE) / 2, count - 1)
            if abs(self.mean) > quantile * self.deviation / math.sqrt(count):
                return count
        return None


def paired_difference(values: Sequence[float]) -> Difference:
    """Returns the mean of differences with its interval.

    Args:
        values: the difference of each seed, at least one.
    """
    mean, count = statistics.mean(values), len(values)
    if count < 2:
        return Difference(mean, math.inf, math.nan, count)
    deviation = statistics.stdev(values)
    quantile = student_t_quantile((1 + CONFIDENCE) / 2, count - 1)
    return Difference(mean, quantile * deviation / math.sqrt(count), deviation, count)

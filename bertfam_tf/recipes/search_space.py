"""Values of a sweep: lists of values, and distributions that random search samples."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bertfam_tf.validation import in_range, one_of

SEARCHES = ("grid", "random")
_DISTRIBUTIONS = ("uniform", "log_uniform", "choice")
_CALL = re.compile(r"([A-Za-z_]\w*)\((.*)\)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+")
# Draws per trial until a search of few combinations is known to have no new one.
_ATTEMPTS = 200


@dataclass(frozen=True)
class Range:
    """A distribution of numbers.

    Attributes:
        low, high: the bounds; both are included for integers.
        logarithmic: whether logarithms are distributed uniformly, instead of the numbers.
        integer: whether numbers are integers.
    """

    low: float
    high: float
    logarithmic: bool
    integer: bool

    def sample(self, uniform: float) -> str:
        """Returns a number of four digits, or an integer, for a number from 0 to below 1."""
        low, high = (self.low, self.high + 1) if self.integer else (self.low, self.high)
        if self.logarithmic:
            value = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
        else:
            value = low + uniform * (high - low)
        if self.integer:
            return str(min(math.floor(value), int(self.high)))
        return f"{float(f'{value:.4g}')!r}"


Values = Sequence[str] | Range


def values_of(key: str, text: str) -> Values:
    """Parses the values of a key.

    Args:
        key: the key, for errors.
        text: ``16,32`` or ``choice(16, 32)``, whose values are YAML; or ``uniform(0.0, 0.3)`` or
            ``log_uniform(1e-5, 1e-3)``, of integers if both bounds are integers.

    Raises:
        ValueError: for an unknown distribution or invalid bounds.
    """
    call = _CALL.fullmatch(text.strip())
    if call is None:
        return _split(text)
    name, arguments = call[1], [argument.strip() for argument in _split(call[2])]
    one_of(f"The distribution of {key}", name, _DISTRIBUTIONS)
    if name == "choice":
        if not all(arguments):
            raise ValueError(f"choice of {key} must have values, such as choice(16, 32).")
        return arguments
    try:
        low, high = map(float, arguments)
    except ValueError:
        raise ValueError(
            f"{name} of {key} must have two bounds, such as {name}(1e-5, 1e-3), got {text!r}."
        ) from None
    in_range(f"The lower bound of {key}", low, above=0 if name == "log_uniform" else None)
    in_range(f"The upper bound of {key}", high, above=low)
    integer = all(map(_INTEGER.fullmatch, arguments))
    return Range(low, high, name == "log_uniform", bool(integer))


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside of YAML's brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def combinations(
    values: Mapping[str, Values], search: str = "grid", trials: int | None = None, seed: int = 0
) -> Iterator[tuple[str, ...]]:
    """Yields the values of each run, in the order of the keys.

    Args:
        values: values by key.
        search: ``"grid"`` for all combinations; ``"random"`` for samples, which only depend on the
            seed and their number, so that a search with more trials has the same first ones.
        trials: the number of different samples; fewer if there are not so many combinations.
        seed: the seed of the samples.

    Raises:
        ValueError: for another search, missing or superfluous trials, or a range in a grid.
    """
    one_of("search", search, SEARCHES)
    if search == "grid":
        if trials is not None:
            raise ValueError(f"trials must be None for a grid, got {trials}.")
        lists = []
        for key, choices in values.items():
            if isinstance(choices, Range):
                raise ValueError(
                    f"{key} has a distribution, which needs random search (--search random "
                    "--trials N)."
                )
            lists.append(choices)
        return itertools.product(*lists)
    in_range("trials", trials, at_least=1, integer=True)
    assert trials is not None
    return _samples(list(values.values()), trials, seed)


def _samples(values: Sequence[Values], trials: int, seed: int) -> Iterator[tuple[str, ...]]:
    seen: set[tuple[str, ...]] = set()
    for attempt in range(_ATTEMPTS * trials):
        # Python documents that these numbers stay the same in later versions.
        numbers = random.Random(f"{seed}/{attempt}")
        sample = tuple(_sample(value, numbers.random()) for value in values)
        if sample not in seen:
            seen.add(sample)
            yield sample
        if len(seen) == trials:
            return


def _sample(values: Values, uniform: float) -> str:
    if isinstance(values, Range):
        return values.sample(uniform)
    return values[int(uniform * len(values))]

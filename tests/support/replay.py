"""Masks examples as ``Masking`` does with units, one number after another, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Draw(NamedTuple):
    """A run of units that was proposed.

    Fields:
        length: how many units were drawn.
        words: the positions of each unit that was free.
        given: whether the first unit is a given span.
        left: how many tokens were still to be selected.
        accepted: whether it was selected.
    """

    length: int
    words: list[list[int]]
    given: bool
    left: int
    accepted: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.words))


def numbers(seed: Sequence[int]) -> Any:
    """The random numbers of an example, as a function of purpose and index."""

    def mixed(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * factor % 2**32
        return x ^ (x >> 16)

    state = mixed(mixed((int(seed[0]) + 0x9E3779B9) % 2**32) ^ int(seed[1]))

    def number(purpose: int, index: int = 0) -> np.float32:
        of_purpose = mixed((state + purpose * 0x85EBCA6B) % 2**32)
        return np.float32((mixed((of_purpose + index) % 2**32) >> 8) / 2**24)

    return number


def replay(
    units: Sequence[int],
    candidates: Sequence[bool],
    seed: Sequence[int],
    *,
    rate: float = 0.15,
    lengths: Sequence[float] = (1.0,),
    given: Sequence[bool] | None = None,
    words: float = 0.5,
) -> list[Draw]:
    """Masks one example as `Masking` does with units, in plain Python.

    Args:
        units: the number of the unit of each token; special tokens have units of their own.
        candidates: which tokens are real and not special.
        seed: the seed of the example.
        rate, lengths, words: as `Masking` takes them.
        given: which tokens are in a given span.
    """
    number = numbers(seed)
    left = int(np.floor(np.float32(rate) * np.float32(sum(candidates)) + number(0)))
    cumulative = np.cumsum(np.asarray(lengths, "float64") / sum(lengths)).astype("float32")[:-1]
    tokens: dict[int, list[int]] = {}
    for position, (unit, candidate) in enumerate(zip(units, candidates, strict=True)):
        tokens.setdefault(unit, [])
        if candidate and (given is None or words > 0 or given[position]):
            tokens[unit].append(position)
    free = {unit for unit, positions in tokens.items() if positions}
    is_given = {unit: given is not None and given[tokens[unit][0]] for unit in free}
    draws: list[Draw] = []
    while left > 0 and free:
        step = len(draws)
        pool = sorted(free)
        if given is not None:
            want = number(8, step) >= words
            pool = [unit for unit in pool if is_given[unit] == want] or pool
        first = pool[min(int(number(2, step) * np.float32(len(pool))), len(pool) - 1)]
        length = 1 + int((number(3, step) >= cumulative).sum())
        run = []
        for unit in range(first, first + length):
            if not tokens.get(unit):
                break  # a special token, or padding
            run += [unit] if unit in free else []
        free -= set(run)
        draw = Draw(length, [tokens[unit] for unit in run], is_given[first], left, True)
        fits = np.float32(left) >= number(4, step) * np.float32(draw.size)
        draws.append(draw._replace(accepted=bool(fits)))
        left -= draw.size
    return draws

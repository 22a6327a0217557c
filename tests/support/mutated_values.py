"""Odd values, and where to put them in JSON."""

import random
from typing import Any

EXECUTED = "executed"  # a file of this name proves that code of a file was run

DEEP = 100_000
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.5, 1e308, 1e-300),
    *(255, 10**6, 2 * 10**7, 2**31 - 1, 2**31, 2**63, 10**400, -(2**63)),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "\x00", "\ud800", "🙂", "a" * 5000, "../../etc/passwd", "/etc/passwd", "nan", "1"),
    *([], {}, [[]], [None], [1, 2, 3], {"": {}}, {"a": 1}, [{"content": 1}], ["x"] * 1000),
]
HUGE = (10**6, 2 * 10**7, 2**31 - 1, 10**12)


def paths_of(value: Any, at: tuple = ()) -> list[tuple]:
    found = [at]
    pairs: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else pairs:
        found += paths_of(inner, (*at, key))
    return found


def replaced(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def chosen(value: Any, rng: random.Random) -> tuple:
    # Chosen by level, otherwise most cases would be entries of a vocabulary.
    paths = [path for path in paths_of(value) if path]
    depth = rng.choice(sorted({len(path) for path in paths}))
    return rng.choice([path for path in paths if len(path) == depth])

"""Keys of recipes that were renamed since version 0.1: read with a warning, never written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.validation import one_of


@dataclass(frozen=True)
class Renamed:
    """A renamed key.

    Attributes:
        sections: the path of its section, a key for each level, ``*`` for any key or index.
        old, new: the names.
        values: the new values by the old ones; empty if they are unchanged.
    """

    sections: tuple[str, ...]
    old: str
    new: str
    values: Mapping[Any, Any] = field(default_factory=dict)


_RECOMPUTE = ("recompute", "gradient_checkpointing", {"none": False, "blocks": True})
RENAMED = (
    Renamed((), "embedder", "trainer"),
    Renamed(("objectives",), "masked_lm", "mlm"),
    Renamed(("objectives",), "causal_lm", "clm"),
    Renamed(("train",), *_RECOMPUTE),
    Renamed(("stages", "*", "train"), *_RECOMPUTE),
)


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a recipe, read from YAML, with the current names.

    Raises:
        ValueError: if a key has both names, or an old key has an unknown value.
    """
    for row in RENAMED:
        values = _renamed(values, row.sections, row, "")
    return values


def _renamed(values: Any, sections: tuple[str, ...], row: Renamed, path: str) -> Any:
    if sections:
        keys = list(_matching(values, sections[0]))
        copy = values.copy() if keys else values
        for key in keys:
            copy[key] = _renamed(values[key], sections[1:], row, f"{path}{key}.")
        return copy
    if not isinstance(values, dict) or row.old not in values:
        return values
    value = values[row.old]
    rest = {key: x for key, x in values.items() if key != row.old}
    if value is None:
        return rest
    old, new = f"{path}{row.old}", f"{path}{row.new}"
    if row.new in rest:
        raise ValueError(f"{old} is called {new}, got both; remove {old}.")
    if row.values:
        one_of(old, value, row.values, f"; it is called {new}")
        value = row.values[value]
    warnings.warn(
        f"{old} is called {new}; the old name is for version 0.1 only.", FutureWarning, stacklevel=2
    )
    # At the position of the old key: the order of objectives is the order of their losses.
    return {
        row.new if key == row.old else key: value if key == row.old else x
        for key, x in values.items()
    }


def _matching(values: Any, section: str) -> Iterator[Any]:
    if section != "*":
        yield from [section] if isinstance(values, dict) and section in values else []
    elif isinstance(values, list):
        yield from range(len(values))
    elif isinstance(values, dict):
        yield from values

"""Keys of recipes that have another name since version 0.1: read with a warning, never written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.validation import one_of


@dataclass(frozen=True)
class Renamed:
    """A key that has another name.

    Attributes:
        sections: where it is, a key for each level, ``*`` for any key or index.
        old, new: the names.
        values: the new values by the old ones; empty if they are the same.
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
    """Returns the values of a recipe, read from YAML, with today's names.

    Raises:
        ValueError: for a key that is there with both names, or an unknown value of an old key.
    """
    for each in RENAMED:
        values = _renamed(values, each.sections, each, "")
    return values


def _renamed(values: Any, sections: tuple[str, ...], each: Renamed, path: str) -> Any:
    if sections:
        keys = list(_matching(values, sections[0]))
        copy = values.copy() if keys else values
        for key in keys:
            copy[key] = _renamed(values[key], sections[1:], each, f"{path}{key}.")
        return copy
    if not isinstance(values, dict) or each.old not in values:
        return values
    value = values[each.old]
    rest = {key: x for key, x in values.items() if key != each.old}
    if value is None:
        return rest
    old, new = f"{path}{each.old}", f"{path}{each.new}"
    if each.new in rest:
        raise ValueError(f"{old} is called {new}, got both; remove {old}.")
    if each.values:
        one_of(old, value, each.values, f"; it is called {new}")
        value = each.values[value]
    warnings.warn(
        f"{old} is called {new}; the old name is for version 0.1 only.", FutureWarning, stacklevel=2
    )
    # In the place of the old key: the order of objectives is the order of their losses.
    return {
        each.new if key == each.old else key: value if key == each.old else x
        for key, x in values.items()
    }


def _matching(values: Any, section: str) -> Iterator[Any]:
    if section != "*":
        yield from [section] if isinstance(values, dict) and section in values else []
    elif isinstance(values, list):
        yield from range(len(values))
    elif isinstance(values, dict):
        yield from values

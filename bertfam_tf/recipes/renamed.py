"""Keys of recipes that were renamed since version 0.1: read with a warning, never written."""

from __future__ import annotations

import copy
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
    values = copy.deepcopy(values)
    for row in RENAMED:
        for path, section in _sections(values, row.sections):
            if isinstance(section, dict) and row.old in section:
                _rename(section, row, path)
    return values


def _sections(values: Any, keys: tuple[str, ...], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the sections at a path of keys, each with its place, such as ``stages.0.train.``."""
    if not keys:
        yield path, values
        return
    inner = dict(enumerate(values)) if isinstance(values, list) else values
    for key, section in inner.items() if isinstance(inner, dict) else ():
        if keys[0] in ("*", key):
            yield from _sections(section, keys[1:], f"{path}{key}.")


def _rename(section: dict[str, Any], row: Renamed, path: str) -> None:
    value = section[row.old]
    if value is None:
        del section[row.old]
        return
    old, new = f"{path}{row.old}", f"{path}{row.new}"
    if row.new in section:
        raise ValueError(f"{old} is called {new}, got both; remove {old}.")
    if row.values:
        one_of(old, value, row.values, f"; it is called {new}")
        value = row.values[value]
    warnings.warn(
        f"{old} is called {new}; the old name is for version 0.1 only.", FutureWarning, stacklevel=2
    )
    # At the position of the old key: the order of objectives is the order of their losses.
    items = [(row.new, value) if key == row.old else (key, x) for key, x in section.items()]
    section.clear()
    section.update(items)

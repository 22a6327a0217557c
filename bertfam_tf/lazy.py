"""Modules whose names are imported when they are first used."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from bertfam_tf.hints import hint


def lazy(
    module: str,
    home: Mapping[str, str],
    names: Iterable[str] = (),
    moved: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        module: the package's name.
        home: the submodule that defines each name, or is that name.
        names: all public names.
        moved: names that moved since version 0.1, separated by spaces, by their module now;
            ``old:new`` if they were also renamed. Using one of them warns.
    """
    pairs = [(now, name) for now, listed in (moved or {}).items() for name in listed.split()]
    new_homes = {name.partition(":")[0]: (now, name.rpartition(":")[2]) for now, name in pairs}

    def of_module(name: str) -> Any:
        if name in home:
            submodule = import_module(f"{module}.{home[name]}")
            is_module = home[name].rpartition(".")[2] == name
            return submodule if is_module else getattr(submodule, name)
        if name in new_homes:
            new_module, new_name = new_homes[name]
            warnings.warn(
                f"{module}.{name} is now {new_module}.{new_name}; the old name is for version 0.1 "
                "only.",
                FutureWarning,
                stacklevel=2,
            )
            return getattr(import_module(new_module), new_name)
        line = hint(name)
        text = f"module {module!r} has no attribute {name!r}"
        raise AttributeError(f"{text}.{line}" if line else text)

    return of_module, lambda: sorted(names)

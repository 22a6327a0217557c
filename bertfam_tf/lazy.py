"""Modules whose names are imported when they are first used."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    module: str, home: Mapping[str, str], names: Iterable[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    Args:
        module: the package's name.
        home: the submodule of each name that is imported on first use.
        names: all public names.
    """

    def of_module(name: str) -> Any:
        if name in home:
            return getattr(import_module(f"{module}.{home[name]}"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return of_module, lambda: sorted(names)

"""Error texts for names that somebody mistyped, and for values that a file holds."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

# What a file holds may be megabytes, or nested a thousand deep.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Says which name was not known, the nearest known one, and all of them."""
    given, names = short(given), sorted(known)
    near = get_close_matches(given, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {given!r}.{hint} Known: {', '.join(names)}."


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Joins names for an error text, cutting a long list after ``limit``."""
    names = list(names)
    rest = f", … and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def short(text: object, limit: int = 300) -> str:
    """The text for an error, without what goes beyond ``limit``; an error without text by type."""
    whole = str(text)
    if not whole and isinstance(text, BaseException):
        whole = type(text).__name__
    return whole if len(whole) <= limit else f"{whole[:limit]}…"


def shown(value: Any) -> str:
    """A value as Python writes it, for an error; the middle of a long one is left out."""
    return _REPR.repr(value)

"""Error texts for names that somebody mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Says which name was not known, the nearest known one, and all of them."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {given!r}.{hint} Known: {', '.join(names)}."


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Joins names for an error text, cutting a long list after ``limit``."""
    names = list(names)
    rest = f", … and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest

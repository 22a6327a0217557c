"""Error messages for mistyped names, for values read from files, and for no text at all."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from bertfam_tf.hints import hint

NO_TEXT = "There is no text in the input."
ONE_WEIGHT = "sample_weight must be one number for each example"
# Of other targets, Keras would take the largest for the label.
NO_CLASS_WEIGHT = "class_weight is for one label of each example; use sample_weight here."
# A value from a file may be megabytes long, or nested a thousand levels deep.
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12


def unknown(kind: str, given: str, known: Iterable[str], line: str = "") -> str:
    """Returns an error message with the unknown name, the most similar one, and all known ones.

    The list of known names, which may be a file's columns, is cut after 2,000 characters.

    Args:
        kind: the kind of the named object.
        given: the unknown name.
        known: the known names.
        line: a result of ``hint``, which takes the place of the most similar name.
    """
    given, names = truncated(given), sorted(printable(truncated(name)) for name in known)
    near = get_close_matches(given, names, n=1)
    meant = line or (f" Did you mean {near[0]!r}?" if near else "")
    return f"Unknown {kind} {given!r}.{meant} Known: {truncated(', '.join(names), 2000)}."


def join_names(names: Iterable[str], limit: int = 12) -> str:
    """Joins names for an error message, at most ``limit`` of them."""
    names = list(names)
    rest = f", … and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def printable(text: str) -> str:
    """Returns the text with escapes for control characters, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Returns a text of several lines with the escapes of ``printable``."""
    return "\n".join(map(printable, text.split("\n")))


def truncated(text: object, limit: int = 300) -> str:
    """Returns the text, truncated to ``limit`` characters; for an error without text, its type."""
    whole = str(text)
    if not whole and isinstance(text, BaseException):
        whole = type(text).__name__
    return whole if len(whole) <= limit else f"{whole[:limit]}…"


def truncated_repr(value: Any) -> str:
    """Returns the ``repr`` of a value; the middle of a long one is omitted."""
    return _REPR.repr(value)


def unexpected(function: str, given: Iterable[str], known: Iterable[str]) -> str:
    """Returns an error message for a keyword argument that a function does not have."""
    name = next(iter(given))
    return (
        f"{function}() got an unexpected keyword argument {name!r}. "
        f"{unknown('argument', name, known, hint(name))}"
    )

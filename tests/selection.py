"""Selects the cases that `make test` runs; `make test-all` runs all."""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

import pytest

import bertfam_tf as bf

# One family for each architecture: an encoder, relative attention with two streams, and a decoder.
WIRINGS = ("bert", "xlnet", "gpt2")


def in_full(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All cases; `make test` only runs those in ``quick``. Tuples are several parameters."""
    return [
        case
        if case in quick
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.full)
        for case in cases
    ]


def only_in(mark: str, *ids: str) -> pytest.MarkDecorator:
    """Marks some of a test's cases.

    Args:
        mark: ``extended`` or ``full``.
        ids: the cases, as pytest prints them in brackets.
    """
    return pytest.mark.only_in(mark, *ids)


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Adds the marks of ``only_in`` to the cases.

    Raises:
        pytest.UsageError: for a case that a collected test does not have.
    """
    given: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    for item in items:
        for mark in item.iter_markers("only_in"):
            test = item.nodeid.partition("[")[0]
            unknown = given.setdefault((test, mark.args), set(mark.args[1:]))
            case = item.callspec.id if hasattr(item, "callspec") else ""
            if case in mark.args[1:]:
                item.add_marker(mark.args[0])
                unknown.discard(case)
    for (test, _), unknown in given.items():
        if unknown:
            raise pytest.UsageError(f"{test} has no such cases: {sorted(unknown)}")


def each_once(
    cases: Iterable[Any], parts: Callable[[Any], tuple[Hashable, ...]] = lambda case: case
) -> list[Any]:
    """All cases; `make test` only runs cases with a part that no previous case has.

    Args:
        cases: values of one parameter, or tuples of several.
        parts: maps a case to the parts to cover, such as family and head.
    """
    cases, quick, seen = list(cases), [], set()
    for case in cases:
        new = set(enumerate(parts(case))) - seen
        if new:
            quick.append(case)
        seen |= new
    return in_full(cases, quick)


def wirings() -> list[Any]:
    """All families; `make test` runs one for each architecture."""
    return in_full(bf.families(), WIRINGS)

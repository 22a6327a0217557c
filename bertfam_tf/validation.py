"""Checks ranges and choices of values, with the same wording in all errors.

Settings are dataclasses whose fields declare what they accept, next to their default::

    @dataclass(frozen=True)
    class Settings:
        epochs: int = setting(3, at_least=1)
        schedule: str = setting("linear", choices=("linear", "cosine"))

        def __post_init__(self):
            check(self, "train")

``Settings(epochs=0)`` then raises "train.epochs must be at least 1, got 0."
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from bertfam_tf.names import truncated, truncated_repr

_RULE = "rule"


@dataclass(frozen=True)
class Rule:
    """The values that a setting accepts.

    Attributes:
        choices: all of them; None for any.
        at_least, above: the minimum, or the number below the minimum; None for no bound.
        at_most, below: the maximum, or the number above the maximum; None for no bound.
        integer: whether only integers are accepted.
    """

    choices: tuple[Any, ...] | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    integer: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raises ``ValueError`` for a value that is not accepted; the text begins with ``name``."""
        if self.choices is not None:
            one_of(name, value, self.choices)
        else:
            bounds = dataclasses.asdict(self)
            del bounds["choices"]
            in_range(name, value, **bounds)

    def __str__(self) -> str:
        """The rule as it follows "must be"."""
        if self.choices is not None:
            return _listed(self.choices)
        return _range(self.at_least, self.at_most, self.above, self.below)


def setting(
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    choices: Iterable[Any] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Returns a dataclass field whose values ``check`` checks.

    Args:
        default, default_factory: the same as for ``dataclasses.field``; without either the setting
            is required.
        choices, at_least, at_most, above, below: the same as for ``Rule``.
    """
    metadata = accepts(
        choices=choices, at_least=at_least, at_most=at_most, above=above, below=below
    )
    if default_factory is not MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def accepts(*, choices: Iterable[Any] | None = None, **bounds: Any) -> dict[str, Any]:
    """Returns the metadata of a dataclass field that has other metadata too.

    Args:
        choices, **bounds: the same as for ``Rule``.
    """
    return {_RULE: Rule(None if choices is None else tuple(choices), **bounds)}


def rules(settings: Any) -> dict[str, Rule]:
    """Returns the rules of a dataclass, or of an instance, by field."""
    return {f.name: f.metadata[_RULE] for f in dataclasses.fields(settings) if _RULE in f.metadata}


def check(settings: Any, section: str = "") -> None:
    """Checks the fields of a dataclass that ``setting`` declared.

    A field whose type includes None accepts None, and the values of a list or a dict are checked
    one by one.

    Args:
        settings: the instance.
        section: the prefix of field names in errors, such as ``train``.

    Raises:
        ValueError: for a value that is not accepted, or no integer where the type is ``int``.
    """
    for field in dataclasses.fields(settings):
        rule = field.metadata.get(_RULE)
        if rule is None:
            continue
        kind = str(field.type)  # its source text, as annotations are not evaluated
        rule = dataclasses.replace(rule, integer=kind.split(" ")[0] == "int")
        name = f"{section}.{field.name}" if section else field.name
        for at, value in _values(name, getattr(settings, field.name)):
            if value is None and "None" in kind:
                continue
            rule.check(at, value)


def check_unused(settings: Any, section: str, names: Iterable[str], when: str) -> None:
    """Raises ``ValueError`` for fields without effect that do not have their defaults.

    Args:
        settings: an instance of a dataclass.
        section: the prefix of field names in errors, such as ``train``.
        names: the fields.
        when: why they have no effect, for the error, such as ``"unless masking.unit is tagged"``.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for name in names:
        value, default = getattr(settings, name), defaults[name]
        if value != default:
            usual = "null" if default is None else default
            raise ValueError(
                f"{section}.{name} must be {usual} or omitted {when}, got {truncated_repr(value)}."
            )


def one_of(name: str, value: Any, choices: Iterable[Any], why: str = "") -> None:
    """Raises ``ValueError`` for a value that is none of some choices, with the most similar one.

    Args:
        name: the setting or argument, for the error.
        value: its value.
        choices: the accepted values.
        why: a reason that the error ends with, such as ``"; other optimizers have no such slot"``.
    """
    known = list(choices)
    if any(isinstance(value, type(choice)) and value == choice for choice in known):
        return
    near = get_close_matches(truncated(value), map(str, known), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be {_listed(known)}, got {truncated_repr(value)}{why}.{hint}")


def in_range(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    integer: bool = False,
) -> None:
    """Raises ``ValueError`` unless the value is a finite number within bounds.

    Args:
        name: the setting or argument, for the error.
        value: its value.
        at_least, at_most, above, below, integer: the same as for ``Rule``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral if integer else Real):
        kind = "an integer" if integer else "a number"
        raise ValueError(f"{name} must be {kind}, got {truncated_repr(value)}.")
    number: Any = value
    inside = (
        (at_least is None or number >= at_least)
        and (at_most is None or number <= at_most)
        and (above is None or number > above)
        and (below is None or number < below)
    )
    # An integer may be too large for a float, and is finite.
    if inside and (isinstance(value, Integral) or math.isfinite(value)):
        return
    allowed = _range(at_least, at_most, above, below)
    if not isinstance(value, Integral) and not math.isfinite(value):
        allowed = f"{allowed} and finite" if allowed else "finite"
    raise ValueError(f"{name} must be {allowed}, got {truncated(value, 40)}.")


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, element in value.items():
            yield from _values(f"{name}.{key}", element)
    elif isinstance(value, list | tuple):
        for i, element in enumerate(value):
            yield from _values(f"{name}.{i}", element)
    else:
        yield name, value


def _listed(choices: Iterable[Any]) -> str:
    names = [str(choice) for choice in choices]
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"


def _range(
    at_least: float | None, at_most: float | None, above: float | None, below: float | None
) -> str:
    if at_least is not None and at_most is not None:
        return f"from {at_least} to {at_most}"
    bounds = [("at least", at_least), ("above", above), ("at most", at_most), ("below", below)]
    return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)

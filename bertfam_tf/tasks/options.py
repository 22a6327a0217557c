"""Options of tasks: each is declared and checked in one place.

The constructor, ``from_pretrained``, ``save`` and ``load``, and recipes all read the dataclass of a
task's options. Type checkers read the ``TypedDict`` next to it, which lists them as keyword
arguments; tests/tasks/test_options.py compares both.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from inspect import Parameter
from typing import Any, Literal, Self, TypedDict

import numpy as np

from bertfam_tf.models import Backbone
from bertfam_tf.names import unexpected
from bertfam_tf.text.packing import Padding
from bertfam_tf.validation import accepts, check

_MAX_LENGTH = 512
_SETTABLE, _CLASSES = "settable", "classes"
_LANGUAGES = ("language_id", "languages")


def option(
    default: Any = MISSING,
    *,
    settable: bool = False,
    kw_only: bool = MISSING,  # type: ignore[assignment]
    **rule: Any,
) -> Any:
    """Declares a field of ``Options``; the docstring of the task describes it.

    Args:
        default: its value if omitted; without a default the option is required.
        settable: whether it may be changed on a task, whose later answers use the new value.
        kw_only: the same as for ``dataclasses.field``.
        **rule: the values that it may have: ``choices``, or bounds such as ``at_least``, as for
            ``validation.Rule``; without these any.
    """
    metadata = {_SETTABLE: settable, **(accepts(**rule) if rule else {})}
    return field(default=default, kw_only=kw_only, metadata=metadata)


def classes() -> Any:
    """Declares the field for the names of a head's scores; ``from_pretrained`` may omit it."""
    return field(metadata={_CLASSES: True})


class OptionArguments(TypedDict, total=False):
    """``Options`` as keyword arguments, except the language."""

    max_length: int | None
    padding: Padding
    languages: Mapping[str, int] | None


class BackboneOverrides(TypedDict, total=False):
    """Fields of a backbone's config that ``from_pretrained`` may change without other weights."""

    attention_dropout: float
    classifier_dropout: float | None
    clamp_len: int
    dropout: float
    embedding_dropout: float
    feed_forward_dropout: float
    initializer_range: float
    mem_len: int | None
    norm_epsilon: float
    pooler: bool
    pooler_dropout: float
    reuse_len: int | None
    same_length: bool
    span_dropout: float
    summary_dropout: float


class LoadingArguments(BackboneOverrides, total=False):
    """Keyword arguments of ``from_pretrained`` that are not options of a task."""

    language: str | int | None


class PretrainedArguments(OptionArguments, LoadingArguments, total=False):
    """Keyword arguments of ``from_pretrained`` of every task."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every task has. Subclasses add fields, and check them in ``__post_init__``."""

    max_length: int | None = option(None)
    padding: Padding = option("longest")
    language_id: int | None = option(None)
    languages: Mapping[str, int] | None = option(None)

    def resolved(self, backbone: Backbone) -> Self:
        """Returns a copy with the defaults that depend on the backbone."""
        if self.max_length is not None:
            return self
        return dataclasses.replace(self, max_length=backbone.max_length or _MAX_LENGTH)

    def stored(self) -> dict[str, Any]:
        """Returns the options as JSON values by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {n: v for n, v in values.items() if v is not None or n not in _LANGUAGES}


@dataclass(frozen=True, kw_only=True)
class PairOptions(Options):
    """Options of a task with an optional text."""

    pair: bool | None = option(None, settable=True)


class PairArguments(OptionArguments, total=False):
    """``PairOptions`` as keyword arguments."""

    pair: bool | None


class PretrainedPairArguments(PairArguments, LoadingArguments, total=False):
    """Keyword arguments of ``from_pretrained`` of a task with an optional text."""


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(Options):
    """Options of a task whose head reads a vector for each token."""

    feature_layers: Sequence[int] | Literal["all"] | None = option(None)
    combine_layers: Literal["concatenate", "sum", "mix"] = option(
        "concatenate", choices=("concatenate", "sum", "mix")
    )

    def __post_init__(self) -> None:
        layers = self.feature_layers
        if layers is None or layers == "all":
            if layers is None and self.combine_layers != "concatenate":
                raise ValueError(
                    f"combine_layers={self.combine_layers!r} needs feature_layers, such as 'all'."
                )
            return
        numbers = not isinstance(layers, str) and isinstance(layers, Iterable)
        values = tuple(layers) if numbers else ()
        if not values or any(type(value) is not int for value in values):
            raise ValueError(f"feature_layers must be numbers of layers or 'all', got {layers!r}.")
        object.__setattr__(self, "feature_layers", values)

    def stored(self) -> dict[str, Any]:
        stored = super().stored()
        if self.feature_layers is None:
            del stored["feature_layers"], stored["combine_layers"]
        return stored

    @property
    def head_input(self) -> dict[str, Any]:
        """Arguments of ``heads.build``."""
        return {"layers": self.feature_layers, "combine": self.combine_layers}


class FeatureArguments(OptionArguments, total=False):
    """``FeatureOptions`` as keyword arguments."""

    feature_layers: Sequence[int] | Literal["all"] | None
    combine_layers: Literal["concatenate", "sum", "mix"]


def names(kind: type[Options]) -> list[str]:
    """Returns the names of a task's options, in order."""
    return [field.name for field in dataclasses.fields(kind)]


def shared(kind: type[Options], other: type[Options]) -> set[str]:
    """Returns the names of the options of one kind that mean the same in another.

    Both inherit them from the same class: other options of the same name are other options.
    """

    def owner(options: type[Options], name: str) -> type:
        return next(cls for cls in options.__mro__ if name in inspect.get_annotations(cls))

    both = {*names(kind)}.intersection(names(other))
    return {name for name in both if owner(kind, name) is owner(other, name)}


def settable(kind: type[Options]) -> set[str]:
    """Returns the names of the options that may be changed on a task."""
    return {field.name for field in dataclasses.fields(kind) if field.metadata.get(_SETTABLE)}


def class_option(kind: type[Options]) -> str | None:
    """Returns the option with the names of the head's scores; None if there is none."""
    return next((f.name for f in dataclasses.fields(kind) if f.metadata.get(_CLASSES)), None)


def positional(kind: type[Options]) -> list[str]:
    """Returns the names of the options that are also positional arguments."""
    return [field.name for field in dataclasses.fields(kind) if not field.kw_only]


def make(kind: type[Options], owner: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """Creates the options of a task.

    Raises:
        TypeError: for an option that does not exist; the message lists those that do.
        ValueError: for a value that an option does not accept.
    """
    wrong = kwargs.keys() - set(names(kind))
    if wrong:
        raise TypeError(unexpected(owner, sorted(wrong), names(kind)))
    settings = kind(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
    check(settings)
    return settings


def plain(value: Any) -> Any:
    """Returns a scalar of NumPy as Python's, which JSON can store; other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def signature(kind: type[Options]) -> inspect.Signature:
    """Returns the signature of ``Task(backbone, tokenizer, …)``, with each option by name."""
    first = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
        for name, annotation in (("backbone", "Backbone"), ("tokenizer", "Tokenizer"))
    ]
    options = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY if field.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in sorted(dataclasses.fields(kind), key=lambda x: bool(x.kw_only))
    ]
    last = Parameter("name", Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    return inspect.Signature([*first, *options, last])

"""Options of tasks: each is declared, documented and checked in one place.

The constructor, ``from_pretrained``, ``save`` and ``load``, recipes and the documentation of a task
all read the dataclass of its options.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, Self

from bertfam_tf.models import Backbone
from bertfam_tf.names import unexpected
from bertfam_tf.text.packing import Padding
from bertfam_tf.validation import accepts, check

_MAX_LENGTH = 512
_DOC, _SETTABLE, _CLASSES = "doc", "settable", "classes"
# Instead of ``language_id``, which a checkpoint knows.
_LANGUAGE = (
    "code of the texts' language, such as ``'de'``, for checkpoints of XLM, or its number if "
    "they name none; None for their tokenizer's."
)
_LANGUAGES = ("language_id", "languages")
_WIDTH = 100


def option(
    doc: str,
    default: Any = MISSING,
    *,
    settable: bool = False,
    choices: Iterable[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A field of ``Options``.

    Args:
        doc: its description, as in a docstring's "Args".
        default: its value if omitted; without a default the option is required.
        settable: whether it may be changed on a task, whose later answers use the new value.
        choices: all values that it may have; None for any.
        **kwargs: of ``dataclasses.field``.
    """
    metadata = {_DOC: doc, _SETTABLE: settable}
    if choices is not None:
        metadata |= accepts(choices=choices)
    return field(default=default, metadata=metadata, **kwargs)


def classes(doc: str) -> Any:
    """A field of ``Options`` for the names of a head's scores; ``from_pretrained`` may omit it."""
    return field(metadata={_DOC: doc, _CLASSES: True})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every task has. Subclasses add fields, and check them in ``__post_init__``."""

    max_length: int | None = option(
        "maximum number of tokens of an example; longer ones are truncated. None for the "
        f"backbone's number of positions, or {_MAX_LENGTH} if that is unlimited.",
        None,
    )
    padding: Padding = option(
        "what batches are padded to: ``'longest'``, their longest row; ``'max_length'``, all of "
        "them; or widths such as ``(32, 64, 128)``, the smallest that is enough. The latter two "
        "are for XLA and TPUs, which compile once for each width.",
        "longest",
    )
    language_id: int | None = option(
        "the language of texts that come without one, where the backbone has language embeddings.",
        None,
    )
    languages: Mapping[str, int] | None = option(
        "ids of the backbone's languages by their codes, such as ``{'en': 0, 'de': 1}``; None for "
        "numbers as codes.",
        None,
    )

    def resolved(self, backbone: Backbone) -> Self:
        """These options with the defaults that depend on the backbone."""
        if self.max_length is not None:
            return self
        return dataclasses.replace(self, max_length=backbone.max_length or _MAX_LENGTH)

    def stored(self) -> dict[str, Any]:
        """All of them as JSON values, by name."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {n: v for n, v in values.items() if v is not None or n not in _LANGUAGES}


@dataclass(frozen=True, kw_only=True)
class PairOptions(Options):
    """Options of a task with an optional text."""

    pair: bool | None = option(
        "whether an example has the optional text; None decides by the first data.",
        None,
        settable=True,
    )


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(Options):
    """Options of a task whose head reads a vector for each token."""

    feature_layers: Sequence[int] | Literal["all"] | None = option(
        "the layers whose outputs the head reads: indices, 0 for the embeddings' output and -1 for "
        "the last layer's, such as ``(-4, -3, -2, -1)``; or ``'all'`` layers without the "
        "embeddings. None for the last one's.",
        None,
    )
    combine_layers: Literal["concatenate", "sum", "mix"] = option(
        "what makes one vector of these: ``'concatenate'``, ``'sum'``, or ``'mix'``, a sum with "
        "trained weights (ELMo, arXiv 1802.05365). BERT compares them in table 7 (arXiv "
        "1810.04805).",
        "concatenate",
        choices=("concatenate", "sum", "mix"),
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
        if not values or any(type(each) is not int for each in values):
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


def names(kind: type[Options]) -> list[str]:
    """The options of a kind, in order."""
    return [each.name for each in dataclasses.fields(kind)]


def settable(kind: type[Options]) -> set[str]:
    """Names of the options that may be changed on a task."""
    return {each.name for each in dataclasses.fields(kind) if each.metadata.get(_SETTABLE)}


def class_option(kind: type[Options]) -> str | None:
    """The option that has the names of the head's scores, if there is one."""
    return next((f.name for f in dataclasses.fields(kind) if f.metadata.get(_CLASSES)), None)


def positional(kind: type[Options]) -> list[str]:
    """Names of the options that may be given without their names."""
    return [each.name for each in dataclasses.fields(kind) if not each.kw_only]


def make(kind: type[Options], owner: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """Options of a kind.

    Raises:
        TypeError: for an option that does not exist; the message lists those that do.
        ValueError: for a value that an option does not accept.
    """
    wrong = kwargs.keys() - set(names(kind))
    if wrong:
        raise TypeError(unexpected(owner, sorted(wrong), names(kind)))
    made = kind(*args, **kwargs)
    check(made)
    return made


def _parameters(kind: type[Options], pretrained: bool) -> list[Parameter]:
    found = []
    for each in sorted(dataclasses.fields(kind), key=lambda each: bool(each.kw_only)):
        name, default, annotation = each.name, each.default, each.type
        if pretrained and each.metadata.get(_CLASSES):
            default, annotation = None, f"{annotation} | None"
        if pretrained and name == "language_id":
            name, annotation = "language", "str | int | None"
        how = Parameter.KEYWORD_ONLY if each.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        default = Parameter.empty if default is MISSING else default
        found.append(Parameter(name, how, default=default, annotation=annotation))
    return found


def constructor_signature(kind: type[Options]) -> inspect.Signature:
    """Signature of ``Task(backbone, tokenizer, …)``."""
    first = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
        for name, annotation in (("backbone", "Backbone"), ("tokenizer", "Tokenizer"))
    ]
    last = Parameter("name", Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    return inspect.Signature([*first, *_parameters(kind, pretrained=False), last])


def pretrained_signature(kind: type[Options]) -> inspect.Signature:
    """Signature of ``Task.from_pretrained(path, …)``, as a class method's function has it."""
    first = [
        Parameter("cls", Parameter.POSITIONAL_OR_KEYWORD),
        Parameter("path", Parameter.POSITIONAL_OR_KEYWORD, annotation=str | Path),
    ]
    last = Parameter("overrides", Parameter.VAR_KEYWORD, annotation=Any)
    return inspect.Signature([*first, *_parameters(kind, pretrained=True), last])


def documented(text: str, kind: type[Options], *, pretrained: bool = False) -> str:
    """A docstring whose line ``{options}`` is replaced by a description of each option."""
    lines = []
    for line in text.splitlines():
        if line.strip() != "{options}":
            lines.append(line)
            continue
        indent = line[: line.index("{")]
        for each in sorted(dataclasses.fields(kind), key=lambda each: bool(each.kw_only)):
            name, doc = each.name, each.metadata[_DOC]
            if pretrained and name == "language_id":
                name, doc = "language", _LANGUAGE
            if pretrained and each.metadata.get(_CLASSES):
                doc = f"{doc.removesuffix('.')}; None takes those stored with the head."
            hanging = indent + 4 * " "
            lines += textwrap.wrap(
                f"{name}: {doc}", _WIDTH, initial_indent=indent, subsequent_indent=hanging
            )
    return "\n".join(lines)

"""The table of families. A family's card registers itself; tests, the CLI and docs loop over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertfam_tf.names import unknown


@dataclass(frozen=True)
class Family:
    """What is particular to one family of models.

    Attributes:
        name: the family's name, as in ``bertfam_tf.build(name)``.
        config: the card's frozen ``Config`` dataclass.
        wire: ``wire(config) -> (inputs, outputs)``, two dicts of Keras tensors.
        sizes: for each published size, the config fields that differ from the defaults.
        huggingface: where the parts are found in a Hugging Face checkpoint.
        tokenizer: the kind of tokenizer that the published checkpoints use.
        heads: the heads that the family has upstream.
        objectives: the pretraining objectives of its paper.
    """

    name: str
    config: Any
    wire: Callable[[Any], tuple[dict, dict]]
    sizes: Mapping[str, Mapping[str, Any]]
    huggingface: HuggingFaceNames
    tokenizer: str
    heads: tuple[str, ...]
    objectives: tuple[str, ...]


@dataclass(frozen=True)
class HuggingFaceNames:
    """Two-column tables that translate one family's Hugging Face checkpoints.

    Attributes:
        model_type: the ``model_type`` in ``config.json``.
        prefix: what task checkpoints put before each of the encoder's names.
        config: their config key -> our config field.
        required: config keys that change the computation and of which only the listed values
            are supported; another value is refused by name.
        weights: our variable path -> their tensor name. ``{i}`` counts layers; a name that ends
            in ``|T`` is stored transposed.
        heads: for each head, the same kind of table.
        ignored: regular expressions of tensor names that carry no weight of the encoder.
    """

    model_type: str
    prefix: str
    config: Mapping[str, str]
    required: Mapping[str, tuple]
    weights: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Adds ``family`` to the table; a second family of the same name is a ``ValueError``."""
    if family.name in _FAMILIES:
        raise ValueError(f"The family {family.name!r} is registered already.")
    _FAMILIES[family.name] = family
    return family


def families() -> list[str]:
    """Names of all registered families, sorted."""
    return sorted(_FAMILIES)


def get(name: str) -> Family:
    """The family of that name; a ``ValueError`` that names the nearest one otherwise."""
    if name not in _FAMILIES:
        raise ValueError(unknown("family", name, _FAMILIES))
    return _FAMILIES[name]

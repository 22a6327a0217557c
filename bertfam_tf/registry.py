"""The table of families. A family's card registers itself; tests, the CLI and docs loop over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bertfam_tf.names import unknown


@dataclass(frozen=True)
class Family:
    """What is particular to one family of models.

    Attributes:
        name: the family's name, as in ``bertfam_tf.build(name)``.
        config: the card's frozen ``Config`` dataclass.
        wire: ``wire(config, parts) -> (inputs, outputs)``, two dicts of Keras tensors; ``parts``
            makes the layers, or has them already (``bertfam_tf.models.Parts``).
        sizes: for each published size, the config fields that differ from the defaults.
        huggingface: where the parts are found in a Hugging Face checkpoint.
        tokenizer: the kind of tokenizer that the published checkpoints use.
        heads: the heads that the family has upstream, by our names.
        objectives: the pretraining objectives of its paper.
    """

    name: str
    config: Any
    wire: Callable[[Any, Any], tuple[dict, dict]]
    sizes: Mapping[str, Mapping[str, Any]]
    huggingface: HuggingFaceNames
    tokenizer: str
    heads: Mapping[str, HeadSpec]
    objectives: tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """In a head's description: the value of that field of the backbone's config."""

    name: str


class Labels(Enum):
    """The type of ``LABELS``: in a head's description, as wide as there are labels."""

    LABELS = "labels"


LABELS = Labels.LABELS


@dataclass(frozen=True)
class DropoutSpec:
    """Part of a head: dropout. A ``rate`` of None, as a config may have it, means ``dropout``'s."""

    rate: Field = Field("dropout")

    def weights(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True)
class DenseSpec:
    """Part of a head: a dense layer.

    Attributes:
        name: ours.
        theirs: Hugging Face's.
        width: a number, a field, or ``LABELS``.
        activation: its name, a field, or None.
        bias: whether there is one.
    """

    name: str
    theirs: str
    width: int | Field | Labels
    activation: str | Field | None = None
    bias: bool = True

    def weights(self) -> dict[str, str]:
        path = f"{self.name}/"
        kernel = {path + "kernel": f"{self.theirs}.weight|T"}
        return kernel | ({path + "bias": f"{self.theirs}.bias"} if self.bias else {})


@dataclass(frozen=True)
class NormSpec:
    """Part of a head: a layer norm."""

    name: str
    theirs: str
    epsilon: float | Field = Field("norm_epsilon")

    def weights(self) -> dict[str, str]:
        path = f"{self.name}/"
        return {path + "gamma": f"{self.theirs}.weight", path + "beta": f"{self.theirs}.bias"}


@dataclass(frozen=True)
class TiedOutputSpec:
    """Part of a head: an output projection tied to the token embedding, and a bias.

    Attributes:
        bias: Hugging Face's name of the bias; None where there is none.
        theirs: their layer, of which checkpoints may hold copies of both.
    """

    bias: str | None
    theirs: str
    name: str = "decoder"

    def weights(self) -> dict[str, str]:
        return {f"{self.name}/bias": self.bias} if self.bias else {}


@dataclass(frozen=True)
class AdaptiveSoftmaxSpec:
    """Part of a head: log-probabilities from an adaptive softmax tied to the token embedding.

    Attributes:
        theirs: what the names of its weights begin with.
    """

    theirs: str
    name: str = "softmax"

    def weights(self) -> dict[str, str]:
        names = {
            "cluster_kernel": "cluster_weight",
            "cluster_bias": "cluster_bias",
            "bias_{c}": "out_layers.{c}.bias",
            "projection": "out_projs.0",
        }
        return {f"{self.name}/{k}": f"{self.theirs}.{v}" for k, v in names.items()}


@dataclass(frozen=True)
class HeadSpec:
    """One of a family's heads.

    Attributes:
        reads: an output of the backbone, such as ``"pooled_output"``, ``"sequence_output"`` or
            ``"last_token"``; or ``"first_token"`` of the sequence output.
        parts: what that goes through. A last part of width 1 gives scores without that axis.
        required: keys of Hugging Face's config -> the values for which the head is as described.
    """

    reads: str
    parts: tuple[DropoutSpec | DenseSpec | NormSpec | TiedOutputSpec | AdaptiveSoftmaxSpec, ...]
    required: Mapping[str, tuple] = field(default_factory=dict)

    def weights(self, name: str) -> dict[str, str]:
        """The table of a head that is called ``name``, the last part's weights first.

        As ``HuggingFaceNames.weights``.
        """
        pairs = [pair for part in reversed(self.parts) for pair in part.weights().items()]
        return {f"{name}_head/{path}": theirs for path, theirs in pairs}

    @property
    def has_labels(self) -> bool:
        """Whether the logits are as wide as there are labels, and no fixed width."""
        return getattr(self.parts[-1], "width", None) is LABELS

    @property
    def tied_output(self) -> TiedOutputSpec | None:
        """The part that reads the token embedding."""
        last = self.parts[-1]
        return last if isinstance(last, TiedOutputSpec) else None


# What Hugging Face calls the class of a model with a head, after the model's name.
CLASSES = {
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "LMHeadModel",
    "permutation_lm": "LMHeadModel",
    "pair": "ForNextSentencePrediction",
    "rtd": "ForPreTraining",
}


@dataclass(frozen=True)
class HuggingFaceNames:
    """Two-column tables that translate one family's Hugging Face checkpoints.

    Attributes:
        model_type: the ``model_type`` in ``config.json``.
        model: what the names of their classes begin with, such as ``"Bert"``.
        prefix: what task checkpoints put before each of the encoder's names.
        config: their config key -> our config field.
        required: config keys that change the computation and of which only the listed values
            are supported; another value is refused by name.
        weights: our variable path -> their tensor name. ``{i}`` counts as ``indices`` says; a
            name may end in ``|`` and how it is stored: ``1/3``, as the second of three equal parts
            of a tensor's rows; ``T``, transposed; ``F``, all axes but the first as one.
        ignored: regular expressions of tensor names that carry no weight of the encoder.
        copies: their name -> that of the tensor that they store there once more.
        defaults: what an absent config key means, where that is not our field's default.
        read: from config fields as renamed to the fields as they are meant, where a field follows
            from others; ``write`` is the way back.
        classes: what the class of a head is called after ``model``, where that is not as in
            ``CLASSES``.
        indices: letters in braces that a path may have -> the config field that says how many.
    """

    model_type: str
    model: str
    prefix: str
    config: Mapping[str, str]
    required: Mapping[str, tuple]
    weights: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[dict], dict] = dict
    write: Callable[[dict], dict] = dict
    classes: Mapping[str, str] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=lambda: {"i": "num_layers"})

    def class_of(self, head: str | None) -> str:
        """Their class of a model with that head; None for one without."""
        if head is None:
            return f"{self.model}Model"
        return self.model + (self.classes.get(head) or CLASSES[head])

    def counts(self, path: str, config: Any) -> dict[str, int]:
        """Of each letter in braces that a path of a table has, up to which number it counts."""
        return {
            letter: getattr(config, counted)
            for letter, counted in self.indices.items()
            if f"{{{letter}}}" in path
        }

    def expand(self, table: Mapping[str, str], config: Any) -> dict[str, str]:
        """One of the tables with an entry for each value of the indices."""
        expanded = dict(table)
        for letter, counted in self.indices.items():
            brace, count = f"{{{letter}}}", getattr(config, counted)
            for path in [path for path in expanded if brace in path]:
                name = expanded.pop(path)
                for i in range(count):
                    expanded[path.replace(brace, str(i))] = name.replace(brace, str(i))
        return expanded


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


def reader(model_type: Any) -> Family | None:
    """The family that reads that model type; of several the one that registered first."""
    for family in _FAMILIES.values():
        if family.huggingface.model_type == model_type:
            return family
    return None


def get(name: str) -> Family:
    """The family of that name; a ``ValueError`` that names the nearest one otherwise."""
    if name not in _FAMILIES:
        raise ValueError(unknown("family", name, _FAMILIES))
    return _FAMILIES[name]

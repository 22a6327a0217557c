"""The table of families. A family's card registers itself; tests, the CLI and docs loop over it.

Tables of weight names map a path of ours, such as ``layer_{i}/attention/query/kernel``, to a
checkpoint's tensor. A tensor's name may end in ``|`` and how it is stored: ``1/3``, as the second
of three equal parts along its first axis; ``T``, transposed; ``F``, with all axes but the first
flattened; ``H0`` or ``H1``, with that axis split into (heads, head size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from bertfam_tf.names import unknown


@dataclass(frozen=True)
class Family:
    """What is particular to one family of models.

    Attributes:
        name: the family's name, as in ``bertfam_tf.build(name)``.
        config: the card's frozen ``Config`` dataclass.
        wire: ``wire(config, parts) -> (inputs, outputs)``, two dicts of Keras tensors; ``parts``
            makes the layers, or has them already (``bertfam_tf.models.Parts``). Layers of the
            stack are called ``layer_{i}``.
        sizes: for each published size, the config fields that differ from the defaults.
        tokenizer: the tokenizer that the published checkpoints use.
        heads: the heads that the family has upstream, by our names.
        objectives: the pretraining objectives of its paper.
        huggingface: names in Hugging Face's checkpoints; None for a family that they do not have.
        formats: names in the checkpoints of other libraries, by format.
        indices: letters in braces in the paths of the tables -> the config field with their number.
    """

    name: str
    config: Any
    wire: Callable[[Any, Any], tuple[dict, dict]]
    sizes: Mapping[str, Mapping[str, Any]]
    tokenizer: TokenizerSpec
    heads: Mapping[str, HeadSpec] = field(default_factory=dict)
    objectives: tuple[str, ...] = ()
    huggingface: HuggingFaceNames | None = None
    formats: Mapping[str, FormatNames] = field(default_factory=dict)
    indices: Mapping[str, str] = field(default_factory=lambda: {"i": "num_layers"})

    def counts(self, path: str, config: Any) -> dict[str, int]:
        """The number of values of each letter in braces in a path."""
        return {
            letter: getattr(config, counted)
            for letter, counted in self.indices.items()
            if f"{{{letter}}}" in path
        }

    def expand(self, table: Mapping[str, str], config: Any) -> dict[str, str]:
        """A table with an entry for each value of the letters in braces."""
        expanded = dict(table)
        for letter, counted in self.indices.items():
            brace = f"{{{letter}}}"
            for path in [path for path in expanded if brace in path]:
                name = expanded.pop(path)
                for i in range(getattr(config, counted)):
                    expanded[path.replace(brace, str(i))] = name.replace(brace, str(i))
        return expanded


# Names of weights --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convention:
    """What a library appends to the name of a layer for each of its weights.

    Attributes:
        kernel, bias: of a dense layer.
        gamma, beta: of a layer norm.
        table: of an embedding.
    """

    kernel: str
    bias: str
    gamma: str
    beta: str
    table: str

    def dense(
        self, path: str, theirs: str, heads: Literal["in", "out"] | None = None, bias: bool = True
    ) -> dict[str, str]:
        """The rows of a dense layer; ``heads`` is the axis that the library splits into heads."""
        kernel = {"in": "|H0", "out": "|H1", None: ""}[heads]
        rows = {f"{path}/kernel": theirs + self.kernel + kernel}
        if bias:
            rows[f"{path}/bias"] = theirs + self.bias + ("|H0" if heads == "out" else "")
        return rows

    def norm(self, path: str, theirs: str) -> dict[str, str]:
        """The rows of a layer norm."""
        return {f"{path}/gamma": theirs + self.gamma, f"{path}/beta": theirs + self.beta}

    def embedding(self, path: str, theirs: str) -> dict[str, str]:
        """The row of an embedding."""
        return {f"{path}/embeddings": theirs + self.table}


# PyTorch's, and so Hugging Face's: kernels are (out, in).
TORCH = Convention(".weight|T", ".bias", ".weight", ".bias", ".weight")


# Heads -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenizerSpec:
    """The tokenizer of a family's published checkpoints.

    Attributes:
        kind: the algorithm: ``"wordpiece"``, ``"byte_bpe"``, ``"bpe"``, ``"sentencepiece"`` or
            ``"words"``.
        class_name: its class in transformers, without ``Fast``, as ``tokenizer_config.json`` names
            it.
        options: arguments of our tokenizer that the class implies and its files need not state, as
            plain data; special tokens by the names of the fields of ``text.SpecialTokens``, the
            layout as a dict of the fields of ``text.Layout``.
    """

    kind: str
    class_name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Field:
    """In the spec of a head: the value of that field of the backbone's config."""

    name: str


class Labels(Enum):
    """The type of ``LABELS``: in the spec of a head, the number of labels."""

    LABELS = "labels"


LABELS = Labels.LABELS


@dataclass(frozen=True)
class DropoutSpec:
    """Part of a head: dropout. Where the field ``rate`` is None, ``dropout`` is the rate."""

    rate: Field = Field("dropout")

    def weights(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True)
class DenseSpec:
    """Part of a head: a dense layer.

    Attributes:
        name: of our layer.
        theirs: Hugging Face's name of it.
        width: of the output: a number, a field, or ``LABELS``.
        activation: its name, a field, or None.
        bias: whether there is one.
    """

    name: str
    theirs: str
    width: int | Field | Labels
    activation: str | Field | None = None
    bias: bool = True

    def weights(self) -> dict[str, str]:
        return TORCH.dense(self.name, self.theirs, bias=self.bias)


@dataclass(frozen=True)
class NormSpec:
    """Part of a head: a layer norm."""

    name: str
    theirs: str
    epsilon: float | Field = Field("norm_epsilon")

    def weights(self) -> dict[str, str]:
        return TORCH.norm(self.name, self.theirs)


@dataclass(frozen=True)
class TiedOutputSpec:
    """Part of a head: an output projection tied to the token embedding, and a bias.

    Attributes:
        bias: Hugging Face's name of the bias; None for a projection without.
        theirs: their name of the layer, under which checkpoints may hold copies of both.
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
        theirs: the prefix of its weights in Hugging Face's checkpoints.
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
        reads: an output of the backbone, such as ``"pooled_output"``, ``"sequence_output"``,
            ``"first_token"`` or ``"last_token"``.
        parts: its layers, from first to last. If the last has width 1, that axis is squeezed.
        required: keys of Hugging Face's config -> the values that the head supports.
    """

    reads: str
    parts: tuple[DropoutSpec | DenseSpec | NormSpec | TiedOutputSpec | AdaptiveSoftmaxSpec, ...]
    required: Mapping[str, tuple] = field(default_factory=dict)

    def weights(self, name: str) -> dict[str, str]:
        """Hugging Face's names of the weights of a head that is called ``name``."""
        pairs = [pair for part in self.parts for pair in part.weights().items()]
        return {f"{name}_head/{path}": theirs for path, theirs in pairs}

    @property
    def has_labels(self) -> bool:
        """Whether the number of logits is that of the labels, rather than fixed."""
        return getattr(self.parts[-1], "width", None) is LABELS

    @property
    def tied_output(self) -> TiedOutputSpec | None:
        """The output projection, where it is tied to the token embedding."""
        last = self.parts[-1]
        return last if isinstance(last, TiedOutputSpec) else None


# Checkpoints -------------------------------------------------------------------------------------

# Hugging Face's class of a model with a head, after the model's name.
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
    """One family in Hugging Face's checkpoints.

    Attributes:
        model_type: the ``model_type`` in ``config.json``.
        model: the prefix of their classes, such as ``"Bert"``.
        prefix: of the encoder's tensors in checkpoints with a head.
        config: their config key -> our config field.
        required: config keys that change the computation -> the values that are supported.
        weights: our variable path -> their tensor.
        ignored: regular expressions of tensor names that hold no weight of the encoder.
        copies: name of a tensor that duplicates another -> name of the other.
        defaults: values of absent config keys, where they differ from our fields' defaults.
        read: computes our fields from the renamed ones, where a field follows from others;
            ``write`` is its inverse.
        classes: head -> its class after ``model``, where that is not the one in ``CLASSES``.
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

    def class_of(self, head: str | None) -> str:
        """Their class of a model with that head; None for one without."""
        if head is None:
            return f"{self.model}Model"
        return self.model + (self.classes.get(head) or CLASSES[head])


@dataclass(frozen=True)
class FormatNames:
    """One family in the checkpoints of another library.

    Attributes:
        kinds: what that library calls the family: its classes, encoder types, or config files.
        weights: our variable path -> their tensor, heads' variables included.
        config: their config key -> our config fields.
        fixed: our config fields that the library hard-codes.
        gelu: the activation that the library computes for ``"gelu"``.
        ignored: regular expressions of tensor names that hold no weight of the family.
        marker: a config key that only this family has.
        offset: positions at the start of our table that the library's table lacks.
        absent: our variables that the library lacks, of zeros -> their shape, as config fields.
        tokenizer: the library's tokenizer files -> Hugging Face's names of them.
    """

    kinds: tuple[str, ...]
    weights: Mapping[str, str]
    config: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    gelu: str = "gelu"
    ignored: tuple[str, ...] = ()
    marker: str | None = None
    offset: int = 0
    absent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: Mapping[str, str] = field(default_factory=dict)


# The table ---------------------------------------------------------------------------------------

_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Adds ``family`` to the table.

    Raises:
        ValueError: for the name of a family that is registered already.
    """
    if family.name in _FAMILIES:
        raise ValueError(f"The family {family.name!r} is registered already.")
    _FAMILIES[family.name] = family
    return family


def families() -> list[str]:
    """Names of all registered families, sorted."""
    return sorted(_FAMILIES)


def cards() -> list[Family]:
    """All registered families, in the order of their registration."""
    return list(_FAMILIES.values())


def of_model_type(model_type: Any) -> Family | None:
    """The family with that Hugging Face ``model_type``; of several the one registered first."""
    for family in _FAMILIES.values():
        if family.huggingface and family.huggingface.model_type == model_type:
            return family
    return None


def of_format(format: str) -> dict[str, Family]:
    """The families that have names in that format, by what it calls them.

    Of several with one name it is the family that was registered first.
    """
    found: dict[str, Family] = {}
    for family in _FAMILIES.values():
        if format in family.formats:
            for kind in family.formats[format].kinds:
                found.setdefault(kind, family)
    return found


def get(name: str) -> Family:
    """The family of that name; a ``ValueError`` that names the nearest one otherwise."""
    if name not in _FAMILIES:
        raise ValueError(unknown("family", name, _FAMILIES))
    return _FAMILIES[name]

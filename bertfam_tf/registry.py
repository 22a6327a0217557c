"""The registry of model families. Each family's module registers its ``Family`` record.

Tables of weight names map a variable path, such as ``layer_{i}/attention/query/kernel``, to the
name of a checkpoint's tensor. A name may end in ``|`` and a storage transform: ``1/3``, the second
of three equal parts along the first axis; ``T``, transposed; ``F``, all axes except the first are
flattened; ``H0`` or ``H1``, that axis is split into (heads, head size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from bertfam_tf.names import unknown


@dataclass(frozen=True)
class Family:
    """The definition of a model family.

    Attributes:
        name: the family's name, as in ``bertfam_tf.build(name)``.
        config: the family's frozen ``Config`` dataclass.
        wire: ``wire(config, parts) -> (inputs, outputs)``, two dicts of Keras tensors; ``parts``
            creates layers or returns existing ones (``bertfam_tf.models.Parts``). The layers of
            the stack are called ``layer_{i}``.
        sizes: for each published size, the config fields that differ from the defaults.
        tokenizer: the tokenizer of the published checkpoints.
        heads: the family's published heads, by our names.
        objectives: the pretraining objectives of its paper, as recipes name them.
        huggingface: the names in Hugging Face's checkpoints; None if Hugging Face lacks the family.
        formats: the names in the checkpoints of other libraries, by format.
        indices: letters in braces in the tables' paths -> the config fields with their counts.
        pools_first: whether ``pooled_output`` is computed from the first token alone.
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
    pools_first: bool = True

    def padded(self, tokenizer: Any) -> Any:
        """Returns the tokenizer, or a copy that pads on the right where the first token is read.

        On the left that would be padding, which the positions of most such families count too, so
        that the answer to a text would depend on the longest text of its batch.
        """
        if self.summary != "first_token" or not tokenizer.layout.pad_left:
            return tokenizer
        # It shares the tables, which copy.copy would build again.
        copied = object.__new__(type(tokenizer))
        vars(copied).update(vars(tokenizer), layout=replace(tokenizer.layout, pad_left=False))
        return copied

    @property
    def summary(self) -> str:
        """The output that stands for a whole text, which classifiers of the family read.

        ``"first_token"``, also where it is pooled, ``"last_token"``, or ``"pooled_output"``.
        """
        head = self.heads.get("sequence")
        reads = "first_token" if head is None else head.reads
        return "first_token" if reads == "pooled_output" and self.pools_first else reads

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend to themselves and to earlier ones only."""
        return "clm" in self.objectives and "causal_lm" in self.heads

    def counts(self, path: str, config: Any) -> dict[str, int]:
        """Returns how many values each index in a path has, such as ``{"i": 12}`` for layers."""
        return {
            letter: getattr(config, counted)
            for letter, counted in self.indices.items()
            if f"{{{letter}}}" in path
        }

    def expand(self, table: Mapping[str, str], config: Any) -> dict[str, str]:
        """Expands a table to an entry for each value of the letters in braces."""
        expanded = dict(table)
        for letter, counted in self.indices.items():
            brace = f"{{{letter}}}"
            for path in [path for path in expanded if brace in path]:
                name = expanded.pop(path)
                for i in range(getattr(config, counted)):
                    expanded[path.replace(brace, str(i))] = name.replace(brace, str(i))
        return expanded


@dataclass(frozen=True)
class TokenizerSpec:
    """The tokenizer of a family's published checkpoints.

    Attributes:
        kind: the algorithm: ``"wordpiece"``, ``"byte_bpe"``, ``"bpe"``, ``"sentencepiece"``,
            ``"words"`` or ``"characters"``.
        class_name: its class in transformers, without ``Fast``, as in ``tokenizer_config.json``.
        options: arguments of our tokenizer that the class implies and its files may omit, as plain
            data; special tokens by the field names of ``text.SpecialTokens``, the layout as a dict
            with the fields of ``text.Layout``.
    """

    kind: str
    class_name: str
    options: Mapping[str, Any] = field(default_factory=dict)


# Names of weights --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Convention:
    """The suffixes that a library appends to a layer's name for its weights.

    Attributes:
        kernel, bias: the suffixes of a dense layer's weights.
        gamma, beta: the suffixes of a layer norm's weights.
        table: the suffix of an embedding's weight.
    """

    kernel: str
    bias: str
    gamma: str
    beta: str
    table: str

    def dense(
        self, path: str, theirs: str, heads: Literal["in", "out"] | None = None, bias: bool = True
    ) -> dict[str, str]:
        """Returns the entries of a dense layer; ``heads`` is the library's axis of heads."""
        kernel = {"in": "|H0", "out": "|H1", None: ""}[heads]
        rows = {f"{path}/kernel": theirs + self.kernel + kernel}
        if bias:
            rows[f"{path}/bias"] = theirs + self.bias + ("|H0" if heads == "out" else "")
        return rows

    def norm(self, path: str, theirs: str, bias: bool = True) -> dict[str, str]:
        """Returns the entries of a layer norm."""
        gamma = {f"{path}/gamma": theirs + self.gamma}
        return gamma | ({f"{path}/beta": theirs + self.beta} if bias else {})

    def embedding(self, path: str, theirs: str) -> dict[str, str]:
        """Returns the entry of an embedding."""
        return {f"{path}/embeddings": theirs + self.table}


# PyTorch's, used by Hugging Face: kernels are (out, in).
TORCH = Convention(".weight|T", ".bias", ".weight", ".bias", ".weight")


# Heads -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """In the spec of a head: refers to a field of the backbone's config.

    Attributes:
        name: the field.
        otherwise: a value, or another field, that is used if the field is None.
    """

    name: str
    otherwise: str | float | Field | None = None


class Labels(Enum):
    """The type of ``LABELS``, which refers to the number of labels in the spec of a head."""

    LABELS = "labels"


LABELS = Labels.LABELS


@dataclass(frozen=True)
class DropoutSpec:
    """Part of a head: dropout. If the config field ``rate`` is None, ``dropout`` is used."""

    rate: Field = Field("dropout")

    def weights(self) -> dict[str, str]:
        return {}


@dataclass(frozen=True)
class DenseSpec:
    """Part of a head: a dense layer.

    Attributes:
        name: our name of the layer.
        theirs: Hugging Face's name of the layer.
        width: the output width: a number, a field, or ``LABELS``.
        activation: its name, a field, or None.
        bias: whether the layer has a bias.
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
    bias: bool = True

    def weights(self) -> dict[str, str]:
        return TORCH.norm(self.name, self.theirs, self.bias)


@dataclass(frozen=True)
class TiedOutputSpec:
    """Part of a head: an output projection tied to the token embedding, and a bias.

    Attributes:
        bias: Hugging Face's name of the bias; None for a projection without bias.
        theirs: Hugging Face's name of the layer; checkpoints may contain copies under this name.
        more: Hugging Face's name of a matrix (units, tokens), for the units of wider inputs than
            the embedding; None for inputs of its width.
    """

    bias: str | None
    theirs: str
    name: str = "decoder"
    more: str | None = None

    def weights(self) -> dict[str, str]:
        names = {"bias": self.bias, "more": self.more}
        return {f"{self.name}/{ours}": theirs for ours, theirs in names.items() if theirs}


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
        required: keys of Hugging Face's config -> the supported values.
    """

    reads: str
    parts: tuple[DropoutSpec | DenseSpec | NormSpec | TiedOutputSpec | AdaptiveSoftmaxSpec, ...]
    required: Mapping[str, tuple] = field(default_factory=dict)

    def weights(self, name: str) -> dict[str, str]:
        """Returns Hugging Face's names of the weights of a head with that name."""
        pairs = [pair for part in self.parts for pair in part.weights().items()]
        return {f"{name}_head/{path}": theirs for path, theirs in pairs}

    @property
    def has_labels(self) -> bool:
        """Whether the number of logits is the number of labels, instead of fixed."""
        return getattr(self.parts[-1], "width", None) is LABELS

    @property
    def tied_output(self) -> TiedOutputSpec | None:
        """The output projection that is tied to the token embedding, or None."""
        last = self.parts[-1]
        return last if isinstance(last, TiedOutputSpec) else None


# Checkpoints -------------------------------------------------------------------------------------

# The suffix of Hugging Face's class for a model with a head.
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
    """The names of a family in Hugging Face's checkpoints.

    Attributes:
        model_type: the ``model_type`` in ``config.json``.
        model: the prefix of their classes, such as ``"Bert"``.
        prefix: the prefix of the encoder's tensors in checkpoints with a head.
        config: their config key -> our config field.
        required: config keys that change the computation -> the supported values.
        weights: our variable path -> their tensor.
        ignored: regular expressions of tensor names that are not weights of the encoder.
        copies: the name of a tensor that duplicates another -> name of the other.
        aliases: start of a tensor's name in checkpoints of another layout -> its start in this one;
            the first that fits.
        defaults: values of missing config keys, if they differ from our fields' defaults.
        synonyms: other names of config keys, which override them in transformers -> the key.
        read: computes our fields from the renamed ones, if a field depends on others; ``write`` is
            its inverse.
        classes: head -> suffix of its class, if it is not the one in ``CLASSES``.
    """

    model_type: str
    model: str
    prefix: str
    config: Mapping[str, str]
    required: Mapping[str, tuple]
    weights: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[dict], dict] = dict
    write: Callable[[dict], dict] = dict
    classes: Mapping[str, str] = field(default_factory=dict)

    def class_of(self, head: str | None) -> str:
        """Returns their class of a model with that head; ``None`` stands for no head."""
        if head is None:
            return f"{self.model}Model"
        return self.model + (self.classes.get(head) or CLASSES[head])


@dataclass(frozen=True)
class TaskNames:
    """A class of another library for a model with a head.

    Attributes:
        head: the head, by our name; None for a class without one.
        config: the class's options -> our config fields.
        fixed: our config fields whose values the class hard-codes.
        same: the class's options -> config fields of ours that they have to equal.
        options: the class's options -> the option of our tasks, and its values by theirs.
    """

    head: str | None
    config: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, tuple[str, Mapping[Any, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class FormatNames:
    """The names of a family in the checkpoints of another library.

    Attributes:
        kinds: the library's names of the family: its classes, encoder types, or config files.
        weights: our variable path -> their tensor, including variables of heads.
        config: their config key -> our config fields.
        fixed: our config fields that the library hard-codes.
        gelu: the activation that the library computes for ``"gelu"``.
        ignored: regular expressions of tensor names that are not weights of the family.
        marker: a config key that only this family has.
        offset: the number of positions at the start of our table that the library's table lacks.
        absent: our variables that the library lacks (filled with zeros, gammas with ones) -> their
            shape, as fields or properties of the config.
        tokenizer: the library's tokenizer files -> Hugging Face's names of these files.
        tasks: the library's classes of models with heads, by what follows the family's name.
        joined: a layer of ours that is several of the library's -> these, in order.
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
    tasks: Mapping[str, TaskNames] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# The table ---------------------------------------------------------------------------------------

_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Registers a family.

    Raises:
        ValueError: if a family with this name is already registered.
    """
    if family.name in _FAMILIES:
        raise ValueError(f"The family {family.name!r} is already registered.")
    _FAMILIES[family.name] = family
    return family


def families() -> list[str]:
    """Returns the names of all registered families, sorted."""
    return sorted(_FAMILIES)


def all_families() -> list[Family]:
    """Returns all registered families, in the order of their registration."""
    return list(_FAMILIES.values())


def of_model_type(model_type: Any) -> Family | None:
    """Returns the first registered family with that Hugging Face ``model_type``, or None."""
    for family in _FAMILIES.values():
        if family.huggingface and family.huggingface.model_type == model_type:
            return family
    return None


def of_format(format: str) -> dict[str, Family]:
    """Returns the families that have names in that format, by their name in the format.

    If several families have the same name, it is the name of the first one that was registered.
    """
    by_name: dict[str, Family] = {}
    for family in _FAMILIES.values():
        if format in family.formats:
            for kind in family.formats[format].kinds:
                by_name.setdefault(kind, family)
    return by_name


def get(name: str) -> Family:
    """Returns the family with that name.

    Raises:
        ValueError: if there is none; the message suggests the most similar name.
    """
    if name not in _FAMILIES:
        raise ValueError(unknown("family", name, _FAMILIES))
    return _FAMILIES[name]

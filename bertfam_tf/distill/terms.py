"""The terms of a distillation's loss: what a student imitates.

Each is the mean over real tokens, pairs of real tokens or examples, and over the layers of its map.
Published code divides by other numbers, which changes the weight of a term relative to others;
``scaling`` selects them. No term reads outputs at padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from bertfam_tf import layers as building
from bertfam_tf import registry
from bertfam_tf.distill import losses
from bertfam_tf.distill.layer_maps import LayerMap, layer_map
from bertfam_tf.distill.network import Network
from bertfam_tf.objectives.objective import SumAndCount

AUTO = "auto"
# Logits below are masks, such as padding's in span QA, and not a network's.
_IMPOSSIBLE = -1e4


class Outputs(NamedTuple):
    """What a term reads of one side.

    Fields:
        backbone: the backbone's outputs by name.
        logits: (…, classes) of the task's distributions; None if no term reads them.
        counted: float32 (…), 0 for distributions that do not count.
        is_causal: whether tokens attend to themselves and to earlier ones only.
    """

    backbone: Mapping[str, Any]
    logits: Any = None
    counted: Any = None
    is_causal: bool = False


class Projections:
    """Dense layers from the student's width to the teacher's, by name.

    Terms that name the same one share it.
    """

    def __init__(self, dtype: Any = None):
        self.layers: dict[str, keras.layers.Layer] = {}
        self._dtype = dtype

    def __call__(self, name: str, width: int, to: int) -> keras.layers.Layer:
        """The layer of a name.

        Raises:
            ValueError: if it exists with other widths.
        """
        if name not in self.layers:
            dense = keras.layers.Dense(
                to,
                kernel_initializer=building.normal(0.02),
                name=f"{name}_projection",
                dtype=self._dtype,
            )
            dense.build((None, width))
            self.layers[name] = dense
        found = self.layers[name]
        if tuple(found.kernel.shape) != (width, to):
            raise ValueError(
                f"The projection {name!r} is from width {found.kernel.shape[0]} to "
                f"{found.kernel.shape[1]}, a second term needs one from {width} to {to}."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Term:
    """Base of the terms.

    Attributes:
        weight: of the term in the loss.
        name: under which it is reported; None for the class's.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    reads_logits: ClassVar[bool] = False
    scalings: ClassVar[tuple[str, ...]] = ("mean",)

    weight: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        scaling = getattr(self, "scaling", "mean")
        if scaling not in self.scalings:
            raise ValueError(
                f"scaling of {self.label} must be {' or '.join(self.scalings)}, got {scaling!r}."
            )

    @property
    def label(self) -> str:
        return self.name or _snake(type(self).__name__)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Term:
        """The term with its layer map resolved for two networks, which it checks.

        Raises:
            ValueError: for networks that do not fit this term; the text says what does not match.
        """
        return self

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        """The sum of the losses of a batch, and their number.

        Args:
            student, teacher: the outputs.
            mask: bool (batch, length), true at real tokens.
            projections: those that ``bind`` made.
        """
        raise NotImplementedError


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


# Terms of logits --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _OfLogits(Term):
    reads_logits = True

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Term:
        for side in (student, teacher):
            if side.task is None or side.task.components.distributions is None:
                kind = type(side.task or side.backbone).__name__
                raise ValueError(f"{self.label} needs a task with logits as {side.role}: {kind}.")
        assert student.task is not None
        assert teacher.task is not None
        kinds = [type(side.task).__name__ for side in (student, teacher)]
        if kinds[0] != kinds[1]:
            raise ValueError(f"{self.label}: the student is a {kinds[0]}, the teacher {kinds[1]}.")
        names = student.task.class_names, teacher.task.class_names
        if names[0] != names[1]:
            raise ValueError(
                f"{self.label}: the student has the labels {', '.join(names[0])}, the teacher "
                f"{', '.join(names[1])}."
            )
        return self


@dataclass(frozen=True, kw_only=True)
class SoftTargets(_OfLogits):
    """Softmaxes of the teacher's logits as targets (Hinton et al. 2015, arXiv 1503.02531).

    In tagging these are the tags of each word, in span QA the tokens of a window as start and as
    end, in masked language modeling the vocabulary at each token, masked or not (DistilBERT), in
    causal language modeling the vocabulary at each token that another one follows.

    Attributes:
        temperature: divides the logits.
        divergence: ``"kl"``, with the factor temperature²; or ``"cross_entropy"``, without.
        scaling: ``"mean"``, over examples (or words, …), as DistilBERT; or ``"classes"``, over
            examples and classes, as the code of TinyBERT and of Patient Knowledge Distillation.
    """

    temperature: float = 1.0
    divergence: str = "kl"
    scaling: str = "mean"
    scalings = ("mean", "classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}.")
        if self.divergence not in ("kl", "cross_entropy"):
            raise ValueError(f"divergence must be kl or cross_entropy, got {self.divergence!r}.")

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Term:
        super().bind(student, teacher, projections)
        assert student.task is not None
        if student.task.problem_type == "regression":
            raise ValueError("soft_targets needs several classes; logits_error is for scores.")
        return self

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        kl = self.divergence == "kl"
        function = losses.kl_divergence if kl else losses.soft_cross_entropy
        found = function(student.logits, teacher.logits, self.temperature)
        total, count = _over(found, student.counted)
        if self.scaling == "classes":
            count = count * ops.cast(ops.shape(student.logits)[-1], count.dtype)
        return total, count


@dataclass(frozen=True, kw_only=True)
class LogitsError(_OfLogits):
    """The squared error of the logits, a mean over classes (arXiv 1903.12136, section 3.2).

    In span QA the classes are the tokens of a window, without padding.
    """

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (losses._float(each.logits) for each in (student, teacher))
        possible = ops.minimum(ours, theirs) > _IMPOSSIBLE
        error = ops.where(possible, ops.square(ours - theirs), 0)
        classes = ops.sum(ops.cast(possible, error.dtype), axis=-1)
        return _over(ops.sum(error, axis=-1) / ops.maximum(classes, 1), student.counted)


# Terms of layers --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _OfLayers(Term):
    """Attributes:
    layers: which layer of the teacher each layer of the student imitates, as ``layer_map``
        takes it.
    """

    layers: LayerMap = "uniform"

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        pairs = layer_map(self.layers, student.num_layers, teacher.num_layers)
        if not pairs:
            raise ValueError(
                f"The layer map of {self.label} is empty for {student.num_layers} layers."
            )
        return dataclasses.replace(self, layers=pairs)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        assert isinstance(self.layers, Mapping)
        return list(self.layers.items())

    def _mean(self, found: list[SumAndCount], *, added: bool = False) -> SumAndCount:
        """Of each layer's sum and number; the sum of the layers' means if ``added``."""
        total = sum(each for each, _ in found)
        return total, found[0][1] * (1 if added else len(found))


@dataclass(frozen=True, kw_only=True)
class HiddenStates(_OfLayers):
    """The squared error of layers' outputs, a mean over their width (arXiv 1909.10351).

    Attributes:
        projection: name of a dense layer, trained with the student, from its width to the
            teacher's, one for all layers; terms that name the same one share it. ``"auto"`` for
            one of this term where the widths differ, and none where they do not.
        scaling: ``"mean"``; or ``"tinybert"``, the sum over layers of the errors at real tokens
            divided by batch · length of the padded batch. TinyBERT's code divides by the same
            number, with a length that is always ``max_seq_length``, and adds the errors between
            both networks' outputs at padding, which nothing reads; here they are 0.
    """

    projection: str = AUTO
    scaling: str = "mean"
    scalings = ("mean", "tinybert")
    reads = ("hidden_states",)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        pairs = bound.layers.items()
        widths = {
            (student.spec(self.reads[0], i).shape[-1], teacher.spec(self.reads[0], j).shape[-1])
            for i, j in pairs
        }
        name = self.label if self.projection == AUTO else self.projection
        if self.projection == AUTO and all(a == b for a, b in widths):
            return dataclasses.replace(bound, projection="")
        for width, to in sorted(widths):
            projections(name, width, to)
        return dataclasses.replace(bound, projection=name)

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (each.backbone["hidden_states"] for each in (student, teacher))
        project = projections.layers[self.projection] if self.projection else lambda x: x
        published = self.scaling == "tinybert"
        found = [
            _over(
                losses.squared_error(project(ours[i]), theirs[j]),
                mask,
                of_all=published,
            )
            for i, j in self._pairs
        ]
        return self._mean(found, added=published)


@dataclass(frozen=True, kw_only=True)
class Embeddings(HiddenStates):
    """``HiddenStates`` of the embeddings' output."""

    layers: LayerMap = dataclasses.field(default_factory=lambda: {0: 0})


@dataclass(frozen=True, kw_only=True)
class _OfStates(_OfLayers):
    reads = ("hidden_states",)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        _same_width(self.label, student, teacher, bound.layers)
        return bound

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (each.backbone["hidden_states"] for each in (student, teacher))
        return self._mean([self._errors(ours[i], theirs[j], mask) for i, j in self._pairs])

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        """Of a layer's outputs (batch, length, width)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HiddenCosine(_OfStates):
    """1 - the cosine of each token's output of two layers, by default the last (arXiv 1910.01108).

    Raises, when bound, ValueError for layers of different widths.
    """

    layers: LayerMap = "last"

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        return _over(losses.cosine_distance(student, teacher), mask)


@dataclass(frozen=True, kw_only=True)
class FirstTokens(_OfStates):
    """The squared error of the first real token's outputs, scaled to length 1, a mean over width.

    The patient loss of Patient Knowledge Distillation (arXiv 1908.09355, equation 7), with the mean
    of its code, for which its weights of 10 to 1000 are.

    Raises, when bound, ValueError for layers of different widths, and for a network whose first
    token does not stand for the text: of a family that reads it elsewhere, such as at the last
    token, or with a tokenizer that pads on the left, where the first token is padding.
    """

    layers: LayerMap = "skip"

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        for side in (student, teacher):
            summary = registry.get(side.backbone.family).summary
            if summary != "first_token":
                instead = "the last real token" if summary == "last_token" else "no single token"
                raise ValueError(
                    f"{self.label}: the first token of the {side.role}'s {side.backbone.family} "
                    f"backbone does not stand for the text; {instead} does."
                )
            if side.task is not None and side.task.tokenizer.layout.pad_left:
                raise ValueError(
                    f"{self.label}: the {side.role}'s tokenizer pads on the left, where the first "
                    "token of a shorter text is padding."
                )
        return super().bind(student, teacher, projections)

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        # Some families pad on the left.
        first = ops.expand_dims(ops.argmax(ops.cast(mask, "int32"), axis=1), (1, 2))
        student, teacher = (ops.take_along_axis(x, first, axis=1)[:, 0] for x in (student, teacher))
        found = losses.normalized_squared_error(student, teacher)
        return _over(found, ops.any(mask, axis=1))


@dataclass(frozen=True, kw_only=True)
class _OfAttention(_OfLayers):
    reads = ("attention_scores",)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        _same_direction(self.label, student, teacher)
        _same_heads(self.label, student, teacher, bound.layers)
        return bound


@dataclass(frozen=True, kw_only=True)
class AttentionScores(_OfAttention):
    """The squared error of the scores before mask and softmax (arXiv 1909.10351, equation 7).

    Attributes:
        scaling: ``"mean"``, over heads and pairs of real tokens; or ``"tinybert"``, the sum over
            layers of the errors of these pairs divided by batch · heads · length² of the padded
            batch. TinyBERT's code divides by the same number, with a length that is always
            ``max_seq_length``; scores of padding as a key, at most -100 after the mask, are 0 in
            both networks there too, but it adds the errors of padding as a query, which nothing
            reads.
    """

    scaling: str = "mean"
    scalings = ("mean", "tinybert")

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (each.backbone["attention_scores"] for each in (student, teacher))
        published = self.scaling == "tinybert"
        pairs = _pairs_of(mask, student.is_causal)
        found = []
        for i, j in self._pairs:
            x, y = ours[i - 1], theirs[j - 1]
            error = ops.square(losses._float(x) - losses._float(y))
            total, count = _over(error, pairs, of_all=published)
            # Layers with fewer heads weigh as much as others.
            found.append((total / x.shape[1], count))
        return self._mean(found, added=published)


@dataclass(frozen=True, kw_only=True)
class AttentionProbabilities(_OfAttention):
    """KL of what each query attends to, a mean over heads and queries (arXiv 2002.10957)."""

    layers: LayerMap = "last"

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (each.backbone["attention_scores"] for each in (student, teacher))
        pairs = _pairs_of(mask, student.is_causal)
        return self._mean([_divergence(ours[i - 1], theirs[j - 1], pairs) for i, j in self._pairs])


@dataclass(frozen=True, kw_only=True)
class Relations(_OfLayers):
    """KL of softmaxes of scaled dot products of queries, keys or values with themselves.

    A sum over what ``of`` lists, of means over relation heads and queries.

    Attributes:
        of: of ``queries``, ``keys`` and ``values``; MiniLM (arXiv 2002.10957) has ``["values"]``
            beside ``AttentionProbabilities``, MiniLMv2 (arXiv 2012.15828) all three.
        heads: number of relation heads, among which the vectors of all attention heads are divided
            anew, so that teacher and student may have different widths and numbers of heads; None
            for the attention heads.
    """

    layers: LayerMap = "last"
    of: tuple[str, ...] = ("queries", "keys", "values")
    heads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("queries", "keys", "values")
        if not self.of or any(name not in known for name in self.of):
            raise ValueError(f"of must be some of {', '.join(known)}, got {list(self.of)}.")
        object.__setattr__(self, "of", tuple(self.of))
        if self.heads is not None and (type(self.heads) is not int or self.heads < 1):
            raise ValueError(f"heads must be a number from 1 or null, got {self.heads!r}.")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.of

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        _same_direction(self.label, student, teacher)
        for i, j in bound.layers.items():
            shapes = [
                side.spec(name, layer - 1).shape
                for side, layer in ((student, i), (teacher, j))
                for name in self.of
            ]
            if self.heads is None and len({shape[1] for shape in shapes}) > 1:
                raise ValueError(
                    f"{self.label}: layer {i} of the student has {shapes[0][1]} heads, layer {j} "
                    f"of the teacher {shapes[-1][1]}; choose a number of relation heads."
                )
            for shape in shapes if self.heads is not None else []:
                if shape[1] * shape[3] % self.heads:
                    raise ValueError(
                        f"{self.label}: the width {shape[1] * shape[3]} is not a multiple of "
                        f"{self.heads} relation heads."
                    )
        return bound

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        found, pairs = [], _pairs_of(mask, student.is_causal)
        for i, j in self._pairs:
            sums = [
                _divergence(
                    losses.relations(student.backbone[name][i - 1], self.heads),
                    losses.relations(teacher.backbone[name][j - 1], self.heads),
                    pairs,
                )
                for name in self.of
            ]
            found.append((sum(total for total, _ in sums), sums[0][1]))
        return self._mean(found)


TERMS: dict[str, type[Term]] = {
    _snake(each.__name__): each
    for each in (
        AttentionProbabilities,
        AttentionScores,
        Embeddings,
        FirstTokens,
        HiddenCosine,
        HiddenStates,
        LogitsError,
        Relations,
        SoftTargets,
    )
}


def _over(found: Any, counted: Any, *, of_all: bool = False) -> SumAndCount:
    """The sum of the losses that count, and a number.

    Args:
        found: losses (…).
        counted: bool or float of the same shape, or one that broadcasts to it.
        of_all: whether the number is the size of ``counted``, and not its sum.
    """
    counted = ops.cast(counted, found.dtype)
    return ops.sum(found * counted), ops.sum(ops.ones_like(counted) if of_all else counted)


def _pairs_of(mask: Any, is_causal: bool) -> Any:
    """Pairs of real tokens of which one may attend to the other.

    Args:
        mask: bool (batch, length), true at real tokens.
        is_causal: whether keys may not be later than their queries.

    Returns:
        Bool (batch, 1, queries, keys).
    """
    pairs = ops.logical_and(ops.expand_dims(mask, (1, 3)), ops.expand_dims(mask, (1, 2)))
    if is_causal:
        place = ops.cumsum(ops.ones_like(mask, dtype="int32"), axis=1)
        earlier = ops.expand_dims(place, 1) <= ops.expand_dims(place, 2)
        pairs = ops.logical_and(pairs, ops.expand_dims(earlier, 1))
    return pairs


def _divergence(student: Any, teacher: Any, pairs: Any) -> SumAndCount:
    found = losses.attention_divergence(student, teacher, pairs)  # (batch, heads, length)
    queries = ops.cast(ops.any(pairs, axis=-1), found.dtype)
    return ops.sum(found * queries) / student.shape[1], ops.sum(queries)


def _same_width(label: str, student: Network, teacher: Network, pairs: Mapping[int, int]) -> None:
    for i, j in pairs.items():
        ours = student.spec("hidden_states", i).shape[-1]
        theirs = teacher.spec("hidden_states", j).shape[-1]
        if ours != theirs:
            raise ValueError(
                f"{label}: layer {i} of the student has width {ours}, layer {j} of the teacher "
                f"{theirs}."
            )


def _same_direction(label: str, student: Network, teacher: Network) -> None:
    if student.is_causal != teacher.is_causal:
        causal, other = (student, teacher) if student.is_causal else (teacher, student)
        raise ValueError(
            f"{label}: tokens of the {causal.role} attend to earlier ones only, tokens of the "
            f"{other.role} to later ones too."
        )


def _same_heads(label: str, student: Network, teacher: Network, pairs: Mapping[int, int]) -> None:
    for i, j in pairs.items():
        if not i or not j:
            raise ValueError(f"{label}: the embeddings, layer 0, have no attention.")
        ours = student.spec("attention_scores", i - 1).shape[1]
        theirs = teacher.spec("attention_scores", j - 1).shape[1]
        if ours != theirs:
            raise ValueError(
                f"{label}: layer {i} of the student has {ours} heads, layer {j} of the teacher "
                f"{theirs}."
            )

"""Terms of a distillation's loss that compare layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras import ops

from bertfam_tf import registry
from bertfam_tf.distill import losses
from bertfam_tf.distill.layer_maps import LayerMap, layer_map
from bertfam_tf.distill.network import Network
from bertfam_tf.distill.term import AUTO, Outputs, Projections, Term, sum_and_count
from bertfam_tf.objectives.objective import SumAndCount


@dataclass(frozen=True, kw_only=True)
class LayerTerm(Term):
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
class HiddenStates(LayerTerm):
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
            sum_and_count(
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
class StateTerm(LayerTerm):
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
class HiddenCosine(StateTerm):
    """1 - the cosine of each token's output of two layers, by default the last (arXiv 1910.01108).

    Raises, when bound, ValueError for layers of different widths.
    """

    layers: LayerMap = "last"

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        return sum_and_count(losses.cosine_distance(student, teacher), mask)


@dataclass(frozen=True, kw_only=True)
class FirstTokens(StateTerm):
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
        return sum_and_count(found, ops.any(mask, axis=1))


@dataclass(frozen=True, kw_only=True)
class AttentionTerm(LayerTerm):
    reads = ("attention_scores",)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        _same_direction(self.label, student, teacher)
        _same_heads(self.label, student, teacher, bound.layers)
        return bound


@dataclass(frozen=True, kw_only=True)
class AttentionScores(AttentionTerm):
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
            total, count = sum_and_count(error, pairs, of_all=published)
            # Layers with fewer heads weigh as much as others.
            found.append((total / x.shape[1], count))
        return self._mean(found, added=published)


@dataclass(frozen=True, kw_only=True)
class AttentionProbabilities(AttentionTerm):
    """KL of what each query attends to, a mean over heads and queries (arXiv 2002.10957)."""

    layers: LayerMap = "last"

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (each.backbone["attention_scores"] for each in (student, teacher))
        pairs = _pairs_of(mask, student.is_causal)
        return self._mean([_divergence(ours[i - 1], theirs[j - 1], pairs) for i, j in self._pairs])


@dataclass(frozen=True, kw_only=True)
class Relations(LayerTerm):
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

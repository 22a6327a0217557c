"""Terms of the distillation loss that compare layers."""

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
    """A term over pairs of layers.

    Attributes:
        layers: the map from the student's layers to the teacher's; see ``layer_map``.
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

    def _mean(self, layers: list[SumAndCount], *, summed: bool = False) -> SumAndCount:
        """Returns the mean over layers of the same count, or the sum of their means."""
        total = sum(layer_total for layer_total, _ in layers)
        return total, layers[0][1] * (1 if summed else len(layers))


@dataclass(frozen=True, kw_only=True)
class HiddenStates(LayerTerm):
    """The mean squared error of layers' outputs (arXiv 1909.10351, equation 8).

    Attributes:
        projection: the name of a dense layer from the student's width to the teacher's, which is
            trained with the student and used for all layers. Terms with the same name share it.
            ``"auto"`` adds one for this term if the widths differ.
        scaling: ``"mean"``; or ``"tinybert"``, the sum over layers of the errors at real tokens,
            divided by batch · length of the padded batch. TinyBERT's code divides by the same
            number, with a length that is always ``max_seq_length``, and also adds the errors at
            padding, which nothing reads.
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
        ours, theirs = (side.backbone["hidden_states"] for side in (student, teacher))
        project = projections.layers[self.projection] if self.projection else lambda x: x
        tinybert = self.scaling == "tinybert"
        errors = [
            sum_and_count(
                losses.squared_error(project(ours[i]), theirs[j]), mask, count_all=tinybert
            )
            for i, j in self._pairs
        ]
        return self._mean(errors, summed=tinybert)


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
        ours, theirs = (side.backbone["hidden_states"] for side in (student, teacher))
        return self._mean([self._errors(ours[i], theirs[j], mask) for i, j in self._pairs])

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        """Computes the loss of a layer's outputs (batch, length, width)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HiddenCosine(StateTerm):
    """One minus the cosine similarity of tokens' hidden states (arXiv 1910.01108).

    Binding raises ValueError if the layers' widths differ.
    """

    layers: LayerMap = "last"

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        return sum_and_count(losses.cosine_distance(student, teacher), mask)


@dataclass(frozen=True, kw_only=True)
class FirstTokens(StateTerm):
    """The mean squared error of the first real token's normalized hidden states.

    This is the loss of Patient Knowledge Distillation (arXiv 1908.09355, equation 7), with the mean
    over the width of its code, which its weights of 10 to 1000 are chosen for.

    Binding raises ValueError if the layers' widths differ, or a network does not represent the text
    by its first token: its family reads another token, such as the last, or its tokenizer pads on
    the left.
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
        return super().bind(student, teacher, projections)

    def _errors(self, student: Any, teacher: Any, mask: Any) -> SumAndCount:
        first = ops.expand_dims(ops.argmax(ops.cast(mask, "int32"), axis=1), (1, 2))
        student, teacher = (ops.take_along_axis(x, first, axis=1)[:, 0] for x in (student, teacher))
        error = losses.normalized_squared_error(student, teacher)
        return sum_and_count(error, ops.any(mask, axis=1))


@dataclass(frozen=True, kw_only=True)
class AttentionTerm(LayerTerm):
    reads = ("attention_scores",)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Any:
        bound = super().bind(student, teacher, projections)
        _check_attention(self.label, student, teacher, bound.layers)
        _same_heads(self.label, student, teacher, bound.layers)
        return bound


@dataclass(frozen=True, kw_only=True)
class AttentionScores(AttentionTerm):
    """The mean squared error of attention scores before mask and softmax (arXiv 1909.10351,
    equation 7).

    Attributes:
        scaling: ``"mean"``, over heads and pairs of real tokens; or ``"tinybert"``, the sum over
            layers of these errors, divided by batch · heads · length² of the padded batch.
            TinyBERT's code divides by the same number, with a length that is always
            ``max_seq_length``. It also ignores keys at padding, but adds the errors of queries at
            padding, which nothing reads.
    """

    scaling: str = "mean"
    scalings = ("mean", "tinybert")

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (side.backbone["attention_scores"] for side in (student, teacher))
        tinybert = self.scaling == "tinybert"
        pairs = _attention_pairs(mask, student.is_causal)
        errors = []
        for i, j in self._pairs:
            x, y = ours[i - 1], theirs[j - 1]
            error = ops.square(losses.to_float(x) - losses.to_float(y))
            total, count = sum_and_count(error, pairs, count_all=tinybert)
            # The mean over heads gives layers with few heads the same weight.
            errors.append((total / x.shape[1], count))
        return self._mean(errors, summed=tinybert)


@dataclass(frozen=True, kw_only=True)
class AttentionProbabilities(AttentionTerm):
    """The KL divergence of attention distributions, a mean over heads and queries (arXiv
    2002.10957)."""

    layers: LayerMap = "last"

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = (side.backbone["attention_scores"] for side in (student, teacher))
        pairs = _attention_pairs(mask, student.is_causal)
        return self._mean([_divergence(ours[i - 1], theirs[j - 1], pairs) for i, j in self._pairs])


@dataclass(frozen=True, kw_only=True)
class Relations(LayerTerm):
    """The KL divergence of self-attention relations: softmaxes of scaled dot products of queries,
    keys or values with themselves.

    The loss is a mean over relation heads and queries, and a sum over the vectors in ``of``.

    Attributes:
        of: one or several of ``queries``, ``keys`` and ``values``. MiniLM (arXiv 2002.10957) uses
            ``["values"]`` with ``AttentionProbabilities``, MiniLMv2 (arXiv 2012.15828) all three.
        heads: the number of relation heads, into which the concatenated attention heads are split
            again, so teacher and student may have different widths and numbers of heads. None uses
            the attention heads.
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
        _check_attention(self.label, student, teacher, bound.layers)
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
        layers, pairs = [], _attention_pairs(mask, student.is_causal)
        for i, j in self._pairs:
            divergences = [
                _divergence(
                    losses.relations(student.backbone[name][i - 1], self.heads),
                    losses.relations(teacher.backbone[name][j - 1], self.heads),
                    pairs,
                )
                for name in self.of
            ]
            layers.append((sum(total for total, _ in divergences), divergences[0][1]))
        return self._mean(layers)


def _attention_pairs(mask: Any, is_causal: bool) -> Any:
    """Returns which queries may attend to which keys, bool (batch, 1, queries, keys).

    Args:
        mask: bool (batch, length), true at real tokens.
        is_causal: whether tokens only attend to themselves and earlier tokens.
    """
    pairs = ops.logical_and(ops.expand_dims(mask, (1, 3)), ops.expand_dims(mask, (1, 2)))
    if is_causal:
        positions = ops.cumsum(ops.ones_like(mask, dtype="int32"), axis=1)
        earlier = ops.expand_dims(positions, 1) <= ops.expand_dims(positions, 2)
        pairs = ops.logical_and(pairs, ops.expand_dims(earlier, 1))
    return pairs


def _divergence(student: Any, teacher: Any, pairs: Any) -> SumAndCount:
    divergence = losses.attention_divergence(student, teacher, pairs)  # (batch, heads, length)
    queries = ops.cast(ops.any(pairs, axis=-1), divergence.dtype)
    return ops.sum(divergence * queries) / student.shape[1], ops.sum(queries)


def _same_width(label: str, student: Network, teacher: Network, pairs: Mapping[int, int]) -> None:
    for i, j in pairs.items():
        ours = student.spec("hidden_states", i).shape[-1]
        theirs = teacher.spec("hidden_states", j).shape[-1]
        if ours != theirs:
            raise ValueError(
                f"{label}: layer {i} of the student has width {ours}, layer {j} of the teacher "
                f"{theirs}."
            )


def _check_attention(label: str, student: Network, teacher: Network, pairs: dict[int, int]) -> None:
    if not all(pairs) or not all(pairs.values()):
        raise ValueError(f"{label}: the embeddings, layer 0, have no attention.")
    if student.is_causal != teacher.is_causal:
        causal, other = (student, teacher) if student.is_causal else (teacher, student)
        raise ValueError(
            f"{label}: the {causal.role} has causal attention, the {other.role} bidirectional "
            "attention."
        )


def _same_heads(label: str, student: Network, teacher: Network, pairs: Mapping[int, int]) -> None:
    for i, j in pairs.items():
        ours = student.spec("attention_scores", i - 1).shape[1]
        theirs = teacher.spec("attention_scores", j - 1).shape[1]
        if ours != theirs:
            raise ValueError(
                f"{label}: layer {i} of the student has {ours} heads, layer {j} of the teacher "
                f"{theirs}."
            )

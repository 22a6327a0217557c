"""Terms of the distillation loss that compare logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras import ops

from bertfam_tf.distill import losses
from bertfam_tf.distill.network import Network
from bertfam_tf.distill.term import Outputs, Projections, Term, sum_and_count
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.validation import check, setting

# Tasks mask logits with lower values, such as span QA at padding.
_MASKED = -1e4


@dataclass(frozen=True, kw_only=True)
class LogitTerm(Term):
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
class SoftTargets(LogitTerm):
    """The divergence from the teacher's softmax (Hinton et al. 2015, arXiv 1503.02531).

    The classes are the labels in classification, the tags of each word in tagging, the tokens of a
    window as start and as end in span QA, the vocabulary at each token, masked or not, in masked
    language modeling (DistilBERT), and the vocabulary at each token with a next token in causal
    language modeling.

    Attributes:
        temperature: divides the logits.
        divergence: ``"kl"``, multiplied by temperature²; or ``"cross_entropy"``, without it.
        scaling: ``"mean"``, over examples (or words, …), as in DistilBERT; or ``"classes"``, over
            examples and classes, as in the code of TinyBERT and Patient Knowledge Distillation.
    """

    temperature: float = setting(1.0, above=0)
    divergence: str = setting("kl", choices=("kl", "cross_entropy"))
    scaling: str = "mean"
    scalings = ("mean", "classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)

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
        divergence = losses.kl_divergence if kl else losses.soft_cross_entropy
        loss = divergence(student.logits, teacher.logits, self.temperature)
        total, count = sum_and_count(loss, student.counted)
        if self.scaling == "classes":
            count = count * ops.cast(ops.shape(student.logits)[-1], count.dtype)
        return total, count


@dataclass(frozen=True, kw_only=True)
class LogitsError(LogitTerm):
    """The mean squared error of the logits (arXiv 1903.12136, section 3.2).

    In span QA the classes are the tokens of a window, without padding. With several labels, each
    label has two classes, its logit and 0, so that the error is half of the logits' error.
    """

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        ours, theirs = losses.to_float(student.logits), losses.to_float(teacher.logits)
        unmasked = ops.minimum(ours, theirs) > _MASKED
        error = ops.where(unmasked, ops.square(ours - theirs), 0)
        classes = ops.sum(ops.cast(unmasked, error.dtype), axis=-1)
        return sum_and_count(ops.sum(error, axis=-1) / ops.maximum(classes, 1), student.counted)

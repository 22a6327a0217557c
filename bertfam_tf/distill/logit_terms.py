"""Terms of a distillation's loss that compare logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras import ops

from bertfam_tf.distill import losses
from bertfam_tf.distill.network import Network
from bertfam_tf.distill.term import Outputs, Projections, Term, sum_and_count
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.validation import check, setting

# Logits below are masks, such as padding's in span QA, and not a network's.
_IMPOSSIBLE = -1e4


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
        function = losses.kl_divergence if kl else losses.soft_cross_entropy
        found = function(student.logits, teacher.logits, self.temperature)
        total, count = sum_and_count(found, student.counted)
        if self.scaling == "classes":
            count = count * ops.cast(ops.shape(student.logits)[-1], count.dtype)
        return total, count


@dataclass(frozen=True, kw_only=True)
class LogitsError(LogitTerm):
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
        return sum_and_count(ops.sum(error, axis=-1) / ops.maximum(classes, 1), student.counted)

"""Trains a student to imitate a teacher, with Keras' ``fit``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf.data.tables import Columns
from bertfam_tf.distill.cache import BATCH, Cache, halved
from bertfam_tf.distill.network import TASK, Network
from bertfam_tf.distill.term import Outputs, Projections, Term
from bertfam_tf.models import Backbone, unpadding
from bertfam_tf.objectives.objective import Batch, Objective, SumAndCount
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.fingerprint import fingerprint
from bertfam_tf.tasks.text_learner import TextLearner, renamed
from bertfam_tf.training.learner import NamedLossTracker, Untracked

# Targets of a batch: the task's, and the inputs of each teacher or its outputs.
TARGETS, INPUTS, OUTPUTS = "targets", "teacher_inputs", "teacher_outputs"
_BACKBONE = "backbone"


class Distiller(TextLearner):
    """A student that is trained to imitate a teacher, or the mean of several.

    ``fit`` trains the student itself: afterwards it is evaluated, saved and exported as any other.
    The teacher is not trained, and its dropout is off; it reads what the student reads, masks of a
    ``MaskedLM`` included. Loss and metrics are reported for each term.

    Args:
        student: a task, for ``fit`` on raw texts; or a backbone, for ``fit`` on its inputs.
        teacher: of the same kind; or several, whose logits are averaged.
        terms: what the student imitates.
        labels: weight of the student's own loss, such as that of labels or of masked tokens; 0 for
            training without labels.

    Raises:
        ValueError: for a teacher and a student that do not fit a term, terms of the same name, no
            terms, several teachers with a term that reads more than logits, different tokenizers
            with a term that compares tokens, or a teacher with fewer positions than the student's
            ``max_length``.
    """

    tracker = NamedLossTracker
    fit_options = ("batch_tokens", "cache")

    def __init__(
        self,
        student: Task | Backbone,
        teacher: Task | Backbone | Sequence[Task | Backbone],
        terms: Iterable[Term],
        labels: float = 0.0,
        **kwargs: Any,
    ):
        teachers: Any = teacher if isinstance(teacher, list | tuple) else [teacher]
        distilled = Distillation(student, teachers, terms)
        ours = distilled.student
        objectives: list[Objective] = [distilled]
        if labels:
            objectives.append(_own_objective(ours, labels))
        found = ours.outputs(ours.inputs, distilled.names, distilled.reads_logits or bool(labels))
        outputs = {_BACKBONE: {name: found[name] for name in distilled.names}}
        if TASK in found:
            outputs[TASK] = found[TASK]
        kwargs.setdefault("name", "distiller")
        super().__init__(ours.inputs, outputs, objectives, **kwargs)
        self._distilled = Untracked(distilled)
        self._labels = labels
        if ours.task is not None:
            self.fields = ours.task.fields

    @property
    def student(self) -> Any:
        """The task or the backbone that is trained."""
        network = self._distilled.value.student
        return network.task or network.backbone

    @property
    def terms(self) -> list[Term]:
        """The terms, with layer maps as dicts."""
        return list(self._distilled.value.terms)

    def examples(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        columns: Columns | None = None,
    ) -> tuple[Any, Any, Any]:
        task = self._distilled.value.student.task
        if task is None:
            return x, y, sample_weight
        return task.examples(x, y, sample_weight, columns)

    def fit(
        self, x: Any, y: Any = None, *, cache: str | Path | None = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """As ``TextLearner.fit``, on raw texts if the student is a task, else on its inputs.

        Labels may be omitted without a weight for ``labels``. Sample weights count in the loss of
        the labels alone.

        Args:
            x, y: as for ``TextLearner.fit``.
            cache: a folder for what the terms read of the teacher, which is computed in a first
                pass and read from there in each epoch, also of later calls with the same examples
                and the same teacher; None to compute it in each step. An interrupted first pass
                resumes. Not for masks that are drawn anew in each epoch.
            **kwargs: of ``TextLearner.fit``.

        Raises:
            ValueError: as ``TextLearner.fit`` does; and for a ``cache`` with outputs of other
                teachers, terms or examples, or where it is not possible.
        """
        if cache is not None:
            kwargs["cache"] = cache
        with warnings.catch_warnings():
            # A term may read less than the last layer's output, so that no gradient reaches it.
            warnings.filterwarnings("ignore", "Gradients do not exist")
            return super().fit(x, y, **kwargs)

    batches = renamed("batches", "text_batches")

    def text_batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        cache: str | Path | None = None,
        **options: Any,
    ) -> Any:
        """Batches of texts as ``fit`` trains on them: inputs, targets, weights.

        Args:
            x, y, sample_weight, batch_size, shuffle, cache: as for ``fit``.
            **options: of the task's ``text_batches``.

        Raises:
            ValueError: as for ``fit``.
        """
        if cache is not None:
            stored = self.cached(x, y, sample_weight, cache)
            return stored.dataset(batch_size, shuffle=shuffle)
        distilled = self._distilled.value
        task = distilled.student.task
        if task is None:
            return _batched(x, y, sample_weight, batch_size, shuffle)
        return task.text_batches(
            x,
            y,
            sample_weight,
            batch_size,
            shuffle=shuffle,
            labelled=bool(self._labels),
            extend=distilled.extend,
            **options,
        )

    def cached(self, x: Any, y: Any, sample_weight: Any, folder: str | Path) -> Cache:
        """The batches of texts with the teachers' outputs, in a folder; see ``fit``.

        Raises:
            ValueError: as for ``fit``.
        """
        self.check_cache()
        distilled = self._distilled.value
        task = distilled.student.task
        described = {
            "teacher_sha256": [
                fingerprint(each.task or each.backbone) for each in distilled.teachers
            ],
            "outputs": [*distilled.names, *([TASK] if distilled.reads_logits else [])],
        }
        pads = {(0, "token_ids"): task.tokenizer.special_ids.get("pad", 0)}
        pads[(1, TARGETS)] = task.components.targets.padding
        batches = self.text_batches(x, y, sample_weight, BATCH)
        return Cache(folder, batches, distilled.with_outputs, described, pads)

    def check_cache(self) -> None:
        """Raises ValueError if outputs of the teacher cannot be cached."""
        task = self._distilled.value.student.task
        if task is None or task.components.draws:
            kind = type(self.student).__name__
            why = "is not a task" if task is None else "draws masks anew in each epoch"
            raise ValueError(f"The teacher's outputs cannot be cached for a {kind}, which {why}.")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Metrics of `compile` are the task's: of its targets and outputs.
        if isinstance(y, Mapping) and TARGETS in y and TASK in y_pred:
            y, y_pred = y[TARGETS], y_pred[TASK]
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Distillation:
    """The objective of imitating a teacher: the losses of terms.

    Args:
        student: a task or a backbone.
        teachers: at least one of the same kind.
        terms: what is imitated.

    Attributes:
        names: the student's outputs that terms read, by name.

    Raises:
        ValueError: as ``Distiller`` raises it.
    """

    def __init__(
        self,
        student: Task | Backbone,
        teachers: Sequence[Task | Backbone],
        terms: Iterable[Term],
    ):
        terms = list(terms)
        if not terms:
            raise ValueError("A distillation needs at least one term.")
        labels = [term.label for term in terms]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"Two terms are named {label!r}; give one another name.")
        self.student = Network(student, "student")
        self.teachers = [Network(each, "teacher") for each in teachers]
        self.projections = Projections(self.student.backbone.dtype_policy)
        with self.student.backbone.distribute_strategy.scope():
            for teacher in self.teachers:
                bound = [term.bind(self.student, teacher, self.projections) for term in terms]
        self.terms = bound
        self.names = sorted({name for term in bound for name in term.reads})
        self.reads_logits = any(term.reads_logits for term in bound)
        if self.names and len(self.teachers) > 1:
            raise ValueError(
                f"Several teachers are averaged by their logits; {', '.join(self.names)} are not."
            )
        self.heads: Mapping[str, keras.layers.Layer] = self.projections.layers
        self.weights: Mapping[str, float] = {term.label: term.weight for term in bound}
        self._same_tokens = [self._reads_the_same(teacher) for teacher in self.teachers]

    def _reads_the_same(self, teacher: Network) -> bool:
        """Whether a teacher has the student's tokens."""
        if self.student.task is None or teacher.task is None:
            missing = teacher.backbone.token_inputs.keys() - self.student.inputs.keys()
            if missing - {"segment_ids", "position_ids"}:
                raise ValueError(
                    f"The teacher reads {', '.join(sorted(missing))}, which the student does not."
                )
            return True
        ours, theirs = self.student.task.tokenizer, teacher.task.tokenizer
        if type(ours) is type(theirs) and ours.get_config() == theirs.get_config():
            longest, read = self.student.task.max_length, teacher.backbone.max_length
            if read is not None and longest > read:
                raise ValueError(
                    f"The student reads up to {longest} tokens, the teacher has {read} positions; "
                    f"expected a student with max_length={read} or less."
                )
            return True
        if self.names:
            raise ValueError(
                f"{', '.join(self.names)} of teacher and student are of the same tokens only with "
                "the same tokenizer; theirs differ."
            )
        windows = self.student.task.components.preprocessor
        if not self.student.task.one_input_per_example:
            raise ValueError(
                f"With another tokenizer than the teacher's, {type(windows).__name__} of the "
                "student are not the teacher's."
            )
        return False

    def extend(self, features: dict[str, Any], encoded: dict[str, Any], batch: tuple) -> tuple:
        """A batch with the teachers' inputs among the targets, as ``Task.text_batches``."""
        inputs, *rest = batch
        given = []
        for teacher, same in zip(self.teachers, self._same_tokens, strict=True):
            assert teacher.task is not None
            preprocessor = teacher.task.components.preprocessor
            given.append(preprocessor.inputs(encoded if same else preprocessor(features)))
        targets = {INPUTS: tuple(given)}
        if rest:
            targets[TARGETS] = rest[0]
        return inputs, targets, *rest[1:]

    def with_outputs(self, inputs: Any, targets: Any, *weights: Any) -> tuple:
        """A batch of ``extend`` with the teachers' outputs in place of their inputs.

        Outputs of layers are in half precision, logits in float32. Of several teachers, logits are
        averaged already.
        """
        with unpadding(True):
            found = self.teacher_outputs(Batch(inputs, targets))
        kept = {name: value for name, value in targets.items() if name != INPUTS}
        if len(found) > 1:
            found = [keras.tree.map_structure(lambda *x: sum(x) / len(x), *found)]
        # To tf.data a list is a tensor.
        outputs = {n: tuple(map(halved, x)) for n, x in found[0].items() if n != TASK}
        if TASK in found[0]:
            outputs[TASK] = keras.tree.map_structure(
                lambda x: tf.cast(x, tf.float32), found[0][TASK]
            )
        return inputs, {**kept, OUTPUTS: outputs}, *weights

    def teacher_outputs(self, batch: Batch) -> list[dict[str, Any]]:
        """The outputs of each teacher, without gradients."""
        targets = batch.targets if isinstance(batch.targets, Mapping) else {}
        if OUTPUTS in targets:
            return [targets[OUTPUTS]]
        given = targets.get(INPUTS, [batch.inputs] * len(self.teachers))
        return [
            keras.tree.map_structure(
                ops.stop_gradient,
                teacher.outputs(inputs, self.names, self.reads_logits, training=False),
            )
            for teacher, inputs in zip(self.teachers, given, strict=True)
        ]

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        """The loss of each term, as ``learner.Objective.loss``."""
        targets = batch.targets if isinstance(batch.targets, Mapping) else {}
        found = self.teacher_outputs(batch)
        ours = Outputs(outputs[_BACKBONE], is_causal=self.student.is_causal)
        theirs = Outputs(found[0], is_causal=self.teachers[0].is_causal)
        if self.reads_logits:
            own = targets.get(TARGETS)
            given = targets.get(INPUTS, [batch.inputs] * len(self.teachers))
            logits, counted = self.student.distributions(outputs[TASK], batch.inputs, own)
            ours = ours._replace(logits=logits, counted=counted)
            each = [
                teacher.distributions(x[TASK], inputs, own)[0]
                for teacher, x, inputs in zip(self.teachers, found, given, strict=False)
            ]
            theirs = theirs._replace(logits=sum(each) / len(each))
        mask = ops.cast(batch.inputs["padding_mask"], "bool")
        return {term.label: term.loss(ours, theirs, mask, self.projections) for term in self.terms}


class LabelObjective:
    """The student's own objective, in a batch of a distillation.

    Args:
        objective: of the task.
        weights: of its losses; the only one of a ``Supervised`` objective is called ``labels``.
    """

    def __init__(self, objective: Objective, weight: float):
        self.objective = objective
        self.heads = objective.heads
        self.metrics = getattr(objective, "metrics", {})
        self.weights: Mapping[str, float] = {
            _label(name): weight * value for name, value in objective.weights.items()
        }

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        own = batch._replace(targets=batch.targets[TARGETS])
        found = self.objective.loss(outputs[TASK], heads, own)
        return {_label(name): value for name, value in found.items()}


def _batched(x: Any, y: Any, sample_weight: Any, batch_size: int, shuffle: bool) -> Any:
    """Arrays of token ids and weights as a data set of batches; other data as they are."""
    data = tuple(each for each in (x, y, sample_weight) if each is not None)
    arrays = keras.tree.flatten(data)
    if not all(hasattr(each, "shape") for each in arrays):
        return x
    dataset = tf.data.Dataset.from_tensor_slices(data)
    if shuffle:
        dataset = dataset.shuffle(len(arrays[0]))
    return dataset.batch(batch_size)


def _label(name: str) -> str:
    return "labels" if name == "loss" else name


def _own_objective(student: Network, weight: float) -> Objective:
    objectives = [] if student.task is None else student.task.objectives
    reads = student.task is not None and student.task.components.read is not None
    if len(objectives) != 1 or not reads:
        kind = type(student.task or student.backbone).__name__
        raise ValueError(f"labels must be 0 for a {kind}, which has no loss of its own.")
    return LabelObjective(objectives[0], weight)

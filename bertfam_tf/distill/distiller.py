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

# Keys of a batch's targets: the task's targets, and the teachers' inputs or outputs.
TARGETS, INPUTS, OUTPUTS = "targets", "teacher_inputs", "teacher_outputs"
_BACKBONE = "backbone"


class Distiller(TextLearner):
    """Trains a student to imitate a teacher, or the mean of several teachers.

    ``fit`` trains the student in place, so it can be evaluated, saved and exported afterwards. The
    teacher is frozen, and its dropout is off. It reads the same inputs as the student, including
    the masks of a ``MaskedLM``. Each term is reported as a metric.

    Args:
        student: a task, for ``fit`` on raw texts; or a backbone, for ``fit`` on its inputs.
        teacher: a model of the same kind; or several, whose logits are averaged.
        terms: the terms of the loss.
        labels: the weight of the student's own loss, such as the cross-entropy with labels; with 0
            it trains without labels.

    Raises:
        ValueError: if teacher and student do not fit a term; there are no terms, or two with the
            same name; there are several teachers and a term that reads more than logits; a term
            compares tokens, but the tokenizers differ; or the teacher has fewer positions than the
            student's ``max_length``.
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
        distillation = Distillation(student, teachers, terms)
        network, names = distillation.student, distillation.names
        objectives: list[Objective] = [distillation]
        if labels:
            objectives.append(_label_objective(network, labels))
        tensors = network.outputs(network.inputs, names, distillation.reads_logits or bool(labels))
        outputs = {_BACKBONE: {name: tensors[name] for name in names}}
        if TASK in tensors:
            outputs[TASK] = tensors[TASK]
        kwargs.setdefault("name", "distiller")
        super().__init__(network.inputs, outputs, objectives, **kwargs)
        self.dtype_policy = network.backbone.dtype_policy
        self._distillation = Untracked(distillation)
        self._labels = labels
        if network.task is not None:
            self.fields = network.task.fields

    @property
    def student(self) -> Any:
        """The student, a task or a backbone."""
        network = self._distillation.value.student
        return network.task or network.backbone

    @property
    def terms(self) -> list[Term]:
        """The terms, with layer maps resolved to dicts."""
        return list(self._distillation.value.terms)

    def examples(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        columns: Columns | None = None,
    ) -> tuple[Any, Any, Any]:
        task = self._distillation.value.student.task
        if task is None:
            return x, y, sample_weight
        return task.examples(x, y, sample_weight, columns)

    def fit(
        self, x: Any, y: Any = None, *, cache: str | Path | None = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """Trains the student like ``TextLearner.fit``: a task on texts, a backbone on its inputs.

        ``y`` is only required with a weight for ``labels``. Sample weights only apply to the loss
        of the labels.

        Args:
            x, y: the same as for ``TextLearner.fit``.
            cache: a folder for the teacher's outputs. A first pass computes them, and each epoch
                reads them, also in later calls with the same examples and teacher. An interrupted
                first pass resumes. None computes them in each step. Not possible for tasks that
                draw new masks in each epoch.
            **kwargs: further arguments of ``TextLearner.fit``.

        Raises:
            ValueError: for the reasons of ``TextLearner.fit``; and if ``cache`` has outputs of
                other teachers, terms or examples, or the task's outputs cannot be cached.
        """
        if cache is not None:
            kwargs["cache"] = cache
        with warnings.catch_warnings():
            # If no term reads the last layer's output, no gradient reaches the layer.
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
        """Returns the batches that ``fit`` trains on: inputs, targets, weights.

        Args:
            x, y, sample_weight, batch_size, shuffle, cache: the same as for ``fit``.
            **options: options of the task's ``text_batches``.

        Raises:
            ValueError: as for ``fit``.
        """
        if cache is not None:
            return self.cached(x, y, sample_weight, cache).dataset(batch_size, shuffle=shuffle)
        distillation = self._distillation.value
        task = distillation.student.task
        if task is None:
            return _batched(x, y, sample_weight, batch_size, shuffle)
        return task.text_batches(
            x,
            y,
            sample_weight,
            batch_size,
            shuffle=shuffle,
            labelled=bool(self._labels),
            extend=distillation.extend,
            **options,
        )

    def cached(self, x: Any, y: Any, sample_weight: Any, folder: str | Path) -> Cache:
        """Returns a cache of the batches with the teachers' outputs; see ``fit``.

        Raises:
            ValueError: as for ``fit``.
        """
        self.check_cache()
        distillation = self._distillation.value
        task = distillation.student.task
        described = {
            "teacher_sha256": [fingerprint(t.task or t.backbone) for t in distillation.teachers],
            "outputs": [*distillation.names, *([TASK] if distillation.reads_logits else [])],
        }
        pads = {(0, "token_ids"): task.tokenizer.special_ids.get("pad", 0)}
        pads[(1, TARGETS)] = task.components.targets.padding
        batches = self.text_batches(x, y, sample_weight, BATCH)
        return Cache(folder, batches, distillation.with_outputs, described, pads)

    def check_cache(self) -> None:
        """Raises ValueError if the teacher's outputs cannot be cached."""
        task = self._distillation.value.student.task
        if task is None or task.components.draws:
            kind = type(self.student).__name__
            why = "is not a task" if task is None else "draws masks anew in each epoch"
            raise ValueError(f"The teacher's outputs cannot be cached for a {kind}, which {why}.")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Metrics of `compile` read the task's targets and outputs.
        if isinstance(y, Mapping) and TARGETS in y and TASK in y_pred:
            y, y_pred = y[TARGETS], y_pred[TASK]
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Distillation:
    """The distillation objective: the losses of all terms.

    Args:
        student: a task or a backbone.
        teachers: one or several models of the same kind.
        terms: the terms of the loss.

    Attributes:
        names: the names of the backbone outputs that terms read.

    Raises:
        ValueError: as for ``Distiller``.
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
        self.teachers = [Network(teacher, "teacher") for teacher in teachers]
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
        self._same_tokens = [self._shares_tokens(teacher) for teacher in self.teachers]

    def _shares_tokens(self, teacher: Network) -> bool:
        """Returns whether a teacher can read the student's token ids."""
        if self.student.task is None or teacher.task is None:
            missing = teacher.backbone.token_inputs.keys() - self.student.inputs.keys()
            if missing - {"segment_ids", "position_ids"}:
                raise ValueError(
                    f"The teacher reads {', '.join(sorted(missing))}, which the student does not."
                )
            return True
        ours, theirs = self.student.task.tokenizer, teacher.task.tokenizer
        if type(ours) is type(theirs) and ours.get_config() == theirs.get_config():
            longest, positions = self.student.task.max_length, teacher.backbone.max_length
            if positions is not None and longest > positions:
                raise ValueError(
                    f"The student reads up to {longest} tokens, the teacher has {positions} "
                    f"positions; expected a student with max_length={positions} or less."
                )
            return True
        if self.names:
            raise ValueError(
                f"Terms on {', '.join(self.names)} compare tokens, which requires teacher and "
                "student to have the same tokenizer; theirs differ."
            )
        if not self.student.task.one_input_per_example:
            raise ValueError(
                f"A {type(self.student.task).__name__} splits texts into windows of tokens, which "
                "requires teacher and student to have the same tokenizer; theirs differ."
            )
        return False

    def extend(self, features: dict[str, Any], encoded: dict[str, Any], batch: tuple) -> tuple:
        """Adds the teachers' inputs to a batch's targets; see ``Task.text_batches``."""
        inputs, *rest = batch
        teacher_inputs = []
        for teacher, same in zip(self.teachers, self._same_tokens, strict=True):
            assert teacher.task is not None
            preprocessor = teacher.task.components.preprocessor
            teacher_inputs.append(preprocessor.inputs(encoded if same else preprocessor(features)))
        targets = {INPUTS: tuple(teacher_inputs)}
        if rest:
            targets[TARGETS] = rest[0]
        return inputs, targets, *rest[1:]

    def with_outputs(self, inputs: Any, targets: Any, *weights: Any) -> tuple:
        """Replaces the teachers' inputs, which ``extend`` added to a batch, with their outputs.

        Outputs of layers are float16, logits float32, averaged over teachers.
        """
        with unpadding(True):
            teachers = self.teacher_outputs(Batch(inputs, targets))
        labels = {name: value for name, value in targets.items() if name != INPUTS}
        mean = keras.tree.map_structure(lambda *x: sum(x) / len(x), *teachers)
        # tf.data would convert a list to a tensor.
        outputs = {n: tuple(map(halved, x)) for n, x in mean.items() if n != TASK}
        if TASK in mean:
            outputs[TASK] = keras.tree.map_structure(lambda x: tf.cast(x, tf.float32), mean[TASK])
        return inputs, {**labels, OUTPUTS: outputs}, *weights

    def teacher_outputs(self, batch: Batch) -> list[dict[str, Any]]:
        """Returns the outputs of each teacher, without gradients."""
        targets = batch.targets if isinstance(batch.targets, Mapping) else {}
        if OUTPUTS in targets:
            return [targets[OUTPUTS]]
        teacher_inputs = targets.get(INPUTS, [batch.inputs] * len(self.teachers))
        return [
            keras.tree.map_structure(
                ops.stop_gradient,
                teacher.outputs(inputs, self.names, self.reads_logits, training=False),
            )
            for teacher, inputs in zip(self.teachers, teacher_inputs, strict=True)
        ]

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        """Computes the loss of each term; see ``Objective.loss``."""
        targets = batch.targets if isinstance(batch.targets, Mapping) else {}
        teacher_outputs = self.teacher_outputs(batch)
        ours = Outputs(outputs[_BACKBONE], is_causal=self.student.is_causal)
        theirs = Outputs(teacher_outputs[0], is_causal=self.teachers[0].is_causal)
        if self.reads_logits:
            labels = targets.get(TARGETS)
            teacher_inputs = targets.get(INPUTS, [batch.inputs] * len(self.teachers))
            logits, counted = self.student.distributions(outputs[TASK], batch.inputs, labels)
            ours = ours._replace(logits=logits, counted=counted)
            # Cached outputs are one entry, already averaged.
            teacher_logits = [
                teacher.distributions(x[TASK], inputs, labels)[0]
                for teacher, x, inputs in zip(
                    self.teachers, teacher_outputs, teacher_inputs, strict=False
                )
            ]
            theirs = theirs._replace(logits=sum(teacher_logits) / len(teacher_logits))
        mask = ops.cast(batch.inputs["padding_mask"], "bool")
        return {term.label: term.loss(ours, theirs, mask, self.projections) for term in self.terms}


class LabelObjective:
    """The student's own objective on a batch of a distillation.

    Args:
        objective: the task's objective.
        weight: multiplies its weights. The loss of a ``Supervised`` objective is named ``labels``.
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
        batch = batch._replace(targets=batch.targets[TARGETS])
        losses = self.objective.loss(outputs[TASK], heads, batch)
        return {_label(name): value for name, value in losses.items()}


def _batched(x: Any, y: Any, sample_weight: Any, batch_size: int, shuffle: bool) -> Any:
    """Batches arrays of token ids and weights; returns other data, such as a dataset, unchanged."""
    data = tuple(value for value in (x, y, sample_weight) if value is not None)
    arrays = keras.tree.flatten(data)
    if not all(hasattr(array, "shape") for array in arrays):
        return x
    dataset = tf.data.Dataset.from_tensor_slices(data)
    if shuffle:
        dataset = dataset.shuffle(len(arrays[0]))
    return dataset.batch(batch_size)


def _label(name: str) -> str:
    return "labels" if name == "loss" else name


def _label_objective(student: Network, weight: float) -> Objective:
    objectives = [] if student.task is None else student.task.objectives
    reads = student.task is not None and student.task.components.read is not None
    if len(objectives) != 1 or not reads:
        kind = type(student.task or student.backbone).__name__
        raise ValueError(f"labels must be 0 for a {kind}, which has no loss of its own.")
    return LabelObjective(objectives[0], weight)

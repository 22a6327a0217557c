"""The model that everything here is trained with: a network, and the objectives on its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
from keras import ops

from bertfam_tf.layers import recomputation
from bertfam_tf.models.base import unpadding
from bertfam_tf.names import unknown
from bertfam_tf.objectives.objective import Batch, Objective, SumAndCount
from bertfam_tf.training import accumulation, replicas
from bertfam_tf.training.step_value import StepValue


class LossTracker(keras.metrics.Metric):
    """Means of losses over all batches since the last reset, and their weighted sum.

    Args:
        weights: of the losses, by name.
        metrics: functions of means that are only reported, by name.

    The result is ``loss``, the weighted sum, where there are several losses each under its own
    name, and the metrics.
    """

    # The number of losses from which on each is under its own name.
    named_from = 2

    def __init__(
        self,
        weights: Mapping[str, float],
        metrics: Mapping[str, Callable[[Any], Any]] | None = None,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self._weights = dict(weights)
        self._reported = dict(metrics or {})
        names = [*self._weights, *self._reported]
        self._sums = {n: self.add_weight(name=f"{n}_sum", initializer="zeros") for n in names}
        self._counts = {n: self.add_weight(name=f"{n}_count", initializer="zeros") for n in names}

    def update_state(self, found: Mapping[str, SumAndCount]) -> None:
        for name, (total, count) in found.items():
            self._sums[name].assign_add(ops.cast(total, self.dtype))
            self._counts[name].assign_add(ops.cast(count, self.dtype))

    def result(self) -> dict[str, Any]:
        means = {
            name: ops.divide_no_nan(
                ops.convert_to_tensor(self._sums[name]), ops.convert_to_tensor(count)
            )
            for name, count in self._counts.items()
        }
        losses = {name: means[name] for name in self._weights}
        loss = sum(self._weights[name] * value for name, value in losses.items())
        metrics = {name: function(means[name]) for name, function in self._reported.items()}
        named = losses if len(losses) >= self.named_from else {}
        return {"loss": loss, **named, **metrics}


class NamedLossTracker(LossTracker):
    """Reports a loss under its own name even if it is the only one."""

    named_from = 1


class SingleLossTracker(LossTracker):
    """Of one loss, without whose name metrics are reported: ``perplexity``, ``accuracy``."""

    def result(self) -> dict[str, Any]:
        [name] = self._weights
        return {each.removeprefix(f"{name}_"): x for each, x in super().result().items()}


class Learner(keras.Model):
    """A functional Keras model that trains for one objective, or for several at once.

    The loss is the weighted sum of the objectives' losses. Each is a sum divided by a count, both
    of all replicas, so that it does not depend on how a batch is split between them, or into parts
    one after the other (``accumulation_steps`` of ``compile``).

    Only ``compute_loss`` is ours, and the step in parts: Keras' own training loop runs, on each of
    its backends. A ``loss`` that is given to ``compile`` takes the objectives' place, and is
    averaged as Keras does: over the batch of each replica, then over replicas.

    Attributes:
        recompute_blocks: whether training keeps of each block only its input, and computes the
            rest once more for gradients: a third more time, a fraction of the memory. It is read
            when the training step is traced.
        accumulation_steps: as ``compile`` takes it.
        step_loss: the loss of the last training step.
        step_counts: float (3,), numbers of examples, of their rows of tokens (several for multiple
            choice), and of their real tokens, since they were last taken. Both are None where
            Keras runs on another backend than TensorFlow.

    Args:
        inputs, outputs: of the network, as ``keras.Model`` takes them.
        objectives: what it is trained for.
        weights: replaces weights of the objectives' losses, by name.

    Raises:
        ValueError: for two losses or metrics of one name, or a weight for a loss that is not
            there.
    """

    tracker: type[LossTracker] = LossTracker
    recompute_blocks = False
    accumulation_steps = 1
    # Whether recipes put examples of similar length into a batch.
    batches_by_length = True
    step_loss: StepValue | None = None
    step_counts: StepValue | None = None

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        objectives: Iterable[Objective] = (),
        weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ):
        objectives = tuple(objectives)
        names = [name for objective in objectives for name in objective.weights]
        metrics = [item for each in objectives for item in getattr(each, "metrics", {}).items()]
        found = [*names, *(name for name, _ in metrics)]
        repeated = [name for name in found if found.count(name) > 1]
        if repeated:
            raise ValueError(f"Two objectives have a loss named {repeated[0]!r}.")
        for name in weights or {}:
            if name not in names:
                raise ValueError(unknown("loss", name, names))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        given = {n: w for objective in objectives for n, w in objective.weights.items()}
        self._objectives = Untracked(objectives)
        self._objective_weights = Untracked({**given, **(weights or {})})
        # Attributes, so that Keras finds their weights.
        self._objective_heads = [head for each in objectives for head in each.heads.values()]
        self._losses_seen = (
            self.tracker(self._objective_weights.value, dict(metrics)) if objectives else None
        )

    @property
    def _by_objective(self) -> bool:
        return self._losses_seen is not None and self._compile_loss is None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What the model is trained for."""
        return self._objectives.value

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        # Keras' own "loss" is a mean of batches' means, each weighted by its number of examples.
        found = [metric for metric in super().metrics if metric is not self._losses_seen]
        if not (self.compiled and self._by_objective):
            return found
        return [self._losses_seen, *(each for each in found if each is not self._loss_tracker)]

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *,
        accumulation_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        """As ``keras.Model.compile``, in the scope of the strategy that the model was built in.

        ``jit_compile`` is off by default on TensorFlow: batches differ in length, and XLA would
        compile for each. On JAX it is on, because operations one by one are slow there.

        Args:
            accumulation_steps: number of parts into which ``fit`` splits each replica's batch. They
                are computed one after the other, and their gradients added (gradient accumulation),
                so that a step needs the memory of one part. A batch of 32 in 4 parts is one step of
                the optimizer as a batch of 32 is: losses are divided by the counts of the whole
                batch, and clipping, schedules and progress know nothing of the parts.

        Raises:
            ValueError: for an optimizer that was made outside of that strategy's scope; or for
                ``accumulation_steps`` below 1, or above 1 together with a ``loss``,
                ``jit_compile``, ``gradient_accumulation_steps`` of the optimizer, or another
                backend than TensorFlow.
        """
        backend = keras.backend.backend()
        kwargs.setdefault("jit_compile", backend == "jax")
        if backend != "tensorflow":
            other = f"Keras on {backend}"
        elif loss is not None or self._losses_seen is None:
            other = "a loss of compile, whose means are not sums and counts"
        elif kwargs["jit_compile"]:
            other = "jit_compile, which needs to know how many rows a part has"
        elif getattr(optimizer, "gradient_accumulation_steps", None):
            other = "gradient_accumulation_steps of the optimizer"
        else:
            other = None
        if accumulation_steps < 1 or (accumulation_steps > 1 and other):
            expected = "at least 1" if accumulation_steps < 1 else f"1 with {other}"
            raise ValueError(f"accumulation_steps must be {expected}, got {accumulation_steps}.")
        with replicas.scope(self):
            replicas.check_optimizer(optimizer)
            super().compile(optimizer=optimizer, loss=loss, **kwargs)
            if keras.backend.backend() == "tensorflow":
                self.step_loss = StepValue(summed=True)
                self.step_counts = StepValue((3,), summed=True)
        self.accumulation_steps = accumulation_steps
        inner = getattr(self.optimizer, "inner_optimizer", None)
        if getattr(inner, "skip_nonfinite", False):
            raise ValueError(
                "skip_nonfinite of the optimizer must be False with mixed_float16, whose loss "
                "scaling leaves out steps itself."
            )

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        with unpadding(self.unpadded), recomputation(self.recompute_blocks):
            return super().call(inputs, training=training, mask=mask)

    @property
    def step_variables(self) -> Mapping[str, Any]:
        """Variables that the next training step reads besides weights, by name."""
        return {}

    @property
    def unpadded(self) -> bool:
        """Whether backbones and objectives compute real tokens only, in shapes that depend on
        their number: not where shapes are compiled, as by XLA."""
        compiled_shapes = self.compiled and self.jit_compile
        return keras.backend.backend() == "tensorflow" and not compiled_shapes

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        if self._losses_seen is None or not self._by_objective:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        found = self._found(Batch(x, y, sample_weight), y_pred)
        counts = {
            name: replicas.total(ops.cast(found[name][1], found[name][0].dtype))
            for name in self._objective_weights.value
        }
        loss = self._total(found, counts, training=training)
        if training and self.step_loss is not None and self.step_counts is not None:
            self.step_loss.assign(loss)
            self.step_counts.add(self.count_batch(x))
        return loss

    def _found(self, batch: Batch, outputs: Any) -> dict[str, SumAndCount]:
        """Losses and metrics of all objectives, by name."""
        found: dict[str, SumAndCount] = {}
        with unpadding(self.unpadded):
            for objective in self._objectives.value:
                found |= objective.loss(outputs, objective.heads, batch)
        return found

    def _total(
        self,
        found: Mapping[str, SumAndCount],
        counts: Mapping[str, Any],
        parts: Any = 1,
        *,
        training: bool = True,
    ) -> Any:
        """The weighted sum of losses, which are tracked.

        Args:
            found: of a batch, or of a part of it.
            counts: of the whole batch, by name.
            parts: of the batch, for losses of layers, which are of no count.
            training: whether a step follows, which the optimizer may leave out.
        """
        assert self._losses_seen is not None
        optimizer = getattr(self, "optimizer", None)
        skips = training and getattr(optimizer, "skip_nonfinite", False)
        self._losses_seen.update_state(_finite(found) if skips else found)
        losses = [
            weight * ops.divide_no_nan(found[name][0], ops.cast(counts[name], found[name][0].dtype))
            for name, weight in self._objective_weights.value.items()
        ]
        return sum(losses + [self._aggregate_additional_loss(x) / parts for x in self.losses])

    def train_step(self, *args: Any) -> Any:
        # Its arguments are the backend's; parts are TensorFlow's alone.
        return super().train_step(*args) if self.accumulation_steps == 1 else self._in_parts(*args)

    def _in_parts(self, data: Any) -> Any:
        """A step of ``accumulation_steps`` parts of a batch."""
        step_loss, step_counts = self.step_loss, self.step_counts
        assert step_loss is not None
        assert step_counts is not None
        number, part = accumulation.split(
            keras.utils.unpack_x_y_sample_weight(data), self.accumulation_steps
        )

        def counts(index: Any) -> dict[str, Any]:
            return self._counts(Batch(*part(index)))

        # Before the first gradients, so that these are added up in place, whatever the number of
        # losses, and no larger than those of a batch, which matters to float16.
        all_counts = accumulation.total_counts(counts, list(self._objective_weights.value), number)

        def loss(index: Any) -> Any:
            batch = Batch(*part(index))
            outputs = self(batch.inputs, training=True)
            parts = ops.cast(number, "float32")
            total = self._total(self._found(batch, outputs), all_counts, parts)
            step_loss.add(total)
            self.compute_metrics(batch.inputs, batch.targets, outputs, batch.weights)
            return self.optimizer.scale_loss(total)

        step_loss.assign(0)
        step_counts.add(self.count_batch(keras.utils.unpack_x_y_sample_weight(data)[0]))
        weights = self.trainable_weights
        gradients = accumulation.summed_gradients(loss, weights, number)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return self.get_metrics_result()

    def _counts(self, batch: Batch) -> dict[str, Any]:
        """The number that each loss is divided by."""
        found = self._found(batch, self(batch.inputs, training=False))
        return {name: found[name][1] for name in self._objective_weights.value}

    def count_batch(self, inputs: Any) -> Any:
        """Numbers of examples, of rows of tokens and of real tokens of a batch, float (3,).

        Inputs that do not say what is padding have real tokens only.
        """
        given = inputs if isinstance(inputs, Mapping) else {}
        tokens = given.get("padding_mask", given.get("token_ids"))
        examples = ops.shape(keras.tree.flatten(inputs)[0])[0]
        if tokens is None:
            return ops.stack([ops.cast(each, "float32") for each in (examples, examples, 0)])
        real = ops.sum(ops.cast(tokens, "float32")) if "padding_mask" in given else ops.size(tokens)
        rows = ops.size(tokens[..., 0])
        return ops.stack([ops.cast(each, "float32") for each in (examples, rows, real)])

    def get_metrics_result(self) -> dict[str, Any]:
        return replicas.reducible(super().get_metrics_result())

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        replicas.build(self, iterator, data_batch)

    def _make_function(self, *args: Any, **kwargs: Any) -> Callable:
        # Its arguments are the backend's.
        return replicas.without_trace_warnings(super()._make_function(*args, **kwargs))


class Untracked:
    """A value that Keras does not look into for layers and variables."""

    def __init__(self, value: Any):
        self.value = value


def _finite(found: Mapping[str, SumAndCount]) -> dict[str, SumAndCount]:
    """Sums and counts, or zeros where one of the sums is not finite."""
    keep = ops.all(ops.stack([ops.isfinite(total) for total, _ in found.values()]))

    def kept(value: Any) -> Any:
        return ops.where(keep, value, ops.zeros_like(value))

    return {name: (kept(total), kept(count)) for name, (total, count) in found.items()}


def mean_loss(losses: Any, weights: Any = None, valid: Any = None) -> SumAndCount:
    """Losses as Keras takes their mean: weights multiply them, and are not counted.

    Args:
        losses: (batch, …).
        weights: sample weights, of the same shape or with fewer axes; None for 1.
        valid: bool, of the losses' shape: which of them count; None for all.
    """
    losses = ops.cast(losses, "float32")
    count = ops.ones_like(losses) if valid is None else ops.cast(valid, "float32")
    losses = losses * count
    if weights is not None:
        weights = ops.cast(weights, "float32")
        axes = range(len(weights.shape), len(losses.shape))
        losses = losses * (ops.expand_dims(weights, tuple(axes)) if axes else weights)
    return ops.sum(losses), ops.sum(count)

"""The Keras model for all training: a network, and objectives on its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
from keras import ops

from bertfam_tf.layers import recomputation
from bertfam_tf.models.base import unpadding
from bertfam_tf.names import unknown
from bertfam_tf.objectives.objective import Batch, Objective, SumAndCount
from bertfam_tf.training import accumulation, jax_versions, replicas
from bertfam_tf.training.step_value import StepValue


class LossTracker(keras.metrics.Metric):
    """Means of losses over all batches since the last reset, and their weighted sum.

    The result is ``loss``, the weighted sum; each loss by name, if there are several; and the
    metrics.

    Args:
        weights: the weights of the losses, by name.
        metrics: functions of means that are only reported, by name.
    """

    # Losses are also reported by name if there are at least this many.
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
        self._reported_loss = keras.metrics.Mean()

    def update_state(self, sums: Any, sample_weight: Any = None) -> None:
        """Adds losses.

        Args:
            sums: sums and counts by name; or a loss that is reported in place of their weighted
                sum. A subclass's own ``train_step`` passes one to the metric ``"loss"``.
            sample_weight: the weight of such a loss; None for 1.
        """
        if not isinstance(sums, Mapping):
            self._reported_loss.update_state(sums, sample_weight)
            return
        for name, (total, count) in sums.items():
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
        own = self._reported_loss
        loss = ops.where(own.count > 0, own.result(), loss)
        metrics = {name: function(means[name]) for name, function in self._reported.items()}
        by_objective = losses if len(losses) >= self.named_from else {}
        return {"loss": loss, **by_objective, **metrics}


class NamedLossTracker(LossTracker):
    """Reports a loss under its own name even if it is the only one."""

    named_from = 1


class SingleLossTracker(LossTracker):
    """Reports the metrics of a single loss without its name: ``perplexity``, ``accuracy``."""

    def result(self) -> dict[str, Any]:
        [loss] = self._weights
        return {name.removeprefix(f"{loss}_"): x for name, x in super().result().items()}


class Learner(keras.Model):
    """A functional Keras model that trains for one objective, or for several at once.

    The loss is the weighted sum of the objectives' losses. Each is a sum divided by a count, both
    over all replicas, so it does not depend on how a batch is split among replicas or micro-batches
    (``accumulation_steps`` of ``compile``).

    Only ``compute_loss`` and gradient accumulation are overridden: Keras' own training loop runs,
    on each of its backends. A ``loss`` in ``compile`` replaces the objectives, and is averaged as
    in Keras: over the batch of each replica, then over replicas.

    Attributes:
        recompute_blocks: whether to use gradient checkpointing: training keeps only each block's
            input, and recomputes the rest for gradients, with a third more time and a fraction of
            the memory. Read when the training step is traced.
        accumulation_steps: the argument of ``compile``.
        step_loss: the loss of the last training step.
        step_counts: the numbers of examples, of their rows of tokens (several for multiple choice)
            and of their real tokens since the last ``take()``, float (3,). Both are None unless
            Keras runs on TensorFlow.

    Args:
        inputs, outputs: the inputs and outputs of the network, as for ``keras.Model``.
        objectives: the training objectives.
        weights: replaces weights of the objectives' losses, by name.

    Raises:
        ValueError: if two losses or metrics have the same name, or there is no loss for a weight.
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
        metrics = [item for o in objectives for item in getattr(o, "metrics", {}).items()]
        reported = [*names, *(name for name, _ in metrics)]
        repeated = [name for name in reported if reported.count(name) > 1]
        if repeated:
            raise ValueError(f"Two objectives have a loss named {repeated[0]!r}.")
        for name in weights or {}:
            if name not in names:
                raise ValueError(unknown("loss", name, names))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        defaults = {n: w for objective in objectives for n, w in objective.weights.items()}
        self._objectives = Untracked(objectives)
        self._objective_weights = Untracked({**defaults, **(weights or {})})
        # An attribute, so that Keras tracks the heads' weights.
        self._objective_heads = [head for o in objectives for head in o.heads.values()]
        self._losses_seen = (
            self.tracker(self._objective_weights.value, dict(metrics)) if objectives else None
        )

    @property
    def _by_objective(self) -> bool:
        return self._losses_seen is not None and self._compile_loss is None

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The training objectives."""
        return self._objectives.value

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        metrics = [metric for metric in super().metrics if metric is not self._losses_seen]
        # The objectives do not know the loss of a subclass's own compute_loss; Keras does.
        if not (self.compiled and self._by_objective) or self._overrides_loss:
            return metrics
        # Keras' own "loss" is a mean of batches' means, weighted by their numbers of examples.
        return [self._losses_seen, *(m for m in metrics if m is not self._loss_tracker)]

    @property
    def _overrides_loss(self) -> bool:
        return type(self).compute_loss is not Learner.compute_loss

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *,
        accumulation_steps: int = 1,
        **kwargs: Any,
    ) -> None:
        """Compiles like ``keras.Model.compile``, in the scope of the model's strategy.

        ``jit_compile`` is off by default on TensorFlow: batches differ in length, and XLA would
        compile for each. On JAX it is on, because eager operations are slow there.

        Args:
            optimizer, loss: the same as for ``keras.Model.compile``.
            accumulation_steps: the number of micro-batches into which ``fit`` splits each replica's
                batch. Their gradients are added (gradient accumulation), so a step needs the memory
                of one micro-batch, and makes the update of the full batch: losses are divided by
                the counts of the full batch, and clipping, schedules and progress count optimizer
                steps.
            **kwargs: further arguments of ``keras.Model.compile``.

        Raises:
            ValueError: if the optimizer was created outside of the strategy's scope; or
                ``accumulation_steps`` is below 1, or above 1 with a ``loss``, a subclass's own
                ``compute_loss``, ``jit_compile``, ``gradient_accumulation_steps`` of the optimizer,
                or another backend than TensorFlow.
        """
        backend = keras.backend.backend()
        kwargs.setdefault("jit_compile", backend == "jax")
        if backend == "jax":
            jax_versions.warn_if_slow()
        if backend != "tensorflow":
            other = f"Keras on {backend}"
        elif loss is not None or self._losses_seen is None:
            other = "a loss of compile, which Keras averages over a micro-batch"
        elif self._overrides_loss:
            other = "an overridden compute_loss, which micro-batches do not call"
        elif kwargs["jit_compile"]:
            other = "jit_compile, which needs micro-batches of a fixed size"
        elif getattr(optimizer, "gradient_accumulation_steps", None):
            other = "gradient_accumulation_steps of the optimizer"
        else:
            other = None
        if accumulation_steps < 1 or (accumulation_steps > 1 and other):
            expected = "at least 1" if accumulation_steps < 1 else f"1 with {other}"
            raise ValueError(f"accumulation_steps must be {expected}, got {accumulation_steps}.")
        with replicas.scope(self):
            replicas.check_optimizer(optimizer)
            # Keras keeps the loss and the metrics of an earlier call if these are None.
            self.loss = self._compile_loss = self._compile_metrics = None
            super().compile(optimizer=optimizer, loss=loss, **kwargs)
            if keras.backend.backend() == "tensorflow":
                self.step_loss = StepValue(summed=True)
                self.step_counts = StepValue((3,), summed=True)
        self.accumulation_steps = accumulation_steps
        inner = getattr(self.optimizer, "inner_optimizer", None)
        if getattr(inner, "skip_nonfinite", False):
            raise ValueError(
                "skip_nonfinite of the optimizer must be False with mixed_float16, whose loss "
                "scaling already skips such steps."
            )

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves a subclass with its own ``get_config``, as in Keras.

        Raises:
            ValueError: for others, whose files Keras could not load.
        """
        if type(self).get_config is Learner.get_config:
            raise ValueError(
                f"A {type(self).__name__} is not saved. Save the model that it trains, its "
                "backbone, embedder or student; ModelCheckpoint needs save_weights_only=True."
            )
        super().save(*args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        with unpadding(self.unpadded), recomputation(self.recompute_blocks):
            return super().call(inputs, training=training, mask=mask)

    @property
    def step_variables(self) -> Mapping[str, Any]:
        """Variables other than weights that the next training step reads, by name."""
        return {}

    @property
    def unpadded(self) -> bool:
        """Whether backbones and objectives skip padding (in dynamic shapes, so not under XLA)."""
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
        sums = self._sums_and_counts(Batch(x, y, sample_weight), y_pred)
        counts = {
            name: replicas.total(ops.cast(sums[name][1], sums[name][0].dtype))
            for name in self._objective_weights.value
        }
        loss = self._total(sums, counts, training=training)
        if training and self.step_loss is not None and self.step_counts is not None:
            self.step_loss.assign(loss)
            self.step_counts.add(self.count_batch(x))
        return loss

    def _sums_and_counts(self, batch: Batch, outputs: Any) -> dict[str, SumAndCount]:
        """Computes losses and metrics of all objectives, by name."""
        sums: dict[str, SumAndCount] = {}
        with unpadding(self.unpadded):
            for objective in self._objectives.value:
                sums |= objective.loss(outputs, objective.heads, batch)
        return sums

    def _total(
        self,
        sums: Mapping[str, SumAndCount],
        counts: Mapping[str, Any],
        micro_batches: Any = 1,
        *,
        training: bool = True,
    ) -> Any:
        """Tracks losses, and returns their weighted sum.

        Args:
            sums: the sums and counts of a batch or micro-batch.
            counts: the counts of the full batch, by name.
            micro_batches: the number of micro-batches, which divides losses of layers.
            training: whether an optimizer step follows, which may be skipped.
        """
        assert self._losses_seen is not None
        optimizer = getattr(self, "optimizer", None)
        skips = training and getattr(optimizer, "skip_nonfinite", False)
        self._losses_seen.update_state(_finite(sums) if skips else sums)
        losses = [
            weight * ops.divide_no_nan(sums[name][0], ops.cast(counts[name], sums[name][0].dtype))
            for name, weight in self._objective_weights.value.items()
        ]
        layer_losses = [self._aggregate_additional_loss(x) / micro_batches for x in self.losses]
        return sum(losses + layer_losses)

    def train_step(self, *args: Any) -> Any:
        # The arguments depend on the backend; only TensorFlow supports accumulation.
        accumulates = self.accumulation_steps > 1
        return self._accumulated_step(*args) if accumulates else super().train_step(*args)

    def _accumulated_step(self, data: Any) -> Any:
        """Runs a step with ``accumulation_steps`` micro-batches."""
        step_loss, step_counts = self.step_loss, self.step_counts
        assert step_loss is not None
        assert step_counts is not None
        number, micro_batch = accumulation.split(
            keras.utils.unpack_x_y_sample_weight(data), self.accumulation_steps
        )

        def counts(index: Any) -> dict[str, Any]:
            return self._counts(Batch(*micro_batch(index)))

        # Counts come before gradients, so gradients of any number of losses are added up in place,
        # and are no larger than the gradients of a batch, which matters in float16.
        all_counts = accumulation.total_counts(counts, list(self._objective_weights.value), number)

        def loss(index: Any) -> Any:
            batch = Batch(*micro_batch(index))
            outputs = self(batch.inputs, training=True)
            sums = self._sums_and_counts(batch, outputs)
            total = self._total(sums, all_counts, ops.cast(number, "float32"))
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
        """Returns the count that each loss is divided by."""
        sums = self._sums_and_counts(batch, self(batch.inputs, training=False))
        return {name: sums[name][1] for name in self._objective_weights.value}

    def count_batch(self, inputs: Any) -> Any:
        """Returns the numbers of examples, rows of tokens and real tokens of a batch, float (3,).

        Without a ``padding_mask``, all tokens are real.
        """
        by_name = inputs if isinstance(inputs, Mapping) else {}
        tokens = by_name.get("padding_mask", by_name.get("token_ids"))
        examples = rows = ops.shape(keras.tree.flatten(inputs)[0])[0]
        real: Any = 0
        if tokens is not None:
            rows = ops.size(tokens[..., 0])
            real = ops.sum(tokens) if "padding_mask" in by_name else ops.size(tokens)
        return ops.stack([ops.cast(count, "float32") for count in (examples, rows, real)])

    def get_metrics_result(self) -> dict[str, Any]:
        return replicas.reducible(super().get_metrics_result())

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        replicas.build(self, iterator, data_batch)

    def _make_function(self, *args: Any, **kwargs: Any) -> Callable:
        return replicas.without_trace_warnings(super()._make_function(*args, **kwargs))


class Untracked:
    """Hides a value from Keras' tracking of layers and variables."""

    def __init__(self, value: Any):
        self.value = value


def _finite(sums: Mapping[str, SumAndCount]) -> dict[str, SumAndCount]:
    """Returns sums and counts, or zeros if any sum is not finite."""
    keep = ops.all(ops.stack([ops.isfinite(total) for total, _ in sums.values()]))

    def kept(value: Any) -> Any:
        return ops.where(keep, value, ops.zeros_like(value))

    return {name: (kept(total), kept(count)) for name, (total, count) in sums.items()}


def mean_loss(losses: Any, weights: Any = None, valid: Any = None) -> SumAndCount:
    """Returns the sum and count of losses whose mean is Keras': sample weights are not counted.

    Args:
        losses: (batch, …).
        weights: sample weights of the same shape, with fewer axes, or with one more of size 1; None
            for 1.
        valid: whether a loss counts, bool of the same shape; None for all.
    """
    losses = ops.cast(losses, "float32")
    count = ops.ones_like(losses) if valid is None else ops.cast(valid, "float32")
    losses = losses * count
    if weights is not None:
        weights = ops.cast(weights, "float32")
        if len(weights.shape) == len(losses.shape) + 1:
            weights = ops.squeeze(weights, -1)  # a column, as Keras takes it too
        axes = range(len(weights.shape), len(losses.shape))
        losses = losses * (ops.expand_dims(weights, tuple(axes)) if axes else weights)
    return ops.sum(losses), ops.sum(count)

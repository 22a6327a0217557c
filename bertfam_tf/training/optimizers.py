"""AdamW and LAMB without decay of norms and biases; learning rate schedules."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.training.step_value import StepValue
from bertfam_tf.validation import in_range

_NO_DECAY = ("bias", "beta", "gamma")


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def _dense(gradients: Sequence[Any]) -> Sequence[Any]:
    """Converts sparse gradients, such as an embedding's slices of looked-up tokens, to tensors."""
    if not _on_tensorflow():
        return gradients
    import tensorflow as tf

    return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


@keras.saving.register_keras_serializable(package="bertfam_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 to ``peak`` over ``warmup_steps``, then falls linearly to 0.

    Args:
        peak: the highest learning rate.
        warmup_steps: the number of steps of the rise.
        total_steps: the step at which the rate is 0; None stays at ``peak`` after the rise.
    """

    def __init__(self, peak: float, warmup_steps: int, total_steps: int | None):
        if total_steps is not None and not 0 <= warmup_steps <= total_steps:
            raise ValueError(
                f"warmup_steps {warmup_steps} is not within 0 and total_steps {total_steps}."
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rise = step / max(self.warmup_steps, 1) if self.warmup_steps else 1.0
        if self.total_steps is None:
            return self.peak * ops.minimum(rise, 1.0)
        fall = (self.total_steps - step) / max(self.total_steps - self.warmup_steps, 1)
        return self.peak * ops.maximum(ops.minimum(rise, fall), 0.0)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }


@keras.saving.register_keras_serializable(package="bertfam_tf")
class OffsetSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Shifts another schedule, for an optimizer whose step count restarts.

    Args:
        schedule: the schedule.
        offset: added to each step; may be negative.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, offset: int):
        self.schedule = schedule
        self.offset = offset

    def __call__(self, step):
        return self.schedule(ops.cast(step, "float32") + self.offset)

    def get_config(self):
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "offset": self.offset}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["offset"])


@keras.saving.register_keras_serializable(package="bertfam_tf")
class PiecewiseSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Several schedules, one after the other.

    Args:
        schedules: the schedules, functions of the overall step.
        ends: for each schedule but the last, the first step after it, in ascending order.
    """

    def __init__(
        self,
        schedules: Sequence[keras.optimizers.schedules.LearningRateSchedule],
        ends: Sequence[int],
    ):
        if len(ends) != len(schedules) - 1:
            raise ValueError(
                f"Expected {len(schedules) - 1} ends for {len(schedules)} schedules, got "
                f"{len(ends)}."
            )
        self.schedules = list(schedules)
        self.ends = list(ends)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rate = self.schedules[-1](step)
        for schedule, end in zip(self.schedules[-2::-1], self.ends[::-1], strict=True):
            rate = ops.where(step < end, schedule(step), rate)
        return rate

    def get_config(self):
        schedules = list(map(keras.saving.serialize_keras_object, self.schedules))
        return {"schedules": schedules, "ends": self.ends}

    @classmethod
    def from_config(cls, config):
        schedules = list(map(keras.saving.deserialize_keras_object, config["schedules"]))
        return cls(schedules, config["ends"])


class _Adaptive(keras.optimizers.Optimizer):
    """The base class of AdamW and LAMB: dense gradients, and weight decay in ``update_step``.

    Attributes:
        gradient_norm: the norm of the last step's gradients, summed over replicas, before clipping.
        skipped: the number of skipped steps.
    """

    def __init__(
        self,
        learning_rate: Any,
        factors: Mapping[str, float] | None = None,
        *,
        bias_correction: bool = True,
        skip_nonfinite: bool = False,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, **kwargs)
        self.factors = dict(factors or {})
        self.bias_correction = bias_correction
        if skip_nonfinite and keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"skip_nonfinite must be False where Keras runs on {keras.backend.backend()}."
            )
        self.skip_nonfinite = skip_nonfinite
        self.gradient_norm = StepValue()
        self.skipped = StepValue()

    def apply(self, grads, trainable_variables=None):
        return super().apply(_dense(grads), trainable_variables)

    def _clip_gradients(self, grads):
        """Defers clipping on TensorFlow: Keras would clip replicas' gradients before the sum."""
        return grads if _on_tensorflow() else super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        summed = super()._all_reduce_sum_gradients(grads_and_vars)
        # The same expression as for clipping, which TensorFlow therefore computes once.
        squares = [ops.sum(ops.square(gradient)) for gradient, _ in summed if gradient is not None]
        self.gradient_norm.assign(ops.sqrt(ops.sum(ops.stack(squares))))
        clipped = super()._clip_gradients([gradient for gradient, _ in summed])
        return [(new, variable) for new, (_, variable) in zip(clipped, summed, strict=True)]

    def _distributed_tf_update_step(self, *args):
        update = partial(super()._distributed_tf_update_step, *args)
        if not self.skip_nonfinite:
            update()
            return

        def skip():
            self.skipped.add(1)
            self._iterations.assign_sub(1)  # Keras adds 1 after this

        ops.cond(ops.isfinite(self.gradient_norm.tensor), update, skip)

    def _factor(self, index: int) -> float:
        return self.factors.get(self._trainable_variables[index].path, 1.0)

    def _powers(self, dtype: str = "float32") -> tuple[Any, Any]:
        """Returns both betas to the power of the step, for bias correction; zeros without it."""
        if not self.bias_correction:
            return ops.zeros((), dtype), ops.zeros((), dtype)
        step = ops.cast(self.iterations + 1, dtype)
        return ops.power(self.beta_1, step), ops.power(self.beta_2, step)

    def _apply_weight_decay(self, variables):
        """Does nothing: ``update_step`` decays, at each variable's learning rate."""

    @property
    def moments(self) -> dict[str, tuple[keras.Variable, keras.Variable]]:
        """First and second moments by the path of the weight; empty before the first step.

        Raises:
            ValueError: if two weights have the same path.
        """
        if not self.built:
            return {}
        paths = [variable.path for variable in self._trainable_variables]
        if len(set(paths)) < len(paths):
            raise ValueError("Weights must have different paths.")
        return dict(zip(paths, zip(self._momentums, self._velocities, strict=True), strict=True))

    def get_config(self):
        names = ("factors", "bias_correction", "skip_nonfinite")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="bertfam_tf")
class AdamW(_Adaptive, keras.optimizers.AdamW):
    """AdamW as published (arXiv 1711.05101, algorithm 2) and as in PyTorch.

    Keras adds epsilon before it corrects the bias of the second moment. Early in training this
    corresponds to an epsilon up to ``1 / sqrt(1 - beta_2)`` times as large, 32 by default: with
    1e-6, token embeddings move a fifth less in the first 60 steps of CoNLL-2003. Keras also squares
    the slices of an embedding's gradient before it adds them, for the second moment and for
    clipping.

    Args:
        learning_rate: the same as for ``keras.optimizers.AdamW``.
        factors: multipliers of the learning rate by variable path (as in ELECTRA, arXiv
            2003.10555, appendix B); 1 for other variables.
        bias_correction: whether to correct moments for their start at zero; False as in BERT's code
            (arXiv 1810.04805), whose first steps are about three times as large.
        skip_nonfinite: whether to skip steps with gradients that are not finite, in all replicas:
            weights, moments and ``iterations`` are unchanged. Loss scaling does this by itself.
        **kwargs: further arguments of ``keras.optimizers.AdamW``, except ``amsgrad``.
    """

    def __init__(
        self, learning_rate: Any, factors: Mapping[str, float] | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate, factors, **kwargs)
        if self.amsgrad:
            raise ValueError("amsgrad is not supported.")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Scalars for all variables, with both bias corrections.
        powers = self._powers()
        epsilon = self.epsilon * ops.sqrt(1 - powers[1])
        rate = ops.cast(learning_rate, "float32")
        decay = rate * (self.weight_decay or 0.0)
        super()._backend_update_step(grads, trainable_variables, (rate, decay, *powers, epsilon))

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        rate, decay, *powers, epsilon = (ops.cast(x, dtype) for x in learning_rate)
        factor = self._factor(index)
        if factor != 1.0:
            rate, decay = rate * factor, decay * factor
        if self.weight_decay is not None and self._use_weight_decay(variable):
            self.assign_sub(variable, variable * decay)
        first, second = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, dtype)
        if _on_tensorflow():
            import tensorflow as tf

            # One operation and one pass over the weights, instead of about fifteen.
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.value.handle,
                v=second.value.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=rate,
                beta1=tf.constant(self.beta_1, dtype),
                beta2=tf.constant(self.beta_2, dtype),
                epsilon=epsilon,
                grad=gradient,
            )
            return
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        rate = rate * ops.sqrt(1 - powers[1]) / (1 - powers[0])
        self.assign_sub(variable, rate * first / (ops.sqrt(second) + epsilon))


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Lamb(_Adaptive, keras.optimizers.Lamb):
    """LAMB (arXiv 1904.00962, algorithm 2), with the norms themselves as its function phi.

    The step of each weight is scaled to the norm of that weight. Keras subtracts weight decay from
    the weight outside of this step; in the paper it is part of the step that is scaled, so a weight
    without a gradient decays by the learning rate, whatever the decay.

    As in the code of LAMB's and ALBERT's authors, steps are not scaled, as in Adam, for weights
    that are excluded from decay (see ``exclude_from_weight_decay``), which the paper does not
    mention, and for weights or steps that are zero.

    Args:
        learning_rate: the same as for ``keras.optimizers.Lamb``.
        factors, skip_nonfinite: the same as for ``AdamW``.
        bias_correction: whether to correct moments for their start at zero, as in the paper; False
            as in ALBERT's code (arXiv 1909.11942).
        **kwargs: further arguments of ``keras.optimizers.Lamb``.
    """

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        first, second = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, dtype)
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        powers = (ops.cast(power, dtype) for power in self._powers())
        mean, square = (m / (1 - power) for m, power in zip((first, second), powers, strict=True))
        step = mean / (ops.sqrt(square) + self.epsilon)
        rate = ops.cast(learning_rate, dtype) * self._factor(index)
        if self._use_weight_decay(variable):
            step = step + (self.weight_decay or 0.0) * variable
            weight_norm = ops.sqrt(ops.sum(ops.square(variable)))
            step_norm = ops.sqrt(ops.sum(ops.square(step)))
            scaled = ops.logical_and(weight_norm > 0, step_norm > 0)
            rate = rate * ops.where(scaled, ops.divide_no_nan(weight_norm, step_norm), 1.0)
        self.assign_sub(variable, rate * step)


# Class and ``bias_correction`` by the names in recipes, ``settings.OPTIMIZERS``.
_BY_NAME: dict[str, tuple[type[_Adaptive], bool]] = {
    "adamw": (AdamW, True),
    "adamw_uncorrected": (AdamW, False),
    "lamb": (Lamb, True),
    "lamb_uncorrected": (Lamb, False),
}


def adamw(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 5e-5,
    total_steps: int | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = 1e-6,
    beta_2: float = 0.999,
    factors: Mapping[str, float] | None = None,
    bias_correction: bool = True,
) -> AdamW:
    """Returns AdamW with the settings for fine-tuning BERT (arXiv 1810.04805, appendix A.3).

    Args:
        learning_rate: the peak of the schedule; or another schedule.
        total_steps: the length of the schedule; None holds the peak.
        warmup: the fraction of ``total_steps`` in which the rate rises.
        weight_decay: decoupled decay (arXiv 1711.05101), not applied to biases and norms.
        clip_norm: the maximum norm of the global gradient; None does not clip.
        epsilon, beta_2: Adam's hyperparameters.
        factors, bias_correction: the same as for ``AdamW``.
    """
    return _scheduled(
        AdamW,
        learning_rate,
        total_steps,
        warmup,
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        beta_2=beta_2,
        factors=factors,
        bias_correction=bias_correction,
    )


def lamb(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1.76e-3,
    total_steps: int | None = None,
    warmup: float = 0.025,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = 1e-6,
    beta_2: float = 0.999,
    factors: Mapping[str, float] | None = None,
    bias_correction: bool = True,
) -> Lamb:
    """Returns LAMB with the settings for pretraining ALBERT in batches of 4,096 (arXiv 1909.11942,
    section 4.1); arguments as for ``adamw``."""
    return _scheduled(
        Lamb,
        learning_rate,
        total_steps,
        warmup,
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        beta_2=beta_2,
        factors=factors,
        bias_correction=bias_correction,
    )


def from_settings(
    settings: TrainConfig,
    total_steps: int,
    factors: Mapping[str, float] | None = None,
    schedule: keras.optimizers.schedules.LearningRateSchedule | None = None,
) -> AdamW | Lamb:
    """Returns the optimizer of a recipe's ``train`` section.

    Args:
        settings: the section.
        total_steps: the length of its schedule.
        factors: the same as for ``adamw``.
        schedule: the learning rate; None for the section's.
    """
    kind, bias_correction = _BY_NAME[settings.optimizer]
    return _scheduled(
        kind,
        schedule_of(settings, total_steps) if schedule is None else schedule,
        total_steps,
        settings.warmup,
        weight_decay=settings.weight_decay,
        global_clipnorm=settings.clip_norm,
        epsilon=settings.epsilon,
        beta_2=settings.beta_2,
        factors=factors,
        bias_correction=bias_correction,
        skip_nonfinite=settings.on_divergence == "skip",
    )


def schedule_of(
    settings: TrainConfig, total_steps: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate of a recipe's ``train`` section.

    Args:
        settings: the section.
        total_steps: the number of steps, after which a falling rate is 0.

    Raises:
        ValueError: if ``warmup`` is not from 0 to below 1.
    """
    _check_warmup(settings.warmup)
    peak, rise = settings.learning_rate, round(settings.warmup * total_steps)
    if settings.schedule == "constant":
        return WarmupLinearDecay(peak, rise, None)
    if settings.schedule == "linear":
        return WarmupLinearDecay(peak, rise, total_steps)
    fall = max(total_steps - rise, 1)
    if not rise:
        return keras.optimizers.schedules.CosineDecay(peak, fall)
    return keras.optimizers.schedules.CosineDecay(0.0, fall, warmup_target=peak, warmup_steps=rise)


def _check_warmup(warmup: float) -> None:
    in_range("warmup", warmup, at_least=0, below=1)


def _scheduled(
    kind: Any, learning_rate: Any, total_steps: int | None, warmup: float, **settings: Any
) -> Any:
    _check_warmup(warmup)
    if not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        steps = round(warmup * (total_steps or 0))
        learning_rate = WarmupLinearDecay(learning_rate, steps, total_steps)
    optimizer = kind(learning_rate, **settings)
    optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
    return optimizer

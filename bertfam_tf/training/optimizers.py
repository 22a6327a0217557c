"""AdamW, LAMB and Muon without decay on norms and biases; linear warm-up and decay."""

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
    """Gradients as tensors: an embedding's has a slice for each token that was looked up."""
    if not _on_tensorflow():
        return gradients
    import tensorflow as tf

    return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


@keras.saving.register_keras_serializable(package="bertfam_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 to ``peak`` over ``warmup_steps``, then falls linearly to 0.

    Args:
        peak: the highest learning rate.
        warmup_steps: steps of the rise.
        total_steps: steps until 0 is reached; None stays at ``peak`` after the rise.
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
    """Another schedule, that many steps later: for an optimizer that counts its steps anew.

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
        schedules: functions of the step of the whole.
        ends: for each schedule but the last, the first step that is not its own; ascending.
    """

    def __init__(
        self,
        schedules: Sequence[keras.optimizers.schedules.LearningRateSchedule],
        ends: Sequence[int],
    ):
        if len(ends) != len(schedules) - 1:
            raise ValueError(
                f"ends must be one less than the {len(schedules)} schedules, got {len(ends)}."
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
        schedules = [keras.saving.serialize_keras_object(each) for each in self.schedules]
        return {"schedules": schedules, "ends": self.ends}

    @classmethod
    def from_config(cls, config):
        schedules = [keras.saving.deserialize_keras_object(each) for each in config["schedules"]]
        return cls(schedules, config["ends"])


class _Adaptive(keras.optimizers.Optimizer):
    """What AdamW and LAMB have in common: gradients are dense, and decay is their own.

    Attributes:
        gradient_norm: that of the last step's gradients, summed over replicas, before clipping.
        skipped: the number of steps that were left out.
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
        """On TensorFlow done below: Keras clips each replica's gradient, before their sum."""
        return grads if _on_tensorflow() else super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        summed = super()._all_reduce_sum_gradients(grads_and_vars)
        # As Keras computes it for clipping, so that TensorFlow does it once for both.
        squares = [ops.sum(ops.square(each)) for each, _ in summed if each is not None]
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
            self._iterations.assign_sub(1)  # Keras counts the step after this

        ops.cond(ops.isfinite(self.gradient_norm.tensor), update, skip)

    def _factor(self, index: int) -> float:
        return self.factors.get(self._trainable_variables[index].path, 1.0)

    def _powers(self, dtype: str = "float32") -> tuple[Any, Any]:
        """Both betas to the power of the step, which bias correction needs; or zeros without it."""
        if not self.bias_correction:
            return ops.zeros((), dtype), ops.zeros((), dtype)
        step = ops.cast(self.iterations + 1, dtype)
        return ops.power(self.beta_1, step), ops.power(self.beta_2, step)

    def _apply_weight_decay(self, variables):
        """Done in ``update_step``, at each variable's own rate."""

    @property
    def moments(self) -> dict[str, tuple[keras.Variable, keras.Variable]]:
        """First and second moments by the path of the weight; empty before the first step.

        Raises:
            ValueError: for two weights with the same path.
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
    """AdamW as it was published (arXiv 1711.05101, algorithm 2), and as torch has it.

    Keras adds epsilon before it corrects the bias of the second moment. Early in training this
    corresponds to an epsilon up to ``1 / sqrt(1 - beta_2)`` times as large, 32 by default: with
    1e-6, token embeddings move a fifth less in the first 60 steps of CoNLL-2003. Keras also squares
    the slices of an embedding's gradient before it adds them, for the second moment and for
    clipping.

    Args:
        learning_rate: as ``keras.optimizers.AdamW`` takes it, and so ``kwargs``, but ``amsgrad``.
        factors: multipliers of the learning rate by variable path (as in ELECTRA, arXiv
            2003.10555, appendix B); 1 for the others.
        bias_correction: whether moments are corrected for their start at zero; False as in BERT's
            code (arXiv 1810.04805), whose first steps are about three times as large.
        skip_nonfinite: whether a step is left out, in all replicas, whose gradients are not finite:
            weights, moments and ``iterations`` stay as they are. Loss scaling does so itself.
    """

    def __init__(
        self, learning_rate: Any, factors: Mapping[str, float] | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate, factors, **kwargs)
        if self.amsgrad:
            raise ValueError("amsgrad is not supported.")

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Scalars that all variables share; both bias corrections are in them.
        powers = self._powers()
        epsilon = self.epsilon * ops.sqrt(1 - powers[1])
        rate = ops.cast(learning_rate, "float32")
        decay = rate * (self.weight_decay or 0.0)
        super()._backend_update_step(grads, trainable_variables, (rate, decay, *powers, epsilon))

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        rate, decay, *powers, epsilon = (ops.cast(each, dtype) for each in learning_rate)
        factor = self._factor(index)
        if factor != 1.0:
            rate, decay = rate * factor, decay * factor
        if self.weight_decay is not None and self._use_weight_decay(variable):
            self.assign_sub(variable, variable * decay)
        first, second = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, dtype)
        if _on_tensorflow():
            import tensorflow as tf

            # One operation and one pass over the weights, in place of some fifteen.
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

    As in the code of LAMB's and ALBERT's authors, weights that are excluded from decay (see
    ``exclude_from_weight_decay``) have steps that are not scaled, those of Adam; the paper does not
    mention any. Neither are those of weights or steps that are zero.

    Args:
        learning_rate: as ``keras.optimizers.Lamb`` takes it, and so ``kwargs``.
        factors: as for ``AdamW``.
        bias_correction: whether moments are corrected for their start at zero, as in the paper;
            False as in ALBERT's code (arXiv 1909.11942).
        skip_nonfinite: as for ``AdamW``.
    """

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        first, second = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, dtype)
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        powers = (ops.cast(each, dtype) for each in self._powers())
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


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Muon(_Adaptive, keras.optimizers.Muon):
    """Muon (Jordan et al. 2024) in the form of arXiv 2502.16982, for pretraining.

    The step of a matrix is its momentum, orthogonalized by Newton-Schulz iterations and scaled to
    the size of AdamW's steps, so that AdamW's learning rates and decay are a first choice. AdamW
    trains embeddings, heads, norms and biases.

    Args:
        learning_rate: as ``keras.optimizers.Muon`` takes it, and so ``kwargs``.
        factors: as for ``AdamW``.
        skip_nonfinite: as for ``AdamW``.
    """

    def __init__(
        self, learning_rate: Any, factors: Mapping[str, float] | None = None, **kwargs: Any
    ):
        kwargs.setdefault("exclude_layers", ["_head/"])
        # One decay for all weights.
        kwargs["adam_weight_decay"] = kwargs.get("weight_decay")
        super().__init__(learning_rate, factors, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        rate = ops.cast(learning_rate, dtype) * self._factor(index)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            self.assign_sub(variable, variable * rate * self.weight_decay)
        super().update_step(ops.cast(gradient, dtype), variable, rate)


# The names in recipes, ``config.OPTIMIZERS``; a recipe has no booleans.
_NAMED: dict[str, tuple[type[_Adaptive], dict[str, bool]]] = {
    "adamw": (AdamW, {}),
    "adamw_uncorrected": (AdamW, {"bias_correction": False}),
    "lamb": (Lamb, {}),
    "lamb_uncorrected": (Lamb, {"bias_correction": False}),
    "muon": (Muon, {}),
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
    """AdamW as the BERT papers fine-tune with it (arXiv 1810.04805, appendix A.3).

    Args:
        learning_rate: the peak of the schedule; or another schedule, in place of this one.
        total_steps: length of the schedule; None holds the peak.
        warmup: the fraction of ``total_steps`` in which the rate rises.
        weight_decay: decoupled decay (arXiv 1711.05101), not applied to biases and norms.
        clip_norm: maximum norm of the global gradient; None does not clip.
        epsilon: of Adam.
        beta_2: of Adam.
        factors: as ``AdamW`` takes them; None for one rate.
        bias_correction: as ``AdamW`` takes it.
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
    """LAMB as ALBERT is pretrained with it (arXiv 1909.11942, section 4.1), in batches of 4096.

    Arguments as for ``adamw``.
    """
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
) -> AdamW | Lamb | Muon:
    """The optimizer of a recipe's ``train`` section, for that many steps.

    Args:
        settings: the section.
        total_steps: the length of its schedule.
        factors: as for ``adamw``.
        schedule: the learning rate, in place of the section's.
    """
    kind, options = _NAMED[settings.optimizer]
    beta_2 = "adam_beta_2" if kind is Muon else "beta_2"
    return _scheduled(
        kind,
        schedule_of(settings, total_steps) if schedule is None else schedule,
        total_steps,
        settings.warmup,
        weight_decay=settings.weight_decay,
        global_clipnorm=settings.clip_norm,
        epsilon=settings.epsilon,
        factors=factors,
        **{beta_2: settings.beta_2},
        **options,
        skip_nonfinite=settings.on_divergence == "skip",
    )


def schedule_of(
    settings: TrainConfig, total_steps: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate of a recipe's ``train`` section.

    Args:
        settings: the section.
        total_steps: the number of steps, after which a rate that falls is 0.

    Raises:
        ValueError: for a warm-up that is not a fraction of all steps.
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

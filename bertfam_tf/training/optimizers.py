"""AdamW, LAMB and Muon without decay on norms and biases."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
from keras import ops

from bertfam_tf.training import replicas
from bertfam_tf.training.schedules import OffsetSchedule, PiecewiseSchedule, WarmupLinearDecay
from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.training.step_value import StepValue
from bertfam_tf.validation import in_range

__all__ = [
    "AdamW",
    "Lamb",
    "OffsetSchedule",
    "PiecewiseSchedule",
    "WarmupLinearDecay",
    "adamw",
    "from_settings",
    "lamb",
    "schedule_of",
]

_NO_DECAY = ("bias", "beta", "gamma")
_HALF = ("float16", "bfloat16")


def _full(x: Any) -> Any:
    """Returns a tensor of half precision as float32, another one as it is."""
    return ops.cast(x, "float32") if keras.backend.standardize_dtype(x.dtype) in _HALF else x


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def _apply_adam(
    variable: Any, moments: Any, gradient: Any, rate: Any, betas: Any, powers: Any, epsilon: Any
) -> None:
    """Updates weights and moments on TensorFlow in one pass, instead of about fifteen operations.

    Epsilon is added before the bias of the second moment is corrected, as in Keras.
    """
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=moments[0].value.handle,
        v=moments[1].value.handle,
        beta1_power=powers[0],
        beta2_power=powers[1],
        lr=rate,
        beta1=tf.constant(betas[0], gradient.dtype),
        beta2=tf.constant(betas[1], gradient.dtype),
        epsilon=tf.cast(epsilon, gradient.dtype),
        grad=gradient,
    )


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
        self._no_decay: list[str] = []

    def apply(self, grads, trainable_variables=None):
        if _on_tensorflow():
            from bertfam_tf.training import slices

            # Keras can only scale and accumulate tensors, and would not add replicas' slices.
            if self.loss_scale_factor or self.gradient_accumulation_steps or replicas.several():
                grads = slices.dense(grads)
        return super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads):
        """Defers clipping on TensorFlow: Keras would clip replicas' gradients before the sum."""
        return grads if _on_tensorflow() else super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        from bertfam_tf.training import slices

        if replicas.several():
            grads_and_vars = super()._all_reduce_sum_gradients(grads_and_vars)
        gradients = [slices.one_per_row(gradient) for gradient, _ in grads_and_vars]
        # A batch has fewer tokens than an embedding has rows: less to read for the norm.
        values = [None if x is None else _full(x) for x in slices.values(gradients)]
        # As Keras computes it for clipping, so that TensorFlow does it once for both.
        squares = [ops.sum(ops.square(gradient)) for gradient in values if gradient is not None]
        self.gradient_norm.assign(ops.sqrt(ops.sum(ops.stack(squares))))
        clipped = slices.with_values(gradients, super()._clip_gradients(values))
        return list(zip(slices.dense(clipped), [v for _, v in grads_and_vars], strict=True))

    def _distributed_tf_update_step(self, *args):
        update = partial(super()._distributed_tf_update_step, *args)
        if not self.skip_nonfinite:
            update()
            return

        def skip():
            self.skipped.add(1)
            # Keras adds 1 after this; micro-batches of its own accumulation are counted too.
            self._iterations.assign_sub(self.gradient_accumulation_steps or 1)

        ops.cond(ops.isfinite(self.gradient_norm.tensor), update, skip)

    def add_variable_from_reference(self, reference_variable, name=None, initializer="zeros"):
        """As in Keras, but moments of weights in half precision are float32: the squares of small
        gradients are 0 in float16, and bfloat16 has no digits for their changes."""
        if reference_variable.dtype not in _HALF:
            return super().add_variable_from_reference(reference_variable, name, initializer)
        path = reference_variable.path.replace("/", "_")
        shape = reference_variable.shape
        return self.add_variable(shape, initializer, "float32", name=f"{path}_{name}")

    def _factor(self, index: int) -> float:
        return self.factors.get(self._trainable_variables[index].path, 1.0)

    def _powers(self) -> tuple[Any, Any]:
        """Returns both betas to the power of the step, for bias correction; zeros without it."""
        if not self.bias_correction:
            return ops.zeros((), "float32"), ops.zeros((), "float32")
        step = ops.cast(self.iterations + 1, "float32")
        return ops.power(self.beta_1, step), ops.power(self.beta_2, step)

    def _apply_weight_decay(self, variables):
        """Does nothing: ``update_step`` decays, at each variable's learning rate."""

    @property
    def moments(self) -> dict[str, tuple[keras.Variable, ...]]:
        """First and (unless Muon's) second moments by the path of the weight; empty before a step.

        Raises:
            ValueError: if two weights have the same path.
        """
        if not self.built:
            return {}
        paths = [variable.path for variable in self._trainable_variables]
        if len(set(paths)) < len(paths):
            raise ValueError("Weights must have different paths.")
        pairs = zip(self._momentums, self._velocities, strict=True)
        moments = (tuple(moment for moment in pair if moment is not None) for pair in pairs)
        return dict(zip(paths, moments, strict=True))

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        super().exclude_from_weight_decay(var_list, var_names)
        self._no_decay = list(var_names or ())

    def get_config(self):
        names = ("factors", "bias_correction", "skip_nonfinite")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {**config, "no_decay": list(self._no_decay)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        no_decay = config.pop("no_decay", None)
        optimizer = super().from_config(config, custom_objects)
        if no_decay:
            optimizer.exclude_from_weight_decay(var_names=no_decay)
        return optimizer


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
        powers = self._powers()
        epsilon = self.epsilon * ops.sqrt(1 - powers[1])
        rate = ops.cast(learning_rate, "float32")
        decay = rate * (self.weight_decay or 0.0)
        super()._backend_update_step(grads, trainable_variables, (rate, decay, *powers, epsilon))

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        dtype = first.dtype
        rate, decay, *powers, epsilon = (ops.cast(value, dtype) for value in learning_rate)
        factor = self._factor(index)
        if factor != 1.0:
            rate, decay = rate * factor, decay * factor
        decays = self.weight_decay is not None and self._use_weight_decay(variable)
        gradient = ops.cast(gradient, dtype)
        if _on_tensorflow() and variable.dtype == dtype:
            if decays:
                # A subtraction would pass over the weights once more.
                self.assign(variable, variable * (1 - decay))
            betas = (self.beta_1, self.beta_2)
            _apply_adam(variable, (first, second), gradient, rate, betas, powers, epsilon)
            return
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        rate = rate * ops.sqrt(1 - powers[1]) / (1 - powers[0])
        weight = _full(ops.convert_to_tensor(variable))
        weight = weight - weight * decay if decays else weight
        weight = weight - rate * first / (ops.sqrt(second) + epsilon)
        self.assign(variable, ops.cast(weight, variable.dtype))


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
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        dtype, weight = first.dtype, _full(ops.convert_to_tensor(variable))
        gradient = ops.cast(gradient, dtype)
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        powers = (ops.cast(power, dtype) for power in self._powers())
        mean, square = (m / (1 - power) for m, power in zip((first, second), powers, strict=True))
        step = mean / (ops.sqrt(square) + self.epsilon)
        rate = ops.cast(learning_rate, dtype) * self._factor(index)
        if self._use_weight_decay(variable):
            step = step + (self.weight_decay or 0.0) * weight
            weight_norm = ops.sqrt(ops.sum(ops.square(weight)))
            step_norm = ops.sqrt(ops.sum(ops.square(step)))
            scaled = ops.logical_and(weight_norm > 0, step_norm > 0)
            rate = rate * ops.where(scaled, ops.divide_no_nan(weight_norm, step_norm), 1.0)
        self.assign(variable, ops.cast(weight - rate * step, variable.dtype))


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Muon(_Adaptive, keras.optimizers.Muon):
    """Muon (Jordan et al. 2024) in the form of arXiv 2502.16982, for pretraining.

    The step of a weight with two axes is its momentum, orthogonalized by Newton-Schulz iterations
    and scaled to the size of AdamW's steps, so that AdamW's learning rates and decay are a first
    choice. AdamW trains embeddings, heads, biases, and kernels with three axes, as of XLNet.

    Args:
        learning_rate, factors, skip_nonfinite: the same as for ``AdamW``.
        newton_schulz_dtype: the dtype of the iterations, such as "bfloat16", as in Jordan's code;
            None for the dtype of the weights.
        **kwargs: further arguments of ``keras.optimizers.Muon``.
    """

    def __init__(
        self,
        learning_rate: Any,
        factors: Mapping[str, float] | None = None,
        *,
        newton_schulz_dtype: str | None = None,
        **kwargs: Any,
    ):
        kwargs.setdefault("exclude_layers", ["_head/"])
        # One decay for all weights.
        kwargs["adam_weight_decay"] = kwargs.get("weight_decay")
        super().__init__(learning_rate, factors, **kwargs)
        self.newton_schulz_dtype = newton_schulz_dtype

    def _should_use_adamw(self, variable):
        # The biases of XLNet's and Transformer-XL's attention have two axes, but are no matrices.
        return variable.name == "bias" or super()._should_use_adamw(variable)

    def build(self, var_list):
        super().build(var_list)
        self._momentums, self._velocities = self.momentums, self.adam_velocities

    def update_step(self, gradient, variable, learning_rate):
        index, dtype = self._get_variable_index(variable), variable.dtype
        rate = ops.cast(learning_rate, dtype) * self._factor(index)
        gradient = ops.cast(gradient, dtype)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            self.assign(variable, variable * (1 - rate * self.weight_decay))
        first, second = self.momentums[index], self.adam_velocities[index]
        if second is None or not _on_tensorflow() or dtype in _HALF:
            super().update_step(gradient, variable, rate)
            return
        betas = (self.adam_beta_1, self.adam_beta_2)
        step = ops.cast(self.iterations + 1, dtype)
        powers = (ops.power(betas[0], step), ops.power(betas[1], step))
        rate = rate * self.adam_lr_ratio
        _apply_adam(variable, (first, second), gradient, rate, betas, powers, self.epsilon)

    def zeropower_via_newtonschulz5(self, x, steps):
        # The norm is computed from the weights' dtype: a long sum loses digits in half precision.
        step = ops.cast(x / (ops.norm(x) + 1e-7), self.newton_schulz_dtype or x.dtype)
        tall = x.shape[0] > x.shape[1]
        step = ops.transpose(step) if tall else step
        one = ops.eye(min(x.shape), dtype=step.dtype)
        for _ in range(steps):
            # a + b·S + c·S², with the identity in place of two passes over the matrix.
            square = step @ ops.transpose(step)
            factor = self.muon_a * one + square @ (self.muon_b * one + self.muon_c * square)
            step = factor @ step
        return ops.cast(ops.transpose(step) if tall else step, x.dtype)

    def get_config(self):
        return {**super().get_config(), "newton_schulz_dtype": self.newton_schulz_dtype}


# Classes and their options by the names in recipes, ``settings.OPTIMIZERS``.
_BY_NAME: dict[str, tuple[type[_Adaptive], dict[str, Any]]] = {
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
    """LAMB as ALBERT is pretrained with it (arXiv 1909.11942, section 4.1), in batches of 4096.

    Arguments as for ``adamw``. The defaults of ``learning_rate`` and ``warmup`` are ALBERT's (3,125
    of 125,000 steps): steps are scaled to the norm of the weights, so AdamW's rates are too small.
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
    """Returns the optimizer of a recipe's ``train`` section.

    Args:
        settings: the section.
        total_steps: the length of its schedule.
        factors: the same as for ``adamw``.
        schedule: the learning rate; None for the section's.
    """
    kind, options = _BY_NAME[settings.optimizer]
    if kind is Muon and keras.config.dtype_policy().compute_dtype == "bfloat16":
        options = {**options, "newton_schulz_dtype": "bfloat16"}
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
        total_steps: the number of steps, after which a falling rate is 0.
    """
    peak, rise = settings.learning_rate, round(settings.warmup * total_steps)
    if settings.schedule == "constant":
        return WarmupLinearDecay(peak, rise, None)
    if settings.schedule == "linear":
        return WarmupLinearDecay(peak, rise, total_steps)
    fall, cosine = max(total_steps - rise, 1), keras.optimizers.schedules.CosineDecay
    return cosine(0.0, fall, warmup_target=peak, warmup_steps=rise) if rise else cosine(peak, fall)


def _scheduled(
    kind: Any, learning_rate: Any, total_steps: int | None, warmup: float, **settings: Any
) -> Any:
    in_range("warmup", warmup, at_least=0, below=1)
    schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    # A constant rate is a number, which callbacks can change.
    if total_steps is not None and not schedule:
        learning_rate = WarmupLinearDecay(learning_rate, round(warmup * total_steps), total_steps)
    optimizer = kind(learning_rate, **settings)
    optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
    return optimizer

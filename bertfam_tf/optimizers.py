"""BERT's optimizer: AdamW without decay on norms and biases, linear warm-up and decay."""

from collections.abc import Mapping

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf.config import TrainConfig

_NO_DECAY = ("bias", "beta", "gamma")


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
class AdamW(keras.optimizers.AdamW):
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
    """

    def __init__(self, learning_rate, factors: Mapping[str, float] | None = None, **kwargs):
        super().__init__(learning_rate, **kwargs)
        if self.amsgrad:
            raise ValueError("amsgrad is not supported.")
        self.factors = dict(factors or {})

    def apply(self, grads, trainable_variables=None):
        # An embedding's gradient has a slice for each token that was looked up.
        grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # Scalars that all variables share; both bias corrections are in them.
        step = ops.cast(self.iterations + 1, "float32")
        powers = ops.power(self.beta_1, step), ops.power(self.beta_2, step)
        epsilon = self.epsilon * ops.sqrt(1 - powers[1])
        rate = ops.cast(learning_rate, "float32")
        decay = rate * (self.weight_decay or 0.0)
        betas = (tf.constant(beta, "float32") for beta in (self.beta_1, self.beta_2))
        shared = (rate, decay, *powers, *betas, epsilon)
        super()._backend_update_step(grads, trainable_variables, shared)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        dtype = variable.dtype
        rate, decay, *powers_and_betas, epsilon = (tf.cast(x, dtype) for x in learning_rate)
        factor = self.factors.get(self._trainable_variables[index].path, 1.0)
        if factor != 1.0:
            rate, decay = rate * factor, decay * factor
        if self.weight_decay is not None and self._use_weight_decay(variable):
            variable.assign_sub(variable * decay)
        # One operation and one pass over the weights, in place of some fifteen.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=powers_and_betas[0],
            beta2_power=powers_and_betas[1],
            lr=rate,
            beta1=powers_and_betas[2],
            beta2=powers_and_betas[3],
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )

    def _apply_weight_decay(self, variables):
        """Done in ``update_step``, at each variable's own rate."""

    def get_config(self):
        return {**super().get_config(), "factors": self.factors}


def adamw(
    learning_rate: float = 5e-5,
    total_steps: int | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = 1e-6,
    beta_2: float = 0.999,
    factors: Mapping[str, float] | None = None,
) -> AdamW:
    """AdamW as the BERT papers fine-tune with it (arXiv 1810.04805, appendix A.3).

    Args:
        learning_rate: the peak of the schedule.
        total_steps: length of the schedule; None holds the peak.
        warmup: the fraction of ``total_steps`` in which the rate rises.
        weight_decay: decoupled decay (arXiv 1711.05101), not applied to biases and norms.
        clip_norm: maximum norm of the global gradient; None does not clip.
        epsilon: of Adam.
        beta_2: of Adam.
        factors: as ``AdamW`` takes them; None for one rate.
    """
    if not 0 <= warmup < 1:
        raise ValueError(
            f"warmup must be at least 0 and below 1, a fraction of all steps, got {warmup}."
        )
    schedule = WarmupLinearDecay(learning_rate, round(warmup * (total_steps or 0)), total_steps)
    optimizer = AdamW(
        schedule,
        factors,
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        beta_2=beta_2,
    )
    optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
    return optimizer


def of(
    settings: TrainConfig, total_steps: int, factors: Mapping[str, float] | None = None
) -> AdamW:
    """The optimizer of a recipe's ``train`` section, for that many steps."""
    return adamw(
        settings.learning_rate,
        total_steps=total_steps,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        epsilon=settings.epsilon,
        beta_2=settings.beta_2,
        factors=factors,
    )

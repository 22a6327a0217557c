"""BERT's optimizer: AdamW without decay on norms and biases, linear warm-up and decay."""

import keras
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


def adamw(
    learning_rate: float = 5e-5,
    total_steps: int | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    epsilon: float = 1e-6,
    beta_2: float = 0.999,
) -> keras.optimizers.AdamW:
    """AdamW as the BERT papers fine-tune with it (arXiv 1810.04805, appendix A.3).

    Args:
        learning_rate: the peak of the schedule.
        total_steps: length of the schedule; None holds the peak.
        warmup: the part of ``total_steps`` that the rate rises for.
        weight_decay: decoupled decay (arXiv 1711.05101), not applied to biases and norms.
        clip_norm: longest global gradient; None does not clip.
        epsilon: of Adam.
        beta_2: of Adam.
    """
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a part of all steps, at least 0 and below 1, not {warmup}.")
    schedule = WarmupLinearDecay(learning_rate, round(warmup * (total_steps or 0)), total_steps)
    optimizer = keras.optimizers.AdamW(
        schedule,
        weight_decay=weight_decay,
        global_clipnorm=clip_norm,
        epsilon=epsilon,
        beta_2=beta_2,
    )
    optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
    return optimizer


def of(settings: TrainConfig, total_steps: int) -> keras.optimizers.AdamW:
    """The optimizer of a recipe's ``train`` section, for a run of so many steps."""
    return adamw(
        settings.learning_rate,
        total_steps=total_steps,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
        epsilon=settings.epsilon,
        beta_2=settings.beta_2,
    )

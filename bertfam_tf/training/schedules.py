"""Learning rates by the number of the step."""

from collections.abc import Sequence

import keras
from keras import ops


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
        schedules = [keras.saving.serialize_keras_object(schedule) for schedule in self.schedules]
        return {"schedules": schedules, "ends": self.ends}

    @classmethod
    def from_config(cls, config):
        schedules = [
            keras.saving.deserialize_keras_object(schedule) for schedule in config["schedules"]
        ]
        return cls(schedules, config["ends"])

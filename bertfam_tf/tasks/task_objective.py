"""The objective of one of several tasks that are trained together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from bertfam_tf.objectives.objective import Batch, Objective, SumAndCount


class TaskObjective:
    """An objective of one of several tasks.

    Args:
        task: its name.
        objective: the task's objective.
        weight: the weight of its losses.
    """

    def __init__(self, task: str, objective: Objective, weight: float):
        self.task = task
        self.objective = objective
        self.heads = objective.heads
        self.weights: Mapping[str, float] = {
            f"{task}_{name}": weight * x for name, x in objective.weights.items()
        }
        reported = getattr(objective, "metrics", {})
        self.metrics = {f"{task}_{name}": function for name, function in reported.items()}

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        weights = None if batch.weights is None else batch.weights.get(self.task)
        own = Batch(batch.inputs[self.task], batch.targets[self.task], weights)
        losses = self.objective.loss(outputs[self.task], heads, own)
        return {f"{self.task}_{name}": value for name, value in losses.items()}

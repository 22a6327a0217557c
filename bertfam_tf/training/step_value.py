"""Values that a training step records for callbacks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops


class StepValue:
    """A tensor that a training step records, and callbacks read after it.

    It is not saved: Keras does not track the variable in this object as a weight of the model or
    optimizer.

    Args:
        shape: the shape of the tensor.
        summed: whether replicas have different values, which are added when all workers read them;
            otherwise all replicas have the same value.
    """

    def __init__(self, shape: tuple[int, ...] = (), *, summed: bool = False):
        self._variable = keras.Variable(
            np.zeros(shape),
            dtype="float32",
            trainable=False,
            autocast=False,
            synchronization="on_read",
            aggregation="sum" if summed else "only_first_replica",
            name="measured",
        )

    @property
    def tensor(self) -> Any:
        """The value of this replica, in a training step."""
        return ops.convert_to_tensor(self._variable)

    def assign(self, value: Any) -> None:
        self._variable.assign(ops.cast(value, "float32"))

    def add(self, value: Any) -> None:
        self._variable.assign_add(ops.cast(value, "float32"))

    def read(self) -> np.ndarray:
        """Returns the value, float32."""
        return np.asarray(self._variable.numpy())

    def take(self) -> np.ndarray:
        """Returns the value and resets it to zero, so that sums keep their precision."""
        value = self.read()
        self._variable.assign(np.zeros_like(value))
        return value

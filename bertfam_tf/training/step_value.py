"""Numbers that a training step computes besides, for those who watch it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops


class StepValue:
    """Numbers that a training step computes, and a callback reads after it.

    They are not saved: Keras does not see the variable in this object, and does not count it among
    the weights of the model or optimizer that has it.

    Args:
        shape: of the numbers.
        summed: whether each replica has its part of them, which are added up when they are read,
            by all workers; else each replica has the same.
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
        """The numbers of this replica, in a training step."""
        return ops.convert_to_tensor(self._variable)

    def assign(self, value: Any) -> None:
        self._variable.assign(ops.cast(value, "float32"))

    def add(self, value: Any) -> None:
        self._variable.assign_add(ops.cast(value, "float32"))

    def read(self) -> np.ndarray:
        """The numbers, float32."""
        return np.asarray(self._variable.numpy())

    def take(self) -> np.ndarray:
        """The numbers, which are set to zero: sums that begin anew keep their precision."""
        found = self.read()
        self._variable.assign(np.zeros_like(found))
        return found

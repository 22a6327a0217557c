"""Tasks and inputs for tests of exports."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def objects(texts: Sequence[str]) -> np.ndarray:
    """Returns texts as exports take them."""
    return np.array([text.encode() for text in texts], object)


def perturbed(task: Any, size: float = 0.1) -> Any:
    """Adds normal noise to the weights of a task, and returns it."""
    for i, variable in enumerate(task.weights):
        if "seed" not in variable.path:
            noise = np.random.default_rng(i).normal(0, size, variable.shape)
            variable.assign_add(noise.astype("float32"))
    return task

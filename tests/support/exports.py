"""Tasks and inputs for tests of exports."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow.core.protobuf import saved_model_pb2


def objects(texts: Sequence[str | bytes]) -> np.ndarray:
    """Returns texts as exports take them."""
    return np.array([t if isinstance(t, bytes) else t.encode() for t in texts], object)


def perturb(variables: Iterable[Any], size: float) -> None:
    """Adds normal noise to variables, once to each; seeds are left."""
    for i, variable in enumerate({id(variable): variable for variable in variables}.values()):
        if "seed" not in variable.path:
            noise = np.random.default_rng(i).normal(0, size, variable.shape)
            variable.assign_add(noise.astype("float32"))


def perturbed(task: Any, size: float = 0.1) -> Any:
    """Adds normal noise to the weights of a task, and returns it."""
    perturb(task.weights, size)
    return task


def nodes(path: Path, op: str | None = None) -> list[Any]:
    """Returns the nodes in the functions of a SavedModel, of one operation or of all."""
    graph = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    functions = graph.meta_graphs[0].graph_def.library.function
    return [n for function in functions for n in function.node_def if op in (None, n.op)]

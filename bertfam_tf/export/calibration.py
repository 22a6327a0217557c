"""Calibration texts, whose activations determine the scales of int8 exports."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bertfam_tf.tasks import Task


def calibration_examples(
    task: Task, texts: Iterable[Any] | None, wanted_by: str, most: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yields calibration texts as inputs of the task.

    Args:
        task: the task to export.
        texts: texts, or tuples of texts for tasks with several texts per example.
        wanted_by: the option that needs them, for errors.
        most: the largest number of examples to read; None for all.

    Yields:
        Input name to array, (1, …), for each example.

    Raises:
        ValueError: if there are no texts, or an example does not fit the task's inputs.
    """
    if isinstance(texts, str | bytes | dict):
        raise ValueError(f"calibration must be a list of texts, got a {type(texts).__name__}.")
    names, specs = task.feature_names, task.feature_specs
    examples = [] if texts is None else list(itertools.islice(texts, most))
    if not examples:
        raise ValueError(f"{wanted_by} needs calibration, a few hundred typical texts.")
    for example in examples:
        parts = example if isinstance(example, tuple) else (example,)
        if len(parts) != len(names):
            raise ValueError(
                f"A calibration example must have {len(names)} texts, {names}, got {len(parts)}."
            )
        inputs = {name: np.array([part]) for name, part in zip(names, parts, strict=True)}
        for name, values in inputs.items():
            if values.dtype.kind not in "US" or values.shape[1:] != specs[name].shape[1:]:
                raise ValueError(f"{name} of a calibration example must be texts, got {parts!r}.")
        yield inputs

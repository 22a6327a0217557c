"""How similar the layers of two models are."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from bertfam_tf.data.inputs import batches, texts_of
from bertfam_tf.tasks import Task


def layer_similarity(first: Task, second: Task, texts: Any, *, batch_size: int = 32) -> np.ndarray:
    """Linear centered kernel alignment of the hidden states of all layers of two models.

    Kornblith et al. 2019, arXiv 1905.00414: from 0 to 1, the same for any rotation and scale of
    the vectors, which may have different widths. Vectors are means over the tokens of an example,
    so that two models may split texts in different ways.

    Args:
        first, second: tasks, such as a student and its teacher, or a model before and after
            fine-tuning.
        texts: examples, as ``predict`` takes them.
        batch_size: examples in a batch.

    Returns:
        float32 (layers of first + 1, layers of second + 1); index 0 is the embeddings' output.
    """
    ours, theirs = (_states(task, texts, batch_size) for task in (first, second))
    return np.array([[_cka(a, b) for b in theirs] for a in ours], "float32")


def _states(task: Task, texts: Any, batch_size: int) -> list[np.ndarray]:
    """Of each layer float64 (examples, width)."""
    found: list[list[np.ndarray]] = []
    for features, *_ in batches(
        texts_of(texts, task.fields), batch_size=batch_size, fields=task.fields
    ):
        inputs = task.preprocess(features)
        kept = {n: x for n, x in inputs.items() if n in task.backbone.token_inputs}
        states = task.backbone(kept, training=False, outputs="hidden_states")["hidden_states"]
        mask = keras.ops.expand_dims(keras.ops.cast(inputs["padding_mask"], "float32"), -1)
        means = [
            keras.ops.convert_to_numpy(keras.ops.sum(x * mask, 1) / keras.ops.sum(mask, 1))
            for x in states
        ]
        found.append(means)
    return [np.concatenate(each).astype("float64") for each in zip(*found, strict=True)]


def _cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms else 0.0

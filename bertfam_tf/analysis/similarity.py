"""Similarity of the layers of two models."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf.data.inputs import batches, texts_of
from bertfam_tf.tasks import Task


def layer_similarity(first: Task, second: Task, texts: Any, *, batch_size: int = 32) -> np.ndarray:
    """Computes linear centered kernel alignment of the hidden states of two models' layers.

    Kornblith et al. 2019, arXiv 1905.00414: from 0 to 1, the same for any rotation and scale of
    the vectors, which may have different widths. Vectors are means over the tokens of an example,
    so that two models may split texts in different ways.

    This is the usual, biased estimate: with few examples it is too high, and near 1 if there are
    fewer examples than dimensions, even for unrelated vectors. Use several times as many examples
    as the width, and compare only values of the same number of examples.

    Args:
        first, second: tasks, such as a student and its teacher, or a model before and after
            fine-tuning.
        texts: the examples, in any form that ``predict`` accepts.
        batch_size: the number of examples in a batch.

    Returns:
        float32 (layers of first + 1, layers of second + 1); index 0 is the embeddings' output.

    Raises:
        ValueError: for a task whose examples are several rows, such as multiple choice; and as
            ``predict`` raises it.
    """
    ours, theirs = (_states(task, texts, batch_size) for task in (first, second))
    return np.array([[_cka(a, b) for b in theirs] for a in ours], "float32")


def _states(task: Task, texts: Any, batch_size: int) -> list[np.ndarray]:
    """Computes the mean hidden states, float64 (examples, width) for each layer."""
    means_by_example: list[list[np.ndarray]] = []
    preprocessor, prepare = task.components.preprocessor, task.components.targets.prepared
    x, _ = prepare(texts_of(texts, task.fields, prepare, pair=task.pair), None)
    for features, *_ in batches(x, batch_size=batch_size, fields=task.fields):
        encoded = preprocessor(features)
        inputs = preprocessor.inputs(encoded)
        if inputs["padding_mask"].shape.rank != 2:
            kind = type(task).__name__
            raise ValueError(f"Examples of {kind} are several rows of tokens, not one.")
        tokens = {n: x for n, x in inputs.items() if n in task.backbone.token_inputs}
        states = task.backbone(tokens, training=False, outputs="hidden_states")["hidden_states"]
        mask = keras.ops.expand_dims(keras.ops.cast(inputs["padding_mask"], "float32"), -1)
        number = len(next(iter(features.values())))
        example = preprocessor.spread(tf.range(number), encoded)  # of each window

        def summed(rows: Any, example: Any = example, number: int = number) -> Any:
            return tf.math.unsorted_segment_sum(keras.ops.sum(rows, 1), example, number)

        counts = keras.ops.maximum(summed(mask), 1)  # an empty text may have no token
        means = [keras.ops.convert_to_numpy(summed(x * mask) / counts) for x in states]
        means_by_example.append(means)
    return [
        np.concatenate(layer).astype("float64") for layer in zip(*means_by_example, strict=True)
    ]


def _cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(y.T @ x) ** 2 / norms) if norms else 0.0


def mean_vectors(task: Task, texts: Any, *, layer: int = -1, batch_size: int = 32) -> np.ndarray:
    """Returns the mean hidden state of each text's tokens.

    Args:
        task: the task.
        texts: the examples, in any form that ``predict`` accepts.
        layer: the index of a layer; 0 is the embeddings' output, -1 the last layer.
        batch_size: the number of examples in a batch.

    Returns:
        float64 (texts, width).

    Raises:
        ValueError: if the layer does not exist; and as ``layer_similarity`` raises it.
    """
    states = _states(task, texts, batch_size)
    if not -len(states) <= layer < len(states):
        raise ValueError(f"layer must be from 0 to {len(states) - 1}, got {layer}.")
    return states[layer]


def project(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Projects vectors to two dimensions: their first two principal components.

    Args:
        vectors: float (texts, width), such as ``mean_vectors`` or an embedder's predictions.

    Returns:
        float64 (texts, 2), and the share of the variance that they keep.

    Raises:
        ValueError: if the shape is another one, there are fewer than three vectors, or their width
            is 1.
    """
    vectors = np.asarray(vectors, "float64")
    if vectors.ndim != 2 or len(vectors) < 3 or vectors.shape[1] < 2:
        raise ValueError(
            "vectors must have the shape (texts, width), at least three of width 2, got "
            f"{vectors.shape}."
        )
    left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    squares = values**2
    return left[:, :2] * values[:2], float(squares[:2].sum() / max(squares.sum(), 1e-300))

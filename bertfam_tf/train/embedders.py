"""Recipes of embedders: what trains them, and their scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf import tasks
from bertfam_tf.config import DistillRecipe, EmbedderConfig, Recipe
from bertfam_tf.data.inputs import TEXT, TEXT_PAIR
from bertfam_tf.metrics import Spearman, nearest, retrieval_scores, unit_length
from bertfam_tf.train.splits import is_embedder

# What the training of embedders has no use for, or what would change its negatives.
_UNUSED = ("batch_tokens", "class_weights", "metrics")


def check(recipe: Recipe) -> None:
    """Checks a recipe of any task.

    Raises:
        ValueError: for an embedder, settings that it does not have, or a column of labels where the
            objective has none; for other tasks, settings of embedders.
    """
    if not is_embedder(recipe.task):
        if recipe.embedder is not None:
            raise ValueError(f"embedder is for the task TextEmbedder, got {recipe.task}.")
        return
    for name in _UNUSED:
        if getattr(recipe.train, name) is not None:
            raise ValueError(f"train.{name} must be null for the task TextEmbedder.")
    objective, label = _settings(recipe).objective, recipe.data.label
    if (objective == "contrastive") != (label is None):
        expected = "must be null" if objective == "contrastive" else "must be a column"
        raise ValueError(f"data.label {expected} for the objective {objective}, got {label!r}.")


def trainer(task: tasks.TextEmbedder, recipe: Recipe) -> tasks.EmbedderTrainer:
    """What trains the embedder of a recipe. Raises ValueError as ``EmbedderTrainer`` does."""
    return tasks.EmbedderTrainer(task, **dataclasses.asdict(_settings(recipe)))


def scores(
    task: tasks.TextEmbedder,
    recipe: Recipe | DistillRecipe,
    rows: tf.data.Dataset,
    language: str | int | None = None,
) -> dict[str, float]:
    """Scores on pairs of texts.

    Args:
        task: the embedder.
        recipe: of its run, for the names of prompts.
        rows: pairs with or without labels, as ``read_split`` returns them.
        language: of the texts, as ``Task.predict`` takes it.

    Returns:
        with labels, ``spearman``, the correlation of cosines with them; without, the scores of
        ``retrieval_scores`` for the search of each first text among all second ones and negatives.
    """
    found = list(rows.as_numpy_iterator())
    prompts = _settings(recipe).prompts or [task.default_prompt] * 2
    first, second = ([each[0][name] for each in found] for name in (TEXT, TEXT_PAIR))
    labelled = len(rows.element_spec) > 1
    negatives = [text for (features, *_) in found for text in _negatives(features)]
    documents = second if labelled else list(dict.fromkeys([*second, *negatives]))
    queries, vectors = (
        unit_length(task.predict(texts, prompt=prompt, language=language))
        for texts, prompt in zip((first, documents), prompts, strict=True)
    )
    if labelled:
        metric = Spearman()
        metric.update_state([float(y) for _, y in found], np.sum(queries * vectors, axis=-1))
        return {"spearman": float(metric.result())}
    place = {text: i for i, text in enumerate(documents)}
    best, _ = nearest(queries, vectors, min(_K, len(documents)))
    return retrieval_scores(best.tolist(), [[place[text]] for text in second], _K)


_K = 10


def _settings(recipe: Recipe | DistillRecipe) -> EmbedderConfig:
    return getattr(recipe, "embedder", None) or EmbedderConfig()


def _negatives(features: dict[str, Any]) -> list[bytes]:
    given = [features[name] for name in features if name not in (TEXT, TEXT_PAIR)]
    return [text for each in given for text in ([each] if isinstance(each, bytes) else each)]

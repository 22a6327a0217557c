"""Trains the recipes of ``bertfam train``: of one task, or of several."""

from __future__ import annotations

from bertfam_tf.config import MultiTaskRecipe, Recipe
from bertfam_tf.train.multi_task import run_multi_task
from bertfam_tf.train.run import run


def train(recipe: Recipe | MultiTaskRecipe) -> dict[str, float]:
    """Trains, evaluates and saves what a recipe says; as ``run`` and ``run_multi_task``."""
    return run_multi_task(recipe) if isinstance(recipe, MultiTaskRecipe) else run(recipe)

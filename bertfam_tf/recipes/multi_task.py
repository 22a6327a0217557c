"""Runs a recipe of several tasks on one backbone."""

from __future__ import annotations

import logging

import keras
import tensorflow as tf

from bertfam_tf import tasks
from bertfam_tf.recipes.directory import MODEL, Flops, RunDirectory, model_source, run_once
from bertfam_tf.recipes.fine_tuning import (
    check_languages,
    evaluate,
    freeze_or_add_lora,
    run,
    task_options,
)
from bertfam_tf.recipes.schema import MultiTaskRecipe, Recipe
from bertfam_tf.recipes.splits import Split, open_split, read_split, trainable_task
from bertfam_tf.training import engine
from bertfam_tf.training.settings import DEFAULT_BATCH_SIZE
from bertfam_tf.user_warnings import new_heads_logged

_log = logging.getLogger(__name__)


def run_multi_task(recipe: MultiTaskRecipe, *, flops: Flops | None = None) -> dict[str, float]:
    """Fine-tunes several tasks together, evaluates them on their dev splits and saves them.

    The output directory is the same as for ``run``; its ``model`` is a ``MultiTask``.

    Returns:
        The metrics of the dev splits, with the task's name as prefix: ``sst2_accuracy``.

    Raises:
        ValueError, OSError: as for ``run``.
    """
    return run_once(recipe, _run, flops)


def evaluate_tasks(model: tasks.MultiTask, recipe: MultiTaskRecipe, split: str) -> dict[str, float]:
    """Returns the metrics of all tasks with a ``dev`` or ``test`` split.

    Raises:
        ValueError: if no task has the split.
    """
    metrics: dict[str, float] = {}
    data = {name: recipe.tasks[name].data for name in model}
    names = [
        name
        for name in data
        if getattr(data[name], split) is not None or getattr(data[name], f"{split}_languages", None)
    ]
    if not names:
        raise ValueError(f"The recipe names no {split} file.")
    for name in names:
        scores = evaluate(model[name], recipe.of(name), split)
        metrics |= {f"{name}_{metric}": value for metric, value in scores.items()}
    return metrics


def _run(recipe: MultiTaskRecipe, directory: RunDirectory) -> dict[str, float]:
    settings = recipe.train
    keras.utils.set_random_seed(settings.seed)
    splits: dict[str, Split] = {}
    rows: dict[str, tf.data.Dataset] = {}
    members: dict[str, tasks.Task] = {}
    for name, config in recipe.tasks.items():
        cls = trainable_task(config.task)
        splits[name] = open_split(config.data, "train", config.task, seed=settings.seed)
        rows[name] = splits[name].rows
        options = task_options(recipe.of(name), cls, rows[name], splits[name].names)
        if members:
            first = next(iter(members.values()))
            members[name] = cls(first.backbone, first.tokenizer, **options)
        else:
            path, overrides = model_source(recipe.model.path), recipe.model.overrides
            with new_heads_logged(_log):
                members[name] = cls.from_pretrained(path, **options, **overrides)
    backbone = next(iter(members.values())).backbone
    freeze_or_add_lora(backbone, recipe.model)
    weights = {name: config.weight for name, config in recipe.tasks.items()}
    model = tasks.MultiTask(members, loss_weights=weights)
    # Errors in the dev data are raised before anything is written.
    validation = {
        name: read_split(config.data, "dev", config.task, members[name].class_names or None)
        for name, config in recipe.tasks.items()
        if config.data.dev is not None
    }
    for name, config in recipe.tasks.items():
        check_languages(members[name], config.data)
    passes = {
        name: engine.text_passes(data, settings, members[name].count_tokens)
        for name, data in rows.items()
    }
    size = settings.batch_size or DEFAULT_BATCH_SIZE
    held_out = {name: data.batch(size) for name, data in validation.items()} or None
    phase = _passes(model, recipe, passes).phase(model, settings, held_out)
    metrics = {
        name: config.metrics for name, config in recipe.tasks.items() if config.metrics is not None
    }
    engine.compile_model(model, settings, phase.total, backbone=backbone, metrics=metrics)
    directory.begin()
    for split in splits.values():
        split.announce()
    engine.train(phase, directory, settings, model.tokenizer)
    if directory.writes:
        model.save(directory.path / MODEL)
        _log.info("The model is in %s.", directory.path / MODEL)
    scored = any(config.data.dev or config.data.dev_languages for config in recipe.tasks.values())
    scores = evaluate_tasks(model, recipe, "dev") if scored else {}
    directory.finish(scores)
    return scores


def _passes(
    model: tasks.MultiTask, recipe: MultiTaskRecipe, passes: dict[str, engine.Passes]
) -> engine.Passes:
    """Returns passes over the batches of all tasks in random order."""

    def mixed(number: int) -> tf.data.Dataset:
        texts = {
            name: task.batches(number).apply(tf.data.experimental.assert_cardinality(task.steps))
            for name, task in passes.items()
        }
        seed = engine.order_seed(recipe.train, number)
        return model.text_batches(texts, sampling=recipe.sampling, seed=seed)

    return engine.Passes(sum(task.steps for task in passes.values()), mixed)


def train(recipe: Recipe | MultiTaskRecipe, *, flops: Flops | None = None) -> dict[str, float]:
    """Trains, evaluates and saves one or several tasks; see ``run`` and ``run_multi_task``."""
    if isinstance(recipe, MultiTaskRecipe):
        return run_multi_task(recipe, flops=flops)
    return run(recipe, flops=flops)

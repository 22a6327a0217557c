"""Runs a recipe of fine-tuning: ``fit``, evaluation, a saved task."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import tasks
from bertfam_tf.models import Backbone
from bertfam_tf.names import join_names, unknown
from bertfam_tf.recipes.directory import MODEL, Flops, RunDirectory, model_source, run_once
from bertfam_tf.recipes.reading import build_section, with_types
from bertfam_tf.recipes.schema import DataConfig, DistillRecipe, ModelConfig, Recipe
from bertfam_tf.recipes.splits import open_split, read_split, trainable_task
from bertfam_tf.tasks.options import names as option_names
from bertfam_tf.training import engine, tuning
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import DEFAULT_BATCH_SIZE
from bertfam_tf.user_warnings import new_heads_logged

_log = logging.getLogger(__name__)


def run(recipe: Recipe, *, flops: Flops | None = None) -> dict[str, float]:
    """Fine-tunes, evaluates on the dev split and saves.

    The output directory gets ``recipe.yaml`` with all defaults, ``model`` (for
    ``bertfam_tf.load``), ``metrics.json``, and the logs ``metrics.jsonl``, ``history.csv``,
    ``tensorboard`` and ``curves.png``. A killed run resumes from its last training checkpoint when
    it is started again with the same recipe, and ends with the same result as an uninterrupted run;
    a finished run returns its metrics.

    Args:
        recipe: the recipe.
        flops: the same as for ``RunDirectory``.

    Returns:
        The metrics of the dev split; without a dev split, the training metrics of the last epoch,
        as ``train_loss``, …

    Raises:
        ValueError: if the recipe, a file or a label is invalid, the output directory has another
            recipe's run, the training checkpoint is damaged, or the loss is not finite; the error
            shows examples of that batch.
        OSError: if writing fails, such as on a full disk, or another process is writing to the
            output directory; the next run resumes.
    """
    return run_once(recipe, _run, flops)


def _run(recipe: Recipe, directory: RunDirectory) -> dict[str, float]:
    cls = trainable_task(recipe.task)
    keras.utils.set_random_seed(recipe.train.seed)
    settings = trainer_settings(recipe)
    split = open_split(recipe.data, "train", recipe.task, seed=recipe.train.seed)
    rows = split.rows
    task = _build(recipe, cls, rows, split.names)
    check_languages(task, recipe.data)
    freeze_or_add_lora(task.backbone, recipe.model)
    model = task.trainer(settings)
    directory.begin()
    split.announce()
    examples = task.training_rows(rows, settings, recipe.train.seed)
    history = _fit(task, model, recipe, directory, examples)
    task.finish_training(rows, settings)
    if directory.writes:
        task.save(directory.path / MODEL)
        _log.info("The model is in %s.", directory.path / MODEL)
    if recipe.data.dev is None and not recipe.data.dev_languages:
        metrics = directory.training_metrics()
    else:
        metrics = _validated(task, model, recipe, history) or evaluate(task, recipe, "dev")
    directory.finish(metrics)
    return metrics


def evaluate(
    task: tasks.Task,
    recipe: Recipe | DistillRecipe,
    split: str,
    language: str | int | None = None,
) -> dict[str, float]:
    """Computes the metrics of a task on a split of the recipe's data.

    Args:
        task: the task.
        recipe: its recipe.
        split: ``dev`` or ``test``.
        language: the language of the split, for a task whose backbone has language embeddings;
            files of other languages are then skipped. None for the task's language.

    Returns:
        The metrics of the split, and of files of other languages with the language as prefix, such
        as ``fr_accuracy``.

    Raises:
        ValueError: if the recipe lacks the split, or the task the language; and as for
            ``read_split``.
    """
    tables = [] if language is not None else list(_by_language(recipe.data, split))
    metrics = {}
    if getattr(recipe.data, split, None) is not None or not tables:
        metrics = _scores(task, recipe, recipe.data, split, language)
    for code, data in tables:
        scores = _scores(task, recipe, data, split, _language_of(task, code))
        metrics |= {f"{code}_{name}": value for name, value in scores.items()}
    return metrics


def _scores(
    task: tasks.Task,
    recipe: Recipe | DistillRecipe,
    data: DataConfig,
    split: str,
    language: str | int | None,
) -> dict[str, float]:
    rows = read_split(data, split, type(task).__name__, task.class_names or None)
    settings = trainer_settings(recipe) if isinstance(recipe, Recipe) else None
    if task.objectives and not task.compiled:
        task.compile(**_metrics(recipe))
    size = recipe.train.batch_size or DEFAULT_BATCH_SIZE
    return task.score(rows, settings, batch_size=size, language=language)


def check_languages(task: tasks.Task, data: DataConfig) -> None:
    """Reads the dev files of other languages, so that a mistake stops a run before it trains.

    Raises:
        ValueError: if a file, or a language of the task, is missing; and as for ``read_split``.
    """
    for language, of_language in _by_language(data, "dev"):
        _language_of(task, language)
        read_split(of_language, "dev", type(task).__name__, task.class_names or None)


def _by_language(data: DataConfig, split: str) -> Iterator[tuple[str, DataConfig]]:
    """Yields the languages with separate files for a split, and the data with these files."""
    for language, files in (getattr(data, f"{split}_languages", None) or {}).items():
        yield language, replace(data, **{split: files})


def _language_of(task: tasks.Task, language: str) -> str | None:
    """Returns the language for a task's preprocessor; None if the backbone has no languages."""
    languages = task.components.preprocessor.languages
    if not languages.count:
        return None
    languages.id_of(language)
    return language


def trainer_settings(recipe: Recipe) -> Any:
    """Returns the settings of the model that trains the recipe's task; None for the task itself.

    Raises:
        ValueError: if the task has no such settings, or a column of labels is missing or unused.
    """
    cls = trainable_task(recipe.task)
    settings = None
    if cls.trainer_settings is not None:
        settings = build_section(recipe.trainer, cls.trainer_settings, "trainer")
    elif recipe.trainer:
        raise ValueError(
            f"trainer must be empty for the task {recipe.task}, which trains itself, got "
            f"{recipe.trainer}."
        )
    for name in cls.unused_settings:
        if getattr(recipe.train, name) is not None:
            raise ValueError(f"train.{name} must be null for the task {recipe.task}.")
    labelled = cls.takes_labels(settings)
    if labelled != (recipe.data.label is not None):
        expected = "must be a column" if labelled else "must be null"
        why = "" if settings is None else f" with the settings {settings}"
        raise ValueError(
            f"data.label {expected} for the task {recipe.task}{why}, got {recipe.data.label!r}."
        )
    return settings


def _build(recipe: Recipe, cls: Any, rows: tf.data.Dataset, names: list[str]) -> Any:
    options = task_options(recipe, cls, rows, names)
    with new_heads_logged(_log):
        return cls.from_pretrained(
            model_source(recipe.model.path), **options, **recipe.model.overrides
        )


def task_options(
    recipe: Recipe, cls: Any, rows: tf.data.Dataset, names: list[str]
) -> dict[str, Any]:
    """Returns the keyword arguments that create a recipe's task, inferred from data where omitted.

    Args:
        recipe: the recipe.
        cls: the task's class.
        rows: the training examples.
        names: the names of the labels.

    Raises:
        ValueError: if an option is unknown or has the wrong type, the data has other columns than
            the task, or there is only one label.
    """
    known = [*option_names(cls.options_type), "language"]
    for name in recipe.options:
        if name not in known:
            raise ValueError(unknown(f"option of {recipe.task}", name, known))
    options = {"max_length": recipe.model.max_length}
    options |= cls.options_of_data(rows.element_spec[0], names)
    if len(names) == 1 and "labels" in options.keys() - recipe.options.keys():
        files = recipe.data.train
        files = files if isinstance(files, str) else join_names(files, 3)
        limit = recipe.data.limit
        rest = "" if limit is None else f" up to data.limit ({limit:,})"
        raise ValueError(
            f"All rows of {files}{rest} have the label {names[0]!r}; {recipe.task} needs at least "
            "two different labels."
        )
    return options | with_types(recipe.options, cls.options_type, "options")


def _fit(
    task: tasks.Task,
    model: Learner,
    recipe: Recipe,
    directory: RunDirectory,
    rows: tf.data.Dataset,
) -> dict[str, list[float]]:
    """Trains a task with the model that its ``trainer`` returns, often the task itself.

    Returns:
        The same as ``engine.train``.
    """
    settings = recipe.train
    count_tokens = getattr(model, "count_tokens", None)
    passes = engine.text_passes(rows, settings, count_tokens, by_length=model.batches_by_length)
    validation: Any = None
    if recipe.data.dev is not None and task.validates_epochs:
        names = getattr(model, "class_names", None)
        validation = read_split(recipe.data, "dev", recipe.task, names or None)
        validation = validation.batch(settings.batch_size or DEFAULT_BATCH_SIZE)
    phase = passes.phase(model, settings, validation)
    # The metrics of a recipe read the outputs of its task; another model has others.
    metrics = _metrics(recipe) if isinstance(model, tasks.Task) else {}
    engine.compile_model(model, settings, phase.total, backbone=task.backbone, **metrics)
    return engine.train(phase, directory, settings, None, class_weight=settings.class_weights)


def _validated(
    task: tasks.Task, model: Learner, recipe: Recipe, history: dict[str, list[float]]
) -> dict[str, float]:
    """Returns the metrics of the last validation; none unless `evaluate` would repeat it."""
    # The best epoch's weights may be loaded after it, and a callback may change them.
    changed = recipe.train.patience is not None or recipe.train.callbacks
    repeats = model is task and task.scored_by_validation and not recipe.data.dev_languages
    if changed or not repeats:
        return {}
    validated = {name: values[-1] for name, values in history.items() if name.startswith("val_")}
    return {name.removeprefix("val_"): value for name, value in validated.items()}


def _metrics(recipe: Recipe | DistillRecipe) -> dict[str, Any]:
    return {} if recipe.train.metrics is None else {"metrics": recipe.train.metrics}


def freeze_or_add_lora(backbone: Backbone, settings: ModelConfig) -> None:
    """Freezes layers of a backbone, or adds LoRA to it, if the section ``model`` says so."""
    frozen = settings.frozen
    if frozen is not None:
        tuning.freeze(backbone, None if isinstance(frozen, str) else frozen)
    if settings.lora_rank is not None:
        tuning.add_lora(backbone, settings.lora_rank)

"""One entry from a recipe to ``fit``, evaluation and a saved task."""

import logging
from functools import reduce
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import optimizers, tasks
from bertfam_tf.config import DataConfig, Recipe, expand
from bertfam_tf.data import as_value_errors, index_of, read_tsv, shuffled_batches
from bertfam_tf.names import unknown
from bertfam_tf.train.directory import MODEL, RunDirectory

# Rows of text; a corpus that is longer is shuffled within as many.
_SHUFFLE_BUFFER = 1 << 20
_TASKS = {"TextClassifier": tasks.TextClassifier}
_log = logging.getLogger(__name__)


def run(recipe: Recipe) -> dict[str, float]:
    """Fine-tunes, evaluates on the dev split and saves.

    The output directory gets ``recipe.yaml`` (every default written out), ``model`` (for
    ``bertfam_tf.load``), ``metrics.json``, ``history.csv`` and ``tensorboard``. A run that was
    killed goes on from its last state when it is started again with the same recipe, and ends as
    if it had not been killed; one that is done answers with the metrics that it wrote.

    Returns:
        The dev split's metrics, empty without one.

    Raises:
        ValueError: for a recipe, file or label that is not valid, and when the output directory
            holds another recipe's run.
    """
    directory = RunDirectory(recipe)
    done = directory.metrics()
    if done is not None:
        return done
    if recipe.task not in _TASKS:
        raise ValueError(unknown("task", recipe.task, _TASKS))
    keras.utils.set_random_seed(recipe.train.seed)
    names = _label_names(recipe.data)
    task = _TASKS[recipe.task].from_pretrained(
        recipe.model.path,
        labels=names,
        pair=recipe.data.text_pair is not None,
        max_length=recipe.model.max_length,
        **recipe.model.overrides,
    )
    directory.begin()
    _fit(task, recipe, directory)
    task.save(directory.path / MODEL)
    metrics = evaluate(task, recipe, "dev") if recipe.data.dev is not None else {}
    directory.finish(metrics)
    return metrics


def evaluate(task: tasks.Task, recipe: Recipe, split: str) -> dict[str, float]:
    """Metrics of a task on the recipe's ``dev`` or ``test`` split."""
    data = read_split(recipe.data, split).batch(recipe.train.batch_size)
    return task.evaluate(data, return_dict=True, verbose=0)


def read_split(data: DataConfig, split: str) -> tf.data.Dataset:
    """A split as ``(features, label)``: dicts of strings, and names of labels.

    Raises:
        ValueError: when the recipe has no such split, or the file or a column is missing.
    """
    file = getattr(data, split, None)
    if file is None:
        raise ValueError(f"The recipe names no {split} file.")
    columns = {"text": data.text, "label": data.label}
    if data.text_pair is not None:
        columns["text_pair"] = data.text_pair
    limit = data.limit if split == "train" else None
    rows = read_tsv(expand(file), columns, limit=limit)
    table = data.labels if isinstance(data.labels, dict) else None

    def split_label(row: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        label = row.pop("label")
        if table is not None:
            label = tf.gather(
                tf.constant(list(table.values())), index_of(label, list(table), "label")
            )
        return row, label

    return rows.map(split_label, num_parallel_calls=tf.data.AUTOTUNE)


def _label_names(data: DataConfig) -> list[str]:
    if isinstance(data.labels, dict):
        return list(dict.fromkeys(data.labels.values()))
    if data.labels is not None:
        return data.labels
    found = read_split(data, "train").map(lambda _, label: label).unique()
    with as_value_errors():
        return sorted(label.decode("utf-8") for label in found.as_numpy_iterator())


def _fit(task: tasks.Task, recipe: Recipe, directory: RunDirectory) -> None:
    settings = recipe.train
    backup = directory.backup(settings.backup_steps)
    rows = read_split(recipe.data, "train")
    count = int(rows.cardinality())
    steps = -(-count // settings.batch_size)
    task.compile(optimizers.of(settings, steps * settings.epochs))
    done = backup.restore(task)
    if done:
        _log.info("Going on from step %d of %d.", done, steps * settings.epochs)

    # The seed of each epoch's order is its own, so that an epoch is the same whichever comes
    # before it in this process. Batches that are done are passed over before they are tokenized.
    def shuffled(epoch: int) -> tf.data.Dataset:
        seed = settings.seed * settings.epochs + epoch
        buffer = min(count, _SHUFFLE_BUFFER)
        return shuffled_batches(rows, settings.batch_size, buffer=buffer, seed=seed)

    validation: Any = None
    if recipe.data.dev is not None:
        validation = read_split(recipe.data, "dev").batch(settings.batch_size)
    callbacks = [
        backup,
        keras.callbacks.TensorBoard(directory.path / "tensorboard"),
        keras.callbacks.CSVLogger(directory.path / "history.csv", append=True),
    ]
    epoch, within = divmod(done, steps)
    for first, last, length in (
        (epoch, epoch + 1, steps - within),
        (epoch + 1, settings.epochs, steps),
    ):
        if first < last <= settings.epochs:
            task.fit(
                reduce(tf.data.Dataset.concatenate, map(shuffled, range(first, last))).skip(
                    steps - length
                ),
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=length,
                validation_data=validation,
                callbacks=callbacks,
            )

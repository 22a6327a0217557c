"""One entry from a recipe to ``fit``, evaluation and a saved task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bertfam_tf import optimizers, tasks, tuning
from bertfam_tf.config import DataConfig, Recipe, expand
from bertfam_tf.data import (
    as_value_errors,
    format_of,
    index_of,
    read_rows,
    read_tsv,
    shuffled_batches,
    targets,
)
from bertfam_tf.data.published import columns_of
from bertfam_tf.data.records import Column
from bertfam_tf.names import unknown
from bertfam_tf.train.best import BestEpoch
from bertfam_tf.train.directory import MODEL, RunDirectory, run_directory

# Rows of text; a corpus that is longer is shuffled within as many.
_SHUFFLE_BUFFER = 1 << 20
_CHOICES = "choices"
_log = logging.getLogger(__name__)


class _Kind(NamedTuple):
    """What a task is trained on.

    Fields:
        target: what its labels are.
        names: the argument, and the attribute, that takes their names, if they have any.
    """

    target: Callable[[Any], targets.Target]
    names: str | None = None


_TASKS = {
    "TextClassifier": _Kind(targets.Name, "labels"),
    "MultiLabelClassifier": _Kind(targets.Names, "labels"),
    "TextRegressor": _Kind(targets.Number),
    "TokenTagger": _Kind(targets.Tags, "tags"),
    "SpanQA": _Kind(targets.Answers),
    "MultipleChoice": _Kind(targets.Choice),
}


def run(recipe: Recipe) -> dict[str, float]:
    """Fine-tunes, evaluates on the dev split and saves.

    The output directory gets ``recipe.yaml`` (every default written out), ``model`` (for
    ``bertfam_tf.load``), ``metrics.json``, ``history.csv`` and ``tensorboard``. A run that was
    killed goes on from its last state when it is started again with the same recipe, and ends as
    if it had not been killed; one that is done answers with the metrics that it wrote.

    Returns:
        The dev split's metrics, empty without one.

    Raises:
        ValueError: for a recipe, file or label that is not valid, when the output directory
            holds another recipe's run or another process is writing it, and when the state to go
            on from is damaged.
        OSError: when writing fails, on a full disk say; started again, the run goes on.
    """
    with run_directory(recipe) as directory:
        done = directory.metrics()
        return _run(recipe, directory) if done is None else done


def _run(recipe: Recipe, directory: RunDirectory) -> dict[str, float]:
    kind = _kind(recipe.task)
    keras.utils.set_random_seed(recipe.train.seed)
    rows, names = _open(recipe.data, "train", recipe.task)
    task = _build(recipe, kind, rows, names)
    directory.begin()
    _fit(task, recipe, directory, rows)
    task.save(directory.path / MODEL)
    metrics = evaluate(task, recipe, "dev") if recipe.data.dev is not None else {}
    directory.finish(metrics)
    return metrics


def evaluate(task: tasks.Task, recipe: Recipe, split: str) -> dict[str, float]:
    """Metrics of a task on the recipe's ``dev`` or ``test`` split."""
    kind = _kind(type(task).__name__)
    names = getattr(task, kind.names) if kind.names else None
    rows = read_split(recipe.data, split, type(task).__name__, names)
    data = rows.batch(recipe.train.batch_size)
    if not task.compiled:
        task.compile(**_metrics(recipe))
    return task.evaluate(data, return_dict=True, verbose=0)


def read_split(
    data: DataConfig, split: str, task: str = "TextClassifier", names: list[str] | None = None
) -> tf.data.Dataset:
    """A split as ``(features, label)``, in the names and types that a task takes.

    Args:
        data: of a recipe.
        split: ``train``, ``dev`` or ``test``.
        task: the task's class.
        names: the labels that are known where the recipe names none.

    Raises:
        ValueError: when the recipe has no such split, or the file or a column is missing. Rows of
            TSV files that classifiers read are checked as they stream; those of other formats now.
    """
    return _open(data, split, task, names)[0]


def columns(data: DataConfig) -> dict[str, Column] | None:
    """The columns of features and label; None for what is known of tensorflow-datasets'."""
    if data.columns is not None:
        return {"label": data.label, **data.columns}
    if data.tfds is not None and columns_of(data.tfds) is not None:
        return None
    found: dict[str, Column] = {"text": data.text, "label": data.label}
    return found if data.text_pair is None else {**found, "text_pair": data.text_pair}


def _open(
    data: DataConfig, split: str, task: str, names: list[str] | None = None
) -> tuple[tf.data.Dataset, list[str]]:
    """A split and the names of its labels."""
    given = getattr(data, split, None)
    if given is None:
        raise ValueError(f"The recipe names no {split} file.")
    files: list[str | Path] = list(given) if isinstance(given, list) else [given]
    if data.tfds is None:
        files = [expand(str(file)) for file in files]
    limit = data.limit if split == "train" else None
    target = _kind(task).target(names if data.labels is None else data.labels)
    formats = {"tfds"} if data.tfds else {data.format or format_of(file) for file in files}
    plain = formats == {"tsv"} and not _has_lists(columns(data))
    if plain and isinstance(target, targets.Name) and data.on_error == "raise":
        return _classified(data, files, limit, names)
    rows = read_rows(
        files,
        columns(data),
        format=data.format,
        target=target,
        limit=limit,
        skip=data.on_error == "skip",
        iob2=data.tag_scheme == "iob2",
        tfds=data.tfds,
        data_dir=None if data.data_dir is None else str(expand(data.data_dir)),
    )
    return rows.dataset(), target.names


def _has_lists(named: Mapping[str, Column] | None) -> bool:
    return any(isinstance(column, list) for column in (named or {}).values())


def _classified(
    data: DataConfig, files: list[str | Path], limit: int | None, names: list[str] | None
) -> tuple[tf.data.Dataset, list[str]]:
    # The largest sets are of this kind, and stream without Python for each row.
    table = data.labels if isinstance(data.labels, dict) else None
    known = names if data.labels is None else list(data.labels)
    named: Any = columns(data)
    parts, left = [], limit
    for file in files:
        parts.append(
            read_tsv(file, named, limit=left, known=None if known is None else {"label": known})
        )
        left = None if left is None else left - int(parts[-1].cardinality())
        if left == 0:
            break
    rows = reduce(tf.data.Dataset.concatenate, parts)

    def split_label(row: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        label = row.pop("label")
        if table is not None:
            label = tf.gather(
                tf.constant(list(table.values())), index_of(label, list(table), "label")
            )
        return row, label

    rows = rows.map(split_label, num_parallel_calls=tf.data.AUTOTUNE)
    if table is not None:
        return rows, list(dict.fromkeys(table.values()))
    if known is not None:
        return rows, known
    found = rows.map(lambda _, label: label).unique()
    with as_value_errors():
        return rows, sorted(label.decode("utf-8") for label in found.as_numpy_iterator())


def _kind(task: str) -> _Kind:
    if task not in _TASKS:
        raise ValueError(unknown("task", task, _TASKS))
    return _TASKS[task]


def _build(recipe: Recipe, kind: _Kind, rows: tf.data.Dataset, names: list[str]) -> Any:
    cls = getattr(tasks, recipe.task)
    features = rows.element_spec[0]
    cls.fields.check(features)
    options: dict[str, Any] = {"max_length": recipe.model.max_length}
    if cls.fields.optional:
        options["pair"] = any(name in features for name in cls.fields.optional)
    if _CHOICES in features:
        options["num_choices"] = features[_CHOICES].shape[0]
    if kind.names is not None:
        options[kind.names] = names
    options |= recipe.options
    return cls.from_pretrained(recipe.model.path, **options, **recipe.model.overrides)


def _fit(task: tasks.Task, recipe: Recipe, directory: RunDirectory, rows: tf.data.Dataset) -> None:
    settings = recipe.train
    backup = directory.backup(settings.backup_steps)
    count = int(rows.cardinality())
    steps = -(-count // settings.batch_size)
    factors = _choose_weights(task, recipe)
    task.compile(optimizers.of(settings, steps * settings.epochs, factors), **_metrics(recipe))
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
        name = _kind(recipe.task).names
        names = None if name is None else getattr(task, name)
        validation = read_split(recipe.data, "dev", recipe.task, names)
        validation = validation.batch(settings.batch_size)
    # The state comes last: an epoch is done when all the others have kept what they need of it.
    callbacks = [
        keras.callbacks.TensorBoard(directory.path / "tensorboard"),
        directory.history(),
        backup,
    ]
    best = None
    if settings.patience is not None:
        if validation is None:
            raise ValueError("train.patience needs a dev split to compare epochs by.")
        best = BestEpoch(backup.directory / "best", f"val_{settings.monitor}", settings.patience)
        callbacks.insert(-1, best)
    epoch, within = divmod(done, steps)
    if within:
        # Metrics are made at their first batch, and the state has their values.
        task.evaluate(rows.take(1).batch(1), verbose=0)
    for first, last, length in (
        (epoch, epoch + 1, steps - within),
        (epoch + 1, settings.epochs, steps),
    ):
        if first < last <= settings.epochs and not (best and best.exhausted):
            task.fit(
                reduce(tf.data.Dataset.concatenate, map(shuffled, range(first, last))).skip(
                    steps - length
                ),
                initial_epoch=first,
                epochs=last,
                steps_per_epoch=length,
                validation_data=validation,
                callbacks=callbacks,
                class_weight=settings.class_weights,
            )
    if best is not None:
        best.restore(task)


def _metrics(recipe: Recipe) -> dict[str, Any]:
    return {} if recipe.train.metrics is None else {"metrics": recipe.train.metrics}


def _choose_weights(task: tasks.Task, recipe: Recipe) -> dict[str, float] | None:
    """Settles which weights learn; what their rates are multiplied with, None for one rate."""
    frozen, backbone = recipe.model.frozen, task.backbone
    if frozen is not None:
        tuning.freeze(backbone, None if isinstance(frozen, str) else frozen)
    if recipe.model.lora_rank is not None:
        tuning.add_lora(backbone, recipe.model.lora_rank)
    decay = recipe.train.layer_decay
    return None if decay == 1 else tuning.layer_factors(backbone, decay)

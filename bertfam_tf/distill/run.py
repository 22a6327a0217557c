"""Distils with a recipe."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import optimizers, tasks
from bertfam_tf.config import DistillRecipe, DistillStage, expand
from bertfam_tf.data import shuffled_batches
from bertfam_tf.data.documents import find_files
from bertfam_tf.data.inputs import TEXT
from bertfam_tf.distill.augmentation import Augmentation, augment
from bertfam_tf.distill.distiller import Distiller
from bertfam_tf.distill.students import student_of, warm_start
from bertfam_tf.distill.terms import TERMS, Term
from bertfam_tf.distill.word_vectors import load_word_vectors
from bertfam_tf.names import unknown
from bertfam_tf.tasks import Task, storage
from bertfam_tf.train import evaluate, read_split
from bertfam_tf.train.backup import Backup, remaining
from bertfam_tf.train.directory import MODEL, RunDirectory, run_directory
from bertfam_tf.train.history import History

# In examples; a larger corpus is shuffled within a buffer of this size.
_SHUFFLE_BUFFER = 1 << 20
_log = logging.getLogger(__name__)


def distill(recipe: DistillRecipe) -> dict[str, float]:
    """Trains a student in stages, evaluates it beside its teacher on the dev split, and saves it.

    The output directory gets ``recipe.yaml``, ``model`` (for ``bertfam_tf.load``), ``metrics.json``
    and a ``history`` of each stage. A run that was killed resumes when it is started again with the
    same recipe: augmentation and cache after their last complete files, training after its last
    training checkpoint.

    Returns:
        The dev split's metrics of the student; those of the teacher as ``teacher_…``, the mean of
        several; and ``parameters`` and ``teacher_parameters``. Without a dev split, or for a task
        that recipes cannot evaluate, the latter alone.

    Raises:
        ValueError: for an invalid recipe or file, a teacher and a student that do not match, an
            output directory that has another recipe's run, and a damaged training checkpoint.
        OSError: if writing fails, or another process is writing the directory; the next run
            resumes.
    """
    with run_directory(recipe) as directory:
        done = directory.metrics()
        return _run(recipe, directory) if done is None else done


def _run(recipe: DistillRecipe, directory: RunDirectory) -> dict[str, float]:
    stages = [(terms_of(stage.terms), stage) for stage in recipe.stages]
    cls = tasks.task_class(recipe.task)
    keras.utils.set_random_seed(recipe.stages[0].train.seed)
    paths = [recipe.teacher] if isinstance(recipe.teacher, str) else list(recipe.teacher)
    teachers = [_task(cls, path, recipe.max_length) for path in paths]
    student = _student(recipe, cls, teachers[0])
    # A mismatch is an error before anything is written.
    distillers = [Distiller(student, teachers, terms, stage.labels) for terms, stage in stages]
    for distiller, (_, stage) in zip(distillers, stages, strict=True):
        if stage.teacher_outputs == "cached":
            distiller.check_cache()
    rows = _rows(recipe, cls, student, "train")
    directory.begin()
    augmented = rows
    if any(stage.texts == "augmented" for _, stage in stages):
        augmented = _augmented(recipe, rows, directory.path / "augmented")
    for number, (distiller, (_, stage)) in enumerate(zip(distillers, stages, strict=True), 1):
        given = augmented if stage.texts == "augmented" else rows
        _train(distiller, stage, number, given, recipe, directory)
    student.save(directory.path / MODEL)
    metrics = _metrics(recipe, cls, student, teachers)
    directory.finish(metrics)
    for number in range(1, len(stages) + 1):
        shutil.rmtree(directory.path / f"cache_{number}", ignore_errors=True)
    return metrics


def terms_of(given: dict[str, dict[str, Any]]) -> list[Term]:
    """Terms from their options by name, as a recipe has them.

    Raises:
        ValueError: for an unknown term or option, or a wrong value.
    """
    found = []
    for name, options in given.items():
        if name not in TERMS:
            raise ValueError(unknown("term", name, TERMS))
        known = [field.name for field in dataclasses.fields(TERMS[name])]
        for key, value in (options or {}).items():
            if key not in known:
                raise ValueError(unknown(f"option of {name}", key, known))
            if key in ("weight", "temperature") and not isinstance(value, int | float):
                raise ValueError(f"{key} of {name} must be a number, got {value!r}.")
        found.append(TERMS[name](**(options or {})))
    return found


def _task(cls: type[Task], path: str, max_length: int | None) -> Any:
    """A saved task, or a checkpoint as that task."""
    expanded = expand(path)
    if not storage.is_saved(expanded):
        return cls.from_pretrained(
            path if not expanded.exists() else expanded, max_length=max_length
        )
    found = tasks.load(expanded)
    if type(found) is not cls:
        raise ValueError(f"{path} is a {type(found).__name__}, expected a {cls.__name__}.")
    return found


def _student(recipe: DistillRecipe, cls: type[Task], teacher: Task) -> Any:
    settings = recipe.student
    options = teacher.options.stored()
    if recipe.max_length is not None:
        options["max_length"] = recipe.max_length
    if settings.path is not None:
        expanded = expand(settings.path)
        path = settings.path if not expanded.exists() else expanded
        if storage.is_saved(expanded):
            # Of another task, such as a masked language model of a general distillation.
            before = tasks.load(expanded)
            student = cls(before.backbone, before.tokenizer, **options)
        else:
            student = cls.from_pretrained(path, **options, **settings.overrides)
    else:
        made = student_of(
            teacher.backbone,
            settings.num_layers,
            family=settings.family,
            size=settings.size,
            layers=None,
            **settings.overrides,
        )
        student = cls(made, teacher.tokenizer, **options)
        if settings.layers != "none":
            warm_start(student, teacher, settings.layers)
    if settings.word_vectors is not None:
        share = load_word_vectors(
            student.backbone, student.tokenizer, expand(settings.word_vectors)
        )
        _log.info("%.1f %% of the vocabulary have word vectors.", 100 * share)
    return student


def _rows(recipe: DistillRecipe, cls: type[Task], student: Task, split: str) -> tf.data.Dataset:
    """A split as ``(features, label)``; of tasks without labels the lines of text files."""
    if cls.labels_type is not None:
        return read_split(recipe.data, split, recipe.task, student.class_names or None)
    given = getattr(recipe.data, split)
    files = [
        str(file) for file in find_files(map(expand, [given] if isinstance(given, str) else given))
    ]
    lines = tf.data.TextLineDataset(files).filter(lambda line: tf.strings.length(line) > 0)
    if recipe.data.limit is not None:
        lines = lines.take(recipe.data.limit)
    number = int(lines.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))
    if not number:
        raise ValueError(f"There is no text in {', '.join(files)}.")
    lines = lines.map(lambda line: ({TEXT: line},))
    return lines.apply(tf.data.experimental.assert_cardinality(number))


def _augmented(recipe: DistillRecipe, rows: tf.data.Dataset, folder: Path) -> tf.data.Dataset:
    settings = recipe.augmentation
    assert settings is not None
    masked_lm = _task(tasks.MaskedLM, settings.masked_lm, recipe.max_length)
    vectors = settings.word_vectors
    made = Augmentation(
        masked_lm,
        candidates=settings.candidates,
        probability=settings.probability,
        copies=settings.copies,
        word_vectors=None if vectors is None else expand(vectors),
        seed=settings.seed,
    )
    return augment(rows, made, folder)


def _train(
    distiller: Distiller,
    stage: DistillStage,
    number: int,
    rows: tf.data.Dataset,
    recipe: DistillRecipe,
    directory: RunDirectory,
) -> None:
    settings = stage.train
    folder = directory.backup().directory / f"stage_{number}"
    backup = Backup(folder, settings.backup_steps, recipe=recipe.to_yaml())
    steps, batches = _batches(distiller, stage, rows, directory.path / f"cache_{number}")
    distiller.compile(optimizers.of(settings, steps * settings.epochs))
    done = backup.restore(distiller)
    if done:
        _log.info("Stage %d: resuming from step %d of %d.", number, done, steps * settings.epochs)
    callbacks = [History(directory.path / f"history_{number}.csv"), backup]
    for first, last, length in remaining(done, steps, settings.epochs):
        distiller.fit(
            reduce(tf.data.Dataset.concatenate, map(batches, range(first, last))).skip(
                steps - length
            ),
            initial_epoch=first,
            epochs=last,
            steps_per_epoch=length,
            callbacks=callbacks,
        )


def _batches(
    distiller: Distiller, stage: DistillStage, rows: tf.data.Dataset, folder: Path
) -> tuple[int, Callable[[int], tf.data.Dataset]]:
    """How many batches an epoch has, and a function from its number to them."""
    settings = stage.train
    size = settings.batch_size
    assert size is not None

    def seed(epoch: int) -> int:
        return settings.seed * settings.epochs + epoch

    if stage.teacher_outputs == "cached":
        cache = distiller.cached(rows, None, None, folder)
        return -(-cache.count // size), lambda epoch: cache.dataset(size, seed=seed(epoch))
    count = int(rows.cardinality())
    buffer = min(count, _SHUFFLE_BUFFER)
    return -(-count // size), lambda epoch: distiller.batches(
        shuffled_batches(rows, size, buffer=buffer, seed=seed(epoch)),
        training=True,
        seed=seed(epoch),
    )


def _metrics(
    recipe: DistillRecipe, cls: type[Task], student: Task, teachers: list[Task]
) -> dict[str, float]:
    found: dict[str, float] = {}
    if recipe.data.dev is not None and cls.labels_type is not None:
        found = evaluate(student, recipe, "dev")
        each = [evaluate(teacher, recipe, "dev") for teacher in teachers]
        found |= {f"teacher_{n}": sum(x[n] for x in each) / len(each) for n in each[0]}
    found["parameters"] = student.count_params()
    found["teacher_parameters"] = sum(teacher.count_params() for teacher in teachers)
    return found

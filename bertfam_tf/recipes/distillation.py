"""Runs a recipe of distillation."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import parsing, tasks
from bertfam_tf.corpora import shards
from bertfam_tf.corpora.documents import find_files
from bertfam_tf.data.inputs import TEXT
from bertfam_tf.distill.augmentation import Augmentation
from bertfam_tf.distill.augmentation_folder import augment
from bertfam_tf.distill.distiller import Distiller
from bertfam_tf.distill.students import student_of, warm_start
from bertfam_tf.distill.term import Term
from bertfam_tf.distill.terms import TERMS
from bertfam_tf.distill.word_vectors import load_word_vectors
from bertfam_tf.names import join_names, unknown
from bertfam_tf.recipes.directory import MODEL, Flops, RunDirectory, model_source, run_once
from bertfam_tf.recipes.fine_tuning import check_languages, evaluate
from bertfam_tf.recipes.reading import expand
from bertfam_tf.recipes.schema import DistillRecipe, DistillStage
from bertfam_tf.recipes.splits import Split, open_split
from bertfam_tf.tasks import Task, storage
from bertfam_tf.training import engine
from bertfam_tf.training.settings import DEFAULT_BATCH_SIZE
from bertfam_tf.user_warnings import new_heads_logged

_log = logging.getLogger(__name__)


def distill(recipe: DistillRecipe, *, flops: Flops | None = None) -> dict[str, float]:
    """Trains a student in stages, evaluates student and teacher on the dev split, and saves it.

    The output directory gets ``recipe.yaml``, ``model`` (for ``bertfam_tf.load``), ``metrics.json``
    and the logs ``metrics.jsonl``, ``history.csv``, ``tensorboard`` and ``curves.png``, whose steps
    and epochs are counted over all stages. A killed run resumes when it is started again with the
    same recipe: augmentation and cache after their last complete files, training after its last
    training checkpoint.

    Args:
        recipe: the recipe.
        flops: the same as for ``RunDirectory``.

    Returns:
        The student's metrics on the dev split; the teacher's as ``teacher_…``, the mean of several;
        and ``parameters`` and ``teacher_parameters``. Only the last two without a dev split, or for
        a task without a loss (an embedder).

    Raises:
        ValueError: if the recipe or a file is invalid, teacher and student do not match, the output
            directory has another recipe's run, or a training checkpoint is damaged.
        OSError: if writing fails, or another process is writing to the directory; the next run
            resumes.
    """
    return run_once(recipe, _run, flops)


def _run(recipe: DistillRecipe, directory: RunDirectory) -> dict[str, float]:
    stages = [(terms_of(stage.terms), stage) for stage in recipe.stages]
    cls = tasks.task_class(recipe.task)
    keras.utils.set_random_seed(recipe.stages[0].train.seed)
    paths = [recipe.teacher] if isinstance(recipe.teacher, str) else list(recipe.teacher)
    teachers = [_load_task(cls, path, recipe.max_length) for path in paths]
    student = _student(recipe, cls, teachers[0])
    # A mismatch is an error before anything is written.
    distillers = [Distiller(student, teachers, terms, stage.labels) for terms, stage in stages]
    for distiller, (_, stage) in zip(distillers, stages, strict=True):
        if stage.teacher_outputs == "cached":
            distiller.check_cache()
    split = _open(recipe, cls, student, "train")
    rows = split.rows
    if cls.labels_type is not None:
        check_languages(student, recipe.data)
    directory.begin()
    split.announce()
    augmented = rows
    if any(stage.texts == "augmented" for _, stage in stages):
        augmented = _augmented(recipe, rows, directory.path / "augmented")
    steps = epochs = 0
    for number, (distiller, (_, stage)) in enumerate(zip(distillers, stages, strict=True), 1):
        texts = augmented if stage.texts == "augmented" else rows
        dev = None
        if stage.train.patience is not None and recipe.data.dev is not None:
            dev = _open(recipe, cls, student, "dev").rows
        phase = _phase(distiller, stage, texts, dev, directory.path / f"cache_{number}")
        phase = phase._replace(steps_before=steps, epochs_before=epochs)
        engine.train(phase, directory, stage.train, student.tokenizer, stage=number)
        steps, epochs = steps + phase.total, epochs + phase.epochs
    if directory.writes:
        student.save(directory.path / MODEL)
    metrics = _metrics(recipe, cls, student, teachers)
    directory.finish(metrics)
    for number in range(1, len(stages) + 1):
        shards.remove(directory.path / f"cache_{number}")
    return metrics


def terms_of(settings: dict[str, dict[str, Any]]) -> list[Term]:
    """Builds the terms of a recipe's stage.

    Args:
        settings: the options of each term by the term's name.

    Raises:
        ValueError: if a term or option is unknown, or a value is invalid.
    """
    terms = []
    for name, options in settings.items():
        if name not in TERMS:
            raise ValueError(unknown("term", name, TERMS))
        known = [field.name for field in dataclasses.fields(TERMS[name])]
        for key, value in (options or {}).items():
            if key not in known:
                raise ValueError(unknown(f"option of {name}", key, known))
            if key in ("weight", "temperature") and not isinstance(value, int | float):
                raise ValueError(f"{key} of {name} must be a number, got {value!r}.")
        terms.append(TERMS[name](**(options or {})))
    return terms


def _load_task(cls: type[Task], path: str, max_length: int | None) -> Any:
    """Loads a saved task, or a checkpoint as that task."""
    directory = model_source(path)
    if not storage.is_saved(directory):
        return cls.from_pretrained(directory, max_length=max_length)
    task = tasks.load(directory)
    if type(task) is not cls:
        raise ValueError(f"{path} is a {type(task).__name__}, expected a {cls.__name__}.")
    return task


def _student(recipe: DistillRecipe, cls: type[Task], teacher: Task) -> Any:
    settings = recipe.student
    options = teacher.options.stored()
    if recipe.max_length is not None:
        options["max_length"] = recipe.max_length
    if settings.path is not None:
        path, language = model_source(settings.path), options.pop("language_id", None)
        # A loaded task would keep the layers frozen that its own run had frozen.
        with new_heads_logged(_log):
            student = cls.from_pretrained(path, language=language, **options, **settings.overrides)
    else:
        backbone = student_of(
            teacher.backbone,
            settings.num_layers,
            family=settings.family,
            size=settings.size,
            layers=None,
            **settings.overrides,
        )
        student = cls(backbone, teacher.tokenizer, **options)
        if settings.layers != "none":
            warm_start(student, teacher, settings.layers)
    if settings.word_vectors is not None:
        fraction = load_word_vectors(
            student.backbone, student.tokenizer, expand(settings.word_vectors)
        )
        _log.info("%.1f %% of the vocabulary have word vectors.", 100 * fraction)
    return student


def _open(recipe: DistillRecipe, cls: type[Task], student: Task, split: str) -> Split:
    """Returns a split as ``(features, label)``, or the lines of text files without labels."""
    if cls.labels_type is not None:
        names = student.class_names or None
        return open_split(recipe.data, split, recipe.task, names, recipe.train.seed)
    patterns = getattr(recipe.data, split)
    files = [
        str(file)
        for file in find_files(map(expand, [patterns] if isinstance(patterns, str) else patterns))
    ]
    compressed = [parsing.is_compressed(Path(file)) for file in files]
    lines = tf.data.Dataset.from_tensor_slices((files, compressed)).flat_map(_text_lines)
    lines = lines.filter(lambda line: tf.strings.length(line) > 0)
    if recipe.data.limit is not None:
        lines = lines.take(recipe.data.limit)
    number = int(lines.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))
    if not number:
        raise ValueError(f"There is no text in {', '.join(files)}.")
    lines = lines.map(lambda line: ({TEXT: line},))
    lines = lines.apply(tf.data.experimental.assert_cardinality(number))
    return Split(lines, [], f"{join_names(files, 3)}: {number:,} examples.")


def _text_lines(file: tf.Tensor, compressed: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TextLineDataset(file, tf.where(compressed, "GZIP", ""))


def _augmented(recipe: DistillRecipe, rows: tf.data.Dataset, folder: Path) -> tf.data.Dataset:
    settings = recipe.augmentation
    assert settings is not None
    masked_lm = _load_task(tasks.MaskedLM, settings.masked_lm, recipe.max_length)
    vectors = settings.word_vectors
    augmentation = Augmentation(
        masked_lm,
        candidates=settings.candidates,
        probability=settings.probability,
        copies=settings.copies,
        word_vectors=None if vectors is None else expand(vectors),
        pair_with_original=settings.pair_with_original,
        seed=settings.seed,
    )
    return augment(rows, augmentation, folder)


def _phase(
    distiller: Distiller,
    stage: DistillStage,
    rows: tf.data.Dataset,
    validation: tf.data.Dataset | None,
    cache: Path,
) -> engine.Phase:
    """Compiles the distiller for a stage, and returns the stage as a phase."""
    settings = stage.train
    if validation is not None:
        # Encoded once: the same examples are evaluated after each epoch.
        examples = validation.batch(settings.batch_size or DEFAULT_BATCH_SIZE)
        validation = distiller.text_batches(examples).cache()
    phase = _passes(distiller, stage, rows, cache).phase(distiller, settings, validation)
    engine.compile_model(distiller, settings, phase.total, backbone=distiller.student.backbone)
    return phase


def _passes(
    distiller: Distiller, stage: DistillStage, rows: tf.data.Dataset, folder: Path
) -> engine.Passes:
    """Returns batches of token ids, with the teacher's inputs or outputs."""
    settings = stage.train
    if stage.teacher_outputs == "cached":
        size = settings.batch_size
        assert size is not None
        cache = distiller.cached(rows, None, None, folder)
        return engine.Passes(
            -(-cache.count // size),
            lambda number: cache.dataset(size, seed=engine.order_seed(settings, number)),
        )
    passes = engine.text_passes(rows, settings, distiller.student.count_tokens)
    return engine.Passes(
        passes.steps,
        lambda number: distiller.text_batches(
            passes.batches(number), training=True, seed=engine.order_seed(settings, number)
        ),
    )


def _metrics(
    recipe: DistillRecipe, cls: type[Task], student: Task, teachers: list[Task]
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    labelled = cls.labels_type is not None
    scored = recipe.data.dev is not None or (labelled and recipe.data.dev_languages)
    if scored and student.objectives:
        rows = None if labelled else _open(recipe, cls, student, "dev").rows

        def scores(task: Task) -> dict[str, float]:
            if rows is None:
                return evaluate(task, recipe, "dev")
            batches = rows.batch(recipe.train.batch_size or DEFAULT_BATCH_SIZE)
            if not task.compiled:
                task.compile()
            return task.evaluate(batches, return_dict=True, verbose=0)

        metrics = scores(student)
        teacher_scores = [scores(teacher) for teacher in teachers]
        metrics |= {
            f"teacher_{name}": sum(one[name] for one in teacher_scores) / len(teachers)
            for name in teacher_scores[0]
        }
    metrics["parameters"] = student.count_params()
    metrics["teacher_parameters"] = sum(teacher.count_params() for teacher in teachers)
    return metrics

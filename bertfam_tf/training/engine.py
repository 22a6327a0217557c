"""The training loop of all recipes: restores, skips what is done, fits with callbacks, stores.

Fine-tuning, pretraining, distillation and their stages build phases and hand them over, so that
logs, training checkpoints, divergence, early stopping, accumulation and gradient checkpointing work
the same for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from bertfam_tf.data import TokenBatches, as_value_errors, shuffled_batches
from bertfam_tf.data.inputs import as_text
from bertfam_tf.training import optimizers
from bertfam_tf.training.callbacks.backup import Backup, Clock, remaining
from bertfam_tf.training.callbacks.best import BestEpoch
from bertfam_tf.training.callbacks.divergence import StopAtDivergence
from bertfam_tf.training.callbacks.time_limit import TimeLimit
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import TrainConfig

Callbacks = Sequence[keras.callbacks.Callback]
# In examples; a larger corpus is shuffled within a buffer of this size.
_SHUFFLE_BUFFER = 1 << 20
_log = logging.getLogger(__name__)


class Directory(Protocol):
    """Where a run writes: ``bertfam_tf.recipes.directory.RunDirectory``."""

    def backup(self, every: int | None = None, stage: int | None = None) -> Backup:
        """Returns the callback that writes training checkpoints."""

    def logs(self, step: int = 0, stage: int = 0) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that log a training."""


class Passes(NamedTuple):
    """Batches of passes over the training data, each pass in an order of its own.

    Fields:
        steps: the number of batches in a pass.
        batches: a function from the number of a pass, from 0, to its batches.
    """

    steps: int
    batches: Callable[[int], tf.data.Dataset]

    def epochs(self, settings: TrainConfig) -> tuple[int, int]:
        """Returns the number of steps in an epoch, after which is evaluated, and of epochs.

        An epoch is a pass, unless ``train.steps`` sets the number of steps.
        """
        if settings.steps is None:
            return self.steps, settings.epochs
        return max(settings.steps // settings.epochs, 1), settings.epochs

    def between(self, step: int, end: int) -> tf.data.Dataset:
        """Returns the batches from one step to another.

        Batches before them are skipped as ``batches`` returns them, such as raw text that is not
        encoded yet.
        """
        first, within = divmod(step, self.steps)
        passes = range(first, max(-(-end // self.steps), first + 1))
        found = reduce(tf.data.Dataset.concatenate, map(self.batches, passes))
        return found.skip(within).take(end - step)


class Phase(NamedTuple):
    """The part of a training that one optimizer goes through.

    Fields:
        model: the compiled model.
        batches: a function from the number of the phase's steps that are done to the batches of
            the others.
        steps: the number of steps in an epoch.
        epochs: the number of epochs.
        validation_data: batches to evaluate after each epoch; None for none.
        steps_before, epochs_before: the number of steps and epochs of earlier phases, for logs.
    """

    model: Learner
    batches: Callable[[int], tf.data.Dataset]
    steps: int
    epochs: int
    validation_data: Any = None
    steps_before: int = 0
    epochs_before: int = 0

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.steps * self.epochs


def compile_model(
    model: Learner,
    settings: TrainConfig,
    total_steps: int,
    *,
    factors: Mapping[str, float] | None = None,
    schedule: keras.optimizers.schedules.LearningRateSchedule | None = None,
    **options: Any,
) -> None:
    """Compiles a model as the ``train`` section of a recipe says.

    Args:
        model: the model, in the scope of its strategy.
        settings: the section.
        total_steps: the number of steps of the learning rate's schedule.
        factors, schedule: as for ``optimizers.from_settings``.
        **options: of the model's ``compile``, such as ``metrics``.
    """
    model.recompute_blocks = settings.gradient_checkpointing
    model.compile(
        optimizers.from_settings(settings, total_steps, factors, schedule),
        accumulation_steps=settings.accumulation_steps,
        **options,
    )


def fit(
    phase: Phase,
    backup: Backup | None = None,
    callbacks: Callable[[int], Callbacks] = lambda done: (),
    best: BestEpoch | None = None,
    limit: TimeLimit | None = None,
    **options: Any,
) -> dict[str, list[float]]:
    """Trains a phase to its end, from its last training checkpoint.

    Args:
        phase: the phase.
        backup: the callback that writes training checkpoints; None for none.
        callbacks: a function from the number of the phase's steps that are done to the other
            callbacks.
        best: the callback that keeps the best epoch, whose weights the model then has; None to keep
            the last epoch.
        limit: the callback that stops after some time; None for no limit.
        **options: of the model's ``fit``, such as ``class_weight``.

    Returns:
        Keras' history of the last epochs; empty if there was nothing left to train.

    Raises:
        ValueError: for training checkpoints that are damaged or of another run.
    """
    model, steps, before = phase.model, phase.steps, phase.steps_before
    done = backup.restore(model) if backup else 0
    if not 0 <= done <= phase.total:
        assert backup is not None
        raise ValueError(
            f"{backup.directory} must contain the checkpoints of a run with these steps, got one "
            f"of step {done} of {phase.total}; remove it to train from the beginning."
        )
    if done:
        _log.info("Resuming from step %d of %d.", before + done, before + phase.total)
    if done % steps:
        _create_metrics(model, phase.batches(done))
    # The checkpoint comes last: an epoch is done when all other callbacks have seen it.
    called = [*callbacks(done), *(each for each in (limit, best, backup) if each)]
    history: dict[str, list[float]] = {}
    # A run that was stopped is not evaluated again, unless it was killed before that.
    stopped = limit is not None and limit.exceeded and (backup is None or backup.between_epochs)
    for part in [] if stopped else remaining(done, steps, phase.epochs):
        if best is not None and best.exhausted:
            break
        with as_value_errors():
            history = model.fit(
                phase.batches(done),
                initial_epoch=phase.epochs_before + part.first,
                epochs=phase.epochs_before + part.last,
                steps_per_epoch=part.steps,
                validation_data=phase.validation_data,
                callbacks=called,
                # The order is that of the batches; Keras warns that it cannot shuffle them.
                **{"shuffle": False, **options},
            ).history
        done += part.steps * (part.last - part.first)
        if model.stop_training:
            break
    if best is not None:
        best.restore(model)
    return history


def train(
    phase: Phase,
    directory: Directory,
    settings: TrainConfig,
    tokenizer: Any,
    *,
    stage: int | None = None,
    **options: Any,
) -> dict[str, list[float]]:
    """Trains a phase of a recipe's run, with its logs and training checkpoints.

    Args:
        phase: the phase.
        directory: the run directory.
        settings: the ``train`` section of the phase.
        tokenizer: decodes batches of token ids for the error of a loss that is not finite.
        stage: the number of the phase in a run of several, each with training checkpoints of its
            own; None in a run of one.
        **options: of the model's ``fit``.

    Returns:
        Keras' history of the last epochs; empty if there was nothing left to train.

    Raises:
        ValueError: for ``patience`` without validation data, training checkpoints that are damaged
            or of another run, and a loss that is not finite.
    """
    backup = directory.backup(backup_steps(phase.model, settings), stage)
    before = phase.steps_before

    def texts(step: int) -> list[str]:
        return batch_texts(phase.batches(step - before), tokenizer)

    return fit(
        phase,
        backup,
        lambda done: run_callbacks(directory, texts, before + done, stage or 0),
        best_epoch(backup, settings, phase.validation_data),
        time_limit(backup.clock, settings),
        **options,
    )


def backup_steps(model: Learner, settings: TrainConfig) -> int | None:
    """Returns the number of steps between training checkpoints; None for one after each epoch."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy
    if model.step_variables and isinstance(model.distribute_strategy, strategy):
        # The chief, which writes checkpoints, does not have the other workers' state.
        return None
    return settings.backup_steps


def best_epoch(backup: Backup, settings: TrainConfig, validation_data: Any) -> BestEpoch | None:
    """Returns the callback that keeps the best epoch; None without ``train.patience``.

    Raises:
        ValueError: without validation data to compare epochs by.
    """
    if settings.patience is None:
        return None
    if validation_data is None:
        raise ValueError("train.patience needs a dev split to compare epochs by.")
    return BestEpoch(
        backup.directory / "best",
        f"val_{settings.monitor}",
        settings.patience,
        writes=backup.writes,
    )


def time_limit(clock: Clock, settings: TrainConfig) -> TimeLimit | None:
    """Returns the callback that stops after ``train.minutes``; None without."""
    return None if settings.minutes is None else TimeLimit(clock, settings.minutes)


def run_callbacks(
    directory: Directory,
    texts: Callable[[int], list[str]],
    step: int,
    stage: int = 0,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a run directory that precede the one of training checkpoints.

    Args:
        directory: the run directory.
        texts: a function from the number of a step of the run, from 0, to the texts of its batch.
        step: the number of steps of the run that are done.
        stage: the number of the phase.
    """
    return [
        StopAtDivergence(texts, step),
        *directory.logs(step, stage),
    ]


def text_passes(
    rows: tf.data.Dataset,
    settings: TrainConfig,
    count_tokens: Callable[..., Any] | None,
    *,
    by_length: bool = True,
) -> Passes:
    """Returns batches of raw texts.

    Args:
        rows: single examples ``(features, …)`` of known cardinality.
        settings: the ``train`` section: its ``batch_size`` or ``batch_tokens``.
        count_tokens: as for ``TokenBatches``, which ``batch_tokens`` needs.
        by_length: whether the examples of a batch have similar lengths.
    """
    count = int(rows.cardinality())
    buffer = min(count, _SHUFFLE_BUFFER)
    if settings.batch_tokens is not None:
        assert count_tokens is not None
        by_tokens = TokenBatches(settings.batch_tokens, count_tokens).counted(rows)
        assert by_tokens.steps is not None
        return Passes(
            by_tokens.steps,
            lambda number: by_tokens(rows, buffer=buffer, seed=order_seed(settings, number)),
        )
    size = settings.batch_size
    assert size is not None

    def batches(number: int) -> tf.data.Dataset:
        seed = order_seed(settings, number)
        if by_length:
            return shuffled_batches(rows, size, buffer=buffer, seed=seed)
        return rows.shuffle(buffer, seed=seed).batch(size)

    return Passes(-(-count // size), batches)


def order_seed(settings: TrainConfig, number: int) -> int:
    """Returns the seed of the order of a pass.

    It depends on the number of the pass alone, so that a pass is the same in a run that resumes.
    """
    return settings.seed * settings.epochs + number


def batch_texts(batches: tf.data.Dataset, tokenizer: Any) -> list[str]:
    """Returns the texts of the first batch, which is raw or has token ids."""
    ((inputs, *_),) = batches.take(1)
    if "token_ids" not in inputs:
        return as_text(next(iter(inputs.values())))
    ids = inputs["token_ids"]
    ids = tf.reshape(ids, [-1, tf.shape(ids)[-1]])
    mask = tf.reshape(inputs.get("padding_mask", tf.ones_like(ids)), tf.shape(ids))
    return as_text(tokenizer.detokenize(tf.ragged.boolean_mask(ids, tf.cast(mask, "bool"))))


def _create_metrics(model: Learner, batches: tf.data.Dataset) -> None:
    """Creates metrics, which Keras does at their first batch, for the values of a checkpoint."""
    made = model._compile_metrics
    if made is not None and not made.built:
        model.evaluate(batches.take(1), verbose=0)

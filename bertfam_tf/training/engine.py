"""The training loop of all recipes: restores a checkpoint, skips done steps, fits, stores.

Fine-tuning, pretraining, distillation and their stages build phases for it, so logs, training
checkpoints, divergence, early stopping, accumulation and gradient checkpointing work the same for
all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from bertfam_tf.data import TokenBatches, as_value_errors, shuffled_batches
from bertfam_tf.data.inputs import as_text
from bertfam_tf.models import Backbone
from bertfam_tf.names import truncated_repr, unknown
from bertfam_tf.training import optimizers, replicas, tuning
from bertfam_tf.training.callbacks.backup import Backup, Clock, remaining
from bertfam_tf.training.callbacks.best import BestEpoch
from bertfam_tf.training.callbacks.divergence import StopAtDivergence
from bertfam_tf.training.callbacks.time_limit import TimeLimit
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import CALLBACKS, TrainConfig, callback_entries

Callbacks = Sequence[keras.callbacks.Callback]
_SHUFFLE_BUFFER = 1 << 20  # examples
_log = logging.getLogger(__name__)


class Directory(Protocol):
    """The directory that a run writes to: ``bertfam_tf.recipes.directory.RunDirectory``."""

    def backup(self, every: int | None = None, stage: int | None = None) -> Backup:
        """Returns the callback that writes training checkpoints."""

    def logs(self, step: int = 0, stage: int = 0) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that log a training."""


class Passes(NamedTuple):
    """Passes over the training data, each in a different order.

    Fields:
        steps: the number of batches in a pass.
        batches: returns the batches of a pass, numbered from 0.
    """

    steps: int
    batches: Callable[[int], tf.data.Dataset]

    def phase(self, model: Learner, settings: TrainConfig, validation_data: Any = None) -> Phase:
        """Returns the training of a model on these passes.

        An epoch is a pass, unless ``train.steps`` sets the number of steps.
        """
        if settings.steps is None:
            total, epochs = self.steps * settings.epochs, settings.epochs
        else:
            total, epochs = settings.steps, min(settings.epochs, settings.steps)

        def after(step: int) -> tf.data.Dataset:
            first, within = divmod(step, self.steps)
            passes = range(first, max(-(-total // self.steps), first + 1))
            return _joined(list(map(self.batches, passes))).skip(within).take(total - step)

        return Phase(model, after, total, epochs, validation_data)


class Phase(NamedTuple):
    """A phase of a training, with one model and optimizer.

    Fields:
        model: the compiled model.
        batches: returns the remaining batches, for a number of steps of the phase that are done.
        total: the number of steps.
        epochs: the number of epochs, at most ``total``.
        validation_data: batches to evaluate after each epoch, or None.
        steps_before, epochs_before: the number of steps and epochs of earlier phases, for logs.
    """

    model: Learner
    batches: Callable[[int], tf.data.Dataset]
    total: int
    epochs: int
    validation_data: Any = None
    steps_before: int = 0
    epochs_before: int = 0


@contextmanager
def scope(*phases: TrainConfig) -> Iterator[None]:
    """Enters the strategy and the precision in which a run's models are built and compiled.

    It first imports the callbacks' classes, so that a mistake in their paths ends the run before
    anything is loaded or written.

    Args:
        *phases: the ``train`` sections of the run, with the same strategy and precision.

    Raises:
        ValueError: if a callback cannot be imported.
    """
    for phase in phases:
        check_importable(phase.callbacks)
    before, precision = keras.config.dtype_policy(), phases[0].precision
    with replicas.strategy(phases[0].strategy).scope():
        try:
            if precision is not None:
                keras.config.set_dtype_policy(precision)
            yield
        finally:
            keras.config.set_dtype_policy(before)


def compile_model(
    model: Learner,
    settings: TrainConfig,
    total_steps: int,
    *,
    backbone: Backbone | None = None,
    schedule: keras.optimizers.schedules.LearningRateSchedule | None = None,
    **options: Any,
) -> None:
    """Compiles a model with the ``train`` section of a recipe.

    Args:
        model: the model, in the scope of its strategy.
        settings: the section.
        total_steps: the number of steps of the learning rate's schedule.
        backbone: the backbone whose layers get their own learning rates by ``train.layer_decay``;
            None for one rate.
        schedule: the same as for ``optimizers.from_settings``.
        **options: further arguments of the model's ``compile``, such as ``metrics``.
    """
    factors = None
    if backbone is not None and settings.layer_decay != 1:
        factors = tuning.layer_factors(backbone, settings.layer_decay)
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
        backup: the callback that writes training checkpoints, or None.
        callbacks: returns the other callbacks, for a number of steps of the phase that are done.
        best: the callback that keeps the best epoch, whose weights the model gets; None to keep the
            last epoch.
        limit: the callback that stops after some time; None for no limit.
        **options: further arguments of the model's ``fit``, such as ``class_weight``.

    Returns:
        Keras' history of the last epochs; empty if there was nothing left to train.

    Raises:
        ValueError: if training checkpoints are damaged or of another run.
    """
    model, before = phase.model, phase.steps_before
    done = backup.restore(model) if backup else 0
    if not 0 <= done <= phase.total:
        assert backup is not None
        raise ValueError(
            f"{backup.directory} has a checkpoint of step {done}, but this run has {phase.total} "
            "steps; remove it to train from the beginning."
        )
    if done:
        _log.info("Resuming from step %d of %d.", before + done, before + phase.total)
    fit_ranges = remaining(done, phase.total, phase.epochs)
    steps_per_epoch = phase.total // phase.epochs
    if fit_ranges and done > fit_ranges[0].first * steps_per_epoch:  # within an epoch
        _create_metrics(model, phase.batches(done))
    # The backup comes last: it stores an epoch after all other callbacks have seen it.
    ordered = [*callbacks(done), *(callback for callback in (limit, best, backup) if callback)]
    history: dict[str, list[float]] = {}
    # A run that reached its limit has been evaluated, unless it was killed before.
    stopped = limit is not None and limit.exceeded and (backup is None or backup.between_epochs)
    if best is not None:
        best.set_model(model)
    for epochs in [] if stopped else fit_ranges:
        if best is not None and best.exhausted:
            break
        with as_value_errors():
            history = model.fit(
                phase.batches(done),
                initial_epoch=phase.epochs_before + epochs.first,
                epochs=phase.epochs_before + epochs.last,
                steps_per_epoch=epochs.steps,
                validation_data=phase.validation_data,
                callbacks=ordered,
                # Batches are already shuffled; Keras would warn that it cannot shuffle a dataset.
                **{"shuffle": False, **options},
            ).history
        done += epochs.steps * (epochs.last - epochs.first)
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
        tokenizer: decodes token ids for the error message of a loss that is not finite.
        stage: the number of the phase in a run of several, which have separate training
            checkpoints; None in a run of one.
        **options: further arguments of the model's ``fit``.

    Returns:
        Keras' history of the last epochs; empty if there was nothing left to train.

    Raises:
        ValueError: if there is ``patience`` without validation data, training checkpoints are
            damaged or of another run, or the loss is not finite.
    """
    backup = directory.backup(backup_steps(phase.model, settings), stage)
    before = phase.steps_before

    def texts(step: int) -> list[str]:
        return batch_texts(phase.batches(step - before), tokenizer)

    return fit(
        phase,
        backup,
        lambda done: run_callbacks(directory, settings, texts, before + done, stage or 0),
        best_epoch(backup, settings, phase.validation_data),
        time_limit(backup.clock, settings),
        **options,
    )


def backup_steps(model: Learner, settings: TrainConfig) -> int | None:
    """Returns the number of steps between training checkpoints; None to write one per epoch."""
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
    """Returns the callback that stops after ``train.minutes``; None without a limit."""
    return None if settings.minutes is None else TimeLimit(clock, settings.minutes)


def run_callbacks(
    directory: Directory,
    settings: TrainConfig,
    texts: Callable[[int], list[str]],
    step: int,
    stage: int = 0,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a run directory that precede the backup.

    Args:
        directory: the run directory.
        settings: the ``train`` section of the phase.
        texts: returns the texts of the batch of a step of the run, numbered from 0.
        step: the number of steps of the run that are done.
        stage: the number of the phase.
    """
    own = create_callbacks(settings.callbacks)
    return [StopAtDivergence(texts, step), *own, *directory.logs(step, stage)]


def create_callbacks(callbacks: Sequence[Any]) -> list[keras.callbacks.Callback]:
    """Imports and creates the callbacks of a recipe.

    This executes code of the named modules. It is only called by runs of a recipe that its user
    passes, and never for the ``recipe.yaml`` of a run directory that other commands read.

    Args:
        callbacks: the same as for ``callback_entries``.

    Raises:
        ValueError: if a class cannot be imported, is not a Keras callback, or does not accept its
            arguments.
    """
    created = []
    for path, arguments in callback_entries(callbacks):
        cls = _callback_class(path)
        try:
            created.append(cls(**arguments))
        except Exception as error:  # of code that is not this package's
            raise ValueError(
                f"{path} in {CALLBACKS} cannot be created with {truncated_repr(arguments)}: {error}"
            ) from error
    return created


def check_importable(callbacks: Sequence[Any]) -> None:
    """Imports the classes of a recipe's callbacks, so that mistakes end a run before it starts.

    Raises:
        ValueError: as for ``create_callbacks``, except for arguments.
    """
    for path, _ in callback_entries(callbacks):
        _callback_class(path)


def _callback_class(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # of code that is not this package's
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; install it, or set PYTHONPATH to the directory of your own modules"
        raise ValueError(f"{path} in {CALLBACKS} cannot be imported: {error}{hint}.") from error
    cls = getattr(module, name, None)
    if cls is None:
        public = [name for name in dir(module) if not name.startswith("_")]
        raise ValueError(f"{CALLBACKS}: {unknown(f'name in {module_name}', name, public)}")
    if not (isinstance(cls, type) and issubclass(cls, keras.callbacks.Callback)):
        raise ValueError(f"{path} in {CALLBACKS} must be a class of Keras callbacks, got {cls!r}.")
    return cls


def text_passes(
    rows: tf.data.Dataset,
    settings: TrainConfig,
    count_tokens: Callable[..., Any] | None,
    *,
    by_length: bool = True,
) -> Passes:
    """Returns passes over raw texts, each in another order.

    Args:
        rows: single examples ``(features, …)`` of known cardinality.
        settings: the ``train`` section, with ``batch_size`` or ``batch_tokens``.
        count_tokens: the same as for ``TokenBatches``; required by ``batch_tokens``.
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


def _joined(parts: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    """Returns data sets one after the other.

    A tree, because in a chain a batch of the first of a thousand passes comes through them all.
    """
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _joined(parts[:middle]).concatenate(_joined(parts[middle:]))


def order_seed(settings: TrainConfig, number: int) -> int:
    """Returns the seed of the order of a pass, which is the same in a resumed run."""
    return settings.seed * settings.epochs + number


def batch_texts(batches: tf.data.Dataset, tokenizer: Any) -> list[str]:
    """Returns the texts of the first batch, of raw text or token ids."""
    ((inputs, *_),) = batches.take(1)
    if "token_ids" not in inputs:
        return as_text(next(iter(inputs.values())))
    ids = inputs["token_ids"]
    ids = tf.reshape(ids, [-1, tf.shape(ids)[-1]])
    mask = tf.reshape(inputs.get("padding_mask", tf.ones_like(ids)), tf.shape(ids))
    return as_text(tokenizer.detokenize(tf.ragged.boolean_mask(ids, tf.cast(mask, "bool"))))


def _create_metrics(model: Learner, batches: tf.data.Dataset) -> None:
    """Creates the metrics that Keras creates at the first batch, so they can be restored."""
    metrics = model._compile_metrics
    if metrics is not None and not metrics.built:
        model.evaluate(batches.take(1), verbose=0)

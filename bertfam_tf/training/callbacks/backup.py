"""Training checkpoints, from which interrupted runs resume."""

import logging
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import safetensors
from safetensors.numpy import load_file

from bertfam_tf import parsing
from bertfam_tf.checkpoints.safetensors import write
from bertfam_tf.files import atomic, remove_files
from bertfam_tf.names import truncated_repr
from bertfam_tf.training.replicas import all_gather

STATE, PREVIOUS = "state.safetensors", "previous.safetensors"
# Of the best epoch, in a folder of this name.
BEST, WEIGHTS, VALUES = "best", "weights.safetensors", "values.json"
_NAMES = (STATE, PREVIOUS, f"{BEST}/{WEIGHTS}", f"{BEST}/{VALUES}")
# Stages of pretraining and of distillation have folders of their own.
_FILES = (*_NAMES, *(f"stage_*/{name}" for name in _NAMES))
_METRIC, _BATCHES, _SECONDS, _RECIPE = "metric/", "batches", "seconds", "recipe"
_log = logging.getLogger(__name__)


@dataclass
class Clock:
    """How long a run has trained, for ``TimeLimit``; a ``Backup`` stores and restores it."""

    seconds: float = 0.0


class Part(NamedTuple):
    """Epochs of one call of ``fit``.

    Fields:
        first, last: numbers of the first epoch and of the one after the last.
        steps: of each epoch.
    """

    first: int
    last: int
    steps: int


def remaining(done: int, steps: int, epochs: int) -> list[Part]:
    """What is left of a run: the rest of an unfinished epoch, and the epochs after it.

    Args:
        done: number of training steps that are done.
        steps: of a whole epoch.
        epochs: of the run.
    """
    epoch, within = divmod(done, steps)
    unfinished = [Part(epoch, epoch + 1, steps - within)] if within else []
    parts = [*unfinished, Part(epoch + len(unfinished), epochs, steps)]
    return [part for part in parts if part.first < part.last]


class Backup(keras.callbacks.Callback):
    """Writes a training checkpoint every ``every`` steps and after each epoch.

    It contains weights, optimizer state by variable path, random state, the number of batches, and
    the metrics of an unfinished epoch. Keras' ``BackupAndRestore`` repeats an interrupted epoch and
    loses the random state of dropout; with this one, a resumed run ends with the same result as an
    uninterrupted one. Batches are counted here, because loss scaling (``mixed_float16``) leaves out
    steps of the optimizer. Checkpoints are written atomically, and the one before the last is kept,
    which ``restore`` takes if the last one is damaged.

    After the last step of an epoch, no checkpoint is written until the epoch has been evaluated and
    the preceding callbacks have been called: a run that is killed in between repeats the last steps
    and then evaluates.

    SIGTERM, with which schedulers announce that they will stop a process, writes a checkpoint after
    the current step and ends the process with the exit status 143. Several workers ask each other
    after every step, and a signal to one of them ends all of them in this way.

    Args:
        directory: the directory of the last checkpoint.
        every: number of steps between checkpoints; None for only one after each epoch, where a step
            depends on more than variables. SIGTERM then writes none.
        writes: whether this process writes checkpoints, as the first of several workers does.
        recipe: text that checkpoints store, for ``recipe_of``.
        clock: a time that checkpoints store, which callbacks set; None for one of its own.
    """

    def __init__(
        self,
        directory: Path,
        every: int | None,
        *,
        writes: bool = True,
        recipe: str | None = None,
        clock: Clock | None = None,
    ):
        super().__init__()
        self.recipe = recipe
        self.clock = clock or Clock()
        self.directory = directory
        self.every = every
        self.writes = writes
        self.batches = self._begin = 0
        self._metrics: list[np.ndarray] = []
        self._terminated = False
        self._handler: Any = None

    @property
    def exists(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self._files)

    @property
    def between_epochs(self) -> bool:
        """Whether the checkpoint that was restored, if any, is the one of the end of an epoch."""
        return not self._metrics

    @property
    def _files(self) -> list[Path]:
        """Checkpoints, the last one first."""
        files = (self.directory / name for name in (STATE, PREVIOUS))
        return [file for file in files if file.is_file()]

    def restore(self, model: keras.Model) -> int:
        """Loads the last checkpoint into a compiled model and returns its number of batches.

        Metrics are restored when the next epoch begins; metrics that Keras creates at the first
        batch must exist by then.

        Raises:
            ValueError: if all checkpoints are damaged or belong to another model, or workers have
                those of different steps.
        """
        self.batches = self._restored(model)
        steps = all_gather(self.batches, model.distribute_strategy)
        if len(set(steps)) > 1:
            raise ValueError(
                f"{self.directory} must be on a disk that all workers share; they have checkpoints "
                f"of the steps {steps}."
            )
        return self.batches

    def _restored(self, model: keras.Model) -> int:
        """The number of batches of the checkpoint that is loaded; 0 for none."""
        errors = []
        for file in self._files:
            try:
                stored = read_state(file, self.directory)
                _check_counts(stored, file, self.directory)
                assign_state(_variables(model), stored, file, self.directory)
            except ValueError as error:
                errors.append(error)
                continue
            for damage in errors:
                _log.warning("%s Resuming from the one before it.", damage)
            self._metrics = [stored[name] for name in _metric_names(stored)]
            self.clock.seconds = float(stored.get(_SECONDS, 0))
            return int(stored[_BATCHES])
        if errors:
            raise errors[0]
        return 0

    def on_train_begin(self, logs=None):
        self._terminated = False
        # Signals are handled in the main thread alone.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._terminate)

    def on_train_end(self, logs=None):
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def _terminate(self, number, frame):
        self._terminated = True

    def _ask_workers(self) -> None:
        """Sets on all workers whether one of them got a signal."""
        self._terminated = any(all_gather(self._terminated, self.model.distribute_strategy))

    def _end_if_terminated(self) -> None:
        if self._terminated:
            self.on_train_end()
            _log.warning("Ended by SIGTERM after %d steps; the next run resumes.", self.batches)
            raise SystemExit(128 + signal.SIGTERM)

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = self.batches
        for variable, value in zip(self.model.metrics_variables, self._metrics, strict=False):
            variable.assign(value)
        self._metrics = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches = self._begin + batch + 1
        if batch + 1 == self.params["steps"]:
            return
        self._ask_workers()
        if self.every is not None and (self.batches % self.every == 0 or self._terminated):
            self._write(dict(enumerate(self.model.metrics_variables)))
        self._end_if_terminated()

    def on_epoch_end(self, epoch, logs=None):
        self._ask_workers()
        self._write({})
        self._end_if_terminated()

    def _write(self, metrics: dict[int, keras.Variable]) -> None:
        variables = {f"{_METRIC}{i}": v for i, v in metrics.items()} | _variables(self.model)
        # The step count is a NumPy scalar, which safetensors does not accept.
        state = {name: np.asarray(v.numpy()) for name, v in variables.items()}
        state[_BATCHES] = np.asarray(self.batches)
        if self.clock.seconds:
            state[_SECONDS] = np.asarray(self.clock.seconds)
        # Metrics are summed over workers when they are read, so that all have to read them.
        if not self.writes:
            return
        if (self.directory / STATE).is_file():
            (self.directory / STATE).replace(self.directory / PREVIOUS)
        with atomic(self.directory / STATE) as path:
            write(state, path, None if self.recipe is None else {_RECIPE: self.recipe})

    def clear(self) -> None:
        """Removes the checkpoint of a finished run, where this process writes them.

        Other files in the directory are kept.
        """
        if self.writes:
            remove_files(self.directory, _FILES)


def recipe_of(file: Path) -> str | None:
    """The recipe of the run that wrote a training checkpoint; None if none can be read."""
    try:
        parsing.check_regular(file)
        with safetensors.safe_open(file, "numpy") as state:
            return (state.metadata() or {}).get(_RECIPE)
    except (safetensors.SafetensorError, OSError, ValueError):
        return None


def read_state(file: Path, directory: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a training checkpoint.

    Args:
        file: the checkpoint.
        directory: the directory that error messages suggest to remove.

    Raises:
        ValueError: if the file is missing or damaged.
    """
    try:
        parsing.check_regular(file)
        return load_file(file)
    except Exception as error:  # unknown dtypes raise errors of many types
        raise _damaged(file, directory, str(error)) from error


def assign_state(
    variables: Mapping[str, keras.Variable],
    stored: Mapping[str, np.ndarray],
    file: Path,
    directory: Path,
) -> None:
    """Assigns tensors to variables by name, all of them or none.

    Raises:
        ValueError: for a missing tensor, or a wrong shape or dtype.
    """
    for name, variable in variables.items():
        # A size that differs between steps is None.
        shape, dtype = tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype)
        tensor = stored.get(name)
        if tensor is None or tensor.dtype.name != dtype or not _fits(tensor.shape, shape):
            found = "missing" if tensor is None else f"{tensor.dtype.name} {tensor.shape}"
            raise _damaged(file, directory, f"{name} is {found}, expected {dtype} {shape}")
    for name, variable in variables.items():
        variable.assign(stored[name])


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    sizes = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(b in (None, a) for a, b in sizes)


def _damaged(file: Path, directory: Path, why: str) -> ValueError:
    return ValueError(
        f"{file} is not a checkpoint that this run can resume from: {why}. It is "
        f"truncated, damaged, or of another model. Remove {directory} to train from the beginning."
    )


def _check_counts(stored: Mapping[str, np.ndarray], file: Path, directory: Path) -> None:
    """Checks the tensors of a checkpoint that are not variables of the model."""
    batches = stored.get(_BATCHES)
    if batches is None or batches.shape or batches.dtype.kind not in "iu" or batches < 0:
        raise _damaged(file, directory, f"{_BATCHES} is missing or not a count")
    seconds = stored.get(_SECONDS, np.asarray(0.0))
    if seconds.shape or seconds.dtype.kind != "f" or not 0 <= seconds < np.inf:
        raise _damaged(file, directory, f"{_SECONDS} is not a time")
    for name in stored:
        if name.startswith(_METRIC) and not name.removeprefix(_METRIC).isdecimal():
            raise _damaged(file, directory, f"{truncated_repr(name)} is not the name of a metric")


def _metric_names(stored: Mapping[str, np.ndarray]) -> list[str]:
    names = [name for name in stored if name.startswith(_METRIC)]
    return sorted(names, key=lambda name: int(name.removeprefix(_METRIC)))


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """All state that a training step reads, under names that are the same in each process."""
    # Loss scaling is not built twice: it would add its variables again.
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    # The names of Keras' seed generators contain a counter, so they are named by their order.
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    return {
        **weights_by_path(model),
        **optimizer_variables(model.optimizer),
        **{f"seed/{i}": v for i, v in enumerate(seeds)},
        **getattr(model, "step_variables", {}),
    }


def weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a model by path; several of one path are numbered in their order.

    Heads of tasks that are trained together may have the same paths.
    """
    return _numbered([(weight.path, weight) for weight in model.weights])


def _numbered(named: list[tuple[str, keras.Variable]]) -> dict[str, keras.Variable]:
    """Variables by name, from the second one of a name on with a number."""
    found: dict[str, keras.Variable] = {}
    counts: Counter[str] = Counter()
    for name, variable in named:
        counts[name] += 1
        found[name if counts[name] == 1 else f"{name}#{counts[name]}"] = variable
    return found


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """The state of a built optimizer, by ``optimizer/`` and the weight's path with the slot's name.

    That of loss scaling, which ``mixed_float16`` adds, is under ``loss_scale/``. Several variables
    of one name are numbered in their order.
    """
    inner = {id(v) for v in getattr(optimizer, "inner_optimizer", optimizer).variables}
    # The first part of a path is the optimizer's name, which contains a counter of the process.
    named = [
        (f"{'optimizer' if id(v) in inner else 'loss_scale'}/{v.path.partition('/')[2]}", v)
        for v in optimizer.variables
    ]
    return _numbered(named)

"""Training checkpoints that interrupted runs resume from."""

import logging
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
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
# The folder of the best epoch, and its files.
BEST, WEIGHTS, VALUES = "best", "weights.safetensors", "values.json"
_NAMES = (STATE, PREVIOUS, f"{BEST}/{WEIGHTS}", f"{BEST}/{VALUES}")
# Stages of pretraining and of distillation have folders of their own.
_FILES = (*_NAMES, *(f"stage_*/{name}" for name in _NAMES))
_METRIC, _BATCHES, _SECONDS, _RECIPE = "metric/", "batches", "seconds", "recipe"
_log = logging.getLogger(__name__)


@dataclass
class Clock:
    """The training time of a run, for ``TimeLimit``; a ``Backup`` stores and restores it."""

    seconds: float = 0.0


class FitRange(NamedTuple):
    """The epochs of one call of ``fit``.

    Fields:
        first, last: the first epoch, and the epoch after the last one.
        steps: the steps of each epoch.
    """

    first: int
    last: int
    steps: int


def remaining(done: int, total: int, epochs: int) -> list[FitRange]:
    """Returns the remaining calls of ``fit``: the rest of an unfinished epoch, and later epochs.

    Epochs have equally many steps, the last one also those that are left over.

    Args:
        done: the number of training steps that are done.
        total: the steps of the run, at least ``epochs``.
        epochs: the epochs of the run.
    """
    ranges: list[FitRange] = []
    ends = [total // epochs * epoch for epoch in range(1, epochs)] + [total]
    for epoch, (begin, end) in enumerate(pairwise([0, *ends])):
        steps = end - max(begin, done)
        if ranges and ranges[-1].steps == steps:
            ranges[-1] = ranges[-1]._replace(last=epoch + 1)
        elif steps > 0:
            ranges.append(FitRange(epoch, epoch + 1, steps))
    return ranges


class Backup(keras.callbacks.Callback):
    """Writes a training checkpoint every ``every`` steps and after each epoch.

    A checkpoint has weights, optimizer state by variable path, random state, the number of batches,
    and the metrics of an unfinished epoch. Keras' ``BackupAndRestore`` repeats an interrupted epoch
    and loses the random state of dropout; here, a resumed run ends with the same result as an
    uninterrupted one. Batches are counted, because loss scaling (``mixed_float16``) skips optimizer
    steps. Checkpoints are written atomically. The previous one is kept, and ``restore`` reads it if
    the last one is damaged.

    After the last step of an epoch, the checkpoint is written once the epoch has been evaluated and
    the preceding callbacks have been called: a run that is killed before repeats the last steps and
    then evaluates.

    On SIGTERM, which schedulers send before they stop a process, it writes a checkpoint after the
    current step and ends the process with exit status 143. Workers synchronize after every step, so
    a signal to one of them ends all.

    Args:
        directory: the directory of the last checkpoint.
        every: the number of steps between checkpoints; None to write them only after epochs, if a
            step depends on more than variables. SIGTERM then writes none.
        writes: whether this process writes checkpoints; only the first of several workers does.
        recipe: text that checkpoints store, for ``recipe_of``.
        clock: the training time, which checkpoints store and other callbacks set; None for a new
            one.
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
        """Whether the restored checkpoint, if any, was written at the end of an epoch."""
        return not self._metrics

    @property
    def _files(self) -> list[Path]:
        """Checkpoints, the last one first."""
        files = (self.directory / name for name in (STATE, PREVIOUS))
        return [file for file in files if file.is_file()]

    def restore(self, model: keras.Model) -> int:
        """Loads the last checkpoint into a compiled model and returns its number of batches.

        Metrics are restored when the next epoch starts; metrics that Keras creates at the first
        batch must exist by then.

        Raises:
            ValueError: if all checkpoints are damaged or belong to another model, or workers have
                checkpoints of different steps.
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
        """Loads the last valid checkpoint; returns its number of batches, 0 without one."""
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
                _log.warning("%s Resuming from the previous one.", damage)
            names = [name for name in stored if name.startswith(_METRIC)]
            names.sort(key=lambda name: int(name.removeprefix(_METRIC)))
            self._metrics = [stored[name] for name in names]
            self.clock.seconds = float(stored.get(_SECONDS, 0))
            return int(stored[_BATCHES])
        if errors:
            raise errors[0]
        return 0

    def on_train_begin(self, logs=None):
        self._terminated = False
        # Python only handles signals in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._terminate)

    def on_train_end(self, logs=None):
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def _terminate(self, number, frame):
        self._terminated = True

    def _synchronize(self) -> None:
        """Tells all workers if one of them got a signal."""
        self._terminated = any(all_gather(self._terminated, self.model.distribute_strategy))

    def _end_if_terminated(self) -> None:
        if self._terminated:
            self.on_train_end()
            _log.warning("Ended by SIGTERM after %d steps; the next run resumes.", self.batches)
            raise SystemExit(128 + signal.SIGTERM)

    def on_epoch_begin(self, epoch, logs=None):
        self._begin = self.batches
        variables = _metric_state(self.model)
        # Another version may have others. Metrics are then of the rest of the epoch.
        if len(variables) == len(self._metrics) and all(
            map(_fits, (x.shape for x in self._metrics), (v.shape for v in variables))
        ):
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)
        self._metrics = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches = self._begin + batch + 1
        if batch + 1 == self.params["steps"]:
            return
        self._synchronize()
        if self.every is not None and (self.batches % self.every == 0 or self._terminated):
            self._write(dict(enumerate(_metric_state(self.model))))
        self._end_if_terminated()

    def on_epoch_end(self, epoch, logs=None):
        self._synchronize()
        self._write({})
        self._end_if_terminated()

    def _write(self, metrics: dict[int, Any]) -> None:
        variables = {f"{_METRIC}{i}": v for i, v in metrics.items()} | _variables(self.model)
        # The step count is a NumPy scalar, which safetensors does not accept.
        state = {name: np.asarray(v.numpy()) for name, v in variables.items()}
        state[_BATCHES] = np.asarray(self.batches)
        if self.clock.seconds:
            state[_SECONDS] = np.asarray(self.clock.seconds)
        # Reading metrics sums them over workers, so all workers must read them before this.
        if not self.writes:
            return
        if (self.directory / STATE).is_file():
            (self.directory / STATE).replace(self.directory / PREVIOUS)
        with atomic(self.directory / STATE) as path:
            write(state, path, None if self.recipe is None else {_RECIPE: self.recipe})

    def clear(self) -> None:
        """Removes the checkpoints of a finished run, and no other files, if this process writes."""
        if self.writes:
            remove_files(self.directory, _FILES)


def recipe_of(file: Path) -> str | None:
    """Returns the recipe of the run that wrote a training checkpoint; None if unreadable."""
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
        ValueError: if a tensor is missing or has a wrong shape or dtype.
    """
    for name, variable in variables.items():
        # A dimension that differs between steps is None.
        shape, dtype = tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype)
        tensor = stored.get(name)
        if tensor is None or tensor.dtype.name != dtype or not _fits(tensor.shape, shape):
            actual = "missing" if tensor is None else f"{tensor.dtype.name} {tensor.shape}"
            raise _damaged(file, directory, f"{name} is {actual}, expected {dtype} {shape}")
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


def _metric_state(model: keras.Model) -> list[Any]:
    """Returns the state of metrics: their variables, and what they keep elsewhere."""
    metrics = [m for each in model.metrics for m in (each, *getattr(each, "metrics", ()))]
    more = [state for metric in metrics for state in getattr(metric, "checkpointed", ())]
    return [*model.metrics_variables, *more]


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all state that a training step reads, by names that are stable between processes."""
    # A loss-scaling optimizer that is built twice would add its variables again.
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    # Keras' names of seed generators contain a counter of the process, so their order is used.
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    return {
        **weights_by_path(model),
        **optimizer_variables(model.optimizer),
        **{f"seed/{i}": v for i, v in enumerate(seeds)},
        **getattr(model, "step_variables", {}),
    }


def weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a model by path; weights with the same path are numbered.

    Heads of tasks that are trained together may have the same paths.
    """
    return _numbered([(weight.path, weight) for weight in model.weights])


def _numbered(pairs: list[tuple[str, keras.Variable]]) -> dict[str, keras.Variable]:
    """Returns variables by name; repeated names get a number from the second on."""
    variables: dict[str, keras.Variable] = {}
    counts: Counter[str] = Counter()
    for name, variable in pairs:
        counts[name] += 1
        variables[name if counts[name] == 1 else f"{name}#{counts[name]}"] = variable
    return variables


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """Returns the state of a built optimizer, by ``optimizer/`` and the path of weight and slot.

    The state of loss scaling (``mixed_float16``) is under ``loss_scale/``. Variables with the same
    name are numbered.
    """
    inner = {id(v) for v in getattr(optimizer, "inner_optimizer", optimizer).variables}
    # A path starts with the optimizer's name, which contains a counter of the process.
    return _numbered(
        [
            (f"{'optimizer' if id(v) in inner else 'loss_scale'}/{v.path.partition('/')[2]}", v)
            for v in optimizer.variables
        ]
    )

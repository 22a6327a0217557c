"""The output directory of a run."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import yaml

from bertfam_tf import parsing
from bertfam_tf.checkpoints import formats
from bertfam_tf.data.race import archive_of
from bertfam_tf.data.reading import expanded, is_published
from bertfam_tf.files import LOCK, exclusive_lock, remove_leftovers, resume, write
from bertfam_tf.recipes.reading import expand, source, with_defaults
from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe
from bertfam_tf.sources import DESCRIPTION, sha256
from bertfam_tf.training import engine, replicas
from bertfam_tf.training.callbacks import curves
from bertfam_tf.training.callbacks.backup import BEST, PREVIOUS, STATE, WEIGHTS, Backup, recipe_of
from bertfam_tf.training.callbacks.best import epoch_of
from bertfam_tf.training.callbacks.logs import History, StepLog, read_lines

RECIPE, MODEL, METRICS, _DATA = "recipe.yaml", "model", "metrics.json", "data_files.json"
HISTORY, _CURVES = "history.csv", "curves.png"
_STEPS, _BOARD = "metrics.jsonl", "tensorboard"
_WRITTEN = (RECIPE, MODEL, METRICS, _DATA, HISTORY, _STEPS, _CURVES)
# A run does not read the test split; `bertfam evaluate` does.
_SPLITS = ("train", "dev")
# Word vectors of a student and of an augmentation; models of a distillation.
_VECTORS, _MODELS = "word_vectors", ("teacher", "augmentation.masked_lm")
# The files of larger data, such as corpora, are compared by size, because digests take long.
_LARGEST = 1 << 28  # bytes of all files
# The end of a size, in place of a digest.
_BYTES = " bytes"
_log = logging.getLogger(__name__)

AnyRecipe = Recipe | MultiTaskRecipe | PretrainRecipe | DistillRecipe
# Returns the training FLOPs per token, or None, for a recipe of fine-tuning or pretraining, the
# number of tokens of an example and the number of a stage: ``plan.flops_per_token``.
Flops = Callable[[Any, int, int], float | None]


def model_directory(path: str | Path) -> str | Path:
    """Returns the directory of a run's model, or any other path unchanged.

    Args:
        path: the output directory of a recipe, a saved task, or a checkpoint.

    Raises:
        ValueError: if the run has no model yet, or not any more.
    """
    if not (Path(path) / RECIPE).is_file():
        return path
    model = Path(path) / MODEL
    if not model.is_dir():
        if (Path(path) / METRICS).is_file():
            raise ValueError(
                f"{path} has a finished run, whose model was removed; remove {METRICS} there to "
                "train it again."
            )
        raise ValueError(f"{path} has no model yet; the command that started its run continues it.")
    return model


def model_source(path: str) -> str | Path:
    """Returns the model that a recipe names: a checkpoint, or the model of a run's directory.

    Args:
        path: the value in the recipe, in which ``$NAME`` and ``~`` are expanded.

    Raises:
        ValueError: if a variable is not set, or the run has no model yet.
    """
    name = source(path)
    return name if formats.matches(Path(name)) else model_directory(name)


@contextmanager
def run_directory(recipe: AnyRecipe, flops: Flops | None = None) -> Iterator["RunDirectory"]:
    """Opens the directory of a run, ``recipe.output``, and locks it for this process.

    Only the first of several workers locks it and writes.

    Args:
        recipe: the recipe.
        flops: the same as for ``RunDirectory``.

    Raises:
        BlockingIOError: if another process is writing to it.
        ValueError: if it contains the run of another recipe, or files but no run.
    """
    path = expand(recipe.output)
    if not replicas.is_chief():
        yield RunDirectory(recipe, writes=False, flops=flops)
        return
    with exclusive_lock(path, path / LOCK):
        yield RunDirectory(recipe, flops=flops)


def run_once(
    recipe: AnyRecipe,
    run: Callable[[Any, "RunDirectory"], dict[str, Any]],
    flops: Flops | None = None,
) -> dict[str, Any]:
    """Runs a recipe in its directory, or returns the metrics of a run that is finished.

    Args:
        recipe: the recipe.
        run: trains, stores and returns the metrics; empty for workers that do not write.
        flops: the same as for ``RunDirectory``.
    """
    with run_directory(recipe, flops) as directory:
        done = directory.metrics()
        if done is not None:
            return done
        phases = [recipe.train]
        if isinstance(recipe, DistillRecipe):
            phases = [stage.train for stage in recipe.stages]
        # A strategy waits for other workers, which end early if the run is finished.
        with engine.scope(*phases):
            metrics = run(recipe, directory)
        return metrics if metrics or directory.writes else directory.metrics() or {}


class RunDirectory:
    """The recipe, training checkpoint, model, logs, curves and metrics of a run.

    Args:
        recipe: the recipe, whose ``output`` is the directory.
        writes: whether this process writes; else it only reads training checkpoints.
        flops: counts the training FLOPs per token, for the logs; None omits them.

    Raises:
        ValueError: if the directory contains the run of another recipe or of other data, or files
            but no run.
    """

    def __init__(self, recipe: AnyRecipe, writes: bool = True, flops: Flops | None = None) -> None:
        self.recipe = recipe
        self._flops = flops
        self.writes = writes
        self.path = expand(recipe.output)
        for name in () if not writes else _WRITTEN:
            remove_leftovers(self.path / name)
        file = self.path / RECIPE
        self._stored = parsing.read_text(file) if file.is_file() else None
        results = any((self.path / name).exists() for name in (MODEL, METRICS))
        if self._stored is None or self._checkpoints or results:
            # If the directory was removed during a run, only its checkpoint may exist.
            descriptions = [file, *(x for x in self._checkpoints if recipe_of(x) is not None)]
            settings = _settings(recipe.to_yaml(), "The recipe")
            started = resume(self.path, descriptions, settings, self._read, "a run")
            if started and writes and (self.path / _DATA).is_file():
                check_unchanged(parsing.read_object(self.path / _DATA), recipe, self.path)
        elif not _is_dumped(self._stored):
            # A run that failed before the first checkpoint may change its recipe, but not a user's.
            raise ValueError(
                f"{file} was not written by a run, which would replace it; choose another output."
            )

    def _read(self, file: Path) -> Any:
        """Returns the settings of a run, from its recipe or a training checkpoint."""
        text = parsing.read_text(file) if file.name == RECIPE else recipe_of(file) or ""
        return _settings(with_defaults(text, type(self.recipe)), str(file))

    def backup(self, every: int | None = None, stage: int | None = None) -> Backup:
        """Returns the callback that writes training checkpoints.

        Args:
            every: the same as for ``Backup``.
            stage: the number of the stage in a run of several; None in a run of one.
        """
        folder = self.path / "backup"
        if stage is not None:
            folder /= f"stage_{stage}"
        return Backup(folder, every, writes=self.writes, recipe=self.recipe.to_yaml())

    def history(self) -> History:
        """Returns the callback that logs each epoch."""
        return History(self.path / HISTORY)

    def logs(self, step: int = 0, stage: int = 0) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that log a training; they must precede the backup.

        Args:
            step: the number of steps that are done.
            stage: the number of a stage of pretraining.
        """
        recipe = self.recipe

        def flops(length: int) -> float | None:
            # FLOPs of a distillation depend on its terms, and of several tasks on the sampled one.
            if self._flops is None or isinstance(recipe, DistillRecipe | MultiTaskRecipe):
                return None
            return self._flops(recipe, length, stage)

        steps = StepLog(
            self.path / _STEPS,
            self.path / _BOARD,
            step,
            recipe.train.log_steps,
            flops,
            writes=self.writes,
        )
        if not self.writes:
            return [steps]
        return [steps, self.history(), curves.Curves(steps, self.path / _CURVES)]

    def metrics(self) -> dict[str, Any] | None:
        """Returns the metrics of a finished run, or None."""
        file = self.path / METRICS
        if not file.is_file():
            return None
        metrics = parsing.read_json(file)
        if not isinstance(metrics, dict):
            raise ValueError(f"{file} has no metrics of a run; remove it to finish the run again.")
        _log.info("%s is already finished.", self.path)
        if self.writes:
            self.backup().clear()
        return metrics

    def training_metrics(self) -> dict[str, float]:
        """Returns the training losses and metrics of the last epoch, as ``train_loss``, …"""
        rows = self.history().rows if self.writes else []
        last = rows[-1] if rows else {}
        return {
            f"train_{name}": float(value)
            for name, value in last.items()
            if value and name != "epoch" and not name.startswith("val_")
        }

    def held_out_metrics(self) -> dict[str, float]:
        """Returns the losses and metrics of the validation data after the epoch that is kept.

        With ``train.patience`` that is the best one, without it the last one.
        """
        rows = self.history().rows
        row = rows[-1]
        for weights in self.backup().directory.rglob(f"{BEST}/{WEIGHTS}"):
            best = epoch_of(weights)
            row = next((each for each in rows if int(each["epoch"]) == best), row)
        return {n.removeprefix("val_"): float(x) for n, x in row.items() if n.startswith("val_")}

    @property
    def steps(self) -> int:
        """The number of logged training steps."""
        return logged_steps(self.path) or 0

    @property
    def _checkpoints(self) -> list[Path]:
        """All checkpoints, including the ones of stages."""
        folder = self.backup().directory
        files = [file for name in (STATE, PREVIOUS) for file in sorted(folder.rglob(name))]
        return [file for file in files if file.is_file()]

    def begin(self) -> None:
        """Creates the directory and writes the recipe."""
        if not self.writes:
            return
        if not self._checkpoints:
            # Without a checkpoint, an interrupted run starts from the beginning.
            self.backup().clear()
            self.history().file.unlink(missing_ok=True)
        # Fails on a damaged history now, not after an epoch.
        _ = self.history().rows
        if self._stored != self.recipe.to_yaml():
            write(self.path / RECIPE, self.recipe.to_yaml())
        if not self._checkpoints:
            write(self.path / _DATA, json.dumps(digests(self.recipe), indent=2) + "\n")

    def finish(self, metrics: dict[str, Any]) -> None:
        """Plots the logs, writes the metrics, which mark a finished run, and removes the backup."""
        if self.writes:
            lines = read_lines(self.path / _STEPS)
            if lines and curves.drawable():
                curves.draw(lines, self.path / _CURVES)
            write(self.path / METRICS, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
            self.backup().clear()
        # A worker that is killed before this would restart and find no metrics.
        replicas.wait_for_workers()


def logged_steps(path: Path) -> int | None:
    """Returns the number of training steps that a run directory logs; None without a log."""
    lines = read_lines(path / _STEPS)
    return lines[-1]["step"] if lines else None


def _settings(text: str, source: str) -> Any:
    """Returns the values of a recipe by dotted keys, without the path of its output."""
    values = parsing.parse_yaml(text, source)
    if not isinstance(values, dict):
        return values
    # A run that was moved, or whose path is written in another way, is the same run.
    return {key: value for key, value in flat(values) if key != "output"}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a recipe with dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_run(path: Path) -> bool:
    """Returns whether a directory has files of a run besides its recipe, which may be a user's."""
    names = (MODEL, METRICS, HISTORY, _STEPS, _BOARD, STATE, PREVIOUS)
    return any(os.path.lexists(path / name) for name in names)


def _is_dumped(text: str) -> bool:
    """Returns whether YAML has the form that runs write, without comments that would be lost."""
    try:
        values = parsing.parse_yaml(text, "")
        return text == yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    except (ValueError, yaml.YAMLError):
        return False


def digests(recipe: Any, stored: Mapping[str, Any] | None = None) -> dict[str, dict[str, str]]:
    """Returns the digests of a recipe's data files, word vectors and teachers.

    Files that do not exist, published data sets and names of checkpoints on a hub are left out.

    Args:
        recipe: the recipe.
        stored: earlier digests: files are compared by their sizes if they were before. None for
            the content, unless the files of a key are large.

    Returns:
        Digests by dotted key, such as ``data.train``, and by path.
    """
    by_key: dict[str, list[Path]] = {}
    for key, name in _file_names(dataclasses.asdict(recipe), ""):
        try:
            files = _model_files(name) if key in _MODELS else _data_files(name)
        except ValueError:  # reading the data says it better
            continue
        by_key.setdefault(key, []).extend(files)
    return {
        key: _digests(files, None if stored is None else stored.get(key))
        for key, files in by_key.items()
        if files
    }


def _digests(files: list[Path], stored: Any) -> dict[str, str]:
    sizes = {file: file.stat().st_size for file in files}
    by_size = sum(sizes.values()) > _LARGEST
    if isinstance(stored, Mapping):
        # The files that are left may be small: each is compared as it was at the start.
        by_size = any(str(digest).endswith(_BYTES) for digest in stored.values())
    return {
        str(file): f"{size}{_BYTES}" if by_size else sha256(file) for file, size in sizes.items()
    }


def _data_files(name: str) -> list[Path]:
    """Returns the files of a name in a data section: a file, a pattern, a folder, an archive."""
    if is_published(name):
        return []
    path = Path(source(name))
    if path.is_dir():
        paths = [file for file in sorted(path.rglob("*")) if not file.name.startswith(".")]
    else:
        paths = list(map(Path, expanded(path)))
    files = (path if path.is_file() else archive_of(path) for path in paths)
    return [file for file in files if file is not None]


def _model_files(name: str) -> list[Path]:
    """Returns the files of a model on disk; of a saved task, the one with the others' digests."""
    directory = Path(model_source(name))
    description = directory / DESCRIPTION
    if description.is_file():
        return [description]
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return [file for file in files if file.is_file() and file.suffix != ".md"]


def check_unchanged(stored: Mapping[str, Any], recipe: Any, run: Path) -> None:
    """Compares the data files and teachers of a run with the digests from its start.

    Args:
        stored: the result of ``digests`` at the start of the run.
        recipe: its recipe.
        run: its directory.

    Raises:
        ValueError: if a file has changed, or a pattern or folder has other files. Missing data
            raises no error: a finished run needs none.
    """
    for key, files in digests(recipe, stored).items():
        before = stored.get(key)
        if not isinstance(before, Mapping):
            continue
        # Not by path: a data directory may have moved.
        if list(files.values()) != list(before.values()):
            changed = [
                file
                for file, digest in files.items()
                if digest != before.get(file, digest) or digest not in before.values()
            ]
            names = ", ".join(changed) or f"{len(files)} files instead of {len(before)}"
            raise ValueError(
                f"The data of the run {run} has changed since it began ({key}: {names}). Choose "
                f"another output, or remove {run} to train again."
            )


def _file_names(value: Any, section: str) -> Iterator[tuple[str, str]]:
    """Yields the files and models that a recipe reads, each with its dotted key."""
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        key = f"{section}.{name}" if section else str(name)
        is_data = section.rpartition(".")[2] == "data" and name.partition("_")[0] in _SPLITS
        if is_data or name == _VECTORS or key in _MODELS:
            yield from ((key, file) for file in _strings(inner))
        else:
            yield from _file_names(inner, key)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)

"""The best epoch of a run, kept on disk, and when to stop looking for a better one."""

import json
import logging
from pathlib import Path

import keras
from safetensors.numpy import load_file, save_file

_WEIGHTS, _VALUES = "weights.safetensors", "values.json"
_log = logging.getLogger(__name__)


class BestEpoch(keras.callbacks.Callback):
    """Keeps the weights of the epoch that scored best, and ends training when none is better.

    Keras' ``EarlyStopping`` forgets what it has seen when a run is killed; here each epoch's score
    is on disk under its number, so that an epoch that is run once more counts once.

    Args:
        directory: where weights and scores go.
        monitor: a metric of the validation data, ``val_accuracy`` say; larger is better, but of a
            loss.
        patience: stops after so many epochs that are no better than the best before them.
    """

    def __init__(self, directory: Path, monitor: str, patience: int):
        super().__init__()
        self.directory = directory
        self.monitor = monitor
        self.patience = patience

    @property
    def values(self) -> dict[int, float]:
        """Scores by epoch, from 0."""
        file = self.directory / _VALUES
        stored = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        return {int(epoch): value for epoch, value in stored.items()}

    @property
    def exhausted(self) -> bool:
        """Whether training has stopped."""
        values = self.values
        return bool(values) and max(values) - self._best(values) >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        if self.monitor not in logs:
            raise ValueError(
                f"There is no {self.monitor!r} to tell the best epoch by, only {sorted(logs)}."
            )
        values = {**self.values, epoch: float(logs[self.monitor])}
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._best(values) == epoch:
            # First the weights: without the score the epoch is run once more.
            temporary = self.directory / f".{_WEIGHTS}"
            save_file({v.path: v.numpy() for v in self.model.weights}, temporary)
            temporary.rename(self.directory / _WEIGHTS)
        temporary = self.directory / f".{_VALUES}"
        temporary.write_text(json.dumps(values), "utf-8")
        temporary.rename(self.directory / _VALUES)
        if self.exhausted:
            _log.info("No better epoch than %d, of %s.", self._best(values) + 1, values)
            self.model.stop_training = True

    def restore(self, model: keras.Model) -> None:
        """Gives a model the best epoch's weights."""
        stored = load_file(self.directory / _WEIGHTS)
        for variable in model.weights:
            variable.assign(stored[variable.path])

    def _best(self, values: dict[int, float]) -> int:
        sign = -1 if self.monitor.endswith("loss") else 1
        return max(values, key=lambda epoch: (sign * values[epoch], -epoch))

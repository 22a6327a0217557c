"""The best epoch of a run, kept on disk, and when to stop looking for a better one."""

import json
import logging
from pathlib import Path

import keras
from safetensors import SafetensorError, safe_open

from bertfam_tf import files
from bertfam_tf.checkpoints.safetensors import write
from bertfam_tf.train.backup import assign_state, read_state

_WEIGHTS, _VALUES = "weights.safetensors", "values.json"
_SCORE = "score"
_log = logging.getLogger(__name__)


class BestEpoch(keras.callbacks.Callback):
    """Keeps the weights of the epoch that scored best, and ends training when none is better.

    Keras' ``EarlyStopping`` forgets what it has seen when a run is killed; here each epoch's score
    is on disk under its number, and an epoch that is run once more is not compared again.

    Args:
        directory: where weights and scores go.
        monitor: a metric of the validation data, ``val_accuracy`` say; higher is better, except
            for a loss.
        patience: number of epochs without improvement after which training stops.
    """

    def __init__(self, directory: Path, monitor: str, patience: int):
        super().__init__()
        self.directory = directory
        self.monitor = monitor
        self.patience = patience

    @property
    def values(self) -> dict[int, float]:
        """Scores by epoch, from 0.

        Raises:
            ValueError: when a file is damaged.
        """
        file, weights = self.directory / _VALUES, self.directory / _WEIGHTS
        try:
            stored = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if weights.is_file():
                # They are written first, and hold the number of their epoch.
                with safe_open(weights, framework="numpy") as opened:
                    stored |= json.loads((opened.metadata() or {}).get(_SCORE, "{}"))
            return {int(epoch): float(value) for epoch, value in stored.items()}
        except (ValueError, AttributeError, TypeError, SafetensorError) as error:
            raise ValueError(
                f"{self.directory} does not hold the scores of epochs, {_VALUES} or {_WEIGHTS} is "
                f"truncated or damaged: {error}. Remove {self.directory.parent} to train from the "
                "beginning."
            ) from error

    @property
    def exhausted(self) -> bool:
        """Whether training has stopped."""
        values = self.values
        return bool(values) and max(values) - self._best(values) >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        if self.monitor not in logs:
            raise ValueError(
                f"There is no {self.monitor!r} to compare epochs by, only {sorted(logs)}."
            )
        before = self.values
        values = {epoch: float(logs[self.monitor]), **before}
        if epoch not in before and self._best(values) == epoch:
            score = {_SCORE: json.dumps({epoch: values[epoch]})}
            with files.atomic(self.directory / _WEIGHTS) as path:
                write({v.path: v.numpy() for v in self.model.weights}, path, score)
        files.write(self.directory / _VALUES, json.dumps(values))
        if self.exhausted:
            _log.info("No better epoch than %d, of %s.", self._best(values) + 1, values)
            self.model.stop_training = True

    def restore(self, model: keras.Model) -> None:
        """Assigns the best epoch's weights to a model.

        Raises:
            ValueError: when the file is missing or damaged.
        """
        file, run = self.directory / _WEIGHTS, self.directory.parent
        assign_state({v.path: v for v in model.weights}, read_state(file, run), file, run)

    def _best(self, values: dict[int, float]) -> int:
        sign = -1 if self.monitor.endswith("loss") else 1
        return max(values, key=lambda epoch: (sign * values[epoch], -epoch))

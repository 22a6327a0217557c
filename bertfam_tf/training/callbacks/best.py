"""Keeps the weights of the best epoch on disk, with early stopping."""

import json
import logging
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import keras
from safetensors import SafetensorError, safe_open

from bertfam_tf import files, parsing
from bertfam_tf.checkpoints.safetensors import write
from bertfam_tf.names import truncated
from bertfam_tf.training import replicas
from bertfam_tf.training.callbacks.backup import (
    VALUES,
    WEIGHTS,
    assign_state,
    read_state,
    weights_by_path,
)

_SCORE = "score"
_log = logging.getLogger(__name__)


# Ends of the names of losses and errors, also of Keras'.
_LOWER = (
    *("loss", "perplexity", "error", "mse", "mae", "mape", "msle"),
    *("crossentropy", "divergence", "hinge", "logcosh", "poisson"),
)
# Losses of pretraining.
_LOSSES = frozenset("masked_lm causal_lm bidirectional_lm permutation_lm tlm pair sbo rtd".split())


def direction(metric: str, losses: Collection[str] = ()) -> int:
    """Returns 1 for a metric whose higher values are better; -1 for a loss, perplexity or error.

    Args:
        metric: the name of the metric.
        losses: names of losses, besides those of pretraining.
    """
    lower = metric.endswith(_LOWER) or metric.removeprefix("val_") in {*_LOSSES, *losses}
    return -1 if lower else 1


class BestEpoch(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best score, and stops training without improvement.

    Keras' ``EarlyStopping`` loses its state when a run is killed; here the scores of epochs are
    stored on disk, and a repeated epoch is not compared again.

    Args:
        directory: the directory of weights and scores.
        monitor: a metric of the validation data, such as ``val_accuracy``; higher is better, except
            for the model's losses, perplexities and errors.
        patience: the number of epochs without improvement after which training stops.
        writes: whether this process writes files; only the first of several workers does. The
            others read them, so all stop after the same epoch.
    """

    def __init__(self, directory: Path, monitor: str, patience: int, *, writes: bool = True):
        super().__init__()
        self.directory = directory
        self.monitor = monitor
        self.patience = patience
        self.writes = writes

    @property
    def values(self) -> dict[int, float]:
        """Scores by epoch, from 0.

        Raises:
            ValueError: if a file is damaged.
        """
        file, weights = self.directory / VALUES, self.directory / WEIGHTS
        try:
            stored = parsing.read_json(file) if os.path.lexists(file) else {}
            if weights.is_file():
                # The weights are written first, and contain the number of their epoch.
                stored |= _score_of(weights)
            return {int(epoch): float(value) for epoch, value in stored.items()}
        except (
            *(ValueError, AttributeError, TypeError, OverflowError, RecursionError),
            SafetensorError,
        ) as error:
            raise ValueError(
                f"{self.directory} has no valid scores of epochs: {VALUES} or {WEIGHTS} is "
                f"truncated or damaged: {truncated(error)}. Remove {self.directory.parent} to "
                "train from the beginning."
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
                f"There is no metric {self.monitor!r} to compare epochs by, only {sorted(logs)}."
            )
        if self.writes:
            self._write(epoch, float(logs[self.monitor]))
        replicas.wait_for_workers(self.model.distribute_strategy)
        if self.exhausted:
            values = self.values
            _log.info("No better epoch than %d, of %s.", self._best(values) + 1, values)
            self.model.stop_training = True

    def restore(self, model: keras.Model) -> None:
        """Assigns the weights of the best epoch to a model.

        Raises:
            ValueError: if the file is missing or damaged.
        """
        file, run = self.directory / WEIGHTS, self.directory.parent
        assign_state(weights_by_path(model), read_state(file, run), file, run)

    def _write(self, epoch: int, value: float) -> None:
        before = self.values
        values = {epoch: value, **before}
        if epoch not in before and self._best(values) == epoch:
            score = {_SCORE: json.dumps({epoch: value})}
            with files.atomic(self.directory / WEIGHTS) as path:
                weights = weights_by_path(self.model)
                write({name: v.numpy() for name, v in weights.items()}, path, score)
        files.write(self.directory / VALUES, json.dumps(values))

    def _best(self, values: dict[int, float]) -> int:
        objectives = getattr(self.model, "objectives", ())
        sign = direction(self.monitor, [name for o in objectives for name in o.weights])
        scores = {e: -math.inf if math.isnan(x) else sign * x for e, x in values.items()}
        return max(scores, key=lambda epoch: (scores[epoch], -epoch))


def epoch_of(weights: Path) -> int | None:
    """Returns the epoch, from 0, of weights that a ``BestEpoch`` stored; None if unknown."""
    return next(map(int, _score_of(weights)), None)


def _score_of(weights: Path) -> Any:
    """Returns the score of stored weights by their epoch, as JSON has it."""
    with safe_open(weights, framework="numpy") as opened:
        return json.loads((opened.metadata() or {}).get(_SCORE, "{}"))

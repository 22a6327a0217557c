"""Stops a training after so many minutes."""

from __future__ import annotations

import logging
import time

import keras

from bertfam_tf.training.callbacks.backup import Clock
from bertfam_tf.training.replicas import all_gather

_log = logging.getLogger(__name__)


class TimeLimit(keras.callbacks.Callback):
    """Stops a training after the first step at which it has taken so many minutes.

    The epoch of that step ends there: it is evaluated, and stored as any other. Evaluation is not
    in the time, nor is what a killed run did after its last checkpoint, which it repeats. Several
    workers stop after the same step, the first one at which one of them reaches the limit.

    It has to be called before a ``Backup``.

    Args:
        clock: has the time of the training so far; a ``Backup`` with the same one stores it.
        minutes: the limit.
    """

    def __init__(self, clock: Clock, minutes: float):
        super().__init__()
        self.clock = clock
        self.limit = 60 * minutes
        self._last = 0.0

    @property
    def exceeded(self) -> bool:
        """Whether the training has taken its time."""
        return self.clock.seconds >= self.limit

    def on_train_begin(self, logs=None):
        self._last = time.monotonic()

    def on_test_begin(self, logs=None):
        self._paused = time.monotonic()

    def on_test_end(self, logs=None):
        self._last += time.monotonic() - self._paused

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        self.clock.seconds += now - self._last
        self._last = now
        if any(all_gather(self.exceeded, self.model.distribute_strategy)):
            # The clocks of workers differ.
            self.clock.seconds = max(self.clock.seconds, self.limit)
            self.model.stop_training = True
            _log.info("Stopped after %.1f minutes of training.", self.clock.seconds / 60)

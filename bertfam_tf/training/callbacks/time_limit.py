"""Stops a training after a number of minutes."""

from __future__ import annotations

import logging
import time

import keras

from bertfam_tf.training.callbacks.backup import Clock
from bertfam_tf.training.replicas import all_gather

_log = logging.getLogger(__name__)


class TimeLimit(keras.callbacks.Callback):
    """Stops a training after the step at which it reaches a number of minutes.

    The epoch ends with this step, and is evaluated and stored like any other. Evaluation does not
    count, nor do steps of a killed run after its last checkpoint, which are repeated. Workers stop
    after the same step, when the first of them reaches the limit.

    It must be called before a ``Backup``.

    Args:
        clock: the training time so far; a ``Backup`` with the same clock stores it.
        minutes: the limit.
    """

    def __init__(self, clock: Clock, minutes: float):
        super().__init__()
        self.clock = clock
        self.limit = 60 * minutes
        self._last = 0.0

    @property
    def exceeded(self) -> bool:
        """Whether the limit is reached."""
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

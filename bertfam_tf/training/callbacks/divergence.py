"""Stops or skips when the loss or gradients are no longer finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import keras

from bertfam_tf.names import truncated_repr

_SHOWN = 8
_IN_A_ROW = 10
_log = logging.getLogger(__name__)


class StopAtDivergence(keras.callbacks.Callback):
    """Raises an error after the first step whose loss is NaN or infinite.

    If the optimizer skips such steps (``skip_nonfinite``), it logs a warning for each, and raises
    the error after ten in a row; the reported loss does not include them. A loss that grows, but is
    finite, is not an error.

    It must be called before a ``Backup``, so that the last checkpoint has finite weights.

    Args:
        examples: returns the texts of the batch of a step, numbered from 0.
        step: the number of steps that are done.
    """

    def __init__(self, examples: Callable[[int], Iterable[Any]], step: int = 0):
        super().__init__()
        self.examples = examples
        self.step = step
        self._skipped = self._in_a_row = 0

    @property
    def _skips(self) -> bool:
        return getattr(self.model.optimizer, "skip_nonfinite", False)

    def on_train_begin(self, logs=None):
        if self._skips:
            self._skipped = int(self.model.optimizer.skipped.read())

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self._skips:
            self._warn()
            return
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss became {loss} in step {self.step}: {self._why()} The last checkpoint "
                "was written before this step."
            )

    def _warn(self) -> None:
        skipped = int(self.model.optimizer.skipped.read())
        self._in_a_row = self._in_a_row + 1 if skipped > self._skipped else 0
        self._skipped = skipped
        if self._in_a_row >= _IN_A_ROW:
            raise ValueError(
                f"The gradients of the {_IN_A_ROW} steps up to {self.step} are not finite: "
                f"{self._why()}"
            )
        if self._in_a_row:
            _log.warning(
                "Step %d is skipped, because its gradients are not finite: %s",
                self.step,
                self._why(),
            )

    def _why(self) -> str:
        texts = [truncated_repr(text) for text in self.examples(self.step - 1)]
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        return (
            "the learning rate may be too high, or an example invalid. Examples of the batch: "
            f"{', '.join(texts[:_SHOWN])}{more}."
        )

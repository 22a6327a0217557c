"""Stops a training whose loss is not a finite number any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras

from bertfam_tf.names import truncated_repr

_SHOWN = 8


class StopAtDivergence(keras.callbacks.Callback):
    """Raises an error after the first step whose loss is NaN or infinite.

    It has to be called before a ``Backup``, so that the last checkpoint is one of finite weights.

    Args:
        examples: from the number of an epoch and of a batch in it to the texts of that batch.
    """

    def __init__(self, examples: Callable[[int, int], Iterable[Any]]):
        super().__init__()
        self.examples = examples
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            return
        texts = [truncated_repr(text) for text in self.examples(self._epoch, batch)]
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        raise ValueError(
            f"The loss became {loss} in batch {batch + 1} of epoch {self._epoch + 1}: the learning "
            "rate may be too high, or an example not valid. Examples of the batch: "
            f"{', '.join(texts[:_SHOWN])}{more}. The last checkpoint is from before."
        )

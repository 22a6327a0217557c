"""Tasks whose answers take more than the outputs of the Keras model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.data.batching import batches, texts_of
from bertfam_tf.tasks.base import Task


class AnsweringTask(Task):
    """A task whose answers differ in length: ``predict`` hands out those of each batch."""

    def predict(self, x: Any, *, batch_size: int = 32, verbose: Any = 0, **kwargs: Any) -> Any:
        """As ``Task.predict``."""
        if kwargs:
            raise TypeError(f"predict() got an unexpected keyword argument {next(iter(kwargs))!r}")
        x = texts_of(x, self.fields)
        stream = batches(x, batch_size=batch_size, fields=self.fields)
        return self._predicted(stream, verbose)

    def _predicted(self, stream: tf.data.Dataset, verbose: Any) -> list[Any]:
        found = self._run(self._compiled_answer, stream, verbose)
        return [row for outputs, _ in found for row in self._answers(outputs)]

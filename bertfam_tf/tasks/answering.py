"""Tasks whose answers take more than the outputs of the Keras model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf.data.batching import batches
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.tasks.base import NO_DATA, Task


class AnsweringTask(Task):
    """A task whose ``predict`` runs ``answer`` itself, batch by batch, as an export does."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._compile_answer()

    def _compile_answer(self) -> None:
        # Made once: what is called eagerly takes many times as long.
        self._compiled_answer = compiled(self.answer)

    def predict(self, x: Any, *, batch_size: int = 32, verbose: Any = 0, **kwargs: Any) -> Any:
        """Answers for raw texts; labels in a data set are passed over.

        Raises:
            ValueError: for data in a shape that is not known, or no data at all.
        """
        if kwargs:
            raise TypeError(f"predict() got an unexpected keyword argument {next(iter(kwargs))!r}")
        stream = batches(x, batch_size=batch_size, fields=self.fields)
        return self._predicted(stream, verbose)

    def _predicted(self, stream: tf.data.Dataset, verbose: Any) -> list[Any]:
        found = self._run(self._compiled_answer, stream, verbose)
        return [row for outputs, _ in found for row in self._answers(outputs)]

    def _run(
        self, function: Any, stream: tf.data.Dataset, verbose: Any = 0
    ) -> Iterator[tuple[Any, tuple]]:
        """What a ``tf.function`` makes of each batch, and the batch."""
        self._settle_pair(stream)
        steps = int(stream.cardinality())
        bar = keras.utils.Progbar(steps if steps > 0 else None, verbose=int(verbose == 1))
        number = 0
        with as_value_errors():
            # Traced for batches of any size: the last one is often smaller.
            traced = function.get_concrete_function(*stream.element_spec)
            for number, batch in enumerate(stream.prefetch(2), 1):
                yield traced(*batch), batch
                bar.update(number)
        if not number:
            raise ValueError(NO_DATA)


def compiled(function: Callable[[dict[str, tf.Tensor]], Any]) -> Any:
    """A ``tf.function`` of a batch of features, whatever else stands in it."""
    return tf.function(lambda features, *_: function(features), autograph=False)

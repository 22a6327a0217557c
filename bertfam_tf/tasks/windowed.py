"""What tasks on documents share: texts longer than the model are read in windows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from bertfam_tf.tasks.answering import AnsweringTask
from bertfam_tf.text import Windows, spans_of

# Windows that the model reads at once: a document of a hundred would need gigabytes of scores.
_AT_ONCE = 32


class WindowedTask(AnsweringTask):
    """A task whose answers are parts of a document of any length.

    The last of ``feature_names`` is the document; a text before it goes before each window.
    Subclasses give ``postprocess``, ``_targets`` and ``_answers``.

    Args:
        stride: by how many pieces windows that follow each other overlap.
        max_question: most pieces of the text before the document; as ``Windows`` takes it.
        **kwargs: as ``Task`` takes them.
    """

    def __init__(self, *args: Any, stride: int, max_question: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        layout, ids = self.tokenizer.layout, self.tokenizer.special_ids
        self.stride = stride
        self.max_question = max_question
        self._windows = Windows(layout, ids, self.max_length, stride, max_question)

    # From text to answers, as graphs ---------------------------------------------------------

    def read(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """What ``Windows`` makes of texts, and which bytes of the document each place covers.

        Args:
            features: string tensors (batch,).

        Returns:
            as ``Windows`` does, and with it ``start`` and ``end``, int32 (windows, longest), bytes
            of the document; -1 where ``piece`` is.
        """
        *before, document = self.feature_names
        pieces, starts, ends = self.tokenizer.tokenize_with_offsets(features[document])
        texts = [self.tokenizer.tokenize(features[name]) for name in before]
        windows = self._windows([*texts, pieces])
        start, end = spans_of(windows, starts, ends)
        return {**windows, "start": start, "end": end}

    @tf.autograph.experimental.do_not_convert
    def preprocess(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """String tensors (batch,) to the model's inputs, int32 (windows, longest)."""
        return self._model_inputs(self.read(features))

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        windows = self.read(features)
        return self.postprocess(self._run_windows(self._model_inputs(windows)), windows, features)

    def postprocess(self, outputs: Any, windows: Any = None, features: Any = None) -> Any:
        """The head's outputs (windows, longest, …) to answers, dim 0 of each the batch.

        Args:
            outputs: of the Keras model.
            windows: from ``read``.
            features: string tensors (batch,).
        """
        raise NotImplementedError

    def _run_windows(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """The model's outputs, some windows at a time."""
        # Without rows the model is called once too: nothing cannot be joined.
        rows = tf.maximum(tf.shape(inputs["token_ids"])[0], 1)
        dtype = self.output.dtype
        parts = tf.TensorArray(
            dtype, -(-rows // _AT_ONCE), infer_shape=False, element_shape=self.output_shape
        )

        def more(i: tf.Tensor, done: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            here = {name: x[i * _AT_ONCE : (i + 1) * _AT_ONCE] for name, x in inputs.items()}
            here = {name: tf.ensure_shape(x, [None, None]) for name, x in here.items()}
            return i + 1, done.write(i, tf.cast(self(here, training=False), dtype))

        _, parts = tf.while_loop(
            lambda i, _: i * _AT_ONCE < rows, more, (0, parts), parallel_iterations=1
        )
        return tf.ensure_shape(parts.concat(), self.output_shape)

    # Keras' verbs ----------------------------------------------------------------------------

    def _targets(self, windows: dict[str, tf.Tensor], features: Any, labels: Any) -> tf.Tensor:
        """Labels as the loss takes them; dim 0 is that of the windows."""
        raise NotImplementedError

    def _encode(self, features: dict[str, tf.Tensor], *rest: Any) -> tuple:
        windows = self.read(features)
        inputs = self._model_inputs(windows)
        if not rest:
            return (inputs,)
        labels, *weights = rest
        weights = [tf.gather(weight, windows["document"]) for weight in weights]
        return (inputs, self._targets(windows, features, labels), *weights)

    # Storing ---------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "stride": self.stride}

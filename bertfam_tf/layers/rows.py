"""Examples of several token rows each, such as the choices of a question."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="bertfam_tf")
class MergeRows(keras.layers.Layer):
    """Reshaping that merges the batch axis and the row axis.

    Call:
        x: (batch, rows, length, …).

    Returns:
        (batch * rows, length, …).
    """

    def call(self, x):
        batch, rows, length = ops.shape(x)[:3]
        # Not -1, which is ambiguous without rows or tokens.
        return ops.reshape(x, (batch * rows, length, *x.shape[3:]))

    def compute_output_shape(self, shape):
        return (None, *shape[2:])


@keras.saving.register_keras_serializable(package="bertfam_tf")
class SplitRows(keras.layers.Layer):
    """The inverse of ``MergeRows``, for outputs computed from each row.

    Call:
        x: (batch * rows, width).
        merged: the input of ``MergeRows``: (batch, rows, length, …).

    Returns:
        (batch, rows, width).
    """

    def call(self, x, merged):
        return ops.reshape(x, (*ops.shape(merged)[:2], x.shape[-1]))

    def compute_output_shape(self, x_shape, merged_shape):
        return (*merged_shape[:2], x_shape[-1])

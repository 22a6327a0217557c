"""Recurrent layers."""

import keras
from keras import ops

from bertfam_tf.layers.fused import Dense, scan
from bertfam_tf.layers.masks import zero_padding


class BidirectionalLSTM(keras.layers.Layer):
    """Two LSTMs, one from either end of the text, that skip padding.

    Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005. At padding, on any side, states
    stay as they are. Both directions go through one loop, before which the products of all inputs
    are computed. Columns of kernels and biases are the input, forget and output gates, then the
    candidates; ``input`` has those of the forward direction, then those of the backward one.

    Args:
        units: width of each direction.

    Call:
        x: (batch, length, width).
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        ``(outputs, final)``: (batch, length, 2 · units), zeros at padding; and (batch, 2 · units),
        the forward state after the last real token and the backward state after the first one,
        zeros for an example without real tokens.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, x_shape, padding_mask_shape):
        self.input_dense = Dense(
            8 * self.units,
            bias_initializer=_open_forget_gates,
            name="input",
            dtype=self.dtype_policy,
        )
        self.input_dense.build(x_shape)
        self.kernels = [
            self.add_weight(
                shape=(self.units, 4 * self.units),
                initializer="orthogonal",
                name=f"{direction}_kernel",
            )
            for direction in ("forward", "backward")
        ]

    def call(self, x, padding_mask):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        kernels = [ops.convert_to_tensor(kernel) for kernel in self.kernels]
        x = ops.reshape(self.input_dense(x), (batch, length, 2, 4 * self.units))
        x = _by_step(x[:, :, 0], x[:, :, 1])  # (length, 2, batch, 4 · units)
        padding = ops.expand_dims(ops.logical_not(ops.cast(padding_mask, "bool")), -1)

        def step(state, given):
            hidden, cell = state  # both (2, batch, units)
            gates, skip = given
            products = [ops.matmul(hidden[i], kernel) for i, kernel in enumerate(kernels)]
            gates = gates + ops.stack(products)
            opened = ops.sigmoid(gates[..., : 3 * self.units])
            enter, keep, leave = ops.split(opened, 3, axis=-1)
            candidate = ops.tanh(gates[..., 3 * self.units :])
            cell_after = keep * cell + enter * candidate
            after = leave * ops.tanh(cell_after)
            return ops.where(skip, hidden, after), ops.where(skip, cell, cell_after)

        zeros = ops.zeros((2, batch, self.units), x.dtype)
        states, (final, _) = scan(step, (zeros, zeros), (x, _by_step(padding, padding)))
        outputs = ops.concatenate([states[:, 0], ops.flip(states[:, 1], axis=0)], axis=-1)
        outputs = zero_padding(ops.transpose(outputs, (1, 0, 2)), padding_mask)
        return outputs, ops.concatenate([final[0], final[1]], axis=-1)

    def compute_output_spec(self, x, padding_mask):
        batch, length, _ = x.shape
        shapes = (batch, length, 2 * self.units), (batch, 2 * self.units)
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


def _by_step(forward, backward):
    """(length, 2, batch, width) from two (batch, length, width), in the order of reading."""
    forward, backward = (ops.transpose(x, (1, 0, 2)) for x in (forward, backward))
    return ops.stack([forward, ops.flip(backward, axis=0)], axis=1)


def _open_forget_gates(shape, dtype=None):
    """Biases of 1 for forget gates, 0 for others (Jozefowicz et al. 2015)."""
    gates = ops.convert_to_tensor([0, 1, 0, 0] * 2, dtype)
    return ops.repeat(gates, shape[0] // 8)

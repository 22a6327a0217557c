"""Recurrent layers."""

import keras
from keras import ops

from bertfam_tf.layers.fused import Dense, scan
from bertfam_tf.layers.masks import zero_padding


class BidirectionalLSTM(keras.layers.Layer):
    """Two LSTMs, one in each direction of the text, that skip padding.

    Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005. At padding, on either side, states
    do not change. One loop runs both directions, after one matrix product has projected all inputs.
    Columns of kernels and biases are the input, forget and output gates, then the candidates;
    ``input`` has the columns of the forward direction, then the columns of the backward direction.

    Args:
        units: the width of each direction.

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

        def step(state, inputs):
            hidden, cell = state  # both (2, batch, units)
            gates, skip = inputs
            gates = gates + _products(hidden, kernels)
            opened = ops.sigmoid(gates[..., : 3 * self.units])
            enter, keep, leave = ops.split(opened, 3, axis=-1)
            candidate = ops.tanh(gates[..., 3 * self.units :])
            cell_after = keep * cell + enter * candidate
            after = leave * ops.tanh(cell_after)
            return ops.where(skip, hidden, after), ops.where(skip, cell, cell_after)

        zeros = ops.zeros((2, batch, self.units), x.dtype)
        states, (final, _) = scan(step, (zeros, zeros), (x, _by_step(padding, padding)))
        return _by_text(states, padding_mask), ops.concatenate([final[0], final[1]], axis=-1)

    def compute_output_spec(self, x, padding_mask):
        batch, length, _ = x.shape
        shapes = (batch, length, 2 * self.units), (batch, 2 * self.units)
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


class ProjectedBidirectionalLSTM(keras.layers.Layer):
    """Two LSTMs with projected and clipped states, one in each direction, that skip padding.

    Sak et al. 2014 (arXiv 1402.1128), in ELMo's version (arXiv 1802.05365, section 3.4). Each
    direction reads an input of its own, and starts from zeros in every text. Columns of kernels and
    biases are the input gates, the candidates, the forget and output gates; 1 is added to the
    biases of forget gates. Padding is handled as in ``BidirectionalLSTM``.

    Args:
        units: the width of each direction's states and input.
        cell_size: the width of each direction's cells.
        cell_clip, projection_clip: the largest magnitude of a cell's value, and of a state's; 0 for
            no limit.

    Call:
        x: (batch, length, 2 · units), the input of the forward and of the backward direction.
        padding_mask: (batch, length), non-zero at real tokens.

    Returns:
        (batch, length, 2 · units), the states of both directions, zeros at padding.
    """

    def __init__(
        self,
        units: int,
        cell_size: int,
        cell_clip: float = 0.0,
        projection_clip: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.cell_size = cell_size
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip

    def build(self, x_shape, padding_mask_shape):
        self.inputs, self.kernels, self.projections = [], [], []
        for direction in ("forward", "backward"):
            dense = Dense(4 * self.cell_size, name=f"{direction}_input", dtype=self.dtype_policy)
            dense.build((*x_shape[:-1], self.units))
            self.inputs.append(dense)
            self.kernels.append(
                self.add_weight(
                    shape=(self.units, 4 * self.cell_size),
                    initializer="orthogonal",
                    name=f"{direction}_kernel",
                )
            )
            self.projections.append(
                self.add_weight(
                    shape=(self.cell_size, self.units),
                    initializer="glorot_uniform",
                    name=f"{direction}_projection",
                )
            )

    def call(self, x, padding_mask):
        batch = ops.shape(x)[0]
        kernels, projections = (
            [ops.convert_to_tensor(weight) for weight in weights]
            for weights in (self.kernels, self.projections)
        )
        halves = x[..., : self.units], x[..., self.units :]
        x = _by_step(*(dense(half) for dense, half in zip(self.inputs, halves, strict=True)))
        padding = ops.expand_dims(ops.logical_not(ops.cast(padding_mask, "bool")), -1)

        def step(state, inputs):
            hidden, cell = state  # (2, batch, units), (2, batch, cell size)
            gates, skip = inputs
            gates = gates + _products(hidden, kernels)
            enter, candidate, keep, leave = ops.split(gates, 4, axis=-1)
            kept = ops.sigmoid(keep + 1) * cell
            cell_after = _clipped(kept + ops.sigmoid(enter) * ops.tanh(candidate), self.cell_clip)
            after = _products(ops.sigmoid(leave) * ops.tanh(cell_after), projections)
            after = _clipped(after, self.projection_clip)
            return ops.where(skip, hidden, after), ops.where(skip, cell, cell_after)

        zeros = (ops.zeros((2, batch, n), x.dtype) for n in (self.units, self.cell_size))
        states, _ = scan(step, tuple(zeros), (x, _by_step(padding, padding)))
        return _by_text(states, padding_mask)

    def compute_output_shape(self, x_shape, padding_mask_shape):
        return x_shape


def _products(x, kernels):
    """Multiplies each direction of ``x``, (2, batch, width), by its kernel."""
    return ops.stack([ops.matmul(x[i], kernel) for i, kernel in enumerate(kernels)])


def _clipped(x, limit):
    return ops.clip(x, -limit, limit) if limit else x


def _by_step(forward, backward):
    """Stacks two (batch, length, width) tensors to (length, 2, batch, width), in reading order."""
    forward, backward = (ops.transpose(x, (1, 0, 2)) for x in (forward, backward))
    return ops.stack([forward, ops.flip(backward, axis=0)], axis=1)


def _by_text(states, padding_mask):
    """Converts (length, 2, batch, width) to (batch, length, 2 · width), with zeros at padding."""
    outputs = ops.concatenate([states[:, 0], ops.flip(states[:, 1], axis=0)], axis=-1)
    return zero_padding(ops.transpose(outputs, (1, 0, 2)), padding_mask)


def _open_forget_gates(shape, dtype=None):
    """Returns biases of 1 for forget gates, 0 for others (Jozefowicz et al. 2015)."""
    gates = ops.convert_to_tensor([0, 1, 0, 0] * 2, dtype)
    return ops.repeat(gates, shape[0] // 8)

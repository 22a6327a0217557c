"""Sums of the outputs of several layers."""

import keras
from keras import ops


class ScalarMix(keras.layers.Layer):
    """γ · Σ softmax(s)ⱼ · xⱼ, with trainable numbers sⱼ and γ (ELMo, arXiv 1802.05365, equation 1).

    It starts as the mean.

    Call:
        xs: list of tensors of the same shape.

    Returns:
        That shape.
    """

    def build(self, shapes):
        self.scalars = self.add_weight(shape=(len(shapes),), initializer="zeros", name="scalars")
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(self, xs):
        scalars = ops.softmax(ops.convert_to_tensor(self.scalars))
        mixed = sum(scalars[j] * x for j, x in enumerate(xs))
        return ops.convert_to_tensor(self.gamma) * mixed

    def compute_output_shape(self, shapes):
        return shapes[0]

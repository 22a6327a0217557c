"""Layers that combine the outputs of several layers."""

import keras
from keras import ops


class ScalarMix(keras.layers.Layer):
    """γ · Σ softmax(s)ⱼ · xⱼ, with trainable numbers sⱼ and γ (ELMo, arXiv 1802.05365, equation 1).

    It starts as the mean.

    Call:
        xs: list of tensors of the same shape.

    Returns:
        A tensor of that shape.
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


class LayerCombination(keras.layers.Layer):
    """Several layers' outputs combined into one feature vector per token (BERT, arXiv 1810.04805,
    table 7).

    Args:
        how: how to combine: ``"concatenate"``; ``"sum"``; or ``"mix"``, a ``ScalarMix``.

    Call:
        xs: list of tensors (…, width).

    Returns:
        (…, width), or concatenated (…, sum of widths).
    """

    KINDS = ("concatenate", "sum", "mix")

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how
        self.mix = ScalarMix(name="mix", dtype=self.dtype_policy) if how == "mix" else None

    def build(self, shapes):
        if self.mix is not None:
            self.mix.build(shapes)

    def call(self, xs):
        if self.mix is not None:
            return self.mix(xs)
        return sum(xs) if self.how == "sum" else ops.concatenate(xs, axis=-1)

    def compute_output_shape(self, shapes):
        if self.how != "concatenate":
            return shapes[0]
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

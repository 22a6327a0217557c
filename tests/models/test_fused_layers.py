"""Layers that replace Keras' for speed: the same values, gradients and distributions."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import bertfam_tf as bf
from bertfam_tf.layers import Dropout, FeedForward, activation, fused


def _with_gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x, tf.sin(tf.cast(tf.range(tf.size(x)), x.dtype)))


# TensorFlow rounds the constant to float32.
@pytest.mark.parametrize(("dtype", "error"), [("float64", 2e-8), ("float32", 1e-6)])
def test_gelu(dtype, error):
    x = tf.cast(tf.linspace(-12.0, 12.0, 4001), dtype)
    for mine, theirs in zip(
        _with_gradient(fused.gelu, x),
        _with_gradient(lambda x: tf.nn.gelu(x, approximate=False), x),
        strict=True,
    ):
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, theirs, atol=error, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gelu_in_half_precision_is_that_of_float32_rounded(dtype):
    x = tf.cast(tf.linspace(-6.0, 6.0, 1001), dtype)
    y, gradient = _with_gradient(fused.gelu, x)
    full = tf.cast(x, "float32")
    with tf.GradientTape() as tape:
        tape.watch(full)
        expected = tf.nn.gelu(full, approximate=False)
    upstream = tf.cast(tf.sin(tf.cast(tf.range(tf.size(x)), x.dtype)), "float32")
    assert y.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(y, tf.cast(expected, dtype))
    digits = 2**-8 if dtype == "bfloat16" else 2**-11
    slopes = tape.gradient(expected, full, upstream)
    np.testing.assert_allclose(tf.cast(gradient, "float32"), slopes, rtol=2 * digits, atol=1e-6)


def test_a_feed_forward_trains_with_it(monkeypatch):
    layer = FeedForward(8, activation("gelu"))
    x = keras.random.normal((3, 4))
    expected = layer(x, training=False)
    np.testing.assert_allclose(layer(x, training=True), expected, atol=1e-7)
    calls = []
    monkeypatch.setattr(fused, "gelu", lambda x: calls.append(x) or x)
    layer(x, training=False)
    assert not calls
    layer(x, training=True)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout(rate, dtype):
    layer = Dropout(rate, seed=1, dtype=dtype)
    x = tf.ones([401, 301], dtype)  # an odd number of values
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
    values = tf.cast(y, "float32").numpy()
    kept = values != 0
    count = values.size
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / count)
    np.testing.assert_allclose(
        values[kept], 1 / (1 - rate), rtol=2**-8 if dtype != "float32" else 1e-3
    )
    # The same values are dropped from the gradient.
    np.testing.assert_array_equal(tape.gradient(y, x), y)
    # Neighbours come from the two halves of a random number.
    pairs = np.corrcoef(kept.ravel()[:-1:2], kept.ravel()[1::2])[0, 1]
    assert abs(pairs) < 5 / np.sqrt(count / 2)
    assert (layer(x, training=True) != y).numpy().any()
    again = Dropout(rate, seed=1, dtype=dtype)
    np.testing.assert_array_equal(again(x, training=True), y)


def test_dropout_elsewhere_is_keras():
    x = tf.random.normal([3, 4])
    np.testing.assert_array_equal(Dropout(0.5)(x), x)
    np.testing.assert_array_equal(Dropout(0.5)(x, training=False), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)
    np.testing.assert_array_equal(Dropout(1.0)(x, training=True), tf.zeros_like(x))
    rows = Dropout(0.5, noise_shape=(3, 1), seed=0)(tf.ones([3, 40]), training=True).numpy()
    assert (rows == rows[:, :1]).all()
    assert Dropout(0.5)(tf.ones([0, 4]), training=True).shape == (0, 4)


def test_dropout_in_a_graph():
    layer = Dropout(0.5, seed=0)
    signature = [tf.TensorSpec([None, 6], tf.float32)]
    function = tf.function(lambda x: layer(x, training=True), input_signature=signature)
    assert function.get_concrete_function().structured_outputs.shape.as_list() == [None, 6]
    first, second = function(tf.ones([5, 6])), function(tf.ones([5, 6]))
    assert (first != second).numpy().any()
    jitted = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    assert set(np.unique(jitted(tf.ones([50, 6])))) == {0.0, 2.0}


def test_models_have_no_dropout_of_keras():
    """Its random numbers take a tenth of a training step on CPUs."""
    backbone = bf.build("bert", "tiny", vocab_size=20)
    dropouts = [x for x in backbone._flatten_layers() if isinstance(x, keras.layers.Dropout)]
    assert dropouts
    assert {type(layer) for layer in dropouts} == {Dropout}
    assert ops.shape(dropouts[0](np.ones((2, 3, 4), "float32"), training=True)) == (2, 3, 4)

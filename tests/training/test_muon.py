"""Muon beside its formula, and by recipe settings."""

import keras
import numpy as np
import pytest

from bertfam_tf.training import optimizers
from bertfam_tf.training.settings import TrainConfig


def test_a_matrix_moves_by_its_orthogonalized_gradient():
    matrix = keras.Variable(np.ones((4, 6)), dtype="float32", name="kernel")
    # As in Transformer-XL's attention, with an axis of heads.
    bias = keras.Variable(np.ones((2, 6)), dtype="float32", name="bias")
    optimizer = optimizers.from_settings(
        TrainConfig(
            optimizer="muon", weight_decay=0.0, clip_norm=None, schedule="constant", warmup=0
        ),
        10,
    )
    optimizer.build([matrix, bias])
    gradient = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    optimizer.apply([keras.ops.convert_to_tensor(gradient), keras.ops.ones((2, 6))])
    step = np.asarray(1 - matrix.numpy()) / (5e-5 * 0.2 * np.sqrt(6))
    # Newton-Schulz iterations bring singular values near to 1, and keep singular vectors.
    u, s, v = np.linalg.svd(step)
    assert (np.abs(s - 1) < 0.35).all()
    expected = np.linalg.svd(gradient)
    np.testing.assert_allclose(u @ v[:4], expected[0] @ expected[2][:4], atol=0.02)
    # AdamW's first step is the learning rate.
    np.testing.assert_allclose(1 - bias.numpy(), 5e-5, rtol=1e-2)


@pytest.mark.parametrize(("name", "decays"), [("kernel", True), ("bias", False)])
def test_decay_is_adamws(name, decays):
    variable = keras.Variable(np.ones((2, 2) if decays else 2), dtype="float32", name=name)
    settings = TrainConfig(
        optimizer="muon", weight_decay=0.1, learning_rate=0.5, schedule="constant", warmup=0
    )
    optimizer = optimizers.from_settings(settings, 10)
    optimizer.build([variable])
    optimizer.apply([keras.ops.zeros(variable.shape)])
    np.testing.assert_allclose(variable.numpy(), 0.95 if decays else 1.0, atol=1e-6)


@pytest.fixture
def half():
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy("float32")


SHAPES = {"wide": (4, 12), "tall": (12, 4), "embedding": (6, 4), "bias": (5,)}


def trained(optimizer, steps=4):
    rng = np.random.default_rng(0)
    variables = [
        keras.Variable(rng.normal(size=shape), dtype="float32", name=name)
        for name, shape in SHAPES.items()
    ]
    optimizer.build(variables)
    for _ in range(steps):
        optimizer.apply(
            [
                keras.ops.convert_to_tensor(x, "float32")
                for x in (rng.normal(size=each.shape) for each in variables)
            ]
        )
    return {each.name: each.numpy() for each in variables}


def test_steps_are_those_of_keras():
    """Adam's weights too, which are updated by one operation."""
    settings = TrainConfig(
        optimizer="muon",
        learning_rate=0.05,
        weight_decay=0.0,
        clip_norm=None,
        schedule="constant",
        warmup=0,
    )
    ours = trained(optimizers.from_settings(settings, 10))
    theirs = trained(
        keras.optimizers.Muon(
            0.05,
            weight_decay=None,
            adam_weight_decay=None,
            epsilon=settings.epsilon,
            adam_beta_2=settings.beta_2,
        )
    )
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_half_precision_orthogonalizes_in_bfloat16(half):
    settings = TrainConfig(
        optimizer="muon", learning_rate=0.05, weight_decay=0.0, schedule="constant", warmup=0
    )
    optimizer = optimizers.from_settings(settings, 10)
    assert optimizer.newton_schulz_dtype == "bfloat16"
    restored = type(optimizer).from_config(optimizer.get_config())
    assert restored.newton_schulz_dtype == "bfloat16"
    exact = optimizers.from_settings(settings, 10)
    exact.newton_schulz_dtype = None
    ours, expected = trained(optimizer), trained(exact)
    np.testing.assert_array_equal(ours["embedding"], expected["embedding"])
    for name in ("wide", "tall"):
        difference = np.abs(ours[name] - expected[name]).max()
        # Of four steps, each of which changes a weight by up to 0.05 · 0.2 · sqrt(12).
        assert 0 < difference < 0.2 * 4 * 0.05 * 0.2 * np.sqrt(12)

"""Muon beside its formula, and by recipe settings."""

import keras
import numpy as np
import pytest

from bertfam_tf.training import optimizers
from bertfam_tf.training.settings import TrainConfig


def test_a_matrix_moves_by_its_orthogonalized_gradient():
    matrix = keras.Variable(np.ones((4, 6)), dtype="float32", name="kernel")
    bias = keras.Variable(np.ones(6), dtype="float32", name="bias")
    optimizer = optimizers.from_settings(
        TrainConfig(
            optimizer="muon", weight_decay=0.0, clip_norm=None, schedule="constant", warmup=0
        ),
        10,
    )
    optimizer.build([matrix, bias])
    gradient = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    optimizer.apply([keras.ops.convert_to_tensor(gradient), keras.ops.ones(6)])
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

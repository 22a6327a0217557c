"""The schedules' values, and AdamW and LAMB against computations by hand."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf import TextClassifier
from bertfam_tf.training import optimizers, slices
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.optimizers import (
    AdamW,
    Lamb,
    OffsetSchedule,
    WarmupLinearDecay,
    adamw,
    lamb,
)
from bertfam_tf.training.settings import OPTIMIZERS, TrainConfig


@pytest.mark.parametrize(
    ("warmup", "total", "values"),
    [
        (10, 110, {0: 0, 5: 1, 10: 2, 60: 1, 110: 0, 200: 0}),
        (0, 100, {0: 2, 50: 1, 100: 0}),
        (4, 4, {0: 0, 2: 1, 4: 0}),
        (10, None, {0: 0, 5: 1, 10: 2, 10_000: 2}),
        (0, None, {0: 2, 10_000: 2}),
        (0, 0, {0: 0}),
    ],
)
def test_schedule(warmup, total, values):
    schedule = WarmupLinearDecay(2.0, warmup, total)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    for step, rate in values.items():
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6)
        assert float(again(step)) == float(schedule(step))


@pytest.mark.parametrize(("warmup", "total"), [(5, 4), (-1, 4)])
def test_a_warm_up_beyond_the_run_is_refused(warmup, total):
    with pytest.raises(ValueError, match=f"warmup_steps {warmup} is not within"):
        WarmupLinearDecay(1.0, warmup, total)


@pytest.mark.parametrize("warmup", [-0.1, 1.0, 10])
def test_warmup_is_a_part(warmup):
    with pytest.raises(ValueError, match="warmup must be at least 0 and below 1"):
        adamw(warmup=warmup, total_steps=10)


def test_a_shifted_schedule():
    line = WarmupLinearDecay(2.0, 10, 110)
    shifted = OffsetSchedule(line, 50)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(shifted))
    for step in (0, 10, 59):
        assert float(shifted(step)) == float(again(step)) == float(line(step + 50))


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("make", [adamw, lamb])
def test_steps_by_hand(make, bias_correction):
    rate, decay, clip, epsilon, beta_1, beta_2, steps = 0.1, 0.3, 0.7, 1e-2, 0.9, 0.98, 6
    optimizer = make(
        rate,
        total_steps=steps,
        warmup=0.34,
        weight_decay=decay,
        clip_norm=clip,
        epsilon=epsilon,
        beta_2=beta_2,
        factors={"kernel": 0.5},
        bias_correction=bias_correction,
    )
    factors = {"kernel": 0.5, "bias": 1.0, "zeros": 1.0}
    rng = np.random.default_rng(0)
    values = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2), "zeros": np.zeros(3)}
    variables = {name: keras.Variable(v, name=name) for name, v in values.items()}
    first = {name: np.zeros_like(v) for name, v in values.items()}
    second = {name: np.zeros_like(v) for name, v in values.items()}
    for step in range(steps):
        # One step below the clip, the others above it.
        scale = 0.01 if step == 3 else 1.0
        gradients = {name: scale * rng.normal(size=v.shape) for name, v in values.items()}
        optimizer.apply(
            [keras.ops.convert_to_tensor(g, "float32") for g in gradients.values()],
            list(variables.values()) if step == 0 else None,
        )
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        lr = rate * min(step / 2, (steps - step) / (steps - 2))
        for name, g in gradients.items():
            g = g * min(1, clip / norm)
            first[name] = beta_1 * first[name] + (1 - beta_1) * g
            second[name] = beta_2 * second[name] + (1 - beta_2) * g**2
            mean, square = first[name], second[name]
            if bias_correction:
                mean = mean / (1 - beta_1 ** (step + 1))
                square = square / (1 - beta_2 ** (step + 1))
            update = mean / (np.sqrt(square) + epsilon)
            if name != "bias":
                update += decay * values[name]
                weight = np.linalg.norm(values[name])
                if make is lamb and weight > 0:
                    update *= weight / np.linalg.norm(update)
            values[name] -= lr * factors[name] * update
        for name, variable in variables.items():
            np.testing.assert_allclose(variable.numpy(), values[name], rtol=2e-5, atol=1e-6)
    assert optimizer.moments.keys() == values.keys()
    for name, (mean, square) in optimizer.moments.items():
        np.testing.assert_allclose(mean.numpy(), first[name], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(square.numpy(), second[name], rtol=2e-5, atol=1e-6)


def test_a_skipped_step_starts_keras_accumulation_anew():
    """The next step has all of its gradients, not one divided by their number."""
    finite = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")

    def trained(gradients):
        variable = keras.Variable(np.ones((3, 2), "float32"), name="kernel")
        optimizer = AdamW(0.1, skip_nonfinite=True, gradient_accumulation_steps=2)
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        return variable.numpy(), int(optimizer.iterations)

    weights, steps = trained(finite)
    skipped, same = trained([*finite[:2], finite[0], finite[0] * np.inf, *finite[2:]])
    assert steps == same == 2
    np.testing.assert_array_equal(skipped, weights)


def test_optimizers_of_recipes():
    kinds = {"adamw": AdamW, "lamb": Lamb, "muon": optimizers.Muon}
    for name in OPTIMIZERS:
        kind, _, uncorrected = name.partition("_")
        found = optimizers.from_settings(
            TrainConfig(optimizer=name, beta_2=0.98, clip_norm=0.5), 10
        )
        assert type(found) is kinds[kind]
        assert found.bias_correction == (not uncorrected)
        beta_2 = found.adam_beta_2 if kind == "muon" else found.beta_2
        assert (beta_2, found.global_clipnorm, found.weight_decay) == (0.98, 0.5, 0.01)
        again = keras.optimizers.deserialize(keras.optimizers.serialize(found))
        assert again.get_config() == found.get_config()
    constant = OffsetSchedule(WarmupLinearDecay(3.0, 0, None), 0)
    assert (
        float(optimizers.from_settings(TrainConfig(), 10, schedule=constant).learning_rate) == 3.0
    )
    with pytest.raises(ValueError, match=r"train.optimizer must be one of adamw.*, got 'adam'"):
        TrainConfig(optimizer="adam")


@pytest.mark.parametrize("make", [adamw, lamb])
@pytest.mark.parametrize("options", [{}, {"clip_norm": None}, {"factors": {"variable": 0.5}}])
def test_parts_of_a_gradient_are_added_first(options, make):
    values = np.random.default_rng(0).normal(0, 3, (6, 2)).astype("float32")
    parts = tf.IndexedSlices(values, tf.constant([4, 0, 4, 2, 0, 4]), [5, 2])
    found = []
    for gradient in (parts, tf.convert_to_tensor(parts)):
        optimizer = make(0.1, epsilon=1.0, **options)
        variable = keras.Variable(np.ones((5, 2), "float32"), name="variable")
        for _ in range(2):
            optimizer.apply([gradient], [variable])
        found.append(variable.numpy())
        norm = np.linalg.norm(tf.convert_to_tensor(parts))
        assert optimizer.gradient_norm.read() == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [[], [3], [3, 3, 0], [1, 2, 3, 0]])
def test_slices_of_a_row_are_added(rows, compiled):
    @tf.function(jit_compile=compiled)
    def added(values, rows):
        found = slices.one_per_row(tf.IndexedSlices(values, rows, tf.constant([4, 2])))
        return found.values, tf.convert_to_tensor(found)

    values = np.random.default_rng(0).normal(size=(len(rows), 2)).astype("float32")
    found, total = added(tf.constant(values), tf.constant(rows, tf.int64))
    expected = np.zeros((4, 2), "float32")
    np.add.at(expected, rows, values)
    np.testing.assert_allclose(total, expected, rtol=1e-6)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=1e-6)


def test_amsgrad_is_refused():
    with pytest.raises(ValueError, match="amsgrad is not supported"):
        AdamW(1e-3, amsgrad=True)


def test_biases_and_norms_of_a_task_do_not_decay(tiny):
    task = TextClassifier.from_pretrained(tiny)
    before = {v.path: v.numpy() for v in task.trainable_variables}
    optimizer = adamw(1e-2, weight_decay=0.5)
    zeros = [keras.ops.zeros(v.shape) for v in task.trainable_variables]
    optimizer.apply(zeros, task.trainable_variables)
    for variable in task.trainable_variables:
        name = variable.path.rpartition("/")[2]
        still = name in ("bias", "gamma", "beta")
        kept = np.array_equal(variable.numpy(), before[variable.path])
        assert kept == still, variable.path
        if not still:
            assert name in ("kernel", "embeddings")
            np.testing.assert_allclose(
                variable.numpy(), before[variable.path] * (1 - 1e-2 * 0.5), rtol=1e-5
            )


@pytest.mark.full
def test_the_training_step_is_traced_once(smallest):
    labels = ["negative", "neutral", "positive"]
    task = TextClassifier.from_pretrained(smallest, labels=labels)
    with (
        mock.patch.object(AdamW, "apply", autospec=True, side_effect=AdamW.apply) as apply,
        mock.patch.object(Learner, "call", autospec=True, side_effect=Learner.call) as call,
    ):
        task.fit(["good", "bad", "dull"], labels, batch_size=1, verbose=0)
    assert apply.call_count == 1
    # Nor is the model traced for the shapes that metrics are built with.
    assert call.call_count == 1

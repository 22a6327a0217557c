"""What is logged of steps, and steps that are left out."""

import json
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.objectives.objective import Supervised
from bertfam_tf.training import optimizers
from bertfam_tf.training.callbacks.divergence import StopAtDivergence
from bertfam_tf.training.callbacks.logs import StepLog
from bertfam_tf.training.learner import Learner, mean_loss
from bertfam_tf.training.settings import TrainConfig
from tests.extending.test_objective import Correct, Length, data, learner
from tests.selection import in_full, only_in


def test_a_column_of_weights_is_one_for_each_loss():
    total, count = mean_loss(np.float32([1, 2]), np.float32([[3], [4]]))
    assert (float(total), float(count)) == (11, 2)


def events(folder):
    """Values by name and step."""
    found = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


@only_in("full", "3")
@pytest.mark.parametrize("parts", in_full([1, 3], [3]))
def test_what_a_step_measures(parts):
    """Loss and norm are those of the whole batch, before clipping."""
    model = learner(Correct, Length)
    x, batches = data(7)
    first = {name: values[:7] for name, values in x.items()}
    with tf.GradientTape() as tape:
        loss = model.compute_loss(first, None, model(first, training=True))
    weights = [v.value for v in model.trainable_weights]
    gradients = [g for g in tape.gradient(loss, weights) if g is not None]
    norm = tf.linalg.global_norm(list(map(tf.convert_to_tensor, gradients)))
    model.compile(optimizers.adamw(1e-3, clip_norm=0.01), accumulation_steps=parts)
    model.fit(batches.take(1), verbose=0)
    assert model.step_loss.read() == pytest.approx(float(loss), rel=1e-5)
    assert model.optimizer.gradient_norm.read() == pytest.approx(float(norm), rel=1e-5)
    assert [*model.step_counts.take()] == [7, 7, first["padding_mask"].sum()]
    assert [*model.step_counts.take()] == [0, 0, 0]
    watched = {"step_loss", "step_counts", "gradient_norm", "skipped", "measured"}
    assert watched.isdisjoint(v.name for v in (*model.variables, *model.optimizer.variables))


def test_numbers_of_examples_and_tokens():
    x = keras.Input((3,))
    count_batch = Learner(x, x).count_batch
    mask = np.array([[[1, 1, 0], [1, 0, 0]]])
    assert [*count_batch({"padding_mask": mask})] == [1, 2, 3]
    assert [*count_batch({"begins": np.zeros(2), "token_ids": np.zeros((2, 5))})] == [2, 2, 10]
    assert [*count_batch(np.zeros((4, 3)))] == [4, 4, 0]


def test_a_log_goes_on_after_the_step_of_a_checkpoint(tmp_path):
    """Later lines are removed, and one that was cut, from TensorBoard's events too."""
    file, board = tmp_path / "metrics.jsonl", tmp_path / "board"
    log = StepLog(file, board)
    log.on_train_begin()
    for step, values in ((2, {"loss": 1.0}), (4, {"loss": np.nan}), (4, {"epoch": 0, "loss": 0.8})):
        log.step = step
        log._write(values)
    kept = log.lines
    assert kept[1:] == [{"step": 4, "loss": None}, {"step": 4, "epoch": 0, "loss": 0.8}]
    log.step = 6
    log._write({"loss": 0.7})
    with file.open("a") as stream:
        stream.write('{"step": 8, "lo')
    again = StepLog(file, board, step=4)
    again.on_train_begin()
    assert again.lines == kept
    again.step = 6
    again._write({"loss": 0.6})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        *kept,
        {"step": 6, "loss": 0.6},
    ]
    assert {tag: list(map(list, x.items())) for tag, x in events(board).items()} == {
        "loss": [[2, 1.0], [6, pytest.approx(0.6)]],
        "epoch/loss": [[4, pytest.approx(0.8)]],
    }


def _linear():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))

    def loss(targets, outputs, weights):
        losses = (outputs[:, 0] - targets) ** 2
        return tf.reduce_sum(losses), tf.cast(tf.size(targets), "float32")

    return Learner(inputs, keras.layers.Dense(1)(inputs), [Supervised(loss)])


@pytest.mark.extended
@pytest.mark.parametrize("name", in_full(["adamw", "lamb"], ["adamw"]))
def test_a_step_without_finite_gradients_is_left_out(name):
    """As if its batch were not in the data: weights, moments, iterations and the mean loss."""
    settings = TrainConfig(optimizer=name, on_divergence="skip", learning_rate=0.1)
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    spoiled = x.copy()
    spoiled[5, 1] = np.inf
    found = []
    for rows in (spoiled, np.delete(x, slice(4, 8), axis=0)):
        model = _linear()
        model.compile(optimizers.from_settings(settings, 8))
        history = model.fit(rows, rows[:, 0] * 2, batch_size=4, epochs=2, shuffle=False, verbose=0)
        variables = [*model.weights, *model.optimizer.variables]
        found.append([*(v.numpy() for v in variables), history.history["loss"]])
        assert model.optimizer.skipped.read() == (2 if rows is spoiled else 0)
    assert len(found[0]) > 6
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_steps_that_are_left_out_in_a_row_are_an_error():
    skipped = [*range(1, 10), 9, *range(10, 20)]  # one step in between is taken
    read = mock.Mock(side_effect=[0, *skipped])
    watch = StopAtDivergence(lambda step: [f"text {step}"])
    optimizer = mock.Mock(skip_nonfinite=True, skipped=mock.Mock(read=read))
    watch.set_model(mock.Mock(optimizer=optimizer))
    watch.on_train_begin()
    for _ in skipped[:-1]:
        watch.on_train_batch_end(0, {"loss": np.nan})
    error = r"of the 10 steps up to 20 are not finite: .*Examples of the batch: 'text 19'\."
    with pytest.raises(ValueError, match=error):
        watch.on_train_batch_end(0, {"loss": np.nan})


def test_loss_scaling_leaves_out_steps_itself():
    scaled = keras.optimizers.LossScaleOptimizer(optimizers.AdamW(0.1, skip_nonfinite=True))
    with pytest.raises(ValueError, match="skip_nonfinite of the optimizer must be False with"):
        _linear().compile(scaled)
    with pytest.raises(ValueError, match="on_divergence must be stop or skip, got 'ignore'"):
        TrainConfig(on_divergence="ignore")


def test_lines_of_version_0_1(tmp_path):
    """Their name of the model FLOPs utilization is read as today's."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 2, "loss": 1.5, "flops_share": 0.25}\n{"step": 4, "mfu": 0.5}\n')
    lines = StepLog(file, tmp_path / "tensorboard").lines
    assert lines == [{"step": 2, "loss": 1.5, "mfu": 0.25}, {"step": 4, "mfu": 0.5}]

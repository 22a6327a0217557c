"""The best epoch is kept, whatever happens to the process."""

import types

import keras
import numpy as np
import pytest

from bertfam_tf.training.callbacks.best import BestEpoch, direction


def make():
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, name="dense")], name="model")
    model.build((None, 1))
    return model


def run(model, directory, scores, start=0, patience=2, monitor="val_accuracy", writes=True):
    """Epochs with those scores; the weight of each is its number."""
    callback = BestEpoch(directory, monitor, patience, writes=writes)
    callback.set_model(model)
    model.stop_training = False
    for epoch, score in enumerate(scores, start):
        model.weights[0].assign([[epoch]])
        callback.on_epoch_end(epoch, {monitor: score})
        if model.stop_training:
            break
    return callback, epoch


def test_the_best_epoch_comes_back(tmp_path):
    model = make()
    callback, last = run(model, tmp_path, [0.1, 0.5, 0.4, 0.5, 0.9])
    assert last == 3
    assert callback.exhausted
    callback.restore(model)
    assert float(np.array(model.weights[0])[0, 0]) == 1


def test_a_loss_is_better_when_it_is_smaller(tmp_path):
    model = make()
    callback, last = run(model, tmp_path, [3.0, 1.0, 2.0, 0.5], monitor="val_loss")
    assert (last, callback.exhausted) == (3, False)
    callback.restore(model)
    assert float(np.array(model.weights[0])[0, 0]) == 3


@pytest.mark.parametrize("monitor", ["val_masked_lm", "val_mse", "val_squared_error"])
def test_losses_by_name_and_errors_are_better_when_they_are_smaller(tmp_path, monitor):
    model = make()
    model.objectives = [types.SimpleNamespace(weights={"masked_lm": 1.0, "pair": 1.0})]
    _, last = run(model, tmp_path, [3.0, 1.0, 2.0, 0.5], monitor=monitor)
    assert last == 3


def test_which_direction_is_better():
    """Without a model too, as for the runs of a sweep."""
    for metric in ("masked_lm", "val_rtd", "sparse_categorical_crossentropy", "logcosh"):
        assert direction(metric) == -1
    for metric in ("masked_lm_accuracy", "val_pearson"):
        assert direction(metric) == 1


def test_a_score_that_is_not_a_number_is_never_the_best(tmp_path):
    callback, last = run(make(), tmp_path, [float("nan"), 0.1, 0.5, float("nan")])
    assert (last, callback.exhausted) == (3, False)
    assert callback._best(callback.values) == 2


@pytest.mark.full
def test_a_killed_run_stops_where_the_other_does(tmp_path):
    run(make(), tmp_path, [0.1, 0.5, 0.4])
    # The last epoch once more, and the next.
    model = make()
    callback, last = run(model, tmp_path, [0.4, 0.3, 0.9], start=2)
    assert last == 3
    callback.restore(model)
    assert float(np.array(model.weights[0])[0, 0]) == 1


def test_other_workers_follow_the_first_one(tmp_path):
    """They write nothing, and their own scores do not matter."""
    first, other = make(), make()
    run(first, tmp_path, [0.1, 0.5, 0.4])
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    callback, last = run(other, tmp_path, [0.1, 0.5, 0.9], writes=False)
    assert (last, callback.exhausted) == (2, False)
    run(first, tmp_path, [0.5], start=3)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} != before
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    callback, last = run(other, tmp_path, [0.9, 0.9], start=3, writes=False)
    assert (last, callback.exhausted) == (3, True)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before
    callback.restore(other)
    assert float(np.array(other.weights[0])[0, 0]) == 1


def test_a_metric_that_is_not_there(tmp_path):
    callback = BestEpoch(tmp_path, "val_f1", 1)
    callback.set_model(make())
    with pytest.raises(ValueError, match="no metric 'val_f1' to compare epochs by"):
        callback.on_epoch_end(0, {"loss": 1.0})

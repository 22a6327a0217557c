"""Batches of like length, in an order that says nothing of length."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.data import shuffled_batches

_SIZE, _WINDOW = 4, 32 * 4
_COUNT = 3 * _WINDOW + 2


def _numbers(stream):
    return [batch["text"].numpy().astype(int).tolist() for (batch,) in stream]


@pytest.fixture(scope="module")
def rows():
    """Row i is the number i, with zeros before it: i + 1 characters."""
    texts = [str(i).zfill(i + 4) for i in range(_COUNT)]
    return tf.data.Dataset.from_tensor_slices(({"text": texts},))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_every_row_is_in_one_batch_and_windows_stay_together(rows, seed):
    found = _numbers(shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=seed))
    assert sorted(itertools.chain(*found)) == list(range(_COUNT))
    assert sorted(map(len, found)) == [2] + [_SIZE] * (len(found) - 1)
    for start in range(0, len(found), 32):
        window = found[start : start + 32]
        by_length = [*itertools.chain(*sorted(window, key=min))]
        assert by_length == sorted(by_length)
        assert len(window) == 1 or window != sorted(window, key=min)


def test_orders(rows):
    stream = shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=0)
    first, second = _numbers(stream), _numbers(stream)
    assert first != second
    again = shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=0)
    assert [_numbers(again), _numbers(again)] == [first, second]
    assert _numbers(shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=1)) != first
    # Places of short, middling and long batches differ from window to window.
    places = [np.argsort([min(b) for b in first[i : i + 32]]).tolist() for i in (0, 32, 64)]
    assert places[0] != places[1] != places[2]


@pytest.mark.full
def test_no_part_of_an_epoch_has_shorter_rows(rows):
    means = np.zeros(97)
    for seed in range(64):
        found = _numbers(shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=seed))
        means += [np.mean(batch) / 64 for batch in found]
    for part in np.array_split(means, 6):
        # Of 16 batches in 64 orders; one has a standard deviation of 112.
        assert np.mean(part) == pytest.approx((_COUNT - 1) / 2, abs=5 * 112 / 32)

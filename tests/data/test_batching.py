"""Batches of like length, in an order that says nothing of length."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.data import TokenBatches, as_value_errors, shuffled_batches
from tests.selection import in_full

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


@pytest.mark.extended
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


@pytest.mark.extended
def test_without_a_seed_orders_differ(rows, words):
    """Of epochs, and of data sets that are made in the same way."""
    for make in (
        lambda: shuffled_batches(rows, _SIZE, buffer=_COUNT),
        lambda: TokenBatches(24, _words_and_two)(words, buffer=len(_WORDS)),
    ):
        found = []
        for stream in (make(), make()):
            for _ in range(2):
                found.append([batch[0]["text"].numpy().tolist() for batch in stream])
        assert all(one != other for one, other in itertools.combinations(found, 2))
        everything = [sorted(itertools.chain(*each)) for each in found]
        assert everything[0] == everything[1] == everything[2] == everything[3]


@pytest.mark.full
def test_no_part_of_an_epoch_has_shorter_rows(rows):
    means = np.zeros(97)
    for seed in range(64):
        found = _numbers(shuffled_batches(rows, _SIZE, buffer=_COUNT, seed=seed))
        means += [np.mean(batch) / 64 for batch in found]
    for part in np.array_split(means, 6):
        # Of 16 batches in 64 orders; one has a standard deviation of 112.
        assert np.mean(part) == pytest.approx((_COUNT - 1) / 2, abs=5 * 112 / 32)


# By tokens ------------------------------------------------------------------------------------

# One word is one token, between two special ones.
_WORDS = [
    3,
    1,
    4,
    1,
    5,
    9,
    2,
    6,
    5,
    3,
    5,
    8,
    9,
    7,
    9,
    3,
    2,
    3,
    8,
    4,
    6,
    2,
    6,
    4,
    3,
    3,
    8,
    3,
    2,
    0,
] * 3


def _words_and_two(features):
    assert features["text"].shape.rank == 1
    return tf.cast(tf.strings.split(features["text"]).row_lengths(), tf.int32) + 2


@pytest.fixture(scope="module")
def words():
    """Row i has as many words as ``_WORDS`` says, and i as a label and as a weight."""
    texts = [" ".join("a" * count) for count in _WORDS]
    choices = [[text, str(i)] for i, text in enumerate(texts)]
    numbers = list(range(len(texts)))
    features = {"text": texts, "choices": choices}
    return tf.data.Dataset.from_tensor_slices((features, {"label": numbers}, numbers))


def _rows(stream):
    found = []
    for features, labels, weights in stream:
        counts = _words_and_two(features).numpy().tolist()
        numbers = weights.numpy().tolist()
        assert labels["label"].numpy().tolist() == numbers
        assert features["choices"].numpy()[:, 1].astype(int).tolist() == numbers
        assert counts == [_WORDS[i] + 2 for i in numbers]
        found.append(numbers)
    return found


def _lengths(rows):
    return [[_WORDS[i] + 2 for i in batch] for batch in rows]


@pytest.mark.full
@pytest.mark.parametrize("budget", in_full([11, 24, 100, 10_000], [24]))
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("buffer", [None, 20, len(_WORDS)])
def test_batches_within_a_number_of_tokens(words, budget, counted, buffer):
    batches = TokenBatches(budget, _words_and_two)
    batches = batches.counted(words) if counted else batches
    stream = batches(words, buffer=buffer, seed=0)
    epochs = [_rows(stream), _rows(stream)]
    for found in epochs:
        assert sorted(itertools.chain(*found)) == list(range(len(_WORDS)))
        # With their padding too.
        assert max(max(lengths) * len(lengths) for lengths in _lengths(found)) <= budget
    assert len(epochs[0]) == len(epochs[1])
    if counted:
        assert batches.steps == len(epochs[0])
        filled = np.mean([sum(lengths) for lengths in _lengths(epochs[0])]) / budget
        assert filled > {11: 0.6, 24: 0.8, 100: 0.75, 10_000: 0}[budget]
    if buffer is not None:
        assert epochs[0] != epochs[1]
        assert _rows(batches(words, buffer=buffer, seed=0)) == epochs[0]
        assert _rows(batches(words, buffer=buffer, seed=1)) != epochs[0]
        assert _rows(batches(words, buffer=buffer, seed=0).skip(2)) == epochs[0][2:]
    else:
        assert epochs[0] == epochs[1]


def test_no_choice_of_buckets_makes_fewer_batches():
    def batches(bounds, lengths, budget):
        below = [0, *bounds]
        buckets = [
            (sum(a < each <= b for each in lengths), budget // b)
            for a, b in itertools.pairwise(below)
        ]
        return sum(-(-count // size) for count, size in buckets)

    rng = np.random.default_rng(0)
    for budget in (12, 30, 100):
        lengths = rng.choice([1, 2, 3, 5, 8, 11, 12], 60).tolist()
        known = sorted(set(lengths))
        inner = [each for n in range(len(known)) for each in itertools.combinations(known[:-1], n)]
        fewest = min(batches([*each, known[-1]], lengths, budget) for each in inner)
        features = {"text": [" ".join("a" * (each - 1)) for each in lengths]}
        rows = tf.data.Dataset.from_tensor_slices((features,))
        found = TokenBatches(budget, lambda each: _words_and_two(each) - 1).counted(rows)
        assert found.steps == fewest == batches(found.bounds, lengths, budget)


def test_an_example_longer_than_a_batch(words):
    batches = TokenBatches(10, _words_and_two)
    error = "batch_tokens is 10, less than the 11 tokens of an example."
    with pytest.raises(ValueError, match=error):
        batches.counted(words)
    with pytest.raises(ValueError, match=error), as_value_errors():
        list(batches(words))
    with pytest.raises(ValueError, match="batch_tokens must be at least 1, got 0"):
        TokenBatches(0, _words_and_two)


def test_more_lengths_than_bounds():
    lengths = np.arange(1, 2000).tolist()
    texts = [b"a" * each for each in lengths]
    rows = tf.data.Dataset.from_tensor_slices(({"text": texts},))
    found = TokenBatches(4000, lambda each: tf.strings.length(each["text"])).counted(rows)
    assert len(found.bounds) <= 256
    assert found.bounds[-1] == 1999
    sizes = [features["text"].shape[0] for (features,) in found(rows)]
    assert (len(sizes), sum(sizes)) == (found.steps, 1999)
    assert sum(lengths) / 4000 <= found.steps <= 1.3 * sum(lengths) / 4000

"""Correlations and F1 over batches, compared with scipy and manual counts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.metrics import (
    AUC,
    F1,
    METRICS,
    MRR,
    NDCG,
    Matthews,
    MicroF1,
    Pearson,
    Precision,
    Recall,
    Spearman,
    by_name,
)
from tests.selection import in_full

scipy_stats = pytest.importorskip("scipy.stats")


def _stream(metric, *columns, sizes=(1, 7, 4, 0, 200)):
    """The result after examples in batches of these sizes, repeatedly."""
    start, i = 0, 0
    while start < len(columns[0]):
        part = slice(start, start + sizes[i % len(sizes)])
        metric.update_state(*(column[part] for column in columns))
        start, i = part.stop, i + 1
    return float(metric.result())


@pytest.mark.parametrize("seed", in_full(range(5), [0]))
@pytest.mark.parametrize("ties", [False, True])
def test_correlations_are_those_of_all_rows(seed, ties):
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 1, 500)
    y = 0.5 * x + rng.normal(0, [0.1, 1, 5][seed % 3], 500)
    if ties:
        x, y = np.round(x), np.round(2 * y) / 2
    x, y = x.astype("float32"), y.astype("float32")
    pearson, spearman = Pearson(), Spearman()
    assert _stream(pearson, x, y) == pytest.approx(scipy_stats.pearsonr(x, y)[0], abs=1e-6)
    assert _stream(spearman, x, y[:, None]) == pytest.approx(
        scipy_stats.spearmanr(x, y)[0], abs=1e-6
    )
    for metric in (pearson, spearman):
        metric.reset_state()
        assert float(metric.result()) == 0
        assert _stream(metric, x[:9], -x[:9]) == pytest.approx(-1)


@pytest.mark.parametrize("metric", [Pearson, Spearman])
def test_nan_correlates_with_nothing(metric):
    assert np.isnan(_stream(metric(), np.float32([1, 2, 3]), np.float32([1, np.nan, 2])))


def test_ranks_by_hand():
    # Ranks 1.5 1.5 3 4 and 4 2.5 1 2.5.
    found = _stream(Spearman(), np.float32([0, 0, 1, 9]), np.float32([5, 2, 1, 2]))
    x, y = np.array([1.5, 1.5, 3, 4]), np.array([4, 2.5, 1, 2.5])
    assert found == pytest.approx(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize("metric", [Pearson, Spearman])
def test_nothing_and_constants(metric):
    assert float(metric().result()) == 0
    assert _stream(metric(), np.float32([0.1]), np.float32([2])) == 0
    assert _stream(metric(), np.full(999, 0.1, "float32"), np.arange(999, dtype="float32")) == 0
    assert _stream(metric(), np.arange(999, dtype="float32"), np.full(999, 1e6, "float32")) == 0


def test_values_far_from_zero():
    x = 1000 + np.arange(50, dtype="float32") / 64
    y = 5000 - x + np.float32([0, 0.25]).repeat(25)
    assert _stream(Pearson(), x, y) == pytest.approx(scipy_stats.pearsonr(x, y)[0], abs=1e-6)


def test_weights_count_rows():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=30), rng.normal(size=30), rng.integers(0, 4, 30)
    found = _stream(Pearson(), x, y, w)
    assert found == pytest.approx(np.corrcoef(x.repeat(w), y.repeat(w))[0, 1], abs=1e-6)


def _counts(true, found):
    return [
        sum((t, f) == pair for t, f in zip(true, found, strict=True))
        for pair in [(1, 1), (0, 1), (1, 0), (0, 0)]
    ]


@pytest.mark.parametrize("seed", in_full(range(4), [0]))
def test_two_labels(seed):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 2, 100)
    logits = rng.normal(size=(100, 2)) + 1.5 * np.eye(2)[true]
    a, b, c, d = _counts(true.tolist(), logits.argmax(-1).tolist())
    assert _stream(F1(), true, logits) == pytest.approx(2 * a / (2 * a + b + c))
    assert _stream(F1(), true == 1, logits) == _stream(F1(), true, logits)
    assert _stream(Precision(), true, logits) == pytest.approx(a / (a + b))
    assert _stream(Recall(), true, logits) == pytest.approx(a / (a + c))
    scores = logits[:, 1] - logits[:, 0]
    # The share of pairs of examples that are in order.
    order = scores[true == 1][:, None] > scores[true == 0][None]
    found = _stream(AUC(num_thresholds=5000), true, logits)
    assert found == pytest.approx(order.mean(), abs=2e-3)
    assert _stream(Matthews(), true, logits) == pytest.approx(
        np.corrcoef(true, logits.argmax(-1))[0, 1], rel=1e-5
    )
    assert (a * d - b * c) / np.sqrt((a + b) * (a + c) * (d + b) * (d + c)) == pytest.approx(
        np.corrcoef(true, logits.argmax(-1))[0, 1]
    )
    weights = rng.integers(0, 3, 100)
    again = true.repeat(weights), logits.repeat(weights, axis=0)
    for metric in (F1, Matthews, Precision, Recall, AUC):
        assert _stream(metric(), true, logits, weights) == pytest.approx(
            _stream(metric(), *again), rel=1e-5
        )


def test_two_labels_at_the_edge():
    yes, no = np.float32([[0, 1]]).repeat(5, 0), np.float32([[1, 0]]).repeat(5, 0)
    one, zero = np.ones(5, int), np.zeros(5, int)
    for metric in (F1, Matthews, Precision, Recall):
        assert float(metric().result()) == 0
        assert _stream(metric(), zero, no) == 0
        assert _stream(metric(), one, no) == 0
    assert _stream(F1(), one, yes) == 1
    assert _stream(Matthews(), one, yes) == 0
    for metric in (Matthews, AUC):
        wrong = f"of {metric.__name__} must be scores of 2 labels, got 3"
        with pytest.raises(ValueError, match=wrong):
            metric().update_state(one, np.zeros((5, 3)))
        wrong = f"of {metric.__name__} must be one label per example, got 2.*micro_f1"
        with pytest.raises(ValueError, match=wrong):
            metric().update_state(np.zeros((5, 2)), np.zeros((5, 2)))


def test_counts_beyond_the_range_of_their_product():
    metric = Matthews()
    metric.update_state([1, 0], np.eye(2)[[1, 0]], sample_weight=[1e10, 1e10])
    assert float(metric.result()) == pytest.approx(1)


@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_micro_f1(threshold):
    rng = np.random.default_rng(1)
    true, logits = rng.integers(0, 2, (60, 4)), rng.normal(size=(60, 4))
    chosen = 1 / (1 + np.exp(-logits)) >= threshold
    a, b, c, _ = _counts(true.ravel().tolist(), chosen.astype(int).ravel().tolist())
    assert _stream(MicroF1(threshold), true, logits) == pytest.approx(2 * a / (2 * a + b + c))
    weights = rng.integers(0, 3, 60)
    repeated = _stream(MicroF1(threshold), true.repeat(weights, 0), logits.repeat(weights, 0))
    assert _stream(MicroF1(threshold), true, logits, weights) == pytest.approx(repeated)
    assert MicroF1.from_config(MicroF1(threshold).get_config()).threshold == threshold


def test_area_of_scores_that_are_all_near_0_or_1():
    """Between thresholds of probabilities, 0.005 apart, they were ties."""
    random = np.random.default_rng(0)
    true = random.integers(0, 2, 2000)
    for middle in (-8, 8):
        odds = middle + 1.5 * true + random.normal(0, 1, 2000)
        logits = np.stack([np.zeros(2000), odds], axis=1).astype("float32")
        above = odds[true == 1][:, np.newaxis] > odds[true == 0]
        assert _stream(AUC(), true, logits) == pytest.approx(above.mean(), abs=1e-4)
    # Those of the user are probabilities, as Keras' are.
    given = AUC(thresholds=[0.3, 0.6]), keras.metrics.AUC(thresholds=[0.3, 0.6])
    odds -= 8.0
    logits[:, 1] = odds
    scores = 1 / (1 + np.exp(-odds))
    assert _stream(given[0], true, logits) == pytest.approx(_stream(given[1], true, scores))
    # Tasks refuse objects of Keras without from_logits=True, which this one need not have.
    assert by_name(given[0]) is given[0]
    same = AUC.from_config({**given[0].get_config(), "from_logits": True})
    assert _stream(same, true, logits) == pytest.approx(_stream(given[1], true, scores))


@pytest.mark.parametrize(
    ("metric", "true", "scores", "error"),
    [
        (MicroF1, (3,), (3, 3), r"must be \(batch, labels\), got \(3,\) and \(3, 3\)"),
        (MicroF1, (4,), (4, 1), r"must be \(batch, labels\), got \(4,\) and \(4, 1\)"),
        (Pearson, (4,), (4, 2), "must be one number per example, got the shapes"),
        (Spearman, (1,), (1, 2), "must be one number per example, got the shapes"),
        (NDCG, (4,), (4, 2), r"must be \(batch, documents\), got \(4,\) and \(4, 2\)"),
        (MRR, (4,), (4,), r"must be \(batch, documents\), got \(4,\) and \(4,\)"),
    ],
)
def test_shapes_of_other_tasks(metric, true, scores, error):
    """Some were broadcast, to numbers without a meaning."""
    with pytest.raises(ValueError, match=f"{metric.__name__} {error}"):
        metric().update_state(np.ones(true), np.ones(scores))


@pytest.mark.parametrize("metric", [MicroF1, Pearson, Spearman])
def test_shapes_that_are_unknown_in_a_graph(metric):
    """As data sets from Python generators may have them."""
    metric = metric()
    unknown = [tf.TensorSpec(None, tf.float32)] * 2
    update = tf.function(metric.update_state, input_signature=unknown)
    for shape in [(2, 3)] if isinstance(metric, MicroF1) else [(3,), (3, 1)]:
        values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        update(values, values)
    assert float(metric.result()) > 0.9


def test_names():
    for name, metric in METRICS.items():
        assert isinstance(by_name(name), metric)
        assert by_name(name).name == name
    assert by_name("accuracy") == "accuracy"
    assert isinstance(by_name("AUC"), AUC)


def test_in_a_model_that_is_compiled_with_them():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Pearson(), Spearman()])
    x = np.random.default_rng(0).normal(size=(37, 1)).astype("float32")
    y = x[:, 0] ** 3
    found = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    given = model.predict(x, verbose=0)[:, 0]
    assert found["pearson"] == pytest.approx(scipy_stats.pearsonr(given, y)[0], abs=1e-5)
    assert found["spearman"] == pytest.approx(scipy_stats.spearmanr(given, y)[0], abs=1e-5)
    again = model.evaluate(tf.constant(x), y, batch_size=8, verbose=0, return_dict=True)
    assert again["spearman"] == found["spearman"]

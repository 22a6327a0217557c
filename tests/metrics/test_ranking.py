"""Scores of rankings, against cases computed by hand and the definition in NumPy."""

import math

import keras
import numpy as np
import pytest

from bertfam_tf.metrics import MRR, NDCG, by_name, nearest, retrieval_scores

NAN = np.nan


def _by_definition(true, scores, k):
    """nDCG and reciprocal rank of one query."""
    pairs = [(s, t) for s, t in zip(scores, true, strict=True) if not math.isnan(t)]
    ordered = [t for _, t in sorted(pairs, key=lambda pair: -pair[0])]
    gain = [sum(t / math.log2(i + 2) for i, t in enumerate(order[:k]))
            for order in (ordered, sorted(ordered, reverse=True))]  # fmt: skip
    first = next((i + 1 for i, t in enumerate(ordered[:k]) if t > 0), None)
    return gain[0] / gain[1], 1 / first if first else 0.0


def test_by_hand():
    true = [[0, 1, 0, 0], [1, 0, 0, NAN], [0, 0, 0, 0]]
    scores = [[0.9, 0.5, 0.1, 0.0], [0.2, 0.1, 0.0, 9.0], [1, 2, 3, 4]]
    for metric, expected in ((NDCG(), 1 / math.log2(3)), (MRR(), 0.5)):
        metric.update_state(true, scores)
        # The third query has no relevant document and does not count.
        assert float(metric.result()) == pytest.approx((expected + 1) / 2)
    first = MRR(k=1)
    first.update_state(true, scores)
    assert float(first.result()) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_by_definition(k):
    rng = np.random.default_rng(k)
    true = rng.integers(0, 4, (40, 12)).astype("float32")
    true[:, 0] = 1
    true[rng.random(true.shape) < 0.2] = NAN
    true[:, 1] = 2
    scores = rng.normal(size=true.shape).astype("float32")
    expected = np.mean(
        [_by_definition(*row, k) for row in zip(true.tolist(), scores.tolist(), strict=True)], 0
    )
    found = NDCG(k), MRR(k)
    for metric in found:
        for rows in (slice(0, 7), slice(7, 40)):
            metric.update_state(true[rows], scores[rows])
    np.testing.assert_allclose([float(m.result()) for m in found], expected, rtol=1e-5)
    again = keras.metrics.deserialize(
        keras.metrics.serialize(found[0]), custom_objects={"NDCG": NDCG}
    )
    assert (again.k, again.name) == (k, f"ndcg_{k}")


@pytest.mark.parametrize("score", [0.5, NAN])
def test_equal_scores_are_no_ranking(score):
    """A collapsed or diverged model, on data whose first document is the relevant one."""
    for metric, expected in ((NDCG(), 1 / math.log2(5)), (MRR(), 1 / 4)):
        metric.update_state([[1, 0, 0, 0, NAN]], [[score] * 4 + [9.0]])
        assert float(metric.result()) == pytest.approx(expected)


def test_weights_are_those_of_queries():
    true, scores = np.float32([[1, 0], [0, 1]]), np.float32([[2, 1], [2, 1]])
    metric = MRR()
    metric.update_state(true, scores, np.float32([3, 1]))
    assert float(metric.result()) == pytest.approx((3 * 1 + 1 * 0.5) / 4)
    with pytest.raises(ValueError, match=r"MRR must be one number per query, got \(2, 2\)"):
        metric.update_state(true, scores, true)


def test_names():
    assert (by_name("ndcg_10").k, by_name("mrr_10").name) == (10, "mrr_10")


def test_retrieval():
    found = [[4, 1, 9], [5, 6, 7]]
    scores = retrieval_scores(found, [[1, 2], {7: 2.0, 8: 1.0}], k=3)
    gains = [1 / math.log2(3) / (1 + 1 / math.log2(3)), 1.0 / (2 + 1 / math.log2(3))]
    assert scores == {
        "ndcg_3": pytest.approx(np.mean(gains)),
        "mrr_3": pytest.approx((1 / 2 + 1 / 3) / 2),
        "recall_3": pytest.approx(0.5),
    }
    assert retrieval_scores([[1, 1, 2, 3]], [[1, 3]], k=3)["recall_3"] == 1.0  # repeated
    with pytest.raises(ValueError, match="Query 1 has no relevant document"):
        retrieval_scores(found, [[1], []])
    with pytest.raises(ValueError, match="the same number of queries, at least 1, got 2 and 1"):
        retrieval_scores(found, [[1]])


def test_nearest():
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(7, 4)), rng.normal(size=(9, 4))
    found, scores = nearest(queries, documents, 3, rows=2)
    expected = np.argsort(-(queries @ documents.T), axis=1)[:, :3]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ documents.T, expected, 1))
    with pytest.raises(ValueError, match="k must be from 1 to the 9 documents, got 10"):
        nearest(queries, documents)
    with pytest.raises(ValueError, match=r"the shapes \(7, 4\) and \(9, 3\)"):
        nearest(queries, documents[:, :3], 2)

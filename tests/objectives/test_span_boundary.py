"""The span boundary objective: against numpy, and which outputs it reads."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.corpora import Masking, geometric
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import MaskedTokens, SpanBoundary, span_boundaries, span_boundary_head
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.text import WordPieceTokenizer
from bertfam_tf.training.learner import Learner
from tests.corpora.test_masking import PIECES, _rows, _seeds
from tests.selection import in_full

SHAPE = dict(
    vocab_size=40, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24,
    max_positions=32, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
# Two spans of a row of 9 tokens; one in a row of 5; one that starts a row, and one that ends it.
MASK = (np.arange(9) < np.array([9, 5, 4])[:, None]).astype("int32")
POSITIONS = np.array([[1, 2, 3, 6], [2, 0, 0, 0], [0, 2, 3, 0]], "int32")
STARTS = np.array([[1, 1, 1, 6], [2, 0, 0, 0], [0, 2, 2, 0]], "int32")
ENDS = np.array([[3, 3, 3, 6], [2, 0, 0, 0], [0, 3, 3, 0]], "int32")
WEIGHTS = np.array([[1, 1, 1, 0.5], [1, 0, 0, 0], [1, 1, 1, 0]], "float32")
# Left and right boundary, place and weight of those that have a loss, by row and prediction.
EXPECTED = {
    (0, 0): (0, 4, 0, 1),
    (0, 1): (0, 4, 1, 1),
    (0, 2): (0, 4, 2, 1),
    (0, 3): (5, 7, 0, 0.5),
    (1, 0): (1, 3, 0, 1),
}


def _perturbed(*layers):
    rng = np.random.default_rng(0)
    for weight in (weight for layer in layers for weight in layer.weights):
        weight.assign_add(rng.normal(0, 0.3, weight.shape))


def _made(family="spanbert", longest=15, **shape):
    keras.utils.set_random_seed(0)
    backbone = bf.build(family, "tiny", **{**SHAPE, **shape})
    head = span_boundary_head(backbone, longest, place_size=6)
    _perturbed(backbone, head)
    return backbone, head


def _batch(backbone, extra=0):
    rng = np.random.default_rng(1)
    ids = rng.integers(1, 40, MASK.shape).astype("int32") * MASK
    inputs = {"token_ids": ids, "padding_mask": MASK, "segment_ids": MASK * 0}
    inputs = {name: np.pad(x, [[0, 0], [0, extra]]) for name, x in inputs.items()}
    targets = {
        "positions": POSITIONS, "starts": STARTS, "ends": ENDS,
        "token_ids": rng.integers(0, 40, POSITIONS.shape).astype("int32"),
    }  # fmt: skip
    return Batch(inputs, targets, WEIGHTS)


def _by_hand(head, table, left, right, place):
    """Log-probabilities of all tokens, (vocabulary,), in float64."""
    weights = {w.path.split("/", 1)[1]: w.numpy().astype("float64") for w in head.weights}
    x = np.concatenate([left, right, weights["place_embedding/embeddings"][place]])
    for dense, norm in (("dense", "norm"), ("second_dense", "second_norm")):
        x = x @ weights[f"{dense}/kernel"] + weights[f"{dense}/bias"]
        x = x * (1 + erf(x / np.sqrt(2))) / 2
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
        x = x * weights[f"{norm}/gamma"] + weights[f"{norm}/beta"]
    logits = table @ x + weights["decoder/bias"]
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def _expected(head, backbone, batch, predictions=EXPECTED):
    x = backbone(batch.inputs)["sequence_output"].numpy().astype("float64")
    table = backbone.parts["token_embedding"].embeddings.numpy().astype("float64")
    total = count = 0
    for (row, i), (left, right, place, weight) in predictions.items():
        found = _by_hand(head, table, x[row, left], x[row, right], place)
        total -= weight * found[batch.targets["token_ids"][row, i]]
        count += weight
    return total, count


@pytest.mark.parametrize("family", in_full(["spanbert", "electra"], ["spanbert"]))
@pytest.mark.parametrize(
    ("unpadded", "extra"),
    in_full([(False, 0), (True, 0), (False, 5), (True, 5)], [(False, 0), (True, 5)]),
)
def test_loss_is_that_by_hand(family, unpadded, extra):
    backbone, head = _made(family, **({"embedding_size": 12} if family == "electra" else {}))
    batch, objective = _batch(backbone, extra), SpanBoundary(head)
    with unpadding(unpadded):
        found = objective.loss(backbone(batch.inputs), objective.heads, batch)
    assert objective.weights.keys() == objective.heads.keys() == {"sbo"}
    assert found.keys() == {"sbo", "sbo_accuracy", "sbo_perplexity"}
    expected = _expected(head, backbone, batch)
    print(family, [float(x) for x in found["sbo"]], expected)
    np.testing.assert_allclose(found["sbo"], expected, rtol=1e-5)


def test_places_beyond_the_heads_have_no_loss():
    backbone, head = _made(longest=2)
    batch, objective = _batch(backbone), SpanBoundary(head)
    few = {key: value for key, value in EXPECTED.items() if value[2] < 2}
    assert len(few) == len(EXPECTED) - 1
    found = objective.loss(backbone(batch.inputs), objective.heads, batch)["sbo"]
    np.testing.assert_allclose(found, _expected(head, backbone, batch, few), rtol=1e-5)


@pytest.mark.parametrize("unpadded", [False, True])
def test_gradients_reach_boundaries_alone(unpadded):
    backbone, head = _made()
    batch, objective = _batch(backbone), SpanBoundary(head)
    x = backbone(batch.inputs)["sequence_output"]
    with unpadding(unpadded), tf.GradientTape() as tape:
        tape.watch(x)
        total, _ = objective.loss({"sequence_output": x}, objective.heads, batch)["sbo"]
    gradient = np.abs(tf.convert_to_tensor(tape.gradient(total, x)).numpy()).sum(-1)
    boundaries = {(row, at) for (row, _), two in EXPECTED.items() for at in two[:2]}
    assert set(zip(*map(np.ndarray.tolist, np.nonzero(gradient)), strict=True)) == boundaries


def test_boundaries():
    found = span_boundaries(POSITIONS, STARTS, ENDS, MASK, WEIGHTS)
    for at, (*wanted, weight) in EXPECTED.items():
        assert [int(x[at]) for x in found[:3]] == wanted
        assert float(found.weights[at]) == weight
    without = [at for at in np.ndindex(*POSITIONS.shape) if at not in EXPECTED]
    assert all(float(found.weights[at]) == 0 for at in without)
    # Without weights, every position counts, and padding of the predictions too.
    alone = span_boundaries(POSITIONS[:2, :1], STARTS[:2, :1], ENDS[:2, :1], MASK[:2])
    np.testing.assert_array_equal(alone.weights, [[1], [1]])
    none = span_boundaries(*[np.zeros((2, 0), "int32")] * 3, MASK[:2])
    assert all(x.shape == (2, 0) for x in none)


@pytest.mark.full
def test_boundaries_of_masked_spans():
    """Of what ``Masking`` selects, eagerly, in tf.data and with more padding."""
    tokenizer = WordPieceTokenizer(PIECES)
    masking = Masking(tokenizer, 0.4, "word", geometric(), together=True)
    ids, mask = _rows(12, length=30)

    def boundaries(ids, mask, seeds):
        masked = masking(ids, mask, seeds)
        return span_boundaries(masked.positions, masked.starts, masked.ends, mask, masked.weights)

    _, positions, _, weights, *_ = (x.numpy() for x in masking(ids, mask, _seeds(12)))
    found = [x.numpy() for x in boundaries(ids, mask, _seeds(12))]
    selected = np.zeros(ids.shape, bool)
    rows, predictions = np.nonzero(weights)
    selected[rows, positions[rows, predictions]] = True
    for row, i in zip(rows, predictions, strict=True):
        left = right = position = positions[row, i]
        while selected[row, left]:
            left -= 1
        while selected[row, right]:
            right += 1
        wanted = (left, right, position - left - 1, 1)
        assert tuple(x[row, i] for x in found) == wanted
    assert len(rows) > 20
    data = tf.data.Dataset.from_tensors((ids, mask, _seeds(12))).map(boundaries)
    wider = [np.pad(x, [[0, 0], [0, 7]]) for x in (ids, mask)]
    for other in (data.get_single_element(), boundaries(*wider, _seeds(12))):
        for one, two in zip(found, other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.full
def test_learning_with_masked_tokens():
    """Through ``fit``, from one batch's targets."""
    backbone, head = _made()
    masked = MaskedTokens(heads.build(backbone, "masked_lm"))
    inputs = backbone.token_inputs
    learner = Learner(inputs, backbone(inputs), [masked, SpanBoundary(head, weight=0.5)])
    learner.compile(keras.optimizers.SGD(0.1))
    data = tf.data.Dataset.from_tensors(tuple(_batch(backbone)))
    history = learner.fit(data.repeat(2), epochs=3, shuffle=False, verbose=0).history
    assert history["sbo"][-1] < history["sbo"][0]
    total = history["masked_lm"][0] + 0.5 * history["sbo"][0]
    assert history["loss"][0] == pytest.approx(total, 1e-5)
    assert {"sbo_head/place_embedding/embeddings"} <= {v.path for v in learner.trainable_variables}


def test_half_precision():
    backbone = bf.build("spanbert", "tiny", **SHAPE, dtype="mixed_bfloat16")
    objective = SpanBoundary(span_boundary_head(backbone))
    batch = _batch(backbone)
    total, count = objective.loss(backbone(batch.inputs), objective.heads, batch)["sbo"]
    assert total.dtype == count.dtype == tf.float32
    assert objective.heads["sbo"].stack[-1].compute_dtype == "float32"
    assert float(total / count) == pytest.approx(np.log(40), rel=0.05)


def test_mistakes():
    backbone, head = _made()
    for sizes in (dict(longest=0), dict(place_size=0)):
        [name] = sizes
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            span_boundary_head(backbone, **sizes)
    clusters = bf.build("transformer_xl", "tiny", vocab_size=40, cutoffs=[20], num_layers=1)
    with pytest.raises(ValueError, match="token_embedding must be one table, got Adaptive"):
        span_boundary_head(clusters)
    with pytest.raises(ValueError, match=r"ends must have the shape of positions, \(3, 4\), got"):
        span_boundaries(POSITIONS, STARTS, ENDS[:, :2], MASK)
    batch, objective = _batch(backbone), SpanBoundary(head)
    del batch.targets["ends"]
    with pytest.raises(
        ValueError, match="targets must contain 'ends', got positions, starts, token"
    ):
        objective.loss(backbone(batch.inputs), objective.heads, batch)

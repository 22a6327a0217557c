"""The loss of the next token: against the whole logits, and who has none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import NextTokens, next_tokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.training.learner import Learner
from tests.selection import only_in

LENGTHS = np.array([7, 3, 1, 5])


def _made(family="gpt2", head="causal_lm"):
    keras.utils.set_random_seed(0)
    shape = dict(vocab_size=50, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=24)
    off = {"embedding_dropout": 0.0} if family == "gpt2" else {}
    backbone = bf.build(family, "tiny", **shape, dropout=0.0, attention_dropout=0.0, **off)
    layer = heads.build(backbone, head)
    rng = np.random.default_rng(0)
    for weight in [*backbone.weights, *layer.weights]:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    return backbone, layer


def _inputs():
    rng = np.random.default_rng(1)
    mask = (np.arange(7) < LENGTHS[:, None]).astype("int32")
    return {"token_ids": rng.integers(1, 50, mask.shape).astype("int32"), "padding_mask": mask}


def _log_probabilities(backbone, head, inputs):
    return tf.nn.log_softmax(head(backbone(inputs))).numpy()


@pytest.mark.parametrize("unpadded", [False, True])
def test_loss_of_the_batchs_own_tokens(unpadded):
    backbone, head = _made()
    inputs = _inputs()
    found = _log_probabilities(backbone, head, inputs)
    losses = [
        -found[row, i, inputs["token_ids"][row, i + 1]]
        for row, length in enumerate(LENGTHS)
        for i in range(length - 1)
    ]
    objective = NextTokens(head, weight=2.0)
    assert objective.weights == {"causal_lm": 2.0}
    with unpadding(unpadded):
        pairs = objective.loss(backbone(inputs), objective.heads, Batch(inputs))
    assert pairs.keys() == {"causal_lm", "causal_lm_perplexity"}
    for pair in pairs.values():
        np.testing.assert_allclose(pair, (sum(losses), len(losses)), rtol=1e-5)
    # More padding changes nothing.
    wider = {name: np.pad(x, [[0, 0], [0, 4]], constant_values=0) for name, x in inputs.items()}
    pair = objective.loss(backbone(wider), objective.heads, Batch(wider))["causal_lm"]
    np.testing.assert_allclose(pair, (sum(losses), len(losses)), rtol=1e-5)


@only_in("extended", "True")
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_of_given_targets(weighted):
    backbone, head = _made()
    inputs = _inputs()
    targets = np.random.default_rng(2).integers(0, 50, (4, 7)).astype("int32")
    weights = inputs["padding_mask"] * np.float32(0.5)
    losses = -np.take_along_axis(
        _log_probabilities(backbone, head, inputs), targets[..., None], axis=-1
    )[..., 0]
    counts = weights if weighted else np.ones_like(weights)
    objective = NextTokens(head)
    batch = Batch(inputs, targets, weights if weighted else None)
    found = objective.loss(backbone(inputs), objective.heads, batch)["causal_lm"]
    np.testing.assert_allclose(found, ((losses * counts).sum(), counts.sum()), rtol=1e-5)


def test_next_tokens():
    ids = np.array([[5, 6, 7, 0], [0, 0, 8, 9], [3, 0, 0, 0]], "int32")
    mask = np.array([[1, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0]], "int32")
    targets, weights = next_tokens(ids, mask)
    np.testing.assert_array_equal(weights, [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(targets.numpy()[weights.numpy() > 0], [6, 7, 9])


@pytest.mark.full
def test_learning():
    backbone, head = _made()
    inputs = backbone.token_inputs
    learner = Learner(inputs, backbone(inputs), [NextTokens(head)])
    learner.compile(keras.optimizers.SGD(0.1))
    rows = tf.data.Dataset.from_tensor_slices(_inputs()).batch(4)
    history = learner.fit(rows, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_mistakes():
    backbone, head = _made("bert", "pair")
    with pytest.raises(ValueError, match="head must read sequence_output to predict the next"):
        NextTokens(head)
    backbone, head = _made()
    inputs, objective = _inputs(), NextTokens(head)
    batch = Batch(inputs, None, inputs["padding_mask"])
    with pytest.raises(ValueError, match="weights must be None without targets"):
        objective.loss(backbone(inputs), objective.heads, batch)

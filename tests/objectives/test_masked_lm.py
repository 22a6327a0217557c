"""The loss of masked tokens: against the whole logits, and where none are computed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.models import unpadding
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.training.learner import Learner
from tests.selection import in_full, only_in

SHAPE = dict(vocab_size=50, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=24)
OFF = dict(dropout=0.0, attention_dropout=0.0)
LENGTHS = np.array([7, 3, 1, 5])
FAMILIES = [name for name in bf.families() if "masked_lm" in registry.get(name).heads]


def _made(family="bert"):
    keras.utils.set_random_seed(0)
    known = registry.get(family).config.__dataclass_fields__
    shape = {name: value for name, value in SHAPE.items() if name in known}
    backbone = bf.build(family, "tiny", **shape, **OFF)
    head = heads.build(backbone, "masked_lm")
    rng = np.random.default_rng(0)
    for weight in [*backbone.weights, *head.weights]:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    return backbone, head


def _batch(backbone, weighted=True):
    """Rows with 3, 1, 0 and 2 predictions."""
    rng = np.random.default_rng(1)
    mask = (np.arange(7) < LENGTHS[:, None]).astype("int32")
    inputs = {"token_ids": rng.integers(1, 50, mask.shape), "padding_mask": mask}
    inputs |= {name: mask * 0 for name in backbone.token_inputs if name not in inputs}
    inputs = {name: value.astype("int32") for name, value in inputs.items()}
    targets = {
        "positions": np.array([[1, 6, 3], [2, 0, 0], [0, 0, 0], [4, 1, 0]], "int32"),
        "token_ids": rng.integers(0, 50, (4, 3)).astype("int32"),
    }
    weights = np.array([[1, 1, 0.5], [1, 0, 0], [0, 0, 0], [2, 1, 0]], "float32")
    return Batch(inputs, targets, weights if weighted else None)


def _expected(backbone, head, batch):
    logits = head(backbone(batch.inputs)).numpy()
    logits = np.take_along_axis(logits, batch.targets["positions"][..., None], axis=1)
    losses = -tf.nn.log_softmax(logits).numpy()
    losses = np.take_along_axis(losses, batch.targets["token_ids"][..., None], axis=-1)[..., 0]
    weights = np.ones_like(losses) if batch.weights is None else batch.weights
    hits = logits.argmax(-1) == batch.targets["token_ids"]
    return (losses * weights).sum(), (hits * weights).sum(), weights.sum()


@only_in("extended", "True-True-bert", "True-False-bert")
@pytest.mark.parametrize("family", in_full(FAMILIES, ["bert"]))
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_is_that_of_the_whole_logits(family, unpadded, weighted):
    backbone, head = _made(family)
    batch, objective = _batch(backbone, weighted), MaskedTokens(head)
    # Two of the tokens become the most probable ones, with weights of 1 and of 0.5.
    logits = head(backbone(batch.inputs)).numpy()
    batch.targets["token_ids"][0, ::2] = logits[0, batch.targets["positions"][0, ::2]].argmax(-1)
    with unpadding(unpadded):
        found = objective.loss(backbone(batch.inputs), objective.heads, batch)
    loss, hits, count = _expected(backbone, head, batch)
    assert hits in ((1.5, 2.5) if weighted else (2, 3, 4, 5))
    np.testing.assert_allclose(found.pop("masked_lm"), (loss, count), rtol=1e-5)
    np.testing.assert_allclose(found.pop("masked_lm_perplexity"), (loss, count), rtol=1e-5)
    np.testing.assert_allclose(found.pop("masked_lm_accuracy"), (hits, count), rtol=1e-5)
    assert not found


@pytest.mark.parametrize(("unpadded", "rows"), [(True, 6), (False, 12)])
def test_logits_are_those_of_predictions_alone(unpadded, rows):
    backbone, head = _made()
    output, seen = head.parts[-1], []
    call = output.call
    output.call = lambda x, **kwargs: seen.append(x.shape) or call(x, **kwargs)
    batch, objective = _batch(backbone), MaskedTokens(head)
    with unpadding(unpadded):
        objective.loss(backbone(batch.inputs), objective.heads, batch)
    # Those of weight 0 only where shapes must not depend on values.
    assert seen == [(rows, 16)]


@pytest.mark.extended
def test_no_predictions():
    backbone, head = _made()
    batch, objective = _batch(backbone), MaskedTokens(head)
    batch = batch._replace(weights=batch.weights * 0)
    with unpadding(True), tf.GradientTape() as tape:
        total, count = objective.loss(backbone(batch.inputs), objective.heads, batch)["masked_lm"]
    assert (float(total), float(count)) == (0, 0)
    gradient = tape.gradient(total, head.weights[0].value)
    assert not np.any(gradient)


@pytest.mark.full
def test_learning_and_losses_with_and_without_padding():
    """Eight steps through ``fit``: with padding, without, and in XLA's fixed shapes."""
    losses = []
    for padded in (False, True):
        backbone, head = _made()
        inputs = backbone.token_inputs
        model = Learner(inputs, backbone(inputs), [MaskedTokens(head, weight=2.0)])
        model.compile(keras.optimizers.SGD(0.1))
        rows = tf.data.Dataset.from_tensor_slices(tuple(_batch(backbone))).batch(2)
        with unpadding(not padded):
            found = model.fit(rows, epochs=4, shuffle=False, verbose=0).history["loss"]
        losses.append(found)
        assert any("masked_lm_head" in weight.path for weight in model.trainable_variables)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=2e-5)
    assert losses[0][-1] < losses[0][0]

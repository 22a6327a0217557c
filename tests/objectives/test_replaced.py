"""Replaced token detection: what is sampled, what learns from what."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.models import Backbone
from bertfam_tf.objectives import ReplacedTokens, replaced_tokens_network
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.training.learner import Learner

SHAPE = dict(
    vocab_size=40, embedding_size=12, hidden_size=16, num_layers=1, num_heads=2,
    intermediate_size=24, max_positions=16, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
MASK = 4
SHARED = ("token_embedding", "position_embedding", "segment_embedding", "embedding_norm")


@pytest.fixture
def made():
    keras.utils.set_random_seed(0)
    generator = bf.build("electra", "tiny", **{**SHAPE, "hidden_size": 8, "intermediate_size": 16})
    discriminator = Backbone(
        "electra",
        bf.build("electra", "tiny", **SHAPE).config,
        parts=generator.parts.subset(*SHARED),
        name="discriminator",
    )
    objective = ReplacedTokens(
        heads.build(generator, "masked_lm"), heads.build(discriminator, "rtd")
    )
    inputs, outputs = replaced_tokens_network(
        generator, objective.heads["masked_lm"], discriminator, seed=0
    )
    return generator, discriminator, objective, Learner(inputs, outputs, [objective])


def _batch(examples=64):
    rng = np.random.default_rng(0)
    mask = (np.arange(10) < rng.integers(4, 11, examples)[:, None]).astype("int32")
    originals = (rng.integers(5, 12, mask.shape) * mask).astype("int32")
    positions = np.tile(np.array([[1, 3]], "int32"), (examples, 1))
    weights = np.ones(positions.shape, "float32")
    weights[::2, 1] = 0
    ids = originals.copy()
    ids[:, 1] = MASK
    ids[1::2, 3] = MASK
    targets = np.take_along_axis(originals, positions, axis=1)
    inputs = {
        "token_ids": ids, "padding_mask": mask, "segment_ids": mask * 0,
        "positions": positions, "weights": weights,
    }  # fmt: skip
    return Batch(inputs, {"token_ids": targets, "originals": originals})


@pytest.mark.extended
def test_masks_are_replaced(made):
    *_, learner = made
    batch = _batch()
    outputs = learner(batch.inputs)
    found, given = outputs["token_ids"].numpy(), batch.inputs["token_ids"]
    np.testing.assert_array_equal(found[given != MASK], given[given != MASK])
    assert len(np.unique(found[given == MASK])) > 15  # samples, of an even distribution
    assert (learner(batch.inputs)["token_ids"].numpy() != found).any()


@pytest.mark.full
def test_samples_are_the_generators(made):
    _, _, objective, learner = made
    head = objective.heads["masked_lm"]
    bias = head.parts[-1].bias
    bias.assign(np.where(np.isin(np.arange(40), [7, 9]), 25.0 + (np.arange(40) == 9), 0))
    given = _batch(2000).inputs
    found = learner(given)["token_ids"].numpy()[given["token_ids"] == MASK]
    assert np.isin(found, [7, 9]).all()
    # Logits that differ by about 1.
    assert (found == 9).mean() == pytest.approx(1 / (1 + np.exp(-1)), abs=0.06)


@pytest.mark.extended
def test_losses_and_gradients(made):
    generator, discriminator, objective, learner = made
    batch = _batch()
    with tf.GradientTape(persistent=True) as tape:
        outputs = learner(batch.inputs)
        found = objective.loss(outputs, objective.heads, batch)
        losses = {name: total / count for name, (total, count) in found.items()}
    assert found["masked_lm"][1] == batch.inputs["weights"].sum()
    assert found["rtd"][1] == batch.inputs["padding_mask"].sum()
    logits = objective.heads["rtd"](outputs["discriminator"]).numpy()
    labels = outputs["token_ids"].numpy() != batch.targets["originals"]
    expected = np.log1p(np.exp(np.where(labels, -logits, logits)))
    real = batch.inputs["padding_mask"] > 0
    assert float(losses["rtd"]) == pytest.approx(expected[real].mean(), rel=1e-5)
    hits = ((logits > 0) == labels)[real].mean()
    assert 0 < hits < 1
    assert float(losses.pop("rtd_accuracy")) == pytest.approx(hits, rel=1e-5)
    assert {"masked_lm_accuracy", "masked_lm_perplexity"} <= losses.keys()
    del losses["masked_lm_accuracy"]  # without a gradient
    # The discriminator's loss does not reach the generator, but for the embeddings they share.
    block = generator.parts["layer_0"].trainable_variables
    assert all(g is None for g in tape.gradient(losses["rtd"], [v.value for v in block]))
    of_shared = generator.parts["token_embedding"].embeddings.value
    for loss in losses.values():
        assert np.abs(tf.convert_to_tensor(tape.gradient(loss, of_shared))).max() > 0
    assert generator.parts["token_embedding"] is discriminator.parts["token_embedding"]
    assert generator.parts["layer_0"] is not discriminator.parts["layer_0"]


@pytest.mark.extended
def test_a_batch_without_predictions(made):
    """Such as the last one of a pass, with one short example."""
    *_, learner = made
    inputs, targets, _ = _batch(2)
    none = {name: inputs[name][:, :0] for name in ("positions", "weights")}
    given = {**inputs, **none}
    np.testing.assert_array_equal(learner(given)["token_ids"], inputs["token_ids"])
    learner.compile("sgd")
    found = learner.evaluate(given, {**targets, "token_ids": none["positions"]}, return_dict=True)
    assert found["masked_lm"] == 0
    assert found["rtd"] > 0


@pytest.mark.full
def test_fit(made):
    *_, learner = made
    batch = _batch(256)
    data = tf.data.Dataset.from_tensor_slices((batch.inputs, batch.targets)).batch(32)
    learner.compile(keras.optimizers.Adam(3e-3))
    history = learner.fit(data, epochs=8, shuffle=False, verbose=0).history
    assert history["masked_lm"][-1] < history["masked_lm"][0] - 0.5
    assert history["loss"][0] == pytest.approx(
        history["masked_lm"][0] + 50 * history["rtd"][0], rel=1e-4
    )
    assert history["rtd"][-1] < history["rtd"][0]

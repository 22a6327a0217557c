"""A made-up objective, all of it in this file, trains on a backbone through ``fit``."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import bertfam_tf as bf
from bertfam_tf.objectives.objective import mean
from bertfam_tf.training.learner import Learner

SHAPE = dict(
    vocab_size=30, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16,
    max_positions=16, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


class Parity:
    """Whether the id of each token is odd: a sum over tokens, as many as there are."""

    weights = {"parity": 1.0}

    def __init__(self):
        head = keras.layers.Dense(2, name="parity_head")
        head.build((None, None, SHAPE["hidden_size"]))
        self.heads = {"parity": head}

    def loss(self, outputs, heads, batch):
        logits = heads["parity"](outputs["sequence_output"])
        tokens, mask = batch.inputs["token_ids"], batch.inputs["padding_mask"]
        losses = ops.sparse_categorical_crossentropy(tokens % 2, logits, from_logits=True)
        mask = ops.cast(mask, "float32")
        return {"parity": (ops.sum(losses * mask), ops.sum(mask))}


class Correct(Parity):
    """With the share of the tokens that are classified correctly, and an odd function of it."""

    metrics = {"correct": mean, "wrong_percent": lambda share: 100 * (1 - share)}

    def loss(self, outputs, heads, batch):
        logits = heads["parity"](outputs["sequence_output"])
        mask = ops.cast(batch.inputs["padding_mask"], "float32")
        hits = ops.cast((logits[..., 1] > logits[..., 0]) == (mask_odd(batch)), "float32")
        found = ops.sum(hits * mask), ops.sum(mask)
        return super().loss(outputs, heads, batch) | {"correct": found, "wrong_percent": found}


def mask_odd(batch):
    return ops.equal(batch.inputs["token_ids"] % 2, 1)


class Length:
    """The number of tokens, from the first one's vector: a sum over examples."""

    weights = {"length": 0.5}

    def __init__(self):
        head = keras.layers.Dense(1, name="length_head")
        head.build((None, SHAPE["hidden_size"]))
        self.heads = {"length": head}

    def loss(self, outputs, heads, batch):
        found = heads["length"](outputs["sequence_output"][:, 0])[:, 0]
        true = ops.cast(ops.sum(batch.inputs["padding_mask"], axis=1), "float32") / 10
        losses = ops.square(found - true)
        return {"length": (ops.sum(losses), ops.cast(ops.size(losses), "float32"))}


def learner(*objectives, **kwargs):
    keras.utils.set_random_seed(0)
    made = [objective() for objective in objectives]
    backbone = bf.build("bert", "tiny", **SHAPE)
    inputs = backbone.token_inputs
    model = Learner(inputs, backbone(inputs), made, **kwargs)
    model.compile("sgd")
    return model


def data(batch_size=4):
    """Twelve examples, of which no two batches and no two halves have the same number of tokens."""
    rng = np.random.default_rng(0)
    mask = (np.arange(9) < np.array([1, 2, 9, 8, 3, 9, 1, 1, 7, 2, 5, 4])[:, None]).astype("int32")
    tokens = rng.integers(1, 30, mask.shape).astype("int32") * mask
    x = {"token_ids": tokens, "padding_mask": mask, "segment_ids": mask * 0}
    return x, tf.data.Dataset.from_tensor_slices(x).batch(batch_size)


@pytest.mark.full
def test_one_objective_alone():
    model = learner(Parity)
    x, dataset = data()
    outputs = model(x, training=False)
    logits = model._objectives.value[0].heads["parity"](outputs["sequence_output"])
    losses = -tf.nn.log_softmax(logits).numpy()[
        np.arange(12)[:, None], np.arange(9), x["token_ids"] % 2
    ]
    expected = losses[x["padding_mask"] > 0].mean()
    found = model.evaluate(dataset, return_dict=True, verbose=0)
    assert found == {"loss": pytest.approx(expected, rel=1e-5)}
    first, *_, last = model.fit(dataset, epochs=6, verbose=0).history["loss"]
    assert last < first
    # The head is trained too, and is the model's.
    assert {"parity_head/kernel"} <= {v.path for v in model.trainable_variables}


@pytest.mark.extended
def test_two_objectives_by_weights():
    _, dataset = data()
    found = learner(Parity, Length, weights={"parity": 2.0}).evaluate(
        dataset, return_dict=True, verbose=0
    )
    assert found.keys() == {"loss", "parity", "length"}
    assert found["loss"] == pytest.approx(2 * found["parity"] + 0.5 * found["length"], rel=1e-6)
    alone = learner(Parity, Length, weights={"parity": 0.0, "length": 1.0})
    assert alone.evaluate(dataset, return_dict=True, verbose=0)["loss"] == found["length"]


@pytest.mark.extended
def test_the_total_is_what_learns():
    """With a weight of 0 a loss is logged, and its head stays as it is."""
    model = learner(Parity, Length, weights={"length": 0.0})
    heads = {v.path: v for v in model.trainable_variables if "_head" in v.path}
    before = {path: v.numpy() for path, v in heads.items()}
    model.fit(data()[1], verbose=0)
    for path, value in before.items():
        assert np.array_equal(heads[path].numpy(), value) == path.startswith("length"), path


@pytest.mark.extended
def test_metrics_are_over_all_tokens():
    """Batches have different numbers of tokens, so that a mean of means would differ."""
    model = learner(Correct, Length)
    x, dataset = data()
    logits = model._objectives.value[0].heads["parity"](model(x)["sequence_output"]).numpy()
    hits = (logits.argmax(-1) == x["token_ids"] % 2)[x["padding_mask"] > 0]
    found = model.evaluate(dataset, return_dict=True, verbose=0)
    assert found["correct"] == pytest.approx(hits.mean(), rel=1e-6)
    assert found["wrong_percent"] == pytest.approx(100 * (1 - hits.mean()), rel=1e-5)
    assert found["loss"] == pytest.approx(found["parity"] + 0.5 * found["length"], rel=1e-6)
    assert {"correct", "wrong_percent"} <= model.fit(dataset, verbose=0).history.keys()


def test_mistakes():
    with pytest.raises(ValueError, match="Two objectives have a loss named 'parity'"):
        learner(Parity, Parity)
    with pytest.raises(ValueError, match=r"Unknown loss 'party'. Did you mean 'parity'"):
        learner(Parity, weights={"party": 1.0})


REPLICAS = """
    import numpy as np
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from tests.extending.test_objective import Correct, Length, data, learner

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one = learner(Correct, Length)
    with strategy.scope():
        both = learner(Correct, Length)
    # Batches of five: replicas get three examples and two, and the last batch has two.
    histories = [model.fit(data(5)[1], epochs=2, verbose=0).history for model in (one, both)]
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)
    for a, b in zip(one.weights, both.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6, err_msg=a.path)
    found = [model.evaluate(data(5)[1], return_dict=True, verbose=0) for model in (one, both)]
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, err_msg=name)
"""


@pytest.mark.full
def test_two_replicas_learn_as_one():
    code = textwrap.dedent(REPLICAS)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

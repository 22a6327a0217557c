"""Frozen weights, layer-wise learning rates, LoRA."""

from functools import partial

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.training import optimizers, tuning
from tests import published
from tests.selection import wirings

TEXTS, LABELS = ["a fine film", "a dull one", "fine", "dull"] * 2, [1, 0, 1, 0] * 2


def values(task):
    return {v.path: np.array(v) for v in task.weights}


def fitted(task, optimizer=None):
    """Weights before and after a few training steps."""
    before = values(task)
    task.compile(optimizer or keras.optimizers.SGD(0.5))
    task.fit(TEXTS, LABELS, epochs=2, verbose=0)
    return before, values(task)


@pytest.fixture
def task(smallest):
    return bf.TextClassifier.from_pretrained(smallest, labels=["no", "yes"])


@pytest.mark.full
def test_a_frozen_backbone_stays_and_gives_the_same_features(task):
    tuning.freeze(task.backbone)
    assert {v.path.split("/")[0] for v in task.trainable_weights} == {"sequence_head"}
    before, after = fitted(task)
    moved = {path for path in before if (before[path] != after[path]).any()}
    assert moved
    assert all(path.startswith("sequence_head") for path in moved)
    inputs = task.preprocess({"text": keras.ops.convert_to_tensor(TEXTS)})
    once, again = (task.backbone(inputs, training=True)["sequence_output"] for _ in range(2))
    np.testing.assert_array_equal(once, again)


@pytest.mark.full
def test_frozen_blocks(tiny):
    task = bf.TextClassifier.from_pretrained(tiny, labels=["no", "yes"])
    tuning.freeze(task.backbone, blocks=1)
    before, after = fitted(task)
    moved = {path for path in before if (before[path] != after[path]).any()}
    assert not any("embedding" in path or "layer_0/" in path for path in moved)
    assert any("layer_1/" in path for path in moved)
    with pytest.raises(ValueError, match="9 blocks cannot be frozen; the backbone has 3"):
        tuning.freeze(task.backbone, blocks=9)


@pytest.mark.parametrize("family", wirings())
def test_each_weight_of_a_backbone_has_its_rate(family):
    backbone = bf.build(family, "tiny")
    factors = tuning.layer_factors(backbone, 0.5)
    embedding = "token_encoder" if family == "elmo" else "token_embedding"
    first = {factors[v.path] for v in backbone.get_layer(embedding).weights}
    assert first == {0.5 ** (backbone.config.num_layers + 1)}
    last = [layer for layer in backbone.layers if layer.name.startswith("layer_")][-1]
    assert {factors[v.path] for v in last.weights} == {0.5}
    rest = {v.path for v in backbone.weights} - factors.keys()
    assert all(path.startswith(("pooler", "final_norm", "scalar_mix")) for path in rest)


def test_steps_are_as_long_as_their_factors():
    """The length of Adam's first step is the learning rate, for any gradient."""
    a, b = keras.Variable([4.0], name="a"), keras.Variable([4.0], name="b")
    optimizer = optimizers.adamw(0.1, weight_decay=0.5, warmup=0, factors={b.path: 0.25})
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    for each in (optimizer, again):
        a.assign([4.0])
        b.assign([4.0])
        each.apply([keras.ops.ones(1), keras.ops.ones(1)], [a, b])
        for variable, rate in ((a, 0.1), (b, 0.025)):
            expected = 4.0 * (1 - 0.5 * rate) - rate
            assert float(variable[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.full
def test_lora(task, tmp_path):
    expected = task.predict(TEXTS)
    tuning.add_lora(task.backbone, 2)
    for a, b in zip(expected, task.predict(TEXTS), strict=True):
        np.testing.assert_array_equal(a["scores"], b["scores"])
    names = {v.name for v in task.backbone.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b"}
    before, after = fitted(task)
    moved = {path for path in before if (before[path] != after[path]).any()}
    assert all("lora" in path or path.startswith("sequence_head") for path in moved)
    task.save(tmp_path / "task")
    found = bf.load(tmp_path / "task")
    assert not any("lora" in v.path for v in found.weights)
    for a, b in zip(task.predict(TEXTS), found.predict(TEXTS), strict=True):
        np.testing.assert_allclose(a["scores"], b["scores"], atol=1e-5)


@pytest.mark.extended
def test_answers_after_another_model_trained_lora(smallest):
    embedder = bf.TextEmbedder.from_pretrained(smallest)
    before = embedder.predict(TEXTS)
    tuning.add_lora(embedder.backbone, 2)
    trainer = bf.EmbedderTrainer(embedder)
    trainer.compile(keras.optimizers.SGD(5.0))
    trainer.fit({"text": ["fine", "dull"], "text_pair": ["film", "a"]}, epochs=2, verbose=0)
    expected = embedder.answer({"text": keras.ops.convert_to_tensor(TEXTS)})["embedding"]
    assert np.abs(expected - before).max() > 1e-3
    np.testing.assert_allclose(embedder.predict(TEXTS), expected, atol=1e-6)


@pytest.mark.extended
def test_scores_after_another_model_trained_lora(task):
    """As a task of a ``MultiTask``, which is compiled in its place."""
    before = task.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)["loss"]
    assert task.test_on_batch(TEXTS, LABELS)[0] == pytest.approx(before, abs=1e-5)
    tuning.add_lora(task.backbone, 2)
    for variable in task.backbone.trainable_weights:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    batch = task.test_on_batch(TEXTS, LABELS)[0]
    after = task.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)["loss"]
    scores = np.stack([answer["scores"] for answer in task.predict(TEXTS)])
    expected = -np.log(scores[np.arange(len(LABELS)), LABELS]).mean()
    assert abs(after - before) > 1e-3
    assert batch == pytest.approx(after, abs=1e-5)
    assert after == pytest.approx(expected, abs=1e-5)


@pytest.mark.extended
def test_lora_after_a_fit_needs_a_new_compile(task):
    fitted(task)
    tuning.add_lora(task.backbone, 2)
    for train in (partial(task.fit, verbose=0), task.train_on_batch):
        with pytest.raises(ValueError, match="call compile again"):
            train(TEXTS, LABELS)
    before, after = fitted(task)
    moved = {path for path in before if (before[path] != after[path]).any()}
    assert any("lora" in path for path in moved)
    assert all("lora" in path or path.startswith("sequence_head") for path in moved)


@pytest.mark.extended
def test_lora_after_an_evaluation_needs_a_new_compile(task):
    """Which builds the optimizer."""
    task.compile(keras.optimizers.Adam())
    task.evaluate(TEXTS, LABELS, verbose=0)
    tuning.add_lora(task.backbone, 2)
    with pytest.raises(ValueError, match="call compile again"):
        task.fit(TEXTS, LABELS, verbose=0)


@pytest.mark.extended
def test_lora_before_the_optimizer_is_built(task):
    """Its updates are trained, in each of several calls."""
    task.compile(keras.optimizers.SGD(0.5))
    tuning.add_lora(task.backbone, 2)
    before = values(task)
    for _ in range(2):
        task.evaluate(TEXTS, LABELS, verbose=0)
        task.fit(TEXTS, LABELS, verbose=0)
        task.train_on_batch(TEXTS, LABELS)
    after = values(task)
    assert any("lora" in path and (before[path] != after[path]).any() for path in before)


@pytest.mark.extended
def test_generation_after_lora():
    task = published.task("CausalLM", "gpt2")
    before = task.generate("a good film", max_new_tokens=8)
    tuning.add_lora(task.backbone, 2)
    for variable in task.backbone.trainable_weights:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    after = task.generate("a good film", max_new_tokens=8)
    task.forget_graphs()
    assert before != after == task.generate("a good film", max_new_tokens=8)


@pytest.mark.extended
def test_weights_with_lora(task, smallest, tmp_path):
    """As Keras' BackupAndRestore and ModelCheckpoint save and load them."""
    other, plain = (
        bf.TextClassifier.from_pretrained(smallest, labels=["no", "yes"]) for _ in range(2)
    )
    task.save_weights(tmp_path / "plain.weights.h5")
    for each in (task, other):
        tuning.add_lora(each.backbone, 2)
    fitted(task)
    task.save_weights(tmp_path / "lora.weights.h5")
    other.load_weights(tmp_path / "lora.weights.h5")
    for a, b in zip(task.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    expected = task.predict(TEXTS)
    plain.load_weights(tmp_path / "lora.weights.h5")
    for a, b in zip(expected, plain.predict(TEXTS), strict=True):
        np.testing.assert_allclose(a["scores"], b["scores"], atol=1e-5)
    other.load_weights(tmp_path / "plain.weights.h5")
    factors = {v.name: np.abs(v.numpy()).max() for v in other.backbone.trainable_weights}
    assert factors["lora_kernel_a"] > 0 == factors["lora_kernel_b"]


@pytest.mark.parametrize("family", wirings())
def test_where_there_is_nothing_for_lora(family):
    backbone = bf.build(family, "tiny")
    if family in ("bilstm", "elmo", "transformer_xl", "xlnet"):
        with pytest.raises(ValueError, match="has no dense layers query"):
            tuning.add_lora(backbone, 2)
    else:
        tuning.add_lora(backbone, 2)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        tuning.add_lora(backbone, 0)

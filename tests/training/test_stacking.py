"""Grown models: copies by path, outputs, moments; and runs in stages."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, layers, registry
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.training import (
    Stage,
    copied_paths,
    copy_moments,
    grow,
    stacking,
    train_in_stages,
)
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.optimizers import WarmupLinearDecay, adamw, from_settings, lamb
from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.training.tuning import add_lora
from tests.seeding import seed
from tests.selection import in_full, only_in
from tests.tokens import as_read

# ALBERT's layers share their weights, and a BiLSTM's first layer reads embeddings of another width.
OVERRIDES = {"albert": {"sharing": "none"}, "bilstm": {"embedding_size": 16}}


def _built(family, **overrides):
    seed(1)
    fields = registry.get(family).config.__dataclass_fields__
    inner = {"intermediate_size": 24} if "intermediate_size" in fields else {}
    given = {"vocab_size": 50, "hidden_size": 16, "num_layers": 2, **inner}
    backbone = bf.build(family, "tiny", **{**given, **OVERRIDES.get(family, {}), **overrides})
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    return backbone


def _inputs(backbone):
    rng = np.random.default_rng(0)
    mask = (np.arange(7) < np.array([7, 4])[:, None]).astype("int32")
    tokens = as_read(backbone, rng.integers(1, 50, (2, 7)) * mask)
    inputs = {"token_ids": tokens, "padding_mask": mask}
    return inputs | {name: mask * 0 for name in backbone.token_inputs if name not in inputs}


_NUMBERED = re.compile(r"((?:layer|(?:attention|feed_forward)(?:_norm)?)_)(\d+)")


def _source(path, of_layer):
    """The path of a layer's weight with another layer's number; None for other weights."""
    found = _NUMBERED.match(path)
    return None if found is None else f"{found[1]}{of_layer[int(found[2])]}{path[found.end() :]}"


ORDERS = {"stack": [0, 1, 0, 1], "interleave": [0, 0, 1, 1]}


# ModernBERT's first layer has no norm before attention, so that copies of it have a new one.
NEW_NORM = {"stack": "layer_2/attention_norm/gamma", "interleave": "layer_1/attention_norm/gamma"}


@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
@pytest.mark.parametrize("growth", ORDERS)
def test_layers_are_copied(family, growth):
    before = _built(family)
    values = {v.path: (v, v.numpy()) for v in before.weights}
    after = grow(before, growth=growth)
    assert after.config.num_layers == 4
    assert len({v.path for v in after.weights}) == len(after.weights)
    copied = {}
    for variable in after.weights:
        source = _source(variable.path, ORDERS[growth])
        if family == "modernbert" and variable.path == NEW_NORM[growth]:
            np.testing.assert_array_equal(variable.numpy(), np.ones(16))
            copied[variable.path] = ""
            continue
        original, value = values[source or variable.path]
        np.testing.assert_array_equal(variable.numpy(), value)
        # Only the layers are new; heads on the other parts stay tied to them.
        assert (variable is original) == (source is None)
        assert variable.trainable == original.trainable
        if source:
            copied[variable.path] = source
    assert sum(map(bool, copied.values())) == 2 * sum(
        _source(path, [0, 1]) is not None for path in values
    )
    assert copied_paths(before, after, growth) == copied
    for variable, value in values.values():
        np.testing.assert_array_equal(variable.numpy(), value)


def test_new_norms_of_a_task_are_not_those_of_other_layers(smallest):
    tokenizer = bf.load_tokenizer(smallest)
    backbone = _built("modernbert", vocab_size=tokenizer.vocab_size)
    after = grow(bf.TextEmbedder(backbone, tokenizer), growth="interleave")
    (norm,) = (w for w in after.weights if w.path.endswith(NEW_NORM["interleave"]))
    np.testing.assert_array_equal(norm.numpy(), np.ones(16))


def test_outputs_repeat_the_layers():
    before = _built("bert")
    inputs = _inputs(before)
    mask = layers.attention_mask_from_padding(inputs["padding_mask"])
    for growth, order in {"stack": [0, 1, 0], "interleave": [0, 0, 1]}.items():
        x = before(inputs)["hidden_states"][0]
        for i in order:
            x, _ = before.parts[f"layer_{i}"](x, attention_mask=mask)
        found = grow(before, 3, growth)(inputs)["sequence_output"]
        np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("albert", {"sharing": "attention"}),
        ("bert", {"heads_per_layer": [1, 2]}),
        *in_full([("transformer_xl", {"untie_r": False}), ("xlnet", {"untie_r": False})], []),
    ],
)
def test_what_layers_share_stays_shared(family, overrides):
    before = _built(family, **overrides)
    after = grow(before, 3)
    new = {v.path for v in after.weights} - {v.path for v in before.weights}
    assert new
    assert all(re.match(r"(layer|feed_forward|feed_forward_norm)_2", path) for path in new)
    assert getattr(after.config, "heads_per_layer", ()) in ((), (1, 2, 1))
    after(_inputs(after))


def test_identity_keeps_outputs_and_gradients():
    before = _built("gpt2")
    after = grow(before, 5, "identity")
    inputs = _inputs(before)
    weights = np.random.default_rng(1).normal(size=(2, 7, 16)).astype("float32")
    found = []
    for model in (before, after):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=False)["sequence_output"]
            loss = tf.reduce_sum(outputs * weights)
        variables = {v.path: v.value for v in model.trainable_variables}
        found.append((outputs, tape.gradient(loss, variables)))
    np.testing.assert_array_equal(*(outputs for outputs, _ in found))
    old, new = (gradients for _, gradients in found)
    for path, gradient in old.items():
        np.testing.assert_allclose(
            tf.convert_to_tensor(new[path]), tf.convert_to_tensor(gradient), rtol=1e-5, atol=1e-6
        )
    for path in new.keys() - old.keys():
        assert np.any(new[path]) == ("/output/" in path), path


def _muon(rate):
    return from_settings(TrainConfig(optimizer="muon", learning_rate=rate), 10)


@only_in("extended", "adamw")
@pytest.mark.parametrize("make", in_full([adamw, lamb, _muon], [adamw, _muon]))
def test_moments_are_copied(make):
    before = _built("bert")
    before.compile(make(1e-3))
    rng = np.random.default_rng(0)
    for _ in range(2):
        gradients = [tf.constant(rng.normal(size=v.shape), "float32") for v in before.weights]
        before.optimizer.apply(gradients, before.trainable_variables)
    after = grow(before, growth="interleave")
    after.compile(make(1e-3))
    after.optimizer.build(after.trainable_variables)
    fresh = after.optimizer.moments
    assert not any(np.any(moment) for pair in fresh.values() for moment in pair)
    copy_moments(before, after, copied_paths(before, after, "interleave"))
    assert int(after.optimizer.iterations) == 2
    moments = before.optimizer.moments
    assert len(fresh) == len(after.trainable_variables)
    for path, pair in fresh.items():
        expected = moments[_source(path, ORDERS["interleave"]) or path]
        for moment, value in zip(pair, expected, strict=True):
            np.testing.assert_array_equal(moment.numpy(), value.numpy())
            assert np.any(moment)


def test_a_task_keeps_its_head(smallest):
    task = bf.TextClassifier.from_pretrained(smallest)
    grown = grow(task, 3)
    assert grown.backbone.config.num_layers == 3
    assert grown.options == task.options
    values = {v.path: v.numpy() for v in task.weights}
    for variable in grown.weights:
        np.testing.assert_array_equal(
            variable.numpy(), values[_source(variable.path, [0, 0, 0]) or variable.path]
        )


# Stages -----------------------------------------------------------------------------------------


class Rates(keras.callbacks.Callback):
    """Records each step's learning rate and number of layers."""

    def __init__(self):
        super().__init__()
        self.rates, self.layers = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.layers.append(sum("/query/bias" in v.path for v in self.model.trainable_variables))


def _batches(start=0, steps=100):
    def batch(step):
        seeds = tf.stack([step, 0])
        tokens = tf.random.stateless_uniform((4, 6), seeds, 1, 20, tf.int32)
        ones = tf.ones_like(tokens)
        inputs = {"token_ids": tokens, "padding_mask": ones, "segment_ids": ones * 0}
        return inputs, {"positions": ones[:, :2] * [1, 3], "token_ids": tokens[:, :2]}

    return tf.data.Dataset.range(start, steps, output_type=tf.int32).map(batch)


def _run(stages, batches=None, dropout=0.0, **options):
    seed(3)
    backbone = bf.build(
        "bert", "tiny", vocab_size=20, hidden_size=16, num_heads=2, intermediate_size=16,
        num_layers=stages[0].layers if stages else 1, pooler=False, dropout=dropout,
        initializer_range=0.2,
    )  # fmt: skip
    objective = MaskedTokens(heads.build(backbone, "masked_lm"))

    def learner(grown):
        inputs = grown.token_inputs
        return Learner(inputs, grown(inputs), [objective])

    batches = _batches() if batches is None else batches
    return train_in_stages(backbone, stages, learner, batches, verbose=0, **options)


STAGES = [Stage(1, 3), Stage(2, 2)]


@pytest.mark.full
def test_two_stages_of_one_line():
    starts, seen = [], Rates()

    def batches(start):
        starts.append(start)
        return _batches(start)

    settings = TrainConfig(learning_rate=0.01, warmup=0.2)
    trained = _run(STAGES, batches, settings=settings, callbacks=[seen])
    assert starts == [0, 3]
    assert seen.layers == [1, 1, 1, 2, 2]
    line = WarmupLinearDecay(0.01, 1, 5)
    np.testing.assert_allclose(seen.rates, [float(line(i)) for i in range(5)], rtol=1e-5)
    assert trained.backbone.config.num_layers == 2
    assert [row["stage"] for row in trained.history] == [0, 1]
    assert all(np.isfinite(row["loss"]) for row in trained.history)
    assert int(trained.learner.optimizer.iterations) == 2
    assert any("masked_lm_head" in v.path for v in trained.learner.trainable_variables)


@pytest.mark.full
def test_moments_and_rates_of_stages():
    seen = Rates()
    stages = [Stage(1, 3), Stage(2, 4, learning_rate=0.02, warmup=0.5)]
    settings = TrainConfig(learning_rate=0.01, warmup=0.0, optimizer="lamb")
    trained = _run(stages, settings=settings, callbacks=[seen], moments="copied")
    expected = [0.01, 0.01 * 6 / 7, 0.01 * 5 / 7, 0, 0.01, 0.02, 0.01]
    np.testing.assert_allclose(seen.rates, expected, rtol=1e-5)
    assert int(trained.learner.optimizer.iterations) == 7


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_a_stage_with_its_own_rate_has_the_schedule_of_the_settings(kind):
    stages = [Stage(steps=3), Stage(steps=8, learning_rate=0.02, warmup=0.25)]
    rate = stacking._schedule(stages, TrainConfig(schedule=kind, warmup=0.0), 11)
    steps = np.arange(6)
    falling = {
        "linear": 1 - steps / 6,
        "cosine": (1 + np.cos(np.pi * steps / 6)) / 2,
        "constant": 1,
    }
    expected = 0.02 * np.concatenate([[0, 0.5], np.ones(6) * falling[kind]])
    np.testing.assert_allclose([float(rate(3 + step)) for step in range(8)], expected, rtol=1e-5)


@pytest.mark.full
def test_stages_without_growth_are_one_run():
    """Batches, learning rate, moments and dropout go on where the previous stage ended."""
    seen, settings = Rates(), TrainConfig(learning_rate=0.01)
    one = _run([Stage(1, 6)], settings=settings, dropout=0.1, callbacks=[seen])
    again = Rates()
    stages = [Stage(1, 2), Stage(1, 2), Stage(steps=2, epochs=2)]
    two = _run(stages, settings=settings, dropout=0.1, callbacks=[again])
    assert again.rates == seen.rates
    assert [row["stage"] for row in two.history] == [0, 1, 2]
    assert int(two.learner.optimizer.iterations) == 6
    for a, b in zip(one.learner.weights, two.learner.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-6)


class Killed(Exception):
    pass


@pytest.mark.full
@pytest.mark.parametrize(
    ("steps", "moments"), [(1, "fresh"), (2, "copied"), (3, "copied"), (4, "fresh"), (6, "fresh")]
)
def test_a_killed_run_goes_on(tmp_path, steps, moments):
    # The second step is within the last epoch, which has two.
    stages = [Stage(1, 3, epochs=2), Stage(2, 4)]
    settings = TrainConfig(learning_rate=0.01, backup_steps=2)
    options = dict(settings=settings, dropout=0.1, moments=moments)
    whole = _run(stages, **options)

    class Kill(keras.callbacks.Callback):
        count = 0

        def on_train_batch_begin(self, batch, logs=None):
            if self.count == steps:
                raise Killed
            self.count += 1

    with pytest.raises(Killed):
        _run(stages, **options, directory=tmp_path, callbacks=[Kill()])
    again = _run(stages, **options, directory=tmp_path)
    for a, b in zip(whole.learner.weights, again.learner.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-6, err_msg=a.path)
    assert again.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=1e-5)
    # What is done is not done again.
    done = _run(stages, **options, directory=tmp_path)
    assert done.history == []
    for a, b in zip(again.learner.weights, done.learner.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


# Mistakes ---------------------------------------------------------------------------------------


def test_models_that_cannot_grow():
    bert = _built("bert")
    for arguments, message in (
        ((2,), "num_layers must be more than the 2 layers of this backbone"),
        ((300,), "num_layers must be from 0 to 256, got 300"),
        ((4, "double"), "growth must be one of stack, interleave, identity, got 'double'"),
        ((4, "identity"), r"\(post-norm\), got 'identity' for bert"),
    ):
        with pytest.raises(ValueError, match=message):
            grow(bert, *arguments)
    with pytest.raises(ValueError, match="of this albert backbone must have weights of their own"):
        grow(_built("albert", sharing="all"))
    with pytest.raises(
        ValueError, match="of this albert backbone must not share weights by groups"
    ):
        grow(_built("albert", sharing="all", num_groups=2))
    wider = _built("bilstm", embedding_size=8)
    with pytest.raises(ValueError, match=r"same shapes, got \(8, 64\) of layer_0/input/kernel for"):
        grow(wider)
    add_lora(bert, 2)
    with pytest.raises(ValueError, match="of this bert backbone must have the weights that the fa"):
        grow(bert)


@only_in("extended", "stages5-options5-at least 5 batches for the steps of all stages, got 2.")
@pytest.mark.parametrize(
    ("stages", "options", "message"),
    [
        ([Stage(2, 1), Stage(1, 1)], {}, r"with fewer layers than the previous one, got \[2, 1\]"),
        ([], {}, r"stages must not be empty, none with fewer layers"),
        (STAGES, {"growth": "double"}, "growth must be one of stack"),
        (STAGES, {"moments": "new"}, "moments must be fresh or copied, got 'new'"),
        (
            STAGES,
            {"batches": _batches(0, 4)},
            "at least 5 batches for the steps of all stages, got 4",
        ),
        (
            STAGES,
            {"batches": lambda start: _batches(start, 2)},
            "at least 5 batches for the steps of all stages, got 2.",
        ),
    ],
)
def test_mistakes_in_stages(stages, options, message):
    with pytest.raises(ValueError, match=message):
        _run(stages, **options)


def test_mistakes_in_a_stage():
    for arguments, message in (
        ((0, 1), r"stages\[i\].layers must be at least 1, got 0"),
        ((1, 0), r"stages\[i\].steps must be at least 1, got 0"),
        ((1, 1, 0.1, 1.0), r"stages\[i\].warmup must be at least 0 and below 1, got 1.0"),
        ((1, 1, None, 0.1), r"stages\[i\].warmup must be 0 without stages\[i\].learning_rate"),
        ((None, 2, None, 0.0, 0), r"stages\[i\].length must be at least 1, got 0"),
        ((None, 2, None, 0.0, 8, 0), r"stages\[i\].batch_size must be at least 1, got 0"),
        (
            (None, 1, None, 0.0, 8, 1, 2),
            r"stages\[i\].epochs must be at most its 1 steps, got 2",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Stage(*arguments)
    with pytest.raises(ValueError, match="must have the 3 layers of the first stage, got 2"):
        train_in_stages(_built("bert"), [Stage(3, 1)], None, _batches())

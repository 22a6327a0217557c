"""Blocks that call one traced function, beside the same ones that are traced one by one."""

import gc
import weakref
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.layers import TransformerBlock, block, tracing
from bertfam_tf.models import unpadding
from tests.selection import WIRINGS, in_full, only_in

TINY = dict(vocab_size=40, hidden_size=16, num_heads=2, intermediate_size=24, num_layers=3)
TOKENS = np.random.default_rng(0).integers(1, 40, (3, 5))
MASK = np.arange(5) < [[5], [2], [3]]
GIVEN = {"token_ids": TOKENS, "padding_mask": MASK.astype("int32")}


def _build(family="bert", dtype="float64"):
    more = {"cutoffs": ()} if family == "transformer_xl" else {}
    more |= {"dropout": 0.1, "attention_dropout": 0.1}
    backbone = bf.build(family, "tiny", dtype=dtype, **TINY, **more)
    rng = np.random.default_rng(0)
    for weight in backbone.trainable_weights:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    return backbone


def _outputs(backbone, training=True, gradients=False):
    """Outputs of a new graph, and the gradients of the sum of their squares."""
    given = dict(GIVEN)
    if "language_ids" in backbone.input:
        given["language_ids"] = np.ones_like(TOKENS)
    variables = [weight.value for weight in backbone.trainable_weights]

    def step():
        with unpadding(True), tf.GradientTape() as tape:
            outputs = backbone(given, training=training)
            outputs = [outputs["hidden_states"][-1], outputs["attention_scores"][1]]
            loss = sum(tf.reduce_sum(x**2) for x in outputs)
        if not gradients:
            return outputs
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        return outputs + [tf.convert_to_tensor(x) for x in found]

    for state in _seeds(backbone):
        state.assign([1, 2])
    return tf.function(step, autograph=False)()


def _seeds(backbone):
    return [variable for variable in backbone.variables if "seed_generator" in variable.path]


def _one_by_one(layer, method, *args, **kwargs):
    return getattr(layer, method)(*args, **kwargs)


@pytest.fixture
def traces(monkeypatch):
    """The blocks that were traced, one entry for each time."""
    gc.collect()  # equal models of earlier tests would share what was traced for them
    seen = []

    def call(self, *args, **kwargs):
        seen.append(self.name)
        return original(self, *args, **kwargs)

    original = TransformerBlock._call
    monkeypatch.setattr(TransformerBlock, "_call", call)
    return seen


# MobileBERT's blocks are of another class.
BLOCKS = [
    name
    for name in bf.families()
    if hasattr(registry.get(name).config, "num_heads") and name != "mobilebert"
]
CASES = [(family, training) for family in BLOCKS for training in (True, False)]
QUICK = [("bert", False), *((family, True) for family in WIRINGS)]


@only_in("full", "albert-True", "gpt2-True", "xlnet-True", "bert-False", "bert-True")
@pytest.mark.parametrize(("family", "training"), in_full(CASES, QUICK))
def test_outputs_and_gradients_are_those_of_blocks_traced_one_by_one(
    family, training, traces, monkeypatch
):
    backbone = _build(family)
    found = _outputs(backbone, training, gradients=True)
    # Of several arguments where the first block gets other ones than the rest.
    # ModernBERT's first block has no norm before attention.
    assert len(set(traces)) == (2 if family == "modernbert" else 1)
    seeds = [state.numpy() for state in _seeds(backbone)]
    monkeypatch.setattr(block, "call_once_traced", _one_by_one)
    _assert_equal(found, _outputs(backbone, training, gradients=True))
    # Dropout drew numbers, and its seeds went on.
    np.testing.assert_array_equal(seeds, [state.numpy() for state in _seeds(backbone)])
    assert np.any(seeds != np.array([1, 2])) == training


def _assert_equal(found, wanted, tolerance=1e-12):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.full
def test_models_of_one_config_share_what_was_traced(traces):
    one, other = _build(), _build()
    _outputs(one, training=False), _outputs(other, training=False)
    # The last block has a second function, for the first token alone.
    assert len(traces) == 2
    # In training, other outputs than the first have a function of their own.
    _outputs(other)
    assert len(traces) == 6


@only_in("full", "False", "True")
@pytest.mark.parametrize("training", [True, False])
def test_only_outputs_that_are_asked_for_are_traced(traces, training):
    backbone = _build()
    for outputs, number in (("sequence_output", 1), ("first_token", 2), ("pooled_output", 2)):

        @tf.function(autograph=False)
        def step(outputs=outputs):
            with unpadding(True):
                return backbone(GIVEN, training=training, outputs=outputs)

        step()
        assert len(traces) == number


@pytest.mark.full
def test_a_model_that_is_collected_meanwhile(monkeypatch):
    """The layer that is traced belongs to a model that is gone, and is needed once more."""
    one, other = _build(), _build()
    _outputs(one, training=False)

    def function(*args):
        traced = original(*args)

        def call(*given):
            gc.collect()
            return traced(*given)

        return call

    original = tracing._function
    monkeypatch.setattr(tracing, "_function", function)
    gc.disable()
    del one
    try:
        step = tf.function(lambda x: other.parts["layer_1"](x)[0], autograph=False)
        assert step(tf.ones([1, 2, 16], "float64")).shape == (1, 2, 16)
        wide = {name: np.tile(x, (1, 2)) for name, x in GIVEN.items()}
        assert tf.function(other, autograph=False)(wide)["sequence_output"].shape == (3, 10, 16)
    finally:
        gc.enable()


@pytest.mark.extended
@pytest.mark.parametrize("unpadded", [False, pytest.param(True, marks=pytest.mark.full)])
def test_blocks_that_are_recomputed_have_the_same_gradients(unpadded):
    """With dropout, whose random numbers are those of the first time."""

    backbone = _build()

    def gradients(recomputed):
        for number, variable in enumerate(backbone.variables):
            if variable.name == "seed_generator_state":
                variable.assign([7, number])

        @tf.function(autograph=False)
        def step():
            with (
                tf.GradientTape() as tape,
                unpadding(unpadded),
                tracing.recomputation(recomputed),
            ):
                outputs = backbone(GIVEN, training=True, outputs="sequence_output")
                loss = tf.reduce_sum(outputs["sequence_output"] ** 3)
            found = tape.gradient(loss, [v.value for v in backbone.trainable_variables])
            return loss, [tf.convert_to_tensor(each) for each in found if each is not None]

        return step()

    expected, found = gradients(False), gradients(True)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    assert len(found[1]) == len(expected[1]) > 20
    for ours, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@pytest.mark.extended
def test_calls_with_and_without_scores_in_turns():
    """Each trace of a block has its own number of outputs."""
    for names in (["attention_scores"], ["sequence_output"], ["attention_scores"]):
        backbone = _build()

        @tf.function(autograph=False)
        def step(backbone=backbone, names=names):
            with unpadding(True):
                return backbone(GIVEN, training=True, outputs=names)

        assert set(step()) == set(names)


def _lora(backbone):
    backbone.parts["layer_1"].attention.query.enable_lora(2)
    for weight in backbone.weights:
        if "lora" in weight.path:
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))


def _other_rate(backbone):
    backbone.parts["layer_1"].dropout.rate = 0.5


def _other_activation(backbone):
    backbone.parts["layer_1"].feed_forward.activation = keras.activations.relu


def _other_epsilon(backbone):
    backbone.parts["layer_1"].attention_norm.epsilon = 0.1


def _replaced(backbone):
    backbone.parts["layer_1"].feed_forward.intermediate.call = lambda x, training=None: (
        x @ (tf.ones([16, 24], x.dtype))
    )


def _attribute(backbone):
    backbone.parts["layer_1"].attention.scale = 0.3


CHANGES = [_lora, _other_rate, _other_activation, _other_epsilon, _replaced, _attribute]


@pytest.mark.extended
@only_in("full", "_other_rate", "_other_activation", "_other_epsilon", "_attribute", "_replaced")
@pytest.mark.parametrize("change", CHANGES)
def test_a_block_that_was_changed_is_traced_by_itself(change, monkeypatch):
    backbone = _build()
    training = change is _other_rate
    before = _outputs(backbone, training)
    change(backbone)
    found = _outputs(backbone, training)
    monkeypatch.setattr(block, "call_once_traced", _one_by_one)
    # LoRA's updates are float32.
    _assert_equal(found, _outputs(backbone, training), 1e-5 if change is _lora else 1e-12)
    assert np.abs(found[0] - before[0]).max() > 1e-6


@pytest.mark.full
def test_the_block_that_was_traced_may_change(monkeypatch):
    backbone = _build()
    _outputs(backbone, training=False)
    backbone.parts["layer_0"].attention.scale = 0.3  # of which the others know nothing
    found = _outputs(backbone)
    monkeypatch.setattr(block, "call_once_traced", _one_by_one)
    _assert_equal(found, _outputs(backbone))


@pytest.mark.full
def test_other_dtypes_than_of_weights_are_traced_one_by_one(traces):
    outputs = _outputs(_build(dtype="mixed_bfloat16"))
    assert outputs[0].dtype == tf.bfloat16
    assert set(traces) == {"layer_0", "layer_1", "layer_2"}


@pytest.mark.extended
def test_models_are_freed():
    backbone = _build()
    _outputs(backbone, training=False)
    reference = weakref.ref(backbone.parts["layer_0"])
    del backbone
    gc.collect()
    assert reference() is None


def test_eager_calls_trace_nothing(traces):
    backbone = _build()
    given = {"token_ids": TOKENS, "padding_mask": MASK}
    with mock.patch.object(tf, "function", side_effect=AssertionError):
        backbone(given)
    assert traces == ["layer_0", "layer_1", "layer_2", "layer_2"]


@pytest.mark.extended
def test_a_replaced_method_is_called_for_each_block():
    backbone, seen = _build(), []

    def call(x, training=None):
        seen.append(x)
        return x @ tf.ones([16, 24], x.dtype)

    for i in range(3):
        backbone.parts[f"layer_{i}"].feed_forward.intermediate.call = call
    _outputs(backbone, training=False)
    assert len(seen) == 4  # the last one for the first token too


@pytest.mark.extended
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_casts_no_weight_twice(training):
    backbone = _build(dtype="mixed_bfloat16")
    weights = [weight.value for weight in backbone.trainable_weights]

    def step():
        with unpadding(True), tf.GradientTape() as tape:
            outputs = backbone(GIVEN, training=training, outputs="sequence_output")
            loss = tf.reduce_sum(tf.cast(outputs["sequence_output"], "float32") ** 2)
        return tape.gradient(loss, weights) if training else loss

    graph = tf.function(step, autograph=False).get_concrete_function().graph.as_graph_def()
    casts = []
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        reads = {n.name: n.input[0] for n in nodes if n.op == "ReadVariableOp"}
        sources = (node.input[0].partition(":")[0] for node in nodes if node.op == "Cast")
        casts += [reads[source] for source in sources if source in reads]
    # Kernels and biases of six dense layers in each of three blocks.
    assert len(casts) >= 3 * 12
    assert len(casts) == len(set(casts))

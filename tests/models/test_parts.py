"""Layers handed in: weights that models share, attention from parts, dtype policies."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads, layers, registry
from bertfam_tf.models import Backbone
from bertfam_tf.models.parts import Parts
from tests.selection import in_full, wirings
from tests.tokens import as_read

SMALL = dict(vocab_size=40, hidden_size=16, intermediate_size=24)
TOKENS = np.random.default_rng(0).integers(6, 40, (2, 7)).astype("int32")
GIVEN = {"token_ids": TOKENS, "padding_mask": np.ones_like(TOKENS)}
EMBEDDINGS = ("token_embedding", "segment_embedding", "position_embedding")


def _perturb(variables, seed=0, stddev=0.3):
    rng = np.random.default_rng(seed)
    for variable in variables:
        variable.assign_add(rng.normal(0, stddev, variable.shape))


def _build(family, **more):
    fields = registry.get(family).config.__dataclass_fields__
    small = {name: value for name, value in SMALL.items() if name in fields}
    languages = {"num_languages": 1} if family == "xlm" else {}
    return bf.build(family, "tiny", **{**small, **languages, **more})


def _paths(backbone):
    return [variable.path for variable in backbone.weights]


def _ids(model):
    return {id(variable) for variable in model.weights}


# Shared weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_a_second_wiring_of_the_same_layers_is_the_same_model(family):
    backbone = _build(family)
    _perturb(backbone.weights)
    again = Backbone(family, backbone.config, parts=backbone.parts)
    assert _ids(again) == _ids(backbone)
    assert _paths(again) == _paths(backbone)
    assert dict(again.parts) == dict(backbone.parts)
    given = {**GIVEN, "token_ids": as_read(backbone, GIVEN["token_ids"])}
    np.testing.assert_array_equal(
        again(given)["sequence_output"], backbone(given)["sequence_output"]
    )


@pytest.mark.extended
def test_generator_and_discriminator_share_embeddings():
    generator = _build("electra", embedding_size=8)
    tables = generator.parts.subset(*EMBEDDINGS)
    discriminator = _build("electra", embedding_size=8, hidden_size=32, parts=tables)
    shared = _ids(generator) & _ids(discriminator)
    assert len(shared) == 3
    assert discriminator.parts["token_embedding"] is generator.parts["token_embedding"]
    assert _paths(discriminator) == _paths(_build("electra", embedding_size=8, hidden_size=32))
    assert set(tables) == set(EMBEDDINGS)

    before = discriminator(GIVEN)["sequence_output"]
    _perturb(generator.weights)
    assert np.abs(discriminator(GIVEN)["sequence_output"] - before).max() > 1e-3

    # Trained together, the tables get both gradients; heads are tied to the same table.
    mlm, rtd = heads.build(generator, "masked_lm"), heads.build(discriminator, "rtd")
    _perturb([*discriminator.weights, *mlm.weights, *rtd.weights])
    table = generator.parts["token_embedding"].embeddings
    with tf.GradientTape(persistent=True) as tape:
        one = tf.reduce_sum(mlm(generator(GIVEN)) ** 2)
        other = tf.reduce_sum(rtd(discriminator(GIVEN)) ** 2)
        both = one + other
    parts = [tf.convert_to_tensor(tape.gradient(loss, table.value)) for loss in (one, other, both)]
    assert all(np.abs(gradient).max() > 0 for gradient in parts)
    np.testing.assert_allclose(parts[0] + parts[1], parts[2], rtol=1e-4, atol=1e-3)


def test_a_deeper_model_over_a_shallower_ones_blocks():
    shallow = _build("bert", num_layers=2)
    _perturb(shallow.weights)
    count = len(shallow.parts)
    deep = _build("bert", num_layers=4, parts=shallow.parts)
    assert _ids(shallow) < _ids(deep)
    new = [v.path for v in deep.weights if id(v) not in _ids(shallow)]
    assert {path.split("/")[0] for path in new} == {"layer_2", "layer_3"}
    assert len(shallow.parts) == count  # what the deeper one made is its own
    assert _paths(deep) == _paths(_build("bert", num_layers=4))
    for ours, theirs in zip(
        shallow(GIVEN)["hidden_states"], deep(GIVEN)["hidden_states"], strict=False
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert [layer.name for layer in deep.layers if "layer_" in layer.name] == [
        f"layer_{i}" for i in range(4)
    ]


@pytest.mark.parametrize(
    ("sharing", "new"),
    [("all", set()), ("attention", {"feed"}), ("feed_forward", {"attention"})],
)
def test_a_deeper_albert_shares_with_its_new_layers(sharing, new):
    shallow = _build("albert", num_layers=2, sharing=sharing)
    deep = _build("albert", num_layers=4, sharing=sharing, parts=shallow.parts)
    added = {v.path.split("_")[0] for v in deep.weights if id(v) not in _ids(shallow)}
    assert added == new
    assert _paths(deep) == _paths(_build("albert", num_layers=4, sharing=sharing))


def test_parts_that_cannot_be():
    parts = _build("bert").parts
    with pytest.raises(ValueError, match=r"Unknown part 'token_embeding'\. Did you mean 'token_em"):
        parts.subset("token_embeding")
    with pytest.raises(ValueError, match="The layer 'layer_0' cannot be used as 'layer_1'"):
        Parts({"layer_1": parts["layer_0"]})


# Dtype policy ----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("family", wirings())
@pytest.mark.parametrize(
    ("policy", "around"), [("mixed_bfloat16", "float32"), ("float32", "mixed_bfloat16")]
)
def test_the_policy_is_the_backbones(family, policy, around):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(around)
    try:
        backbone = _build(family, num_layers=1, dtype=policy)
        head = heads.build(backbone, "sequence", 3)
        again = Backbone.from_config(backbone.get_config())
        plain = Parts()
    finally:
        keras.config.set_dtype_policy(before)
    assert keras.config.dtype_policy() == before
    for model in (backbone, again):
        wrong = {
            layer.name: layer.dtype_policy.name
            for layer in (model, *model._flatten_layers())
            if layer.dtype_policy.name != policy and not isinstance(layer, keras.layers.InputLayer)
        }
        assert not wrong
    assert plain.dtype_policy.name == around
    compute = backbone.dtype_policy.compute_dtype
    outputs = backbone({**GIVEN, "token_ids": as_read(backbone, GIVEN["token_ids"])})
    assert outputs["sequence_output"].dtype == compute
    given = [x for name, x in backbone.input.items() if name in ("memory", "cache")]
    assert {x.dtype for x in keras.tree.flatten(given)} <= {compute}
    assert {part.compute_dtype for part in head.parts[:-1]} <= {compute}
    assert head(outputs).dtype == "float32"


# Attention -------------------------------------------------------------------------------------

X = np.random.default_rng(1).normal(0, 1, (2, 5, 12)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)[:, None, None]


def _attention(kind=layers.SelfAttention, num_heads=3, seed=5, **more):
    attention = kind(num_heads, 4, **more)
    attention.build((None, None, 12))
    _perturb(attention.weights, seed)
    return attention


def _without(attention, removed, kind):
    """The same attention with pruned heads: without their columns and rows of the kernels."""
    kept = [i for i in range(attention.num_heads) if i not in removed]
    small = _attention(kind, len(kept))
    for theirs in attention.weights:
        part, name = theirs.path.split("/")[-2:]
        value = theirs.numpy()
        if part == "output" and name == "kernel":
            value = value.reshape(-1, 4, 12)[kept].reshape(-1, 12)
        elif part != "output" and part != "gate":
            fused = 3 if part == "query_key_value" else 1
            cut = value.reshape(*value.shape[:-1], fused, -1, 4)[..., kept, :]
            value = cut.reshape(*value.shape[:-1], -1)
        if part != "gate":
            next(v for v in small.weights if v.path.endswith(f"{part}/{name}")).assign(value)
    return small


@pytest.mark.parametrize("kind", [layers.SelfAttention, layers.CachedSelfAttention])
@pytest.mark.parametrize("removed", [[0], [1], [0, 2]])
def test_removed_heads_are_heads_whose_gate_is_0(kind, removed):
    full = _attention(kind, gate=layers.HeadGate(name="gate"))
    full.gate.gate.assign([float(i not in removed) for i in range(3)])
    gated, scores = full(X, attention_mask=MASK)[:2]
    small = _without(full, removed, kind)
    pruned, left = small(X, attention_mask=MASK)[:2]
    assert gated.shape == pruned.shape == (2, 5, 12)
    np.testing.assert_allclose(pruned, gated, atol=1e-5)
    np.testing.assert_allclose(left, np.delete(scores, removed, axis=1), atol=1e-5)
    full.gate.gate.assign(np.ones(3))
    assert np.abs(full(X, attention_mask=MASK)[0] - gated).max() > 1e-2


def test_a_model_with_fewer_heads_in_some_layers():
    """It computes what the full one does with nothing coming from the removed heads."""
    full = _build("bert", num_heads=4)
    _perturb(full.weights)
    small = _build("bert", num_heads=4, heads_per_layer=[4, 1])
    assert [x.shape[1] for x in small.output["attention_scores"]] == [4, 1]
    kept = slice(8, 12)  # the third of four heads
    of = {variable.path: variable for variable in full.weights}
    output = of["layer_1/attention/output/kernel"].numpy()
    output[:8], output[12:] = 0, 0
    of["layer_1/attention/output/kernel"].assign(output)
    for variable in small.weights:
        value = of[variable.path].numpy()
        if value.shape != tuple(variable.shape):
            value = value[kept] if "output" in variable.path else value[..., kept]
        variable.assign(value)
    np.testing.assert_allclose(
        small(GIVEN)["sequence_output"], full(GIVEN)["sequence_output"], atol=1e-5
    )
    for counts in ([4], [4, 0], [5, 4]):
        with pytest.raises(ValueError, match=r"must be 2 numbers from 1 to num_heads, 4"):
            _build("bert", num_heads=4, heads_per_layer=counts)
    for family in ("albert", "mobilebert", "modernbert", "mpnet"):
        with pytest.raises(ValueError, match="all layers have the same number of heads"):
            _build(family, heads_per_layer=[1, 1])


@pytest.mark.parametrize("kind", [layers.SelfAttention, layers.CachedSelfAttention])
def test_a_gate_of_1_is_none_and_learns(kind):
    gated, plain = _attention(kind, gate=layers.HeadGate(name="gate")), _attention(kind)
    gated.gate.gate.assign(np.ones(3))
    weights = [variable for variable in gated.weights if "gate" not in variable.path]
    for ours, theirs in zip(plain.weights, weights, strict=True):
        ours.assign(theirs)
    with tf.GradientTape() as tape:
        found = gated(X, attention_mask=MASK)[0]
        loss = tf.reduce_sum(found**2)
    np.testing.assert_array_equal(found, plain(X, attention_mask=MASK)[0])
    assert np.abs(tape.gradient(loss, gated.gate.gate.value)).min() > 0


def test_a_gate_in_relative_attention():
    bias = [layers.QueryBias(3, 4, name=name) for name in ("content_bias", "position_bias")]
    gate = layers.HeadGate(name="gate")
    attention = layers.RelativeAttention(12, 3, 4, *bias, gate=gate)
    positions = layers.RelativePositions(12)(X, X[:, :0])
    outputs = [attention(X, X, positions, MASK)[0]]
    gate.gate.assign(np.zeros(3))
    outputs.append(attention(X, X, positions, MASK)[0])
    assert np.abs(outputs[0]).max() > 0
    assert not np.asarray(outputs[1]).any()


def test_absent_parts_leave_no_operations():
    def operations(attention):
        function = tf.function(lambda x: attention(x, attention_mask=MASK)[0], autograph=False)
        graph = function.get_concrete_function(tf.TensorSpec([None, None, 12])).graph
        return sorted(op.type for op in graph.get_operations())

    plain = operations(_attention())
    # Those of attention without a gate, positions, or projections of its own.
    assert plain.count("MatMul") + plain.count("BatchMatMulV2") + plain.count("Tensordot") <= 6
    assert len(operations(_attention(gate=layers.HeadGate()))) > len(plain)
    assert len(operations(_attention(use_bias=False))) < len(plain)


def test_attention_without_biases():
    attention = _attention(use_bias=False)
    assert [v.path.split("/", 1)[1] for v in attention.weights] == [
        f"{name}/kernel" for name in ("query", "key", "value", "output")
    ]
    plain, kernels = _attention(), {v.path.split("/", 1)[1]: v for v in attention.weights}
    for variable in plain.weights:
        path = variable.path.split("/", 1)[1]
        variable.assign(kernels.get(path, np.zeros(variable.shape)))
    np.testing.assert_allclose(attention(X)[0], plain(X)[0], atol=1e-6)


def test_a_fully_masked_query_gets_uniform_attention():
    scores = np.random.default_rng(0).normal(0, 3, (1, 2, 3, 4)).astype("float32")
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)[None, None]
    found = np.asarray(layers.attention_probabilities(scores, mask))
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(found[:, :, 1], 0.25, atol=1e-6)
    assert not found[:, :, 0, 2:].any()
    exact = np.exp(scores[:, :, 2]) / np.exp(scores[:, :, 2]).sum(-1, keepdims=True)
    np.testing.assert_allclose(found[:, :, 2], exact, atol=1e-6)
    np.testing.assert_array_equal(
        layers.attention_probabilities(scores), layers.attention_probabilities(scores, mask | True)
    )


@pytest.mark.parametrize("heads_and_size", [(0, 4), (3, 0)])
def test_attention_without_heads_is_refused(heads_and_size):
    with pytest.raises(ValueError, match="Attention needs heads"):
        layers.SelfAttention(*heads_and_size)


def test_rotary_scores_depend_on_distances_alone():
    attention = _attention(positions=layers.rotate)
    angles = layers.RotaryAngles(4)

    def scores(first):
        return attention(X, positions=angles(np.arange(first, first + 5)[None]))[1]

    np.testing.assert_allclose(scores(0), scores(100), atol=1e-4)
    assert np.abs(scores(0) - attention(X, positions=angles(np.zeros((1, 5))))[1]).max() > 1e-2
    with pytest.raises(ValueError, match="head_size must be even for rotary positions, got 5"):
        layers.RotaryAngles(5)


def test_log_buckets_of_deberta():
    """The last of them has an integer on the scale, which rounding exceeds."""
    distances = np.arange(-600, 601)
    found = np.asarray(layers.log_buckets(distances.astype("int32"), 256, 512))
    np.testing.assert_array_equal(found, -found[::-1])
    size = np.maximum(distances, 128)
    exact = np.round(127 * np.log(size / 128) / np.log(511 / 128), 9)
    expected = np.where(distances <= 128, distances, 128 + np.ceil(exact))
    np.testing.assert_array_equal(found[600:], expected[600:])
    assert found[[88, 89, 1111, 1112]].tolist() == [-256, -255, 255, 256]


def test_distances_have_a_dropout_of_their_own():
    query, key = (layers.Dense(8, name=name) for name in ("query", "key"))
    scores = layers.DisentangledScores(query, key, 1.0, dropout=0.5)
    heads = np.ones((1, 2, 3, 4), "float32")
    given = (np.ones((1, 6, 8), "float32"), np.array([5, 4, 3, 2, 1]))

    class Called(keras.layers.Layer):
        def call(self, training=None):
            return scores(heads, heads, given)[2]

    plain, dropped = (np.asarray(Called()(training=training)) for training in (False, True))
    assert np.ptp(plain[0, 0]) < 1e-5 < 1e-3 < np.ptp(dropped[0, 0])


# Families ---------------------------------------------------------------------------------------


def test_each_block_has_a_mask_of_its_own():
    """Of four blocks the second and third are local, and see two tokens on either side."""
    shape = dict(vocab_size=40, hidden_size=16, num_layers=4, num_heads=4, intermediate_size=24)
    shape |= dict(local_attention=4, local_base=160000.0)
    local = bf.build("modernbert", "tiny", **shape)
    _perturb(local.weights)
    everywhere = bf.build("modernbert", "tiny", **shape, global_every=1, parts=local.parts)
    for length, same in ((3, 5), (7, 2)):
        given = {name: value[:, :length] for name, value in GIVEN.items()}
        one, other = (model(given)["hidden_states"] for model in (local, everywhere))
        equal = [np.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True)]
        assert equal == [True] * same + [False] * (5 - same)

"""Backbones that compute real tokens only, beside the same ones that compute padding."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import layers, registry
from bertfam_tf.models import Backbone, single_example_branch, unpadding
from tests.selection import in_full, only_in
from tests.tokens import as_read

# Their attention or recurrence needs all positions: they compute padding in either mode.
PADDED = {"bilstm", "elmo", "gpt", "gpt2", "transformer_xl", "xlnet"}
LENGTHS = np.array([6, 2, 1, 4, 0])
ON_THE_RIGHT = np.arange(6) < LENGTHS[:, None]
MASKS = {
    "right": ON_THE_RIGHT,
    "left": ON_THE_RIGHT[:, ::-1],
    "gaps": ON_THE_RIGHT & (np.arange(6) != 2),
    "none": np.ones((5, 6), bool),
}


def _build(family, **more):
    tiny = dict(vocab_size=40, hidden_size=16, num_heads=2, intermediate_size=24, num_layers=2)
    if family == "transformer_xl":
        tiny["cutoffs"] = ()
    tiny["inner_size"] = 8
    given = {**tiny, "dropout": 0.0, "attention_dropout": 0.0, **more}
    fields = registry.get(family).config.__dataclass_fields__
    given = {name: value for name, value in given.items() if name in fields}
    backbone = bf.build(family, "tiny", dtype="float64", **given)
    rng = np.random.default_rng(0)
    for weight in backbone.weights:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    return backbone


def _given(backbone, mask, seed=0):
    rng = np.random.default_rng(seed)
    tokens = as_read(backbone, rng.integers(0, 40, mask.shape))
    given = {"token_ids": tokens, "padding_mask": mask.astype("int32")}
    if "segment_ids" in backbone.input:
        given["segment_ids"] = rng.integers(0, 2, mask.shape)
    if "language_ids" in backbone.input:
        given["language_ids"] = np.ones(mask.shape, "int32")
    return given


@pytest.mark.parametrize("mask", in_full(MASKS, ["left", "gaps"]))
@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_outputs_and_gradients_are_those_of_the_padded_model(family, mask):
    backbone = _build(family)
    mask = MASKS[mask]
    given, real = _given(backbone, mask), mask[..., None]
    found = []
    for unpadded in (False, True):
        with unpadding(unpadded), tf.GradientTape() as tape:
            outputs = backbone(given)
            states = [tf.where(real, each, 0.0) for each in outputs["hidden_states"]]
            pooled = outputs.get("pooled_output", outputs["sequence_output"][:, 0])
            pooled = tf.where(mask.any(1, keepdims=True), pooled, 0.0)
            loss = sum(tf.reduce_sum(x**2) for x in states) + tf.reduce_sum(pooled**2)
        gradients = tape.gradient(loss, [weight.value for weight in backbone.trainable_weights])
        gradients = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        found.append([*states, pooled, *gradients])
    assert len(found[0]) == len(found[1])
    for padded, unpadded in zip(*found, strict=True):
        np.testing.assert_allclose(unpadded, padded, rtol=1e-9, atol=1e-9)
    assert backbone.parts.can_unpad == (family not in PADDED)
    # No second wiring of a family that computes padding in either mode.
    assert backbone._variant.cache_info().currsize == (family not in PADDED)


@only_in("extended", "bert")
@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_single_examples_have_a_branch_of_their_own(family):
    backbone = _build(family)
    names = [name for name in backbone.output if name not in ("cache", "memory")]

    def outputs(given):
        return backbone(given, outputs=names)

    given = _given(backbone, np.ones((2, 6), bool))
    specs = {name: tf.TensorSpec([None, *np.shape(x)[1:]], "int32") for name, x in given.items()}
    with unpadding(True):
        plain = tf.function(outputs, autograph=False).get_concrete_function(specs)
        with single_example_branch():
            branched = tf.function(outputs, autograph=False).get_concrete_function(specs)
    conditions = [op for op in branched.graph.get_operations() if op.type in ("If", "StatelessIf")]
    assert len(conditions) == (family not in PADDED)
    for op in conditions:
        # Neither groups of examples nor positions of real tokens.
        single, batch = (
            branched.graph._get_function(op.get_attr(name).name).graph
            for name in ("then_branch", "else_branch")
        )
        assert len(single.get_operations()) < 0.7 * len(batch.get_operations())
        assert not any(each.type == "Where" for each in single.get_operations())
    masks = {"one": MASKS["none"][:1], "padded": MASKS["right"][1:2], "two": MASKS["none"][:2]}
    for mask in masks.values():
        given = {n: tf.constant(x, "int32") for n, x in _given(backbone, mask).items()}
        found = zip(tf.nest.flatten(branched(given)), tf.nest.flatten(plain(given)), strict=True)
        for one, other in found:
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", in_full(["bert", "modernbert", "deberta"], ["modernbert"]))
def test_padding_is_zero_and_moves_no_weight(family):
    """A loss that reads padding by mistake has the gradients of one that does not."""
    backbone = _build(family)
    given, mask = _given(backbone, MASKS["right"]), MASKS["right"]
    listed = mask | (np.arange(6) == 0)  # the first position is always computed
    names = ["sequence_output", "hidden_states", "queries", "keys"]
    names = [name for name in names if family != "deberta" or name in backbone.output]
    gradients = []
    for factor in (np.ones((5, 6, 1)), listed[..., None].astype("float64")):
        with unpadding(True), tf.GradientTape() as tape:
            outputs = backbone(given, outputs=names)
            loss = tf.reduce_sum((outputs["sequence_output"] + 1) ** 2 * factor)
        gradients.append(tape.gradient(loss, backbone.parts["layer_1"].trainable_weights[-1].value))
    np.testing.assert_allclose(*gradients, rtol=1e-9)
    assert np.any(gradients[0])
    for each in [outputs["sequence_output"], *outputs["hidden_states"]]:
        assert not np.any(each.numpy()[~listed])
        assert np.all(np.any(each.numpy()[listed], axis=-1))
    for each in [*outputs.get("queries", []), *outputs.get("keys", [])]:
        assert not np.any(each.numpy().transpose(0, 2, 1, 3)[~listed])


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_the_first_token_is_that_of_the_sequence(family, unpadded):
    backbone = _build(family)
    for mask in (MASKS["right"], MASKS["left"]):
        with unpadding(unpadded):
            outputs = backbone(_given(backbone, mask))
        wanted = outputs["sequence_output"][:, 0]
        np.testing.assert_allclose(outputs["first_token"], wanted, rtol=1e-9, atol=1e-9)


@only_in("extended", "bert-True")
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_outputs_by_name_are_those_of_the_whole(family, unpadded):
    backbone = _build(family)
    given = _given(backbone, MASKS["right"])
    with unpadding(unpadded):
        whole = backbone(given)
        for name in whole:
            found = backbone(given, outputs=name)
            assert list(found) == [name]
            keras.tree.map_structure(np.testing.assert_array_equal, found[name], whole[name])
        both = backbone(given, outputs=["sequence_output", "first_token"])
    # From the whole last block, which is computed for the sequence.
    np.testing.assert_allclose(both["first_token"], whole["first_token"], rtol=1e-9, atol=1e-9)
    assert set(both) == {"sequence_output", "first_token"}


def test_outputs_by_name_in_a_functional_model():
    backbone = _build("bert")
    inputs = backbone.token_inputs
    model = keras.Model(inputs, backbone(inputs, outputs="pooled_output"))
    given = _given(backbone, MASKS["left"])
    wanted = backbone(given)["pooled_output"]
    np.testing.assert_array_equal(model(given)["pooled_output"], wanted)
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(given)["pooled_output"], wanted)
    for call in (backbone, keras.Model(inputs, backbone(inputs))):
        assert set(call(given)) > {"pooled_output"}


@pytest.mark.parametrize("symbolic", [False, True])
def test_unknown_outputs_are_refused(symbolic):
    backbone = _build("bert")
    given = backbone.token_inputs if symbolic else _given(backbone, MASKS["left"])
    with pytest.raises(ValueError, match=r"Unknown output 'pooled'\. Did you mean 'pooled_output'"):
        backbone(given, outputs=["pooled"])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_block_computes_single_queries(norm):
    rng = np.random.default_rng(0)
    parts = (layers.SelfAttention(2, 4), layers.FeedForward(12, layers.activation("gelu")))
    block = layers.TransformerBlock(*parts, norm=norm, dtype="float64")
    x = rng.normal(size=(3, 5, 8))
    mask = layers.attention_mask_from_padding(np.array([[1, 1, 1, 1, 0]] * 3))
    block(x)
    for weight in block.weights:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    wanted, scores = block(x, attention_mask=mask)
    found, of_query = block(x, attention_mask=mask, query=x[:, 2])
    np.testing.assert_allclose(found, wanted[:, 2], rtol=1e-5)
    np.testing.assert_allclose(of_query, scores[:, :, 2:3], rtol=1e-5, atol=1e-5)


def test_positions_take_no_single_queries():
    attention = layers.SelfAttention(2, 4, positions=layers.rotate)
    with pytest.raises(ValueError, match="accepts neither query nor groups"):
        attention(np.ones((1, 3, 8)), query=np.ones((1, 8)))


@pytest.mark.extended
def test_the_last_block_computes_what_is_read():
    backbone = _build("bert")
    given = {name: tf.constant(x) for name, x in _given(backbone, MASKS["right"]).items()}
    dense = backbone.parts["layer_1"].feed_forward.intermediate
    call, seen = dense.call, []

    def watched(x, **kwargs):
        # Without state, so that it is pruned with what it watches.
        note = lambda rows: (seen.append(len(rows)), rows)[1]  # noqa: E731
        noted = tf.numpy_function(note, [x], x.dtype, stateful=False)
        return call(tf.ensure_shape(noted, x.shape), **kwargs)

    dense.call = watched
    for output, rows in (
        ("pooled_output", len(LENGTHS)),
        ("sequence_output", LENGTHS.clip(1).sum()),
    ):

        @tf.function(autograph=False)
        def run(output=output):
            with unpadding(True):
                return backbone(given)[output]

        run()
        assert seen == [rows]
        seen.clear()


def test_padding_is_not_computed():
    backbone = _build("bert")
    given = _given(backbone, MASKS["right"])
    seen = []
    dense = backbone.parts["layer_0"].feed_forward.intermediate
    call = dense.call
    dense.call = lambda x, **kwargs: seen.append(x.shape) or call(x, **kwargs)
    with unpadding(True):
        backbone(given)
    # The example without any token keeps its first position.
    assert seen == [(LENGTHS.clip(1).sum(), 16)]


@pytest.mark.parametrize("family", in_full(["bert", "roberta"], ["bert"]))
def test_no_example_reads_another(family):
    backbone = _build(family)
    given = _given(backbone, MASKS["right"])
    other = _given(backbone, MASKS["right"], seed=1)
    mixed = {name: np.concatenate([x[:2], other[name][2:]]) for name, x in given.items()}
    with unpadding(True):
        one, two = (backbone(each)["sequence_output"] for each in (given, mixed))
        alone = backbone({name: x[1:2] for name, x in given.items()})["sequence_output"]
    np.testing.assert_array_equal(one[:2], two[:2])
    np.testing.assert_allclose(alone[0, :2], one[1, :2], rtol=1e-12)
    assert np.abs(one[2:4] - two[2:4]).max() > 1e-3


def _padded_pairs(lengths):
    """The pairs of positions that attention computes for examples of these lengths."""
    mask = tf.constant(np.arange(max(lengths)) < np.array(lengths)[:, None], tf.int32)
    groups = layers.AttentionGroups(2)(layers.RealTokens()(mask))
    found = [each.real.shape for each in groups]
    listed = np.concatenate([each.examples for each in groups])
    assert sorted(listed) == list(range(len(lengths)))
    assert sum(int(tf.reduce_sum(tf.cast(each.real, tf.int32))) for each in groups) == sum(lengths)
    return sum(size * longest**2 for size, longest in found)


def test_groups_have_the_least_padding():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 5, 9):
        lengths = sorted(rng.integers(1, 40, count).tolist(), reverse=True)
        edges = itertools.combinations_with_replacement(range(count + 1), 3)
        wanted = min(
            sum((b - a) * lengths[a] ** 2 for a, b in itertools.pairwise((0, *e, count)) if b > a)
            for e in edges
        )
        assert _padded_pairs(rng.permutation(lengths).tolist()) == wanted
    # Of larger batches, some examples are considered as the first of a group.
    lengths = [200] * 3 + rng.integers(1, 30, 997).tolist()
    assert _padded_pairs(lengths) < 1.02 * (4 * 200**2 + 996 * 30**2)
    assert _padded_pairs([7] * 600) == 600 * 7**2


def test_scores_and_their_gradients_by_group():
    backbone = _build("bert")
    given = _given(backbone, MASKS["right"])
    real = (ON_THE_RIGHT[:, None, :, None] & ON_THE_RIGHT[:, None, None, :]) * 1.0
    kernel = backbone.parts["layer_1"].attention.query.kernel.value
    found = []
    for unpadded in (False, True):
        with unpadding(unpadded), tf.GradientTape() as tape:
            scores = backbone(given)["attention_scores"][1] * real
            loss = tf.reduce_sum(scores**2)
        found.append((scores, tape.gradient(loss, kernel)))
    for padded, unpadded in zip(*found, strict=True):
        np.testing.assert_allclose(unpadded, padded, rtol=1e-9, atol=1e-9)


def test_weights_are_those_of_the_padded_model():
    backbone = _build("bert")
    paths = [weight.path for weight in backbone.weights]
    twin = Backbone("bert", backbone.config, parts=backbone.parts, unpadded=True, dtype="float64")
    assert [id(w) for w in twin.weights] == [id(w) for w in backbone.weights]
    with unpadding(True):
        backbone(_given(backbone, MASKS["right"]))
    assert [weight.path for weight in backbone.weights] == paths
    assert Backbone.from_config(twin.get_config()).parts.unpadded


@pytest.mark.extended
def test_batches_of_any_size_in_a_graph():
    backbone = _build("bert")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False)
    def run(token_ids, padding_mask):
        with unpadding(True):
            return backbone({"token_ids": token_ids, "padding_mask": padding_mask})

    for mask in (*MASKS.values(), np.ones((0, 4), bool), np.ones((1, 1), bool)):
        given = _given(backbone, mask)
        given.pop("segment_ids")
        found = run(given["token_ids"].astype("int32"), given["padding_mask"])
        wanted = backbone(given)
        real = mask[..., None]
        np.testing.assert_allclose(
            np.where(real, found["sequence_output"], 0),
            np.where(real, wanted["sequence_output"], 0),
            atol=1e-12,
        )


def test_the_outermost_scope_decides():
    backbone = _build("bert")
    given = _given(backbone, MASKS["right"])
    plain = backbone(given)["sequence_output"]
    with unpadding(False), unpadding(True):
        np.testing.assert_array_equal(backbone(given)["sequence_output"], plain)
    with unpadding(True), unpadding(False):
        assert np.abs(backbone(given)["sequence_output"] - plain).max() > 1e-3
    np.testing.assert_array_equal(backbone(given)["sequence_output"], plain)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_fused_layers_are_keras_layers(shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    for ours, theirs in (
        (layers.Dense(5, activation="gelu"), keras.layers.Dense(5, activation="gelu")),
        (layers.LayerNormalization(epsilon=1e-3), keras.layers.LayerNormalization(epsilon=1e-3)),
    ):
        ours.build(shape), theirs.build(shape)
        for one, other in zip(ours.weights, theirs.weights, strict=True):
            one.assign_add(np.random.default_rng(1).normal(size=one.shape))
            other.assign(one)
        np.testing.assert_allclose(ours(x), theirs(x), atol=1e-6)
        assert [w.path.split("/")[1] for w in ours.weights] == [
            w.path.split("/")[1] for w in theirs.weights
        ]


@pytest.mark.parametrize("options", [dict(scale=False), dict(center=False)])
def test_norms_without_a_weight_are_keras_norms(options):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    found = layers.LayerNormalization(epsilon=1e-3, **options)(x)
    wanted = keras.layers.LayerNormalization(epsilon=1e-3, **options)(x)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def _ranks(task, run):
    """The ranks of what a dense layer of the first block gets while ``run`` is traced."""
    dense = task.backbone.parts["layer_0"].feed_forward.intermediate
    call, seen = dense.call, []
    dense.call = lambda x, **kwargs: seen.append(len(x.shape)) or call(x, **kwargs)
    run()
    del dense.call
    return seen


@pytest.mark.full
def test_tasks_leave_padding_out_unless_xla_compiles_them(tiny):
    labels, texts = ["negative", "neutral", "positive"], ["a good film", "bad"]
    task = bf.TextClassifier.from_pretrained(tiny, labels=labels)
    assert set(_ranks(task, lambda: task.fit(texts, labels[:2], verbose=0))) == {2}
    assert _ranks(task, lambda: task.predict(texts)) == [2]
    assert _ranks(task, lambda: task.evaluate(texts, labels[:2], verbose=0)) == [2]
    task.compile("adam", jit_compile=True)
    assert _ranks(task, lambda: task.predict(texts)) == [3]


@pytest.mark.full
def test_exports_leave_padding_out_where_they_can(smallest, tmp_path):
    task = bf.TextEmbedder.from_pretrained(smallest)
    assert set(_ranks(task, lambda: task.export(tmp_path / "export"))) == {2}
    assert set(_ranks(task, lambda: task.export_tflite(tmp_path / "m.tflite"))) == {3}

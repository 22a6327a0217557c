"""The cache of a decoder: buffers that are written in place, in blocks."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import generation, heads, layers
from bertfam_tf.generation import Options, loop
from bertfam_tf.layers.fused import write
from tests.plain_decoder import PlainDecoder
from tests.seeding import seed
from tests.selection import only_in

IDS = np.random.default_rng(0).integers(0, 40, (3, 7)).astype("int32")
MASK = np.array([[1] * 7, [0, 0] + [1] * 5, [0] * 6 + [1]], "int32")
ROWS = tf.TensorSpec([None, None], tf.int32)


@pytest.fixture(scope="module")
def model():
    """A backbone and its head, with weights that make all positions matter."""
    seed(1)
    shape = dict(vocab_size=40, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32)
    backbone = bf.build("gpt2", "tiny", **shape, max_positions=64)
    for i, variable in enumerate(backbone.weights):
        variable.assign_add(np.random.default_rng(i).normal(0, 0.4, variable.shape))
    return backbone, heads.build(backbone, "causal_lm")


def _generate(step, **options):
    run = tf.function(
        lambda ids, mask: generation.generate(step, ids, mask, Options(**options), (3,)),
        input_signature=[ROWS, ROWS],
        autograph=False,
    ).get_concrete_function()
    return run, run(IDS, MASK).numpy()


def _operations_of_a_step(function):
    """Counts the operations in the body of the innermost loop, and in what it calls."""
    graph = function.graph.as_graph_def()
    library = {f.signature.name: f.node_def for f in graph.library.function}
    loops = [
        library[node.attr["body"].func.name]
        for nodes in (graph.node, *library.values())
        for node in nodes
        if node.op in ("While", "StatelessWhile")
    ]
    (body,) = [nodes for nodes in loops if not any(n.op.endswith("While") for n in nodes)]
    called = [body]
    counts = collections.Counter()
    for nodes in called:
        counts.update(node.op for node in nodes if node.op not in ("Const", "Identity"))
        called += [library[n.attr["f"].func.name] for n in nodes if n.op == "PartitionedCall"]
    return counts


@only_in("extended", "1-greedy", "128-greedy", "1-beams", "4-beams", "128-beams")
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("block", [1, 4, 128])
def test_blocks_change_nothing(model, options, block, monkeypatch):
    backbone, head = model
    _, expected = _generate(PlainDecoder(backbone, head.logits), max_new_tokens=11, **options)
    monkeypatch.setattr(loop, "BLOCK", block)
    step = generation.decoder(backbone, head.logits_of_few)
    _, tokens = _generate(step, max_new_tokens=11, **options)
    np.testing.assert_array_equal(tokens, expected)
    assert len({row.tobytes() for row in expected}) > 1


def test_pieces_written_into_buffers(model):
    """Of several tokens each, with padding on the left."""
    backbone, _ = model
    whole = backbone({"token_ids": IDS, "padding_mask": MASK})
    first = backbone({"token_ids": IDS[:, :2], "padding_mask": MASK[:, :2]})
    room = tf.nest.map_structure(
        lambda x: tf.pad(x, [[0, 0], [0, 0], [0, 9], [0, 0]], constant_values=1e4), first["cache"]
    )
    mask = np.pad(MASK, [(0, 0), (0, 4)], constant_values=1)
    for start, end in ((2, 5), (5, 6), (6, 7)):
        outputs = backbone(
            {
                "token_ids": IDS[:, start:end],
                "padding_mask": mask,
                "cache": room,
                "cache_length": start,
            },
            outputs=["sequence_output", "last_token", "cache"],
        )
        room = outputs["cache"]
        real = MASK[:, start:end].astype(bool)
        np.testing.assert_allclose(
            outputs["sequence_output"][real],
            whole["sequence_output"][:, start:end][real],
            atol=2e-5,
        )
    np.testing.assert_allclose(outputs["last_token"], whole["last_token"], atol=2e-5)
    assert room[0][0].shape[2] == 11


def test_a_step_appends_to_no_cache_and_computes_no_shape_in_its_layers(model):
    backbone, head = model
    step = generation.decoder(backbone, head.logits_of_few)
    counts = _operations_of_a_step(_generate(step, max_new_tokens=3)[0])
    num_layers = backbone.config.num_layers
    assert counts["TensorStridedSliceUpdate"] == 2 * num_layers
    assert counts["ConcatV2"] == 2  # The new tokens and their mask.
    assert not counts["Prod"]
    assert sum(counts.values()) < 90 * num_layers + 100


def test_write():
    buffer = tf.zeros([2, 3, 5, 2])
    values = tf.ones([2, 3, 2, 2])
    written = tf.function(write, autograph=False)(buffer, values, tf.constant(3), axis=2).numpy()
    assert written.sum() == values.numpy().sum()
    assert (written[:, :, 3:] == 1).all()
    assert (buffer.numpy() == 0).all()


def test_one_position_is_computed_as_several():
    """Dense layers and norms of (batch, 1, width) have a form of their own."""
    x = np.random.default_rng(0).normal(size=(4, 1, 8)).astype("float32")
    for layer in (
        layers.Dense(5, activation="tanh"),
        layers.Dense(5, use_bias=False),
        layers.LayerNormalization(epsilon=1e-6),
    ):
        expected = layer(np.concatenate([x, x], axis=1)).numpy()[:, :1]
        np.testing.assert_allclose(layer(x), expected, atol=1e-6)
        assert layer(x).shape == expected.shape


def test_logits_of_few(model):
    _, head = model
    x = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")
    np.testing.assert_allclose(head.logits_of_few(x), head.logits(x), atol=1e-5)


@pytest.mark.parametrize("scale", [0.01, 5.0], ids=["flat", "peaked"])
def test_the_nucleus_of_a_large_vocabulary(scale):
    """Whether the tokens that are sorted first reach ``top_p``, or all have to be sorted."""
    logits = np.random.default_rng(0).normal(0, scale, (3, 5000)).astype("float32")
    filtered = generation.filter_logits(tf.constant(logits), Options(top_p=0.9)).numpy()
    for row, kept in zip(logits.astype("float64"), np.isfinite(filtered), strict=True):
        order = np.argsort(-row)
        probabilities = np.exp(row[order]) / np.exp(row).sum()
        count = (np.cumsum(probabilities) - probabilities < 0.9).sum()
        assert set(np.flatnonzero(kept)) == set(order[:count])
        assert (count > 1024) == (scale < 1)


def test_a_likely_nucleus_needs_no_sorted_vocabulary():
    graph = (
        tf.function(
            lambda logits: generation.filter_logits(logits, Options(top_p=0.9)),
            input_signature=[tf.TensorSpec([None, 5000])],
            autograph=False,
        )
        .get_concrete_function()
        .graph
    )
    sizes = [
        tf.get_static_value(operation.inputs[1])
        for operation in graph.get_operations()
        if operation.type == "TopKV2"
    ]
    assert sizes == [1024]  # All are sorted in a branch.

"""Transformer-XL and XLNet: what memory, masks, two streams and clusters have to do."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import heads, layers, registry
from bertfam_tf.checkpoints import CheckpointError, huggingface
from tests import parity
from tests.seeding import seed
from tests.selection import in_full, only_in

GOLDENS = Path(__file__).parent.parent / "goldens"
FAMILIES = ("transformer_xl", "xlnet")
families = pytest.mark.parametrize("family", FAMILIES)
# `make test` runs one of them.
one_of_them = pytest.mark.parametrize("family", in_full(FAMILIES, ["xlnet"]))
SMALL = dict(vocab_size=40, hidden_size=16, intermediate_size=32)


def _build(family, **overrides):
    seed(0)
    causal = {"attn_type": "uni"} if family == "xlnet" and "attn_type" not in overrides else {}
    backbone = bf.build(family, "tiny", **{**SMALL, **causal, **overrides})
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    return backbone


def _tokens(length, rows=1, seed=0):
    return np.random.default_rng(seed).integers(6, 40, (rows, length)).astype("int32")


def _given(tokens, **more):
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens), **more}


def _stream(backbone, tokens, step):
    """The outputs of successive segments, each with the memory of those before."""
    outputs, memory = [], {}
    for start in range(0, tokens.shape[1], step):
        outputs.append(backbone(_given(tokens[:, start : start + step], **memory)))
        memory = {"memory": outputs[-1]["memory"]}
    return outputs


# Memory ---------------------------------------------------------------------------------------


@pytest.mark.extended
@only_in("full", "3-xlnet", "5-xlnet", "3-transformer_xl", "5-transformer_xl", "1-xlnet")
@families
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_stream_with_memory_is_one_long_input(family, step):
    backbone = _build(family, mem_len=None, same_length=False)
    tokens = _tokens(11, rows=2)
    long = backbone(_given(tokens))
    parts = _stream(backbone, tokens, step)
    found = np.concatenate([each["sequence_output"] for each in parts], axis=1)
    np.testing.assert_allclose(found, long["sequence_output"], atol=3e-5)
    for ours, theirs in zip(parts[-1]["memory"], long["memory"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


def test_log_probabilities_of_a_stream():
    backbone = _build("transformer_xl", mem_len=20, same_length=False)
    head = heads.build(backbone, "causal_lm")
    tokens = _tokens(12)
    long = head(backbone(_given(tokens)))
    parts = [head(each) for each in _stream(backbone, tokens, 4)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), long, atol=3e-5)


def _last(backbone, tokens, step):
    return np.asarray(_stream(backbone, tokens, step)[-1]["sequence_output"])[0, -1]


@pytest.mark.full
@families
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_reach_of_a_memory_as_long_as_the_segment(family, num_layers):
    """Through N layers N segments back, to the first token of the oldest, and none further."""
    step, count = 3, 5
    backbone = _build(family, mem_len=step, num_layers=num_layers, same_length=False)
    tokens = _tokens(step * count)
    before = _last(backbone, tokens, step)
    farthest = (count - 1 - num_layers) * step
    for place, differs in ((farthest, True), (farthest - 1, False)):
        changed = tokens.copy()
        changed[0, place] = 5
        difference = np.abs(_last(backbone, changed, step) - before).max()
        assert (difference > 0) == differs, (place, difference)


@pytest.mark.full
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_reach_with_the_same_length(num_layers, step):
    """Each layer adds the mem_len - 1 tokens before the token itself."""
    backbone = _build("transformer_xl", mem_len=4, num_layers=num_layers, same_length=True)
    tokens = _tokens(12)
    before = _last(backbone, tokens, step)
    farthest = 11 - 3 * num_layers
    for place, differs in ((farthest, True), (farthest - 1, False)):
        changed = tokens.copy()
        changed[0, place] = 5
        difference = np.abs(_last(backbone, changed, step) - before).max()
        assert (difference > 0) == differs, (place, difference)


@pytest.mark.parametrize(("mem_len", "reuse_len", "expected"), [
    (None, None, [0, 1, 2, 3, 4, 5, 6]), (5, None, [2, 3, 4, 5, 6]), (0, None, []),
    (4, 1, [0, 1, 2, 3]), (None, 1, [0, 1, 2, 3]), (9, None, [0, 1, 2, 3, 4, 5, 6]),
])  # fmt: skip
def test_the_new_memory(mem_len, reuse_len, expected):
    line = np.arange(7.0)[None, :, None]
    found = layers.updated_memory(tf.constant(line[:, :3]), line[:, 3:], mem_len, reuse_len)
    assert np.asarray(found)[0, :, 0].tolist() == expected


@one_of_them
def test_no_gradient_into_the_memory(family):
    backbone = _build(family)
    first = backbone(_given(_tokens(4)))["memory"]
    with tf.GradientTape() as tape:
        tape.watch(first)
        outputs = backbone(_given(_tokens(4, seed=1), memory=first))
        loss = tf.reduce_sum(outputs["sequence_output"] ** 3)
        loss += sum(tf.reduce_sum(each) for each in outputs["memory"])
    assert tape.gradient(loss, first) == (None,) * len(first)


@pytest.mark.full
@families
def test_memory_is_there_for_graphs_too(family):
    """Traced once for all lengths of input and memory."""
    backbone = _build(family, mem_len=4)
    spec = {"token_ids": (None, None), "padding_mask": (None, None)}
    signature = {name: tf.TensorSpec(shape, tf.int32) for name, shape in spec.items()}
    signature["memory"] = (tf.TensorSpec((None, None, 16)),) * 2
    call = tf.function(backbone, input_signature=[signature], autograph=False)
    memory = (tf.zeros((2, 0, 16)),) * 2
    tokens = _tokens(8, rows=2)
    expected = _stream(backbone, tokens, 3)
    for i, start in enumerate(range(0, 8, 3)):
        part = tf.constant(tokens[:, start : start + 3])
        outputs = call({"token_ids": part, "padding_mask": tf.ones_like(part), "memory": memory})
        memory = outputs["memory"]
        np.testing.assert_allclose(
            outputs["sequence_output"], expected[i]["sequence_output"], atol=3e-5
        )


# Padding and masks ----------------------------------------------------------------------------


@one_of_them
def test_padding_on_the_left(family):
    backbone = _build(family, **({"attn_type": "bi"} if family == "xlnet" else {}))
    tokens = _tokens(6, rows=3)
    mask = np.array([[1] * 6, [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]], "int32")
    outputs = backbone({"token_ids": tokens, "padding_mask": mask})
    for row, start in enumerate((0, 2, 5)):
        alone = backbone(_given(tokens[row : row + 1, start:]))
        for name, cut in (("sequence_output", slice(start, None)), ("last_token", slice(None))):
            np.testing.assert_allclose(outputs[name][row][cut], alone[name][0], atol=3e-5)


@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_the_last_token_on_either_side(side):
    x = np.arange(1.0, 13).reshape(1, 6, 2)
    mask = {"left": [0, 0, 1, 1, 1, 1], "right": [1, 1, 1, 0, 0, 0], "none": [0] * 6}[side]
    expected = {"left": [11, 12], "right": [5, 6], "none": [1, 2]}[side]
    found = layers.LastTokenPooling()(x, np.array([mask]))
    assert np.asarray(found)[0].tolist() == expected


@pytest.mark.extended
def test_nothing_leaks_through_a_causal_mask():
    for family in FAMILIES:
        backbone = _build(family)
        tokens = _tokens(8)
        before = backbone(_given(tokens))["sequence_output"]
        changed = tokens.copy()
        changed[0, 5] = 5
        after = backbone(_given(changed))["sequence_output"]
        np.testing.assert_array_equal(after[0, :5], before[0, :5])
        assert np.abs(after[0, 5:] - before[0, 5:]).min(axis=-1).max() > 0


def _permuted(order):
    """A query attends to what is before it in the order."""
    place = np.argsort(order)
    perm_mask = (place[None, :] >= place[:, None]).astype("int32")[None]
    return {"perm_mask": perm_mask, "target_mapping": np.eye(len(order), dtype="int32")[None]}


@pytest.mark.extended
def test_nothing_leaks_through_a_permutation():
    """Neither a query's own token nor a later one in the order, for each place in it."""
    backbone = _build("xlnet", attn_type="bi", num_layers=3)
    order = np.array([3, 0, 5, 1, 4, 2])
    tokens = _tokens(6)
    before = backbone(_given(tokens, **_permuted(order)))["query_output"]
    for k, place in enumerate(order):
        changed = tokens.copy()
        changed[0, place] = 5
        after = backbone(_given(changed, **_permuted(order)))["query_output"]
        differs = np.abs(np.asarray(after - before)[0]).max(axis=-1) > 0
        assert {int(i) for i in np.flatnonzero(differs)} == set(order[k + 1 :].tolist())


def test_predictions_are_where_the_mapping_says():
    backbone = _build("xlnet", attn_type="bi")
    given = _given(_tokens(6, rows=2)) | {"perm_mask": np.eye(6, dtype="float32")[None]}
    given["perm_mask"] = given["perm_mask"].repeat(2, axis=0)
    all_of_them = np.eye(6, dtype="int32")[None].repeat(2, axis=0)
    full = backbone({**given, "target_mapping": all_of_them})
    some = backbone({**given, "target_mapping": all_of_them[:, [4, 1]]})["query_output"]
    np.testing.assert_allclose(some, full["query_output"].numpy()[:, [4, 1]], atol=1e-5)
    none = backbone(given)
    assert none["query_output"].shape == (2, 0, 16)
    np.testing.assert_array_equal(none["sequence_output"], full["sequence_output"])


def test_segments_matter_as_same_or_other_alone():
    backbone = _build("xlnet", attn_type="bi")
    tokens = _tokens(6)
    segments = np.array([[0, 0, 0, 1, 1, 2]], "int32")
    found = backbone(_given(tokens, segment_ids=segments))["sequence_output"]
    same = backbone(_given(tokens, segment_ids=np.array([7, 3, 4])[segments]))["sequence_output"]
    np.testing.assert_array_equal(found, same)
    assert np.abs(found - backbone(_given(tokens))["sequence_output"]).max() > 1e-3


def test_distances_beyond_the_clamp_are_one():
    positions = layers.RelativePositions(8, clamp_len=3, future=True)
    x, memory = tf.zeros((2, 4, 1)), tf.zeros((2, 2, 1))
    found = np.asarray(positions(x, memory))[0]
    angle = np.array([3, 3, 3, 2, 1, 0, -1, -2, -3])
    np.testing.assert_allclose(found[:, 0], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(found[:, 4], np.cos(angle), atol=1e-6)
    both = layers.RelativePositions(8, future=True, bi_data=True)(x, memory)
    np.testing.assert_allclose(both[1, :, :4], -both[0, :, :4], atol=1e-6)


@one_of_them
def test_biases_may_be_shared(family):
    own = _build(family)
    shared = _build(family, untie_r=False)
    biases = [v.path for v in shared.weights if v.path.endswith("_bias/bias")]
    assert len(biases) == (3 if family == "xlnet" else 2)
    values = {v.path: v for v in shared.weights}
    for variable in own.weights:
        name = "/".join(variable.path.split("/")[-2:])
        variable.assign(values[name if name in biases else variable.path])
    given = _given(_tokens(5))
    np.testing.assert_array_equal(own(given)["sequence_output"], shared(given)["sequence_output"])


# Clusters -------------------------------------------------------------------------------------

LM = sorted((GOLDENS / "transformer_xl").glob("lm_*/log_probabilities.npz"))
SHAPES = [
    dict(cutoffs=(12, 24), div_val=2),
    dict(cutoffs=(12, 24), div_val=1),
    dict(cutoffs=(5,), div_val=1, embedding_size=16),
    dict(cutoffs=(), div_val=4),
]


@pytest.mark.full
@pytest.mark.parametrize("file", LM, ids=lambda file: file.parent.name)
def test_log_probabilities(file):
    with np.load(file) as expected:
        found = parity.head_differences(file.parent, "transformer_xl", "causal_lm", dict(expected))
    wrong = {name: value for name, value in found.items() if not value <= parity.TOLERANCE}
    assert not wrong


def test_log_probabilities_have_goldens():
    assert len(LM) == 4


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_sum_to_one_and_targets_have_theirs(shape):
    backbone = _build("transformer_xl", **shape)
    head = heads.build(backbone, "causal_lm")
    outputs = backbone(_given(_tokens(7, rows=2)))
    everything = head(outputs)
    for variable in head.weights:
        variable.assign_add(np.random.default_rng(2).normal(0, 0.3, variable.shape))
    everything = head(outputs).numpy()
    np.testing.assert_allclose(np.exp(everything).sum(axis=-1), 1, atol=1e-5)
    for targets in (_tokens(7, rows=2, seed=1), np.arange(14).reshape(2, 7), np.zeros((2, 7))):
        targets = targets.astype("int32")
        expected = np.take_along_axis(everything, targets[..., None], axis=-1)[..., 0]
        call = tf.function(head, autograph=False)
        for answer in (head(outputs, targets=targets), call(outputs, targets=targets)):
            np.testing.assert_allclose(answer, expected, atol=1e-5)


def test_targets_give_the_same_gradients():
    backbone = _build("transformer_xl")
    head = heads.build(backbone, "causal_lm")
    given, targets = _given(_tokens(7, rows=2)), _tokens(7, rows=2, seed=1)
    head(backbone(given))
    variables = [*backbone.trainable_variables, *head.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        outputs = backbone(given)
        one = tf.reduce_sum(head(outputs, targets=targets))
        other = tf.reduce_sum(tf.gather(head(outputs), targets, axis=-1, batch_dims=2))
    for a, b in zip(tape.gradient(one, variables), tape.gradient(other, variables), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(b), atol=2e-4)


def test_parameters_of_the_published_language_model():
    def count():
        with keras.StatelessScope(initialize_variables=False):
            backbone = bf.build("transformer_xl", "wt103")
            head = heads.build(backbone, "causal_lm")
            return backbone.count_params() + head.count_params()

    with ThreadPoolExecutor(max_workers=1) as thread:
        assert thread.submit(count).result() == 285_205_322


def test_projections_of_clusters_start_at_half_of_the_other_weights():
    backbone = bf.build("transformer_xl", "tiny", **SMALL, cutoffs=(12, 24), div_val=2)
    layer = backbone.get_layer("token_embedding")
    assert max(np.abs(table.numpy()).max() for table in layer.tables) > 0.02
    for projection in layer.projections:
        assert 0.01 < np.abs(projection.numpy()).max() <= 0.02  # two standard deviations


def test_clusters_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"cutoffs \(12, 60\) must increase and be below vocab_size 40"
    ):
        _build("transformer_xl", cutoffs=(12, 60))
    with pytest.raises(ValueError, match=r"cutoffs \(12, 12\) must increase"):
        _build("transformer_xl", cutoffs=(12, 12))
    with pytest.raises(
        ValueError, match="embedding_size 8, divided by 4 for each of 2 cut-offs, is less than 1"
    ):
        _build("transformer_xl", embedding_size=8, div_val=4)
    with pytest.raises(ValueError, match=r"cutoffs must be a list of int, got \('a',\)"):
        _build("transformer_xl", cutoffs=("a",))
    assert _build("transformer_xl", cutoffs=[4]).config.cutoffs == (4,)


# Configs --------------------------------------------------------------------------------------


def test_attention_of_a_kind_that_is_not_known():
    with pytest.raises(ValueError, match="attn_type"):
        _build("xlnet", attn_type="both")
    with pytest.raises(ValueError, match="16 is not a multiple of num_heads 3"):
        _build("xlnet", num_heads=3)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("xlnet", "untie_r", False),
        ("xlnet", "attn_type", "left"),
        ("transfo-xl", "pre_lnorm", True),
        ("transfo-xl", "attn_type", 1),
        ("transfo-xl", "adaptive", False),
        ("transfo-xl", "sample_softmax", 100),
        ("transfo-xl", "tie_projs", [False, False]),
        ("transfo-xl", "tie_word_embeddings", False),
    ],
)
def test_configs_that_are_refused(model_type, key, value):
    with pytest.raises(CheckpointError, match=f"{key} = "):
        huggingface.translate({"model_type": model_type, key: value})


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("xlnet", {"untie_r": False}),
        ("xlnet", {"attention_dropout": 0.3}),
        ("xlnet", {"mem_len": 0}),
        ("transformer_xl", {"activation": "gelu"}),
    ],
)
def test_what_their_format_cannot_say(family, fields):
    record = registry.get(family)
    with pytest.raises(CheckpointError, match=f"cannot represent {next(iter(fields))} = "):
        huggingface.describe(record, record.config.from_dict(fields))


def test_tensors_of_their_files_that_are_no_weights(tmp_path):
    """Frequencies of the sines; and of biases that layers share a copy in each."""
    for variant in ("default", "shared_biases"):
        shutil.copytree(GOLDENS / "transformer_xl" / variant, tmp_path / variant)
        tensors = load_file(tmp_path / variant / "model.safetensors")
        assert ("r_w_bias" in tensors) == (variant == "shared_biases")
        assert "layers.1.dec_attn.r_w_bias" in tensors
        tensors["pos_emb.inv_freq"] = np.ones(8, "float32")
        save_file(tensors, tmp_path / variant / "model.safetensors")
        bf.load_backbone(tmp_path / variant)


def test_parts_of_one_tensor_are_checked(tmp_path):
    shutil.copytree(GOLDENS / "transformer_xl" / "default", tmp_path / "in")
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    name = "layers.0.dec_attn.qkv_net.weight"
    for rows, error in ((71, "Wrong shapes: .*qkv_net"), (69, "Wrong shapes: .*qkv_net")):
        cut = {**tensors, name: tensors[name][:rows].copy()}
        save_file(cut, tmp_path / "in" / "model.safetensors")
        with pytest.raises(CheckpointError, match=error):
            bf.load_backbone(tmp_path / "in")


def test_published_configs(caplog):
    """As in published checkpoints."""
    theirs = {
        "wt103": json.loads(
            """{"adaptive": true, "attn_type": 0, "clamp_len": 1000, "cutoffs": [20000, 40000,
            200000], "d_embed": 1024, "d_head": 64, "d_inner": 4096, "d_model": 1024, "div_val": 4,
            "do_sample": true, "dropatt": 0.0, "dropout": 0.1, "eos_token_id": 0, "ext_len": 0,
            "init": "normal", "init_range": 0.01, "init_std": 0.02, "layer_norm_epsilon": 1e-05,
            "mem_len": 1600, "model_type": "transfo-xl", "n_head": 16, "n_layer": 18,
            "pre_lnorm": false, "proj_init_std": 0.01, "same_length": true, "sample_softmax": -1,
            "tgt_len": 128, "tie_projs": [false, true, true, true], "tie_weight": true,
            "untie_r": true, "vocab_size": 267735}"""
        ),
        "base_cased": json.loads(
            """{"attn_type": "bi", "bi_data": false, "bos_token_id": 1, "clamp_len": -1,
            "d_head": 64, "d_inner": 3072, "d_model": 768, "dropout": 0.1, "end_n_top": 5,
            "eos_token_id": 2,
            "ff_activation": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12,
            "mem_len": null, "model_type": "xlnet", "n_head": 12, "n_layer": 12, "pad_token_id": 5,
            "reuse_len": null, "same_length": false, "start_n_top": 5, "summary_activation": "tanh",
            "summary_last_dropout": 0.1, "summary_type": "last", "summary_use_proj": true,
            "untie_r": true, "vocab_size": 32000}"""
        ),
    }
    for size, values in theirs.items():
        family, config = huggingface.translate(values)
        assert config == family.config.from_dict(family.sizes[size])
    assert not caplog.records


def test_a_window_without_keys():
    with pytest.raises(ValueError, match="same_length must be false with mem_len 0"):
        bf.build("transformer_xl", "tiny", mem_len=0)
    bf.build("transformer_xl", "tiny", mem_len=0, same_length=False)

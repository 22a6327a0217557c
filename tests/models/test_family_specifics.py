"""What is particular to one family, beyond what every family's tests show."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import layers, registry
from bertfam_tf.checkpoints import CheckpointError, huggingface
from bertfam_tf.models import config_of, count_parameters
from tests import parity
from tests.seeding import seed
from tests.selection import in_full
from tests.test_goldens import GOLDENS

DEBERTA = dict(
    model_type="deberta-v2", relative_attention=True, share_att_key=True, pos_att_type="p2c|c2p",
    norm_rel_ebd="layer_norm", position_biased_input=False, position_buckets=256,
)  # fmt: skip
TOKENS = np.array([[5, 6, 7, 8, 9, 2], [9, 8, 7, 3, 2, 2]], "int32")
MASK = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]], "int32")


def _build(family, **overrides):
    seed(3)
    shape = dict(vocab_size=20, hidden_size=16, intermediate_size=64, max_positions=16)
    known = registry.get(family).config.__dataclass_fields__
    shape = {name: value for name, value in shape.items() if name in known}
    return bf.build(family, "tiny", **{**shape, **overrides})


def _weights(backbone):
    return {variable.path: variable for variable in backbone.weights}


@pytest.mark.parametrize("family", ["roberta", "spanbert", "tinybert", "xlm_roberta"])
def test_modules_of_bert_s_shape_stay_short(family):
    module = Path(bf.models.__file__).with_name(f"{family}.py")
    assert len(module.read_text("utf-8").splitlines()) <= 64


# RoBERTa --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad_id", in_full([0, 1, 3], [3]))
def test_roberta_counts_real_tokens_alone(pad_id):
    backbone = _build("roberta", pad_id=pad_id)
    assert _weights(backbone)["position_embedding/embeddings"].shape == (16 + pad_id + 1, 16)
    right = backbone({"token_ids": TOKENS, "padding_mask": MASK})["sequence_output"]
    left = {"token_ids": np.roll(TOKENS, 2, axis=1), "padding_mask": np.roll(MASK, 2, axis=1)}
    np.testing.assert_allclose(backbone(left)["sequence_output"][1, 2:], right[1, :4], atol=1e-5)
    rows = _weights(backbone)["position_embedding/embeddings"]
    unused = rows.numpy()
    unused[: pad_id + 1] = 7.0  # for padding
    rows.assign(unused)
    again = backbone({"token_ids": TOKENS, "padding_mask": MASK})["sequence_output"]
    np.testing.assert_allclose(again[1, :4], right[1, :4], atol=1e-5)


def test_one_segment_is_no_choice():
    assert "segment_ids" not in _build("roberta").input
    assert "segment_ids" in _build("roberta", num_segments=2).input
    assert "segment_ids" not in _build("distilbert").input


# DistilBERT -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_distilbert_drops_nothing_after_attention(family):
    block = _build(family, dropout=0.5, attention_dropout=0.0).parts["layer_0"]
    # The feed-forward's output has dropout in both families.
    block.feed_forward.output_dense.kernel.assign(np.zeros((64, 16)))
    x = np.random.default_rng(0).normal(size=(2, 5, 16))
    trained, evaluated = (block(x, training=training)[0] for training in (True, False))
    assert np.allclose(trained, evaluated) == (family == "distilbert")


# MPNet ----------------------------------------------------------------------------------------


def test_norms_of_mpnet_have_the_published_epsilon():
    assert config_of("mpnet", "base").norm_epsilon == 1e-5
    _, config = huggingface.translate({"model_type": "mpnet"})
    assert config.norm_epsilon == 1e-12  # what the absence of the key means there


# ALBERT ---------------------------------------------------------------------------------------


@pytest.mark.full
def test_albert_has_the_parameters_of_the_papers_ablations():
    """Tables 3 and 4 (arXiv 1909.11942): with the pooler, except if nothing is shared."""
    hidden = config_of("albert").hidden_size

    def millions(size, sharing):
        found = count_parameters(
            "albert",
            embedding_size=size,
            sharing=sharing,
            project_embeddings=size != hidden,
            pooler=sharing != "none",
        )
        return round(found / 1e6)

    sharings = ("all", "attention", "feed_forward", "none")
    assert [millions(128, sharing) for sharing in sharings] == [12, 64, 38, 89]
    assert [millions(768, sharing) for sharing in sharings] == [31, 83, 57, 108]
    assert (millions(64, "all"), millions(256, "all")) == (10, 16)
    assert (millions(64, "none"), millions(256, "none")) == (87, 93)


def _copies(backbone, part):
    return sorted({v.path.split("/")[0] for v in backbone.weights if v.path.startswith(part)})


@pytest.mark.extended
def test_albert_groups_share_what_the_config_says():
    config = dict(num_layers=4, num_groups=2, layers_per_group=2)
    for sharing, attention, feed_forward in (
        ("all", 4, 4),
        ("attention", 4, 8),
        ("feed_forward", 8, 4),
        ("none", 8, 8),
    ):
        backbone = _build("albert", sharing=sharing, **config)
        assert len(_copies(backbone, "attention_norm")) == attention
        assert len(_copies(backbone, "attention")) == 2 * attention
        assert len(_copies(backbone, "feed_forward_norm")) == feed_forward
        assert len(_copies(backbone, "feed_forward")) == 2 * feed_forward
        assert len(backbone.output["hidden_states"]) == 9
    backbone = _build("albert", **config)
    names = [f"attention_{g}_{k}" for g in (0, 1) for k in (0, 1)]
    assert [name for name in _copies(backbone, "attention_") if "norm" not in name] == names


@pytest.mark.full
@pytest.mark.parametrize("sharing", ["all", "attention", "feed_forward", "none"])
def test_albert_computes_the_same_with_copies_of_what_is_shared(sharing):
    """What is shared differs in weights alone: copied into layers of their own, all is equal."""
    shared = _build("albert", sharing=sharing, num_layers=3, num_groups=2)
    for variable in shared.weights:
        variable.assign_add(np.random.default_rng(0).normal(0, 0.3, variable.shape))
    own = _build("albert", sharing="none", num_layers=3, num_groups=2)
    of, group = _weights(shared), (0, 0, 1)
    for path, variable in _weights(own).items():
        part, _, rest = path.partition("/")
        kind, _, place = part.rpartition("_")
        if kind.startswith(("attention", "feed_forward")) and path not in (
            of if sharing == "none" else ()
        ):
            kind, i = kind.rpartition("_")[::2]
            split = sharing in ("none",) or (sharing == "attention") == kind.startswith("feed")
            split = split and sharing != "all"
            path = f"{kind}_{i if split else group[int(i)]}_{place}/{rest}"
        variable.assign(of[path])
    inputs = {"token_ids": TOKENS, "padding_mask": MASK}
    np.testing.assert_allclose(
        own(inputs)["sequence_output"], shared(inputs)["sequence_output"], atol=1e-5
    )


def test_albert_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"sharing must be one of .* Did you mean 'attention'"):
        _build("albert", sharing="atention")
    for groups, error in (
        (0, "num_groups must be from 1"),
        (3, "3 groups do not fit 2 layers"),
    ):
        with pytest.raises(ValueError, match=error):
            _build("albert", num_groups=groups)
    with pytest.raises(ValueError, match="embedding_size must equal hidden_size"):
        _build("albert", project_embeddings=False)


# Sines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["distilbert", "xlm"])
def test_sines_are_where_training_starts_and_stays(family):
    backbone = _build(family, sinusoidal_positions=True)
    table = _weights(backbone)["position_embedding/embeddings"]
    assert not any(variable is table for variable in backbone.trainable_variables)
    backbone.trainable = True
    assert not table.trainable
    for row, column in ((0, 0), (3, 4), (15, 15), (7, 1)):
        angle = row / 10000 ** (2 * (column // 2) / 16)
        expected = (np.cos if column % 2 else np.sin)(angle)
        np.testing.assert_allclose(table.numpy()[row, column], expected, atol=1e-6)


# XLM ------------------------------------------------------------------------------------------


def test_xlm_sets_padding_to_zero():
    given = {"token_ids": TOKENS, "padding_mask": MASK, "language_ids": np.ones_like(MASK)}
    for hidden in _build("xlm")(given)["hidden_states"]:
        assert not np.asarray(hidden)[MASK == 0].any()
        assert np.asarray(hidden)[MASK == 1].any(axis=-1).all()


def test_xlm_positions_may_start_again():
    backbone = _build("xlm", num_languages=1)
    assert "language_ids" not in backbone.input
    inputs = {"token_ids": TOKENS, "padding_mask": np.ones_like(MASK)}
    plain = backbone(inputs)["hidden_states"][0]
    again = np.array([[0, 1, 2, 0, 1, 2]] * 2, "int32")
    restarted = backbone({**inputs, "position_ids": again})["hidden_states"][0]
    np.testing.assert_array_equal(restarted[:, :3], plain[:, :3])
    assert np.abs(restarted[:, 3:] - plain[:, 3:]).max() > 1e-3


def test_xlm_needs_a_language_where_it_has_several():
    with pytest.raises(ValueError, match="The xlm backbone needs the input 'language_ids'"):
        _build("xlm")({"token_ids": TOKENS, "padding_mask": MASK})
    assert "language_ids" not in _build("xlm", language_embedding=False).input


# GPT ------------------------------------------------------------------------------------------


def test_residual_branches_of_gpt2_and_modernbert_start_small():
    seed(3)
    for family, factor in (("gpt", 1.0), ("gpt2", 8**-0.5), ("modernbert", 8**-0.5)):
        weights = _weights(bf.build(family, "tiny", vocab_size=9, num_layers=4))
        for part in ("attention/output", "feed_forward/output"):
            outer = np.std(weights[f"layer_0/{part}/kernel"])
            inner = np.std(weights["layer_0/feed_forward/intermediate/kernel"])
            np.testing.assert_allclose(outer / inner, factor, rtol=0.05)


def test_activations_of_gpt_go_by_other_names():
    for theirs, ours in (("gelu", "gelu_new"), ("relu", "relu"), ("silu", "silu")):
        record, config = huggingface.translate({"model_type": "openai-gpt", "afn": theirs})
        assert config.activation == ours
        assert huggingface.describe(record, config)["afn"] == theirs


def test_gpt2_has_a_width_inside_or_four_times_the_outer_one():
    for n_inner, width in ((None, 256), (100, 100)):
        values = {"model_type": "gpt2", "n_embd": 64, "n_inner": n_inner, "n_head": 2}
        record, config = huggingface.translate(values)
        assert config.intermediate_size == width
        assert huggingface.describe(record, config)["n_inner"] == n_inner


# DeBERTa --------------------------------------------------------------------------------------


def test_deberta_s_masked_lm_head_has_two_layouts(tmp_path):
    """The one of transformers, and that of published checkpoints, which have another head too."""
    stored = GOLDENS / "deberta" / "heads" / "masked_lm"
    with np.load(stored / "logits.npz") as file:
        expected = dict(file)
    tensors = load_file(stored / "model.safetensors")
    named = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.bias", "lm_predictions.lm_head.bias"
        ): value
        for name, value in tensors.items()
        if "decoder" not in name
    }
    assert len(named.keys() - tensors.keys()) == 5
    named["mask_predictions.dense.bias"] = np.zeros(8, "float32")
    save_file(named, tmp_path / "model.safetensors")
    values = json.loads((stored / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**values, "legacy": False}))
    found = parity.head_differences(tmp_path, "deberta", "masked_lm", expected)
    assert max(found.values()) <= parity.TOLERANCE
    # Where both are stored, that of transformers is read.
    wrong = {name: value + 1 for name, value in named.items() if name.startswith("lm_")}
    save_file({**tensors, **wrong}, tmp_path / "model.safetensors")
    found = parity.head_differences(tmp_path, "deberta", "masked_lm", expected)
    assert max(found.values()) <= parity.TOLERANCE


def test_deberta_reads_texts_of_any_length():
    backbone = _build("deberta", num_buckets=4, max_distance=6)
    assert backbone.max_length is None
    long = np.full((1, 40), 7, "int32")
    given = {"token_ids": long, "padding_mask": np.ones_like(long)}
    assert np.isfinite(backbone(given)["sequence_output"]).all()
    with pytest.raises(ValueError, match="num_buckets = 10 and max_distance = 6"):
        _build("deberta", num_buckets=10, max_distance=6)


# MobileBERT -----------------------------------------------------------------------------------


def test_mobilebert_ignores_what_its_reference_stores_and_does_not_use(tmp_path):
    """Without shared projections, the reference has their layers all the same by default."""
    stored = GOLDENS / "mobilebert" / "layer_norm"
    tensors = load_file(stored / "model.safetensors")
    unused = {f"encoder.layer.{i}.bottleneck.attention.dense.bias": np.zeros(4) for i in range(2)}
    save_file({**tensors, **unused}, tmp_path / "model.safetensors")
    values = json.loads((stored / "config.json").read_text("utf-8"))
    values["key_query_shared_bottleneck"] = True
    (tmp_path / "config.json").write_text(json.dumps(values))
    backbone = bf.load_backbone(tmp_path)
    assert backbone.config == bf.load_backbone(stored).config
    # Nothing is shared or pooled here.
    assert not any("shared" in path or "pooler" in path for path in _weights(backbone))
    outputs = backbone({"token_ids": TOKENS, "padding_mask": MASK})
    first = outputs["sequence_output"][:, 0]
    np.testing.assert_allclose(outputs["pooled_output"], first, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_projections_of_mobilebert_are_those_of_its_scores(shared):
    backbone = _build("mobilebert", embedding_size=8, inner_size=8, shared_projection=shared)
    given = {"token_ids": TOKENS, "padding_mask": MASK}
    outputs = backbone(given, outputs=("queries", "keys", "values", "attention_scores"))
    for i in range(2):
        query, key = np.asarray(outputs["queries"][i]), np.asarray(outputs["keys"][i])
        products = np.einsum("bhqd,bhkd->bhqk", query, key) / 2
        np.testing.assert_allclose(products, outputs["attention_scores"][i], atol=1e-6)
        assert outputs["values"][i].shape == (2, 2, 6, 4)


@pytest.mark.extended
def test_mobilebert_reads_one_token_beyond_a_text_where_its_reference_does():
    backbone = _build("mobilebert", embedding_size=8, inner_size=8)
    reading = replace(backbone.config, reads_padding=True)
    reading = bf.models.Backbone("mobilebert", reading, parts=backbone.parts)
    for model, place, same in (
        (backbone, 4, True),
        (backbone, 5, True),
        (reading, 4, False),  # next to the end of the second text
        (reading, 5, True),
    ):
        given = {"token_ids": TOKENS.copy(), "padding_mask": MASK}
        plain = np.asarray(model(given)["sequence_output"])
        given["token_ids"][1, place] = 11
        found = np.asarray(model(given)["sequence_output"])
        assert np.array_equal(found[1, :4], plain[1, :4]) == same
        np.testing.assert_array_equal(found[0], plain[0])
    # Without padding there is no difference.
    given["padding_mask"] = np.ones_like(MASK)
    one, other = (model(given)["sequence_output"] for model in (backbone, reading))
    np.testing.assert_array_equal(one, other)
    record = registry.get("mobilebert")
    for config in (backbone.config, reading.config):
        values = huggingface.describe(record, config)
        assert huggingface.translate(values) == (record, config)
    assert huggingface.translate({"model_type": "mobilebert"})[1].reads_padding


# Hugging Face configs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", [name for name in parity.FAMILIES if registry.get(name).huggingface]
)
def test_configs_go_there_and_back(family):
    record = registry.get(family)
    for size in record.sizes:
        config = record.config.from_dict(record.sizes[size])
        values = huggingface.describe(record, config)
        assert values["model_type"] == record.huggingface.model_type
        assert huggingface.translate(values, family) == (record, config)


@pytest.mark.parametrize(
    ("family", "fields", "error"),
    [
        ("albert", {"sharing": "attention"}, "albert format cannot represent sharing = 'atten"),
        ("distilbert", {"norm_epsilon": 1e-5}, "cannot represent norm_epsilon = 1e-05"),
        ("distilbert", {"num_segments": 2}, "cannot represent num_segments = 2"),
        ("gpt", {"activation": "gelu"}, "cannot represent activation = 'gelu'"),
        ("gpt", {"intermediate_size": 100}, "cannot represent intermediate_size = 100"),
        ("gpt2", {"classifier_dropout": 0.5}, "cannot represent classifier_dropout = 0.5"),
        ("xlm", {"activation": "silu"}, "cannot represent activation = 'silu'"),
        ("xlm", {"intermediate_size": 100}, "cannot represent intermediate_size = 100"),
    ],
)
def test_what_their_format_cannot_say(family, fields, error):
    record = registry.get(family)
    with pytest.raises(CheckpointError, match=error):
        huggingface.describe(record, record.config.from_dict(fields))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"model_type": "openai-gpt", "afn": "tanh"}, "afn = 'tanh', which gpt does not support"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention = True, which"),
        ({"model_type": "gpt2", "activation_function": 3}, "activation must be of type str, got 3"),
        ({"model_type": "xlm", "causal": True}, "causal = True, which xlm does not support"),
        ({"model_type": "xlm", "asm": True}, "asm = True, which xlm does not support"),
        ({"model_type": "xlm", "gelu_activation": "gelu"}, "gelu_activation = 'gelu', which xlm"),
        ({"model_type": "xlm", "emb_dim": None}, "hidden_size must be of type int, got None"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_id must be of type int, got None"),
        ({"model_type": "roberta", "is_decoder": True}, "is_decoder = True, which roberta"),
        ({"model_type": "deberta"}, "no family has the model type 'deberta'.*deberta-v2"),
        ({**DEBERTA, "conv_kernel_size": 3}, "conv_kernel_size = 3, which deberta"),
        ({**DEBERTA, "pos_att_type": "c2p"}, "pos_att_type = 'c2p', which deberta"),
        ({**DEBERTA, "position_biased_input": True}, "position_biased_input = True, which"),
        ({**DEBERTA, "position_buckets": "8"}, "num_buckets must be of type int, got '8'"),
        ({**DEBERTA, "max_relative_positions": None}, "max_distance must be of type int, got N"),
        ({"model_type": "mobilebert", "use_bottleneck": False}, "use_bottleneck = False, which m"),
        ({"model_type": "mobilebert", "trigram_input": False}, "trigram_input = False, which mob"),
        ({"model_type": "mobilebert", "normalization_type": 3}, "norm must be of type str, got 3"),
        ({"model_type": "mobilebert", "num_feedforward_networks": 0}, "from 0 to .*, got -1"),
        ({"model_type": "mobilebert", "num_feedforward_networks": "4"}, "of type int, got '4'"),
        (
            {"model_type": "mobilebert", "key_query_shared_bottleneck": False},
            "neither use_bottleneck_attention nor key_query_shared_bottleneck",
        ),
        ({"model_type": "deberta-v2"}, "relative_attention = False, by default, which deberta"),
        # Without a list of as many layers.
        ({"model_type": "modernbert", "num_hidden_layers": 10**12}, "num_layers must be from 0 to"),
        ({"model_type": "modernbert", "global_attn_every_n_layers": 0}, "global_every must be fr"),
        ({"model_type": "modernbert", "local_attention": 0}, "local_attention must be from 1"),
        ({"model_type": "modernbert", "global_rope_theta": "x"}, "global_base must be of type"),
        ({"model_type": "modernbert", "rope_parameters": {"rope_theta": 1.0}}, "rope_parameters"),
        ({"model_type": "modernbert", "rope_scaling": {"factor": 2.0}}, "rope_scaling = {'factor"),
    ],
)
def test_configs_that_are_refused(values, error):
    with pytest.raises(CheckpointError, match=error):
        huggingface.translate(values)


@pytest.mark.parametrize(("name", "ours"), [("gelu_fast", "gelu_new"), ("gelu_python", "gelu")])
def test_other_names_of_gelu_in_configs(name, ours):
    _, config = huggingface.translate({"model_type": "bert", "hidden_act": name})
    assert layers.activation(config.activation) is layers.activation(ours)


def test_old_names_in_xlm_configs():
    values = {"model_type": "xlm", "n_words": 64139, "pad_index": 5, "emb_dim": 64}
    config = huggingface.translate(values)[1]
    assert (config.vocab_size, config.pad_id, config.intermediate_size) == (64139, 5, 256)


@pytest.mark.parametrize("family", ["distilbert", "gpt", "gpt2", "transformer_xl", "xlm", "xlnet"])
def test_other_names_of_config_keys(family, caplog):
    names = registry.get(family).huggingface
    assert len(names.synonyms) >= 3
    for other, key in names.synonyms.items():
        # Both: the other name takes precedence, as in transformers.
        for more in ({}, {key: 48}):
            values = {"model_type": names.model_type, **more, other: 24}
            assert huggingface.translate(values) == huggingface.translate(
                {"model_type": names.model_type, key: 24}
            )
    assert not caplog.records


def test_the_family_may_be_named():
    kind = {"model_type": "bert"}
    assert huggingface.translate(kind)[0].name == "bert"
    assert huggingface.translate(kind, "spanbert")[0].name == "spanbert"
    assert huggingface.translate({}, "tinybert")[0].name == "tinybert"
    with pytest.raises(CheckpointError, match="model type 'bert', which is not roberta's"):
        huggingface.translate(kind, "roberta")
    with pytest.raises(CheckpointError, match="has no 'model_type'"):
        huggingface.translate({})

"""Properties of every registered family."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.models.base import unpadding
from tests.seeding import seed
from tests.selection import WIRINGS, in_full, only_in, wirings
from tests.tokens import as_read

# Parameters of the published encoders, with their poolers, as the reference implementation
# counts them; by hand where there is none.
PUBLISHED = {
    ("bert", "tiny"): 4_385_920,
    ("bert", "base"): 109_482_240,
    ("bert", "base_cased"): 108_310_272,
    ("bert", "large"): 335_141_888,
    ("bert", "large_cased"): 333_579_264,
    ("bert", "multilingual_cased"): 177_853_440,
    ("bert", "minilm_l6"): 22_713_216,
    ("roberta", "base"): 124_645_632,
    ("roberta", "large"): 355_359_744,
    ("modernbert", "base"): 149_014_272,
    ("modernbert", "large"): 394_781_696,
    ("mpnet", "base"): 109_486_464,
    ("mobilebert", "base"): 24_844_544,
    ("deberta", "base"): 183_831_552,
    ("deberta", "xsmall"): 70_682_112,
    ("deberta", "small"): 141_304_320,
    ("deberta", "large"): 434_012_160,
    ("deberta", "multilingual_base"): 278_218_752,
    ("xlm_roberta", "base"): 278_043_648,
    ("xlm_roberta", "large"): 559_890_432,
    # 30522 · 300 word vectors; in each of two directions four gates of 300 units, each with 300
    # inputs, 300 states and a bias: 9,156,600 + 2 · 4 · 300 · 601.
    ("bilstm", "base"): 10_599_000,
    # With the row of characters at padding, and 4 numbers of the mix.
    ("elmo", "small"): 13_593_316,
    ("elmo", "medium"): 28_027_748,
    ("elmo", "original"): 93_600_868,
    ("distilbert", "base"): 66_362_880,
    ("distilbert", "base_cased"): 65_190_912,
    ("distilbert", "multilingual_cased"): 134_734_080,
    ("albert", "base"): 11_683_584,
    ("albert", "large"): 17_683_968,
    ("albert", "xlarge"): 58_724_864,
    ("albert", "xxlarge"): 222_595_584,
    ("tinybert", "4l_312d"): 14_350_248,
    ("tinybert", "6l_768d"): 66_955_008,
    ("spanbert", "base"): 108_310_272,
    ("spanbert", "large"): 333_579_264,
    ("xlm", "mlm_en_2048"): 667_088_896,
    ("xlm", "mlm_tlm_xnli15_1024"): 248_976_384,
    ("electra", "small"): 13_483_008,
    ("electra", "base"): 108_891_648,
    ("electra", "large"): 334_092_288,
    ("electra", "small_generator"): 13_483_008,
    ("electra", "base_generator"): 33_511_168,
    ("electra", "large_generator"): 50_999_552,
    ("transformer_xl", "wt103"): 283_885_936,
    ("transformer_xl", "wt103_base"): 150_850_870,
    ("transformer_xl", "enwik8_base"): 41_066_496,
    ("xlnet", "base_cased"): 116_718_336,
    ("xlnet", "large_cased"): 360_268_800,
    ("gpt", "base"): 116_534_784,
    ("gpt2", "base"): 124_439_808,
    ("gpt2", "medium"): 354_823_168,
    ("gpt2", "large"): 774_030_080,
    ("gpt2", "xl"): 1_557_611_200,
}

HEADS = {"sequence", "tokens", "span", "choice", "masked_lm", "causal_lm", "pair", "rtd"}
HEADS |= {"permutation_lm"}
POLICIES = ["mixed_bfloat16", "mixed_float16", "float64"]

families = pytest.mark.parametrize("family", bf.families())
wired = pytest.mark.parametrize("family", wirings())
_FIRST_SIZES = {family: (family, size) for family, size in reversed(PUBLISHED)}


@functools.cache
def _small(family):
    """A shared backbone that tests must not change."""
    return _build(family)


def _build(family, **overrides):
    seed(1)
    fields = registry.get(family).config.__dataclass_fields__
    # Without norms, wider blocks with perturbed weights multiply their input by thousands.
    inner = {"intermediate_size": 32, "inner_size": 8, "cell_size": 16}
    inner = {name: size for name, size in inner.items() if name in fields}
    backbone = bf.build(
        family,
        "tiny",
        **{"vocab_size": 50, "hidden_size": 16, **inner, **overrides},
    )
    rng = np.random.default_rng(0)
    for variable in backbone.weights:
        variable.assign_add(rng.normal(0, 0.3, variable.shape))
    return backbone


def _inputs(backbone, rows=3, length=9, seed=0):
    rng = np.random.default_rng(seed)
    inputs = {
        "token_ids": as_read(backbone, rng.integers(1, 50, (rows, length))),
        "padding_mask": np.ones((rows, length), "int32"),
        "segment_ids": rng.integers(0, 2, (rows, length)).astype("int32"),
        "position_ids": np.arange(length, dtype="int32")[None].repeat(rows, axis=0),
        "language_ids": rng.integers(0, 2, (rows, length)).astype("int32"),
    }
    return {name: inputs[name] for name in backbone.input if name in inputs}


@pytest.mark.parametrize(
    ("family", "size"), in_full(PUBLISHED, [_FIRST_SIZES[family] for family in WIRINGS])
)
def test_parameters_of_published_sizes(family, size):
    assert bf.count_parameters(family, size) == PUBLISHED[family, size]


def test_counting_allocates_nothing():
    """Two hundred billion parameters do not fit in memory: they must not be created."""
    wide = dict(num_layers=4, hidden_size=65536, intermediate_size=4 * 65536)
    assert bf.count_parameters("bert", "large", **wide) > 200e9
    with keras.StatelessScope():
        pass  # leaving a scope initializes pending variables of its thread


@families
def test_every_family_has_a_tiny_size_and_describes_its_differences(family):
    record = registry.get(family)
    assert "tiny" in record.sizes
    first = record.config.__doc__.splitlines()[0]
    assert first.startswith("Differs from ") or family == "bert"
    assert set(record.heads) <= HEADS


@families
def test_every_published_size_is_counted(family):
    sizes = set(registry.get(family).sizes)
    unlisted = sizes - {size for name, size in PUBLISHED if name == family} - {"tiny"}
    assert unlisted <= ({"mini", "small", "medium"} if family == "bert" else set())


@wired
def test_missing_inputs(family):
    backbone = _small(family)
    given = _inputs(backbone)
    given |= {k: np.zeros_like(given[k]) for k in ("segment_ids",) if k in given}
    full = backbone({**given, "segment_ids": np.zeros((3, 9), "int32")})
    short = {k: v for k, v in given.items() if k not in ("segment_ids", "position_ids")}
    np.testing.assert_array_equal(
        full["sequence_output"], backbone(short)["sequence_output"], err_msg="defaults"
    )
    for name in short:
        with pytest.raises(ValueError, match=f"backbone needs the input '{name}'"):
            backbone({k: v for k, v in short.items() if k != name})
    with pytest.raises(ValueError, match=r"Unknown input 'segment_id'\. Did you mean"):
        backbone({**short, "segment_id": short["token_ids"]})


@wired
@pytest.mark.parametrize("length", [1, 12])
def test_output_shapes(family, length):
    backbone = _small(family)
    outputs = backbone(_inputs(backbone, rows=2, length=length))
    layers = backbone.config.num_layers
    assert outputs["sequence_output"].shape == (2, length, 16)
    embeddings, *states = outputs["hidden_states"]
    assert embeddings.shape[:2] == (2, length)  # embeddings may have a width of their own
    assert [state.shape for state in states] == [(2, length, 16)] * layers
    if "attention_scores" in outputs:
        scores = (2, backbone.config.num_heads, length, length)
        assert [each.shape for each in outputs["attention_scores"]] == [scores] * layers
    if "scalar_mix" not in backbone.parts:
        np.testing.assert_array_equal(outputs["hidden_states"][-1], outputs["sequence_output"])


@wired
def test_attention_probabilities(family):
    """Sum to 1 over what a token may attend to: nothing is left for padding."""
    backbone = _small(family)
    if "attention_scores" not in backbone.output:
        return
    inputs = _inputs(backbone, rows=2, length=6)
    inputs["padding_mask"][1, 4:] = 0
    name = "attention_probabilities"
    found = backbone(inputs, outputs=name)[name]
    assert len(found) == backbone.config.num_layers
    for each, scores in zip(found, backbone(inputs)["attention_scores"], strict=True):
        assert each.shape == scores.shape
        np.testing.assert_allclose(np.sum(each, axis=-1), 1, rtol=1e-5)
        assert float(np.max(each[1, :, :4, 4:])) == 0


@wired
def test_padding_changes_nothing(family):
    backbone = _small(family)
    inputs = _inputs(backbone)
    plain = backbone(inputs)
    rng = np.random.default_rng(5)
    for filler in (0, 7):
        sides = {k: [(0, 0), (0, 4), (0, 0)][: v.ndim] for k, v in inputs.items()}
        padded = {k: np.pad(v, sides[k], constant_values=filler) for k, v in inputs.items()}
        padded["padding_mask"][:, 9:] = 0
        if filler:
            padded["token_ids"][:, 9:] = as_read(backbone, rng.integers(0, 50, (3, 4)))
            for name in padded.keys() - {"token_ids", "padding_mask"}:
                padded[name][:, 9:] = 1
        outputs = backbone(padded)
        for ours, theirs in zip(outputs["hidden_states"], plain["hidden_states"], strict=True):
            np.testing.assert_allclose(ours[:, :9], theirs, atol=2e-5)


@wired
def test_examples_do_not_attend_to_each_other(family):
    backbone = _small(family)
    inputs = _inputs(backbone)
    inputs["padding_mask"][1, 4:] = 0
    together = backbone(inputs)["sequence_output"]
    for row in range(3):
        alone = backbone({k: v[row : row + 1] for k, v in inputs.items()})["sequence_output"]
        np.testing.assert_allclose(together[row], alone[0], atol=2e-5)


# Decoders -------------------------------------------------------------------------------------

DECODERS = [name for name in bf.families() if registry.get(name).objectives == ("clm",)]
decoders = pytest.mark.parametrize("family", in_full(DECODERS, ["gpt2"]))


@decoders
def test_attention_is_causal(family):
    backbone = _small(family)
    inputs = _inputs(backbone)
    before = np.asarray(backbone(inputs)["sequence_output"])
    for j in range(9):
        changed = {name: value.copy() for name, value in inputs.items()}
        changed["token_ids"][:, j] = changed["token_ids"][:, j] % 49 + 1
        after = np.asarray(backbone(changed)["sequence_output"])
        np.testing.assert_array_equal(after[:, :j], before[:, :j])
        assert (np.abs(after[:, j:] - before[:, j:]).max(axis=(0, 2)) > 1e-5).all()


@decoders
@pytest.mark.parametrize(
    "lengths", [(3, 1, 5), *(pytest.param(x, marks=pytest.mark.full) for x in ((4, 5), (1,) * 9))]
)
def test_segments_give_the_same_as_the_whole_input(family, lengths):
    """Sequences padded on either side, in segments, with the cache or memory of previous ones."""
    backbone = _small(family)
    inputs = _inputs(backbone)
    mask = inputs["padding_mask"]
    mask[1, :3] = 0
    mask[2, 6:] = 0
    whole = backbone(inputs)
    state = "cache" if "cache" in whole else "memory"
    parts, given, begin = [], {}, 0
    for length in lengths:
        end = begin + length
        given |= {"token_ids": inputs["token_ids"][:, begin:end], "padding_mask": mask[:, :end]}
        outputs = backbone(given)
        parts.append(outputs["sequence_output"])
        given, begin = {state: outputs[state]}, end
    real = mask[:, :, None]
    found = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(found * real, whole["sequence_output"] * real, atol=2e-5)
    kept = mask[:, None, :, None] if state == "cache" else mask[:, :, None]
    for ours, theirs in zip(outputs[state], whole[state], strict=True):
        np.testing.assert_allclose(np.stack(ours) * kept, np.stack(theirs) * kept, atol=2e-5)
    rows = np.arange(3)
    last = np.asarray(whole["sequence_output"])[rows, [8, 8, 5]]
    np.testing.assert_allclose(whole["last_token"], last)
    np.testing.assert_allclose(outputs["last_token"][:2], last[:2], atol=2e-5)


@decoders
def test_left_padding_changes_nothing(family):
    backbone = _small(family)
    inputs = _inputs(backbone)
    plain = backbone(inputs)
    padded = {name: np.pad(value, ((0, 0), (4, 0))) for name, value in inputs.items()}
    outputs = backbone(padded)
    for name in ("sequence_output", "last_token"):
        found = outputs[name][:, 4:] if outputs[name].ndim == 3 else outputs[name]
        np.testing.assert_allclose(found, plain[name], atol=2e-5)


@wired
def test_an_example_of_only_padding_is_finite(family):
    backbone = _small(family)
    inputs = _inputs(backbone)
    inputs["padding_mask"][0] = 0
    assert np.isfinite(backbone(inputs)["sequence_output"]).all()


@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_a_batch_without_examples(family):
    backbone = _small(family)
    inputs = {name: value[:0] for name, value in _inputs(backbone).items()}
    graph = tf.function(backbone, autograph=False)
    for call, enabled in itertools.product((backbone, graph), (False, True)):
        with unpadding(enabled):
            outputs = call(inputs)
        assert outputs["sequence_output"].shape == (0, 9, 16)
        if "last_token" in outputs:
            assert outputs["last_token"].shape == (0, 16)


@wired
def test_a_gradient_in_every_weight(family):
    backbone = _small(family)
    with tf.GradientTape() as tape:
        inputs = _inputs(backbone)
        if "target_mapping" in backbone.input:
            inputs["target_mapping"] = np.eye(9, dtype="int32")[None].repeat(3, axis=0)
        outputs = backbone(inputs, training=True)
        loss = tf.reduce_sum(outputs["sequence_output"] ** 3)
        for name in ("pooled_output", "query_output"):
            if name in outputs:
                loss += tf.reduce_sum(outputs[name] ** 3)
    values = [variable.value for variable in backbone.trainable_variables]
    gradients = tape.gradient(loss, values)
    for variable, gradient in zip(backbone.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.path
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, variable.path


@only_in("extended", "xlnet")
@wired
def test_keras_file_round_trip(family, tmp_path):
    backbone = _build(family, dropout=0.25)
    backbone.save(tmp_path / "backbone.keras")
    again = keras.saving.load_model(tmp_path / "backbone.keras")
    assert again.config == backbone.config
    inputs = _inputs(backbone)
    np.testing.assert_array_equal(
        again(inputs)["sequence_output"], backbone(inputs)["sequence_output"]
    )


def _write_saved_model(backbone, directory, shape):
    names = sorted(_inputs(backbone))

    def outputs(*tensors):
        inputs = dict(zip(names, tensors, strict=True))
        return {"sequence_output": backbone(inputs, training=False)["sequence_output"]}

    archive = keras.export.ExportArchive()
    specs = {name: [*shape, *backbone.input[name].shape[2:]] for name in names}
    signature = [tf.TensorSpec(specs[name], tf.int32, name=name) for name in names]
    archive.add_endpoint("serving_default", outputs, signature)
    archive.write_out(str(directory), verbose=False)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(bf.families(), ["gpt2"]))
def test_saved_model_round_trip(family, tmp_path):
    backbone = _small(family)
    _write_saved_model(backbone, tmp_path, [None, None])
    loaded = tf.saved_model.load(str(tmp_path))
    inputs = {name: tf.constant(value) for name, value in _inputs(backbone).items()}
    outputs = loaded.signatures["serving_default"](**inputs)["sequence_output"]
    np.testing.assert_allclose(outputs, backbone(inputs)["sequence_output"], atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("family", in_full(bf.families(), ["bert"]))
def test_tflite_round_trip(family, tmp_path):
    backbone = _small(family)
    _write_saved_model(backbone, tmp_path, [1, 9])
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = Interpreter(model_content=converter.convert())
    inputs = _inputs(backbone, rows=1)
    outputs = interpreter.get_signature_runner()(**inputs)["sequence_output"]
    expected = np.asarray(backbone(inputs)["sequence_output"])
    np.testing.assert_allclose(outputs, expected, atol=max(2e-5, 5e-6 * np.abs(expected).max()))


@wired
@pytest.mark.parametrize("policy", in_full(POLICIES, POLICIES[:1]))
def test_other_precisions(family, policy):
    backbone, full = _build(family, dtype=policy), _small(family)
    for ours, theirs in zip(backbone.weights, full.weights, strict=True):
        ours.assign(theirs)
    inputs = _inputs(full)
    exact = np.asarray(full(inputs)["sequence_output"])
    found = np.asarray(backbone(inputs)["sequence_output"]).astype("float32")
    assert np.abs(found - exact).max() / np.abs(exact).max() < 0.1
    assert np.isfinite(found).all()


@wired
def test_input_longer_than_max_positions(family):
    if _small(family).max_length is None:
        pytest.skip("positions are relative")
    backbone = _build(family, max_positions=8)
    with pytest.raises(ValueError, match="9 tokens long; this model has 8 positions"):
        backbone(_inputs(backbone))


def test_unknown_names():
    with pytest.raises(ValueError, match=r"Unknown family 'bret'. Did you mean 'bert'\?"):
        bf.build("bret")
    with pytest.raises(ValueError, match=r"Unknown size of bert 'bas'. Did you mean 'base'\?"):
        bf.build("bert", "bas")
    with pytest.raises(ValueError, match="Unknown BertConfig field 'layers'"):
        bf.build("bert", layers=2)
    with pytest.raises(ValueError, match=r"BertConfig\.num_layers must be of type int, got '2'"):
        bf.build("bert", num_layers="2")
    with pytest.raises(ValueError, match=r"Unknown activation 'gleu'\. Did you mean 'gelu'"):
        bf.build("bert", "tiny", activation="gleu")
    with pytest.raises(ValueError, match="128 is not a multiple of num_heads 3"):
        bf.build("bert", "tiny", num_heads=3)

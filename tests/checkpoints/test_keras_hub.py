"""KerasHub presets: compared with the library on perturbed weights; errors for damaged files."""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError, convert
from tests.parity import relative
from tests.selection import in_full

keras_hub = pytest.importorskip("keras_hub")

WEIGHTS = "model.weights.h5"
SMALL = dict(
    vocabulary_size=48,
    num_layers=2,
    num_heads=4,
    hidden_dim=16,
    intermediate_dim=24,
    max_sequence_length=12,
)
_ELECTRA = {("vocab_size" if k == "vocabulary_size" else k): v for k, v in SMALL.items()}
# Class, settings, the family that reads it, and the values that the class hard-codes.
CASES = {
    "bert": ("BertBackbone", {**SMALL, "num_segments": 3}, "bert", "gelu_new", 1e-12),
    "roberta": ("RobertaBackbone", SMALL, "roberta", "gelu", 1e-5),
    "xlm_roberta": ("XLMRobertaBackbone", SMALL, "xlm_roberta", "gelu", 1e-5),
    "distilbert": ("DistilBertBackbone", SMALL, "distilbert", "gelu", 1e-12),
    "albert": ("AlbertBackbone", {**SMALL, "embedding_dim": 8}, "albert", "gelu_new", 1e-12),
    "albert groups": (
        "AlbertBackbone",
        dict(SMALL, embedding_dim=16, num_layers=4, num_groups=2, num_inner_repetitions=2),
        "albert",
        "gelu_new",
        1e-12,
    ),
    "electra": ("ElectraBackbone", {**_ELECTRA, "embedding_dim": 8}, "electra", "gelu_new", 1e-12),
    "electra as wide": (
        "ElectraBackbone",
        {**_ELECTRA, "embedding_dim": 16},
        "electra",
        "gelu_new",
        1e-12,
    ),
}


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """Creates each preset once; returns its directory and the float64 backbone that wrote it."""
    made = {}

    def make(case):
        if case not in made:
            kind, settings = CASES[case][:2]
            theirs = getattr(keras_hub.models, kind)(**settings, dtype="float64")
            rng = np.random.default_rng(0)
            for weight in theirs.weights:
                weight.assign(weight.numpy() + rng.normal(0, 0.3, weight.shape))
            directory = tmp_path_factory.mktemp("presets") / "preset"
            theirs.save_to_preset(str(directory))
            made[case] = directory, theirs
        return made[case]

    return make


@pytest.fixture
def copy(preset, tmp_path):
    """A copy of BERT's preset to change."""
    return shutil.copytree(preset("bert")[0], tmp_path / "preset")


@pytest.fixture
def float64():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("case", in_full(CASES, ["bert"]))
def test_outputs_are_those_of_the_library(preset, float64, case):
    directory, theirs = preset(case)
    _, _, family, activation, epsilon = CASES[case]
    ours = bf.load_backbone(directory)
    config = ours.config
    assert (ours.family, config.activation, config.norm_epsilon) == (family, activation, epsilon)
    assert (config.dropout, config.attention_dropout) == (theirs.dropout, theirs.dropout)
    rng = np.random.default_rng(1)
    mask = np.arange(9)[None] < np.array([9, 4, 7])[:, None]
    tokens = np.where(mask, rng.integers(2, 48, mask.shape), config.pad_id)
    segments = rng.integers(0, 2, mask.shape) * mask
    given = {"token_ids": tokens, "padding_mask": mask.astype("i4"), "segment_ids": segments}
    expected = theirs({name: given[name] for name in theirs.input})
    if "segment_ids" not in theirs.input:
        given["segment_ids"] = np.zeros_like(segments)
    found = ours({name: given[name] for name in ours.input})
    if not isinstance(expected, dict):
        expected = {"sequence_output": expected}
    real = mask[..., None]
    sequence = expected["sequence_output"].numpy() * real
    differences = [relative(found["sequence_output"].numpy() * real, sequence)]
    if "pooled_output" in found:
        differences.append(relative(found["pooled_output"], expected["pooled_output"]))
    print(f"KerasHub {case}: largest relative difference {max(differences):.1e}")
    assert max(differences) < 1e-6
    if "pooled_output" not in found:
        assert "pooled_output" not in expected or family == "electra"


@pytest.mark.extended
def test_float32_and_half_precision(tmp_path):
    for dtype in ("float32", "bfloat16"):
        theirs = keras_hub.models.BertBackbone(**SMALL, dtype=dtype)
        theirs.save_to_preset(str(tmp_path / dtype))
        table = bf.load_backbone(tmp_path / dtype).get_layer("token_embedding").embeddings
        assert table.dtype == "float32"
        expected = keras.ops.convert_to_numpy(theirs.token_embedding.embeddings)
        np.testing.assert_array_equal(table.numpy(), expected.astype("float32"))


def _earlier_file(file):
    """As in early versions of Keras: another name for the layers, other underscores."""
    with h5py.File(file, "a") as opened:
        opened.move("layers", "_layer_checkpoint_dependencies")
        attention = "_layer_checkpoint_dependencies/transformer_encoder/_self_attention_layer"
        opened.move(f"{attention}/query_dense", f"{attention}/_query_dense")


def test_earlier_files(copy, preset):
    expected = bf.load_backbone(preset("bert")[0])
    _earlier_file(copy / WEIGHTS)
    (copy / WEIGHTS).rename(copy / "bert.weights.h5")
    _config(registered_name="keras_nlp>BertBackbone")(copy)
    for ours, theirs in zip(bf.load_backbone(copy).weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


QUERY = "layers/transformer_encoder_1/_self_attention_layer/query_dense/vars/0"


def _config(**values):
    def change(directory):
        file = directory / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def _option(**values):
    def change(directory):
        config = json.loads((directory / "config.json").read_text())["config"]
        config = {key: v for key, v in {**config, **values}.items() if v is not None}
        _config(config=config)(directory)

    return change


def _tensor(name, value):
    def change(directory):
        with h5py.File(directory / WEIGHTS, "a") as opened:
            if name in opened:
                del opened[name]
            if value is not None:
                opened[name] = value

    return change


def _cut(directory):
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[: len(content) // 2])


def _two(directory):
    (directory / WEIGHTS).rename(directory / "a.weights.h5")
    shutil.copy(directory / "a.weights.h5", directory / "b.weights.h5")


DAMAGES = {
    "no weights": (lambda d: (d / WEIGHTS).unlink(), r"expected model\.weights\.h5, found none"),
    "two files": (_two, r"found a\.weights\.h5, b\.weights\.h5"),
    "cut file": (_cut, r"model\.weights\.h5 cannot be read as HDF5; .*truncated"),
    "empty file": (lambda d: (d / WEIGHTS).write_bytes(b""), "cannot be read as HDF5"),
    "another class": (
        _config(registered_name="keras_hub>GemmaBackbone"),
        "is for KerasHub's 'GemmaBackbone'. Known: AlbertBackbone, BertBackbone",
    ),
    "no config": (_config(config=None), "has no 'config' of the backbone"),
    "unknown option": (_option(rotary=True), "options that are not supported: rotary"),
    "option missing": (_option(num_layers=None), "lacks num_layers"),
    "text for a number": (
        _option(num_layers="2"),
        "num_layers must be a positive integer, got '2'",
    ),
    "other heads": (
        _option(num_heads=8),
        r"query_dense/vars/0 \(16, 4, 4\) does not have the 8 heads",
    ),
    "fewer layers": (_option(num_layers=1), "Unexpected tensors: layers/transformer_encoder_1/"),
    "more layers": (_option(num_layers=3), "Missing tensors: layers/transformer_encoder_2/"),
    "missing": (
        _tensor(QUERY, None),
        "Missing tensors: layers/transformer_encoder_1/self_attention_layer/query_dense",
    ),
    "twice": (
        _tensor(QUERY.replace("/_self", "/self"), np.ones((16, 4, 4))),
        "contains the same tensor twice: .*query_dense/vars/0, ",
    ),
    "left over": (
        _tensor("layers/adapter/vars/0", [1.0]),
        "Unexpected tensors: layers/adapter/vars/0",
    ),
    "NaN": (_tensor(QUERY, np.full((16, 4, 4), np.nan)), f"{QUERY} contains NaN or infinity"),
    "shape": (_tensor(QUERY, np.ones((8, 4, 4))), rf"{QUERY} \(8, 16\), expected \(16, 16\)"),
    "integers": (_tensor(QUERY, np.ones((16, 4, 4), "i4")), f"Wrong types: {QUERY} int32"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(copy, damage):
    change, error = DAMAGES[damage]
    change(copy)
    with pytest.raises(CheckpointError, match=f"(?s){error}"):
        bf.load_backbone(copy)


@pytest.mark.extended
def test_convert_takes_the_tokenizer_along(copy, tmp_path):
    assets = copy / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "film"]
    (assets / "vocabulary.txt").write_text("\n".join(pieces) + "\n")
    stored = {"class_name": "BertTokenizer", "config": {"lowercase": False}}
    (copy / "tokenizer.json").write_text(json.dumps(stored))
    convert(copy, tmp_path / "out")
    tokenizer = bf.load_tokenizer(tmp_path / "out")
    assert tokenizer.tokenize("A film").numpy().tolist() == [5, 6]
    stored["class_name"] = "GemmaTokenizer"
    (copy / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=r"KerasHub's 'GemmaTokenizer'. Known: AlbertTok"):
        convert(copy, tmp_path / "other")
    assert not (tmp_path / "other").exists()

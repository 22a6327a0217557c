"""TF1 and Model Garden checkpoints: files written by the libraries; errors for damaged files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from safetensors.numpy import load_file

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.checkpoints import Checkpoint, CheckpointError
from tests.parity import relative

FIXTURES = Path(__file__).parent.parent / "fixtures"
DATA = "bert_model.ckpt.data-00000-of-00001"
INDEX = "bert_model.ckpt.index"
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"
v1 = tf.compat.v1

# The family of each fixture, and the activation that its library computes.
CASES = {
    "tf1_bert": ("bert", "gelu"),
    "tf1_albert": ("albert", "gelu_new"),
    "garden_bert": ("bert", "gelu_new"),
    "garden_bert_v2": ("bert", "gelu_new"),
    "garden_albert": ("albert", "gelu_new"),
}


# Models with heads: the head, its number of labels, and where the classifier's pooler is.
HEADS = {
    "garden_bert_classifier": ("sequence", 3),
    "garden_bert_v2_pooled": ("sequence", 3),
    "garden_albert_tagger": ("tokens", 3),
    "garden_bert_v2_span": ("span", None),
    "garden_bert_masked_lm": ("masked_lm", None),
}


def test_every_fixture_is_a_case():
    assert {directory.name for directory in FIXTURES.iterdir()} == set(CASES) | set(HEADS)


def _differences(backbone, expected):
    names = ("token_ids", "padding_mask", "segment_ids")
    outputs = backbone({name: expected[name] for name in names})
    real = expected["padding_mask"][..., None]
    sequence = outputs["sequence_output"].numpy() * real
    return (
        relative(sequence, expected["sequence_output"] * real),
        relative(outputs["pooled_output"], expected["pooled_output"]),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_library(name):
    family, activation = CASES[name]
    backbone = bf.load_backbone(FIXTURES / name)
    assert (backbone.family, backbone.config.activation) == (family, activation)
    assert backbone.config.norm_epsilon == 1e-12
    with np.load(FIXTURES / name / "expected.npz") as expected:
        found = _differences(backbone, expected)
        print(f"{name}: largest relative difference {max(found):.1e}")
        assert max(found) < 1e-5, found
        other = {"gelu": "gelu_new", "gelu_new": "gelu"}[activation]
        wrong = _differences(bf.load_backbone(FIXTURES / name, activation=other), expected)
        assert min(wrong) > 1e-4, wrong


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_those_of_the_library(name):
    head, count = HEADS[name]
    checkpoint = Checkpoint(FIXTURES / name)
    assert checkpoint.heads() == [head]
    backbone = checkpoint.backbone()
    layer = heads.build(backbone, head, count)
    checkpoint.fill_head(layer, head)
    names = ("token_ids", "padding_mask", "segment_ids")
    with np.load(FIXTURES / name / "expected.npz") as expected:
        found = layer(backbone({n: expected[n] for n in names}, outputs=layer.reads)).numpy()
        real = expected["padding_mask"][..., None] if head != "sequence" else 1
        difference = relative(found * real, expected["logits"] * real)
    print(f"{name}: largest relative difference {difference:.1e}")
    assert difference < 1e-5


# Files written here, from a checkpoint with known values ------------------------------------------


def _tf1_name(name):
    """Google's name of a tensor that Hugging Face calls ``name``."""
    heads = {"classifier.weight": "output_weights", "classifier.bias": "output_bias"}
    if name in heads:
        return heads[name]
    for ours, theirs in (
        ("_embeddings.weight", "_embeddings"),
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
        (".weight", ".kernel"),
        ("layer.", "layer_"),
        (".", "/"),
    ):
        name = name.replace(ours, theirs)
    return name


def _write(directory, tensors, prefix="bert_model.ckpt"):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(name, initializer=tf.constant(value)) for name, value in tensors.items()
        ]
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables).save(
            session, str(directory / prefix), write_meta_graph=False, write_state=False
        )


@pytest.fixture(scope="module")
def tensors(tiny):
    """The content of a TF1 checkpoint: weights, a head, and optimizer state."""
    found = {
        _tf1_name(name): value.T if name.endswith(".weight") and ".dense." in name else value
        for name, value in load_file(tiny / "model.safetensors").items()
    }
    for name in list(found):
        if name.endswith("/kernel") and "/self/" in name:
            found[name] = found[name].T
    for slot in ("adam_m", "adam_v"):
        found[f"{QUERY}/{slot}"] = np.ones((32, 32), np.float32)
    found["global_step"] = np.array(7, np.int64)
    found["cls/predictions/output_bias"] = np.ones(64, np.float32)
    found["cls/seq_relationship/output_weights"] = np.ones((2, 32), np.float32)
    return found


@pytest.fixture
def directory(tiny, tmp_path):
    """A directory for a TF1 checkpoint, with config and vocabulary."""
    config = json.loads((tiny / "config.json").read_text())
    keys = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size
              max_position_embeddings type_vocab_size hidden_act hidden_dropout_prob
              attention_probs_dropout_prob initializer_range""".split()
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "bert_config.json").write_text(json.dumps({key: config[key] for key in keys}))
    shutil.copy(tiny / "vocab.txt", directory)
    return directory


@pytest.mark.extended
def test_weights_and_head_are_bit_equal(tiny, directory, tensors):
    _write(directory, tensors)
    expected = bf.load_backbone(tiny)
    found = bf.load_backbone(directory)
    assert found.config == expected.config
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)
    labels = ["negative", "neutral", "positive"]
    task = bf.TextClassifier.from_pretrained(directory)
    assert task.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    reference = bf.TextClassifier.from_pretrained(tiny, labels)
    texts = ["a good film", "it is bad"]
    np.testing.assert_array_equal(
        [answer["scores"] for answer in task.predict(texts)],
        [answer["scores"] for answer in reference.predict(texts)],
    )


@pytest.mark.parametrize("prefix", ["model.ckpt-1200"])
def test_any_prefix(directory, tensors, prefix):
    _write(directory, tensors, prefix)
    assert bf.load_backbone(directory).family == "bert"


@pytest.mark.extended
def test_of_several_the_known_name_or_the_latest_is_taken(directory, tensors):
    other = {name: value + 1 for name, value in tensors.items()}
    _write(directory, other, "model.ckpt-1")
    _write(directory, tensors, "model.ckpt-2")
    with pytest.raises(CheckpointError, match=r"several.*model\.ckpt-1, model\.ckpt-2"):
        bf.load_backbone(directory)
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n')
    table = bf.load_backbone(directory).get_layer("token_embedding").embeddings.numpy()
    np.testing.assert_array_equal(table, tensors["bert/embeddings/word_embeddings"])
    _write(directory, other)
    table = bf.load_backbone(directory).get_layer("token_embedding").embeddings.numpy()
    np.testing.assert_array_equal(table, other["bert/embeddings/word_embeddings"])


def test_hugging_faces_files_take_precedence(tiny, directory, tensors):
    _write(directory, {name: value + 1 for name, value in tensors.items()})
    shutil.copy(tiny / "config.json", directory)
    table = bf.load_backbone(directory).get_layer("token_embedding").embeddings.numpy()
    assert (table == tensors["bert/embeddings/word_embeddings"] + 1).all()  # only its weights
    shutil.copy(tiny / "model.safetensors", directory)
    table = bf.load_backbone(directory).get_layer("token_embedding").embeddings.numpy()
    assert (table == tensors["bert/embeddings/word_embeddings"]).all()


def _cut(name, part=2):
    def damage(directory):
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[: len(content) // part])

    return damage


def _flip(directory):
    content = bytearray((directory / DATA).read_bytes())
    content[6000] ^= 0xFF  # in an embedding, which come first
    (directory / DATA).write_bytes(bytes(content))


def _config(**values):
    def damage(directory):
        file = directory / "bert_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return damage


def _text(text):
    return lambda directory: (directory / "bert_config.json").write_text(text)


FILES = {
    "no config": (
        lambda d: (d / "bert_config.json").unlink(),
        r"No config\.json in .*Looked for .*bert_config\.json, albert_config\.json.*TensorFlow",
    ),
    "no index": (lambda d: (d / INDEX).unlink(), r"No weights in .*bert_model\.ckpt\.index"),
    "no data": (lambda d: (d / DATA).unlink(), rf"{DATA} is missing"),
    "cut data": (_cut(DATA), r"index declares tensors of [\d,]+ bytes, .*truncated"),
    "cut index": (_cut(INDEX), r"bert_model\.ckpt\.index cannot be read.*truncated"),
    "empty index": (lambda d: (d / INDEX).write_bytes(b""), "cannot be read as a TensorFlow"),
    "a changed byte": (_flip, "cannot be read from .*damaged"),
    "config is text": (_text("{"), r"bert_config\.json is not JSON"),
    "config is a list": (_text("[]"), "found a list, expected a JSON object"),
    "another vocabulary": (_config(vocab_size=65), r"word_embeddings \(64, 32\), expected"),
    "more layers": (_config(num_hidden_layers=4), "Missing tensors: bert/encoder/layer_3/"),
    "fewer layers": (
        _config(num_hidden_layers=2),
        "Unexpected tensors: bert/encoder/layer_2/attention",
    ),
    "unknown activation": (_config(hidden_act="geglu"), "Unknown activation 'geglu'"),
    "no activation": (_config(hidden_act=None), "activation must be of type str, got None"),
    "no dropout": (_config(hidden_dropout_prob=None), "dropout must be of type float, got None"),
    "another kind": (
        lambda d: (d / "bert_config.json").rename(d / "albert_config.json"),
        "Unexpected tensors: bert/encoder/layer_0",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("damage", FILES)
def test_damaged_files_are_named(directory, tensors, damage):
    change, error = FILES[damage]
    _write(directory, tensors)
    change(directory)
    with pytest.raises(CheckpointError, match=f"(?s){error}"):
        bf.load_backbone(directory)


TENSORS = {
    "missing": (
        {QUERY: None},
        f"Missing tensors: {QUERY}",
    ),
    "left over": (
        {"bert/adapter/kernel": np.ones(2, "f")},
        "Unexpected tensors: bert/adapter/kernel",
    ),
    "shape": ({QUERY: np.ones((32, 16), "f")}, rf"{QUERY} \(32, 16\), expected \(32, 32\)"),
    "NaN": ({QUERY: np.full((32, 32), np.nan, "f")}, f"{QUERY} contains NaN or infinity"),
    "integers": ({QUERY: np.ones((32, 32), "i4")}, f"Wrong types: {QUERY} int32"),
}


@pytest.mark.full
@pytest.mark.parametrize("damage", TENSORS)
def test_damaged_tensors_are_named(directory, tensors, damage):
    change, error = TENSORS[damage]
    changed = {name: v for name, v in {**tensors, **change}.items() if v is not None}
    _write(directory, changed)
    with pytest.raises(CheckpointError, match=error):
        bf.load_backbone(directory)


# Model Garden ---------------------------------------------------------------------------------


@pytest.fixture
def garden(tmp_path):
    return Path(shutil.copytree(FIXTURES / "garden_bert_v2", tmp_path / "garden"))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"num_attention_heads": 8},
            r"_query_dense/kernel/.* \(16, 4, 4\) does not have the 8 heads",
        ),
        ({"norm_first": True}, "norm_first = True, which is not supported; supported: False"),
        ({"output_range": 1}, "output_range = 1, which is not supported"),
        ({"num_layers": 1}, "Unexpected tensors: encoder/_transformer_layers/1/"),
        ({"type_vocab_size": 3}, r"_type_embedding_layer.* \(2, 16\), expected \(3, 16\)"),
    ],
)
def test_gardens_options(garden, change, error):
    file = garden / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params["task"]["model"]["encoder"]["bert_v2"] |= change
    file.write_text(yaml.safe_dump(params))
    with pytest.raises(CheckpointError, match=error):
        bf.load_backbone(garden)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("task: {}", "has no task.model.encoder"),
        ("[", "is not YAML"),
        ("task: {model: {encoder: {type: bigbird, bigbird: {}}}}", "is for a 'bigbird' encoder"),
    ],
)
def test_params_of_another_kind(garden, text, error):
    (garden / "params.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=error):
        bf.load_backbone(garden)


def test_a_checkpoint_without_encoder(garden):
    tf.train.Checkpoint(x=tf.Variable(1.0)).write(str(garden / "bert_model.ckpt"))
    with pytest.raises(CheckpointError, match=r"does not contain an encoder; it has .*\bx\b"):
        bf.load_backbone(garden)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("garden_bert_classifier", {"num_classes": 4}, r"has 4 num_classes, but .*\(16, 3\)"),
        ("garden_bert_classifier", {"use_encoder_pooler": True}, "but the checkpoint has a pooler"),
        (
            "garden_bert_v2_pooled",
            {"use_encoder_pooler": False},
            "but the checkpoint has no pooler",
        ),
        (
            "garden_albert_tagger",
            {"class_names": ["O", "B"]},
            r"has 2 class_names, but .*\(16, 3\)",
        ),
        ("garden_albert_tagger", {"class_names": [1, 2, 3]}, r"must be a list of strings, got \["),
        ("garden_bert_masked_lm", {"mlm_activation": 7}, "lm_activation must be .* got 7"),
    ],
)
def test_params_of_another_head(tmp_path, name, change, error):
    directory = Path(shutil.copytree(FIXTURES / name, tmp_path / "garden"))
    file = directory / "params.yaml"
    params = yaml.safe_load(file.read_text())
    ours = params["task"] if "class_names" in change else params["task"]["model"]
    ours |= change
    file.write_text(yaml.safe_dump(params))
    with pytest.raises(CheckpointError, match=error):
        Checkpoint(directory)


def _with_vocabulary(name, directory):
    """A copy of a fixture with a vocabulary, for tasks."""
    shutil.copytree(FIXTURES / name, directory)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(43))]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return directory


@pytest.mark.full
def test_gardens_heads_are_those_of_tasks(tmp_path):
    tagger = bf.TokenTagger.from_pretrained(
        _with_vocabulary("garden_albert_tagger", tmp_path / "tagger")
    )
    assert tagger.tags == ["O", "B-X", "I-X"]
    directory = _with_vocabulary("garden_bert_classifier", tmp_path / "classifier")
    answers = bf.TextClassifier.from_pretrained(directory).predict(["w1 w2", "w3"])
    assert [len(answer["scores"]) for answer in answers] == [3, 3]
    bf.SpanQA.from_pretrained(_with_vocabulary("garden_bert_v2_span", tmp_path / "span"))


def test_tensors_of_an_unknown_head_are_unexpected(tmp_path):
    directory = Path(shutil.copytree(FIXTURES / "garden_bert_v2_span", tmp_path / "garden"))
    reader = tf.train.load_checkpoint(str(directory / "ckpt-7"))
    values = {
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): tf.Variable(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
        if name.startswith(("encoder/", "model/layer_with_weights-1"))
    }
    trackable = tf.train.Checkpoint()
    for name, variable in (values | {"model/adapter/kernel": tf.Variable([1.0])}).items():
        node = trackable
        *places, last = name.split("/")
        for place in places:
            if not hasattr(node, place):
                setattr(node, place, tf.train.Checkpoint())
            node = getattr(node, place)
        setattr(node, last, variable)
    trackable.write(str(directory / "ckpt-7"))
    with pytest.raises(CheckpointError, match="Unexpected tensors: model/adapter/kernel"):
        bf.load_backbone(directory)


def test_numbered_layers_have_no_room_for_others(tmp_path):
    directory = Path(shutil.copytree(FIXTURES / "garden_bert", tmp_path / "garden"))
    file = directory / "bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match="Missing tensors: _transformer_layers/2/"):
        Checkpoint(directory).backbone()

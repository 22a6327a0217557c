"""ELMo beside AllenNLP's (tests/goldens/elmo), its checkpoints, and tasks with it."""

import json
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.text import CharacterTokenizer, Packer, load_tokenizer, tokenize_words
from bertfam_tf.training import optimizers, tuning
from tests.parity import TOLERANCE, relative
from tests.test_goldens import GOLDENS

DEFAULT = GOLDENS / "elmo" / "default"
MIX = {"scalar_mix/scalars": [0.5, -1.0, 1.5], "scalar_mix/gamma": 0.75}
TEXTS = ["a good film", "a bad film", "", "not good, bad"]
LABELS = ["yes", "no", "yes", "no"]


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(DEFAULT, tmp_path / "elmo")


@pytest.fixture
def mixed():
    with np.load(DEFAULT / "mixed.npz") as expected:
        yield dict(expected)


def _with_mix(dtype="float64"):
    backbone = bf.load_backbone(DEFAULT, dtype=dtype)
    for path, value in MIX.items():
        next(v for v in backbone.weights if v.path == path).assign(value)
    return backbone


def _given(expected):
    return {name: expected[name] for name in ("token_ids", "padding_mask")}


# Outputs and gradients with equal weights of the layers are compared in tests/test_goldens.py.


def test_layers_are_mixed_by_the_softmax_of_scalars_times_gamma(mixed):
    outputs = _with_mix()(_given(mixed))
    assert relative(outputs["sequence_output"], mixed["sequence_output"]) < TOLERANCE
    real = mixed["padding_mask"][..., None] > 0
    largest = np.where(real, mixed["sequence_output"], -np.inf).max(axis=1)
    assert relative(outputs["pooled_output"], largest) < TOLERANCE


def test_words_become_the_reference_s_characters(mixed):
    """Also of more than 48 bytes, cut within a character, and of other scripts."""
    sentences = json.loads(str(mixed["words"]))
    tokenizer = CharacterTokenizer(split="spaces")
    rows = tokenize_words(tokenizer, sentences)
    assert rows.shape[3] == 50
    packer = Packer(tokenizer.layout, tokenizer.special_ids, 20)
    packed = packer([tf.concat([rows], 0).merge_dims(1, 2)])
    for name, value in _given(mixed).items():
        np.testing.assert_array_equal(packed[name], value)


def test_texts_do_not_depend_on_those_before():
    """AllenNLP's implementation carries states from batch to batch."""
    backbone = bf.load_backbone(DEFAULT)
    with np.load(DEFAULT / "length_5.npz") as expected:
        given = _given(expected)
    first, second = (backbone(given)["sequence_output"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_features_of_padding_are_zeros(mixed):
    outputs = bf.load_backbone(DEFAULT)(_given(mixed))
    padding = mixed["padding_mask"] == 0
    for each in (*outputs["hidden_states"], outputs["sequence_output"]):
        assert not np.asarray(each)[padding].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"filter_widths": (1,)},
            "equally many positive numbers, got \\[1\\] and \\[16, 16, 32\\]",
        ),
        ({"filter_widths": (), "filter_counts": ()}, "equally many positive numbers, got \\[\\]"),
        ({"filter_counts": (1, 2, 0)}, "equally many positive numbers"),
        ({"max_characters": 2}, "from the largest of filter_widths, 3, to 256, got 2"),
        ({"max_characters": 10**9}, "from the largest of filter_widths, 3, to 256, got 1000000000"),
        ({"hidden_size": 7}, "hidden_size must be even, half for each direction, got 7"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"cell_size": 0}, "cell_size must be at least 1, got 0"),
        ({"num_highways": -1}, "num_highways must be at least 0, got -1"),
        ({"activation": "rellu"}, "Did you mean 'relu'"),
        ({"cell_clip": -1.0}, "cell_clip must be from 0"),
    ],
)
def test_configs_that_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        bf.build("elmo", "tiny", **fields)


# Feature-based and tuned -----------------------------------------------------------------------


def test_as_features_the_mix_is_trained_and_the_language_models_are_not():
    backbone = bf.build("elmo", "tiny")
    tuning.freeze(backbone, blocks=backbone.config.num_layers)
    assert {v.path for v in backbone.trainable_weights} == {
        "scalar_mix/scalars",
        "scalar_mix/gamma",
    }


@pytest.mark.full
@pytest.mark.parametrize("frozen", [True, False])
def test_trained_saved_and_exported(frozen, tmp_path):
    backbone = bf.build("elmo", "tiny", num_layers=1, cell_size=16, dropout=0.1)
    if frozen:
        tuning.freeze(backbone, blocks=1)
    task = bf.TextClassifier(backbone, CharacterTokenizer(), ["no", "yes"], pair=False)
    before = {v.path: v.numpy() for v in backbone.weights}
    task.compile(optimizers.adamw(0.05, warmup=0))
    task.fit(TEXTS * 4, LABELS * 4, epochs=60 if frozen else 15, verbose=0)
    moved = {v.path for v in backbone.weights if (v.numpy() != before[v.path]).any()}
    assert moved >= {"scalar_mix/scalars"}
    assert any(path.startswith(("token_encoder", "layer_")) for path in moved) is not frozen
    answers = task.predict(TEXTS)
    assert [answer["label"] for answer in answers] == LABELS
    task.save(tmp_path / "task")
    expected = [answer["scores"] for answer in answers]
    again = bf.load(tmp_path / "task")
    np.testing.assert_array_equal([a["scores"] for a in again.predict(TEXTS)], expected)
    path = task.export(tmp_path / "served")
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(TEXTS))["scores"], expected, atol=1e-6)
    assert served(text=tf.constant([], tf.string))["scores"].shape == (0, 2)
    file = task.export_tflite(tmp_path / "ids.tflite", inputs="ids", length=9)
    assert file.is_file()
    with pytest.raises(ValueError, match="There are no TFLite kernels for CharacterTokenizer"):
        task.export_tflite(tmp_path / "text.tflite")


# Tasks on characters ---------------------------------------------------------------------------


def _alone(task, examples):
    """Each answer's scores, from one example at a time."""
    return [task.predict({k: v[i : i + 1] for k, v in examples.items()})[0] for i in range(2)]


@pytest.mark.full
def test_choices_rerankers_and_labels_have_rows_of_characters():
    tokenizer, texts = CharacterTokenizer(), ["a film", "日本語 , good ! " * 3]
    task = bf.MultipleChoice(bf.build("elmo", "tiny"), tokenizer, 2)
    examples = {"text": texts, "choices": [["good", "bad film"], ["", "x" * 60]]}
    task.fit(examples, [0, 1], verbose=0)
    for found, alone in zip(task.predict(examples), _alone(task, examples), strict=True):
        np.testing.assert_allclose(found["scores"], alone["scores"], atol=1e-6)
    task = bf.Reranker(bf.build("elmo", "tiny"), tokenizer)
    single = task.predict({"query": texts, "document": texts[::-1]})
    listed = task.predict({"query": texts, "document": [[text] for text in texts[::-1]]})
    np.testing.assert_allclose(np.ravel(listed), single, atol=1e-6)
    task.fit({"query": texts, "document": [texts, texts]}, [[0.0, 1.0], [1.0, 0.0]], verbose=0)
    task = bf.ZeroShotClassifier(
        bf.build("elmo", "tiny"), tokenizer, ["good", "bad"], ["entailment", "contradiction"]
    )
    assert np.isfinite([answer["scores"] for answer in task.predict(texts)]).all()


@pytest.mark.full
def test_tagged_words_are_whole_and_documents_are_windows():
    backbone = bf.build("elmo", "tiny")
    task = bf.TokenTagger(backbone, CharacterTokenizer(), ["O", "B-X"], max_length=12, stride=3)
    words = [["U.S.", "is", "a", "co-op", "."] * 8, []]
    encoded = task.encode({"text": tf.constant([" ".join(each) for each in words])})
    # A token for each word, between the begin and the end of each window.
    assert int(tf.reduce_sum(tf.cast(encoded["word"] >= 0, tf.int32))) == 40
    assert [[a["word"] for a in row] for row in task.predict(words)] == words
    task.fit(words, [["B-X", "O", "O", "O", "O"] * 8, []], verbose=0)
    task = bf.SpanQA(backbone, CharacterTokenizer(), max_length=16, stride=4)
    context = "It was John, of course. " * 9
    (answer,) = task.predict((["Who?"], [context]))
    assert answer["answer"] == context[answer["start"] : answer["end"]]


def test_a_tokenizer_of_pieces_is_refused(tiny):
    with pytest.raises(
        ValueError,
        match=r"WordPieceTokenizer makes one id of each token, the elmo backbone reads 50 ids",
    ):
        bf.TextClassifier(bf.build("elmo", "tiny"), load_tokenizer(tiny), ["no", "yes"])
    with pytest.raises(
        ValueError, match=r"CharacterTokenizer makes 50 ids .* bert backbone reads one"
    ):
        bf.TextClassifier(bf.load_backbone(tiny), CharacterTokenizer(), ["no", "yes"])


# AllenNLP's checkpoints ------------------------------------------------------------------------


@pytest.mark.extended
def test_published_names_and_a_tokenizer_of_the_model_s_width(copy):
    for name in ("options.json", "weights.hdf5"):
        (copy / name).rename(copy / f"elmo_2x4096_512_2048cnn_2xhighway_{name}")
    assert bf.load_backbone(copy).family == "elmo"
    _options(copy, "char_cnn", max_characters_per_token=20)
    task = bf.TextClassifier.from_pretrained(copy, labels=["no", "yes"], pair=False)
    assert task.tokenizer.token_shape == (20,)
    assert len(task.predict(TEXTS)) == 4


def _options(directory, part, **values):
    (file,) = directory.glob("*options.json")
    options = json.loads(file.read_text())
    options[part] = {k: v for k, v in {**options[part], **values}.items() if v is not ...}
    file.write_text(json.dumps(options))


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("lstm", {"dim": ...}, r"options\.json lacks lstm\.dim"),
        ("lstm", {"use_skip_connections": False}, "use_skip_connections must be true"),
        ("lstm", {"peepholes": True}, r"options that are not supported: lstm\.peepholes"),
        ("lstm", {"n_layers": 3}, "Missing tensors: RNN_0/RNN/MultiRNNCell/Cell2"),
        ("lstm", {"n_layers": 10**9}, "num_layers must be from 0 to 256"),
        ("lstm", {"n_layers": 250}, "num_layers = 250, but only"),
        ("lstm", {"dim": 2**30}, "Wrong shapes"),
        ("lstm", {"dim": -1}, "cell_size must be at least 1"),
        ("lstm", {"projection_dim": "6"}, "hidden_size must be of type int"),
        ("lstm", {"cell_clip": float("nan")}, "cell_clip must be from 0"),
        ("char_cnn", {"filters": 5}, "filters must be a list of pairs of numbers, got 5"),
        ("char_cnn", {"filters": [[1, "a"]]}, "filter_counts must be a list of int"),
        ("char_cnn", {"filters": [[1, 3], [2, 4], [40, 5]]}, "Wrong shapes"),
        ("char_cnn", {"filters": [[1, 1]] * 1000}, "num_filters = 1000, but only"),
        ("char_cnn", {"n_highway": 10**9}, "num_highways = 1000000000, but only"),
        ("char_cnn", {"max_characters_per_token": 10**9}, "max_characters must be from"),
        ("char_cnn", {"n_characters": 261}, r"char_embed \(262, 3\), expected \(261, 3\)"),
    ],
)
def test_options_that_are_refused(copy, part, values, message):
    _options(copy, part, **values)
    with pytest.raises(CheckpointError, match=message):
        bf.load_backbone(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h5: h5.__delitem__("CNN_proj/b_proj"), "Missing tensors: CNN_proj/b_proj"),
        (lambda h5: h5.__setitem__("more", np.ones(2, "f4")), "Unexpected tensors: more"),
        (lambda h5: h5["char_embed"].__setitem__((0, 0), np.nan), "char_embed contains NaN"),
        (lambda h5: h5.__setitem__("x", h5py.ExternalLink("/etc/passwd", "/x")), "ExternalLink"),
    ],
)
def test_weights_that_are_refused(copy, change, message):
    with h5py.File(copy / "weights.hdf5", "a") as h5:
        change(h5)
    with pytest.raises(CheckpointError, match=message):
        bf.load_backbone(copy)


def test_files_that_are_refused(copy):
    data = (copy / "weights.hdf5").read_bytes()
    (copy / "weights.hdf5").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"weights\.hdf5 cannot be read as HDF5"):
        bf.load_backbone(copy)
    shutil.copyfile(copy / "weights.hdf5", copy / "other_weights.hdf5")
    with pytest.raises(CheckpointError, match=r"Expected one \*weights\.hdf5 in .*, found other_"):
        bf.load_backbone(copy)
    with pytest.raises(CheckpointError, match="bert cannot read"):
        bf.load_backbone(DEFAULT, "bert")
    (copy / "options.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"options\.json"):
        load_tokenizer(copy)


def test_hugging_face_has_no_format_for_it(tmp_path):
    with pytest.raises(CheckpointError, match="Hugging Face has no elmo models"):
        bf.save_pretrained(bf.load_backbone(DEFAULT), tmp_path / "out")


@pytest.mark.extended
def test_a_keras_file_of_a_loaded_model(mixed, tmp_path):
    backbone = _with_mix("float32")
    backbone.save(tmp_path / "elmo.keras")
    again = keras.saving.load_model(tmp_path / "elmo.keras")
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_array_equal(again(_given(mixed))[name], backbone(_given(mixed))[name])

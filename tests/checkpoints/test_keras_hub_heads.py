"""KerasHub presets of models with a head: compared with the library; what is refused."""

import io
import json
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import sentencepiece

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.checkpoints import Checkpoint, CheckpointError, convert
from bertfam_tf.cli import main
from tests.checkpoints.test_keras_hub import SMALL, float64  # noqa: F401
from tests.parity import relative
from tests.selection import in_full

keras_hub = pytest.importorskip("keras_hub")

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a film good bad ##s it is . , é e".split()
TEXTS = ["a good film.", "it is bad, bad", "films", ""]
PAIRS = {"text": TEXTS, "text_pair": ["it is", "a film is a film is a film", "", "good"]}
_NARROW = {**SMALL, "embedding_dim": 8}
# Class of the model with a head, settings of it and of the backbone, and the head.
CASES = {
    "bert classifier": ("BertTextClassifier", dict(num_classes=3), SMALL, "sequence"),
    "bert masked": ("BertMaskedLM", {}, SMALL, "masked_lm"),
    "roberta classifier": ("RobertaTextClassifier", dict(num_classes=3), SMALL, "sequence"),
    "roberta masked": ("RobertaMaskedLM", {}, SMALL, "masked_lm"),
    "xlm_roberta classifier": ("XLMRobertaTextClassifier", dict(num_classes=2), SMALL, "sequence"),
    "xlm_roberta masked": ("XLMRobertaMaskedLM", {}, SMALL, "masked_lm"),
    "distilbert classifier": ("DistilBertTextClassifier", dict(num_classes=3), SMALL, "sequence"),
    "distilbert masked": ("DistilBertMaskedLM", {}, SMALL, "masked_lm"),
    "albert classifier": ("AlbertTextClassifier", dict(num_classes=3), _NARROW, "sequence"),
    "albert masked": ("AlbertMaskedLM", {}, _NARROW, "masked_lm"),
    "deberta classifier": (
        "DebertaV3TextClassifier",
        dict(num_classes=3, dropout=0.3),
        # Distances beyond the exact buckets, and beyond the last one.
        dict(SMALL, max_sequence_length=10, bucket_size=4),
        "sequence",
    ),
    "deberta masked": ("DebertaV3MaskedLM", {}, dict(SMALL, bucket_size=4), "masked_lm"),
    "gpt2 causal": ("GPT2CausalLM", {}, SMALL, "causal_lm"),
}
QUICK = ("bert masked",)


def _perturbed(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + rng.normal(0, 0.3, weight.shape))
    return model


def _backbone(name, settings, **kwargs):
    end = next(e for e in ("TextClassifier", "MaskedLM", "CausalLM") if name.endswith(e))
    kind = getattr(keras_hub.models, name.removesuffix(end) + "Backbone")
    return kind(**settings, **kwargs)


def _outputs(theirs, ours, head, given):
    """The logits of both at all tokens, (batch, length, …), or of each example."""
    inputs = dict(given)
    if head == "masked_lm":
        places = np.broadcast_to(np.arange(given["token_ids"].shape[1]), given["token_ids"].shape)
        inputs["mask_positions"] = places
    expected = theirs({name: inputs[name] for name in theirs.input})
    backbone, layer = ours
    if "segment_ids" not in theirs.input:
        given = {**given, "segment_ids": np.zeros_like(given["token_ids"])}
    names = [name for name in backbone.input if name in given]
    found = layer(backbone({name: given[name] for name in names}, outputs=layer.reads))
    real = given["padding_mask"][..., None] if head != "sequence" else 1
    return found.numpy() * real, keras.ops.convert_to_numpy(expected) * real


@pytest.mark.parametrize("case", in_full(CASES, QUICK))
def test_logits_are_those_of_the_library(tmp_path, float64, case):  # noqa: F811
    name, options, settings, head = CASES[case]
    backbone = _backbone(name, settings, dtype="float64")
    theirs = _perturbed(getattr(keras_hub.models, name)(backbone, preprocessor=None, **options))
    theirs.save_to_preset(str(tmp_path))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.heads() == ([head] if head != "causal_lm" else checkpoint.heads())
    ours = checkpoint.backbone()
    layer = heads.build(ours, head, options.get("num_classes"))
    checkpoint.fill_head(layer, head)
    rng = np.random.default_rng(1)
    mask = np.arange(11)[None] < np.array([11, 4, 7])[:, None]
    pad = getattr(ours.config, "pad_id", None) or 0
    tokens = np.where(mask, rng.integers(2, 48, mask.shape), pad)
    given = {
        "token_ids": tokens,
        "padding_mask": mask.astype("i4"),
        "segment_ids": rng.integers(0, 2, mask.shape) * mask,
    }
    difference = relative(*_outputs(theirs, (ours, layer), head, given))
    print(f"KerasHub {case}: largest relative difference {difference:.1e}")
    assert difference < 1e-6
    if "dropout" in options and head == "sequence":
        assert ours.config.pooler_dropout == options["dropout"]


def _tokenizer(**options):
    return keras_hub.models.BertTokenizer(vocabulary=PIECES, **options)


def _bert(**kwargs):
    return keras_hub.models.BertBackbone(**SMALL, **kwargs)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A preset with a tokenizer and a length, and the model that wrote it."""
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        _tokenizer(lowercase=True), sequence_length=9
    )
    theirs = keras_hub.models.BertTextClassifier(
        _bert(), num_classes=3, activation="softmax", preprocessor=preprocessor
    )
    _perturbed(theirs)
    directory = tmp_path_factory.mktemp("presets") / "classifier"
    theirs.save_to_preset(str(directory))
    return directory, theirs


@pytest.fixture
def copy(classifier, tmp_path):
    return Path(shutil.copytree(classifier[0], tmp_path / "preset"))


@pytest.mark.extended
def test_texts_get_the_same_probabilities(classifier):
    directory, theirs = classifier
    ours = bf.TextClassifier.from_pretrained(directory)
    assert ours.max_length == 9
    assert ours.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    texts = [*TEXTS, "A GOOD film " * 9, "é is e"]
    found = np.stack([answer["scores"] for answer in ours.predict(texts)])
    np.testing.assert_allclose(found, theirs.predict(np.array(texts)), atol=1e-5)


@pytest.mark.full
def test_pairs_get_the_same_probabilities(classifier):
    directory, theirs = classifier
    pairs = bf.TextClassifier.from_pretrained(directory)
    found = np.stack([answer["scores"] for answer in pairs.predict(PAIRS)])
    expected = theirs.predict(tuple(np.array(each) for each in PAIRS.values()))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _byte_pieces(special):
    """A vocabulary of byte-level BPE: special tokens, all bytes, and two merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    characters = [*map(chr, printable), *(chr(256 + i) for i in range(len(others)))]
    pieces = [*special, *characters, "\u0120g", "oo"]
    return {piece: i for i, piece in enumerate(pieces)}, ["\u0120 g", "o o"]


def _sentencepiece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS[:3], "a film, a cast"] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


_BERT_PIECES = dict(
    pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece="<pad>", bos_piece="[CLS]", eos_piece="[SEP]",
    user_defined_symbols="[MASK]",
)  # fmt: skip
_DEBERTA_PIECES = dict(
    pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
    unk_piece="[UNK]",
)  # fmt: skip
# The family's classes, its tokenizer, and settings of its backbone.
TOKENIZERS = {
    "Roberta": (lambda kind: kind(*_byte_pieces(["<s>", "<pad>", "</s>", "<mask>"])), {}),
    "XLMRoberta": (lambda kind: kind(_sentencepiece(unk_id=0, bos_id=1, eos_id=2)), {}),
    "Albert": (lambda kind: kind(_sentencepiece(**_BERT_PIECES)), dict(embedding_dim=8)),
    "DebertaV3": (lambda kind: kind(_sentencepiece(**_DEBERTA_PIECES)), dict(bucket_size=4)),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_texts_of_other_tokenizers(tmp_path, kind):
    make, settings = TOKENIZERS[kind]
    of = lambda name: getattr(keras_hub.models, kind + name)  # noqa: E731
    tokenizer = make(of("Tokenizer"))
    sizes = {**SMALL, "vocabulary_size": tokenizer.vocabulary_size() + 1, "max_sequence_length": 24}
    preprocessor = of("TextClassifierPreprocessor")(tokenizer, sequence_length=24)
    theirs = of("TextClassifier")(
        of("Backbone")(**sizes, **settings),
        num_classes=2,
        activation="softmax",
        preprocessor=preprocessor,
    )
    _perturbed(theirs).save_to_preset(str(tmp_path))
    ours = bf.TextClassifier.from_pretrained(tmp_path)
    assert ours.max_length == 24
    texts = ["a good film", "it is bad", "A Film, 9,9", "a good film is good " * 4]
    for text in texts:
        found = ours.tokenizer.tokenize(text).numpy().tolist()
        assert found == np.array(tokenizer(text)).tolist()
    found = np.stack([answer["scores"] for answer in ours.predict(texts)])
    np.testing.assert_allclose(found, theirs.predict(np.array(texts)), atol=1e-5)


@pytest.mark.full
def test_language_models_score_and_continue_as_theirs(tmp_path):
    tokenizer = keras_hub.models.GPT2Tokenizer(*_byte_pieces(["<|endoftext|>"]))
    sizes = {**SMALL, "vocabulary_size": tokenizer.vocabulary_size(), "max_sequence_length": 24}
    backbone = keras_hub.models.GPT2Backbone(**sizes)
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=24)
    theirs = _perturbed(keras_hub.models.GPT2CausalLM(backbone, preprocessor=preprocessor))
    theirs.save_to_preset(str(tmp_path))
    ours = bf.CausalLM.from_pretrained(tmp_path)
    assert ours.max_length == 24
    text = "a good film"
    ids = np.array(tokenizer(text))[None]
    logits = theirs({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    chosen = -keras.ops.sparse_categorical_crossentropy(
        ids[:, 1:], logits[:, :-1], from_logits=True
    )
    [answer] = ours.predict([text])
    assert answer["tokens"] == ids.shape[1] - 1
    expected = float(keras.ops.sum(chosen))
    assert answer["log_likelihood"] == pytest.approx(expected, rel=1e-5)


def test_special_tokens_of_ones_own_are_refused(tmp_path):
    tokenizer = keras_hub.models.GPT2Tokenizer(*_byte_pieces(["<|endoftext|>"]))
    tokenizer.save_to_preset(str(tmp_path))
    _json("tokenizer.json", unsplittable_tokens=["<|endoftext|>", "<x>"])(tmp_path)
    with pytest.raises(CheckpointError, match=r"unsplittable_tokens = .*'<x>'.*expected some of"):
        bf.load_tokenizer(tmp_path)


@pytest.mark.full
def test_labels_name_the_outputs_in_order(classifier):
    directory, theirs = classifier
    named = bf.TextClassifier.from_pretrained(directory, ["a", "b", "c"], max_length=5)
    assert named.labels == ["a", "b", "c"]
    assert named.max_length == 5
    texts = ["good", "bad"]
    found = np.stack([answer["scores"] for answer in named.predict(texts)])
    np.testing.assert_allclose(found, theirs.predict(np.array(texts)), atol=1e-5)


def test_tokenizers_of_presets_load(classifier):
    tokenizer = bf.load_tokenizer(classifier[0])
    assert tokenizer.tokenize("A film").numpy().tolist() == [5, 6]
    assert not tokenizer.get_config()["strip_accents"]


@pytest.mark.full
def test_embedders_pool_as_stored(tmp_path):
    preprocessor = keras_hub.models.BertTextEmbedderPreprocessor(_tokenizer(), sequence_length=9)
    for mode, normalize in (("max", False), ("cls", True)):
        theirs = keras_hub.models.BertTextEmbedder(
            _bert(), preprocessor=preprocessor, pooling_mode=mode, normalize=normalize
        )
        _perturbed(theirs).save_to_preset(str(tmp_path / mode))
        ours = bf.TextEmbedder.from_pretrained(tmp_path / mode)
        found, expected = ours.predict(TEXTS), theirs.predict(np.array(TEXTS))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    other = bf.TextEmbedder.from_pretrained(tmp_path / "cls", pooling="mean", normalize=False)
    assert (other.pooling, other.normalize) == ("mean", False)


@pytest.mark.full
def test_sigmoid_outputs_are_for_several_labels(tmp_path):
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(_tokenizer(), sequence_length=9)
    theirs = keras_hub.models.BertTextClassifier(
        _bert(), num_classes=3, activation="sigmoid", preprocessor=preprocessor
    )
    _perturbed(theirs).save_to_preset(str(tmp_path))
    ours = bf.MultiLabelClassifier.from_pretrained(tmp_path)
    found = np.stack([answer["scores"] for answer in ours.predict(TEXTS)])
    np.testing.assert_allclose(found, theirs.predict(np.array(TEXTS)), atol=1e-5)
    error = "is one for multi_label_classification, expected one for single_label.* TextClassifier"
    with pytest.raises(CheckpointError, match=error):
        bf.TextClassifier.from_pretrained(tmp_path)


@pytest.mark.full
def test_conversions_keep_the_head(classifier, tmp_path):
    convert(classifier[0], tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert said["architectures"] == ["BertForSequenceClassification"]
    ours = bf.TextClassifier.from_pretrained(tmp_path / "out")
    assert ours.max_length == 9
    found = np.stack([answer["scores"] for answer in ours.predict(TEXTS)])
    expected = classifier[1].predict(np.array(TEXTS))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_heads_that_hugging_face_lacks_are_not_converted(tmp_path):
    keras_hub.models.BertMaskedLM(_bert(), preprocessor=None).save_to_preset(str(tmp_path / "in"))
    error = "cannot represent lm_activation = 'gelu', lm_norm_epsilon = 1e-05"
    with pytest.raises(CheckpointError, match=error):
        convert(tmp_path / "in", tmp_path / "out")


def test_options_of_embedders_are_not_converted(tmp_path):
    theirs = keras_hub.models.BertTextEmbedder(_bert(), preprocessor=None, pooling_mode="max")
    theirs.save_to_preset(str(tmp_path / "in"))
    with pytest.raises(CheckpointError, match=r"pooling = 'max', .*which Hugging Face's format"):
        convert(tmp_path / "in", tmp_path / "out")


@pytest.mark.extended
def test_the_command_converts_embedders(tmp_path, capsys):
    preprocessor = keras_hub.models.BertTextEmbedderPreprocessor(_tokenizer(), sequence_length=9)
    theirs = keras_hub.models.BertTextEmbedder(
        _bert(), preprocessor=preprocessor, pooling_mode="max", normalize=False
    )
    theirs.save_to_preset(str(tmp_path / "in"))
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    ours = bf.TextEmbedder.from_pretrained(tmp_path / "out")
    assert (ours.pooling, ours.normalize, ours.max_length) == ("max", False, 9)
    expected = bf.TextEmbedder.from_pretrained(tmp_path / "in").backbone.get_weights()
    for found, weight in zip(ours.backbone.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, weight)


def test_other_tasks_start_with_a_random_head(classifier):
    with pytest.warns(UserWarning, match="The masked_lm head is initialized at random"):
        bf.MaskedLM.from_pretrained(classifier[0])


def _json(name, **values):
    def change(directory):
        said = json.loads((directory / name).read_text())
        said["config"] |= values
        (directory / name).write_text(json.dumps(said))

    return change


def _entry(**values):
    def change(directory):
        said = json.loads((directory / "task.json").read_text())
        (directory / "task.json").write_text(json.dumps(said | values))

    return change


def _tensor(name, value):
    def change(directory):
        with h5py.File(directory / "task.weights.h5", "a") as opened:
            if name in opened:
                del opened[name]
            if value is not None:
                opened[name] = value

    return change


def _linked(directory):
    with h5py.File(directory / "task.weights.h5", "a") as opened:
        del opened["layers/dense/vars/0"]
        opened["layers/dense/vars/0"] = h5py.ExternalLink("model.weights.h5", "layers/dense/vars/0")


def _cut(directory):
    file = directory / "task.weights.h5"
    file.write_bytes(file.read_bytes()[:900])


KERNEL = "layers/dense/vars/0"
REFUSED = {
    "another activation": (_json("task.json", activation="relu"), "activation = 'relu', expected"),
    "an activation of one's own": (
        _json("task.json", activation={"class_name": "function"}),
        "activation = {'class_name'.*expected linear, softmax, sigmoid",
    ),
    "unknown option": (_json("task.json", pool="max"), "the option 'pool', which is not known"),
    "another class": (
        _entry(registered_name="mine>BertTagger"),
        "task.json is for KerasHub's 'BertTagger'. Known: BertClassifier, BertMaskedLM",
    ),
    "class of another family": (
        _entry(registered_name="keras_hub>AlbertTextClassifier"),
        "is for KerasHub's 'AlbertTextClassifier'. Known: Bert",
    ),
    "no config": (_entry(config=None), "task.json has no 'config'"),
    "not JSON": (lambda d: (d / "task.json").write_text("{"), "task.json is not JSON"),
    "no weights": (lambda d: (d / "task.weights.h5").unlink(), "but no task.weights.h5"),
    "no description": (lambda d: (d / "task.json").unlink(), "but task.json, which describes"),
    "cut": (_cut, "task.weights.h5 cannot be read as HDF5"),
    "in another file": (_linked, "is a ExternalLink, possibly to another file"),
    "classes": (_json("task.json", num_classes=4), r"num_classes = 4, but .* shape \(16, 3\)"),
    "missing": (_tensor("layers/dense/vars/1", None), "Missing tensors: task/layers/dense_0/vars"),
    "left over": (_tensor("layers/dense_1/vars/0", [1.0]), "Unexpected .*layers/dense_1/vars/0"),
    "shape": (_tensor(KERNEL, np.ones((8, 3))), r"dense/vars/0 \(8, 3\), expected \(16, 3\)"),
    "NaN": (_tensor(KERNEL, np.full((16, 3), np.nan)), f"{KERNEL} contains NaN"),
    "length": (
        _json("preprocessor.json", sequence_length=0),
        "sequence_length must be a positive integer, got 0",
    ),
    "tokens of other words": (
        _json("tokenizer.json", suffix_indicator="@@"),
        "suffix_indicator = '@@', which is not supported; supported: '##'",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_is_refused(copy, change):
    alter, error = REFUSED[change]
    alter(copy)
    with pytest.raises(CheckpointError, match=f"(?s){error}"):
        bf.TextClassifier.from_pretrained(copy)


@pytest.mark.extended
def test_the_backbone_of_an_unknown_head_loads(copy, classifier):
    _entry(registered_name="mine>BertTagger")(copy)
    expected = bf.load_backbone(classifier[0])
    for ours, theirs in zip(bf.load_backbone(copy).weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)
    with pytest.raises(CheckpointError, match="BertTagger"):
        convert(copy, copy / "out")


def test_an_inner_layer_of_another_width_is_refused(tmp_path):
    backbone = keras_hub.models.RobertaBackbone(**SMALL)
    theirs = keras_hub.models.RobertaTextClassifier(
        backbone, num_classes=2, hidden_dim=8, preprocessor=None
    )
    theirs.save_to_preset(str(tmp_path))
    with pytest.raises(CheckpointError, match="hidden_dim = 8, expected 16; this sequence head"):
        Checkpoint(tmp_path).head_labels("sequence")


def test_embedders_of_unknown_kinds_are_refused(tmp_path):
    theirs = keras_hub.models.BertTextEmbedder(_bert(), preprocessor=None)
    theirs.save_to_preset(str(tmp_path))
    _json("task.json", pooling_mode="attention")(tmp_path)
    with pytest.raises(CheckpointError, match="'attention', expected one of 'mean', 'cls', 'max'"):
        Checkpoint(tmp_path)

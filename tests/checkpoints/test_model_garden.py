"""TF Model Garden's live encoders: loaded here, and made here."""

import sys

import keras
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.training.tuning import add_lora
from tests.parity import relative
from tests.selection import in_full

SMALL = dict(
    vocab_size=48,
    hidden_size=16,
    num_layers=2,
    num_attention_heads=4,
    type_vocab_size=2,
    max_sequence_length=12,
)
# The class, the settings, and our activation.
CASES = {
    "BERT": ("BertEncoder", dict(inner_dim=24, dict_outputs=True), "gelu_new"),
    "BERT v2": ("BertEncoderV2", dict(inner_dim=24, inner_activation="relu"), "relu"),
    "BERT v2, exact": ("BertEncoderV2", dict(inner_dim=24, inner_activation="gelu"), "gelu"),
    "ALBERT": (
        "AlbertEncoder",
        dict(embedding_width=8, intermediate_size=24, dict_outputs=True),
        "gelu_new",
    ),
}


@pytest.fixture(scope="module")
def networks():
    return pytest.importorskip("official.nlp.modeling.networks", exc_type=ImportError)


def perturbed(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        value = np.asarray(keras.ops.convert_to_numpy(weight))
        weight.assign(value + rng.normal(0, 0.3, value.shape))
    return model


def outputs(theirs, ours):
    """The outputs of both for texts of different lengths, without padding."""
    rng = np.random.default_rng(1)
    mask = (np.arange(11)[None] < np.array([11, 4, 7])[:, None]).astype("i4")
    ids, segments = (rng.integers(low, high, mask.shape) * mask for low, high in ((2, 48), (0, 2)))
    found = theirs({"input_word_ids": ids, "input_mask": mask, "input_type_ids": segments})
    here = ours({"token_ids": ids, "padding_mask": mask, "segment_ids": segments})
    names = ("sequence_output", "pooled_output")
    factors = (mask[..., None], 1)
    return [
        [np.asarray(each[name]) * factor for name, factor in zip(names, factors, strict=True)]
        for each in (found, here)
    ]


@pytest.mark.parametrize("case", in_full(CASES, ["BERT v2"]))
def test_an_encoder_both_ways(networks, case):
    """Weights come back bit-equal, and outputs differ by rounding, on perturbed weights."""
    name, settings, activation = CASES[case]
    theirs = getattr(networks, name)(**SMALL, **settings)
    bf.load_backbone(theirs)  # makes the weights of a layer
    ours = bf.load_backbone(perturbed(theirs))
    assert ours.config.activation == activation
    expected, found = outputs(theirs, ours)
    back = bf.to_model_garden(ours)
    again, _ = outputs(back, ours)
    for a, b, c in zip(expected, found, again, strict=True):
        print(f"{case}: largest relative difference {relative(b, a):.1e}")
        assert relative(b, a) < 3e-6  # float32
        assert relative(c, a) < 3e-6
    # Layers are listed in another order by BertEncoder than by BertEncoderV2.
    weights = [{w.numpy().tobytes() for w in each.weights} for each in (theirs, back)]
    assert weights[0] == weights[1]


def test_updates_of_lora_are_in_the_weights(networks):
    ours = bf.load_backbone(networks.BertEncoderV2(**SMALL, inner_dim=24))
    add_lora(ours, 2)
    perturbed(ours)
    for a, b in zip(*outputs(bf.to_model_garden(ours), ours), strict=True):
        assert relative(a, b) < 3e-6


def test_an_encoder_that_was_not_called(networks):
    ours = bf.load_backbone(networks.BertEncoderV2(**SMALL, inner_dim=24))
    assert ours.config.num_layers == 2


def test_models_that_are_refused(networks):
    with pytest.raises(CheckpointError, match="norm_first = True"):
        bf.load_backbone(networks.BertEncoderV2(**SMALL, norm_first=True))
    with pytest.raises(CheckpointError, match=r"FNet.*model\.checkpoint_items"):
        bf.load_backbone(networks.FNet(**SMALL))
    with pytest.raises(CheckpointError, match="no encoder for the family xlnet"):
        bf.to_model_garden(bf.build("xlnet", "tiny"))
    with pytest.raises(CheckpointError, match="cannot have pooler = False"):
        bf.to_model_garden(bf.build("bert", "tiny", pooler=False))


def test_without_model_garden(monkeypatch):
    for name in ("official", "official.modeling", "official.nlp.modeling"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"need pip install 'bertfam_tf\[garden\]'"):
        bf.to_model_garden(bf.build("bert", "tiny"))

"""A family in one file: gated convolutions, without attention and unknown to Hugging Face."""

from dataclasses import dataclass
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import layers, registry
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.models import encoder, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer
from bertfam_tf.training import tuning
from tests import test_families


@dataclass(frozen=True)
class ConvolutionConfig(Config):
    """Differs from BERT: each layer reads ``kernel_size`` tokens through a gated convolution."""

    vocab_size: int = 30522
    hidden_size: int = 256
    kernel_size: int = 5
    num_layers: int = 2
    dropout: float = 0.1
    initializer_range: float = 0.02
    classifier_dropout: float | None = None


def _layer(config: ConvolutionConfig, **kwargs: object) -> keras.layers.Layer:
    return keras.layers.Conv1D(2 * config.hidden_size, config.kernel_size, padding="same", **kwargs)


def wire(config: ConvolutionConfig, parts: Parts) -> tuple[dict, dict]:
    """Token embeddings; gated convolutions with residual sums, over zeros at padding."""
    inputs = encoder.inputs(config)
    x = parts("token_embedding", encoder.table, config, config.vocab_size)(inputs["token_ids"])
    hidden_states = [layers.zero_padding(x, inputs["padding_mask"])]
    for i in range(config.num_layers):
        x = parts(f"layer_{i}", _layer, config)(hidden_states[-1])
        value, gate = keras.ops.split(x, 2, axis=-1)  # (batch, length, hidden)
        x = hidden_states[-1] + value * keras.ops.sigmoid(gate)
        hidden_states.append(layers.zero_padding(x, inputs["padding_mask"]))
    return inputs, {"sequence_output": hidden_states[-1], "hidden_states": hidden_states}


FAMILY = registry.Family(
    name="convolution",
    config=ConvolutionConfig,
    wire=wire,
    sizes={"tiny": dict(hidden_size=16), "base": {}},
    tokenizer=registry.TokenizerSpec("wordpiece", "ConvolutionTokenizer"),
    heads={"sequence": heads.first_token("tanh"), "tokens": heads.tokens()},
    objectives=("distillation",),
)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film", "one"]
TEXTS = ["a fine film", "a dull film", "fine", "dull one"] * 4
LABELS = ["yes", "no"] * 8


@pytest.fixture(autouse=True)
def registered():
    with mock.patch.dict(registry._FAMILIES):
        registry.register(FAMILY)
        yield


@pytest.fixture
def task(tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n")
    backbone = bf.build("convolution", "tiny", vocab_size=len(PIECES), num_layers=1)
    return bf.TextClassifier(backbone, WordPieceTokenizer(file), ["no", "yes"])


@pytest.mark.full
def test_it_is_built_trained_saved_and_loaded(task, tmp_path):
    assert "convolution" in bf.families()
    task.compile(keras.optimizers.Adam(0.02))
    history = task.fit(TEXTS, LABELS, epochs=12, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    answers = task.predict(TEXTS)
    assert [answer["label"] for answer in answers] == LABELS
    task.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    assert again.backbone.family == "convolution"
    for ours, theirs in zip(again.predict(TEXTS), answers, strict=True):
        np.testing.assert_array_equal(ours["scores"], theirs["scores"])


@pytest.mark.full
def test_it_is_exported(task, tmp_path):
    path = bf.export_saved_model(task, tmp_path / "served")
    exported = tf.saved_model.load(str(path)).signatures["serving_default"]
    scores = exported(text=tf.constant(TEXTS))["scores"]
    expected = [answer["scores"] for answer in task.predict(TEXTS)]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_its_blocks_are_its_layers(task):
    factors = tuning.layer_factors(task.backbone, 0.5)
    depths = {path.split("/")[0]: factor for path, factor in factors.items()}
    assert depths == {"token_embedding": 0.25, "layer_0": 0.5}
    tuning.freeze(task.backbone, blocks=1)
    assert not task.backbone.trainable_weights


def test_hugging_face_has_no_format_for_it(task, tmp_path):
    with pytest.raises(CheckpointError, match="Hugging Face has no convolution models"):
        bf.save_pretrained(task.backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "check",
    [
        test_families.test_every_family_has_a_tiny_size_and_describes_its_differences,
        test_families.test_padding_changes_nothing,
        test_families.test_examples_do_not_attend_to_each_other,
        test_families.test_an_example_of_only_padding_is_finite,
        test_families.test_a_gradient_in_every_weight,
        test_families.test_input_longer_than_max_positions,
    ],
    ids=lambda check: check.__name__,
)
def test_what_holds_for_every_family(check):
    check("convolution")


@pytest.mark.parametrize("length", [1, 12])
def test_shapes_of_the_outputs_that_it_has(length):
    test_families.test_output_shapes("convolution", length)


def test_keras_file(tmp_path):
    test_families.test_keras_file_round_trip("convolution", tmp_path)

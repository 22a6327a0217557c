"""``keras.Model.export`` of backbones."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf

SIZES = dict(num_layers=1, hidden_size=16, num_heads=2, vocab_size=40)
IDS = np.array([[1, 5, 6, 2], [1, 7, 2, 0]], "int32")


@pytest.fixture(scope="module")
def backbone():
    return bf.build("bert", "small", intermediate_size=32, max_positions=16, **SIZES)


@pytest.fixture
def inputs():
    return {"token_ids": IDS, "padding_mask": np.sign(IDS), "segment_ids": np.zeros_like(IDS)}


@pytest.mark.extended
def test_savedmodel(backbone, inputs, tmp_path):
    backbone.export(tmp_path / "model", verbose=False)
    exported = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    outputs = exported(**{name: tf.constant(x) for name, x in inputs.items()})
    expected = backbone(inputs)
    for name in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-6)
    for i, states in enumerate(expected["hidden_states"]):
        np.testing.assert_allclose(outputs[f"hidden_states_{i}"], states, atol=1e-6)


@pytest.mark.extended
def test_litert(backbone, inputs, tmp_path):
    file = str(tmp_path / "model.tflite")
    backbone.export(file, format="litert", verbose=False)
    run = tf.lite.Interpreter(file).get_signature_runner()
    found = run(**inputs)
    expected = backbone(inputs)
    assert {"hidden_states_0", "hidden_states_1"} <= found.keys()
    np.testing.assert_allclose(found["pooled_output"], expected["pooled_output"], atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("family", ["gpt2", "xlnet"])
def test_families_with_optional_inputs(family, tmp_path):
    backbone = bf.build(family, "tiny", vocab_size=40)
    backbone.export(tmp_path / "model", verbose=False)
    exported = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    given = {"token_ids": IDS, "padding_mask": np.sign(IDS)}
    filled = backbone.complete(given)
    names = exported.structured_input_signature[1]
    outputs = exported(**{name: tf.constant(filled[name]) for name in names})
    expected = backbone(given)["sequence_output"]
    np.testing.assert_allclose(outputs["sequence_output"], expected, atol=1e-5)

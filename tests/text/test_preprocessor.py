"""Raw text into models of one's own: the layer, and exports of the models."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.export.runtime import load

TEXTS = ["a fine film", "it was dull"]


@pytest.fixture(scope="module")
def backbone(smallest):
    return bf.load_backbone(smallest)


@pytest.fixture(scope="module")
def preprocessor(smallest):
    return bf.TextPreprocessor(smallest, 24)


@pytest.fixture(scope="module")
def priced(backbone, preprocessor):
    """A model of a text and two numbers."""
    inputs = {
        "text": keras.Input((), dtype="string", name="text"),
        "price": keras.Input((2,), name="price"),
    }
    pooled = backbone(preprocessor(inputs["text"]))["pooled_output"]
    features = keras.layers.Concatenate()([pooled, inputs["price"]])
    return keras.Model(inputs, {"scores": keras.layers.Dense(3, activation="softmax")(features)})


@pytest.fixture(scope="module")
def sequence(backbone, preprocessor):
    head = heads.build(backbone, "sequence", 3)
    return keras.Sequential([keras.Input((), dtype="string"), preprocessor, backbone, head])


@pytest.mark.extended
def test_packs_as_a_task_does(smallest, preprocessor):
    task = bf.TextClassifier.from_pretrained(smallest)
    pairs = {"text": tf.constant(TEXTS), "text_pair": tf.constant(["yes", "no"])}
    for features in (pairs, {"text": pairs["text"]}):
        expected = task.preprocess(features)
        listed = tuple(features.values())
        forms = [features, listed, [tf.expand_dims(x, 1) for x in listed]]
        for texts in forms if len(listed) == 2 else [*forms, listed[0], TEXTS]:
            for name, x in preprocessor(texts).items():
                np.testing.assert_array_equal(x, expected[name])


def test_the_default_length(smallest):
    found = bf.TextPreprocessor(smallest)(["a " * 600, "a"])
    assert found["token_ids"].shape == (2, 512)
    assert found["padding_mask"].numpy().sum(1).tolist() == [512, 3]


def test_symbolic_shapes(smallest, preprocessor):
    texts = keras.Input((), dtype="string")
    assert preprocessor(texts)["token_ids"].shape == (None, None)
    padded = bf.TextPreprocessor(preprocessor.tokenizer, 16, padding="max_length")
    assert padded(texts)["padding_mask"].shape == (None, 16)
    assert padded(TEXTS)["segment_ids"].shape == (2, 16)
    with pytest.raises(ValueError, match=r"dtype must be 'string'.*got 'mixed_bfloat16'"):
        bf.TextPreprocessor(smallest, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="'text' and optionally 'text_pair', got"):
        preprocessor({"txt": texts})


@pytest.mark.extended
def test_trains_and_is_saved_in_a_sequential_model(sequence, tmp_path):
    model = keras.models.clone_model(sequence)
    model.set_weights(sequence.get_weights())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    texts = np.array(TEXTS, object)
    history = model.fit(texts, np.array([0, 1]), epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(texts), model.predict(texts))


@pytest.mark.extended
def test_models_of_text_need_no_input_and_print_nothing(preprocessor, backbone, capfd):
    """TensorFlow warned about softmax of an unknown rank, and the added input was of floats."""
    model = keras.Sequential([preprocessor, backbone])
    outputs = model.predict(np.array(TEXTS, object), verbose=0)["pooled_output"]
    expected = backbone(preprocessor(tf.constant(TEXTS)))["pooled_output"]
    np.testing.assert_allclose(outputs, expected, atol=5e-6)
    assert not capfd.readouterr().err


@pytest.mark.extended
def test_exports_a_functional_model(priced, tmp_path):
    directory = bf.export(priced, tmp_path / "priced", metrics={"accuracy": 0.5})
    assert directory == tmp_path / "priced" / "1"
    servable = load(directory)
    inputs = {"text": np.array([x.encode() for x in TEXTS], object)}
    inputs["price"] = np.array([[1, 2], [3, 4]], "float32")
    answers = servable.run("serving_default", inputs)
    given = {"text": tf.constant(TEXTS), "price": tf.constant(inputs["price"])}
    expected = priced(given)["scores"]
    np.testing.assert_allclose(answers["scores"], expected, atol=1e-6)
    card = json.loads((directory / "assets.extra" / "bertfam.json").read_text())
    assert card["signatures"]["serving_default"]["inputs"]["text"]["shape"] == [-1]
    assert (directory / "assets" / "vocab.txt").is_file()


@pytest.mark.extended
def test_exports_a_sequential_model(sequence, tmp_path):
    servable = load(bf.export(sequence, tmp_path / "model", dtype="bfloat16"))
    inputs = {"text": np.array([x.encode() for x in TEXTS], object)}
    answers = servable.run("serving_default", inputs)
    np.testing.assert_allclose(answers["output_0"], sequence(tf.constant(TEXTS)), atol=0.05)


def test_models_that_are_not_exported(backbone, preprocessor, smallest, tmp_path):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    pooled = backbone({"token_ids": ids, "padding_mask": ids})["pooled_output"]
    text, other = (keras.Input((), dtype="string") for _ in range(2))
    long = bf.TextPreprocessor(preprocessor.tokenizer, 32)
    wrong = {
        "expected one, got 0": keras.Model(ids, pooled),
        "exceeds the 24 positions": keras.Model(text, backbone(long(text))["pooled_output"]),
        "Inputs of an export need names": keras.Model(
            [text, other], backbone(preprocessor([text, other]))["pooled_output"]
        ),
        "the batch as their first dimension": keras.Model(
            text, keras.ops.sum(backbone(preprocessor(text))["pooled_output"])
        ),
    }
    for message, model in wrong.items():
        with pytest.raises(ValueError, match=message):
            bf.export(model, tmp_path / "model")
    with pytest.raises(TypeError, match="attention"):
        bf.export(
            keras.Model(text, backbone(preprocessor(text))["pooled_output"]),
            tmp_path / "m",
            attention=8,
        )
    assert not list(tmp_path.iterdir())

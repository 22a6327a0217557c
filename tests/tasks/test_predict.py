"""Answers: what they are, that a batch does not change them, and that every text gets one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from tests.selection import in_full, only_in

TEXTS = ["The film was very good!", "a dull, unhappy story.", "", "acting was not great?", "it"]
HOSTILE = {
    "empty": "",
    "white space": " \t\n\u3000",
    "broken bytes": b"\xff good \xc3",
    "lone surrogate": "good \ud800",
    "trailing NUL": "good\0",
    "only NUL": "\0",
    "a megabyte": "good film " * 100_000,
    "a megabyte without a space": "x" * 1_000_000,
    "special tokens": "[SEP] [MASK] [CLS] good [PAD]",
    "other scripts": "日本語 العربية 🙂",
}
slices = tf.data.Dataset.from_tensor_slices


def _answer(task, texts):
    """What the task answers without Keras' loop around it."""
    return {k: v.numpy() for k, v in task.answer({"text": tf.constant(texts)}).items()}


def test_rows(reader):
    answers = reader.predict(TEXTS)
    assert len(answers) == len(TEXTS)
    for answer in answers:
        assert answer.keys() == {"label", "scores"}
        assert type(answer["label"]) is str
        assert answer["scores"].dtype == np.float32
        assert answer["scores"].shape == (3,)
        assert answer["scores"].sum() == pytest.approx(1)
        assert answer["label"] == reader.labels[answer["scores"].argmax()]


@pytest.mark.extended
def test_embeddings(embedder):
    found = embedder.predict(TEXTS)
    assert found.dtype == np.float32
    assert found.shape == (5, 32)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert np.linalg.norm(found[0] - found[1]) > 1e-2


@only_in("extended", "2")
@pytest.mark.parametrize("batch_size", in_full([1, 2], [2]))
def test_the_batch_does_not_change_answers(reader, embedder, batch_size):
    alone = np.concatenate([_answer(reader, [text])["scores"] for text in TEXTS])
    found = np.stack([a["scores"] for a in reader.predict(TEXTS, batch_size=batch_size)])
    np.testing.assert_allclose(found, alone, atol=2e-6)
    alone = np.concatenate([_answer(embedder, [text])["embedding"] for text in TEXTS])
    np.testing.assert_allclose(embedder.predict(TEXTS, batch_size=batch_size), alone, atol=2e-6)


def test_predict_is_the_model_on_packed_ids(reader):
    pieces = [reader.tokenizer.tokenize(text).numpy().tolist() for text in TEXTS]
    rows = [[2, *p, 3] for p in pieces]
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], "int32")
    inputs = {
        "token_ids": ids,
        "padding_mask": np.array([[1] * len(r) + [0] * (width - len(r)) for r in rows], "int32"),
        "segment_ids": np.zeros_like(ids),
    }
    assert (ids == 0).any()
    logits = reader(inputs, training=False)
    expected = tf.nn.softmax(logits).numpy()
    np.testing.assert_allclose([a["scores"] for a in reader.predict(TEXTS)], expected, atol=1e-6)


@pytest.mark.extended
def test_first_token_pooling_reads_the_first_token(embedder):
    backbone = embedder.backbone
    first = bf.TextEmbedder(backbone, embedder.tokenizer, pooling="first", normalize=False)
    hidden = backbone(first.preprocess({"text": tf.constant(TEXTS)}))["sequence_output"]
    np.testing.assert_allclose(first.predict(TEXTS), hidden[:, 0], atol=1e-5)
    with pytest.raises(ValueError, match=r"pooling must be some of 'mean', .*, got 'min'"):
        bf.TextEmbedder(backbone, embedder.tokenizer, pooling="min")


@pytest.mark.extended
def test_every_text_gets_an_answer(reader, embedder):
    texts = list(HOSTILE.values())
    scores = np.stack([answer["scores"] for answer in reader.predict(texts, batch_size=3)])
    embeddings = embedder.predict(texts, batch_size=3)
    for i, text in enumerate(texts):
        text = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        alone = _answer(reader, [text])["scores"]
        assert np.isfinite(alone).all()
        np.testing.assert_allclose(scores[i : i + 1], alone, atol=2e-6, err_msg=repr(text[:20]))
        alone = _answer(embedder, [text])["embedding"]
        np.testing.assert_allclose(embeddings[i : i + 1], alone, atol=2e-6)


def test_long_texts_are_cut(smallest):
    task = bf.TextClassifier.from_pretrained(smallest, max_length=8)
    cut, long = _answer(task, ["a good film is a good", "a good film is a good film not bad"])[
        "scores"
    ]
    np.testing.assert_array_equal(cut, long)


@only_in("extended", "5", "6")
@pytest.mark.parametrize(
    "x",
    [
        tuple(TEXTS),
        np.array(TEXTS),
        {"text": TEXTS},
        slices(TEXTS),
        slices(TEXTS).batch(2),
        slices((TEXTS, [0] * 5)),
        slices({"text": TEXTS, "label": TEXTS}),
        slices(TEXTS).filter(lambda _: True),
    ],
    ids=range(8),
)
def test_shapes(reader, x):
    found = np.stack([answer["scores"] for answer in reader.predict(x)])
    np.testing.assert_allclose(found, _answer(reader, TEXTS)["scores"], atol=2e-6)


def test_a_batch_without_rows_among_others(reader):
    dataset = slices(TEXTS).batch(5).concatenate(slices(TEXTS).take(0).batch(1))
    dataset = dataset.concatenate(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)))
    assert len(reader.predict(dataset)) == 5
    assert reader.predict(tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))) == []


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (slices(TEXTS).take(0), "There is no text"),
        (slices(TEXTS).filter(lambda _: False), "There is no text"),
        ([1, 2], "Example 0 of 'text' must be a string, got 1"),
        (slices([1, 2]), "'text' of a data set must be strings, got int32"),
        ((TEXTS, TEXTS), "takes single texts"),
    ],
    ids=range(5),
)
def test_errors(reader, x, error):
    with pytest.raises(ValueError, match=error):
        reader.predict(x)


def test_steps_and_callbacks(reader):
    class Count(keras.callbacks.Callback):
        seen = ()

        def on_predict_batch_end(self, batch, logs=None):
            self.seen = (*self.seen, len(logs["scores"]))

    count = Count()
    answers = reader.predict(TEXTS, batch_size=2, steps=2, callbacks=[count])
    assert [a["label"] for a in answers] == [a["label"] for a in reader.predict(TEXTS)[:4]]
    assert count.seen == (2, 2)
    assert count.model is reader


@pytest.mark.full
def test_mixed_precision_answers_in_float32(smallest):
    wanted = _answer(bf.TextClassifier.from_pretrained(smallest), TEXTS)["scores"]
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        task = bf.TextClassifier.from_pretrained(smallest)
        found = np.stack([answer["scores"] for answer in task.predict(TEXTS)])
        embedder = bf.TextEmbedder.from_pretrained(smallest)
        embedding = _answer(embedder, TEXTS)["embedding"]
        before = task.head.weights[0].numpy()
        task.compile(keras.optimizers.SGD(0.1))
        learnt = task.fit(TEXTS, [0, 1, 2, 0, 1], epochs=2, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert task.backbone.compute_dtype == "bfloat16"
    assert found.dtype == embedding.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=0.03)
    assert np.isfinite(learnt.history["loss"]).all()
    assert np.abs(task.head.weights[0].numpy() - before).max() > 1e-3

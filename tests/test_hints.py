"""First words of people who come from other libraries: each is answered with what works here."""

import logging
import re

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf

# What is tried, and a part of the line that the error has.
LENGTH, LABELS, TEXTS = "Write max_length=128", 'Write labels=["negative"', "Tasks take raw text"
TRIED = {
    "max_len": (lambda x: bf.TextClassifier.from_pretrained(x.path, max_len=16), LENGTH),
    "sequence_length": (
        lambda x: bf.TextClassifier.from_pretrained(x.path, sequence_length=16),
        LENGTH,
    ),
    "max_seq_length": (lambda x: bf.TextEmbedder.from_pretrained(x.path, max_seq_length=8), LENGTH),
    "id2label": (lambda x: bf.TextClassifier.from_pretrained(x.path, id2label={0: "a"}), LABELS),
    "num_labels": (
        lambda x: bf.TextClassifier(x.task.backbone, x.task.tokenizer, ["a", "b"], num_labels=2),
        LABELS,
    ),
    "labels": (
        lambda x: bf.TokenTagger.from_pretrained(x.path, labels=["O", "B-X"]),
        'TokenTagger tags=["O"',
    ),
    "similarity": (lambda x: bf.TextEmbedder.from_pretrained(x.path).similarity, "vectors.T"),
    "dtype": (
        lambda x: bf.TextClassifier.from_pretrained(x.path, dtype="bfloat16"),
        'Write keras.config.set_dtype_policy("mixed_bfloat16")',
    ),
    "predict": (lambda x: x.task.predict({"input_ids": x.ids, "attention_mask": x.ids}), TEXTS),
    "fit": (lambda x: x.task.fit({"input_ids": x.ids}, [0, 1]), TEXTS),
    "call": (lambda x: x.task({"input_ids": x.ids, "attention_mask": x.ids}), TEXTS),
    "backbone": (lambda x: x.task.backbone({"input_ids": x.ids}), TEXTS),
    "call of text": (lambda x: x.task(["a film"]), "write task.predict(texts)"),
    "call of one text": (lambda x: x.task("a film"), "write task.predict(texts)"),
    "learning_rate": (
        lambda x: x.task.fit(["a", "b"], [0, 1], learning_rate=1e-5),
        "Write task.compile(bertfam_tf.optimizers.adamw(2e-5",
    ),
    "encode": (lambda x: x.task.encode(["a"]), "write task.predict(texts)"),
    "tokenizer.encode": (lambda x: x.task.tokenizer.encode("a"), "Write tokenizer.tokenize"),
    "tokenizer.decode": (lambda x: x.task.tokenizer.decode([1]), "tokenizer.detokenize(ids)"),
    "CrossEncoder": (lambda x: bf.CrossEncoder, "Write bertfam_tf.Reranker.from_pretrained"),
    "SentenceTransformer": (lambda x: bf.SentenceTransformer, "bertfam_tf.TextEmbedder"),
    "AutoTokenizer": (lambda x: bf.AutoTokenizer, "bertfam_tf.load_tokenizer"),
    "pipeline": (lambda x: bf.pipeline, "bertfam_tf.TextClassifier.from_pretrained"),
}


class _Given:
    ids = np.ones((2, 4), "int32")

    def __init__(self, path):
        self.path = path
        self.task = bf.TextClassifier.from_pretrained(path, pair=False)


@pytest.fixture(scope="module")
def given(smallest):
    return _Given(smallest)


@pytest.mark.parametrize("name", TRIED)
def test_the_error_has_the_line_that_works(given, name):
    tried, line = TRIED[name]
    with pytest.raises((ValueError, TypeError, AttributeError), match=re.escape(line)):
        tried(given)


@pytest.mark.parametrize("name", ["fitt", "_private", "shape"])
def test_other_attributes_have_the_usual_error(given, name):
    with pytest.raises(AttributeError, match=f"object has no attribute '{name}'$"):
        getattr(given.task, name)
    assert not hasattr(given.task.tokenizer, name)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["num_labels", "num_classes", "labels"])
def test_a_number_of_labels(smallest, name):
    task = bf.TextClassifier.from_pretrained(smallest, **{name: 2})
    assert task.labels == ["LABEL_0", "LABEL_1"]
    # As in transformers, names that are stored with a head of that size are kept.
    task = bf.TextClassifier.from_pretrained(smallest, **{name: 3})
    assert task.labels == ["negative", "neutral", "positive"]
    with pytest.raises(ValueError, match="labels must be at least two distinct strings"):
        bf.TextClassifier.from_pretrained(smallest, **{name: 1})


def test_a_tokenizer_is_called_as_a_layer(given):
    tokenizer = given.task.tokenizer
    np.testing.assert_array_equal(tokenizer("a film"), tokenizer.tokenize("a film"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pairs_of_cross_encoders(smallest):
    task = bf.Reranker.from_pretrained(smallest)
    pairs = [["a", "good film"], ["it is", "bad"]]
    np.testing.assert_array_equal(task.predict(pairs), task.predict(list(map(tuple, pairs))))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_mask_of_another_model(smallest):
    task = bf.MaskedLM.from_pretrained(smallest)
    for fill in (task.fill, lambda text: task.predict([text])):
        with pytest.raises(ValueError, match=r"whose mask is \[MASK\]. Write 'a \[MASK\] film'"):
            fill("a <mask> film")
    assert len(task.fill("a [MASK] and <mask>")) == 1
    assert task.fill("no mask at all") == []


def test_calls_and_data_sets_print_no_warning(given, recwarn, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tensorflow"), "propagate", True)
    inputs = given.task.preprocess({"text": tf.constant(["a fine film"])})
    given.task(inputs)
    rows = tf.data.Dataset.from_tensor_slices((["a film", "good"] * 2, [0, 1] * 2))
    given.task.predict(rows)
    given.task.predict(rows.batch(2))
    list(given.task.text_batches(rows, batch_tokens=16))
    assert not recwarn.list
    assert not caplog.records

"""Sparse vectors: against the masked language model's logits, files, export, what is refused."""

import json

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from bertfam_tf.sources import CheckpointError
from tests import published
from tests.selection import only_in

TEXTS = ["a good film , was it not ?", "the cast", "", "🙂 [MASK] é", "the plot " * 100]


@pytest.fixture(scope="module")
def sparse():
    return _sparse()


def _sparse(family="bert", **options):
    task = published.task("MaskedLM", family)
    made = bf.SparseEmbedder(task.backbone, task.tokenizer, max_length=48, **options)
    for variable, value in zip(made.head.weights, task.head.weights, strict=True):
        variable.assign(value)
    return made


def _expected(task, text):
    """Of one text alone, from the logits of its tokens."""
    inputs = task.preprocess({"text": tf.constant([text])})
    hidden = task.backbone(inputs, training=False)
    logits = task.head(hidden).numpy()[0][:, : task.tokenizer.vocab_size]
    weights = np.log1p(np.maximum(logits, 0))
    return weights.max(0) if task.pooling == "max" else weights.sum(0)


@pytest.mark.extended
@only_in("full", "roberta-max", "bert-sum", "xlm_roberta-sum", "roberta-sum", "xlm_roberta-max")
@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm_roberta"])
def test_vectors(family, pooling):
    task = _sparse(family, pooling=pooling)
    answers = task.predict(TEXTS, batch_size=5)
    for text, answer in zip(TEXTS, answers, strict=True):
        expected = _expected(task, text)
        order = np.argsort(-expected, kind="stable")[: np.count_nonzero(expected)][:256]
        np.testing.assert_allclose(answer["weights"], expected[order], atol=1e-4)
        assert 0 < len(answer["tokens"]) < task.tokenizer.vocab_size
        found = [task.tokenizer.token_to_id(token) for token in answer["tokens"]]
        np.testing.assert_allclose(answer["weights"], expected[found], atol=1e-4)


@pytest.mark.extended
def test_only_so_many_pieces(sparse):
    before = sparse.predict(TEXTS)
    sparse.max_pieces = 3
    for found, all_of_them in zip(sparse.predict(TEXTS), before, strict=True):
        assert found["tokens"] == all_of_them["tokens"][:3]
    sparse.max_pieces = 256


@pytest.mark.full
def test_files(sparse, tmp_path):
    expected = sparse.predict(TEXTS)
    sparse.save_pretrained(tmp_path / "out")
    modules = tmp_path / "out" / "modules.json"
    listed = json.loads(modules.read_text())
    assert [each["type"].rpartition(".")[2] for each in listed] == [
        "MLMTransformer",
        "SpladePooling",
    ]

    def check(path):
        back = bf.SparseEmbedder.from_pretrained(path)
        assert (back.pooling, back.max_length) == ("max", 48)
        for one, other in zip(back.predict(TEXTS), expected, strict=True):
            assert one["tokens"] == other["tokens"]
            np.testing.assert_allclose(one["weights"], other["weights"], atol=1e-6)

    check(tmp_path / "out")
    pooling = tmp_path / "out" / "1_SpladePooling" / "config.json"
    for file, content, message in (
        (pooling, {"activation_function": "log1p_relu"}, "'log1p_relu', expected one of relu"),
        (pooling, {"pooling_strategy": "mean"}, "'mean', expected one of max, sum"),
        (modules, listed[:1], "modules MLMTransformer, expected a Transformer and a SpladePooling"),
    ):
        before = file.read_text()
        file.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=message):
            bf.SparseEmbedder.from_pretrained(tmp_path / "out")
        file.write_text(before)
    modules.unlink()  # as a masked language model alone
    back = bf.SparseEmbedder.from_pretrained(tmp_path / "out")
    assert back.predict(TEXTS)[0]["tokens"] == expected[0]["tokens"]


@pytest.mark.full
def test_export(sparse, tmp_path):
    served = load(sparse.export(tmp_path / "out"))
    texts = np.array([text.encode() for text in TEXTS], object)
    found = served.run("serving_default", {"text": texts})
    for row, answer in enumerate(sparse.predict(TEXTS)):
        count = found["count"][row]
        tokens = [token.decode() for token in found["tokens"][row, :count]]
        assert sorted(tokens) == sorted(answer["tokens"])
        np.testing.assert_allclose(found["weights"][row, :count], answer["weights"], atol=1e-5)
        assert not found["weights"][row, count:].any()
    sparse.export_tflite(tmp_path / "out.tflite", inputs="ids", length=16)


def test_mistakes(sparse):
    for options, message in (
        (dict(pooling="mean"), "pooling must be max or sum, got 'mean'"),
        (dict(max_pieces=0), "max_pieces must be at least 1, got 0"),
        (dict(max_pieces="8"), "max_pieces must be an integer, got '8'"),
    ):
        with pytest.raises(ValueError, match=message):
            bf.SparseEmbedder(sparse.backbone, sparse.tokenizer, **options)
    task = published.task("CausalLM", "gpt2")
    with pytest.raises(ValueError, match="Unknown head of gpt2 'masked_lm'"):
        bf.SparseEmbedder(task.backbone, task.tokenizer)

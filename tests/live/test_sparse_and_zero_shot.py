"""Sparse encoders of sentence-transformers, and transformers' zero-shot pipeline."""

import numpy as np
import pytest
import tensorflow as tf

import bertfam_tf as bf
from tests import published

pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.live
TEXTS = [*published.TEXTS, "a good film of the cast", "it was not bad", "the plot " * 40]


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
def test_sparse_vectors(family, tmp_path):
    task = published.task("MaskedLM", family)
    task.save_pretrained(tmp_path / "masked")
    theirs = library.SparseEncoder(str(tmp_path / "masked"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = bf.SparseEmbedder.from_pretrained(tmp_path / "theirs", max_length=48)
    ours.save_pretrained(tmp_path / "ours")
    expected = theirs.encode(TEXTS).to_dense().numpy()
    found = ours.answer_ids(ours.encode({"text": tf.constant(TEXTS)}))["embedding"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    again = library.SparseEncoder(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS).to_dense().numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_zero_shot(family, multi_label, tmp_path):
    task = published.task("TextClassifier", family)
    names = ["entailment", "neutral", "contradiction"]
    nli = bf.TextClassifier(task.backbone, task.tokenizer, names, pair=True, max_length=48)
    nli.save_pretrained(tmp_path / "nli")
    labels = ["film", "the cast", "plot of it"]
    ours = bf.ZeroShotClassifier.from_pretrained(
        tmp_path / "nli", labels, multi_label=multi_label, max_length=48
    )
    theirs = transformers.pipeline("zero-shot-classification", str(tmp_path / "nli"))
    texts = [text for text in TEXTS if text.strip()]  # theirs refuses empty ones
    for text, answer in zip(texts, ours.predict(texts), strict=True):
        found = theirs(text, candidate_labels=labels, multi_label=multi_label)
        scores = dict(zip(found["labels"], found["scores"], strict=True))
        np.testing.assert_allclose(answer["scores"], [scores[x] for x in labels], atol=2e-5)

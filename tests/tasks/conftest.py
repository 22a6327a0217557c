"""Tasks on the smallest checkpoint."""

import keras
import pytest

import bertfam_tf as bf


@pytest.fixture(scope="module")
def reader(smallest):
    """A classifier of single texts that keeps its weights in ``fit``."""
    task = bf.TextClassifier.from_pretrained(smallest, pair=False)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@pytest.fixture(scope="module")
def embedder(smallest):
    return bf.TextEmbedder.from_pretrained(smallest)


@pytest.fixture
def classifier(smallest):
    """A new classifier without dropout."""
    return bf.TextClassifier.from_pretrained(smallest, dropout=0.0, attention_dropout=0.0)

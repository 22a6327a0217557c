"""Tasks on the small checkpoint."""

import pytest

import bertfam_tf as bf


@pytest.fixture(scope="module")
def reader(tiny):
    """A classifier that tests do not change; its input is single texts."""
    return bf.TextClassifier.from_pretrained(tiny, pair=False)


@pytest.fixture(scope="module")
def embedder(tiny):
    return bf.TextEmbedder.from_pretrained(tiny)


@pytest.fixture
def classifier(tiny):
    """A new classifier without dropout."""
    return bf.TextClassifier.from_pretrained(tiny, dropout=0.0, attention_dropout=0.0)

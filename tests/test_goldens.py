"""Parity with the reference implementation on perturbed weights, from stored files."""

from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from tests import parity

GOLDENS = Path(__file__).parent / "goldens"
BACKBONES = sorted(GOLDENS.glob("*/*/length_*.npz"))
CLASSIFIERS = sorted(GOLDENS.glob("*/*/logits.npz"))


def _name(file: Path) -> str:
    return "-".join(file.relative_to(GOLDENS).with_suffix("").parts)


def test_every_family_has_goldens():
    assert {file.relative_to(GOLDENS).parts[0] for file in BACKBONES} == set(bf.families())


@pytest.mark.parametrize("file", BACKBONES, ids=_name)
def test_outputs_and_gradients(file):
    with np.load(file) as expected:
        family = file.relative_to(GOLDENS).parts[0]
        parity.assert_equal(file.parent, family, dict(expected))


@pytest.mark.parametrize("file", CLASSIFIERS, ids=_name)
def test_classifier_from_text(file):
    with np.load(file) as expected:
        texts = expected["texts"].tolist()
        pairs = (texts, texts[::-1])
        for x, wanted in ((texts, expected["single"]), (pairs, expected["pair"])):
            task = bf.TextClassifier.from_pretrained(file.parent)
            assert task.labels == ["negative", "neutral", "positive"]
            probabilities = np.exp(wanted) / np.exp(wanted).sum(-1, keepdims=True)
            answers = task.predict(x)
            assert parity.relative([a["scores"] for a in answers], probabilities) < 1e-5
            assert [a["label"] for a in answers] == [task.labels[i] for i in wanted.argmax(-1)]

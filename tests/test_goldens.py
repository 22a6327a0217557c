"""Parity with the reference implementation on perturbed weights, from stored files."""

from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from tests import parity
from tests.selection import in_full, only_in

GOLDENS = Path(__file__).parent / "goldens"
CHECKPOINTS = sorted({file.parent for file in GOLDENS.glob("*/*/length_*.npz")})
CLASSIFIERS = sorted(GOLDENS.glob("*/*/logits.npz"))
# The default of each family, and those that make test needs to detect wrong epsilons, and wrong
# clamping of relative distances (tools/results/mutations.md).
QUICK = {
    *(GOLDENS / family / "default" for family in parity.FAMILIES),
    GOLDENS / "mobilebert" / "layer_norm",
    GOLDENS / "transformer_xl" / "same_length_clamped",
    GOLDENS / "xlnet" / "clamped_and_cut",
}


def _name(path: Path) -> str:
    return "-".join(path.relative_to(GOLDENS).with_suffix("").parts)


def _lengths(directory: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(file)) for file in sorted(directory.glob("length_*.npz"))]


def test_every_family_with_a_reference_has_goldens():
    assert set(CHECKPOINTS) >= QUICK


@only_in("full", "xlnet-clamped_and_cut")
@pytest.mark.parametrize("directory", in_full(CHECKPOINTS, QUICK), ids=_name)
def test_outputs_and_gradients(directory):
    """For each stored length."""
    parity.assert_equal(directory, directory.parent.name, *_lengths(directory))


@pytest.mark.extended
@only_in("full", "xlnet-clamped_and_cut")
@pytest.mark.parametrize("directory", in_full(CHECKPOINTS, QUICK), ids=_name)
def test_outputs_in_float32(directory):
    parity.assert_equal_in_float32(directory, directory.parent.name, *_lengths(directory))


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

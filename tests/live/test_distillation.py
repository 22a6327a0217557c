"""Terms of a distillation beside TextBrewer's losses (arXiv 2002.12620)."""

import numpy as np
import pytest

from bertfam_tf.distill import (
    AttentionScores,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    SoftTargets,
)
from bertfam_tf.distill.term import Outputs, Projections

pytestmark = pytest.mark.live
LENGTHS = [7, 3, 5, 1]
MASK = np.arange(7) < np.array(LENGTHS)[:, None]


def _sides(*shape):
    random = np.random.default_rng(0)
    return random.normal(size=(2, 4, *shape)).astype("float32") * 2


def _ours(term, student, teacher):
    total, count = term.loss(student, teacher, MASK, Projections())
    return float(total) / float(count)


@pytest.mark.parametrize(
    ("name", "term", "given"),
    [
        ("kd_mse_loss", LogitsError(), {}),
        ("kd_ce_loss", SoftTargets(divergence="cross_entropy"), {}),
        (
            "kd_ce_loss",
            SoftTargets(divergence="cross_entropy", temperature=3.0),
            {"temperature": 3.0},
        ),
    ],
)
def test_losses_of_logits(name, term, given):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("textbrewer.losses")
    student, teacher = _sides(5)
    expected = getattr(losses, name)(torch.tensor(student), torch.tensor(teacher), **given)
    ones = np.ones(4, "float32")
    sides = Outputs({}, student, ones), Outputs({}, teacher, ones)
    assert _ours(term, *sides) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "term", "output", "shape"),
    [
        ("cos_loss", HiddenCosine(layers={1: 1}), "hidden_states", (7, 12)),
        ("hid_mse_loss", HiddenStates(layers={1: 1}, projection=""), "hidden_states", (7, 12)),
        ("att_mse_loss", AttentionScores(layers={1: 1}), "attention_scores", (3, 7, 7)),
    ],
)
def test_losses_of_layers_without_padding(name, term, output, shape):
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("textbrewer.losses")
    student, teacher = _sides(*shape)
    mask = torch.tensor(MASK.astype("float32"))
    expected = getattr(losses, name)(torch.tensor(student), torch.tensor(teacher), mask)
    sides = [
        Outputs({output: [None, x] if output == "hidden_states" else [x]})
        for x in (student, teacher)
    ]
    assert _ours(term, *sides) == pytest.approx(float(expected), rel=1e-6)

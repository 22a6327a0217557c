"""Heads against the reference's task classes, on perturbed weights: logits and gradients."""

import pytest

from bertfam_tf.checkpoints import Checkpoint
from tests import parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support import reference  # noqa: E402

pytestmark = pytest.mark.live


@pytest.mark.parametrize("length", reference.LENGTHS)
@pytest.mark.parametrize(("family", "head"), reference.HEADS)
def test_logits_and_gradients(family, head, length, tmp_path):
    model = reference.build_task(family, head)
    reference.save(model, tmp_path)
    given = reference.inputs(model.config, length, seed=1, head=head)
    expected = {**given, **reference.run_task(model, head, given)}
    found = parity.head_differences(tmp_path, family, head, expected)
    wrong = {name: value for name, value in found.items() if not value <= parity.TOLERANCE}
    assert not wrong, f"{len(wrong)} of {len(found)} differ: {wrong}"
    print(f"largest relative difference: {max(found.values()):.1e}")
    assert Checkpoint(tmp_path, family).has_head(head)

"""Scores of sentence-transformers' cross-encoders: of its directories, and of ours in it."""

import numpy as np
import pytest

import bertfam_tf as bf
from tests import published

pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.live
TEXTS = [*published.TEXTS, "a good film of the cast", "it was not bad", "the plot " * 40, ""]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


# The library pads with a token that GPT does not have; of ALBERT and XLNet it writes a
# tokenizer.json with a regular expression, which is refused.
_WITHOUT = ("gpt", "albert", "xlnet")
FAMILIES = [name for name in published.families("Reranker") if name not in _WITHOUT]


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back(family, tmp_path):
    task = published.task("Reranker", family)
    task.save_pretrained(tmp_path / "ours")
    theirs = library.CrossEncoder(str(tmp_path / "ours"), device="cpu")
    given = tuple(map(list, zip(*PAIRS, strict=True)))
    np.testing.assert_allclose(theirs.predict(PAIRS), task.predict(given), atol=2e-5)
    theirs.save(str(tmp_path / "theirs"))
    back = bf.Reranker.from_pretrained(tmp_path / "theirs", max_length=task.max_length)
    np.testing.assert_allclose(back.predict(given), task.predict(given), atol=2e-5)
    ranked = theirs.rank(TEXTS[0], TEXTS)
    ours = task.rank(TEXTS[0], TEXTS)
    np.testing.assert_allclose(
        [each["score"] for each in ours], [each["score"] for each in ranked], atol=2e-5
    )


def test_activation(tmp_path):
    published.task("Reranker", "bert").save_pretrained(tmp_path / "ours")
    theirs = library.CrossEncoder(str(tmp_path / "ours"), device="cpu", activation_fn=nn.Identity())
    theirs.save(str(tmp_path / "theirs"))
    back = bf.Reranker.from_pretrained(tmp_path / "theirs")
    assert back.activation is None
    found = back.predict(tuple(map(list, zip(*PAIRS, strict=True))))
    np.testing.assert_allclose(found, theirs.predict(PAIRS), atol=2e-4)

"""Patterns of attention: drawn ones, and those of a real model, labelled by eye."""

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import analysis
from bertfam_tf.analysis.patterns import Pattern
from bertfam_tf.analysis.tokens import Example, Word

PAIR = (
    "The museum opens at nine in the morning and closes late on Fridays .",
    "On Fridays the museum stays open late , but it opens at nine as usual .",
)
# Of the heads of MiniLM-L6 for this pair, by layer, from pictures of the maps alone: V is vertical,
# D diagonal, VD both, H heterogeneous.
BY_EYE = """
H  H  D  H  D  D  H  H  H  H  H  H
V  H  VD V  VD V  VD VD D  VD V  VD
VD VD VD VD V  V  V  V  VD V  VD VD
V  V  V  V  V  V  V  V  VD V  V  H
V  V  V  V  V  V  VD VD V  VD V  V
V  H  H  V  H  V  H  V  H  H  V  V
"""
LETTERS = {
    Pattern.VERTICAL: "V",
    Pattern.DIAGONAL: "D",
    Pattern.VERTICAL_DIAGONAL: "VD",
    Pattern.BLOCK: "B",
    Pattern.HETEROGENEOUS: "H",
}


@pytest.mark.extended
def test_patterns_of_a_real_model_are_those_seen_by_eye(minilm):
    task = bf.TextClassifier.from_pretrained(minilm, ["no", "yes"])
    found = analysis.patterns(analysis.attention_maps(task, PAIR))
    found = np.array([[LETTERS[pattern] for pattern in layer] for layer in found])
    seen = np.array([line.split() for line in BY_EYE.strip().split("\n")])
    # 61 of 72; most others are between V and VD, or D and VD.
    assert (found == seen).mean() > 0.8


def _drawn(head):
    """Maps of one head for an example of two texts of 20 words each."""
    words = [Word("a", "text", 0, 1, (1 + i,)) for i in range(20)]
    words += [Word("a", "text_pair", 0, 1, (22 + i,)) for i in range(20)]
    head = np.broadcast_to(head, (43, 43)).astype("float32")
    probabilities = (head / head.sum(-1, keepdims=True))[np.newaxis]
    return analysis.AttentionMaps(Example({}, [""] * 43, words), [probabilities])


def test_drawn_patterns(tmp_path):
    places = np.arange(43)
    special = np.isin(places, (0, 21, 42))
    first = places < 21
    diagonal, vertical = np.eye(43) + 1e-4, special + 1e-3
    drawn = {
        Pattern.VERTICAL: vertical,
        Pattern.DIAGONAL: diagonal,
        Pattern.VERTICAL_DIAGONAL: diagonal + vertical,
        Pattern.BLOCK: (first[:, np.newaxis] == first) + 0.1,
        Pattern.HETEROGENEOUS: np.ones(43),
    }
    for pattern, head in drawn.items():
        assert analysis.patterns(_drawn(head)) == [[pattern]], pattern
    shares = analysis.pattern_shares([_drawn(drawn[Pattern.DIAGONAL]), _drawn(vertical)])
    assert shares.tolist() == [[0.5, 0.5, 0, 0, 0]]
    assert analysis.draw_patterns(shares, tmp_path / "a.png").is_file()
    with pytest.raises(ValueError, match="only special tokens"):
        analysis.patterns(analysis.AttentionMaps(Example({}, ["[CLS]"], []), [np.ones((1, 1, 1))]))


def test_few_words_are_not_near_by_chance():
    """In a short text, uniform attention gives much to tokens that are near."""
    words = [Word("a", "text", 0, 1, (1 + i,)) for i in range(6)]
    uniform = np.full((1, 8, 8), 1 / 8, "float32")
    maps = analysis.AttentionMaps(Example({}, [""] * 8, words), [uniform])
    assert analysis.patterns(maps) == [[Pattern.HETEROGENEOUS]]


@pytest.mark.extended
def test_pairs_of_heads(tiny, tmp_path):
    """On the diagonal one head; a pair is what ``without_heads`` gives; the model is as before."""
    task = bf.TextClassifier.from_pretrained(tiny)
    heads = [(0, 0), (0, 1), (1, 0)]

    def score():
        return float(task.predict(["a good film"])[0]["scores"][0])

    before = score()
    found = analysis.pair_ablation(task.backbone, score, heads, verbose=False)
    assert score() == before
    np.testing.assert_array_equal(found, found.T)
    for i, j, off in ((0, 0, {0: [0]}), (0, 1, {0: [0, 1]}), (1, 2, {0: [1], 1: [0]})):
        with analysis.without_heads(task.backbone, off):
            assert found[i, j] == score() - before
    assert analysis.draw_pairs(found, heads, tmp_path / "a.png").is_file()


@pytest.mark.extended
def test_projection(tiny, tmp_path):
    draw = np.random.default_rng(0)
    plane, _ = np.linalg.qr(draw.normal(size=(8, 2)))
    places = draw.normal(size=(20, 2))
    points, share = analysis.project(places @ plane.T + 3)
    assert share == pytest.approx(1)
    distances = [np.linalg.norm(x[:, None] - x, axis=-1) for x in (points, places)]
    np.testing.assert_allclose(*distances, atol=1e-9)
    assert analysis.draw_projection(points, tmp_path / "a.png", ["$a"] * 20, share).is_file()
    task = bf.TextClassifier.from_pretrained(tiny)
    vectors = analysis.mean_vectors(task, ["a good film", "bad movie", "it is"])
    assert vectors.shape == (3, task.backbone.config.hidden_size)
    for wrong in (np.ones((2, 4)), np.ones(4)):
        with pytest.raises(ValueError, match="must have the shape"):
            analysis.project(wrong)
    with pytest.raises(ValueError, match="layer must be from 0"):
        analysis.mean_vectors(task, ["a"], layer=99)
    with pytest.raises(ValueError, match="Expected one label per point"):
        analysis.draw_projection(points, tmp_path / "a.png", ["a"])

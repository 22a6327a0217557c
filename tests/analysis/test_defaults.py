"""Analysis as users call it: with progress bars, all heads, and data in any structure."""

import numpy as np
import pandas
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import analysis
from tests.analysis.test_analysis import LABELS, TEXTS, _noisy, _scores

slices = tf.data.Dataset.from_tensor_slices
TAGGED = [["a", "good", "film"], ["bad"], ["it", "is"], ["dull", "plot"]]
TAGS = [["O", "B", "B"], ["B"], ["O", "O"], ["B", "O"]]


@pytest.fixture(scope="module")
def classifier(smallest):
    return _noisy(bf.TextClassifier.from_pretrained(smallest))


@pytest.fixture(scope="module")
def tagger(smallest):
    return _noisy(bf.TokenTagger.from_pretrained(smallest, ["O", "B"]))


def _shown(capfd):
    captured = capfd.readouterr()
    return captured.out + captured.err


@pytest.mark.extended
def test_importance_of_each_example_whatever_the_batches(classifier, capfd):
    """A mean over texts alone: batches of a data set are taken apart, and counted by examples."""
    alone = [analysis.importance(classifier, TEXTS[i : i + 1], LABELS[i : i + 1]) for i in (0, 1)]
    assert "/example" in _shown(capfd)
    found = analysis.importance(classifier, slices((TEXTS, LABELS)).batch(4), examples=2)
    for part in ("heads", "units"):
        expected = np.mean([getattr(each, part)[0] for each in alone], axis=0)
        np.testing.assert_allclose(getattr(found, part)[0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["frame", "generator"])
def test_importance_of_words(tagger, kind):
    expected = analysis.importance(tagger, TAGGED, TAGS).heads[0]
    given = {
        "frame": pandas.DataFrame({"text": TAGGED, "label": TAGS}),
        "generator": ((TAGGED[i : i + 2], TAGS[i : i + 2]) for i in (0, 2)),
    }[kind]
    np.testing.assert_allclose(analysis.importance(tagger, given).heads[0], expected, rtol=1e-5)


@pytest.mark.extended
def test_every_head_and_pair_with_a_progress_bar(classifier, capfd):
    def score():
        return float(_scores(classifier, TEXTS[:2])[0, 0])

    count = classifier.backbone.config.num_heads
    found = analysis.ablation(classifier, score)
    assert f"{count + 1}/{count + 1}" in _shown(capfd)
    pairs = analysis.pair_ablation(classifier, score)
    number = count * (count + 1) // 2
    assert f"{number}/{number}" in _shown(capfd)
    np.testing.assert_allclose(np.diag(pairs), found.heads[0], atol=1e-7)
    np.testing.assert_array_equal(pairs, pairs.T)
    with analysis.without_heads(classifier, {0: [1, 3]}):
        assert score() - found.score == pytest.approx(pairs[1, 3], abs=1e-7)


@pytest.mark.extended
def test_a_temperature_from_a_data_set(classifier):
    many = [f"{text} {word}" for text in TEXTS for word in "a film it is bad cast plot of".split()]
    labels = ["negative", "neutral", "positive", "positive"] * 8
    expected = classifier.calibrate(many, labels)
    assert expected > 0.05
    for data in (slices((many, labels)), slices((many, labels)).batch(5)):
        classifier.temperature = 1.0
        assert classifier.calibrate(data) == pytest.approx(expected, rel=1e-3)
    classifier.temperature = 1.0


@pytest.mark.extended
def test_pictures_and_pages_of_what_is_there(classifier, tmp_path):
    points = np.random.default_rng(0).normal(size=(5, 2))
    plain = analysis.draw_projection(points, tmp_path / "plain.png").read_bytes()
    assert plain.startswith(b"\x89PNG")
    labelled = analysis.draw_projection(points, tmp_path / "named.png", list("aabbc")).read_bytes()
    assert plain != labelled
    maps = analysis.attention_maps(classifier, "a good film")
    page = analysis.write_page(tmp_path / "maps.html", maps).read_text()
    assert "canvas" in page
    assert "Which words made" not in page
    found = analysis.explain(classifier, "a good film")
    page = analysis.write_page(tmp_path / "words.html", attribution=found).read_text()
    assert "Which words made" in page
    assert "<canvas" not in page

"""Reports of classifiers, and their calibration."""

import numpy as np
import pandas
import pytest

import bertfam_tf as bf
from bertfam_tf.analysis import Report, report
from bertfam_tf.export.runtime import load
from bertfam_tf.tasks.text_classifier import best_temperature
from tests.selection import in_full

TEXTS = ["a good film", "A  good film", "<b>bad</b> & movie", "it is", "very dull plot of a film"]
RIGHT = np.array([0, 1, 1, 0, 1])
SCORES = np.array([[0.9, 0.1], [0.95, 0.05], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7]])


@pytest.fixture
def found():
    return Report(["no", "yes"], TEXTS, RIGHT, SCORES)


def test_numbers(found):
    assert found.accuracy == 0.6
    np.testing.assert_array_equal(found.confusion(), [[1, 1], [1, 2]])
    bins, error = found.calibration()
    assert [count for *_, count in bins] == [1, 1, 1, 2]
    expected = [(0.6, 0.0), (0.7, 1.0), (0.8, 1.0), (0.925, 0.5)]
    np.testing.assert_allclose([each[:2] for each in bins], expected)
    np.testing.assert_allclose(error, (0.6 + 0.3 + 0.2 + 2 * 0.425) / 5)
    assert found.worst() == [1, 3]
    assert found.suspected() == [1]
    assert found.duplicates() == [[0, 1]]
    assert found.slices()[0] == ("label no", 2, 0.5)
    assert sum(number for _, number, _ in found.slices()[2:]) == 5


def test_page(found, tmp_path):
    page = found.write(tmp_path / "page.html", "a <run>").read_text()
    assert "a &lt;run&gt;" in page
    assert "<b>bad" not in page
    assert "accuracy 0.6000" in page
    assert page.count("<circle") == 4
    # On narrow screens, tables scroll, and words do not break; dots at the edge are whole.
    assert page.count("<table") == page.count('<div class="wide"><table')
    assert "svg { overflow: visible; }" in page


@pytest.mark.extended
def test_a_page_with_a_label_of_a_megabyte(tmp_path):
    """It had the label in each cell of its row and column: 22 MB."""
    labels = ["x" * 1_000_000, *map(str, range(9))]
    made = Report(labels, ["a"], np.array([0]), np.eye(10)[:1])
    assert made.write(tmp_path / "page.html").stat().st_size < 2_000_000


def test_of_a_task(tiny):
    task = bf.TextClassifier.from_pretrained(tiny)
    labels = ["negative", "neutral", "positive", "negative", "neutral"]
    found = report(task, TEXTS, labels)
    scores = np.stack([each["scores"] for each in task.predict(TEXTS)])
    np.testing.assert_array_equal(found.scores, scores)
    pairs = report(task, (TEXTS, TEXTS), np.array([0, 1, 2, 0, 1])) if task.pair else None
    assert pairs is None or pairs.texts[0].count("|") == 1
    frame = pandas.DataFrame({"text": TEXTS, "other": labels})
    assert report(task, frame, pandas.Series(labels)).texts == found.texts
    with pytest.raises(ValueError, match="'sad'"):
        report(task, TEXTS, ["sad"] * 5)
    for texts, given, error in (
        (TEXTS, labels[:1], "Texts and labels differ in number: 5 and 1"),
        ([], [], "There is no text"),
        (frame, None, "No labels were given"),
    ):
        with pytest.raises(ValueError, match=error):
            report(task, texts, given)
    with pytest.raises(ValueError, match="got TextEmbedder"):
        report(bf.TextEmbedder(task.backbone, task.tokenizer), TEXTS, labels)


@pytest.mark.parametrize("names", in_full([["no", "yes"], ["True", "False"]], [["True", "False"]]))
def test_of_bools(tiny, names):
    """The second label, or the label of that name, is true."""
    task = bf.TextClassifier.from_pretrained(tiny, names, pair=False)
    labels = [True, False, True, True, False]
    found = report(task, TEXTS, labels)
    assert found.right.tolist() == [int(each == (names[1] == "yes")) for each in labels]
    expected = task.evaluate(TEXTS, labels, verbose=0, return_dict=True)["accuracy"]
    assert found.accuracy == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 15, 100])
def test_a_page_of_many_labels(tmp_path, count):
    """Names stand in rows alone where there is no room above the columns; a picture has none."""
    labels = [f"intent_number_{i}" for i in range(count)]
    right = np.arange(count).repeat(3)
    scores = np.eye(count)[np.where(np.arange(3 * count) % 3, right, (right + 1) % count)]
    found = Report(labels, [f"text {i}" for i in range(3 * count)], right, scores)
    page = found.write(tmp_path / "report.html").read_text("utf-8")
    matrix = page.partition("<h2>Confusion</h2>")[2].partition("<h2>")[0].partition("<h3>")[0]
    cells = matrix.count("<td") if count < 100 else matrix.count("<rect") - 1
    assert cells == (2 * count if count == 100 else count * count)
    assert (f">{labels[1]}</th>" in matrix) == (count == 2)
    assert (f">2 {labels[1]}</th>" in matrix) == (count == 15)
    assert (f"{labels[1]}, predicted {labels[1]}: 2</title>" in matrix) == (count == 100)
    assert ("<h3>Most frequent mistakes</h3>" in page) == (count > 2)
    assert ("80 more labels</summary>" in page) == (count == 100)


@pytest.mark.full
def test_temperature(tiny, tmp_path):
    """Scores are as high as they are right, in the saved and in the exported model too."""
    task = bf.TextClassifier.from_pretrained(tiny)
    before = task.predict(TEXTS)
    labels = [each["label"] for each in before[:3]] + ["negative", "positive"]
    plain = task.evaluate(TEXTS, labels, verbose=0, return_dict=True)
    chosen = task.calibrate(TEXTS, labels)
    assert task.temperature == chosen != 1
    after = task.predict(TEXTS)
    assert [each["label"] for each in after] == [each["label"] for each in before]
    logs = np.log(np.stack([each["scores"] for each in before])) / chosen
    expected = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.stack([each["scores"] for each in after]), expected, atol=1e-5)
    # The loss is that of training.
    assert task.evaluate(TEXTS, labels, verbose=0, return_dict=True) == plain
    task.save(tmp_path / "saved")
    assert bf.load(tmp_path / "saved").temperature == chosen
    served = load(task.export(tmp_path / "export"))
    given = {"text": np.array([each.encode() for each in TEXTS], object)}
    np.testing.assert_allclose(served.run("serving_default", given)["scores"], expected, atol=1e-5)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        task.temperature = 0.0


def test_best_temperature():
    """Labels are drawn from a softmax of logits, which are then multiplied by 3."""
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 2, (20_000, 4))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (shares.cumsum(axis=1) > draw.random((20_000, 1))).argmax(axis=1)
    np.testing.assert_allclose(best_temperature(3 * logits, labels), 3, rtol=0.03)

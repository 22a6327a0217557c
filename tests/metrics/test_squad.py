"""SQuAD scores, compared with published predictions and a search of all thresholds."""

import json
import math

import numpy as np
import pytest

from bertfam_tf.data import read_rows
from bertfam_tf.data.targets import Answers
from bertfam_tf.metrics import best_threshold, exact_match, f1, squad_scores
from bertfam_tf.metrics.squad import normalize


def _gold(file):
    return [[text for text, _ in row.label] for row in read_rows(file, target=Answers())]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v1.1-BERT-ensemble-Google", (86.21, 92.20)),
        ("v1.1-LogisticRegression-Stanford", (40.14, 50.98)),
    ],
)
def test_published_predictions_get_their_published_scores(real_data, name, expected):
    file = real_data("squad/dev-v1.1.json")
    answers = _gold(file)
    articles = json.loads(file.read_text("utf-8"))["data"]
    ids = [q["id"] for a in articles for p in a["paragraphs"] for q in p["qas"]]
    predictions = json.loads(real_data(f"squad/predictions/{name}.json").read_text("utf-8"))
    # Missing predictions count as wrong, like "" for questions with an answer.
    found = squad_scores([predictions.get(i, "") for i in ids], answers)
    assert len(ids) == 10_570
    assert found.keys() == {"exact_match", "f1"}
    assert tuple(round(value, 2) for value in found.values()) == expected


@pytest.mark.extended
def test_questions_without_answers(real_data):
    answers = _gold(real_data("squad/cs224n-dev-v2.0.json"))
    firsts = [gold[0] if gold else "" for gold in answers]
    none = np.array([not gold for gold in answers])
    assert (len(answers), none.sum()) == (6_078, 3_168)
    everywhere = squad_scores(firsts, answers)
    assert set(everywhere.values()) == {100.0}
    nowhere = squad_scores([""] * len(answers), answers)
    share = 100 * none.mean()
    assert nowhere == {
        "exact_match": pytest.approx(share),
        "f1": pytest.approx(share),
        "has_answer_exact_match": 0,
        "has_answer_f1": 0,
        "no_answer_exact_match": 100,
        "no_answer_f1": 100,
    }
    always = squad_scores(["x" if n else a for n, a in zip(none, firsts, strict=False)], answers)
    assert always["no_answer_f1"] == 0
    assert always["has_answer_f1"] == 100
    # Scores that separate the two kinds, except for one question each.
    scores = none + np.linspace(0, 0.5, len(none))
    first, last = np.flatnonzero(none)[0], np.flatnonzero(~none)[-1]
    scores[[first, last]] = [-5, 5]
    found = best_threshold(
        ["x" if n else a for n, a in zip(none, firsts, strict=False)], answers, scores
    )
    assert found.score == pytest.approx(100 * (1 - 2 / len(none)))
    assert np.array_equal(np.flatnonzero((scores > found.threshold) != none), [first, last])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Film,\tan A-team\n", "film ateam"),
        ("Theatre, another", "theatre another"),
        ("U.S.", "us"),
        ("a", ""),
        (" . ", ""),
        ("“Größe”", "“größe”"),
    ],
)
def test_normalization(text, expected):
    assert normalize(text) == expected


def test_single_scores():
    assert f1("the good film", ["a bad film", "good old film"]) == pytest.approx(0.8)
    assert f1("film film", ["film"]) == pytest.approx(2 / 3)
    assert f1("plot", ["film"]) == 0
    assert exact_match("The Film.", ["plot", "film"]) == 1
    for score in (exact_match, f1):
        assert score("", []) == score("", [""]) == score("the", ["", "."]) == 1
        assert score("film", []) == score("", ["film"]) == score("", ["film", ""]) == 0


@pytest.mark.parametrize("metric", [f1, exact_match])
def test_thresholds_against_a_search(metric):
    random = np.random.default_rng(0)
    for _ in range(200):
        rows = int(random.integers(1, 12))
        words = np.array(["", "film", "plot", "good film"])
        predictions = random.choice(words[1:], rows).tolist()
        answers = [[a] for a in random.choice(words, rows).tolist()]
        scores = random.integers(-3, 4, rows).astype(float)

        def mean(threshold):
            kept = np.where(scores > threshold, "", predictions)  # noqa: B023
            return 100 * np.mean([metric(*row) for row in zip(kept, answers, strict=False)])  # noqa: B023

        found = best_threshold(predictions, answers, scores, metric)
        candidates = [-math.inf, *np.unique(scores)]
        means = [mean(threshold) for threshold in candidates]
        assert found.score == pytest.approx(max(means))
        assert mean(found.threshold) == pytest.approx(found.score)
        assert found.threshold == candidates[int(np.argmax(np.round(means, 9)))]


def test_mistakes():
    with pytest.raises(ValueError, match="There are 1 predictions, 2 answers; expected one of"):
        squad_scores(["a"], [["a"], ["b"]])
    with pytest.raises(ValueError, match="There are no questions"):
        squad_scores([], [])
    with pytest.raises(ValueError, match="must be a list of strings, got the string 'film'"):
        squad_scores(["film"], ["film"])
    with pytest.raises(ValueError, match=r"no_answer_scores\[1\] is NaN"):
        best_threshold(["a", "b"], [["a"], ["b"]], [0, math.nan])

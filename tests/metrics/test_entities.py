"""Entity scores: compared with seqeval on random tags; edge cases."""

import json
from pathlib import Path

import pytest

from bertfam_tf.metrics import Entity, continues, entities, entity_scores, marks_entities, parse

CASES = json.loads((Path(__file__).parent / "seqeval.json").read_text("utf-8"))


def _split(rows):
    return [row.split() for row in rows]


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES"])
def test_scores_and_entities_are_those_of_seqeval(scheme):
    cases = [case for case in CASES if case["scheme"] == scheme]
    assert len(cases) == 20
    for case in cases:
        wanted, found = _split(case["wanted"]), _split(case["found"])
        assert entity_scores(wanted, found) == pytest.approx(case["scores"], abs=1e-11)
        for row, expected in zip(found, case["entities"], strict=True):
            assert [(e.label, e.start, e.end - 1) for e in entities(row)] == [
                tuple(entity) for entity in expected
            ]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", []),
        ("O O", []),
        ("I-A I-A", [("A", 0, 2)]),
        ("I-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
        ("B-A I-B O I-B", [("A", 0, 1), ("B", 1, 2), ("B", 3, 4)]),
        ("B-A E-A S-A B-A I-A E-A", [("A", 0, 2), ("A", 2, 3), ("A", 3, 6)]),
        ("E-A I-A S-A I-A", [("A", 0, 1), ("A", 1, 2), ("A", 2, 3), ("A", 3, 4)]),
        ("B I O B-", [("_", 0, 2), ("_", 3, 4)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
    ],
)
def test_entities(tags, expected):
    assert entities(tags.split()) == [Entity(*entity) for entity in expected]


def test_schemes_give_the_same_entities():
    iob1 = "I-A I-A O I-B B-B I-A".split()
    iob2 = "B-A I-A O B-B B-B B-A".split()
    iobes = "B-A E-A O S-B S-B S-A".split()
    bilou = "B-A L-A O U-B U-B U-A".split()
    assert entities(iob1) == entities(iob2) == entities(iobes) == entities(bilou)
    assert len(entities(iob1)) == 4


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        ([], [], (0, 0, 0, 0)),
        ([[]], [[]], (0, 0, 0, 0)),
        ([["O", "O"]], [["O", "O"]], (0, 0, 0, 1)),
        ([["B-A", "O"]], [["O", "O"]], (0, 0, 0, 0.5)),
        ([["O", "O"]], [["B-A", "O"]], (0, 0, 0, 0.5)),
        ([["B-A", "I-A"], ["B-A"]], [["B-A", "O"], ["B-A"]], (0.5, 0.5, 0.5, 2 / 3)),
        # An entity does not continue in the next sentence.
        ([["B-A"], ["I-A"]], [["B-A"], ["B-A"]], (1, 1, 1, 0.5)),
    ],
)
def test_edges(wanted, found, expected):
    scores = entity_scores(wanted, found)
    assert tuple(scores) == ("precision", "recall", "f1", "accuracy")
    assert tuple(scores.values()) == pytest.approx(expected)


def test_tags_that_mark_no_entity():
    for tag in ("NN", "X-PER", "", "o", "BB", "-PER", "M-PER"):
        with pytest.raises(ValueError, match="does not mark entities"):
            parse(tag)
        assert not marks_entities(["O", "B-A", tag])
    with pytest.raises(ValueError, match="The tag 'NN' does not mark entities"):
        entity_scores([["NN"]], [["O"]])
    with pytest.raises(ValueError, match="'NN'"):
        continues("B-A", "NN")
    assert marks_entities(["O", "B-A"])
    assert not marks_entities(["O"])
    assert not marks_entities([])


def test_lengths_that_differ():
    with pytest.raises(ValueError, match="1 sentences were predicted, expected 0"):
        entity_scores([], [["O"]])
    with pytest.raises(ValueError, match="Sentence 1 has 2 predicted tags, expected 1"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "O"]])

"""The four input formats: exact examples, and that no sentence is lost or doubled."""

import random
from collections import Counter

import pytest

from bertfam_tf.corpora.formats import (
    Segments,
    doc_sentences,
    full_sentences,
    segment_pairs,
    sentence_pairs,
)

# Sentences are consecutive numbers, the hundreds are the document.
TOY = [
    [[101, 102, 103], [104, 105], [106]],
    [[201, 202], [203, 204, 205, 206]],
    [[301, 302, 303, 304, 305, 306, 307], []],
]


def test_full_sentences():
    assert list(full_sentences(TOY, 6, separator=9)) == [
        Segments([101, 102, 103, 104, 105, 106], [], None),
        Segments([201, 202, 203, 204, 205, 206], [], None),
        # A sentence that is longer than an example is divided.
        Segments([301, 302, 303, 304, 305, 306], [], None),
        Segments([307], [], None),
    ]
    assert list(full_sentences(TOY, 9, separator=9)) == [
        Segments([101, 102, 103, 104, 105, 106, 9, 201, 202], [], None),
        Segments([203, 204, 205, 206, 9], [], None),
        Segments([301, 302, 303, 304, 305, 306, 307], [], None),
    ]


def test_a_document_without_tokens_adds_no_separator():
    documents = [[[]], [[11, 12]], [[], []], [], [[21]]]
    expected = [Segments([11, 12, 9, 21], [], None)]
    assert list(full_sentences(documents, 6, separator=9)) == expected


def test_doc_sentences():
    assert list(doc_sentences(TOY, 9)) == [
        Segments([101, 102, 103, 104, 105, 106], [], None),
        Segments([201, 202, 203, 204, 205, 206], [], None),
        Segments([301, 302, 303, 304, 305, 306, 307], [], None),
    ]


def test_sentence_pairs():
    found = list(sentence_pairs(TOY, 8, task="sop"))
    # Documents take turns.
    assert found[2] == Segments([301, 302, 303, 304, 305, 306, 307], [], None)
    assert found[3] == Segments([106], [], None)
    pairs = [(found[0], TOY[0][:2]), (found[1], TOY[1])]
    assert {pair.label for pair, _ in pairs} == {0, 1}
    for pair, (first, second) in pairs:
        assert pair == (Segments(second, first, 1) if pair.label else Segments(first, second, 0))


def test_segment_pairs_exchange_segments():
    """Four pairs of two documents: two are exchanged."""
    found = list(segment_pairs([[[11], [12], [13], [14]], [[21], [22], [23], [24]]], 2, short=0))
    assert [each.label for each in found].count(1) == 2
    for first, second, label in found:
        assert (first[0] // 10 == second[0] // 10) == (label == 0)
        assert second[0] - first[0] == 1 or label == 1


def _documents(count, seed=0):
    draw, token = random.Random(seed), 0
    for _ in range(count):
        document = []
        for _ in range(draw.randint(1, 30)):
            size = draw.randint(1, 40)
            document.append(list(range(token, token + size)))
            token += size
        yield document


FORMATS = {
    "full": lambda documents: full_sentences(documents, 128),
    "document": lambda documents: doc_sentences(documents, 128),
    "segments, nsp": lambda documents: segment_pairs(documents, 128, seed=1),
    "segments, sop": lambda documents: segment_pairs(documents, 128, task="sop", seed=1),
    "sentences, nsp": lambda documents: sentence_pairs(documents, 128, seed=1),
    "sentences, sop": lambda documents: sentence_pairs(documents, 128, task="sop", seed=1),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_sentence_once(name):
    documents = list(_documents(300))
    of_token = {t: i for i, document in enumerate(documents) for each in document for t in each}
    found = list(FORMATS[name](documents))
    counts = Counter(token for each in found for token in each.first + each.second)
    assert counts.keys() == of_token.keys()
    assert set(counts.values()) == {1}
    assert all(0 < len(each.first) + len(each.second) <= 128 for each in found)
    labels = Counter(each.label for each in found if each.label is not None)
    if "," in name:
        # Pairs at the end wait in vain for one of another document.
        assert 0 <= labels[0] - labels[1] <= 34 or abs(labels[0] - labels[1]) == 1
        assert labels[1] > 400
    for first, second, label in found:
        assert first
        assert bool(second) == (label is not None)
        if name != "full":  # segments are of one document
            assert len({of_token[t] for t in first}) == 1
            assert len({of_token[t] for t in second}) <= 1
        if "nsp" in name and second:
            assert (of_token[first[0]] != of_token[second[0]]) == (label == 1)
            assert label == 1 or second[0] == first[-1] + 1
        if "sop" in name and second:
            before, after = (second, first) if label else (first, second)
            assert after[0] == before[-1] + 1
    assert list(FORMATS[name](documents)) == found  # the seed decides


def test_examples_are_long():
    lengths = [len(each.first) for each in full_sentences(_documents(300), 128)]
    assert sum(lengths) / len(lengths) > 105
    short = segment_pairs(_documents(300), 128, short=1.0)
    lengths = [len(each.first) + len(each.second) for each in short]
    assert sum(lengths) / len(lengths) < 75


def test_nothing_is_held():
    """Examples come while documents are read, from a corpus that does not end."""

    def endless():
        while True:
            yield from _documents(1)

    for each in (
        full_sentences(endless(), 64),
        doc_sentences(endless(), 64),
        segment_pairs(endless(), 64),
        sentence_pairs(endless(), 64, task="sop"),
    ):
        assert len([next(each) for _ in range(50)]) == 50


def test_mistakes():
    with pytest.raises(ValueError, match="task must be nsp or sop, got 'order'"):
        segment_pairs([], 8, task="order")
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        segment_pairs([], 1)
    with pytest.raises(ValueError, match="short must be from 0 to 1, got 2"):
        segment_pairs([], 8, short=2)

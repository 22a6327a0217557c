"""Precision, recall and F1 of entities (CoNLL-2003, Tjong Kim Sang & De Meulder).

The rule is the same as in the shared task's script ``conlleval``, and ``seqeval``'s default. It
treats all schemes in the same way, and accepts sequences that violate them: words are one entity as
long as each tag continues the previous one (``continues``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
# Beginning, inside and end of an entity, and an entity of a single word. BILOU has L (last) and U
# (unit) for the latter two.
_PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
_CONTINUED = ("B", "I")
_CONTINUING = ("I", "E")
_NO_TYPE = "_"


class Entity(NamedTuple):
    """An entity: consecutive words of a sentence.

    Fields:
        label: the type, such as ``"PER"``; ``"_"`` for tags without one, such as ``"B"``.
        start: the index of the first word.
        end: the index after the last word.
    """

    label: str
    start: int
    end: int


def parse(tag: str) -> tuple[str, str]:
    """Returns a tag's prefix and type: ``"B-PER"`` is ``("B", "PER")``, ``"O"`` is ``("O", "")``.

    Tags are ``"O"``, or ``"B"``, ``"I"``, ``"E"`` or ``"S"``, alone or with ``"-"`` and a type: as
    in IOB1, IOB2 (also called BIO), IOE and IOBES. BILOU's ``"L"`` and ``"U"`` are returned as
    ``"E"`` and ``"S"``.

    Raises:
        ValueError: for any other tag.
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, _, kind = tag.partition("-")
    if prefix not in _PREFIXES:
        raise ValueError(
            f"The tag {tag!r} does not mark entities; expected 'O', or one of B, I, E, S, L and U "
            "followed by '-' and a type."
        )
    return _PREFIXES[prefix], kind or _NO_TYPE


def marks_entities(tags: Iterable[str]) -> bool:
    """Returns whether ``parse`` can read all tags, and at least one is not ``"O"``."""
    tags = set(tags)
    try:
        for tag in tags:
            parse(tag)
    except ValueError:
        return False
    return bool(tags - {OUTSIDE})


def continues(before: str, tag: str) -> bool:
    """Returns whether a word belongs to the same entity as the previous word, given their tags.

    It does if the types are the same, ``before`` is a B or I, and ``tag`` an I or E.
    """
    (first, kind), (second, other) = parse(before), parse(tag)
    return first in _CONTINUED and second in _CONTINUING and kind == other


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence, in order.

    Args:
        tags: one for each word, in IOB1, IOB2, IOBES or BILOU.

    Raises:
        ValueError: if ``parse`` cannot read a tag.
    """
    spans: list[Entity] = []
    before = OUTSIDE
    for word, tag in enumerate(tags):
        prefix, kind = parse(tag)
        if continues(before, tag):
            spans[-1] = spans[-1]._replace(end=word + 1)
        elif prefix != OUTSIDE:
            spans.append(Entity(kind, word, word + 1))
        before = tag
    return spans


def entity_scores(
    y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Computes micro-averaged scores of entities, as ``conlleval`` does.

    An entity is correct if its type, its first and its last word are correct.

    Args:
        y_true: the gold tags of each sentence.
        y_pred: the predicted tags of each sentence.

    Returns:
        ``precision``, ``recall``, ``f1``, from 0 to 1, and 0 if undefined; and ``accuracy``, the
        share of words with the correct tag, 0 without words.

    Raises:
        ValueError: if the numbers of sentences or words differ, or ``parse`` cannot read a tag.
    """
    accuracy = word_accuracy(y_true, y_pred)
    hits = gold = guesses = 0
    for expected, predicted in zip(y_true, y_pred, strict=True):
        spans, guessed = set(entities(expected)), set(entities(predicted))
        hits += len(spans & guessed)
        gold += len(spans)
        guesses += len(guessed)
    return {
        "precision": _ratio(hits, guesses),
        "recall": _ratio(hits, gold),
        "f1": _ratio(2 * hits, gold + guesses),
        "accuracy": accuracy,
    }


def word_accuracy(y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]) -> float:
    """Returns the share of words with the correct tag, 0 without words; for any kind of tags.

    Args:
        y_true: the gold tags of each sentence.
        y_pred: the predicted tags of each sentence.

    Raises:
        ValueError: if the numbers of sentences or words differ.
    """
    if len(y_true) != len(y_pred):
        raise ValueError(f"{len(y_pred)} sentences were predicted, expected {len(y_true)}.")
    right = words = 0
    for row, (expected, predicted) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(expected) != len(predicted):
            raise ValueError(
                f"Sentence {row} has {len(predicted)} predicted tags, expected {len(expected)}."
            )
        right += sum(a == b for a, b in zip(expected, predicted, strict=True))
        words += len(expected)
    return _ratio(right, words)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0

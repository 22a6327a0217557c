"""Exact match and F1 of extracted answers, as SQuAD counts them.

SQuAD 1.1: Rajpurkar et al. 2016, arXiv 1606.05250; 2.0, with questions that have no answer:
Rajpurkar et al. 2018, arXiv 1806.03822.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation, articles and surplus white space."""
    bare = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if a normalized gold answer is the normalized prediction, else 0.0.

    Args:
        prediction: "" for no answer.
        answers: gold ones, of which the best counts. Those with nothing left once normalized are
            padding; without others the question has no answer, and "" is right.
    """
    return _best(lambda found, gold: float(found == gold), prediction, answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of the words of the normalized prediction, 0 to 1.

    Arguments as for ``exact_match``; where either has no words, 1 if both have none.
    """
    return _best(_f1, prediction, answers)


class Threshold(NamedTuple):
    """Where answers are best withheld.

    Fields:
        threshold: a prediction is given if its no-answer score is not above it.
        score: mean score with it, in percent.
    """

    threshold: float
    score: float


def squad_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean scores in percent.

    Args:
        predictions: one for each question; "" for no answer.
        answers: of each question its gold answers; as ``exact_match`` takes them.

    Returns:
        ``exact_match`` and ``f1``; where questions with and without an answer are both there, also
        ``has_answer_exact_match``, ``has_answer_f1``, ``no_answer_exact_match`` and
        ``no_answer_f1``, of these alone.

    Raises:
        ValueError: for lists that differ in length, or no questions.
    """
    _check_lengths(predictions=predictions, answers=answers)
    rows = list(zip(predictions, answers, strict=True))
    scores = {
        "exact_match": np.array([exact_match(*row) for row in rows]),
        "f1": np.array([f1(*row) for row in rows]),
    }
    result = {name: 100 * float(values.mean()) for name, values in scores.items()}
    has = _has_answer(answers)
    if has.any() and not has.all():
        for prefix, kind in (("has_answer", has), ("no_answer", ~has)):
            for name, values in scores.items():
                result[f"{prefix}_{name}"] = 100 * float(values[kind].mean())
    return result


def best_threshold(
    predictions: Sequence[str],
    answers: Sequence[Sequence[str]],
    no_answer_scores: Sequence[float],
    metric: Callable[[str, Sequence[str]], float] = f1,
) -> Threshold:
    """The threshold at which the mean score is highest, as SQuAD 2.0's script searches for it.

    Args:
        predictions: one for each question, none withheld.
        answers: as for ``squad_scores``.
        no_answer_scores: of each question, how much more likely no answer is than the prediction.
        metric: ``f1`` or ``exact_match``.

    Returns:
        The lowest of the best thresholds: one of the scores, or ``-inf`` where no answer at all is
        best.

    Raises:
        ValueError: for lists that differ in length, no questions, or a score that is NaN.
    """
    _check_lengths(predictions=predictions, answers=answers, no_answer_scores=no_answer_scores)
    scores = np.asarray(no_answer_scores, float)
    if np.isnan(scores).any():
        raise ValueError(f"no_answer_scores[{int(np.isnan(scores).argmax())}] is NaN.")
    withheld = (~_has_answer(answers)).astype(float)
    given = [metric(*row) for row in zip(predictions, answers, strict=True)]
    order = np.argsort(scores, kind="stable")
    steps = np.concatenate([[withheld.sum()], (np.array(given) - withheld)[order]])
    totals, thresholds = np.cumsum(steps), np.concatenate([[-math.inf], scores[order]])
    # Predictions with the same score are given or withheld together.
    last = np.append(thresholds[1:] != thresholds[:-1], True)
    totals, thresholds = totals[last], thresholds[last]
    best = int(np.argmax(totals))
    return Threshold(float(thresholds[best]), 100 * float(totals[best]) / len(scores))


def _gold(answers: Sequence[str]) -> list[str]:
    return [gold for gold in map(normalize, answers) if gold] or [""]


def _has_answer(answers: Sequence[Sequence[str]]) -> np.ndarray:
    return np.array([_gold(gold) != [""] for gold in answers])


def _best(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    if isinstance(answers, str):
        raise ValueError(f"Gold answers are a list of strings, not the string {answers!r}.")
    found = normalize(prediction)
    return max(score(found, gold) for gold in _gold(answers))


def _f1(found: str, gold: str) -> float:
    words, wanted = found.split(), gold.split()
    if not words or not wanted:
        return float(words == wanted)
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted))


def _check_lengths(**lists: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) != 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"There are {counts}; expected one of each for each question.")
    if not next(iter(lengths.values())):
        raise ValueError("There are no questions to score.")

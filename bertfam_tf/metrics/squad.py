"""Exact match and F1 of extracted answers, as in SQuAD.

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
    """Lower-cases an answer; removes ASCII punctuation, articles and extra white space."""
    bare = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Returns 1.0 if the normalized prediction is a normalized gold answer, else 0.0.

    Args:
        prediction: "" for no answer.
        answers: gold answers; the best match is used. Answers that are empty after normalization
            are padding; if there are no others, the question has no answer, and "" is correct.
    """
    return _best(lambda predicted, gold: float(predicted == gold), prediction, answers)


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Computes the F1 of the words of the normalized prediction, from 0 to 1.

    Arguments as for ``exact_match``; if either has no words, 1 if both have none, else 0.
    """
    return _best(_f1, prediction, answers)


class Threshold(NamedTuple):
    """The best threshold for predicting that there is no answer.

    Fields:
        threshold: a prediction is used if its no-answer score is not above the threshold.
        score: the mean score with this threshold, in percent.
    """

    threshold: float
    score: float


def squad_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes mean scores in percent.

    Args:
        predictions: one for each question; "" for no answer.
        answers: the gold answers of each question, as for ``exact_match``.

    Returns:
        ``exact_match`` and ``f1``; if there are questions with and without an answer, also
        ``has_answer_exact_match``, ``has_answer_f1``, ``no_answer_exact_match`` and
        ``no_answer_f1``, for these questions only.

    Raises:
        ValueError: if the lists differ in length, or there are no questions.
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
    """Returns the threshold with the highest mean score, computed as in SQuAD 2.0's script.

    Args:
        predictions: one for each question, without applying a threshold.
        answers: the same as for ``squad_scores``.
        no_answer_scores: for each question, the score of no answer minus the score of the
            prediction.
        metric: ``f1`` or ``exact_match``.

    Returns:
        The lowest of the best thresholds: one of the scores, or ``-inf`` if predicting no answer
        for all questions is best.

    Raises:
        ValueError: if the lists differ in length, there are no questions, or a score is NaN.
    """
    _check_lengths(predictions=predictions, answers=answers, no_answer_scores=no_answer_scores)
    scores = np.asarray(no_answer_scores, float)
    if np.isnan(scores).any():
        raise ValueError(f"no_answer_scores[{int(np.isnan(scores).argmax())}] is NaN.")
    withheld = (~_has_answer(answers)).astype(float)
    predicted_scores = [metric(*row) for row in zip(predictions, answers, strict=True)]
    order = np.argsort(scores, kind="stable")
    steps = np.concatenate([[withheld.sum()], (np.array(predicted_scores) - withheld)[order]])
    totals, thresholds = np.cumsum(steps), np.concatenate([[-math.inf], scores[order]])
    # A threshold cannot separate predictions with the same score.
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
        raise ValueError(f"Gold answers must be a list of strings, got the string {answers!r}.")
    predicted = normalize(prediction)
    return max(score(predicted, gold) for gold in _gold(answers))


def _f1(predicted: str, gold: str) -> float:
    words, gold_words = predicted.split(), gold.split()
    if not words or not gold_words:
        return float(words == gold_words)
    shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * shared / (len(words) + len(gold_words))


def _check_lengths(**lists: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) != 1:
        counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"There are {counts}; expected one of each for each question.")
    if not next(iter(lengths.values())):
        raise ValueError("There are no questions to score.")

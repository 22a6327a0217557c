"""Minimal pairs of sentences, such as BLiMP (Warstadt et al. 2020, arXiv 1912.00582)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import files, parsing

_SUFFIXES = (".jsonl", ".jsonl.gz")


def read_minimal_pairs(folder: str | Path) -> dict[str, list[tuple[str, str]]]:
    """Reads a folder of paradigms, each a file ``NAME.jsonl`` or ``NAME.jsonl.gz``.

    Args:
        folder: its files have a JSON object in each line, with ``sentence_good`` and
            ``sentence_bad``.

    Returns:
        The pairs of each paradigm, acceptable sentence first, by the name of the file, sorted.

    Raises:
        ValueError: if there is no such file, several are of one paradigm, or a line is not such an
            object.
    """
    folder = Path(folder)
    members = sorted(f for f in folder.iterdir() if f.name.endswith(_SUFFIXES))
    if not members:
        raise ValueError(f"{folder} has no files named {' or '.join('*' + s for s in _SUFFIXES)}.")
    pairs: dict[str, list[tuple[str, str]]] = {}
    for file in members:
        name = file.name.split(".jsonl")[0]
        if name in pairs:
            raise ValueError(f"{folder} has several files of the paradigm {name}, expected one.")
        pairs[name] = _read(file)
    return pairs


def minimal_pairs(
    task: Any,
    pairs: str | Path | Mapping[str, Sequence[tuple[str, str]]],
    *,
    batch_size: int = 32,
    verbose: Any = 1,
    file: str | Path | None = None,
) -> dict[str, float]:
    """Computes how often a language model prefers the acceptable sentence of a minimal pair.

    A sentence's score is its log-likelihood: of a masked language model the pseudo-log-likelihood
    (Salazar et al. 2020, arXiv 1910.14659). Equal scores count as wrong.

    Args:
        task: has a method ``log_likelihood``: a ``MaskedLM`` or a ``CausalLM``.
        pairs: the pairs of each paradigm, acceptable sentence first; or a folder as
            ``read_minimal_pairs`` reads it, such as BLiMP's.
        batch_size: sentences that are scored together.
        verbose: 0 prints no progress bar.
        file: a JSON file, written after each paradigm, from which an interrupted scoring of the
            same model resumes; paradigms whose pairs have changed are scored again. None to keep
            nothing.

    Returns:
        The fraction of pairs by paradigm, and ``mean``, the mean of the paradigms.

    Raises:
        TypeError: if the task is no language model.
        ValueError: if there are no pairs, a file is invalid, or ``file`` is of another model.
        OSError: if ``file`` cannot be written.
    """
    if not hasattr(task, "log_likelihood"):
        raise TypeError(
            f"task must be a MaskedLM or a CausalLM, which have log_likelihood, got a "
            f"{type(task).__name__}."
        )
    if not isinstance(pairs, Mapping):
        pairs = read_minimal_pairs(pairs)
    if not pairs or not all(map(len, pairs.values())):
        raise ValueError("pairs must have at least one pair in each paradigm.")
    kept = _Scores(task, pairs, None if file is None else Path(file))
    fractions: dict[str, float] = {}
    bar = keras.utils.Progbar(len(pairs), verbose=verbose, unit_name="paradigm")
    for number, (name, rows) in enumerate(pairs.items(), 1):
        known = kept.get(name, rows)
        fractions[name] = _fraction(task, rows, batch_size) if known is None else known
        if known is None:
            kept.add(name, rows, fractions[name])
        bar.update(number, [("accuracy", fractions[name])])
    return {**fractions, "mean": float(np.mean(list(fractions.values())))}


def _fraction(task: Any, rows: Sequence[tuple[str, str]], batch_size: int) -> float:
    # Sentences of about one length together.
    sentences = sorted({text for pair in rows for text in pair}, key=len)
    scores = task.log_likelihood(sentences, batch_size=batch_size)
    by_sentence = dict(zip(sentences, scores.tolist(), strict=True))
    return float(np.mean([by_sentence[good] > by_sentence[bad] for good, bad in rows]))


class _Scores:
    """The file of an interrupted scoring: for one model, which the scores of a pair identify.

    Args:
        task: the model.
        pairs: all pairs.
        file: the file; None keeps nothing.

    Raises:
        ValueError: if the file is of another model, or has something else.
    """

    def __init__(
        self, task: Any, pairs: Mapping[str, Sequence[tuple[str, str]]], file: Path | None
    ):
        self._file = file
        self._content: dict[str, Any] = {"pair": [], "log_likelihoods": [], "paradigms": {}}
        if file is None:
            return
        if file.exists():
            self._content = _stored(file)
        # Alone in a batch, so that the same model computes the same numbers again.
        pair = self._content["pair"] or list(next(iter(pairs.values()))[0])
        scores = task.log_likelihood(pair, batch_size=2).tolist()
        if self._content["pair"] and not np.allclose(
            scores, self._content["log_likelihoods"], rtol=1e-4
        ):
            raise ValueError(
                f"{file} has scores of another model; choose another file, or remove this one."
            )
        self._content |= {"pair": pair, "log_likelihoods": scores}

    def get(self, name: str, rows: Sequence[tuple[str, str]]) -> float | None:
        """Returns the fraction of a paradigm; None if it is unknown, or of other pairs."""
        stored = self._content["paradigms"].get(name)
        return stored["accuracy"] if stored and stored["sha256"] == _digest(rows) else None

    def add(self, name: str, rows: Sequence[tuple[str, str]], fraction: float) -> None:
        """Adds a paradigm and writes the file."""
        if self._file is not None:
            entry = {"accuracy": fraction, "sha256": _digest(rows)}
            self._content["paradigms"][name] = entry
            files.write(self._file, json.dumps(self._content, indent=2) + "\n")


def _digest(rows: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256(json.dumps([list(pair) for pair in rows]).encode()).hexdigest()


def _stored(file: Path) -> dict[str, Any]:
    content = parsing.read_json(file)
    try:
        pair, scores = content["pair"], content["log_likelihoods"]
        paradigms = content["paradigms"].values()
        valid = all(isinstance(x["sha256"], str) and 0 <= x["accuracy"] <= 1 for x in paradigms)
        valid &= len(pair) == 2 and all(isinstance(text, str) for text in pair)
        valid &= np.shape(np.asarray(scores, "float64")) == (2,)
    except (AttributeError, KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(f"{file} has no scores of minimal pairs; remove it to start anew.")
    return content


def _read(file: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(parsing.byte_lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            pair = row["sentence_good"], row["sentence_bad"]
            valid = all(isinstance(text, str) and text.encode() for text in pair)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{file}, line {number}: expected a JSON object with sentence_good and "
                f"sentence_bad, got {line.strip().decode('utf-8', 'backslashreplace')[:80]!r}."
            ) from error
        if not valid:
            raise ValueError(f"{file}, line {number}: sentences must be non-empty text.")
        pairs.append(pair)
    if not pairs:
        raise ValueError(f"{file} has no pairs.")
    return pairs

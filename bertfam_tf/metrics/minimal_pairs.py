"""Minimal pairs of sentences, such as BLiMP (Warstadt et al. 2020, arXiv 1912.00582)."""

from __future__ import annotations

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
            same model resumes; None to keep nothing.

    Returns:
        The fraction of pairs by paradigm, and ``mean``, the mean of the paradigms.

    Raises:
        TypeError: if the task is no language model.
        ValueError: if there are no pairs, or a file is invalid.
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
    fractions = {} if file is None else _stored(Path(file))
    bar = keras.utils.Progbar(len(pairs), verbose=verbose, unit_name="paradigm")
    for number, (name, rows) in enumerate(pairs.items(), 1):
        if name not in fractions:
            fractions[name] = _fraction(task, rows, batch_size)
            if file is not None:
                files.write(file, json.dumps(fractions, indent=2) + "\n")
        bar.update(number, [("accuracy", fractions[name])])
    fractions = {name: fractions[name] for name in pairs}
    return {**fractions, "mean": float(np.mean(list(fractions.values())))}


def _fraction(task: Any, rows: Sequence[tuple[str, str]], batch_size: int) -> float:
    # Sentences of about one length together.
    sentences = sorted({text for pair in rows for text in pair}, key=len)
    scores = task.log_likelihood(sentences, batch_size=batch_size)
    by_sentence = dict(zip(sentences, scores.tolist(), strict=True))
    return float(np.mean([by_sentence[good] > by_sentence[bad] for good, bad in rows]))


def _stored(file: Path) -> dict[str, float]:
    stored = parsing.read_json(file) if file.exists() else {}
    if not isinstance(stored, dict) or not all(isinstance(x, float) for x in stored.values()):
        raise ValueError(f"{file} must have a number for each paradigm; remove it to start anew.")
    return stored


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

"""Minimal pairs of sentences, such as BLiMP (Warstadt et al. 2020, arXiv 1912.00582)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

_SUFFIXES = (".jsonl", ".jsonl.gz")


def read_minimal_pairs(folder: str | Path) -> dict[str, list[tuple[str, str]]]:
    """Reads a folder of paradigms, each a file ``NAME.jsonl`` or ``NAME.jsonl.gz``.

    Args:
        folder: its files have a JSON object in each line, with ``sentence_good`` and
            ``sentence_bad``.

    Returns:
        The pairs of each paradigm, acceptable sentence first, by the name of the file, sorted.

    Raises:
        ValueError: if there is no such file, or a line is not such an object.
    """
    folder = Path(folder)
    files = sorted(f for f in folder.iterdir() if f.name.endswith(_SUFFIXES))
    if not files:
        raise ValueError(f"{folder} has no files named {' or '.join('*' + s for s in _SUFFIXES)}.")
    return {file.name.split(".jsonl")[0]: _read(file) for file in files}


def _read(file: Path) -> list[tuple[str, str]]:
    opened = gzip.open if file.suffix == ".gz" else open
    pairs = []
    with opened(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                pair = row["sentence_good"], row["sentence_bad"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{file}, line {number}: expected a JSON object with sentence_good and "
                    f"sentence_bad, got {line.strip()[:80]!r}."
                ) from error
            if not all(isinstance(text, str) and text for text in pair):
                raise ValueError(f"{file}, line {number}: sentences must be non-empty text.")
            pairs.append(pair)
    if not pairs:
        raise ValueError(f"{file} has no pairs.")
    return pairs

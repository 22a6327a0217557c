"""The files of reference ids that ``tools/make_tokenizer_references.py`` writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support import texts

DIRECTORY = texts.ROOT / "build" / "tokenizer-references"


def path_of(name: str, kind: str, section: texts.Section) -> Path:
    """Returns the file of one section's ids."""
    slug = f"{section.group} {section.name}".replace(",", "").replace(" ", "-").lower()
    return DIRECTORY / name / kind / f"{slug}.npz"


def read_ids(path: Path, section: texts.Section) -> list[list[int]] | None:
    """Returns the ids of each line; None if the file does not exist or is for other lines."""
    if not is_done(path, section):
        return None
    stored = np.load(path)
    return [row.tolist() for row in np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])]


def is_done(path: Path, section: texts.Section) -> bool:
    """Returns whether the file exists and is for these lines."""
    return path.exists() and str(np.load(path)["digest"]) == section.digest()

"""Writes the image captions of Multi30k as text of several languages and translations.

    python -m tools.captions runs/captions

``train.en`` and ``dev.en`` have a caption in each line; the same line of ``train.fr`` or
``train.de`` is its translation.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from tests.support.texts import DATA

LANGUAGES = ("en", "de", "fr")
# Our name of a split -> theirs.
SPLITS = {"train": "train", "dev": "val"}


def captions(split: str, language: str) -> list[str]:
    """The captions of a split of Multi30k, ``train``, ``val`` or ``test_2016_flickr``."""
    file = DATA / "multi30k" / "raw" / f"{split}.{language}.gz"
    return gzip.decompress(file.read_bytes()).decode().strip().split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, theirs in SPLITS.items():
        for language in LANGUAGES:
            lines = captions(theirs, language)
            (directory / f"{name}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{name}: {len(lines):,} captions in {', '.join(LANGUAGES)}")


if __name__ == "__main__":
    main()

"""Writes the image captions of Multi30k as text of several languages and translations.

    python -m tools.captions runs/captions

``train.en`` and ``dev.en`` have a caption in each line; the same line of ``train.fr`` or
``train.de`` is its translation.
"""

import argparse
import gzip
from pathlib import Path

from tests.support.texts import DATA

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for name, published in (("train", "train"), ("dev", "val")):
        for language in ("en", "de", "fr"):
            file = DATA / "multi30k" / "raw" / f"{published}.{language}.gz"
            text = gzip.decompress(file.read_bytes()).strip()
            (directory / f"{name}.{language}").write_bytes(text + b"\n")
            print(f"{name}.{language}: {len(text.splitlines()):,} captions")

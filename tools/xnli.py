"""Splits XNLI's validation files by row, for training in English and scoring in other languages.

    python -m tools.xnli runs/xnli_data

XNLI's files of all languages have the same 2,490 pairs in the same order, three with each premise.
The first 80% of the rows are for training, in English, and the others for scoring, in each
language, so that no pair and no premise is in both.  ``train.en.tsv`` and ``dev.LANGUAGE.tsv`` have
the columns premise, hypothesis and label, without a header; ``text.LANGUAGE`` has the sentences of
the training rows, one in each line, whose translation is the same line of the other languages, for
pretraining; ``heldout.LANGUAGE`` has the last tenth of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.support.texts import DATA

LANGUAGES = ("en", "fr", "de", "es", "zh", "ar")
TRAIN, HELD_OUT = 0.8, 0.1


def rows(language: str) -> list[list[str]]:
    """Premise, hypothesis and label of each row of a language's validation file."""
    text = (DATA / f"xnli/dev-{language}.tsv").read_bytes().decode("utf-8").replace("\r\n", "\n")
    return [line.split("\t") for line in text.split("\n") if line]


def split(given: list[list[str]], part: float) -> tuple[list[list[str]], list[list[str]]]:
    """The first rows and the others, with all rows of a premise on the same side."""
    premises = list(dict.fromkeys(premise for premise, *_ in given))
    first = set(premises[: round(len(premises) * part)])
    return [r for r in given if r[0] in first], [r for r in given if r[0] not in first]


def sentences(given: list[list[str]]) -> list[str]:
    """Each premise once, followed by its hypotheses."""
    by_premise: dict[str, list[str]] = {}
    for premise, hypothesis, _ in given:
        by_premise.setdefault(premise, []).append(hypothesis)
    return [text for premise, others in by_premise.items() for text in (premise, *others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        train, dev = split(rows(language), TRAIN)
        text, held_out = split(train, 1 - HELD_OUT)
        files = {
            f"dev.{language}.tsv": ["\t".join(row) for row in dev],
            f"text.{language}": sentences(text),
            f"heldout.{language}": sentences(held_out),
        }
        if language == "en":
            files["train.en.tsv"] = ["\t".join(row) for row in train]
        for name, lines in files.items():
            (directory / name).write_text("\n".join(lines) + "\n", "utf-8", newline="\n")
        print(f"{language}: {len(train):,} rows to train, {len(dev):,} to score")


if __name__ == "__main__":
    main()

"""Writes tests/metrics/seqeval.json: random tags and their scores by seqeval.

    pip install seqeval==1.2.2 && python tools/make_entity_goldens.py

Sentences in three schemes, with tags that follow the scheme, and random predictions that may not.
"""

import json
import random
from pathlib import Path

from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

TARGET = Path(__file__).parents[1] / "tests" / "metrics" / "seqeval.json"
TYPES = ("PER", "LOC", "A-B")
PREFIXES = {"IOB1": "IB", "IOB2": "BI", "IOBES": "BIES"}


def _obeying(rng: random.Random, scheme: str, length: int) -> list[str]:
    tags: list[str] = []
    before = ""
    while len(tags) < length:
        if rng.random() < 0.4:
            tags.append("O")
            before = ""
            continue
        kind, size = rng.choice(TYPES), rng.randint(1, min(3, length - len(tags)))
        inner = ["I"] * size
        if scheme == "IOB2" or (scheme == "IOB1" and before == kind):
            inner[0] = "B"
        elif scheme == "IOBES":
            inner = ["S"] if size == 1 else ["B", *["I"] * (size - 2), "E"]
        tags += [f"{prefix}-{kind}" for prefix in inner]
        before = kind
    return tags


def _random(rng: random.Random, scheme: str, wanted: list[str]) -> list[str]:
    every = ["O", *(f"{p}-{kind}" for p in PREFIXES[scheme] for kind in TYPES)]
    return [tag if rng.random() < 0.6 else rng.choice(every) for tag in wanted]


def build() -> list[dict]:
    rng = random.Random(0)
    cases = []
    for scheme in PREFIXES:
        for number in range(20):
            wanted = [_obeying(rng, scheme, rng.randint(1, 14)) for _ in range(4)]
            found = [_random(rng, scheme, row) for row in wanted]
            if number == 0:
                found = [["O"] * len(row) for row in wanted]
            if number == 1:
                wanted = [["O"] * len(row) for row in wanted]
            scores = {
                "precision": precision_score(wanted, found, zero_division=0),
                "recall": recall_score(wanted, found, zero_division=0),
                "f1": f1_score(wanted, found, zero_division=0),
                "accuracy": accuracy_score(wanted, found),
            }
            cases.append(
                {
                    "scheme": scheme,
                    "wanted": [" ".join(row) for row in wanted],
                    "found": [" ".join(row) for row in found],
                    "entities": [get_entities(row) for row in found],
                    "scores": {name: round(float(score), 12) for name, score in scores.items()},
                }
            )
    return cases


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in build())
    TARGET.write_text(f"[\n{lines}\n]\n", "utf-8")

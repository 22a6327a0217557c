"""Measured numbers in the guides stand in the results that the guides link to."""

import functools
import re
from decimal import Decimal
from pathlib import Path

import pytest

from tools.docs import links

GUIDES = sorted((links.ROOT / "docs" / "guides").glob("*.md"))
RESULTS = links.ROOT / "tools" / "results"
# Tables that are written by hand, for single measurements without a tool.
MEASUREMENTS = links.ROOT / "docs" / "measurements.md"

# Numbers with a unit that nobody measured.
NOT_MEASURED = {
    "data": {"64"},  # the limits of compressed files, in MiB and as a factor
    "experiments": {"95"},  # the level of an interval
    "batch-inference": {"256"},  # the default of --shard-bytes, in KB
    "few-shot": {"2e-5"},  # the default learning rate
    "fine-tuning": {"10"},  # warm-up, in % of the steps
    # The example of how many cores: a target, and 8.2 ms in seconds. The size of a BERT-base.
    "production": {"500", "0.0082", "440"},
}

_NUMBER = r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?(?:e-\d+)?)"
_UNIT = (
    r"(?:ms|µs|s|seconds?|minutes?|hours?|[KMG]B|[KMG]iB|MB/s|%|×|times|points?"
    r"|(?:short )?(?:sentences|texts|tokens|examples|requests)(?:/s| per second))"
)
_WITH_UNIT = re.compile(rf"{_NUMBER} ?{_UNIT}(?![\w/])")
# "8 to 13 ms" and "90 and 45 MB" give the unit once.
_RANGE = re.compile(rf"{_NUMBER} (?:to|and|or) (?=[\d.,e-]+ ?{_UNIT}(?![\w/]))")
# Scores have no unit: from 0 to 100 with one or two digits after the point, or from 0 to 1.
_SCORE = re.compile(r"(?<![\w.,/-])(\d\d\.\d{1,2}|0\.\d{2,}|\d+(?:\.\d+)?e-\d+)(?!\w|\.\d)")
_PATTERNS = (_WITH_UNIT, _RANGE, _SCORE)


def numbers(text: str) -> list[str]:
    """Returns the numbers of a page that look measured, outside of code and of links' targets."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    text = " ".join(text.split())
    matches = [match for pattern in _PATTERNS for match in pattern.finditer(text)]
    return list(dict.fromkeys(match[1] for match in sorted(matches, key=re.Match.start)))


@functools.cache
def stored(file: Path) -> frozenset[Decimal]:
    """Returns all numbers of a file."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", file.read_text("utf-8"))
    return frozenset(map(Decimal, re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)))


def unsupported(text: str, files: list[Path]) -> list[str]:
    """Returns the numbers of a page to which no number in the files can be rounded."""
    known = frozenset().union(*map(stored, files))

    def supported(number: str) -> bool:
        value = Decimal(number.replace(",", ""))
        half = Decimal((0, (5,), value.as_tuple().exponent - 1))
        return any(abs(value - other) <= half for other in known)

    return [number for number in numbers(text) if not supported(number)]


def linked(text: str) -> list[Path]:
    """Returns the results that a page links to."""
    names = set(re.findall(r"tools/results/(\w+\.md)", text))
    files = [RESULTS / name for name in sorted(names)]
    return files + [MEASUREMENTS] * ("../measurements.md" in text)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_measured_numbers_stand_in_results(page):
    text = page.read_text("utf-8")
    missing = set(unsupported(text, linked(text)))
    assert missing == NOT_MEASURED.get(page.stem, set())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It takes 12 ms.", ["12"]),
        ("It takes 8 to 13 ms.", ["8", "13"]),
        ("It has 1,860 MB, or 99 %.", ["1,860", "99"]),
        ("It is 2.3 times as fast.", ["2.3"]),
        ("It reaches 65.6, from 0.94.", ["65.6", "0.94"]),
        ("They differ by 5.3e-07.", ["5.3e-07"]),
        ("TensorFlow Serving 2.20.0, arXiv 1908.08593, `limit=12.5`, [x](a/12.5.md)", []),
        ("```\nsleep 12 s\n```\n\n15 languages", []),
    ],
)
def test_what_counts_as_measured(text, expected):
    assert numbers(text) == expected


def test_a_number_without_a_file_is_found(tmp_path):
    file = tmp_path / "speed.md"
    file.write_text("| 1,234.3 | 12.5 |\n", "utf-8")
    assert unsupported("It takes 12.5 s, or 13 s, and 1,234 MB.", [file]) == []
    assert unsupported("It takes 12.4 s and 1,235 MB.", [file]) == ["12.4", "1,235"]

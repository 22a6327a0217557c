"""Writes the books of the data folder as training text for language models.

    python -m tools.books runs/books

Each line is a paragraph; Project Gutenberg's header and footer are removed. ``train.txt`` has all
books except two, which are in ``dev.txt``; ``train`` and ``dev`` have a file for each book;
``train.words.txt`` and ``dev.words.txt`` have the same text in lower case with spaces around
punctuation, for word vocabularies.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tests.support import texts

HELD_OUT = ("pg11.txt", "pg46.txt")
_HEADER = re.compile(r"\*\*\* ?START OF .*?\*\*\*(.*)\*\*\* ?END OF ", re.DOTALL)
_PUNCTUATION = re.compile(r"(--|[^\w\s'’])")


def paragraphs(book: Path) -> list[str]:
    """The paragraphs of a book, each in one line."""
    text = book.read_text("utf-8-sig")
    inside = _HEADER.search(text)
    parts = (inside[1] if inside else text).split("\n\n")
    return [" ".join(part.split()) for part in parts if part.strip()]


def in_words(text: str) -> str:
    """Lower-cases text and separates words and punctuation by spaces."""
    return " ".join(_PUNCTUATION.sub(r" \1 ", text.lower().replace("_", " ")).split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    books = sorted((texts.DATA / "gutenberg").glob("*.txt"))
    for name, chosen in (
        ("train", [book for book in books if book.name not in HELD_OUT]),
        ("dev", [book for book in books if book.name in HELD_OUT]),
    ):
        lines = [line for book in chosen for line in paragraphs(book)]
        (directory / name).mkdir(exist_ok=True)
        for book in chosen:
            file = directory / name / book.name
            file.write_text("\n".join(paragraphs(book)) + "\n", "utf-8")
        (directory / f"{name}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        words = "\n".join(map(in_words, lines)) + "\n"
        (directory / f"{name}.words.txt").write_text(words, "utf-8")
        size = f"{len(lines):,} paragraphs, {len(words.split()):,} words"
        print(f"{name}: {len(chosen)} books, {size}")


if __name__ == "__main__":
    main()

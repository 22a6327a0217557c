"""Reads the column format of the CoNLL shared tasks, with one word per line."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from bertfam_tf import parsing
from bertfam_tf.data.rows import InvalidRow, Row

# Other white space, such as a no-break space, does not separate columns.
_BETWEEN = re.compile(rb"[ \t]+")
_DOCUMENT = b"-DOCSTART-"
# Comments of CoNLL-U, MultiCoNER and GermEval. A sentence may also begin with the word #.
_COMMENT = re.compile(rb"#[ \t]+(?:id[ \t]|(?:newdoc|newpar)\b|[\w.:-]+ = |https?://)")


def conll_rows(file: Path, word: int = 0, tag: int | None = -1) -> Iterator[Row | InvalidRow]:
    """Yields sentences: ``text`` has the words and the label the tags, separated by spaces.

    Args:
        file: a text file with columns separated by spaces or tabs; an empty line ends a sentence.
            Lines that start with -DOCSTART- are skipped, and comments before a sentence, such as
            ``# id 7`` and ``# text = …``.
        word, tag: column indices; negative ones count from the end. Without a tag there are no
            labels.
    """
    words: list[bytes] = []
    tags: list[str] = []
    began, width = 0, None
    wrong: InvalidRow | None = None
    broken = ""
    for number, line in enumerate(itertools.chain(_lines(file), [b""]), 1):
        line = line.strip(b" \t\r\n")
        if not line or line.startswith(_DOCUMENT):
            if wrong is not None:
                yield wrong
            elif words:
                label = None if tag is None else tags
                row = Row(f"{file}: line {began}", {"text": b" ".join(words)}, label)
                yield row._replace(not_utf8=broken)
            words, tags, wrong, broken = [], [], None, ""
            continue
        if not words and wrong is None and _COMMENT.match(line):
            continue
        cells = _BETWEEN.split(line)
        width = width or len(cells)
        began = number if not words and wrong is None else began
        location = f"{file}: line {number}"
        if len(cells) != width:
            text = f"{location} has {len(cells)} columns; expected {width}"
            wrong = wrong or InvalidRow("columns", f"{text}, as in the previous lines.")
            continue
        if not line.isascii():
            broken = broken or parsing.not_utf8(location, line)
        last = max(index if index >= 0 else -index - 1 for index in (word, tag or 0))
        if last >= width:
            raise ValueError(f"{file} has {width} columns; there is no column {word} or {tag}.")
        if tag is not None and word % width == tag % width:
            raise ValueError(f"{file} has words in the column of tags; expected one for each.")
        words.append(cells[word])
        if tag is not None:
            text = cells[word].decode("utf-8", "replace")
            if text.split() != [text]:
                problem = f"{location}: the word {text!r} has white space, which separates words."
                wrong = wrong or InvalidRow("word", problem)
            tags.append(cells[tag].decode("utf-8", "replace"))


def _lines(file: Path) -> Iterator[bytes]:
    """Yields lines, where a carriage return alone ends one too."""
    for line in parsing.byte_lines(file):
        yield from line.rstrip(b"\r\n").split(b"\r")

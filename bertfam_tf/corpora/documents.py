"""Documents and sentences of text files."""

from __future__ import annotations

import glob
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bertfam_tf import parsing
from bertfam_tf.validation import one_of

DOCUMENTS = ("blank_line", "file", "line")
SENTENCES = ("line", "split")

# Sentence-final punctuation and closing quotes or brackets, and what may come before the letter or
# digit that begins a sentence. Sentences of Chinese and Japanese have no white space between them.
_WIDE = "。！？｡"
_CLOSING = "[\"'”’»›)\\]」』】》）]*+"
_OPENING = "[\"'“‘„‚«‹(\\[「『【《（¿¡]*"
_END = re.compile(
    rf"[.!?…؟۔।॥།။។։{_WIDE}]"
    rf"(?:(?<![{_WIDE}])({_CLOSING})\s+|(?<=[{_WIDE}])(?<![{_WIDE}]{{2}})([{_WIDE}]*+{_CLOSING})\s*+)"
    rf"(?={_OPENING}([^\W_]))"
)


def split_sentences(text: str) -> list[str]:
    """Splits a paragraph after full stops, question marks and exclamation marks.

    Not before small letters, such as after most abbreviations; abbreviations before names are split
    too: pretraining needs no exact sentences.
    """
    sentences, start = [], 0
    for match in _END.finditer(text):
        _, wide, first = match.groups()
        if wide is None and first.islower():
            continue
        sentences.append(text[start : match.end(1 if wide is None else 2)])
        start = match.end()
    return [*sentences, text[start:]]


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """Finds files by name or by patterns such as ``books/*.txt``, whose files are sorted.

    Raises:
        ValueError: if a name or pattern matches no file.
    """
    all_files: list[Path] = []
    for pattern in map(str, patterns):
        matches = sorted(glob.glob(pattern, recursive=True)) or [pattern]
        files = [Path(match) for match in matches if Path(match).is_file()]
        if not files:
            raise ValueError(f"There is no file {pattern}.")
        all_files += files
    return all_files


class FileRange(NamedTuple):
    """The documents of a text file whose preceding separator starts in a range of bytes.

    A separator is a blank line, or any line if each line is a document. The first document belongs
    to the range that starts at 0. Adjacent ranges contain each document once.

    Fields:
        file: UTF-8 text, which may be compressed by gzip.
        begin, end: the range, in bytes; ``end`` is exclusive, None for the end of the file. Of a
            compressed file, it is the whole file.
    """

    file: str | Path
    begin: int = 0
    end: int | None = None

    def lines(self, documents: str) -> Iterator[str]:
        """Yields the stripped lines of the documents; see ``read_documents``."""
        inside = self.begin == 0
        for at, line in _lines(self.file, self.begin):
            if inside:
                yield line
            if documents == "line" or not line:
                if self.end is not None and at >= self.end:
                    return
                inside = True


class Texts(Protocol):
    """A source of documents: a ``FileRange``, or ``data.published.Texts``."""

    def lines(self, documents: str) -> Iterator[str]:
        """Returns the lines of all documents, stripped; ``documents`` as for ``read_documents``."""


def read_documents(
    files: Iterable[str | Path | Texts], documents: str = "blank_line", sentences: str = "line"
) -> Iterator[Iterator[str]]:
    """Reads the documents of UTF-8 text files, with one line in memory at a time.

    Files that are compressed by gzip are decompressed as they are read.

    Args:
        files: the files or ranges of files, read in this order.
        documents: the unit of a document: ``"blank_line"``, the lines up to an empty one;
            ``"file"``; or ``"line"``.
        sentences: ``"line"``, each line is a sentence, as BERT's code reads text; or ``"split"``,
            each line is a paragraph, see ``split_sentences``.

    Returns:
        For each document an iterator over its sentences, to be read before the next document.

    Raises:
        ValueError: if a value is unknown; while reading, if a file is missing or not UTF-8.
    """
    one_of("documents", documents, DOCUMENTS)
    one_of("sentences", sentences, SENTENCES)
    return _documents(files, documents, sentences)


def _documents(
    files: Iterable[str | Path | Texts], documents: str, sentences: str
) -> Iterator[Iterator[str]]:
    for file in files:
        texts = FileRange(file) if isinstance(file, str | Path) else file
        for document in _split(texts.lines(documents), documents):
            yield (
                sentence
                for line in document
                for sentence in (split_sentences(line) if sentences == "split" else [line])
                if sentence
            )


def _split(lines: Iterator[str], documents: str) -> Iterator[Iterable[str]]:
    if documents == "file":
        yield lines
        return
    if documents == "line":
        yield from ([line] for line in lines if line)
        return
    for line in lines:
        if line:
            document = _up_to_blank(line, lines)
            yield document
            for _ in document:  # the lines that were not read
                pass


def _up_to_blank(first: str, lines: Iterator[str]) -> Iterator[str]:
    line = first
    while line:
        yield line
        line = next(lines, "")


def _lines(file: str | Path, begin: int) -> Iterator[tuple[int, str]]:
    """Yields the stripped lines that start at or after a byte, with the byte of their start."""
    number = 0
    try:
        with parsing.open_binary(Path(file)) as stream:
            at = begin
            if begin:
                stream.seek(begin - 1)
                at += len(stream.readline()) - 1
            for line in stream:
                number += 1
                text = line.decode("utf-8" if at else "utf-8-sig")
                # Carriage returns are ends of lines too.
                for part in io.StringIO(text, newline=None):
                    yield at, part.strip()
                at += len(line)
    except UnicodeDecodeError as error:
        place = "" if begin else f"line {number}, "
        raise ValueError(f"{file} must be UTF-8: {place}{error}.") from None

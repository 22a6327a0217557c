"""Forms pretraining examples in RoBERTa's four formats (arXiv 1907.11692, section 4.2).

A document is a list of sentences, each a list of token ids. Every sentence is in one example, once:
a sentence that is longer than an example is divided, and nothing is truncated. (BERT's code
truncates pairs, and uses sentences of a random document a second time.) Functions are generators
that hold a few examples at a time, so that a corpus can have any size.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from bertfam_tf.validation import in_range, one_of

# Pairs that wait for a pair of another document to exchange segments with.
_WAITING = 32
# Documents that are read in turns, so that pairs of a long document mix with pairs of others.
_IN_TURNS = 16

Sentence = Sequence[int]
Document = Iterable[Sentence]


class Segments(NamedTuple):
    """An example of one or two segments, without special tokens.

    Fields:
        first, second: the token ids; ``second`` is empty in examples of one segment.
        label: the label of a pair, 0 if ``second`` follows ``first`` in their document; 1 if it is
            from another document, or precedes ``first``. None in examples of one segment.
    """

    first: list[int]
    second: list[int]
    label: int | None


def full_sentences(
    documents: Iterable[Document], length: int, separator: int | None = None
) -> Iterator[Segments]:
    """Yields FULL-SENTENCES: as many consecutive sentences as fit, across the ends of documents.

    Args:
        documents: the documents, in the order in which they are read.
        length: the maximum number of tokens, without special tokens at both ends.
        separator: the token between the sentences of two documents; None for none.
    """
    pending: list[int] = []
    for document in documents:
        # Not after another one: a document may have no tokens.
        if (
            separator is not None
            and len(pending) < length
            and pending[-1:] not in ([], [separator])
        ):
            pending.append(separator)
        for sentence in _pieces(document, length):
            if len(pending) + len(sentence) > length:
                yield Segments(pending, [], None)
                pending = []
            pending.extend(sentence)
    if pending:
        yield Segments(pending, [], None)


def doc_sentences(documents: Iterable[Document], length: int) -> Iterator[Segments]:
    """Yields DOC-SENTENCES: as many consecutive sentences of one document as fit."""
    for document in documents:
        yield from full_sentences([document], length)


def segment_pairs(
    documents: Iterable[Document],
    length: int,
    *,
    task: str = "nsp",
    short: float = 0.1,
    seed: int = 0,
) -> Iterator[Segments]:
    """Yields SEGMENT-PAIR: two segments, each of one or more consecutive sentences.

    With ``task="nsp"`` the second segment is from another document in half of the pairs: two pairs
    exchange their second segments. With ``task="sop"`` the segments of half of the pairs are
    swapped (ALBERT, arXiv 1909.11942, section 3.1). Both kinds are equally frequent, except for
    pairs at the end of a last long document, which cannot be exchanged. A sentence next to which no
    other fits is an example of one segment, without a label (BERT's code gives it a random second
    segment). With paragraphs in place of sentences, most examples are.

    Args:
        documents: the documents, sixteen of which are read in turns.
        length: the maximum number of tokens of a pair, without special tokens.
        task: ``"nsp"``, next sentence prediction; or ``"sop"``, sentence order prediction.
        short: the proportion of examples with a random smaller maximum (BERT's ``short_seq_prob``).
        seed: the seed of random draws.

    Raises:
        ValueError: if the task is unknown, the length below 2, or ``short`` not from 0 to 1.
    """
    in_range("length", length, at_least=2)
    in_range("short", short, at_least=0, at_most=1)
    draw = random.Random(seed)

    def limit() -> int:
        return draw.randint(2, length) if draw.random() < short else length

    return _labelled(_chunks(documents, length, limit), task, draw, length)


def sentence_pairs(
    documents: Iterable[Document], length: int, *, task: str = "nsp", seed: int = 0
) -> Iterator[Segments]:
    """Yields SENTENCE-PAIR: the same as ``segment_pairs``, with segments of one sentence each.

    Two sentences that are longer than ``length`` together are examples of one segment.

    Raises:
        ValueError: if the task is unknown, or the length below 2.
    """
    in_range("length", length, at_least=2)
    chunks = _chunks(documents, length, lambda: length, most=2)
    return _labelled(chunks, task, random.Random(seed), length)


def _chunks(
    documents: Iterable[Document],
    length: int,
    limit: Callable[[], int],
    most: int | None = None,
) -> Iterator[tuple[int, list[Sentence]]]:
    """Yields consecutive sentences that fit, with the number of their document, in turns.

    Args:
        length: the maximum number of tokens of a sentence; longer ones are divided.
        limit: returns the maximum number of tokens of the next chunk, if it has several sentences.
        most: the maximum number of sentences.
    """

    def of_document(number: int, document: Document) -> Iterator[tuple[int, list[Sentence]]]:
        chunk: list[Sentence] = []
        size = allowed = 0
        for sentence in _pieces(document, length):
            if chunk and (size + len(sentence) > allowed or len(chunk) == most):
                yield number, chunk
                chunk, size = [], 0
            if not chunk:
                allowed = limit()
            chunk.append(sentence)
            size += len(sentence)
        if chunk:
            yield number, chunk

    unread = enumerate(documents)
    turns = deque(of_document(*numbered) for numbered in islice(unread, _IN_TURNS))
    while turns:
        chunks = turns.popleft()
        next_chunk = next(chunks, None)
        if next_chunk is not None:
            yield next_chunk
            turns.append(chunks)
        else:
            turns.extend(of_document(*numbered) for numbered in islice(unread, 1))


def _pieces(document: Document, length: int) -> Iterator[Sentence]:
    """Returns the sentences that are not empty, divided if they are longer than ``length``."""
    for sentence in document:
        for start in range(0, len(sentence), length):
            yield sentence[start : start + length]


def _labelled(
    chunks: Iterable[tuple[int, list[Sentence]]], task: str, draw: random.Random, length: int
) -> Iterator[Segments]:
    one_of("task", task, ("nsp", "sop"))
    if task == "sop":
        return _sentence_order(chunks, draw)
    return _next_sentence(chunks, draw, length)


def _divided(chunk: list[Sentence], draw: random.Random) -> tuple[list[int], list[int]]:
    at = draw.randrange(1, len(chunk)) if len(chunk) > 1 else 1
    first, second = (list(chain.from_iterable(half)) for half in (chunk[:at], chunk[at:]))
    return first, second


def _sentence_order(
    chunks: Iterable[tuple[int, list[Sentence]]], draw: random.Random
) -> Iterator[Segments]:
    labels: list[int] = []
    for _, chunk in chunks:
        first, second = _divided(chunk, draw)
        if not second:
            yield Segments(first, [], None)
            continue
        if not labels:
            labels = draw.sample([0, 1], 2)
        label = labels.pop()
        yield Segments(second, first, 1) if label else Segments(first, second, 0)


def _next_sentence(
    chunks: Iterable[tuple[int, list[Sentence]]], draw: random.Random, length: int
) -> Iterator[Segments]:
    waiting: list[_Waiting] = []
    exchanged: list[Segments] = []
    positive: list[Segments] = []
    for number, chunk in chunks:
        first, second = _divided(chunk, draw)
        if not second:
            yield Segments(first, [], None)
            continue
        pair = _Waiting(number, first, second)
        other = next((candidate for candidate in waiting if candidate.fits(pair, length)), None)
        if len(positive) < len(exchanged):
            positive.append(Segments(first, second, 0))
        elif other is None:
            waiting.append(pair)
        else:
            waiting.remove(other)
            exchanged += [Segments(other.first, second, 1), Segments(first, other.second, 1)]
        if len(waiting) > _WAITING:  # of a long document
            oldest = waiting.pop(0)
            positive.append(Segments(oldest.first, oldest.second, 0))
        while len(exchanged) >= 2 and len(positive) >= 2:
            pairs = [exchanged.pop(0), exchanged.pop(0), positive.pop(0), positive.pop(0)]
            draw.shuffle(pairs)
            yield from pairs
        while len(positive) > 2 * _WAITING:
            yield positive.pop(0)
    yield from positive + exchanged
    for candidate in waiting:
        yield Segments(candidate.first, candidate.second, 0)


class _Waiting(NamedTuple):
    """A pair whose second segment may be exchanged."""

    document: int
    first: list[int]
    second: list[int]

    def fits(self, other: _Waiting, length: int) -> bool:
        """Returns whether both are of different documents, and fit ``length`` when exchanged."""
        longest = max(len(self.first) + len(other.second), len(other.first) + len(self.second))
        return self.document != other.document and longest <= length

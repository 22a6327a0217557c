"""The texts that all engines answer, and what is known of them before anything is measured."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import texts

CLASSIFY, EMBED, TAG, ANSWER = "classify", "embed", "tag", "answer"
KINDS = (CLASSIFY, EMBED, TAG, ANSWER)
LENGTH = 512
# Of windows, as SpanQA and BERT's own script for SQuAD have them.
WINDOW, STRIDE, QUESTION = 384, 128, 64
TAGS = ["O", *(f"{at}-{what}" for what in ("PER", "ORG", "LOC", "MISC") for at in "BI")]
# One token of BERT's vocabulary, to make texts of a number of tokens.
_WORD = "film"

Row = str | list[str]


class Workload(NamedTuple):
    """Rows of one kind.

    Fields:
        name: as tables have it.
        kind: one of ``KINDS``.
        rows: texts; for ``ANSWER`` a question and its context each.
        longest: tokens, at least those of the longest row, for who pads to a fixed number.
    """

    name: str
    kind: str
    rows: list[Row]
    longest: int

    def first(self, count: int) -> Workload:
        """The same with fewer rows."""
        return self._replace(rows=self.rows[:count])

    def batches(self, size: int) -> list[list[Row]]:
        """All rows in batches, the last of which may be smaller."""
        return [self.rows[at : at + size] for at in range(0, len(self.rows), size)]


def sst2(kind: str = CLASSIFY) -> Workload:
    """SST-2's dev sentences as they come."""
    return Workload("SST-2", kind, [text for text, _ in texts.sst2("dev")], 128)


def by_length(workload: Workload) -> Workload:
    """The same rows, shortest first."""
    rows = sorted(workload.rows, key=len)
    return workload._replace(name=f"{workload.name}, sorted by length", rows=rows)


def short(lengths: Callable[[list[Row]], list[int]], tokens: int = 8) -> Workload:
    """SST-2's dev sentences of a few tokens, with those that begin and end a text.

    Args:
        lengths: from rows to their numbers of tokens, as ``counter`` returns it.
        tokens: the most of a sentence.
    """
    rows = sst2().rows
    few = [row for row, length in zip(rows, lengths(rows), strict=True) if length <= tokens]
    return Workload(f"SST-2, up to {tokens} tokens", CLASSIFY, few, LENGTH)


def mix(kind: str = CLASSIFY, one_in: int = 8) -> Workload:
    """SST-2's dev sentences; in each block of ``one_in`` rows a context of SQuAD instead of one."""
    draw = random.Random(0)
    contexts = [context for context, _ in _squad()]
    draw.shuffle(contexts)
    rows: list[Row] = list(sst2().rows)
    for block in range(len(rows) // one_in):
        rows[block * one_in + draw.randrange(one_in)] = contexts[block % len(contexts)]
    return Workload(f"SST-2 with a SQuAD context in {one_in}", kind, rows, LENGTH)


def long_contexts() -> Workload:
    """Questions on the longest tenth of SQuAD's contexts, one on each."""
    found = sorted(_squad(), key=lambda pair: -len(pair[0]))
    rows: list[Row] = [[questions[0], context] for context, questions in found[: len(found) // 10]]
    random.Random(0).shuffle(rows)
    return Workload("SQuAD, long contexts", ANSWER, rows, WINDOW)


def conll() -> Workload:
    """CoNLL-2003's sentences (testa), words with spaces between."""
    blocks = (texts.DATA / "conll2003" / "eng.testa").read_text("utf-8").split("\n\n")
    words = ([line.split(" ")[0] for line in block.strip().split("\n")] for block in blocks)
    rows: list[Row] = [" ".join(row) for row in words if row[0] not in ("", "-DOCSTART-")]
    return Workload("CoNLL-2003", TAG, rows, 128)


def equal(tokens: int, rows: int, kind: str = CLASSIFY) -> Workload:
    """Rows of the same number of tokens, with those that begin and end a text."""
    if tokens < 2:
        raise ValueError(f"tokens is {tokens}, expected 2 or more.")
    text = " ".join([_WORD] * (tokens - 2))
    return Workload(f"{rows} rows of {tokens} tokens", kind, [text] * rows, LENGTH)


def train_sentences(count: int) -> list[tuple[str, str]]:
    """Sentences and labels of SST-2's train set, drawn at random, the same each time."""
    return random.Random(0).sample(texts.sst2("train"), count)


@functools.cache
def _squad() -> list[tuple[str, list[str]]]:
    """Contexts of SQuAD's dev set, each with its questions."""
    file = texts.DATA / "squad" / "dev-v1.1.json"
    return [
        (paragraph["context"], [each["question"] for each in paragraph["qas"]])
        for article in json.loads(file.read_bytes())["data"]
        for paragraph in article["paragraphs"]
    ]


# Arithmetic ----------------------------------------------------------------------------------


class Shape(NamedTuple):
    """The sizes of an encoder that its products depend on."""

    layers: int
    width: int
    inner: int

    @classmethod
    def of(cls, checkpoint: Path) -> Shape:
        """Of a checkpoint of transformers."""
        config: dict[str, Any] = json.loads((checkpoint / "config.json").read_bytes())
        return cls(config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"])

    def operations(self, lengths: list[int]) -> float:
        """Floating-point operations of the layers' products on rows of real tokens.

        Multiplications and additions of the four products with square matrices, of the
        feed-forward part's two, and of attention's two. Embeddings, norms and heads are left out.
        """
        tokens, pairs = sum(lengths), sum(length**2 for length in lengths)
        dense = 2 * (4 * self.width**2 + 2 * self.width * self.inner) * tokens
        return self.layers * (dense + 4 * self.width * pairs)


def counter(checkpoint: Path) -> Any:
    """A function from rows to their numbers of real tokens, by transformers' tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTH)

    def lengths(rows: list[Row]) -> list[int]:
        given = [row if isinstance(row, str) else tuple(row) for row in rows]
        return [len(each.ids) for each in tokenizer.encode_batch(given)]

    return lengths

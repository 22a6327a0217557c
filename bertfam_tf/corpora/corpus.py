"""Pretraining batches from text files, with only a few examples in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from bertfam_tf.corpora.documents import read_documents
from bertfam_tf.corpora.examples import (
    Format,
    FormedExamples,
    Spans,
    TextExamples,
    pass_seed,
)
from bertfam_tf.corpora.formats import Segments
from bertfam_tf.names import join_names
from bertfam_tf.text import Tokenizer

# Examples whose labels are counted.
_COUNTED = 1000


class Corpus(TextExamples, FormedExamples):
    """Text files as examples of masked language modeling, formed in each pass.

    Args:
        files: the paths of UTF-8 text files.
        tokenizer: the tokenizer of the model, with a mask token.
        length, format, task: the same as for ``Format``.
        documents, sentences: the same as for ``documents.read_documents``.
        shuffle: the number of examples among which the next one is drawn; 1 for the files' order.
        seed: the seed of the order, the pairs and the masks.
        spans: the same as for ``Format``.

    Raises:
        ValueError: for the reasons of ``Format``, ``Examples`` and ``read_documents``.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        tokenizer: Tokenizer,
        length: int,
        format: str = "full_sentences",
        *,
        task: str = "nsp",
        documents: str = "blank_line",
        sentences: str = "line",
        shuffle: int = 10_000,
        seed: int = 0,
        spans: Spans | None = None,
    ):
        super().__init__(Format(tokenizer, length, format, task, spans), shuffle, seed)
        read_documents(files, documents, sentences)
        self.files = files
        self.documents = documents
        self.sentences = sentences

    def count_sentences(self) -> int:
        """Returns the number of sentences, which reads all files.

        Raises:
            ValueError: if the files have no text.
        """
        documents = read_documents(self.files, self.documents, self.sentences)
        number = sum(1 for document in documents for _ in document)
        if not number:
            raise self._empty()
        return number

    def _formed(self, seed: int) -> Iterator[Segments]:
        example = None
        documents = read_documents(self.files, self.documents, self.sentences)
        for example in self.format.form(documents, seed, in_turns=self.documents == "file"):
            yield example
        if example is None:
            raise self._empty()

    def _labels(self) -> Counter[int | None]:
        labels: Counter[int | None] = Counter()
        for example in self._formed(pass_seed(self.seed, 0)):
            labels[example.label] += 1
            if {0, 1} <= labels.keys() and labels.total() >= _COUNTED:
                break
        return labels

    def _source(self) -> str:
        return join_names(map(str, self.files))

    def _empty(self) -> ValueError:
        return ValueError(f"There is no text in {self._source()}.")

    def _batched(
        self, batch_size: int, copies: int | None, passes: int | None, start: int
    ) -> tf.data.Dataset:
        def examples() -> Iterator[tuple]:
            for example, seeds in self._in_passes(copies, passes, start):
                label = -1 if example.label is None else example.label
                yield example.first, example.second, label, seeds

        ids = tf.TensorSpec([None], tf.int32)
        signature = (ids, ids, tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.int32))
        data = tf.data.Dataset.from_generator(examples, output_signature=signature)
        return data.ragged_batch(batch_size)

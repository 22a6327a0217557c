"""Text files as batches of pretraining, of which a few examples at a time are in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertfam_tf.data.documents import read_documents
from bertfam_tf.names import join_names
from bertfam_tf.objectives.formats import (
    Segments,
    Sentence,
    doc_sentences,
    full_sentences,
    segment_pairs,
    sentence_pairs,
)
from bertfam_tf.objectives.masking import Masking
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.packing import Packer

SINGLE_FORMATS = ("full_sentences", "doc_sentences")
PAIR_FORMATS = ("segment_pairs", "sentence_pairs")
# Sentences that are tokenized in one call.
_SENTENCES = 1024
SEEDS = 2**31


class Corpus:
    """Text files as examples of masked language modeling, in passes over all of them.

    An example's masks depend on the seed, the pass and its index in the pass: they are the same in
    batches of any size.

    Args:
        files: UTF-8 text.
        tokenizer: of the model, with a mask token.
        length: maximum number of tokens of an example, with special tokens.
        format: one of the four of ``objectives.formats``, such as ``"full_sentences"``.
        task: of pairs, ``"nsp"`` or ``"sop"``.
        documents, sentences: as for ``data.documents.read_documents``.
        shuffle: number of examples among which the next one is drawn; 1 for the files' order.
        seed: of the order, the pairs and the masks.

    Raises:
        ValueError: for an unknown format or task, or a length that leaves no room for two tokens;
            as ``read_documents`` raises it.
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
    ):
        known = SINGLE_FORMATS + PAIR_FORMATS
        if format not in known:
            raise ValueError(f"format must be one of {', '.join(known)}, got {format!r}.")
        if task not in ("nsp", "sop"):
            raise ValueError(f"task must be 'nsp' or 'sop', got {task!r}.")
        if shuffle < 1:
            raise ValueError(f"shuffle must be at least 1, got {shuffle}.")
        self.pairs = format in PAIR_FORMATS
        room = length - tokenizer.layout.special_count(1 + self.pairs)
        if room < 2:
            raise ValueError(f"length must leave room for two tokens, got {length}.")
        read_documents(files, documents, sentences)
        self.files = files
        self.tokenizer = tokenizer
        self.format = format
        self.task = task
        self.documents = documents
        self.sentences = sentences
        self.shuffle = shuffle
        self.seed = seed
        self._room = room
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def examples(self, number: int = 0) -> Iterator[Segments]:
        """The examples of one pass, in the order in which they are trained on.

        Args:
            number: of the pass, from 0.

        Raises:
            ValueError: if the files have no text, or are not UTF-8.
        """
        found = None
        draw = random.Random(pass_seed(self.seed, number))
        for found in shuffled(self._in_order(number), self.shuffle, draw):
            yield found
        if found is None:
            raise ValueError(f"There is no text in {join_names(map(str, self.files))}.")

    def count(self, batch_size: int) -> tuple[int, int]:
        """The numbers of examples and of batches of one pass."""
        number = sum(1 for _ in self.examples())
        return number, -(-number // batch_size)

    def batches(
        self,
        batch_size: int,
        masking: Masking,
        *,
        copies: int | None = None,
        passes: int | None = 1,
    ) -> tf.data.Dataset:
        """Batches of masked examples.

        Args:
            batch_size: examples of a batch; the last batch of all passes may have fewer.
            masking: draws the masks.
            copies: number of passes whose masks differ, after which they repeat: 1 for masks that
                are drawn once (BERT's code draws 10 or 5 times, arXiv 1907.11692, section 4.1,
                calls it static masking); None for new ones in each pass.
            passes: number of passes over the files; None for no end.

        Returns:
            A data set of (inputs, targets, weights): ``token_ids``, ``padding_mask`` and
            ``segment_ids``, int32 (batch, length); the fields of ``objectives.Masked``,
            ``positions``, ``token_ids``, ``starts`` and ``ends``, int32 (batch, predictions), the
            ``originals``, int32 (batch, length), ``pair``, int32 (batch,), -1 for none, and
            ``seeds``, int32 (batch, 2), those of each example's masks; and float32 (batch,
            predictions), 1 for predictions.

        Raises:
            ValueError: for sizes below 1.
        """
        for name, value in (("batch_size", batch_size), ("copies", copies), ("passes", passes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")

        def examples() -> Iterator[tuple]:
            for number in count() if passes is None else range(passes):
                mask_seed = pass_seed(self.seed, number if copies is None else number % copies)
                for index, example in enumerate(self.examples(number)):
                    label = -1 if example.label is None else example.label
                    seeds = [mask_seed, index % SEEDS]
                    yield example.first, example.second, label, seeds

        ids = tf.TensorSpec([None], tf.int32)
        signature = (ids, ids, tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.int32))
        data = tf.data.Dataset.from_generator(examples, output_signature=signature)
        data = data.ragged_batch(batch_size)
        data = data.map(self._masked(masking), tf.data.AUTOTUNE, deterministic=True)
        return data.prefetch(tf.data.AUTOTUNE)

    def _in_order(self, number: int) -> Iterator[Segments]:
        documents: Any = read_documents(self.files, self.documents, self.sentences)
        if self.documents == "file":
            documents = map(self._tokens, documents)
        else:
            documents = self._together(documents)
            if self.pairs:
                # Several documents of a file are read in turns.
                documents = map(list, documents)
        if self.format == "full_sentences":
            separator = self.tokenizer.special_ids.get("sep")
            return full_sentences(documents, self._room, separator)
        if self.format == "doc_sentences":
            return doc_sentences(documents, self._room)
        pairs = segment_pairs if self.format == "segment_pairs" else sentence_pairs
        return pairs(documents, self._room, task=self.task, seed=pass_seed(self.seed, number))

    def _tokens(self, sentences: Iterator[str]) -> Iterator[Sentence]:
        while some := list(islice(sentences, _SENTENCES)):
            yield from self.tokenizer.tokenize(some).to_list()

    def _together(self, documents: Iterator[Iterator[str]]) -> Iterator[Iterator[Sentence]]:
        """Documents, many of which may be short, and whose sentences are tokenized in one call."""
        sentences = (
            (number, sentence) for number, document in enumerate(documents) for sentence in document
        )

        def tokens() -> Iterator[tuple[int, Sentence]]:
            while some := list(islice(sentences, _SENTENCES)):
                numbers, texts = zip(*some, strict=True)
                yield from zip(numbers, self.tokenizer.tokenize(texts).to_list(), strict=True)

        for _, group in groupby(tokens(), itemgetter(0)):
            yield (sentence for _, sentence in group)

    def _masked(self, masking: Masking) -> Any:
        def masked(first: Any, second: Any, label: Any, seeds: Any) -> tuple:
            inputs = self._packed(first, second)
            found = masking(inputs["token_ids"], inputs["padding_mask"], seeds)
            targets = {
                "positions": found.positions,
                "token_ids": found.targets,
                "starts": found.starts,
                "ends": found.ends,
                "originals": inputs["token_ids"],
                "pair": label,
                "seeds": seeds,
            }
            return {**inputs, "token_ids": found.token_ids}, targets, found.weights

        return tf.autograph.experimental.do_not_convert(masked)

    def _packed(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        if not self.pairs:
            return self._packer([first])
        pair, single = self._packer([first, second]), self._packer([first])
        # A pair's layout has a separator after its second segment, which may be missing.
        length = tf.maximum(*(tf.shape(each["token_ids"])[1] for each in (pair, single)))
        is_pair = tf.expand_dims(second.row_lengths() > 0, 1)
        pad = self.tokenizer.special_ids.get("pad", 0)
        return {
            name: tf.where(
                is_pair,
                *(
                    tf.pad(
                        each[name],
                        [[0, 0], [0, length - tf.shape(each[name])[1]]],
                        constant_values=pad if name == "token_ids" else 0,
                    )
                    for each in (pair, single)
                ),
            )
            for name in pair
        }


def pass_seed(seed: int, number: int) -> int:
    """The seed of a pass over a corpus, from that of the corpus."""
    return (seed * 1_000_003 + number) % SEEDS


def shuffled(examples: Iterator[Any], size: int, draw: random.Random) -> Iterator[Any]:
    """Draws each next example among ``size``."""
    waiting = list(islice(examples, size - 1))
    for example in examples:
        waiting.append(example)
        at = draw.randrange(len(waiting))
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        yield waiting.pop()
    draw.shuffle(waiting)
    yield from waiting

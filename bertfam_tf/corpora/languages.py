"""Pretraining batches from texts of several languages and their translations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.corpora.corpus import Corpus
from bertfam_tf.corpora.examples import SEEDS, Examples, TextExamples
from bertfam_tf.corpora.masking import Masking
from bertfam_tf.corpora.shards import Shards
from bertfam_tf.corpora.translation import TranslationPairs
from bertfam_tf.data.batching import training_options
from bertfam_tf.text import Tokenizer


class Translations(TextExamples):
    """Pairs of sentences of two languages, each with its translation.

    Args:
        files: two UTF-8 files, with a text on each line of one and its translation on the same line
            of the other; or one file with two tab-separated columns. Pairs of which one is empty
            are left out.
        languages: the ids of both languages.
        pairs: packs them.
        tokenizers: the model's tokenizers for both languages.
        shuffle: the number of pairs among which the next one is drawn; 1 for the files' order.
        seed: the seed of the order and the masks.

    Targets of batches have ``translated``, int32 (batch,), which is 1.

    Raises:
        ValueError: if there are not one or two files; while reading, if the files differ in length,
            a line does not have two columns, or text is not UTF-8.
    """

    def __init__(
        self,
        files: Sequence[Path],
        languages: Sequence[int],
        pairs: TranslationPairs,
        tokenizers: Sequence[Tokenizer],
        *,
        shuffle: int = 10_000,
        seed: int = 0,
    ):
        if len(files) not in (1, 2):
            raise ValueError(
                f"Translations must be in two files or in one with two columns, got {len(files)}."
            )
        super().__init__(shuffle, seed)
        self.files = files
        self.languages = list(languages)
        self.pairs = pairs
        self.tokenizers = tokenizers

    def _batched(
        self, batch_size: int, copies: int | None, passes: int | None, start: int
    ) -> tf.data.Dataset:
        def examples() -> Iterator[tuple]:
            for pair, seeds in self._in_passes(copies, passes, start):
                yield *pair, seeds

        text = tf.TensorSpec([], tf.string)
        signature = (text, text, tf.TensorSpec([2], tf.int32))
        return tf.data.Dataset.from_generator(examples, output_signature=signature).batch(
            batch_size
        )

    def _packed(self, *example: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        first, second = (t.tokenize(x) for t, x in zip(self.tokenizers, example, strict=True))
        inputs = self.pairs(first, second, self.languages)
        inputs["segment_ids"] = tf.zeros_like(inputs["token_ids"])
        size = tf.shape(example[0])
        return inputs, {"pair": tf.fill(size, -1), "translated": tf.ones(size, tf.int32)}

    def _formed(self, seed: int) -> Iterator[tuple[str, str]]:
        # The same in each copy: nothing but masks is drawn.
        names = " and ".join(map(str, self.files))
        for file in self.files:
            parsing.check_regular(file)
        any_pair = False
        try:
            for first, second in self._columns() if len(self.files) == 1 else self._lines(names):
                if first and second:
                    any_pair = True
                    yield first, second
        except UnicodeDecodeError as error:
            raise ValueError(f"{names} must be UTF-8: {error}.") from None
        if not any_pair:
            raise ValueError(f"There are no translations in {names}.")

    def _columns(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(parsing.byte_lines(self.files[0]), 1):
            columns = line.decode().rstrip("\r\n").split("\t")
            if len(columns) != 2:
                raise ValueError(
                    f"{self.files[0]}, line {number}: expected a text and its translation with "
                    f"a tab between them, got {len(columns)} columns."
                )
            yield columns[0].strip(), columns[1].strip()

    def _lines(self, names: str) -> Iterator[tuple[str, str]]:
        lines = map(parsing.byte_lines, self.files)
        for number, (first, second) in enumerate(zip_longest(*lines), 1):
            if first is None or second is None:
                raise ValueError(
                    f"{names} must have equally many lines, but only one has a line {number}."
                )
            yield first.decode().strip(), second.decode().strip()


class Languages:
    """Text of several languages and translations; each batch is of one language, or of one pair.

    In training, texts and translations take turns, where there are both, and the language or pair
    of a batch is drawn in proportion to a power of its number of sentences (XLM, arXiv 1901.07291,
    sections 3.1 and 3.4).

    Args:
        corpora: the texts or shards of the languages, by their ids.
        translations: the translations of pairs of languages.
        exponent: the exponent of the number of sentences.
        seed: the seed of random draws.
    """

    def __init__(
        self,
        corpora: Mapping[int, Corpus | Shards],
        translations: Sequence[Translations] = (),
        exponent: float = 0.7,
        seed: int = 0,
    ):
        self.corpora = corpora
        self.translations = translations
        self._parts: list[Examples] = [*corpora.values(), *translations]
        self.exponent = exponent
        self.seed = seed

    def count(self) -> int:
        """Returns the number of examples of one pass over everything."""
        return sum(part.count() for part in self._parts)

    def check_labels(self) -> None:
        """Checks the pairs of each language, as ``Corpus.check_labels`` does."""
        for corpus in self.corpora.values():
            corpus.check_labels()

    def count_batches(self, batch_tokens: int) -> int:
        """Returns the number of batches of one pass over everything."""
        return sum(part.count_batches(batch_tokens) for part in self._parts)

    def batches(
        self,
        batch_size: int | None,
        masking: Masking,
        *,
        batch_tokens: int | None = None,
        copies: int | None = None,
        passes: int | None = 1,
        start: int = 0,
    ) -> tf.data.Dataset:
        """Returns batches as ``Corpus.batches`` does, each of one language.

        Args:
            passes: the number of passes over everything, one language after the other; None for no
                end, with languages in random order.
            start: the number of examples to skip, rounded down to whole batches, or the number of
                batches with ``batch_tokens``; counted over all languages.

        Returns:
            A data set of (inputs, targets, weights), with ``language_ids`` and ``position_ids``,
            int32 (batch, length), among the inputs, and ``translated``, int32 (batch,), 1 for
            translations and 0 for texts, among the targets.
        """
        options: Any = {"batch_tokens": batch_tokens, "copies": copies, "passes": passes}
        texts = [
            corpus.batches(batch_size, masking, **options).map(_with_language(language))
            for language, corpus in self.corpora.items()
        ]
        pairs = [source.batches(batch_size, masking, **options) for source in self.translations]
        if passes is not None:
            dataset, *others = texts + pairs
            for other in others:
                dataset = dataset.concatenate(other)
        else:
            dataset = tf.data.Dataset.choose_from_datasets(texts + pairs, self._choices())
        return training_options(dataset.skip(start // (batch_size or 1)).prefetch(2))

    def _choices(self) -> tf.data.Dataset:
        """Returns the index of the data set of each batch."""
        sizes = [[corpus.count_sentences() for corpus in self.corpora.values()]]
        sizes.append([source.count() for source in self.translations])
        logits = [self.exponent * np.log(np.array(kind, "float32")) for kind in sizes if kind]
        kinds = [len(kind) for kind in logits]

        def drawn(kind: int, seed: tf.Tensor) -> tf.Tensor:
            first = sum(kinds[:kind])
            return first + tf.random.stateless_categorical(logits[kind][None], 1, seed)[0, 0]

        def choice(step: tf.Tensor) -> tf.Tensor:
            # It only depends on the step, so that a resumed run makes the same draws.
            seed = tf.stack([tf.constant(self.seed % SEEDS, tf.int64), step])
            choices = [drawn(kind, seed) for kind in range(len(kinds))]
            return choices[0] if len(choices) == 1 else tf.where(step % 2 == 0, *choices)

        return tf.data.Dataset.counter().map(choice)


def position_ids(padding_mask: tf.Tensor) -> tf.Tensor:
    """Returns the positions of real tokens, from 0; 0 at padding. int32, in the mask's shape."""
    return padding_mask * (tf.cumsum(padding_mask, axis=1) - 1)


def _with_language(language: int) -> Any:
    def batch(inputs: Mapping[str, Any], targets: Mapping[str, Any], weights: Any) -> tuple:
        mask = inputs["padding_mask"]
        more = {"language_ids": mask * language, "position_ids": position_ids(mask)}
        translated = tf.zeros_like(targets["pair"])
        return {**inputs, **more}, {**targets, "translated": translated}, weights

    return batch

"""Text of several languages and its translations as batches of pretraining."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.documents import read_documents
from bertfam_tf.objectives.corpus import Corpus, shuffled
from bertfam_tf.objectives.examples import SEEDS, pass_seed
from bertfam_tf.objectives.masking import Masking
from bertfam_tf.objectives.translation import TranslationPairs
from bertfam_tf.text import Tokenizer


class Translations:
    """Pairs of sentences of two languages, each with its translation.

    Args:
        files: two UTF-8 files whose lines are translations of each other; or one with two columns
            that a tab separates. Pairs of which one is empty are left out.
        languages: the ids of both languages.
        pairs: packs them.
        tokenizer: of the model.
        shuffle: number of pairs among which the next one is drawn; 1 for the files' order.
        seed: of the order and the masks.

    Raises:
        ValueError: for another number of files; while reading, for files of different lengths, a
            line without two columns, or text that is not UTF-8.
    """

    def __init__(
        self,
        files: Sequence[Path],
        languages: Sequence[int],
        pairs: TranslationPairs,
        tokenizer: Tokenizer,
        *,
        shuffle: int = 10_000,
        seed: int = 0,
    ):
        if len(files) not in (1, 2):
            raise ValueError(
                f"Translations must be in two files or in one with two columns, got {len(files)}."
            )
        self.files = files
        self.languages = languages
        self.pairs = pairs
        self.tokenizer = tokenizer
        self.shuffle = shuffle
        self.seed = seed

    def count(self) -> int:
        """The number of pairs."""
        return sum(1 for _ in self._in_order())

    def examples(self, number: int = 0) -> Iterator[tuple[str, str]]:
        """The pairs of one pass, as ``Corpus.examples``."""
        draw = random.Random(pass_seed(self.seed, number))
        return shuffled(self._in_order(), self.shuffle, draw)

    def batches(
        self,
        batch_size: int,
        masking: Masking,
        *,
        copies: int | None = None,
        passes: int | None = 1,
        start: int = 0,
    ) -> tf.data.Dataset:
        """Batches of masked pairs, as ``Corpus.batches``.

        Returns:
            A data set of (inputs, targets, weights): the inputs of ``TranslationPairs``, and
            ``segment_ids``, which are 0; targets and weights of ``Corpus.batches`` with
            ``translated``, int32 (batch,), which is 1.
        """

        def numbered() -> Iterator[tuple]:
            for number in count() if passes is None else range(passes):
                seed = pass_seed(self.seed, number if copies is None else number % copies)
                for index, (first, second) in enumerate(self.examples(number)):
                    yield first, second, [seed, index % SEEDS]

        def examples() -> Iterator[tuple]:
            return islice(numbered(), start, None)

        def masked(first: tf.Tensor, second: tf.Tensor, seeds: tf.Tensor) -> tuple:
            tokenize = self.tokenizer.tokenize
            inputs = self.pairs(tokenize(first), tokenize(second), list(self.languages))
            found = masking(inputs["token_ids"], inputs["padding_mask"], seeds)
            targets = {
                "positions": found.positions,
                "token_ids": found.targets,
                "starts": found.starts,
                "ends": found.ends,
                "originals": inputs["token_ids"],
                "pair": tf.fill(tf.shape(first), -1),
                "seeds": seeds,
                "translated": tf.ones(tf.shape(first), tf.int32),
            }
            inputs["token_ids"] = found.token_ids
            inputs["segment_ids"] = tf.zeros_like(found.token_ids)
            return inputs, targets, found.weights

        text = tf.TensorSpec([], tf.string)
        signature = (text, text, tf.TensorSpec([2], tf.int32))
        data = tf.data.Dataset.from_generator(examples, output_signature=signature)
        masked = tf.autograph.experimental.do_not_convert(masked)
        data = data.batch(batch_size).map(masked, tf.data.AUTOTUNE, deterministic=True)
        return data.prefetch(tf.data.AUTOTUNE)

    def _in_order(self) -> Iterator[tuple[str, str]]:
        names = " and ".join(map(str, self.files))
        found = False
        try:
            for first, second in self._columns() if len(self.files) == 1 else self._lines(names):
                if first and second:
                    found = True
                    yield first, second
        except UnicodeDecodeError as error:
            raise ValueError(f"{names} must be UTF-8: {error}.") from None
        if not found:
            raise ValueError(f"There are no translations in {names}.")

    def _columns(self) -> Iterator[tuple[str, str]]:
        with self.files[0].open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                columns = line.rstrip("\r\n").split("\t")
                if len(columns) != 2:
                    raise ValueError(
                        f"{self.files[0]}, line {number}: expected a text and its translation with "
                        f"a tab between them, got {len(columns)} columns."
                    )
                yield columns[0].strip(), columns[1].strip()

    def _lines(self, names: str) -> Iterator[tuple[str, str]]:
        with (
            self.files[0].open(encoding="utf-8-sig", newline="\n") as first,
            self.files[1].open(encoding="utf-8-sig", newline="\n") as second,
        ):
            for number, pair in enumerate(zip_longest(first, second), 1):
                if None in pair:
                    raise ValueError(
                        f"{names} must have as many lines as each other, but only one has a line "
                        f"{number}."
                    )
                yield pair[0].strip(), pair[1].strip()


class Languages:
    """Text of several languages and translations; each batch is of one language, or of one pair.

    In training, texts and translations take turns, where there are both, and the language or pair
    of a batch is drawn in proportion to a power of its number of sentences (XLM, arXiv 1901.07291,
    sections 3.1 and 3.4).

    Args:
        corpora: of the languages, by their ids.
        translations: of pairs of languages.
        exponent: of the number of sentences.
        seed: of what is drawn.
    """

    def __init__(
        self,
        corpora: Mapping[int, Corpus],
        translations: Sequence[Translations] = (),
        exponent: float = 0.7,
        seed: int = 0,
    ):
        self.corpora = corpora
        self.translations = translations
        self.exponent = exponent
        self.seed = seed

    def count(self) -> int:
        """The number of examples of one pass over everything."""
        parts: list[Corpus | Translations] = [*self.corpora.values(), *self.translations]
        return sum(each.count() for each in parts)

    def batches(
        self,
        batch_size: int,
        masking: Masking,
        *,
        copies: int | None = None,
        passes: int | None = 1,
        start: int = 0,
    ) -> tf.data.Dataset:
        """Batches as ``Corpus.batches`` has them, of one language each.

        Args:
            passes: number of passes over everything, one language after the other; None for no end,
                with languages in random order.
            start: number of examples that are left out, rounded down to whole batches: the first
                ones of all languages together.

        Returns:
            A data set of (inputs, targets, weights), with ``language_ids`` and ``position_ids``,
            int32 (batch, length), among the inputs, and ``translated``, int32 (batch,), 1 for
            translations and 0 for texts, among the targets.
        """
        options: Any = {"copies": copies, "passes": passes}
        texts = [
            corpus.batches(batch_size, masking, **options).map(_of_language(number))
            for number, corpus in self.corpora.items()
        ]
        pairs = [each.batches(batch_size, masking, **options) for each in self.translations]
        if passes is not None:
            found, *others = texts + pairs
            for each in others:
                found = found.concatenate(each)
        else:
            found = tf.data.Dataset.choose_from_datasets(texts + pairs, self._choices())
        return found.skip(start // batch_size).prefetch(tf.data.AUTOTUNE)

    def _choices(self) -> tf.data.Dataset:
        """The index of the data set of each batch."""
        sizes = [[_sentences(each) for each in self.corpora.values()]]
        sizes.append([each.count() for each in self.translations])
        logits = [self.exponent * np.log(np.array(each, "float32")) for each in sizes if each]
        kinds = [len(each) for each in logits]

        def drawn(kind: int, seed: tf.Tensor) -> tf.Tensor:
            first = sum(kinds[:kind])
            return first + tf.random.stateless_categorical(logits[kind][None], 1, seed)[0, 0]

        def choice(step: tf.Tensor) -> tf.Tensor:
            # A function of the step alone, so that a resumed run draws what it would have drawn.
            seed = tf.stack([tf.constant(self.seed % SEEDS, tf.int64), step])
            found = [drawn(kind, seed) for kind in range(len(kinds))]
            return found[0] if len(found) == 1 else tf.where(step % 2 == 0, *found)

        return tf.data.Dataset.counter().map(choice)


def position_ids(padding_mask: tf.Tensor) -> tf.Tensor:
    """The positions of real tokens, from 0; 0 at padding. int32 (batch, length), as the mask."""
    return padding_mask * (tf.cumsum(padding_mask, axis=1) - 1)


def _of_language(number: int) -> Any:
    def batch(inputs: Mapping[str, Any], targets: Mapping[str, Any], weights: Any) -> tuple:
        mask = inputs["padding_mask"]
        more = {"language_ids": mask * number, "position_ids": position_ids(mask)}
        translated = tf.zeros_like(targets["pair"])
        return {**inputs, **more}, {**targets, "translated": translated}, weights

    return batch


def _sentences(corpus: Corpus) -> int:
    documents = read_documents(corpus.files, corpus.documents, corpus.sentences)
    return sum(1 for document in documents for _ in document)

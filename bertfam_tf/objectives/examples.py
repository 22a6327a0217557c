"""Examples of pretraining: formed from documents, and in batches with masks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, groupby, islice
from operator import itemgetter
from typing import Any

import tensorflow as tf

from bertfam_tf.data.batching import training_options
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


class Format:
    """How documents become examples, and examples a model's inputs.

    Args:
        tokenizer: of the model.
        length: maximum number of tokens of an example, with special tokens.
        name: one of the four of ``objectives.formats``, such as ``"full_sentences"``.
        task: of pairs, ``"nsp"`` or ``"sop"``.

    Raises:
        ValueError: for an unknown name or task, or a length that leaves no room for two tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, length: int, name: str = "full_sentences", task: str = "nsp"
    ):
        known = SINGLE_FORMATS + PAIR_FORMATS
        if name not in known:
            raise ValueError(f"format must be one of {', '.join(known)}, got {name!r}.")
        if task not in ("nsp", "sop"):
            raise ValueError(f"task must be 'nsp' or 'sop', got {task!r}.")
        self.pairs = name in PAIR_FORMATS
        room = length - tokenizer.layout.special_count(1 + self.pairs)
        if room < 2:
            raise ValueError(f"length must leave room for two tokens, got {length}.")
        self.tokenizer = tokenizer
        self.length = length
        self.name = name
        self.task = task
        self._room = room
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def form(
        self, documents: Iterable[Iterator[str]], seed: int = 0, *, in_turns: bool = False
    ) -> Iterator[Segments]:
        """Examples of documents.

        Args:
            documents: sentences, as ``data.documents.read_documents`` returns them.
            seed: of what is drawn for pairs.
            in_turns: for pairs, whether documents are read in turns instead of each into memory;
                their iterators have to be independent, as those of several files are.
        """
        tokens: Iterable[Any]
        if self.pairs and in_turns:
            tokens = map(self._tokens, documents)
        elif self.pairs:
            tokens = map(list, self._tokens_of_each(documents))
        else:
            tokens = self._tokens_of_each(documents)
        if self.name == "full_sentences":
            separator = self.tokenizer.special_ids.get("sep")
            return full_sentences(tokens, self._room, separator)
        if self.name == "doc_sentences":
            return doc_sentences(tokens, self._room)
        pairs = segment_pairs if self.name == "segment_pairs" else sentence_pairs
        return pairs(tokens, self._room, task=self.task, seed=seed)

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """The inputs of a batch of examples, int32 (batch, tokens), with special tokens."""
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

    def _tokens(self, sentences: Iterator[str]) -> Iterator[Sentence]:
        while some := list(islice(sentences, _SENTENCES)):
            yield from self.tokenizer.tokenize(some).to_list()

    def _tokens_of_each(self, documents: Iterable[Iterator[str]]) -> Iterator[Iterator[Sentence]]:
        """The same for consecutive documents, which share calls: most are short."""
        numbers: deque[int] = deque()

        def sentences() -> Iterator[str]:
            for number, document in enumerate(documents):
                for sentence in document:
                    numbers.append(number)
                    yield sentence

        def numbered() -> Iterator[tuple[int, Sentence]]:
            for tokens in self._tokens(sentences()):
                yield numbers.popleft(), tokens

        for _, document in groupby(numbered(), itemgetter(0)):
            yield map(itemgetter(1), document)


class Examples:
    """Examples in passes over all of them, and their batches.

    An example's masks depend on the seed, the pass and its index in the pass: they are the same in
    batches of any size.

    A subclass implements `count`, `_batched` and `_packed`.

    Args:
        shuffle: number of examples that are shuffled at a time; 1 for none.
        seed: of the order, the pairs and the masks.

    Raises:
        ValueError: for a ``shuffle`` below 1.
    """

    def __init__(self, shuffle: int, seed: int):
        if shuffle < 1:
            raise ValueError(f"shuffle must be at least 1, got {shuffle}.")
        self.shuffle = shuffle
        self.seed = seed

    def count(self) -> int:
        """The number of examples in the first pass."""
        raise NotImplementedError

    def _batched(
        self, batch_size: int, copies: int | None, passes: int | None, start: int
    ) -> tf.data.Dataset:
        """Batches of what `_packed` takes and seeds of masks, arguments as for ``batches``.

        Returns:
            A data set of tuples, of which the last element is the seeds, int32 (batch, 2).
        """
        raise NotImplementedError

    def _packed(self, *example: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """The inputs of a batch, before they are masked, and its targets beside those of masks."""
        raise NotImplementedError

    def batches(
        self,
        batch_size: int,
        masking: Masking,
        *,
        copies: int | None = None,
        passes: int | None = 1,
        start: int = 0,
    ) -> tf.data.Dataset:
        """Batches of masked examples.

        Args:
            batch_size: examples of a batch; the last batch of all passes may have fewer.
            masking: draws the masks.
            copies: number of passes whose masks differ, after which they repeat: 1 for masks that
                are drawn once (BERT's code draws 10 or 5 times, arXiv 1907.11692, section 4.1,
                calls it static masking); None for new ones in each pass.
            passes: number of passes over the examples; None for no end.
            start: number of examples of these passes that are left out at their beginning. They
                are read, but not masked.

        Returns:
            A data set of (inputs, targets, weights): ``token_ids``, ``padding_mask`` and
            ``segment_ids``, int32 (batch, length); the fields of ``objectives.Masked``,
            ``positions``, ``token_ids``, ``starts`` and ``ends``, int32 (batch, predictions), the
            ``originals``, int32 (batch, length), ``pair``, int32 (batch,), -1 for none, and
            ``seeds``, int32 (batch, 2), those of each example's masks; and float32 (batch,
            predictions), 1 for predictions.

        Raises:
            ValueError: for sizes below 1, or a negative start.
        """
        for name, value in (("batch_size", batch_size), ("copies", copies), ("passes", passes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if start < 0:
            raise ValueError(f"start must be at least 0, got {start}.")
        data = self._batched(batch_size, copies, passes, start)
        data = data.map(self._masked(masking), tf.data.AUTOTUNE, deterministic=True)
        return training_options(data.prefetch(2))

    def _masked(self, masking: Masking) -> Any:
        def masked(*example: Any) -> tuple:
            *parts, seeds = example
            inputs, targets = self._packed(*parts)
            found = masking(inputs["token_ids"], inputs["padding_mask"], seeds)
            targets |= {
                "positions": found.positions,
                "token_ids": found.targets,
                "starts": found.starts,
                "ends": found.ends,
                "originals": inputs["token_ids"],
                "seeds": seeds,
            }
            return {**inputs, "token_ids": found.token_ids}, targets, found.weights

        return tf.autograph.experimental.do_not_convert(masked)


class FormedExamples(Examples):
    """Examples in a format, as ``Segments``; `_batched` has first and second segments and labels.

    Args:
        format: of the examples.
        shuffle, seed: as for ``Examples``.
    """

    def __init__(self, format: Format, shuffle: int, seed: int):
        super().__init__(shuffle, seed)
        self.format = format
        self.tokenizer = format.tokenizer

    def _packed(self, *example: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        first, second, label = example
        return self.format.pack(first, second), {"pair": label}


def pass_seed(seed: int, number: Any) -> Any:
    """The seed of a pass over a data set: an ``int``, or int64 if ``number`` is."""
    return (seed * 1_000_003 + number) % SEEDS


def in_passes(
    examples: Callable[[int], Iterable[Any]],
    seed: int,
    copies: int | None,
    passes: int | None,
    start: int,
) -> Iterator[tuple[Any, list[int]]]:
    """The examples of several passes, each with the seeds of its masks.

    Args:
        examples: from the number of a pass to its examples.
        seed: of the data set.
        copies, passes, start: as for ``Examples.batches``.
    """

    def numbered() -> Iterator[tuple[int, int, Any]]:
        for number in count() if passes is None else range(passes):
            for index, example in enumerate(examples(number)):
                yield number, index, example

    for number, index, example in islice(numbered(), start, None):
        drawn = number if copies is None else number % copies
        yield example, [pass_seed(seed, drawn), index % SEEDS]

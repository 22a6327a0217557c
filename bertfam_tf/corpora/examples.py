"""Forms pretraining examples from documents, and batches them with masks."""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.corpora.formats import (
    Segments,
    Sentence,
    doc_sentences,
    full_sentences,
    segment_pairs,
    sentence_pairs,
)
from bertfam_tf.corpora.masking import Masking, is_unspaced, spans_at
from bertfam_tf.data.batching import training_options
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.packing import Packer
from bertfam_tf.text.pretokenized import lacks_prefix_space
from bertfam_tf.validation import in_range, one_of

SINGLE_FORMATS = ("full_sentences", "doc_sentences")
PAIR_FORMATS = ("segment_pairs", "sentence_pairs")
# Sentences that are tokenized in one call.
_SENTENCES = 1024
SEEDS = 2**31
# A function from sentences to the spans of each, as byte offsets (start, end).
Spans = Callable[[list[str]], list[list[tuple[int, int]]]]
# With batch_tokens, as many examples as in this many full batches are batched at a time.
_TOGETHER = 16
_log = logging.getLogger(__name__)


class Format:
    """Forms examples from documents, and packs examples as a model's inputs.

    In byte-level BPE, the tokens of a word depend on the space before it. Sentences have the tokens
    that they have in a text, after a space, except at the start of a segment or document. (fairseq
    joins lines without a space.)

    Args:
        tokenizer: the tokenizer of the model.
        length: the maximum number of tokens of an example, with special tokens.
        name: a format of ``corpora.formats``, such as ``"full_sentences"``.
        task: the task of pairs, ``"nsp"`` or ``"sop"``.
        spans: finds the spans of sentences, such as named entities, for the unit ``"given"`` of
            ``Masking``; None for none.

    Raises:
        ValueError: if the name or task is unknown, or the length leaves no room for two tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        name: str = "full_sentences",
        task: str = "nsp",
        spans: Spans | None = None,
    ):
        one_of("format", name, SINGLE_FORMATS + PAIR_FORMATS)
        one_of("task", task, ("nsp", "sop"))
        self.pairs = name in PAIR_FORMATS
        room = length - tokenizer.layout.special_count(1 + self.pairs)
        if room < 2:
            raise ValueError(f"length must leave room for two tokens, got {length}.")
        self.tokenizer = tokenizer
        self.length = length
        self.name = name
        self.task = task
        self.spans = spans
        self._room = room
        self._bare = _without_space(tokenizer)
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def form(
        self, documents: Iterable[Iterator[str]], seed: int = 0, *, in_turns: bool = False
    ) -> Iterator[Segments]:
        """Yields examples from documents.

        Args:
            documents: sentences, as ``documents.read_documents`` returns them.
            seed: the seed of random draws for pairs.
            in_turns: for pairs, whether documents are read in turns instead of into memory; their
                iterators must be independent, as for several files.
        """
        tokens: Iterable[Any] = self._tokens_of_each(documents)
        if self.pairs:
            tokens = map(self._tokens, documents) if in_turns else map(list, tokens)
        if self.name == "full_sentences":
            separator = self.tokenizer.special_ids.get("sep")
            return full_sentences(tokens, self._room, separator)
        if self.name == "doc_sentences":
            return doc_sentences(tokens, self._room)
        pairs = segment_pairs if self.name == "segment_pairs" else sentence_pairs
        return pairs(tokens, self._room, task=self.task, seed=seed)

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Returns the inputs of a batch of examples, int32 (batch, tokens), with special tokens.

        With ``spans``, they include ``"spans"`` for ``Masking``.
        """
        inputs = self._packed(first, second)
        if self.spans is None:
            return inputs
        size = self.tokenizer.vocab_size
        ids = inputs["token_ids"]
        return {**inputs, "token_ids": ids % size, "spans": ids // size}

    def _packed(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        first, second = self._as_starts(first), self._as_starts(second)
        if not self.pairs:
            return self._packer([first])
        pair, single = self._packer([first, second]), self._packer([first])
        # A pair's layout has a separator after its second segment, which may be missing.
        length = tf.maximum(*(tf.shape(inputs["token_ids"])[1] for inputs in (pair, single)))
        is_pair = tf.expand_dims(second.row_lengths() > 0, 1)
        pad = self.tokenizer.special_ids.get("pad", 0)
        return {
            name: tf.where(
                is_pair,
                *(
                    tf.pad(
                        inputs[name],
                        [[0, 0], [0, length - tf.shape(inputs[name])[1]]],
                        constant_values=pad if name == "token_ids" else 0,
                    )
                    for inputs in (pair, single)
                ),
            )
            for name in pair
        }

    def tokens(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> tf.Tensor:
        """Returns the tokens of each example of a batch, with special tokens; int64 (batch,)."""
        one, two = (tf.cast(segments.row_lengths(), tf.int64) for segments in (first, second))
        special = [tf.constant(self.tokenizer.layout.special_count(n), tf.int64) for n in (1, 2)]
        return one + two + tf.where(two > 0, special[1], special[0])

    def _tokens(self, sentences: Iterator[str]) -> Iterator[Sentence]:
        while batch := list(islice(sentences, _SENTENCES)):
            spaces = [""] * len(batch)
            if self._bare is not None:
                spaces = ["" if is_unspaced(sentence[:1]) else " " for sentence in batch]
            if self.spans is None:
                texts = [space + sentence for space, sentence in zip(spaces, batch, strict=True)]
                yield from self.tokenizer.tokenize(texts).to_list()
            else:
                yield from self._ids_and_spans(batch, spaces)

    def _as_starts(self, segments: tf.RaggedTensor) -> tf.RaggedTensor:
        """Removes the space from the first token of segments, and of documents in them."""
        if self._bare is None:
            return segments
        values, rows = segments.values, segments.value_rowids()
        ids = values % self.tokenizer.vocab_size
        starts = (rows[1:] != rows[:-1]) | (ids[:-1] == self.tokenizer.special_ids.get("sep", -1))
        starts = tf.concat([[True], starts], 0)[: tf.size(values)]
        bare = tf.cast(tf.gather(self._bare, ids), values.dtype)
        result = segments.with_values(tf.where(starts, values - ids + bare, values))
        return tf.ragged.boolean_mask(result, segments.with_values(~starts | (bare >= 0)))

    def _ids_and_spans(self, sentences: list[str], spaces: list[str]) -> list[Sentence]:
        """Encodes the index of each token's span, 0 for none, in the token's id.

        The result is ``id + index · vocab_size``: formats can rearrange it like any id.
        """
        assert self.spans is not None
        texts = [space + sentence for space, sentence in zip(spaces, sentences, strict=True)]
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(texts)
        spans_by_sentence = self.spans(sentences)
        bounds = np.zeros((len(sentences), max(1, *map(len, spans_by_sentence), 1), 2), "int32")
        for row, spans in zip(bounds, spans_by_sentence, strict=True):
            row[: len(spans)] = np.reshape(spans, (-1, 2))
        bounds += np.array([len(space) for space in spaces], "int32")[:, None, None]
        starts, ends = starts.to_tensor(), ends.to_tensor()
        numbers = spans_at(starts, ends, bounds[..., 0], bounds[..., 1]).numpy()
        # A span at the end of a sentence differs from one at the beginning of the next.
        odd = np.arange(len(sentences))[:, None] % 2
        numbers = np.where(numbers > 0, 2 * numbers + odd, 0)
        both = ids.to_tensor().numpy() + self.tokenizer.vocab_size * numbers
        lengths = ids.row_lengths().numpy()
        return [row[:length].tolist() for row, length in zip(both, lengths, strict=True)]

    def _tokens_of_each(self, documents: Iterable[Iterator[str]]) -> Iterator[Iterator[Sentence]]:
        """Tokenizes consecutive documents in shared calls, because most documents are short."""
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
    """Passes over examples, in batches.

    Each pass has a new random order. Pairs depend on the seed and the copy of the text that the
    pass reads, and an example's masks also on its index in that copy, so they are the same in any
    order and batch size.

    A subclass implements `count`, `_batched` and `_packed`.

    Args:
        shuffle: the number of examples that are shuffled at a time; 1 for none.
        seed: the seed of the order, the pairs and the masks.

    Raises:
        ValueError: if ``shuffle`` is below 1.
    """

    def __init__(self, shuffle: int, seed: int):
        in_range("shuffle", shuffle, at_least=1)
        self.shuffle = shuffle
        self.seed = seed

    def count(self) -> int:
        """Returns the number of examples in the first pass."""
        raise NotImplementedError

    def _batched(
        self, batch_size: int, copies: int | None, passes: int | None, start: int
    ) -> tf.data.Dataset:
        """Returns batches of `_packed`'s input and seeds of masks; arguments as for ``batches``.

        Returns:
            A data set of tuples, of which the last element is the seeds, int32 (batch, 2).
        """
        raise NotImplementedError

    def _packed(self, *example: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the inputs of a batch before masking, and the targets other than masks."""
        raise NotImplementedError

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
        """Returns batches of masked examples.

        Args:
            batch_size: examples per batch; the last batch of all passes may have fewer. None
                for batches by their tokens.
            masking: draws the masks.
            batch_tokens: the most tokens that a batch has, without padding, in place of
                ``batch_size``: batches have about equally many tokens, and more examples where
                these are short, as RoBERTa's DOC-SENTENCES has them (arXiv 1907.11692, section
                4.2). At most one batch in sixteen holds the rest.
            copies: the number of copies of the text whose masks and pairs differ. Passes read them
                in turns, so that pass ``n`` and pass ``n + copies`` have the same masked examples
                in another order: 1 for masks that are drawn once, as arXiv 1907.11692, section 4.1,
                calls static masking (BERT's code writes 10 or 5 copies, ALBERT's 40); None for new
                masks and pairs in each pass.
            passes: the number of passes over the examples; None for no end.
            start: the number of examples to skip; with ``batch_tokens``, the number of batches.
                They are read, but not masked.

        Returns:
            A data set of (inputs, targets, weights): ``token_ids``, ``padding_mask`` and
            ``segment_ids``, int32 (batch, length); the fields of ``objectives.Masked``,
            ``positions``, ``token_ids``, ``starts`` and ``ends``, int32 (batch, predictions), the
            ``originals``, int32 (batch, length), ``pair``, int32 (batch,), -1 for none, and
            ``seeds``, int32 (batch, 2), the seeds of each example's masks; and float32 (batch,
            predictions), 1 for predictions.

        Raises:
            ValueError: if a size is below 1, both or neither of ``batch_size`` and ``batch_tokens``
                are None, or ``start`` is negative.
        """
        if (batch_size is None) == (batch_tokens is None):
            raise ValueError(
                f"Either batch_size or batch_tokens must be None, got {batch_size} and "
                f"{batch_tokens}."
            )
        for name, value in (("batch_size", batch_size), ("copies", copies), ("passes", passes)):
            if value is not None:
                in_range(name, value, at_least=1)
        in_range("start", start, at_least=0)
        if batch_size is None:
            data = self._by_tokens(batch_tokens, copies, passes).skip(start)
        else:
            data = self._batched(batch_size, copies, passes, start)
        data = data.map(self._masked(masking), tf.data.AUTOTUNE, deterministic=True)
        return training_options(data.prefetch(2))

    def count_batches(self, batch_tokens: int) -> int:
        """Returns the number of batches of at most ``batch_tokens`` tokens in the first pass."""
        return int(self._by_tokens(batch_tokens, None, 1).reduce(0, lambda count, *row: count + 1))

    def _by_tokens(
        self, batch_tokens: int | None, copies: int | None, passes: int | None
    ) -> tf.data.Dataset:
        """Returns the same as ``_batched``, in batches of at most ``batch_tokens`` tokens."""
        raise ValueError(f"{type(self).__name__} has no batches by tokens, expected a batch_size.")

    def _masked(self, masking: Masking) -> Any:
        def masked(*example: Any) -> tuple:
            *segments, seeds = example
            inputs, targets = self._packed(*segments)
            spans = {"spans": inputs.pop("spans")} if "spans" in inputs else {}
            masked_batch = masking(inputs["token_ids"], inputs["padding_mask"], seeds, **spans)
            targets |= {
                "positions": masked_batch.positions,
                "token_ids": masked_batch.targets,
                "starts": masked_batch.starts,
                "ends": masked_batch.ends,
                "originals": inputs["token_ids"],
                "seeds": seeds,
            }
            return {**inputs, "token_ids": masked_batch.token_ids}, targets, masked_batch.weights

        return tf.autograph.experimental.do_not_convert(masked)


class TextExamples(Examples):
    """Examples that are formed from text files in each pass; a subclass implements `_formed`."""

    def _formed(self, seed: int) -> Iterator[Any]:
        """Yields all examples in the order of the text; ``seed`` draws what a copy of it draws.

        Raises:
            ValueError: if the files have no text, or are not UTF-8.
        """
        raise NotImplementedError

    def count(self) -> int:
        """Returns the number of examples in the first pass, which is formed for it."""
        return sum(1 for _ in self.examples())

    def examples(self, number: int = 0, copies: int | None = None) -> Iterator[Any]:
        """Yields the examples of one pass, in the order in which they are trained on.

        Args:
            number: the number of the pass, from 0.
            copies: the same as for ``batches``.

        Raises:
            ValueError: if the files have no text, or are not UTF-8.
        """
        return (example for example, _ in self._pass(number, copies))

    def _pass(self, number: int, copies: int | None) -> Iterator[tuple[Any, list[int]]]:
        """Yields the examples of a pass, each with the seeds of its masks."""
        copy = pass_seed(self.seed, number if copies is None else number % copies)
        draw = random.Random(pass_seed(self.seed, number))
        for index, example in shuffled(enumerate(self._formed(copy)), self.shuffle, draw):
            yield example, [copy, index % SEEDS]

    def _in_passes(
        self, copies: int | None, passes: int | None, start: int
    ) -> Iterator[tuple[Any, list[int]]]:
        """Yields the examples and seeds of several passes; arguments as for ``batches``."""
        numbers = count() if passes is None else range(passes)
        all_passes = (self._pass(number, copies) for number in numbers)
        return islice(chain.from_iterable(all_passes), start, None)


class FormedExamples(Examples):
    """Examples in a format, as ``Segments``; `_batched` has first and second segments and labels.

    Args:
        format: the format of the examples.
        shuffle, seed: the same as for ``Examples``.
    """

    def __init__(self, format: Format, shuffle: int, seed: int):
        super().__init__(shuffle, seed)
        self.format = format
        self.tokenizer = format.tokenizer

    def _packed(self, *example: Any) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        first, second, label = example
        return self.format.pack(first, second), {"pair": label}

    def _by_tokens(
        self, batch_tokens: int | None, copies: int | None, passes: int | None
    ) -> tf.data.Dataset:
        longest = self.format.length
        if batch_tokens is None or batch_tokens < longest:
            raise ValueError(
                f"batch_tokens must be at least the {longest} tokens of an example, got "
                f"{batch_tokens}."
            )

        def divided(*chunk: Any) -> tf.data.Dataset:
            """Splits a chunk into batches with as many consecutive examples as fit."""
            tokens = self.format.tokens(*chunk[:2])
            total = tf.cumsum(tokens)

            def batch(first: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                limit = total[first] - tokens[first] + batch_tokens
                end = tf.searchsorted(total, [limit], side="right")
                return end[0], tf.concat([ends, end], 0)

            _, ends = tf.while_loop(
                lambda first, _: first < tf.size(tokens),
                batch,
                (tf.constant(0), tf.zeros([0], tf.int32)),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            )
            bounds = tf.data.Dataset.from_tensor_slices((tf.concat([[0], ends[:-1]], 0), ends))
            return bounds.map(lambda first, end: tuple(part[first:end] for part in chunk))

        size = _TOGETHER * (batch_tokens // longest)
        chunks = self._batched(size, copies, passes, 0)
        return chunks.flat_map(tf.autograph.experimental.do_not_convert(divided))

    def check_labels(self) -> None:
        """Checks that pairs have both labels: nothing is learned from pairs of one kind.

        Logs a warning if most examples are not pairs.

        Raises:
            ValueError: if there are no pairs, or pairs with one label.
        """
        counts = self._labels()
        labels = counts.keys() - {None}
        task, text = self.format.task, self._source()
        definitions = "data.documents and data.sentences say what a document and a sentence is."
        if not labels:
            raise ValueError(
                f"{task} needs pairs of segments, but {text} has none: no document has two "
                f"sentences that fit into {self.format.length} tokens together. {definitions}"
            )
        if len(labels) == 2:
            if counts[None] > counts[0] + counts[1]:
                _log.warning(
                    "%s learns from %.0f%% of the examples of %s. The others are one segment: "
                    "their sentences are too long for two in %d tokens. %s",
                    *(task, 100 * (1 - counts[None] / counts.total()), text),
                    *(self.format.length, definitions),
                )
            return
        reason = "has too few of them."
        if task == "nsp" and labels == {0}:
            reason = (
                "has no second segments of other documents. One document has no other to take "
                "them from; data.documents says what a document is (blank_line, file or line)."
            )
        raise ValueError(f"{task} needs pairs with both labels, but {text} {reason}")

    def _labels(self) -> Counter[int | None]:
        """Counts labels in the first pass, or in enough of it to have both."""
        raise NotImplementedError

    def _source(self) -> str:
        """Returns the names of the files, for messages."""
        raise NotImplementedError


def _without_space(tokenizer: Tokenizer) -> np.ndarray | None:
    """Returns the token of each token's text without the space before it, or the token itself.

    A space alone has -1. Returns None if tokens do not depend on the space before a sentence.
    """
    if not lacks_prefix_space(tokenizer):
        return None
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)} | {"": -1}
    pieces = enumerate(tokenizer.vocabulary)
    return np.array([ids.get(p.removeprefix("\u0120"), i) for i, p in pieces], "int32")


def pass_seed(seed: int, number: Any) -> Any:
    """Returns the seed of a pass over a data set: an ``int``, or int64 if ``number`` is."""
    return (seed * 1_000_003 + number) % SEEDS


def shuffled(examples: Iterator[Any], size: int, draw: random.Random) -> Iterator[Any]:
    """Draws each next example among ``size``."""
    buffer = list(islice(examples, size - 1))
    for example in examples:
        buffer.append(example)
        i = draw.randrange(len(buffer))
        buffer[i], buffer[-1] = buffer[-1], buffer[i]
        yield buffer.pop()
    draw.shuffle(buffer)
    yield from buffer

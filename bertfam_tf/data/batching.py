"""Batches of examples of similar length, so that little of a batch is padding."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import as_value_errors, checked

_WINDOW = 32
# Shuffle buffer of batches: buckets that are not full are emptied at the end of an epoch, and often
# hold long texts. Without it, texts would be longer at the end of an epoch.
_SHUFFLE_BUFFER = 128
# Examples that are tokenized together to be counted.
_CHUNK = 32
# The number of lengths that are considered as bounds of buckets; the search takes quadratic time.
_MAX_BOUNDS = 256
# Ratio of neighbouring bounds if lengths are unknown: up to a fifth of an example is padding.
_RATIO = 1.2

TokenCounts = Callable[[dict[str, tf.Tensor]], tf.Tensor]


def training_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a data set with the options that training needs.

    Autotuning is off, and ``AUTOTUNE`` means the number of the machine's threads: TensorFlow 2.20
    may not see, when an iterator is deleted, that the thread that tunes its parallelism was
    cancelled, and then waits until that thread wakes up: 20 s after half a minute of training, up
    to a minute later on, at the end of ``fit``.

    Several workers split the examples of each batch. By default, TensorFlow would split files or
    passes over them, and batches would differ from a single worker's.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def shuffled_batches(
    dataset: tf.data.Dataset, batch_size: int, *, buffer: int, seed: int | None = None
) -> tf.data.Dataset:
    """Shuffles examples and batches them by length.

    Windows of 32 batches are drawn at random, sorted by the length of their texts, split into
    batches, and the batches drawn at random: every example is seen once an epoch, and which
    examples share a batch changes from epoch to epoch. Lengths are bytes of text, known before
    tokenization.

    Args:
        dataset: elements ``(features, …)`` of single examples; ``features`` is a dict of strings,
            scalars or vectors.
        batch_size: the number of examples in a batch; the last one may be smaller.
        buffer: the size of the shuffle buffer, in examples.
        seed: makes the order reproducible.

    Returns:
        A data set of batches with the structure of ``dataset``'s elements; of unknown cardinality.
    """

    @tf.autograph.experimental.do_not_convert
    def in_batches(number, window):
        lengths = tf.add_n([_length(text) for text in window[0].values()])
        order = tf.argsort(lengths, stable=True)

        @tf.autograph.experimental.do_not_convert
        def batch(i):
            part = order[i * batch_size : (i + 1) * batch_size]
            return tf.nest.map_structure(lambda values: tf.gather(values, part), window)

        # All batches of a window are shuffled together: in a streaming shuffle buffer, short ones
        # of the next window would come first, and an epoch would start with short texts.
        count = (tf.size(order) + batch_size - 1) // batch_size
        drawn = tf.argsort(tf.random.stateless_uniform([count], [number, 0]))
        return tf.data.Dataset.from_tensor_slices(drawn).map(batch)

    windows = dataset.shuffle(buffer, seed=seed).batch(_WINDOW * batch_size)
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(numbers, windows).flat_map(in_batches)


def _length(texts: tf.Tensor) -> tf.Tensor:
    """Computes the bytes of each example's strings (examples, …), int32 (examples,)."""
    return tf.reduce_sum(tf.strings.length(texts), axis=list(range(1, texts.shape.rank)))


@dataclass(frozen=True)
class TokenBatches:
    """Batches of at most a number of tokens, of examples of similar length.

    Examples wait in buckets by length, and a bucket with as many of them as fit, if each were as
    long as the longest, is a batch: a batch stays within the budget with its padding too. A pass
    over the data beforehand (``counted``) finds the buckets that make the fewest batches, and the
    number of batches, which is the same in each epoch whatever the order. Without it, lengths of
    neighbouring buckets differ by a fifth, and the number of batches is not known.

    Where examples are shuffled, batches are drawn from the next 128 of them. What is left in the
    buckets, a small batch of each, comes at the end of an epoch; in a large data set, whose batches
    are many times 128, rare lengths come late for that reason.

    Examples are tokenized once more than for training alone, to count their tokens, and in
    ``counted``. Memory holds less than one batch for each bucket, and shuffle buffers.

    Args:
        budget: the tokens per batch, as many as the model computes: with special tokens, after
            truncation, and in all windows of a document.
        tokens: a function from features, string tensors (batch,) by name, to the number of tokens
            of each example, int32 (batch,).
        bounds: lengths of the longest example of each bucket, ascending.
        steps: batches of an epoch; None where that is not known.

    Raises:
        ValueError: if the budget is below 1. Iterating, and ``counted``, raise it if an example is
            longer than the budget.
    """

    budget: int
    tokens: TokenCounts
    bounds: tuple[int, ...] = ()
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {self.budget}.")
        if not self.bounds:
            object.__setattr__(self, "bounds", _geometric(self.budget))

    def counted(self, dataset: tf.data.Dataset) -> TokenBatches:
        """Returns a copy with the best buckets for ``dataset``, which is read and tokenized once.

        Args:
            dataset: elements ``(features, …)`` of single examples, finitely many.
        """
        frequencies: Counter[int] = Counter()
        lengths = dataset.map(lambda features, *rest: features).batch(_CHUNK)
        with as_value_errors():
            for chunk in lengths.map(self._checked, num_parallel_calls=tf.data.AUTOTUNE):
                frequencies.update(chunk.numpy().tolist())
        bounds, steps = _fewest_batches(frequencies, self.budget)
        return dataclasses.replace(self, bounds=bounds, steps=steps)

    def __call__(
        self, dataset: tf.data.Dataset, *, buffer: int | None = None, seed: int | None = None
    ) -> tf.data.Dataset:
        """Batches a data set.

        Args:
            dataset: elements ``(features, …)`` of single examples; ``features`` is a dict of
                strings, scalars or vectors.
            buffer: the size of the shuffle buffer, in examples; None keeps the order within a
                bucket and the order in which buckets fill.
            seed: makes the shuffled order reproducible.

        Returns:
            A data set of ``steps`` batches with the structure of ``dataset``'s elements; of unknown
            cardinality.
        """
        if buffer is not None:
            dataset = dataset.shuffle(buffer, seed=seed)

        @tf.autograph.experimental.do_not_convert
        def with_counts(*element):
            return self._checked(element[0]), element

        dataset = dataset.batch(_CHUNK).map(with_counts, num_parallel_calls=tf.data.AUTOTUNE)
        dataset = dataset.unbatch().bucket_by_sequence_length(
            lambda count, _: count,
            bucket_boundaries=[bound + 1 for bound in self.bounds],
            # One more bucket, for longer examples, of which there are none.
            bucket_batch_sizes=[self._size(bound) for bound in self.bounds] + [1],
            no_padding=True,
        )
        dataset = dataset.map(lambda _, element: element)
        return dataset if buffer is None else dataset.shuffle(_SHUFFLE_BUFFER, seed=seed)

    def _size(self, bound: int) -> int:
        return max(1, self.budget // max(1, bound))

    @tf.autograph.experimental.do_not_convert
    def _checked(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        counts = self.tokens(features)
        longest = tf.reduce_max(counts)
        before = f"batch_tokens is {self.budget}, less than the "
        return checked(counts, longest <= self.budget, before, longest, " tokens of an example.")


def _geometric(budget: int) -> tuple[int, ...]:
    bounds = [1]
    while bounds[-1] < budget:
        bounds.append(min(budget, max(bounds[-1] + 1, int(bounds[-1] * _RATIO))))
    return tuple(bounds)


def _fewest_batches(lengths: Counter[int], budget: int) -> tuple[tuple[int, ...], int]:
    """Finds the buckets by length that make the fewest batches, and the number of batches.

    Args:
        lengths: how many examples there are of each length.
        budget: the most that a batch's number of examples times its longest may be.

    Returns:
        The longest length of each bucket, ascending, and the sum of their batches.
    """
    known = np.array(sorted(lengths))
    places = np.unique(np.linspace(0, len(known) - 1, _MAX_BOUNDS).round().astype(int))
    bounds = known[places]
    below = np.cumsum([lengths[length] for length in known.tolist()])[places]
    sizes = np.maximum(1, budget // np.maximum(1, bounds))
    # Dynamic programming computes the fewest batches of all examples up to each bound, and the
    # bound below the bucket that ends there.
    counts, fewest, before = np.array([0, *below]), np.zeros(len(bounds) + 1, int), []
    for end, (count, size) in enumerate(zip(below, sizes, strict=True), 1):
        totals = fewest[:end] + -(-(count - counts[:end]) // size)
        # Among equal ones, the narrowest bucket pads least.
        start = end - 1 - int(np.argmin(totals[::-1]))
        fewest[end] = totals[start]
        before.append(start)
    chosen, end = [], len(bounds)
    while end:
        chosen.append(int(bounds[end - 1]))
        end = before[end - 1]
    return tuple(reversed(chosen)), int(fewest[-1])

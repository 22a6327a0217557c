"""Batches of rows that are about equally long, so that little of a batch is padding."""

import tensorflow as tf

_WINDOW = 32


def shuffled_batches(
    rows: tf.data.Dataset, batch_size: int, *, buffer: int, seed: int | None = None
) -> tf.data.Dataset:
    """Shuffles rows and batches them by length.

    Windows of 32 batches are drawn at random, sorted by the length of their texts, cut into
    batches, and the batches drawn at random: every row is seen once an epoch, and which rows meet
    changes from epoch to epoch. Lengths are bytes of text, known before tokenization.

    Args:
        rows: elements ``(features, …)`` of single rows; ``features`` is a dict of strings,
            scalars or vectors.
        batch_size: rows of a batch; one batch is smaller when they do not come out even.
        buffer: rows to draw from.
        seed: makes the order the same at each run.

    Returns:
        Elements like those of ``rows``, batched; of unknown cardinality.
    """

    def in_batches(*window):
        lengths = tf.add_n([_length(text) for text in window[0].values()])
        order = tf.argsort(lengths, stable=True)
        ordered = tf.nest.map_structure(lambda values: tf.gather(values, order), window)
        return tf.data.Dataset.from_tensor_slices(ordered).batch(batch_size)

    windows = rows.shuffle(buffer, seed=seed).batch(_WINDOW * batch_size)
    return windows.flat_map(in_batches).shuffle(_WINDOW, seed=seed)


def _length(texts: tf.Tensor) -> tf.Tensor:
    """Bytes of each row of strings (rows, …), int32 (rows,)."""
    return tf.reduce_sum(tf.strings.length(texts), axis=list(range(1, texts.shape.rank)))

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

    def in_batches(number, window):
        lengths = tf.add_n([_length(text) for text in window[0].values()])
        order = tf.argsort(lengths, stable=True)

        def batch(i):
            part = order[i * batch_size : (i + 1) * batch_size]
            return tf.nest.map_structure(lambda values: tf.gather(values, part), window)

        # All of a window at once: in a buffer that batches stream through, short ones of the next
        # window overtake, and an epoch begins with short texts and ends with long ones.
        count = (tf.size(order) + batch_size - 1) // batch_size
        drawn = tf.argsort(tf.random.stateless_uniform([count], [number, 0]))
        return tf.data.Dataset.from_tensor_slices(drawn).map(batch)

    windows = rows.shuffle(buffer, seed=seed).batch(_WINDOW * batch_size)
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(numbers, windows).flat_map(in_batches)


def _length(texts: tf.Tensor) -> tf.Tensor:
    """Bytes of each row of strings (rows, …), int32 (rows,)."""
    return tf.reduce_sum(tf.strings.length(texts), axis=list(range(1, texts.shape.rank)))

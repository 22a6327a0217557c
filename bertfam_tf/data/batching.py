"""Batches of examples of similar length, so that little of a batch is padding."""

import tensorflow as tf

_WINDOW = 32


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
        batch_size: examples in a batch; the last one may be smaller.
        buffer: size of the shuffle buffer, in examples.
        seed: makes the order reproducible.

    Returns:
        Elements like those of ``dataset``, batched; of unknown cardinality.
    """

    @tf.autograph.experimental.do_not_convert
    def in_batches(number, window):
        lengths = tf.add_n([_length(text) for text in window[0].values()])
        order = tf.argsort(lengths, stable=True)

        @tf.autograph.experimental.do_not_convert
        def batch(i):
            part = order[i * batch_size : (i + 1) * batch_size]
            return tf.nest.map_structure(lambda values: tf.gather(values, part), window)

        # A window's batches are shuffled all at once: in a streaming shuffle buffer short ones of
        # the next window would overtake: an epoch would begin with short texts and end with long.
        count = (tf.size(order) + batch_size - 1) // batch_size
        drawn = tf.argsort(tf.random.stateless_uniform([count], [number, 0]))
        return tf.data.Dataset.from_tensor_slices(drawn).map(batch)

    windows = dataset.shuffle(buffer, seed=seed).batch(_WINDOW * batch_size)
    numbers = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(numbers, windows).flat_map(in_batches)


def _length(texts: tf.Tensor) -> tf.Tensor:
    """Bytes of each example's strings (examples, …), int32 (examples,)."""
    return tf.reduce_sum(tf.strings.length(texts), axis=list(range(1, texts.shape.rank)))

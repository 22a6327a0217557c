"""Strings to their places in a list, in the graph."""

from collections.abc import Sequence

import tensorflow as tf

from bertfam_tf.data.errors import MARK


def index_of(
    values: tf.Tensor, known: Sequence[str], what: str, place: str | tf.Tensor = ""
) -> tf.Tensor:
    """Each string's index in ``known``, int32, of the same shape.

    Args:
        values: strings, scalar or vector.
        known: different strings.
        what: what the values are, for the error's text.
        place: where they stand, to go before the error's text.

    Raises:
        InvalidArgumentError: at run time, naming the first value that is not in the list.
    """
    matches = tf.equal(tf.expand_dims(values, -1), tf.constant(list(known)))
    found = tf.reduce_any(matches, axis=-1)
    wrong = tf.boolean_mask(tf.reshape(values, [-1]), tf.reshape(~found, [-1]))[:1]
    before, after = not_listed("\0", known, what).split("\0", 1)
    text = tf.strings.join([MARK, place, before, tf.strings.reduce_join(wrong), after])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(found), [text])]):
        return tf.argmax(matches, axis=-1, output_type=tf.int32)


def not_listed(value: str, known: Sequence[str], what: str) -> str:
    """The text of the error."""
    return f"The {what} '{value}' is not one of: {', '.join(known)}."

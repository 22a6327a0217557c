"""Random numbers that are the same in every run."""

from unittest import mock


def seed(number: int) -> None:
    """Seeds Python's, NumPy's and Keras' generators.

    ``keras.utils.set_random_seed`` also seeds TensorFlow, which empties its kernel cache: traced
    functions are then set up again, and lookup tables built again, in their next call.
    """
    # Not at the top: the process that only distributes tests to workers does not need them.
    import keras
    import tensorflow as tf

    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(number)

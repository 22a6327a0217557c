"""Random numbers that are the same in every run."""

from unittest import mock

import keras
import tensorflow as tf


def seed(number: int) -> None:
    """Seeds Python's, NumPy's and Keras' generators.

    ``keras.utils.set_random_seed`` also seeds TensorFlow, which empties its kernel cache: traced
    functions are then set up again, and lookup tables built again, in their next call.
    """
    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(number)

"""Random numbers that are the same in every run."""

from unittest import mock

import keras
import tensorflow as tf


def seed(number: int) -> None:
    """Seeds Python's, NumPy's and Keras' generators.

    ``keras.utils.set_random_seed`` seeds TensorFlow's too, and so empties its cache of kernels:
    functions traced before are set up again, and lookup tables built again, at their next call.
    """
    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(number)

"""Initial weights."""

import keras


def normal(stddev: float) -> keras.initializers.Initializer:
    """BERT's initializer: normal, cut at two standard deviations.

    Each weight needs an initializer of its own: Keras draws the same numbers when one is reused.
    """
    return keras.initializers.TruncatedNormal(stddev=stddev)

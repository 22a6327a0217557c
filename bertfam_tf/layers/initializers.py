"""Initial weights."""

import keras


def normal(stddev: float) -> keras.initializers.Initializer:
    """BERT's initializer: a normal distribution, truncated at two standard deviations.

    Make one for each weight: Keras' initializers return the same numbers in every call.
    """
    return keras.initializers.TruncatedNormal(stddev=stddev)

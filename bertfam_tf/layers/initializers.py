"""Initializers of weights."""

import contextlib
import contextvars
from collections.abc import Iterator

import keras
from keras import ops

_filled_later: contextvars.ContextVar[bool] = contextvars.ContextVar("filled_later", default=False)


@contextlib.contextmanager
def filled_later() -> Iterator[None]:
    """Returns a context in which ``normal`` gives zeros, for weights that are read from files.

    Drawing random weights takes longer than reading weights from a file.
    """
    token = _filled_later.set(True)
    try:
        yield
    finally:
        _filled_later.reset(token)


@keras.saving.register_keras_serializable(package="bertfam_tf")
class Normal(keras.initializers.TruncatedNormal):
    """``keras.initializers.TruncatedNormal``, or zeros in the context ``filled_later``."""

    def __call__(self, shape, dtype=None):
        if _filled_later.get():
            return ops.zeros(shape, dtype)
        return super().__call__(shape, dtype)


def normal(stddev: float) -> keras.initializers.Initializer:
    """Returns BERT's initializer: a normal distribution, truncated at two standard deviations.

    Create one for each weight: a Keras initializer returns the same numbers in every call.
    """
    return Normal(stddev=stddev)

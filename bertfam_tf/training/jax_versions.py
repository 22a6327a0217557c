"""Versions of JAX that train slowly."""

import re

from bertfam_tf.user_warnings import warn

# XLA compiles sums of many gradients into few rows to a loop: 9 ms a step instead of 0.1 ms.
_SLOW = (0, 10, 2), (0, 11, 0)


def warn_if_slow() -> None:
    """Warns about a version of jaxlib that is slow on the GPU which JAX uses."""
    import jax
    import jaxlib

    version = tuple(map(int, re.findall(r"\d+", jaxlib.__version__)[:3]))
    if jax.default_backend() == "gpu" and _SLOW[0] <= version <= _SLOW[1]:
        warn(
            f"jaxlib {jaxlib.__version__} sums the gradients of embeddings slowly on GPUs: "
            "pip install --upgrade 'jax[cuda12]>=0.11.1'"
        )

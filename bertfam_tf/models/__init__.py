"""Backbones: one ``Family`` record per family, and the two functions that build from them.

Importing this module imports all files in this directory, of which each family's registers it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import keras

from bertfam_tf import registry
from bertfam_tf.models.base import Backbone, Config, single_example_branch, unpadding
from bertfam_tf.models.parts import Parts
from bertfam_tf.names import unknown
from bertfam_tf.registry import families

__all__ = [
    "Backbone",
    "Config",
    "Parts",
    "build",
    "config_of",
    "count_parameters",
    "families",
    "single_example_branch",
    "unpadding",
]


def _register_families() -> None:
    """Imports all modules of this package, sorted by name."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


_register_families()


def config_of(family: str, size: str = "base", **overrides: Any) -> Any:
    """Returns the config of a published size, with fields overridden.

    Args:
        family: a name from ``families()``.
        size: one of the family's published sizes.
        **overrides: config fields, such as ``num_layers=4``.

    Raises:
        ValueError: if the family, size or field is unknown; the message names the nearest.
    """
    record = registry.get(family)
    if size not in record.sizes:
        raise ValueError(unknown(f"size of {family}", size, record.sizes))
    return record.config.from_dict({**record.sizes[size], **overrides})


def build(
    family: str,
    size: str = "base",
    *,
    parts: Mapping[str, keras.layers.Layer] | None = None,
    dtype: Any = None,
    **overrides: Any,
) -> Backbone:
    """Returns a backbone with random weights.

    Args:
        parts, dtype: the same as for ``Backbone``; other arguments and errors as for ``config_of``.
    """
    return Backbone(family, config_of(family, size, **overrides), parts=parts, dtype=dtype)


def count_parameters(family: str, size: str = "base", **overrides: Any) -> int:
    """Returns the number of parameters of a backbone, counted without allocating them."""

    def count() -> int:
        with keras.StatelessScope(initialize_variables=False):
            return build(family, size, **overrides).count_params()

    # Keras keeps a list of uninitialised variables per thread, and initialises them later: a thread
    # of its own ends with its list.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(count).result()

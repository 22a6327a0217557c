"""Keras callbacks that a recipe names by their import paths."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import keras

from bertfam_tf.names import truncated_repr, unknown
from bertfam_tf.training.settings import CALLBACKS, callback_entries


def imported(callbacks: Sequence[Any]) -> list[keras.callbacks.Callback]:
    """Imports and creates the callbacks of a recipe.

    This executes code of the named modules. It is only called by runs of a recipe that its user
    passes, and never for the ``recipe.yaml`` of a run directory that other commands read.

    Args:
        callbacks: the same as for ``callback_entries``.

    Raises:
        ValueError: if a class cannot be imported, is not a Keras callback, or does not accept its
            arguments.
    """
    created = []
    for path, arguments in callback_entries(callbacks):
        cls = _class(path)
        try:
            created.append(cls(**arguments))
        except Exception as error:  # of code that is not this package's
            raise ValueError(
                f"{path} in {CALLBACKS} cannot be created with {truncated_repr(arguments)}: {error}"
            ) from error
    return created


def check_importable(callbacks: Sequence[Any]) -> None:
    """Imports the classes of a recipe's callbacks, so that mistakes end a run before it starts.

    Raises:
        ValueError: as for ``imported``, except for arguments.
    """
    for path, _ in callback_entries(callbacks):
        _class(path)


def _class(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except Exception as error:  # of code that is not this package's
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; install it, or set PYTHONPATH to the directory of your own modules"
        raise ValueError(f"{path} in {CALLBACKS} cannot be imported: {error}{hint}.") from error
    cls = getattr(module, name, None)
    if cls is None:
        public = [name for name in dir(module) if not name.startswith("_")]
        raise ValueError(f"{CALLBACKS}: {unknown(f'name in {module_name}', name, public)}")
    if not (isinstance(cls, type) and issubclass(cls, keras.callbacks.Callback)):
        raise ValueError(f"{path} in {CALLBACKS} must be a class of Keras callbacks, got {cls!r}.")
    return cls

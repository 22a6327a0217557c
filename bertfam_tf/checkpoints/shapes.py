"""Computes the shapes of a backbone's weights from its config, without creating them.

A config may declare a vocabulary of gigabytes or a million layers for a file of a few kilobytes.
The declared shapes are compared with the stored tensors before memory is allocated.
"""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras

from bertfam_tf import registry
from bertfam_tf.models.parts import Parts
from bertfam_tf.names import truncated_repr
from bertfam_tf.sources import CheckpointError


def declared(
    family: registry.Family, config: Any, stored: int, what: str
) -> dict[str, tuple[int, ...]]:
    """Returns the path and shape of each variable of the backbone, without allocating them.

    If the family has a table of all paths, only two layers are built, because all layers but the
    first have the same shapes unless heads were pruned.

    Args:
        family: the family.
        config: its config.
        stored: the number of stored tensors.
        what: the config, for error messages.

    Raises:
        CheckpointError: if there are more layers than stored tensors, or the config is invalid.
    """
    table = family.huggingface.weights if family.huggingface else {}
    for path in (*table, *(f"{{{letter}}}" for letter in family.indices)):
        count = 1
        for letter, number in family.counts(path, config).items():
            count *= number
            _check_count(family.indices[letter], number, count, stored, what)
    fields = {field.name for field in dataclasses.fields(config)}
    capped = {"num_layers", *family.indices.values()} & fields
    if not table or getattr(config, "heads_per_layer", None):
        capped = set()
    two = dataclasses.replace(config, **{f: min(getattr(config, f), 2) for f in capped})
    shapes = _shapes(family, two, what)
    if capped and shapes.keys() - family.expand(table, two).keys():
        # Numbers of layers in other paths are not known.
        for name in capped:
            _check_count(name, getattr(config, name), getattr(config, name), stored, what)
        return _shapes(family, config, what)
    all_shapes = dict(shapes)
    for path in table:
        counts = family.counts(path, config)
        built = family.counts(path, two)
        for numbers in itertools.product(*map(range, built.values())):
            shape = shapes.get(_numbered(path, counts, numbers))
            if shape is None:
                continue
            ranges = [
                range(i, counts[letter] if i == built[letter] - 1 else i + 1)
                for letter, i in zip(counts, numbers, strict=True)
            ]
            all_shapes |= {_numbered(path, counts, i): shape for i in itertools.product(*ranges)}
    return all_shapes


def _numbered(path: str, letters: Any, numbers: tuple[int, ...]) -> str:
    for letter, number in zip(letters, numbers, strict=True):
        path = path.replace(f"{{{letter}}}", str(number))
    return path


def _check_count(name: str, value: Any, count: int, stored: int, what: str) -> None:
    if count > stored:
        raise CheckpointError(
            f"{what} declares {name} = {truncated_repr(value)}, but only {stored} tensors are "
            "stored. Config and weights must belong to the same checkpoint."
        )


def _shapes(family: registry.Family, config: Any, what: str) -> dict[str, tuple[int, ...]]:
    def shapes() -> dict[str, tuple[int, ...]]:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.Model(*family.wire(config, Parts()))
        return {variable.path: tuple(variable.shape) for variable in model.weights}

    # In a separate thread, as in ``models.count_parameters``.
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            return thread.submit(shapes).result()
        except Exception as error:  # of any type, raised by Keras for invalid sizes
            raise CheckpointError(
                f"{what} does not describe a {family.name} model: {error}"
            ) from error

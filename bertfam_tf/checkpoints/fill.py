"""Assigns tensors to variables by name; every variable and every tensor has to be accounted for."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np

from bertfam_tf.checkpoints.tensors import Tensors
from bertfam_tf.names import join_names
from bertfam_tf.sources import CheckpointError

_FLOATS = ("F64", "F32", "F16", "BF16")


def fill(
    variables: Iterable[keras.Variable],
    tensors: Tensors,
    sources: Mapping[str, str],
    ignored: Iterable[str],
    what: str,
) -> None:
    """Assigns all variables, or none.

    Args:
        variables: the variables to assign.
        tensors: their values.
        sources: variable path -> tensor name and storage transform, as in ``registry``.
        ignored: regular expressions of tensor names that may remain unused.
        what: checkpoint and model, for error messages.

    Raises:
        CheckpointError: if a tensor is missing, unexpected, used twice, of a wrong shape, not a
            float tensor, or not finite. The message lists them; no variable has changed.
    """
    targets = {variable.path: variable for variable in variables}
    compare({p: tuple(v.shape) for p, v in targets.items()}, tensors, sources, ignored, what)
    by_path = {path: sources[path].partition("|")[::2] for path in targets}
    # Tensors are read twice, so that a bad tensor leaves all variables unchanged while only one
    # tensor is in memory at a time.
    for name, _ in by_path.values():
        if not np.isfinite(tensors[name].astype("float32", copy=False)).all():
            raise CheckpointError(f"{what}: {tensors.stored_name(name)} contains NaN or infinity.")
    for path, (name, transform) in by_path.items():
        targets[path].assign(oriented(tensors[name], transform, targets[path].shape))


def compare(
    targets: Mapping[str, tuple[int, ...]],
    tensors: Tensors,
    sources: Mapping[str, str],
    ignored: Iterable[str],
    what: str,
) -> None:
    """Checks that tensors and variables match, without reading tensors.

    Args:
        targets: variable path -> its shape.
        tensors, sources, ignored, what: the same as for ``fill``.

    Raises:
        CheckpointError: as ``fill``, except for values that are not finite.
    """
    unnamed = targets.keys() - sources.keys()
    if unnamed:
        raise CheckpointError(
            f"{what}: the family defines no names for {join_names(sorted(unnamed))}."
        )
    by_path = {path: sources[path].partition("|")[::2] for path in targets}
    missing = sorted(name for name, _ in by_path.values() if name not in tensors)
    twice = sorted(name for (name, _), uses in Counter(by_path.values()).items() if uses > 1)
    known = re.compile("|".join(ignored) or r"(?!)")
    used = {name for name, _ in by_path.values()}
    unexpected = sorted(
        tensors.stored_name(name)
        for name in tensors
        if name not in used and not known.fullmatch(name)
    )
    shapes, types = [], []
    for path, (name, transform) in by_path.items():
        if name in tensors:
            actual = loaded_shape(tensors.shape(name), transform)
            expected = targets[path]
            if "F" in transform:
                expected = (expected[0], math.prod(expected[1:]))
            if actual != expected:
                shapes.append(f"{tensors.stored_name(name)} {actual}, expected {expected}")
            # Quantized weights are meaningless without their scales.
            if tensors.dtype(name) not in _FLOATS:
                types.append(f"{tensors.stored_name(name)} {tensors.dtype(name)}")
    if missing or unexpected or twice or shapes or types:
        lines = [f"{what} do not match."]
        if missing:
            lines.append(f"Missing tensors: {join_names(missing)}.")
        if unexpected:
            lines.append(f"Unexpected tensors: {join_names(unexpected)}.")
        if twice:
            lines.append(f"Tensors for more than one variable: {join_names(twice)}.")
        if shapes:
            lines.append(f"Wrong shapes: {join_names(shapes)}.")
        if types:
            lines.append(f"Wrong types: {join_names(types)}; expected one of {', '.join(_FLOATS)}.")
        absent = [path for path, (name, _) in by_path.items() if name not in tensors]
        if absent and all(path.startswith("pooler/") for path in absent):
            lines.append(
                "A checkpoint without a pooler loads with pooler=False; pooler=True adds a new one."
            )
        raise CheckpointError("\n".join(lines))


def oriented(array: np.ndarray, transform: str, shape: Sequence[int]) -> np.ndarray:
    """Converts a stored tensor to the layout of a variable of that shape."""
    if "/" in transform:
        i, parts = map(int, re.findall(r"\d+", transform))
        array = np.split(array, parts)[i]
    array = array.T if "T" in transform else array
    return array.reshape(shape) if "F" in transform or "H" in transform else array


def stored(array: np.ndarray, transform: str) -> np.ndarray:
    """Converts a variable to the stored layout; for a part of a tensor, only that part."""
    array = array.reshape(len(array), -1) if "F" in transform else array
    return array.T if "T" in transform else array


def heads_axis(transform: str) -> int | None:
    """Returns the stored tensor's axis of heads, which is split into (heads, size), else None."""
    return int(transform.partition("H")[2]) if "H" in transform else None


def loaded_shape(shape: tuple[int, ...], transform: str) -> tuple[int, ...]:
    """Returns the shape of a stored tensor in our layout; with ``F``, before unflattening."""
    if "/" in transform:
        parts = int(re.findall(r"\d+", transform)[1])
        shape = (shape[0] // parts if shape[0] % parts == 0 else shape[0], *shape[1:])
    axis = heads_axis(transform)
    if axis is not None and len(shape) > axis + 1:
        shape = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return shape[::-1] if "T" in transform else shape

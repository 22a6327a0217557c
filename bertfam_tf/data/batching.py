"""Whatever a user hands to ``fit`` or ``predict``, as one stream of batches of raw text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.grouping import shuffled_batches

TEXT = "text"
TEXT_PAIR = "text_pair"
LABEL = "label"

_SHAPES = (
    "a list of strings, a pair (texts, text_pairs) of lists, a dict with 'text' and optionally "
    "'text_pair', or a tf.data.Dataset of those"
)


def batches(
    x: Any, y: Any = None, sample_weight: Any = None, *, batch_size: int, shuffle: bool = False
) -> tf.data.Dataset:
    """A stream of ``(features, y, sample_weight)`` as far as they are given.

    Args:
        x: texts in one of the shapes that Keras users have them in: a list or array of strings, a
            tuple of two such for pairs, a dict ``{"text": …, "text_pair": …}``, or a
            ``tf.data.Dataset`` whose elements are one of these, alone or followed by y (and
            sample weight), batched or not. A dict may hold y itself, as ``"label"``.
        y: labels, when ``x`` is not a data set.
        sample_weight: weights, when ``x`` is not a data set.
        batch_size: rows of a batch; a data set that is batched already keeps its own.
        shuffle: draws lists and arrays in a new order each epoch, rows of like length together.
            A data set keeps its order.

    Returns:
        A data set whose elements are tuples; the first is a dict of string tensors (batch,).

    Raises:
        ValueError: for another type, empty input, or lengths that differ.
    """
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight come inside the data set when x is one.")
        if int(x.cardinality()) == 0:
            raise ValueError("There is no text in the input.")
        dataset = x.map(
            tf.autograph.experimental.do_not_convert(_as_tuple),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        rank = next(iter(dataset.element_spec[0].values())).shape.rank
        if rank not in (0, 1):
            raise ValueError(f"Texts are scalars or vectors in a data set, not of rank {rank}.")
        return dataset if rank == 1 else dataset.batch(batch_size)
    if isinstance(x, Mapping) and y is None:
        x, (y,) = _split_label(x, default=(None,))
    arrays: tuple = (_features(x),)
    if y is not None:
        arrays += (np.asarray(y),)
    if sample_weight is not None:
        arrays += (np.asarray(sample_weight, "float32"),)
    lengths = {len(array) for array in (*arrays[0].values(), *arrays[1:])}
    if len(lengths) != 1:
        raise ValueError(f"Texts, labels and weights differ in number: {sorted(lengths)}.")
    rows = lengths.pop()
    if not rows:
        raise ValueError("There is no text in the input.")
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if shuffle:
        count = tf.data.experimental.assert_cardinality(-(-rows // batch_size))
        return shuffled_batches(dataset, batch_size, buffer=rows).apply(count)
    return dataset.batch(batch_size)


def _features(x: Any) -> dict[str, np.ndarray]:
    if isinstance(x, Mapping):
        named = dict(x)
    elif isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], str | bytes):
        named = {TEXT: x[0], TEXT_PAIR: x[1]}
    elif isinstance(x, str | bytes):
        raise ValueError(f"A single string; expected {_SHAPES}.")
    elif isinstance(x, Sequence | np.ndarray | tf.Tensor):
        named = {TEXT: x}
    else:
        raise ValueError(f"Cannot read texts from a {type(x).__name__}; expected {_SHAPES}.")
    _check_names(named)
    return {name: _strings(values, name) for name, values in named.items()}


def _strings(values: Any, name: str) -> np.ndarray:
    if isinstance(values, tf.Tensor):
        values = values.numpy()
    for row, value in enumerate(values):
        if not isinstance(value, str | bytes):
            raise ValueError(f"Row {row} of {name!r} is {value!r}, not a string.")
    # Lone surrogates cannot be encoded; they get the fate of other broken bytes.
    encoded = [v.encode("utf-8", "replace") if isinstance(v, str) else v for v in values]
    # dtype object keeps trailing NUL bytes, which numpy's own string type drops.
    return np.array(encoded, dtype=object)


def _check_names(named: Mapping[str, Any]) -> None:
    if TEXT not in named or named.keys() - {TEXT, TEXT_PAIR}:
        raise ValueError(f"Features are 'text' and optionally 'text_pair', not {sorted(named)}.")


def _split_label(named: Mapping[str, Any], default: tuple = ()) -> tuple[dict[str, Any], tuple]:
    features = dict(named)
    return (features, (features.pop(LABEL),)) if LABEL in features else (features, default)


def _as_tuple(*element: Any) -> tuple:
    # A data set of (text, label) maps with two arguments, one of dicts with one.
    x, rest = element[0], element[1:]
    if isinstance(x, Mapping):
        if not rest:
            x, rest = _split_label(x)
        _check_names(x)
    elif isinstance(x, tuple):
        x = {TEXT: x[0], TEXT_PAIR: x[1]}
    else:
        x = {TEXT: x}
    for name, value in x.items():
        if value.dtype != tf.string:
            raise ValueError(f"{name!r} is {value.dtype.name} in the data set, not string.")
    return (x, *rest)

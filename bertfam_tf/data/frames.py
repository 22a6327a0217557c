"""Converts objects with the interface of pandas to lists and arrays, without importing pandas."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def is_frame(x: Any) -> bool:
    """Returns whether it is a ``DataFrame``."""
    return hasattr(x, "iloc") and hasattr(x, "columns")


def from_pandas(x: Any, name: str = "") -> Any:
    """Converts a pandas ``Series``, ``Index``, array or frame to lists or NumPy arrays.

    Args:
        x: anything; objects that are not from pandas are returned unchanged. Dicts and tuples are
            converted element by element.
        name: its name in error messages, if it has no name itself.

    Raises:
        ValueError: if a value is missing (None, NaN, ``pandas.NA``); the message names row and
            column.
    """
    if isinstance(x, Mapping):
        return {key: from_pandas(values, str(key)) for key, values in x.items()}
    if type(x) is tuple:
        return tuple(from_pandas(values, name) for values in x)
    if is_frame(x):
        if not x.columns.is_unique:
            repeated = str(x.columns[x.columns.duplicated()][0])
            raise ValueError(f"The DataFrame has several columns {repeated!r}, expected one.")
        rows = np.stack([np.asarray(from_pandas(x[c], str(c))) for c in x.columns], axis=1)
        return rows.tolist() if rows.dtype == object else rows
    if not hasattr(x, "to_numpy"):
        return x
    name = str(getattr(x, "name", None) or name)
    values = x.to_numpy()
    missing = np.flatnonzero(x.isna()) if hasattr(x, "isna") else np.zeros(0, int)
    if len(missing):
        row = int(missing[0])
        label = x.index[row] if hasattr(x, "index") and hasattr(x, "iloc") else row
        at = f"Row {row}" if label == row else f"Row {row} (index {label})"
        raise ValueError(
            f"{at} of {name!r} is missing, and {len(missing)} of {len(values)} rows are; drop "
            "them with dropna(), or fill them."
        )
    if values.dtype != object:
        return values
    # Lists in Parquet files are read as arrays.
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]

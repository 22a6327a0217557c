"""Formats arrays of floats for JSON as TensorFlow Serving does."""

import math

import numpy as np

_FORMATS = np.array(["%.9g", "%.17g", "%.6g", "%.1f"], object)


def format_floats(array: np.ndarray) -> list[str]:
    """Formats each element of a flat float32 or float64 array.

    A number has six significant digits if these read back as the same value, otherwise nine
    (float32) or 17 (float64). Integers end in ".0" unless they are in scientific notation.

    Args:
        array: float32 or float64, (n,).

    Returns:
        One text per element; "NaN", "Infinity" and "-Infinity" for values that are not finite.
    """
    single = array.dtype == np.float32
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    short = finite & _maybe_short(values)
    short[short] = _reads_back(values[short], single)
    limit = np.where(short, 1e6, 1e9 if single else 1e17)  # scientific notation from here on
    whole = finite & (values == np.rint(values)) & (np.abs(values) < limit)
    choice = np.where(whole, 3, np.where(short, 2, 0 if single else 1))
    text = "\n".join(_FORMATS[choice].tolist()) % tuple(values.tolist())
    texts = text.split("\n") if text else []
    for i in np.flatnonzero(~finite).tolist():
        value = values[i]
        texts[i] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return texts


def _maybe_short(values: np.ndarray) -> np.ndarray:
    """A fast filter: False only if six digits are certainly not enough."""
    size = np.abs(values)
    tiny = ~(size > 2e-38)  # zero or subnormal as float32: the estimate below is too coarse
    with np.errstate(all="ignore"):
        scaled = values * 10.0 ** (5 - np.floor(np.log10(size)))
        # Half a unit in the last place of a float32 is at most 0.06 of the sixth digit.
        return tiny | ~(np.abs(scaled - np.rint(scaled)) > 0.07)


def _reads_back(values: np.ndarray, single: bool) -> np.ndarray:
    """Whether the six-digit text of each value reads back as that value in its own precision."""
    if not values.size:
        return np.zeros(0, bool)
    texts = (("%.6g\n" * values.size) % tuple(values.tolist())).split("\n")[:-1]
    read = np.array(texts).astype(np.float64)
    if not single:
        return read == values
    # Converting text to float64 to float32 rounds twice. That never changes the result for decimals
    # with six digits: all of them have been tested.
    with np.errstate(over="ignore"):
        return read.astype(np.float32) == values

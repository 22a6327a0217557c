"""Floats as decimal text, by Serving's rule, a whole array at a time."""

import math

import numpy as np

_FORMATS = np.array(["%.9g", "%.17g", "%.6g", "%.1f"], object)


def decimals(array: np.ndarray) -> list[str]:
    """Decimal text of each element of a flat float32 or float64 array.

    Six digits where these read back as the same number, else as many as always do (9 or 17); whole
    numbers get ".0" unless they are in scientific notation.
    """
    single = array.dtype == np.float32
    values = array.astype(np.float64)
    finite = np.isfinite(values)
    short = finite & _maybe_short(values)
    short[short] = _reads_back(values[short], single)
    limit = np.where(short, 1e6, 1e9 if single else 1e17)  # from here on, scientific notation
    whole = finite & (values == np.rint(values)) & (np.abs(values) < limit)
    choice = np.where(whole, 3, np.where(short, 2, 0 if single else 1))
    text = "\n".join(_FORMATS[choice].tolist()) % tuple(values.tolist())
    texts = text.split("\n") if text else []
    for i in np.flatnonzero(~finite).tolist():
        value = values[i]
        texts[i] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return texts


def _maybe_short(values: np.ndarray) -> np.ndarray:
    """False where six digits surely do not suffice: a filter, exact only in what it rejects."""
    size = np.abs(values)
    tiny = ~(size > 2e-38)  # subnormal as float32, or zero: too coarse for the reckoning below
    with np.errstate(all="ignore"):
        scaled = values * 10.0 ** (5 - np.floor(np.log10(size)))
        # Half a unit in the last place of a float32 is at most 0.06 of the sixth digit.
        return tiny | ~(np.abs(scaled - np.rint(scaled)) > 0.07)


def _reads_back(values: np.ndarray, single: bool) -> np.ndarray:
    """Whether the six-digit text of each value, read at the value's own width, is that value."""
    if not values.size:
        return np.zeros(0, bool)
    texts = (("%.6g\n" * values.size) % tuple(values.tolist())).split("\n")[:-1]
    read = np.array(texts).astype(np.float64)
    if not single:
        return read == values
    # Text to double to float32 rounds twice. No decimal of six digits is near enough to the middle
    # of two float32s for that to matter: every one of them has been tried.
    with np.errstate(over="ignore"):
        return read.astype(np.float32) == values

"""Formats arrays of floats for JSON as TensorFlow Serving does."""

import numpy as np

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def format_floats(array: np.ndarray) -> list[str]:
    """Formats each element of a flat float32 or float64 array.

    A number has six significant digits if these read back as the same value, otherwise nine
    (float32) or 17 (float64). Integers end in ".0" unless they are in scientific notation.

    Args:
        array: float32 or float64, (n,).

    Returns:
        One text per element; "NaN", "Infinity" and "-Infinity" for values that are not finite.
    """
    values = array.astype(np.float64)
    texts = _formatted("%.6g", values)
    # Reading float32 by way of float64 rounds twice. That never changes the result for decimals
    # with six digits: all of them have been tested.
    with np.errstate(over="ignore"):
        read = np.array(texts, "U16").astype(np.float64).astype(array.dtype)
    longer = np.flatnonzero(read != array)
    precise = "%.9g" if array.dtype == np.float32 else "%.17g"
    for i, text in zip(longer.tolist(), _formatted(precise, values[longer]), strict=True):
        texts[i] = text
    return [
        text if "." in text or "e" in text else _NOT_FINITE.get(text) or f"{text}.0"
        for text in texts
    ]


def _formatted(form: str, values: np.ndarray) -> list[str]:
    return (f"{form}\n" * values.size % tuple(values.tolist())).split("\n")[:-1]

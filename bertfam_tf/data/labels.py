"""Converts label strings to indices and numbers, in the graph."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.errors import checked
from bertfam_tf.names import truncated

_SHOWN = 30
# Whole numbers as spreadsheets and data frames write a column with missing values.
_WHOLE = re.compile(r"[0-9]+\.0")
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_ROUNDING = 1e-3  # of half precision


def decoded(text: Any) -> Any:
    """Returns bytes as a string, and anything else unchanged."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def index_of(values: tf.Tensor, known: Sequence[str], what: str) -> tf.Tensor:
    """Returns the index of each string in ``known``, int32, of the same shape.

    Args:
        values: strings, scalar or vector.
        known: distinct strings.
        what: the word for the values in the error message.

    Raises:
        InvalidArgumentError: at run time, for a value that is not in ``known``.
    """
    matches = tf.equal(tf.expand_dims(values, -1), tf.constant(list(known)))
    is_known = tf.reduce_any(matches, axis=-1)
    wrong = tf.boolean_mask(tf.reshape(values, [-1]), tf.reshape(~is_known, [-1]))[:1]
    before, after = not_listed("\0", known, what).split("\0", 1)
    index = tf.argmax(matches, axis=-1, output_type=tf.int32)
    return checked(index, is_known, before, wrong, after)


def numbers_of(values: tf.Tensor, what: str) -> tf.Tensor:
    """Converts numbers, or strings with numbers, to float32 of the same shape.

    Args:
        values: a vector of numbers, or of strings such as ``"2.5"`` or ``"1e-3"``.
        what: the word for the values in the error message.

    Raises:
        ValueError: if the values have another type.
        InvalidArgumentError: at run time, for a value that is not a finite number.
    """
    if values.dtype == tf.string:
        texts = tf.strings.strip(values)
        right = tf.strings.regex_full_match(texts, _NUMBER)
        numbers = tf.strings.to_number(tf.where(right, texts, "0"))
    elif values.dtype.is_floating or values.dtype.is_integer:
        numbers = tf.cast(values, tf.float32)
        right = tf.ones_like(numbers, tf.bool)
    else:
        raise ValueError(
            f"Each {what} must be a number or a string of one, got {values.dtype.name}."
        )
    right &= tf.math.is_finite(numbers)
    before, after = not_a_number("\0", what).split("\0", 1)
    return checked(numbers, right, before, tf.boolean_mask(values, ~right)[:1], after)


def floats_of(values: Any) -> Any:
    """Returns integers and decimals in a list or an array as floats, anything else unchanged.

    The labels of a generator have the type of its first batch, which may have whole numbers alone.
    """
    if not isinstance(values, list | tuple | np.ndarray):
        return values
    array = np.asarray(values)
    decimals = array.dtype.kind == "O" and all(isinstance(v, Decimal) for v in array.flat)
    return array.astype("float64") if decimals or array.dtype.kind in "iu" else values


def within(numbers: tf.Tensor, low: float, high: float, what: str) -> tf.Tensor:
    """Returns numbers unchanged.

    Args:
        numbers: a vector.
        low, high: the smallest and the largest of the numbers that are right, up to rounding.
        what: who takes the numbers, for the error message.

    Raises:
        InvalidArgumentError: at run time, for another number.
    """
    # Cosines of equal vectors may be above 1.
    right = (numbers >= low - _ROUNDING) & (numbers <= high + _ROUNDING)
    wrong = tf.strings.as_string(tf.boolean_mask(numbers, ~right)[:1], shortest=True)
    expected = f"Labels of the {what} must be from {low:g} to {high:g}, got "
    return checked(numbers, right, expected, wrong, ".")


def summary(counts: Mapping[str, int], kind: str = "Labels") -> str:
    """Returns the labels and how many examples have each, in one line.

    Args:
        counts: the number of examples by label, in the order of the labels.
        kind: the word for the labels.
    """
    shown = list(counts.items())
    if len(shown) > _SHOWN:
        shown = sorted(shown, key=lambda item: -item[1])[:_SHOWN]
    text = ", ".join(f"{truncated(label, 60)!r} {count:,}" for label, count in shown)
    rest = len(counts) - len(shown)
    more = f", and {rest:,} more labels with fewer" if rest else ""
    numbers = [label for label in counts if _WHOLE.fullmatch(label)]
    note = ""
    if numbers and len(numbers) == len(counts):
        note = (
            f" They are read as names, not as numbers: {numbers[0]!r} is not {numbers[0][:-2]!r}."
        )
    return f"{kind}: {text}{more}.{note}"


def not_a_number(value: str, what: str) -> str:
    """Returns the error message."""
    return f"The {what} '{value}' is not a finite number."


def not_listed(value: str, known: Sequence[str], what: str) -> str:
    """Returns the error message."""
    return f"The {what} '{value}' is not one of: {truncated(', '.join(known), 2000)}."

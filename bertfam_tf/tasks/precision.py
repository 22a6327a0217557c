"""Quantization of embeddings, equal to sentence-transformers' ``quantize_embeddings``."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.names import unknown

FLOAT = "float32"
_INTEGERS = {"int8": tf.int8, "uint8": tf.uint8}
_BITS = {"binary": tf.int8, "ubinary": tf.uint8}
PRECISIONS = (FLOAT, *_INTEGERS, *_BITS)
_BITS_OF_A_BYTE = np.array([128, 64, 32, 16, 8, 4, 2, 1], np.int32)


def quantize_embeddings(
    embeddings: Any,
    precision: str,
    ranges: Any = None,
    calibration_embeddings: Any = None,
) -> np.ndarray:
    """Quantizes embeddings, as the function of this name in sentence-transformers.

    Unlike there, ranges are never taken from the embeddings themselves, because codes of different
    ranges cannot be compared.

    Args:
        embeddings: float (texts, width).
        precision: ``"float32"``; ``"int8"`` or ``"uint8"``, one byte per dimension; ``"binary"`` or
            ``"ubinary"``, one bit per dimension, 1 for positive values, packed with the first
            dimension in the highest bit, as int8 (minus 128) or uint8.
        ranges: for int8 and uint8, the minimum and maximum of each dimension, (2, width); values
            outside are clipped.
        calibration_embeddings: embeddings of typical texts, float (texts, width), from which ranges
            are computed, in place of ``ranges``.

    Returns:
        float32, int8 or uint8 (texts, width), or int8 or uint8 (texts, ⌈width / 8⌉).

    Raises:
        ValueError: for an unknown precision, missing or non-finite ranges for int8 and uint8,
            ranges for another precision, or arrays of another shape.
    """
    values = np.asarray(embeddings)
    if values.ndim != 2 or values.dtype.kind != "f":
        raise ValueError(
            f"embeddings must be floats (texts, width), got {values.dtype} {values.shape}."
        )
    if calibration_embeddings is not None:
        if ranges is not None:
            raise ValueError("ranges and calibration_embeddings are both given, expected one.")
        ranges = ranges_of(calibration_embeddings)
    limits = checked_ranges(precision, ranges, values.shape[1])
    return quantized(tf.constant(values, tf.float32), precision, limits).numpy()


def ranges_of(embeddings: Any) -> np.ndarray:
    """Returns the minimum and maximum of each dimension, float32 (2, width).

    Args:
        embeddings: float (texts, width).

    Raises:
        ValueError: for no embeddings, or another shape.
    """
    values = np.asarray(embeddings, "float32")
    if values.ndim != 2 or not len(values):
        raise ValueError(f"Ranges are computed from embeddings (texts, width), got {values.shape}.")
    return np.stack([values.min(axis=0), values.max(axis=0)])


def checked_ranges(precision: str, ranges: Any, width: int) -> np.ndarray | None:
    """The ranges as float32 (2, width); None for precisions that have none.

    Raises:
        ValueError: as ``quantize_embeddings`` raises it.
    """
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", str(precision), PRECISIONS))
    if precision not in _INTEGERS:
        if ranges is not None:
            raise ValueError(f"ranges are for {' and '.join(_INTEGERS)}, got {precision!r}.")
        return None
    if ranges is None:
        raise ValueError(
            f"{precision} needs the ranges of the values, (2, {width}), over typical texts, "
            "which TextEmbedder.ranges(texts) returns."
        )
    limits = np.asarray(ranges, "float32")
    if limits.shape != (2, width) or not np.isfinite(limits).all() or (limits[0] > limits[1]).any():
        raise ValueError(
            f"ranges must be the smallest and the largest values, (2, {width}) and finite, got "
            f"{limits.shape}."
        )
    return limits


def quantized(embeddings: Any, precision: str, ranges: np.ndarray | None) -> Any:
    """``quantize_embeddings`` of a tensor float32 (texts, width), in the graph."""
    if precision in _INTEGERS:
        assert ranges is not None
        steps = (ranges[1] - ranges[0]) / np.float32(255)
        steps = np.where(steps == 0, np.float32(1), steps)
        codes = tf.clip_by_value(tf.floor((embeddings - ranges[0]) / steps), 0, 255)
        codes = tf.cast(codes, tf.int32) - (128 if precision == "int8" else 0)
        return tf.cast(codes, _INTEGERS[precision])
    if precision in _BITS:
        missing = -embeddings.shape[-1] % 8
        bits = tf.pad(tf.cast(embeddings > 0, tf.int32), [[0, 0], [0, missing]])
        bits = tf.reshape(bits, [-1, bits.shape[-1] // 8, 8])
        codes = tf.reduce_sum(bits * _BITS_OF_A_BYTE, axis=-1)
        return tf.cast(codes - (128 if precision == "binary" else 0), _BITS[precision])
    return embeddings

"""Tensors of requests as numpy arrays, read as TensorFlow reads them."""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bertfam_tf.serve import capi


def read(proto: tensor_pb2.TensorProto) -> np.ndarray | None:
    """A message's tensor, as TensorFlow reads it; None where it would refuse to, or numpy."""
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        return None
    if capi.declares_too_much(proto):
        return None
    try:
        if proto.dtype == tf.string.as_datatype_enum:
            return _strings(proto, shape)
        array: np.ndarray = tf.make_ndarray(proto)
    except (TypeError, ValueError, OverflowError):  # also shapes that numpy does not have
        return None
    return array


def _strings(proto: tensor_pb2.TensorProto, shape: list[int]) -> np.ndarray | None:
    # As bytes throughout: `make_ndarray` fills with a str.
    size = math.prod(shape)
    if proto.tensor_content or len(proto.string_val) > size:
        return None
    values = list(proto.string_val)
    array = np.empty(size, object)
    array[: len(values)] = values
    array[len(values) :] = values[-1] if values else b""
    return array.reshape(shape)


def dtype_of(array: np.ndarray) -> int | None:
    """The array's type as TensorFlow numbers it; None for one that it does not take."""
    if array.dtype == object:
        return int(tf.string.as_datatype_enum)
    if array.dtype.kind in "SU":  # strings of one length, as no server makes them
        return None
    try:
        return int(tf.as_dtype(array.dtype).as_datatype_enum)
    except TypeError:
        return None

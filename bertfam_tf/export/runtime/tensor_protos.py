"""Converts TensorProtos to numpy arrays and back, with TensorFlow's semantics."""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bertfam_tf.export.runtime import capi


def read(proto: tensor_pb2.TensorProto) -> np.ndarray | None:
    """Converts a proto to an array; None if TensorFlow or numpy would not accept it.

    Strings are object arrays of bytes.
    """
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        return None
    if capi.declares_too_much(proto):
        return None
    try:
        if proto.dtype == tf.string.as_datatype_enum:
            return _strings(proto, shape)
        array: np.ndarray = tf.make_ndarray(proto)
    # Also shapes and dtypes (resource, variant) that numpy does not have.
    except (TypeError, ValueError, OverflowError, KeyError):
        return None
    return array


def _strings(proto: tensor_pb2.TensorProto, shape: list[int]) -> np.ndarray | None:
    # Not `make_ndarray`, which fills missing values with str instead of bytes.
    size = math.prod(shape)
    if proto.tensor_content or len(proto.string_val) > size:
        return None
    values = list(proto.string_val)
    array = np.empty(size, object)
    array[: len(values)] = values
    array[len(values) :] = values[-1] if values else b""
    return array.reshape(shape)


def dtype_of(array: np.ndarray) -> tf.DType | None:
    """Returns the TensorFlow dtype of an array; None if there is none."""
    if array.dtype == object:
        return tf.string
    if array.dtype.kind in "SU":  # fixed-width strings
        return None
    try:
        return tf.as_dtype(array.dtype)
    except TypeError:
        return None


_FIELDS = {
    **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32), "int_val"),
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.int64: "int64_val",
    tf.uint32: "uint32_val",
    tf.uint64: "uint64_val",
    tf.bool: "bool_val",
    tf.string: "string_val",
}


def write(array: np.ndarray, proto: tensor_pb2.TensorProto, *, as_content: bool) -> None:
    """Writes an array as C++'s ``Tensor::AsProtoTensorContent`` or ``AsProtoField`` does.

    Args:
        array: an array with a TensorFlow dtype; strings are object arrays of bytes.
        proto: an empty proto to write to.
        as_content: whether values other than strings are written as bytes (``tensor_content``)
            instead of the field of their dtype (``float_val``, …).
    """
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    proto.dtype = dtype.as_datatype_enum
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    flat = array.ravel()
    if dtype in _FIELDS and not (as_content and dtype != tf.string):
        getattr(proto, _FIELDS[dtype]).extend(flat.tolist())
    elif dtype in (tf.float16, tf.bfloat16) and not as_content:
        proto.half_val.extend(flat.view(np.uint16).tolist())
    elif dtype in (tf.complex64, tf.complex128) and not as_content:
        parts = flat.view(np.float32 if dtype == tf.complex64 else np.float64).tolist()
        (proto.scomplex_val if dtype == tf.complex64 else proto.dcomplex_val).extend(parts)
    else:
        proto.tensor_content = flat.tobytes()

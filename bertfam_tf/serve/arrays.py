"""Tensors of requests and answers as numpy arrays, read and written as TensorFlow does."""

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


def dtype_of(array: np.ndarray) -> tf.DType | None:
    """The array's type; None for one that TensorFlow does not take."""
    if array.dtype == object:
        return tf.string
    if array.dtype.kind in "SU":  # strings of one length, as no server makes them
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
    """Writes an array as C++'s `Tensor::AsProtoTensorContent` does, or else `AsProtoField`.

    Args:
        array: of a type that TensorFlow takes.
        proto: an empty one, filled in.
        as_content: whether as bytes (`tensor_content`), but for strings, instead of in the field
            of its type (`float_val`, …).
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

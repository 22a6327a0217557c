"""Tensors whose declared shape is larger than their values."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bertfam_serve.batching import Batcher, BatchingParameters
from bertfam_tf.export.runtime import Code, ServingError, load
from bertfam_tf.export.runtime.capi import declares_too_much


def declared(dtype, *shape, **values):
    proto = tensor_pb2.TensorProto(dtype=tf.as_dtype(dtype).as_datatype_enum, **values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def unknown_rank(proto):
    proto.tensor_shape.unknown_rank = True
    return proto


@pytest.fixture(scope="module")
def servable(base_path):
    return load(base_path / "00000123")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64", "bool", "string"])
@pytest.mark.parametrize("shape", [(2**63 - 1,), (2**62, 2), (2**32, 2**32), (2**30,), (2**40,)])
@pytest.mark.parametrize("batched", [False, True])
def test_memory_that_is_declared_is_not_asked_for(servable, dtype, shape, batched):
    # Of two bytes each, 2 ** 63 - 1 of them crashed the process.
    proto = declared(dtype, *shape)
    with Batcher(BatchingParameters(max_batch_size=2**63)) as batcher:
        asked = batcher(servable) if batched else servable
        with pytest.raises(ServingError) as caught:
            asked.run(f"echo_{dtype}", {"x": proto})
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert caught.value.message == "tensor parsing error: x"


def test_a_value_may_fill_a_shape(servable):
    proto = declared("float32", 1000, 1000, float_val=[2.5])
    (filled,) = servable.run("echo_float32", {"x": proto}).values()
    assert filled.shape == (1000, 1000)
    assert (filled == 2.5).all()


@pytest.mark.parametrize(
    "proto",
    [
        declared("int64", 9_000_000, int64_val=[1] * 9_000_000),
        declared("string", 3_000_000, string_val=[b"a"] * 3_000_000),
        declared("bool", 70_000_000, tensor_content=b"\1" * 70_000_000),
        declared("float16", 40_000_000, tensor_content=b"\1\1" * 40_000_000),
        declared("float32", -1, -5),
        tensor_pb2.TensorProto(dtype=77),
    ],
    ids=["int64", "string", "bool", "float16", "negative", "no type"],
)
def test_large_tensors_that_are_sent(proto):
    assert not declares_too_much(proto)


@pytest.mark.parametrize(
    ("dtype", "proto"),
    [
        ("string", declared("string", 2)),
        ("string", declared("string", 3, string_val=[b"a", b"b"])),
        ("string", declared("string", 1, string_val=[b"a", b"b"])),
        ("string", declared("string", 2, float_val=[1])),
        ("string", declared("string", 1, tensor_content=b"\1a")),
        ("string", declared("string", -1, string_val=[b"a"])),
        ("string", declared("string", 2, 0)),
        ("string", declared("string", 2**62, 0, 3)),
        ("string", declared("string", *[1] * 100, string_val=[b"a"])),
        ("float32", unknown_rank(declared("float32", float_val=[1]))),
        ("float32", declared("float32", 3)),
        ("float32", declared("float32", 3, float_val=[1, 2])),
        ("float32", declared("float32", 1, float_val=[1, 2])),
        ("float32", declared("float32", -1, tensor_content=b"abcdefgh")),
        ("float32", declared("float32", 2, tensor_content=b"abcdefg")),
        ("float32", declared("float32", 2, string_val=[b"a"])),
        ("int8", declared("int8", 2, int_val=[300])),
        ("bool", declared("bool", 2, bool_val=[True])),
        ("float16", declared("float16", 2, half_val=[15360])),
        ("bfloat16", declared("bfloat16", 2, half_val=[16256])),
    ],
)
def test_a_message_is_read_alike_with_batches_and_without(servable, dtype, proto):
    def answer(asked):
        try:
            (found,) = asked.run(f"echo_{dtype}", {"x": proto}).values()
        except ServingError as error:
            return error.code, error.message
        return found.dtype, found.tolist()

    with Batcher(BatchingParameters()) as batcher:
        assert answer(batcher(servable)) == answer(servable)

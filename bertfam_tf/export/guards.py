"""Input checks inside an exported graph, which rejects requests that do not match its signatures.

TensorFlow Serving does not compare the shapes of a request with the signature's. tensorflow-text's
kernels crash the process on strings of another rank, and other kernels broadcast or wrap around and
return wrong values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import meta_graph_pb2

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_SHAPES: list[tuple[int, ...]] = [
    *((), (0,), (1,), (2,), (0, 0), (1, 0), (0, 1), (1, 1), (2, 2), (2, 3)),
    *((0, 1, 1), (1, 1, 1), (2, 1, 2), (1, 1, 1, 1)),
]
_INT32 = np.iinfo(np.int32)


class InputLimits(NamedTuple):
    """The values and lengths that integer inputs may have.

    Fields:
        counts: input name to the number of valid ids, which are 0 to count - 1; inputs that are
            not listed are not checked.
        length: the largest length in tokens, the last of the dimensions that all inputs have; None
            for no limit.
        allow_empty: whether dimensions after the batch, such as tokens or labels, may be 0.
    """

    counts: Mapping[str, int] = {}
    length: int | None = None
    allow_empty: bool = True


def with_input_checks(
    function: Callable[..., Any], specs: Mapping[str, tf.TensorSpec], limits: InputLimits
) -> Callable[..., Any]:
    """Wraps a function so that its graph validates the inputs first.

    Args:
        function: takes one tensor for each of ``specs``, in their order.
        specs: inputs by name. Their leading dimensions, as far as they are declared with the same
            sizes, must be equal in all inputs: the batch, and of ids the length.
        limits: ranges of ids and the largest length.

    Returns:
        A function of the same arguments. Its graph fails with INVALID_ARGUMENT, before any other
        operation reads the tensors, if a tensor has another shape or a value out of range.
    """

    def checked(*tensors: tf.Tensor) -> Any:
        # An assertion on the rank would not do: the graph optimizer assumes that the tensor fed
        # has the declared rank, and removes the assertion.
        shaped = [
            tf.ensure_shape(tensor, spec.shape)
            for tensor, spec in zip(tensors, specs.values(), strict=True)
        ]
        inputs = dict(zip(specs, shaped, strict=True))
        with tf.control_dependencies([*_equal_shapes(inputs), *_in_range(inputs, limits)]):
            return function(*map(tf.identity, shaped))

    return checked


def _equal_shapes(inputs: dict[str, tf.Tensor]) -> Iterator[tf.Operation]:
    if len(inputs) == 1:
        return
    common = _length_axis(inputs) + 1
    shapes = [tf.shape(tensor) for tensor in inputs.values()]
    equal = tf.reduce_all([tf.reduce_all(shape[:common] == shapes[0][:common]) for shape in shapes])
    what = "number of rows" if common == 1 else f"first {common} dimensions"
    texts = [f"The {what} must be equal in {', '.join(inputs)}; their shapes are", *shapes]
    yield tf.debugging.Assert(equal, texts)


def _length_axis(inputs: Mapping[str, Any]) -> int:
    """The last of the leading dimensions that are declared with the same size in all inputs."""
    sizes = zip(*(tensor.shape for tensor in inputs.values()), strict=False)
    return len(list(itertools.takewhile(lambda size: len(set(size)) == 1, sizes))) - 1


def _in_range(inputs: dict[str, tf.Tensor], limits: InputLimits) -> Iterator[tf.Operation]:
    for name, count in limits.counts.items():
        values = inputs[name]
        yield tf.debugging.Assert(
            tf.reduce_all((values >= 0) & (values < count)),
            [
                f"{name} must be from 0 to {count - 1}; smallest and largest value:",
                tf.reduce_min(values),
                tf.reduce_max(values),
            ],
        )
    name, values = next(iter(inputs.items()))
    if not limits.allow_empty:
        # All inputs have the same leading dimensions.
        shape = tf.shape(values)
        yield tf.debugging.Assert(
            tf.reduce_all(shape[1:] > 0),
            [f"Dimensions of {name} after the batch must be at least 1; its shape is", shape],
        )
    if limits.length is not None:
        length = tf.shape(values)[_length_axis(inputs)]
        yield tf.debugging.Assert(
            length <= limits.length,
            [f"Rows of {name} must have at most {limits.length} values, not", length],
        )


def unchecked_inputs(meta_graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, str]]:
    """Finds inputs that an operation reads without a check of the declared shape.

    Args:
        meta_graph: the meta graph of a SavedModel.

    Yields:
        The names of the signature and of the input.
    """
    functions = {f.signature.name: f for f in meta_graph.graph_def.library.function}
    for name, signature in meta_graph.signature_def.items():
        for input_name, info in signature.inputs.items():
            placeholder = info.name.partition(":")[0]
            readers = _readers(meta_graph.graph_def.node, placeholder, functions)
            shape = str(tf.TensorShape(info.tensor_shape))
            if any(op != "EnsureShape" or ensured != shape for op, ensured in readers):
                yield name, input_name


def _readers(
    nodes: Any, tensor: str, functions: dict[str, function_pb2.FunctionDef]
) -> Iterator[tuple[str, str]]:
    """Yields the operations that read a placeholder or an argument, and the shapes they ensure."""
    for node in nodes:
        data = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
        for position in [i for i, name in enumerate(data) if name == tensor]:
            if node.op in _CALLS:
                called = functions[node.attr["f"].func.name]
                argument = called.signature.input_arg[position].name
                yield from _readers(called.node_def, argument, functions)
            elif node.op == "EnsureShape":
                yield node.op, str(tf.TensorShape(node.attr["shape"].shape))
            else:
                yield node.op, ""


def invalid_requests(
    specs: Mapping[str, tf.TensorSpec],
    limits: InputLimits,
    valid: Callable[[int], dict[str, np.ndarray]],
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields requests that a signature with checks has to reject.

    Args:
        specs: the signature's inputs by name.
        limits: ranges of ids and the largest length.
        valid: makes a valid request with the given number of rows.

    Yields:
        A description of the mistake, and the inputs by name.
    """
    good = valid(2)
    for name, spec in specs.items():
        for shape in _SHAPES:
            if not spec.shape.is_compatible_with(shape):
                of_string = spec.dtype == tf.string
                dtype: Any = object if of_string else spec.dtype.as_numpy_dtype
                value = np.full(shape, b"a" if of_string else 0, dtype)
                yield f"{name} of shape {shape}", {**good, name: value}
                yield f"all inputs of shape {shape}", dict.fromkeys(specs, value)
        if len(specs) > 1:
            yield f"3 rows of {name}, 2 rows of other inputs", {**good, name: valid(3)[name]}
    for name, count in limits.counts.items():
        for number in (-1, count, _INT32.min, _INT32.max):
            wrong = good[name].copy()
            wrong.flat[-1] = number
            yield f"{name} of {number}", {**good, name: wrong}
    if not limits.allow_empty:
        for axis in range(1, _length_axis(specs) + 1):
            yield (
                f"dimension {axis} of 0",
                {name: np.take(x, [], axis=axis) for name, x in good.items()},
            )
    if limits.length is not None:
        axis, too_long = _length_axis(specs), limits.length + 1
        yield (
            f"rows of {too_long} values",
            {
                name: np.resize(x, (*x.shape[:axis], too_long, *x.shape[axis + 1 :]))
                for name, x in good.items()
            },
        )

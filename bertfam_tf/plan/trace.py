"""A training step as a list of operations, read from a graph with static shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bertfam_tf.plan.stages import StepNetwork

# Operations whose output shares the memory of their first input.
_VIEWS = {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
# Operations that read no values if shapes are static.
_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"}
_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
# TensorFlow computes these in the memory of an input that nothing else reads.
_IN_PLACE = set(
    """
    Abs Add AddN AddV2 BiasAdd Div DivNoNan Erf Erfc Exp Expm1 Inv Log Log1p Maximum Minimum Mul
    MulNoNan Neg Pow RealDiv Reciprocal Relu ReluGrad Rsqrt RsqrtGrad Selu Sigmoid SigmoidGrad
    Sign Softmax Softplus Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad
    """.split()
)
_CALL = re.compile(r"layer_[\d_]+")
# Tensor parallelism divides attention by heads and feed-forward by its intermediate width.
_DIVIDED = re.compile(r"(attention|feed_forward)(_\d+)*")
_OUTPUT = re.compile(r"output(_\d+)*")


class Op(NamedTuple):
    """An operation of the step.

    Fields:
        block: the call of a block whose forward or backward pass it belongs to, or None.
        divided: whether tensor parallelism divides it.
        backward: whether it belongs to the backward pass.
        in_place: whether it can write to the memory of an input.
        flops: the FLOPs of a matrix product; 0 for other operations.
        reduced: the bytes of its output if tensor parallelism adds up the outputs of all devices
            in the forward pass; else 0.
        inputs, outputs: indices of the tensors that it reads and computes.
    """

    block: str | None
    divided: bool
    backward: bool
    in_place: bool
    flops: float
    reduced: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Tensor(NamedTuple):
    """The output of an operation.

    Fields:
        size: bytes.
        kind: ``weights`` for a copy of weights in half precision, ``gradients`` for the gradient
            of a weight, else ``activations``.
        divided: whether tensor parallelism divides it.
    """

    size: float
    kind: str
    divided: bool


class Step(NamedTuple):
    """A traced step.

    Fields:
        ops: the operations in order.
        tensors: the tensors that ``Op.inputs`` and ``Op.outputs`` index.
        parameters: the number of parameters by (trainable, divided).
        config: the backbone's config.
    """

    ops: list[Op]
    tensors: list[Tensor]
    parameters: dict[tuple[bool, bool], int]
    config: Any


def trace(build: Callable[[int], StepNetwork], dtype: str, batch: int) -> Step:
    """Traces the step of a network that ``build`` returns for a batch size."""

    def traced() -> Step:
        keras.config.set_dtype_policy(dtype)
        with keras.StatelessScope(initialize_variables=False):
            network = build(batch)
        return _read(network)

    # In a thread of its own, as in ``models.count_parameters``: Keras keeps the policy, and a list
    # of uninitialized variables, per thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(traced).result()


def _read(network: StepNetwork) -> Step:
    variables = {id(v): v for layer in network.layers for v in layer.variables}
    weights = {id(v): v for layer in network.layers for v in layer.weights}
    trained = dict.fromkeys(id(v) for layer in network.layers for v in layer.trainable_variables)
    with tf.Graph().as_default() as graph:
        values = {key: tf.compat.v1.placeholder(v.dtype, v.shape) for key, v in variables.items()}
        pairs = [(variables[key], value) for key, value in values.items()]
        with keras.StatelessScope(pairs, initialize_variables=False):
            loss, *reported = network.loss()
        first = len(graph.get_operations())
        computed = tf.gradients(loss, [values[key] for key in trained])
        gradients = {
            key: tf.convert_to_tensor(gradient)
            for key, gradient in zip(trained, computed, strict=True)
            if gradient is not None
        }
        ops = _needed([loss, *reported, *gradients.values()])
    backward = {op.name for op in graph.get_operations()[first:]}
    table = network.backbone.parts.get("token_embedding")
    vocabulary = {id(v) for v in table.weights} if table is not None else set()
    weight_refs = {value.ref() for key, value in values.items() if key in weights}
    parameters = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for key, v in weights.items():
        divided = key in vocabulary or _is_divided(v.path)
        parameters[key in trained, divided] += math.prod(v.shape)
    config = network.backbone.config
    reader = _Reader(backward, weight_refs, config.vocab_size)
    for op in ops:
        reader.add(op)
    for key, gradient in gradients.items():
        index = reader.indices[gradient.ref()]
        divided = key in vocabulary or _is_divided(variables[key].path)
        tensor = reader.tensors[index]
        reader.tensors[index] = tensor._replace(kind="gradients", divided=divided)
    return Step(reader.ops, reader.tensors, parameters, config)


def _needed(fetched: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Returns the operations that compute these tensors, in the graph's order."""
    needed, rest = set(), [x.op for x in fetched]
    while rest:
        op = rest.pop()
        if op not in needed:
            needed.add(op)
            rest += [x.op for x in op.inputs if op.type not in _SHAPES] + list(op.control_inputs)
    return [op for op in fetched[0].graph.get_operations() if op in needed]


class _Reader:
    """Reads a graph, one operation at a time.

    Args:
        backward: names of the operations of the backward pass.
        weights: references of the placeholders of weights.
        vocabulary: the vocabulary size; tensor parallelism divides axes of this size.
    """

    def __init__(self, backward: set[str], weights: set[Any], vocabulary: int):
        self.backward = backward
        self.weights = weights
        self.vocabulary = vocabulary
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.indices: dict[Any, int] = {}

    def add(self, op: tf.Operation) -> None:
        if any(value.HasField("func") for value in op.node_def.attr.values()):
            raise ValueError(
                "Models with loops, such as recurrent networks, cannot be planned, got "
                f"{op.type} in {op.name}."
            )
        inputs = [] if op.type in _SHAPES else list(op.inputs)
        read = tuple(self.indices[x.ref()] for x in inputs if x.ref() in self.indices)
        if op.type == "Placeholder" or op.type == "Const":
            return  # weights, and inputs from the data pipeline
        if op.type in _VIEWS or _is_free(op):
            if read:
                self.indices[op.outputs[0].ref()] = read[0]
            return
        block, divided, output = _scope(op.name)
        backward, flops = op.name in self.backward, _flops(op)
        computed = []
        for x in op.outputs:
            if x.dtype == tf.int32 and x.shape.rank in (0, 1):
                continue  # a shape or an axis
            if not x.shape.is_fully_defined():
                raise ValueError(f"Plans need shapes that do not depend on values, got {x}.")
            kind = "activations"
            if op.type == "Cast" and op.inputs[0].ref() in self.weights:
                kind = "weights"
            by_tokens = self.vocabulary in x.shape.as_list()
            self.indices[x.ref()] = len(self.tensors)
            computed.append(len(self.tensors))
            size = x.shape.num_elements() * x.dtype.size
            self.tensors.append(Tensor(size, kind, divided or by_tokens))
        shapes = [x.shape.as_list() for x in (*inputs, *op.outputs)]
        by_tokens = any(self.vocabulary in shape for shape in shapes)
        self.ops.append(
            Op(
                block,
                divided or output or by_tokens,
                backward,
                op.type in _IN_PLACE,
                flops,
                size if output and flops and not backward else 0,
                read,
                tuple(computed),
            )
        )


def _scope(name: str) -> tuple[str | None, bool, bool]:
    """Locates an operation by its name.

    Returns:
        The call of a block, or None; whether tensor parallelism divides the operation; and whether
        it belongs to the output projection of attention or feed-forward, whose input is divided and
        whose output is not.
    """
    parts = name.removeprefix("gradients/").split("/")
    for i, part in enumerate(parts):
        if _CALL.fullmatch(part):
            following = parts[i + 1 :]
            for scope, inner in pairwise(following):
                if _DIVIDED.fullmatch(scope):
                    output = bool(_OUTPUT.fullmatch(inner))
                    return "/".join(parts[: i + 1]), not output, output
            return "/".join(parts[: i + 1]), False, False
    return None, False, False


def _is_divided(path: str) -> bool:
    """Returns whether tensor parallelism divides a weight: all weights of attention and
    feed-forward, except the bias of the output."""
    parts = path.split("/")
    return any(
        _DIVIDED.fullmatch(scope) and not (_OUTPUT.fullmatch(inner) and parts[-1] == "bias")
        for scope, inner in pairwise(parts)
    )


def _is_free(op: tf.Operation) -> bool:
    """Returns whether TensorFlow fuses the operation away: products transpose their inputs."""
    if op.type == "BroadcastTo":
        return op.inputs[0].shape == op.outputs[0].shape
    if op.type != "Transpose" or {x.type for x in op.outputs[0].consumers()} - _PRODUCTS:
        return False
    order = tf.get_static_value(op.inputs[1])
    last = op.outputs[0].shape.rank - 1
    return order is not None and [*order] == [*range(last - 1), last, last - 1]


def _flops(op: tf.Operation) -> float:
    """Returns the FLOPs of a matrix product, two for each multiplication; 0 for others."""
    if op.type in _PRODUCTS:
        first = op.inputs[0].shape.as_list()
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return 2 * op.outputs[0].shape.num_elements() * first[-2 if transposed else -1]
    if op.type == "Einsum":
        labels = op.get_attr("equation").decode().partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for names, x in zip(labels, op.inputs, strict=True):
            sizes |= zip(names, x.shape.as_list(), strict=True)
        return 2 * math.prod(sizes.values())
    return 0

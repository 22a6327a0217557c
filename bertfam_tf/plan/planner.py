"""What a run will take: parameters, FLOPs, memory, communication, hours and cost.

Nothing is trained and no weight is allocated: the training step of a recipe is traced into a graph
in which every shape is known, and read there, so the same code plans all families.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bertfam_tf import heads, models, parsing, registry, tasks
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.models.base import unpadding
from bertfam_tf.objectives import NextTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.recipes import objectives
from bertfam_tf.recipes.reading import expand, load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe, Recipe
from bertfam_tf.recipes.splits import columns, read_split
from bertfam_tf.text import load_tokenizer
from bertfam_tf.training import tuning
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import TrainConfig

_log = logging.getLogger(__name__)
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
GIB = 2**30
# Weights, moments, and the sums of accumulated gradients, which Keras keeps in float32.
_WEIGHT = 4
_MOMENTS = 2
# Outputs that are their first input's memory.
_VIEWS = {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
# With known shapes they read no values.
_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs"}
_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
# TensorFlow computes these into the memory of an input that nothing else needs.
_IN_PLACE = set(
    """
    Abs Add AddN AddV2 BiasAdd Div DivNoNan Erf Erfc Exp Expm1 Inv Log Log1p Maximum Minimum Mul
    MulNoNan Neg Pow RealDiv Reciprocal Relu ReluGrad Rsqrt RsqrtGrad Selu Sigmoid SigmoidGrad
    Sign Softmax Softplus Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad
    """.split()
)
_KINDS = ("weights", "gradients", "activations")
_CALL = re.compile(r"layer_[\d_]+")
# What tensor parallelism divides: attention by heads, feed-forward by its intermediate width.
_DIVIDED = re.compile(r"(attention|feed_forward)(_\d+)*")
_OUTPUT = re.compile(r"output(_\d+)*")


@dataclass(frozen=True)
class Devices:
    """Where a run is planned, and how it is laid out.

    Attributes:
        count: number of devices; ``count / tensor_parallel`` of them have parts of the batch.
        tensor_parallel: number of devices that share one copy of the model, each with some of the
            attention heads and of the feed-forward layers' width (arXiv 1909.08053, section 3).
        accumulation: number of parts of a device's batch, one after the other, whose gradients are
            added before a step.
        recompute: whether only the inputs of blocks are kept, and blocks computed again for their
            gradients (arXiv 1604.06174).
        dtype: dtype policy: ``float32``, ``mixed_bfloat16`` or ``mixed_float16``.
        peak: of a device, FLOP/s.
        share: the share of the peak that is reached, on all FLOPs, recomputed ones included.
        memory: of a device, GiB; None if it does not matter.
        bandwidth: between devices, bytes/s; its time is added, as if nothing else ran meanwhile.
            None where ``share`` has it.
        price: of a device and hour; None if unknown.

    Raises:
        ValueError: for numbers out of their range, or devices that cannot be divided so.
    """

    count: int = 1
    tensor_parallel: int = 1
    accumulation: int = 1
    recompute: bool = False
    dtype: str = "float32"
    peak: float = 312e12
    share: float = 0.4
    memory: float | None = None
    bandwidth: float | None = None
    price: float | None = None

    def __post_init__(self):
        for name in ("count", "tensor_parallel", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("peak", "memory", "bandwidth", "price"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {value}.")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}.")
        if self.dtype not in POLICIES:
            raise ValueError(f"dtype must be one of {', '.join(POLICIES)}, got {self.dtype!r}.")
        if self.count % self.tensor_parallel:
            raise ValueError(
                f"devices must be a multiple of tensor_parallel {self.tensor_parallel}, got "
                f"{self.count}."
            )

    @property
    def replicas(self) -> int:
        """The number of copies of the model."""
        return self.count // self.tensor_parallel


@dataclass(frozen=True)
class StagePlan:
    """A part of a run, with examples of one length. Numbers are of one device unless they say.

    Attributes:
        length: tokens of an example.
        batch_size: examples of a step, on all devices.
        device_batch: examples that a device computes at once.
        steps: number of steps.
        parameters, trained: how many there are, heads included, and are trained.
        flops_per_token: of forward and backward, in matrix products alone, without recomputation.
        step_flops: with recomputation, of one step.
        weights: bytes; with copies in half precision where the peak of memory is.
        optimizer: bytes.
        gradients: bytes, where the peak of memory is; all of them with accumulation.
        activations: bytes, where the peak of memory is.
        data_bytes: sent in a step to add up gradients.
        tensor_bytes: sent in a step within copies of the model.
        seconds: of one step.
    """

    length: int
    batch_size: int
    device_batch: int
    steps: int
    parameters: int
    trained: int
    flops_per_token: float
    step_flops: float
    weights: float
    optimizer: float
    gradients: float
    activations: float
    data_bytes: float
    tensor_bytes: float
    seconds: float

    @property
    def memory(self) -> float:
        """Bytes of a device."""
        return self.weights + self.optimizer + self.gradients + self.activations


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        devices: as it was planned.
        stages: one after the other.
        advice: layouts that fit the memory, best first, if this one does not.
    """

    devices: Devices
    stages: tuple[StagePlan, ...]
    advice: tuple[str, ...] = ()

    @property
    def memory(self) -> float:
        """Bytes of a device, in the stage that needs most."""
        return max(stage.memory for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether it fits the memory of a device."""
        return self.devices.memory is None or self.memory <= self.devices.memory * GIB

    @property
    def hours(self) -> float:
        """Of all stages."""
        return sum(stage.steps * stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float | None:
        """Of all devices; None without a price."""
        price = self.devices.price
        return None if price is None else self.hours * self.devices.count * price

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain values."""
        stages = [{**dataclasses.asdict(s), "memory": s.memory} for s in self.stages]
        found = {"memory": self.memory, "fits": self.fits, "hours": self.hours, "cost": self.cost}
        return {**found, "devices": dataclasses.asdict(self.devices), "stages": stages,
                "advice": list(self.advice)}  # fmt: skip


def read(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> PretrainRecipe | Recipe:
    """Reads a recipe of pretraining or fine-tuning, whichever it is.

    Raises:
        ValueError: for another kind of recipe, and as ``config.load_recipe`` does.
    """
    values = parsing.read_yaml(Path(file)) if Path(file).is_file() else {}
    values = values if isinstance(values, dict) else {}
    if "teacher" in values or "student" in values:
        raise ValueError(f"{file} is a distillation; plans are of pretraining and fine-tuning.")
    model = values.get("model")
    pretraining = isinstance(model, dict) and "path" not in model
    return load_recipe(file, overrides, PretrainRecipe if pretraining else Recipe)


def plan(recipe: PretrainRecipe | Recipe, devices: Devices, steps: int | None = None) -> Plan:
    """Plans a run of a recipe.

    * FLOPs: those of matrix products, ``2 · m · k · n`` each, forward and backward: close to 6 for
      each weight and token (arXiv 2001.08361, section 2.1), and attention's products of queries,
      keys and values. Logits over the vocabulary are computed at predicted tokens alone.
    * Memory: weights and two moments in float32, and what is alive of the step's other tensors
      when most is, each from the operation that makes it to the last one that reads it. For a
      BERT block these are the tensors of arXiv 2205.05198, section 4.1, and those that
      TensorFlow's gradients read beside them, because its operations are smaller. Examples are
      taken to be full, one row of tokens each (or one for each choice), and computed with
      padding. The memory of libraries, and what an allocator loses, are not in it.
    * With recomputation, tensors within a block are dropped after it, and are there again from the
      first operation of its gradient on.
    * With tensor parallelism, weights, tensors and products within attention and feed-forward are
      divided, and so are the token embedding and the logits; all others are copies.
    * Communication: an all-reduce of b bytes over n devices sends ``2 (n - 1) / n · b`` from each
      (ring; arXiv 1909.08053). In a step there is one of the gradients, in float32; and for each
      part of the batch those of the outputs of attention and feed-forward, forward and backward.

    Args:
        recipe: of pretraining or fine-tuning.
        devices: the layout.
        steps: number of steps, for recipes that do not say; None for the recipe's, and for the
            number of rows of the files in fine-tuning.

    Raises:
        ValueError: for a recipe without a number of steps, of a model with loops (a recurrent one)
            or with shapes that depend on values (an adaptive softmax), or of a task whose head is
            over the vocabulary; and for a batch, heads or widths that the devices cannot divide.
    """
    parts = [
        (part, cache(partial(_trace, part.network, devices.dtype)))
        for part in _parts(recipe, steps)
    ]
    stages = tuple(_stage(part, devices, traced) for part, traced in parts)
    found = Plan(devices, stages)
    if found.fits:
        return found
    largest = max(range(len(parts)), key=lambda i: stages[i].memory)
    return dataclasses.replace(found, advice=tuple(_advice(*parts[largest], devices)))


def flops_per_token(
    recipe: PretrainRecipe | Recipe, length: int | None = None, stage: int = 0
) -> float | None:
    """FLOPs of training for each token, counted as ``plan`` does, without recomputation.

    Args:
        recipe: of pretraining or fine-tuning.
        length: of examples, in tokens, for fine-tuning; None for the recipe's.
        stage: the number of a stage of pretraining.

    Returns:
        None for a model or task that cannot be planned.
    """
    if isinstance(recipe, Recipe):
        model = dataclasses.replace(recipe.model, max_length=length or recipe.model.max_length)
        train = dataclasses.replace(recipe.train, batch_size=1, batch_tokens=None)
        recipe = dataclasses.replace(recipe, model=model, train=train)
    steps = None if isinstance(recipe, PretrainRecipe) and recipe.stages else 1
    try:
        part = list(_parts(recipe, steps))[stage]
        step = _trace(part.network, "float32", 1)
    except Exception as error:  # a number beside a training must not end it
        _log.info("FLOPs are not counted: %s", error)
        return None
    return sum(op.flops for op in step.ops) / part.length


class _Part(NamedTuple):
    """A stage before it is laid out.

    Fields:
        length, batch_size, steps: as of ``StagePlan``.
        rows: of tokens in an example: its number of choices.
        network: from the examples of a part of the batch to the step's network.
    """

    length: int
    batch_size: int
    steps: int
    network: Callable[[int], _Network]
    rows: int = 1


class _Network(NamedTuple):
    """What is traced.

    Fields:
        layers: that have all weights.
        backbone: the model, whose blocks are divided and recomputed.
        loss: from placeholders, which it makes by their shape and dtype, to a scalar, and the
            tensors of metrics.
    """

    layers: list[keras.layers.Layer]
    backbone: models.Backbone
    loss: Callable[[], list[Any]]


def _parts(recipe: PretrainRecipe | Recipe, steps: int | None) -> Iterator[_Part]:
    if isinstance(recipe, Recipe):
        yield _fine_tuning(recipe, steps)
        return
    settings = recipe.train
    if settings.batch_size is None and recipe.data.format == "stream":
        raise ValueError("train.batch_size must be a number for pretraining on a stream, got null.")
    if not recipe.stages:
        count = steps or settings.steps
        if count is None:
            raise ValueError("The recipe has no train.steps: give the number of steps.")
        length = recipe.data.length
        size = _batch_size(settings, length)
        yield _Part(length, size, count, _pretraining(recipe, length, None))
    elif steps is not None:
        raise ValueError(f"The recipe has stages with steps of their own, got steps {steps}.")
    layers = None
    for stage in recipe.stages:
        layers = stage.layers or layers
        length = stage.length or recipe.data.length
        size = stage.batch_size or _batch_size(settings, length)
        yield _Part(length, size, stage.steps, _pretraining(recipe, length, layers))


def _pretraining(
    recipe: PretrainRecipe, length: int, layers: int | None
) -> Callable[[int], _Network]:
    tokenizer = load_tokenizer(expand(recipe.model.tokenizer))
    more = {} if layers is None else {"num_layers": layers}
    model = dataclasses.replace(
        recipe.model, overrides={**recipe.model.overrides, **more}, checkpoint=None
    )
    recipe = dataclasses.replace(recipe, model=model, stages=[])
    if recipe.data.format == "stream":
        return lambda batch: _stream(recipe, tokenizer.vocab_size, batch, length)

    def network(batch: int) -> _Network:
        made = objectives.build(recipe, tokenizer)
        shapes = _examples(recipe, batch, length)
        return _Network([made.learner], made.backbone, lambda: _sentences(made, shapes))

    return network


def _examples(recipe: PretrainRecipe, batch: int, length: int) -> tuple:
    """A batch of full examples, as ``Examples.batches`` describes it, by shapes and dtypes."""
    masking = recipe.masking
    count = max(1, round(masking.rate * length))
    count = min(count, masking.max_predictions or count)
    tokens, predictions = ((batch, length), "int32"), ((batch, count), "int32")
    names = ("token_ids", "padding_mask", "segment_ids", "position_ids", "language_ids")
    targets: dict[str, tuple] = dict.fromkeys(
        ("positions", "token_ids", "starts", "ends"), predictions
    )
    each = ((batch,), "int32")
    targets |= {"originals": tokens, "seeds": ((batch, 2), "int32")}
    targets |= {"pair": each, "translated": each}
    return dict.fromkeys(names, tokens), targets, ((batch, count), "float32")


def _sentences(made: objectives.Pretraining, shapes: tuple) -> list[Any]:
    # What the data pipeline computes is not the device's.
    with tf.Graph().as_default():
        given = made.batch(*_placeholders(shapes))
        given = tf.nest.map_structure(lambda x: (tuple(x.shape), x.dtype.name), given)
    inputs, targets, *weights = _placeholders(given)
    with unpadding(False):
        outputs = super(Learner, made.learner).call(inputs, training=True)
        return _losses(made.learner, outputs, Batch(inputs, targets, *weights))


def _stream(recipe: PretrainRecipe, vocabulary: int, batch: int, length: int) -> _Network:
    model = recipe.model
    fields = {"vocab_size": vocabulary, **model.overrides}
    backbone = models.build(model.family, model.size, **fields)
    head = heads.build(backbone, "causal_lm")
    objective = NextTokens(head)
    tokens = ((batch, length), "int32")

    def loss() -> list[Any]:
        memory = tf.nest.map_structure(
            lambda spec: ((batch, backbone.config.mem_len or 0, spec.shape[-1]), spec.dtype),
            backbone.input.get("memory", ()),
        )
        inputs = _placeholders({"token_ids": tokens, "padding_mask": tokens})
        if memory:
            inputs["memory"] = _placeholders(memory)
        with unpadding(False):
            outputs = backbone(inputs, training=True)
            batch_ = Batch(inputs, _placeholders(tokens), _placeholders((tokens[0], "float32")))
            found = objective.loss(outputs, objective.heads, batch_)
        total, count = found["causal_lm"]
        return [total / count]

    return _Network([backbone, head], backbone, loss)


def _losses(learner: Learner, outputs: Any, batch: Batch) -> list[Any]:
    """The loss, and the sums that are only reported."""
    loss, reported = 0.0, []
    for objective in learner.objectives:
        for name, (total, count) in objective.loss(outputs, objective.heads, batch).items():
            if name in objective.weights:
                loss += objective.weights[name] * total / tf.cast(count, total.dtype)
            else:
                reported.append(total)
    return [loss, *reported]


def _batch_size(settings: TrainConfig, length: int) -> int:
    """Examples of a batch; of a batch by tokens those that it has if all are long."""
    size = settings.batch_size or (settings.batch_tokens or 0) // length
    if not size:
        raise ValueError(
            f"train.batch_tokens must be at least the {length} tokens of an example, got "
            f"{settings.batch_tokens}."
        )
    return size


def _fine_tuning(recipe: Recipe, steps: int | None) -> _Part:
    settings = recipe.train
    checkpoint = Checkpoint(str(expand(recipe.model.path)), **recipe.model.overrides)
    length = recipe.model.max_length or getattr(checkpoint.config, "max_positions", None)
    if length is None:
        raise ValueError("model.max_length must be a number for a model without positions.")
    size = _batch_size(settings, length)
    rows = _rows_of_columns(recipe)
    if steps is None:
        data = read_split(recipe.data, "train", recipe.task)
        steps = -(-int(data.cardinality()) // size) * settings.epochs
        if "choices" in data.element_spec[0]:
            rows = data.element_spec[0]["choices"].shape[0]
    cls = tasks.task_class(recipe.task)
    name = cls.head_of(checkpoint.family.name) or ""
    spec = checkpoint.family.heads.get(name)
    unknown_head = spec is None or isinstance(
        spec.parts[-1], registry.TiedOutputSpec | registry.AdaptiveSoftmaxSpec
    )
    if unknown_head and cls.trainer_settings is None:
        raise ValueError(f"Plans of fine-tuning are of tasks with labels, got {recipe.task}.")

    def network(batch: int) -> _Network:
        backbone = models.Backbone(checkpoint.family.name, checkpoint.config)
        head = None
        if spec is not None:
            labels = len(recipe.data.labels or ()) or 2
            head = heads.build(backbone, name, labels if spec.has_labels else None)
        if recipe.model.frozen is not None:
            frozen = recipe.model.frozen
            tuning.freeze(backbone, None if isinstance(frozen, str) else frozen)
        if recipe.model.lora_rank is not None:
            tuning.add_lora(backbone, recipe.model.lora_rank)

        def loss() -> list[Any]:
            inputs = dict.fromkeys(backbone.token_inputs, ((batch * rows, length), "int32"))
            with unpadding(False):
                reads = "sequence_output" if spec is None else spec.reads
                outputs = backbone(_placeholders(inputs), outputs=reads, training=True)
                return [tf.reduce_sum(outputs[reads] if head is None else head(outputs))]

        return _Network([backbone] if head is None else [backbone, head], backbone, loss)

    return _Part(length, size, steps, network, rows)


def _rows_of_columns(recipe: Recipe) -> int:
    """Rows of tokens in an example."""
    named = {name: x for name, x in (columns(recipe.data) or {}).items() if name != "label"}
    counts = {name: len(x) if isinstance(x, list) else 1 for name, x in named.items()}
    return tasks.task_class(recipe.task).rows_per_example(counts)


def _placeholders(shapes: Any) -> Any:
    """A structure of (shape, dtype), with placeholders in their place."""
    if isinstance(shapes, Mapping):
        return {name: _placeholders(each) for name, each in shapes.items()}
    if len(shapes) == 2 and isinstance(shapes[1], str):
        return tf.compat.v1.placeholder(shapes[1], shapes[0])
    return tuple(map(_placeholders, shapes))


# The step, as a list of operations.


class _Op(NamedTuple):
    """An operation of the step.

    Fields:
        block: the call of a block that it is in, or whose gradient it is in; None for none.
        divided: whether tensor parallelism divides it.
        backward: whether it is of the gradient.
        in_place: whether it can compute into the memory of an input.
        flops: of a matrix product; 0 for others.
        reduced: bytes of its output, where tensor parallelism adds the outputs of all devices, in
            the forward pass; else 0.
        inputs, outputs: the tensors that it reads and makes, by number.
    """

    block: str | None
    divided: bool
    backward: bool
    in_place: bool
    flops: float
    reduced: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class _Tensor(NamedTuple):
    """A tensor that an operation makes.

    Fields:
        size: bytes.
        kind: ``weights`` for a copy of weights in half precision, ``gradients`` for those of
            weights, else ``activations``.
        divided: whether each device of a copy of the model has a part of it.
    """

    size: float
    kind: str
    divided: bool


class _Step(NamedTuple):
    """A traced step.

    Fields:
        ops: in order.
        tensors: by number.
        parameters: their number, by whether they are trained and whether they are divided.
        config: of the backbone.
    """

    ops: list[_Op]
    tensors: list[_Tensor]
    parameters: dict[tuple[bool, bool], int]
    config: Any


def _trace(network: Callable[[int], _Network], dtype: str, batch: int) -> _Step:
    def traced() -> _Step:
        keras.config.set_dtype_policy(dtype)
        with keras.StatelessScope(initialize_variables=False):
            made = network(batch)
        return _read(made)

    # In a thread of its own, as in ``models.count_parameters``: Keras keeps the policy, and a list
    # of uninitialized variables, per thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(traced).result()


def _read(network: _Network) -> _Step:
    variables = {id(v): v for layer in network.layers for v in layer.variables}
    weights = {id(v): v for layer in network.layers for v in layer.weights}
    trained = dict.fromkeys(id(v) for layer in network.layers for v in layer.trainable_variables)
    with tf.Graph().as_default() as graph:
        values = {key: tf.compat.v1.placeholder(v.dtype, v.shape) for key, v in variables.items()}
        pairs = [(variables[key], value) for key, value in values.items()]
        with keras.StatelessScope(pairs, initialize_variables=False):
            loss, *reported = network.loss()
        first = len(graph.get_operations())
        found_gradients = tf.gradients(loss, [values[key] for key in trained])
        gradients = {
            key: tf.convert_to_tensor(gradient)
            for key, gradient in zip(trained, found_gradients, strict=True)
            if gradient is not None
        }
        ops = _needed([loss, *reported, *gradients.values()])
    backward = {op.name for op in graph.get_operations()[first:]}
    table = network.backbone.parts.get("token_embedding")
    vocabulary = {id(v) for v in table.weights} if table is not None else set()
    placed = {value.ref() for key, value in values.items() if key in weights}
    parameters = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for key, v in weights.items():
        divided = key in vocabulary or _is_divided(v.path)
        parameters[key in trained, divided] += math.prod(v.shape)
    config = network.backbone.config
    found = _Reader(backward, placed, config.vocab_size)
    for op in ops:
        found.add(op)
    for key, gradient in gradients.items():
        number = found.numbers[gradient.ref()]
        divided = key in vocabulary or _is_divided(variables[key].path)
        tensor = found.tensors[number]
        found.tensors[number] = tensor._replace(kind="gradients", divided=divided)
    return _Step(found.ops, found.tensors, parameters, config)


def _needed(fetched: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """The operations that compute these tensors, in the order in which they were made."""
    found, rest = set(), [x.op for x in fetched]
    while rest:
        op = rest.pop()
        if op not in found:
            found.add(op)
            rest += [x.op for x in op.inputs if op.type not in _SHAPES] + list(op.control_inputs)
    return [op for op in fetched[0].graph.get_operations() if op in found]


class _Reader:
    """Reads a graph, one operation after the other.

    Args:
        backward: names of the operations of the gradient.
        weights: the graph's placeholders of weights.
        vocabulary: the number of tokens, an axis that tensor parallelism divides.
    """

    def __init__(self, backward: set[str], weights: set[Any], vocabulary: int):
        self.backward = backward
        self.weights = weights
        self.vocabulary = vocabulary
        self.ops: list[_Op] = []
        self.tensors: list[_Tensor] = []
        self.numbers: dict[Any, int] = {}

    def add(self, op: tf.Operation) -> None:
        if any(value.HasField("func") for value in op.node_def.attr.values()):
            raise ValueError(
                f"Plans are of models without loops, such as recurrent ones, got {op.type} in "
                f"{op.name}."
            )
        given = [] if op.type in _SHAPES else list(op.inputs)
        read = tuple(self.numbers[x.ref()] for x in given if x.ref() in self.numbers)
        if op.type == "Placeholder" or op.type == "Const":
            return  # weights, and what the data pipeline gives
        if op.type in _VIEWS or _is_free(op):
            if read:
                self.numbers[op.outputs[0].ref()] = read[0]
            return
        block, divided, output = _scope(op.name)
        backward, flops = op.name in self.backward, _flops(op)
        made = []
        for x in op.outputs:
            if x.dtype == tf.int32 and x.shape.rank in (0, 1):
                continue  # a shape or an axis
            if not x.shape.is_fully_defined():
                raise ValueError(f"Plans need shapes that do not depend on values, got {x}.")
            kind = "activations"
            if op.type == "Cast" and op.inputs[0].ref() in self.weights:
                kind = "weights"
            by_tokens = self.vocabulary in x.shape.as_list()
            self.numbers[x.ref()] = len(self.tensors)
            made.append(len(self.tensors))
            size = x.shape.num_elements() * x.dtype.size
            self.tensors.append(_Tensor(size, kind, divided or by_tokens))
        shapes = [x.shape.as_list() for x in (*given, *op.outputs)]
        by_tokens = any(self.vocabulary in shape for shape in shapes)
        self.ops.append(
            _Op(
                block,
                divided or output or by_tokens,
                backward,
                op.type in _IN_PLACE,
                flops,
                size if output and flops and not backward else 0,
                read,
                tuple(made),
            )
        )


def _scope(name: str) -> tuple[str | None, bool, bool]:
    """Where an operation is.

    Returns:
        the call of a block; whether it is divided within it; and whether it is in the output
        projection of attention or feed-forward, whose input is divided and whose output is not.
    """
    parts = name.removeprefix("gradients/").split("/")
    for i, part in enumerate(parts):
        if _CALL.fullmatch(part):
            following = parts[i + 1 :]
            for one, other in pairwise(following):
                if _DIVIDED.fullmatch(one):
                    output = bool(_OUTPUT.fullmatch(other))
                    return "/".join(parts[: i + 1]), not output, output
            return "/".join(parts[: i + 1]), False, False
    return None, False, False


def _is_divided(path: str) -> bool:
    """Whether tensor parallelism divides a weight: in attention and feed-forward, all but the
    bias of the output."""
    parts = path.split("/")
    return any(
        _DIVIDED.fullmatch(one) and not (_OUTPUT.fullmatch(other) and parts[-1] == "bias")
        for one, other in pairwise(parts)
    )


def _is_free(op: tf.Operation) -> bool:
    """Whether TensorFlow leaves an operation out: products transpose their inputs themselves."""
    if op.type == "BroadcastTo":
        return op.inputs[0].shape == op.outputs[0].shape
    if op.type != "Transpose" or {x.type for x in op.outputs[0].consumers()} - _PRODUCTS:
        return False
    order = tf.get_static_value(op.inputs[1])
    last = op.outputs[0].shape.rank - 1
    return order is not None and [*order] == [*range(last - 1), last, last - 1]


def _flops(op: tf.Operation) -> float:
    """Of a matrix product: two for each pair of numbers that are multiplied."""
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


def _peak(step: _Step, devices: Devices) -> dict[str, float]:
    """Bytes of each kind of tensor, at the operation at which most are alive."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}  # the last operation that reads a tensor
    forward: dict[int, int] = {}  # the last one that is not of the gradient
    leaves: set[int] = set()  # tensors that are read outside of the call that makes them
    starts: dict[str, int] = {}  # the first operation of the gradient of each call
    for i, op in enumerate(step.ops):
        if op.backward and op.block is not None:
            starts.setdefault(op.block, i)
        for x in op.outputs:
            made[x] = last[x] = forward[x] = i
        for x in op.inputs:
            last[x] = i
            if not op.backward:
                forward[x] = i
                if op.block != step.ops[made[x]].block:
                    leaves.add(x)
    for x, tensor in enumerate(step.tensors):
        if tensor.kind == "gradients":
            last[x] = len(step.ops)
    freed = dict(last)
    for i, op in enumerate(step.ops):
        if op.in_place and op.outputs:
            size = step.tensors[op.outputs[0]].size
            same = (x for x in op.inputs if last[x] == i and step.tensors[x].size == size)
            freed.update((x, i - 1) for x in islice(same, 1))
    changes = {kind: [0.0] * (len(step.ops) + 2) for kind in _KINDS}
    for x, tensor in enumerate(step.tensors):
        size = tensor.size / (devices.tensor_parallel if tensor.divided else 1)
        block = step.ops[made[x]].block
        spans = [(made[x], freed[x])]
        dropped = devices.recompute and block is not None and x not in leaves
        if dropped and made[x] < starts.get(block or "", 0) <= last[x]:
            spans = [(made[x], forward[x]), (starts[block or ""], freed[x])]
        for begin, end in spans:
            changes[tensor.kind][begin] += size
            changes[tensor.kind][end + 1] -= size
    alive = {kind: list(accumulate(each)) for kind, each in changes.items()}
    totals = [sum(each) for each in zip(*alive.values(), strict=True)]
    at = totals.index(max(totals))
    return {kind: each[at] for kind, each in alive.items()}


def _stage(part: _Part, devices: Devices, traced: Callable[[int], _Step]) -> StagePlan:
    batch = _device_batch(part, devices)
    return _laid_out(part, devices, batch, traced(batch))


def _device_batch(part: _Part, devices: Devices) -> int:
    parts = devices.replicas * devices.accumulation
    if part.batch_size % parts:
        raise ValueError(
            f"The batch size must be a multiple of {parts}, the {devices.replicas} copies of the "
            f"model times accumulation {devices.accumulation}, got {part.batch_size}."
        )
    return part.batch_size // parts


def _laid_out(part: _Part, devices: Devices, batch: int, step: _Step) -> StagePlan:
    ways, times = devices.tensor_parallel, devices.accumulation
    for name in ("num_heads", "intermediate_size"):
        if getattr(step.config, name, ways) % ways:
            raise ValueError(
                f"{name} must be a multiple of tensor_parallel {ways}, got "
                f"{getattr(step.config, name)}."
            )
    counts = step.parameters
    stored = sum(n / (ways if divided else 1) for (_, divided), n in counts.items())
    trained = counts[True, True] / ways + counts[True, False]
    total = sum(op.flops for op in step.ops)
    flops = sum(op.flops / (ways if op.divided else 1) for op in step.ops)
    sums = 2 * sum(op.reduced for op in step.ops)
    if devices.recompute:
        again = [op for op in step.ops if op.block is not None and not op.backward]
        flops += sum(op.flops / (ways if op.divided else 1) for op in again)
        sums += sum(op.reduced for op in again)
    peak = _peak(step, devices)
    copies = devices.replicas
    data_bytes = 2 * (copies - 1) / copies * _WEIGHT * trained
    tensor_bytes = 2 * (ways - 1) / ways * sums * times
    seconds = times * flops / (devices.peak * devices.share)
    if devices.bandwidth is not None:
        seconds += (data_bytes + tensor_bytes) / devices.bandwidth
    return StagePlan(
        length=part.length,
        batch_size=part.batch_size,
        device_batch=batch,
        steps=part.steps,
        parameters=sum(counts.values()),
        trained=counts[True, True] + counts[True, False],
        flops_per_token=total / (batch * part.rows * part.length),
        step_flops=times * flops,
        weights=_WEIGHT * stored + peak["weights"],
        optimizer=_MOMENTS * _WEIGHT * trained,
        gradients=peak["gradients"] + (_WEIGHT * trained if times > 1 else 0),
        activations=peak["activations"],
        data_bytes=data_bytes,
        tensor_bytes=tensor_bytes,
        seconds=seconds,
    )


def _advice(part: _Part, traced: Callable[[int], _Step], devices: Devices) -> list[str]:
    """Layouts of these devices in which a stage fits, as options with their memory."""
    planned = _device_batch(part, devices)

    def memory(trial: Devices) -> float:
        # Memory is linear in the batch: two sizes of it are enough.
        at = _device_batch(part, trial)
        low = _laid_out(part, trial, 1, traced(1)).memory
        if planned == 1:
            return low
        high = _laid_out(part, trial, planned, traced(planned)).memory
        return low + (high - low) * (at - 1) / (planned - 1)

    found: list[str] = []
    ways = devices.tensor_parallel
    while not found and devices.count % ways == 0:
        for recompute in sorted({devices.recompute, True}):
            for times in range(devices.accumulation, part.batch_size + 1):
                trial = dataclasses.replace(
                    devices, tensor_parallel=ways, accumulation=times, recompute=recompute
                )
                try:
                    size = memory(trial)
                except ValueError:
                    continue  # what cannot be divided so
                if size <= (devices.memory or 0) * GIB:
                    options = [f"--tensor-parallel {ways}"] if ways > 1 else []
                    options += [f"--accumulation {times}"] if times > 1 else []
                    options += ["--recompute"] if recompute else []
                    found.append(f"{' '.join(options)} ({size / GIB:.1f} GiB)")
                    break
        ways *= 2
    return found


# As text.


def table(found: Plan) -> str:
    """A plan as plain text, in lines of a name and a value, and of each stage."""
    devices, stages = found.devices, found.stages
    lines = [
        ("parameters", ", ".join(dict.fromkeys(f"{s.parameters:,}" for s in stages))),
        ("devices", f"{devices.count}: {devices.replicas} copies of the model, each on "
                    f"{devices.tensor_parallel}; {devices.dtype}"),
        ("gradients", f"in {devices.accumulation} parts of the batch; blocks are "
                      f"{'' if devices.recompute else 'not '}computed again"),
        ("speed", f"{devices.share:.0%} of {devices.peak / 1e12:g} TFLOP/s a device"),
    ]  # fmt: skip
    rows: list[tuple[str, Callable[[StagePlan], str]]] = [
        ("length", lambda s: f"{s.length:,}"),
        ("batch size", lambda s: f"{s.batch_size:,}"),
        ("at once, of a device", lambda s: f"{s.device_batch:,}"),
        ("steps", lambda s: f"{s.steps:,}"),
        ("MFLOP per token", lambda s: f"{s.flops_per_token / 1e6:,.1f}"),
        ("TFLOP per step and device", lambda s: f"{s.step_flops / 1e12:,.3f}"),
        ("weights, GiB", lambda s: f"{s.weights / GIB:.2f}"),
        ("optimizer, GiB", lambda s: f"{s.optimizer / GIB:.2f}"),
        ("gradients, GiB", lambda s: f"{s.gradients / GIB:.2f}"),
        ("activations, GiB", lambda s: f"{s.activations / GIB:.2f}"),
        ("memory of a device, GiB", lambda s: f"{s.memory / GIB:.2f}"),
        ("sent for gradients, GB/step", lambda s: f"{s.data_bytes / 1e9:.3f}"),
        ("sent within the model, GB/step", lambda s: f"{s.tensor_bytes / 1e9:.3f}"),
        ("seconds per step", lambda s: f"{s.seconds:.3g}"),
        ("hours", lambda s: f"{s.steps * s.seconds / 3600:,.2f}"),
    ]
    width = max(len(name) for name, _ in rows)
    text = [f"{name.ljust(width)}  {value}" for name, value in lines]
    cells = [[value(stage) for stage in stages] for _, value in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for (name, _), row in zip(rows, cells, strict=True):
        values = "  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True))
        text.append(f"{name.ljust(width)}  {values}")
    cost = "" if found.cost is None else f", cost {found.cost:,.2f}"
    text.append(f"{'in all'.ljust(width)}  {found.hours:,.2f} hours{cost}")
    if devices.memory is not None:
        needed = f"{found.memory / GIB:.1f} of {devices.memory:g} GiB"
        if found.fits:
            text.append(f"It fits the memory of a device: {needed}.")
        else:
            others = "; or ".join(found.advice) or "no other layout of these devices"
            text.append(f"It does not fit the memory of a device: {needed}. What fits: {others}.")
    return "\n".join(text)

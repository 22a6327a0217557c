"""The training step of each stage of a recipe, as a function that can be traced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bertfam_tf import heads, models, registry, tasks
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.layers import AdaptiveSoftmax
from bertfam_tf.models.base import unpadding
from bertfam_tf.objectives import NextTokens
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.recipes import objectives
from bertfam_tf.recipes.directory import model_source
from bertfam_tf.recipes.reading import source
from bertfam_tf.recipes.schema import PretrainRecipe, Recipe
from bertfam_tf.recipes.splits import columns, read_split
from bertfam_tf.text import load_tokenizer
from bertfam_tf.training import tuning
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import TrainConfig


class StageSpec(NamedTuple):
    """A stage before it is planned for devices.

    Fields:
        length, batch_size, steps: the same as in ``StagePlan``.
        network: builds the step's network for a batch of this many examples.
        rows: the rows of tokens in an example: its number of choices.
    """

    length: int
    batch_size: int
    steps: int
    network: Callable[[int], StepNetwork]
    rows: int = 1


class StepNetwork(NamedTuple):
    """The network of a step that can be traced.

    Fields:
        layers: the layers that own all weights.
        backbone: the backbone, whose blocks are divided and recomputed.
        loss: creates placeholders, and returns a scalar and the tensors of metrics.
    """

    layers: list[keras.layers.Layer]
    backbone: models.Backbone
    loss: Callable[[], list[Any]]


def stage_specs(recipe: PretrainRecipe | Recipe, steps: int | None) -> Iterator[StageSpec]:
    if isinstance(recipe, Recipe):
        yield _fine_tuning(recipe, steps)
        return
    settings = recipe.train
    if settings.batch_size is None and recipe.data.format == "stream":
        raise ValueError("train.batch_size must be a number for pretraining on a stream, got null.")
    if not recipe.stages:
        count = settings.steps if steps is None else steps
        if count is None:
            raise ValueError("The recipe has no train.steps: give the number of steps.")
        length = recipe.data.length
        size = _batch_size(settings, length)
        yield StageSpec(length, size, count, _pretraining(recipe, length, None))
    elif steps is not None:
        raise ValueError(f"The recipe has stages with steps of their own, got steps {steps}.")
    layers = None
    for stage in recipe.stages:
        layers = stage.layers or layers
        length = stage.length or recipe.data.length
        size = stage.batch_size or _batch_size(settings, length)
        yield StageSpec(length, size, stage.steps, _pretraining(recipe, length, layers))


def _pretraining(
    recipe: PretrainRecipe, length: int, layers: int | None
) -> Callable[[int], StepNetwork]:
    tokenizer = load_tokenizer(source(recipe.model.tokenizer))
    more = {} if layers is None else {"num_layers": layers}
    model = dataclasses.replace(
        recipe.model, overrides={**recipe.model.overrides, **more}, checkpoint=None
    )
    recipe = dataclasses.replace(recipe, model=model, stages=[])
    if recipe.data.format == "stream":
        return lambda batch: _stream(recipe, tokenizer.vocab_size, batch, length)

    def network(batch: int) -> StepNetwork:
        pretraining = objectives.build(recipe, tokenizer)
        shapes = _examples(recipe, batch, length)
        return StepNetwork(
            [pretraining.learner], pretraining.backbone, lambda: _sentences(pretraining, shapes)
        )

    return network


def _examples(recipe: PretrainRecipe, batch: int, length: int) -> tuple:
    """Returns shapes and dtypes of a batch of full-length examples of ``Examples.batches``."""
    masking = recipe.masking
    count = max(1, round(masking.rate * length))
    count = min(count, masking.max_predictions or count)
    tokens, predictions = ((batch, length), "int32"), ((batch, count), "int32")
    names = ("token_ids", "padding_mask", "segment_ids", "position_ids", "language_ids")
    targets: dict[str, tuple] = dict.fromkeys(
        ("positions", "token_ids", "starts", "ends"), predictions
    )
    labels = ((batch,), "int32")
    targets |= {"originals": tokens, "seeds": ((batch, 2), "int32")}
    targets |= {"pair": labels, "translated": labels}
    return dict.fromkeys(names, tokens), targets, ((batch, count), "float32")


def _sentences(pretraining: objectives.Pretraining, shapes: tuple) -> list[Any]:
    # The data pipeline does not run on the device, so it has a graph of its own.
    with tf.Graph().as_default():
        batch = pretraining.batch(*placeholders(shapes))
        batch = tf.nest.map_structure(lambda x: (tuple(x.shape), x.dtype.name), batch)
    inputs, targets, *weights = placeholders(batch)
    with unpadding(False):
        outputs = super(Learner, pretraining.learner).call(inputs, training=True)
        return _losses(pretraining.learner, outputs, Batch(inputs, targets, *weights))


def _stream(recipe: PretrainRecipe, vocabulary: int, batch: int, length: int) -> StepNetwork:
    model = recipe.model
    fields = {"vocab_size": vocabulary, **model.overrides}
    backbone = models.build(model.family, model.size, **fields)
    head = heads.build(backbone, "causal_lm")
    for layer in head.parts:
        if isinstance(layer, AdaptiveSoftmax):
            layer.members = partial(_expected_members, layer)  # type: ignore[method-assign]
    objective = NextTokens(head)
    tokens = ((batch, length), "int32")

    def loss() -> list[Any]:
        memory = tf.nest.map_structure(
            lambda spec: ((batch, backbone.config.mem_len or 0, spec.shape[-1]), spec.dtype),
            backbone.input.get("memory", ()),
        )
        inputs = placeholders({"token_ids": tokens, "padding_mask": tokens})
        if memory:
            inputs["memory"] = placeholders(memory)
        with unpadding(False):
            outputs = backbone(inputs, training=True)
            batch_ = Batch(inputs, placeholders(tokens), placeholders((tokens[0], "float32")))
            losses = objective.loss(outputs, objective.heads, batch_)
        total, count = losses["causal_lm"]
        return [total / count]

    return StepNetwork([backbone, head], backbone, loss)


def _expected_members(layer: AdaptiveSoftmax, inside: tf.Tensor, cluster: int) -> tf.Tensor:
    """Returns as many indices as a cluster has of the targets by Zipf's law."""
    # The sum of 1 / rank over the ranks from start + 1 to end.
    start, end = (2 * bound + 1 for bound in layer.clusters[cluster])
    share = math.log(end / start) / math.log(2 * layer.clusters[-1][1] + 1)
    return tf.range(max(1, round(share * inside.shape[0])))


def _losses(learner: Learner, outputs: Any, batch: Batch) -> list[Any]:
    """Returns the loss, and the sums that are only reported."""
    loss, reported = 0.0, []
    for objective in learner.objectives:
        for name, (total, count) in objective.loss(outputs, objective.heads, batch).items():
            if name in objective.weights:
                loss += objective.weights[name] * total / tf.cast(count, total.dtype)
            else:
                reported.append(total)
    return [loss, *reported]


def _batch_size(settings: TrainConfig, length: int) -> int:
    """Returns the examples of a batch; with ``batch_tokens``, for examples of full length."""
    size = settings.batch_size or (settings.batch_tokens or 0) // length
    if not size:
        raise ValueError(
            f"train.batch_tokens must be at least the {length} tokens of an example, got "
            f"{settings.batch_tokens}."
        )
    return size


def _fine_tuning(recipe: Recipe, steps: int | None) -> StageSpec:
    settings = recipe.train
    steps = settings.steps if steps is None else steps
    checkpoint = Checkpoint(model_source(recipe.model.path), **recipe.model.overrides)
    length = recipe.model.max_length or getattr(checkpoint.config, "max_positions", None)
    if length is None:
        raise ValueError("model.max_length must be a number for a model without positions.")
    size = _batch_size(settings, length)
    cls = tasks.task_class(recipe.task)
    counts = {
        name: len(column) if isinstance(column, list) else 1
        for name, column in (columns(recipe.data) or {}).items()
        if name != "label"
    }
    rows = cls.rows_per_example(counts)
    # A single column of choices, or RACE's format, does not say how many there are.
    if steps is None or ("choices" in cls.fields.required and rows == 1):
        data = read_split(recipe.data, "train", recipe.task)
        steps = steps or -(-int(data.cardinality()) // size) * settings.epochs
        if "choices" in data.element_spec[0]:
            rows = data.element_spec[0]["choices"].shape[0]
    name = cls.head_of(checkpoint.family.name) or ""
    spec = checkpoint.family.heads.get(name)
    unknown_head = spec is None or isinstance(
        spec.parts[-1], registry.TiedOutputSpec | registry.AdaptiveSoftmaxSpec
    )
    if unknown_head and cls.trainer_settings is None:
        raise ValueError(f"Plans of fine-tuning are of tasks with labels, got {recipe.task}.")

    def network(batch: int) -> StepNetwork:
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
                outputs = backbone(placeholders(inputs), outputs=reads, training=True)
                return [tf.reduce_sum(outputs[reads] if head is None else head(outputs))]

        return StepNetwork([backbone] if head is None else [backbone, head], backbone, loss)

    return StageSpec(length, size, steps, network, rows)


def placeholders(shapes: Any) -> Any:
    """Returns placeholders for a structure of (shape, dtype)."""
    if isinstance(shapes, Mapping):
        return {name: placeholders(shape) for name, shape in shapes.items()}
    if len(shapes) == 2 and isinstance(shapes[1], str):
        return tf.compat.v1.placeholder(shapes[1], shapes[0])
    return tuple(map(placeholders, shapes))

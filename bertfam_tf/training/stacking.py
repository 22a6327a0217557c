"""Pretraining in stages, between which a model can grow by copying its layers.

Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf.models import Backbone
from bertfam_tf.training import engine, optimizers, replicas
from bertfam_tf.training.callbacks.backup import Backup, Clock
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import Stage, TrainConfig
from bertfam_tf.training.tuning import blocks_of
from bertfam_tf.validation import one_of

GROWTHS = ("stack", "interleave", "identity")
MOMENTS = ("fresh", "copied")
Callbacks = Sequence[keras.callbacks.Callback]
_NUMBERS = re.compile(r"(_\d+)+$")


class _OnBackbone(Protocol):
    """A model on a backbone that it can exchange, such as a task."""

    backbone: Backbone

    def with_backbone(self, backbone: Backbone) -> Self: ...


Model = TypeVar("Model", bound=Backbone | _OnBackbone)


def grow(model: Model, num_layers: int | None = None, growth: str = "stack") -> Model:
    """Returns a deeper model, whose layers are copies of a trained model's layers.

    With L layers in ``model``, layer i of the new one is a copy of

    * ``"stack"``: layer i mod L, so that the whole stack is repeated (Gong et al. 2019);
    * ``"interleave"``: layer ⌊i · L / num_layers⌋, so that each layer is repeated, as 2i and 2i + 1
      for twice the layers;
    * ``"identity"``: the same as ``"stack"``, but with zero output projections of attention and
      feed-forward in the new layers, which therefore return their input: the new model has the
      outputs and gradients of ``model`` (arXiv 2203.06211). It requires pre-norm, because norms
      after the residual sums would normalize once more.

    Both models share the other layers, such as embeddings and poolers, so heads that were built on
    ``model`` work on the new one. Blocks are new, and all their weights are trainable. Weights that
    the copied layer lacks are initialized, such as the norm before attention in copies of
    ModernBERT's first layer. A task gets a new head with the weights of the old one.

    Args:
        model: a backbone, or a task.
        num_layers: the number of layers; None for twice as many as ``model``.
        growth: one of ``GROWTHS``.

    Raises:
        ValueError: if ``growth`` is unknown, ``num_layers`` is not larger than the model's, or the
            model cannot grow: its layers share all weights (ALBERT's), or share them by groups of
            layers; it has other weights than its family (such as LoRA's); or it is not pre-norm for
            ``"identity"``.
    """
    if isinstance(model, Backbone):
        return _grow(model, num_layers, growth)
    task = model.with_backbone(_grow(model.backbone, num_layers, growth))
    _copy_rest(model, task, copied_paths(model.backbone, task.backbone, growth))
    return task


def copied_paths(before: Backbone, after: Backbone, growth: str = "stack") -> dict[str, str]:
    """Maps each weight in the layers of a grown backbone to the weight it was copied from.

    Args:
        before: the backbone that was grown.
        after: the result of ``grow``.
        growth: the same as for ``grow``.

    Returns:
        Paths in ``after`` to paths in ``before``, or to ``""`` for weights that the copied layer
        lacks.

    Raises:
        ValueError: as for ``grow``.
    """
    own = {weight.path: "" for block in blocks_of(after) for weight in block.weights}
    return own | {to.path: source.path for to, source in _pairs(before, after, growth)}


def copy_moments(before: keras.Model, after: keras.Model, paths: dict[str, str]) -> None:
    """Copies an optimizer's moments and its number of steps by variable path.

    Weights without a counterpart keep their moments, zero in a new optimizer.

    Args:
        before, after: models that are compiled with the optimizers of this package.
        paths: the result of ``copied_paths``; other weights have the same path in both models.

    Raises:
        ValueError: if weights of one model have the same path.
    """
    after.optimizer.build(after.trainable_variables)
    sources = _inner(before.optimizer).moments
    for path, moments in _inner(after.optimizer).moments.items():
        for moment, source in zip(moments, sources.get(paths.get(path, path), ()), strict=False):
            moment.assign(source)
    after.optimizer.iterations.assign(before.optimizer.iterations)


def _inner(optimizer: Any) -> Any:
    """Returns the optimizer inside Keras' loss scaling, which ``mixed_float16`` adds."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class Trained(NamedTuple):
    """The result of ``train_in_stages``.

    Fields:
        backbone: the backbone of the last stage.
        learner: the compiled model of the last stage.
        history: the last logs of each stage that this call trained, with its ``stage``, from 0.
    """

    backbone: Backbone
    learner: Learner
    history: list[dict[str, float]]


def train_in_stages(
    backbone: Backbone,
    stages: Sequence[Stage],
    learner: Callable[[Backbone], Learner],
    batches: tf.data.Dataset | Callable[[int], tf.data.Dataset],
    *,
    settings: TrainConfig | None = None,
    growth: str = "stack",
    moments: str = "fresh",
    directory: str | Path | None = None,
    recipe: str | None = None,
    callbacks: Callbacks | Callable[[int, int], Callbacks] = (),
    validation_data: Any = None,
    **fit: Any,
) -> Trained:
    """Trains a backbone that can grow between stages.

    A stage continues with the batches after the previous stage's. Stages with the same number of
    layers share model and optimizer, and only differ in their batches or learning rates. With a
    ``directory``, a killed run resumes from its last training checkpoint when it is called again
    with the same arguments, and ends with the same result as an uninterrupted one. ``backbone``
    must have the same weights then only if no checkpoint was written.

    Args:
        backbone: the backbone of the first stage, with ``stages[0].layers`` layers. It shares its
            embeddings with the grown ones.
        stages: the stages; none has fewer layers than the previous one. In "Efficient Training of
            BERT by Progressively Stacking" they are ``Stage(3, 50_000)``, ``Stage(6, 20_000)`` and
            ``Stage(12, 330_000)``. Only ``batches`` depends on their ``length`` and ``batch_size``.
        learner: builds the model to train from a backbone, for example ``lambda backbone:
            Learner(backbone.input, backbone(backbone.input), [objective])``. If it builds new
            heads, their weights are copied by path.
        batches: the batches of all stages, the same whenever they are iterated; or a function that
            returns the batches from a step on, which is faster than skipping.
        settings: learning rate, optimizer, ``accumulation_steps`` and seed; ``backup_steps`` with a
            directory. Stages without a ``learning_rate`` follow one schedule over the steps of all
            stages. None for the defaults.
        growth: the same as for ``grow``.
        moments: ``"fresh"`` for a new optimizer when the model grows (as in the paper's
            experiments), or ``"copied"`` to continue with it: new layers get the moments of the
            layers that they are copied from. In the paper's code these lose their step count, which
            makes the next steps several times as large; here they keep it.
        directory: the directory of training checkpoints; None writes none.
        recipe: text that training checkpoints store.
        validation_data: the same as for Keras' ``fit``; or a function of the number of a stage.
        callbacks: the same as for Keras' ``fit``; or a function of the number of a stage, and of
            the number of steps of all stages that are done.
        **fit: further arguments of Keras' ``fit``. Epochs are numbered over all stages.

    Raises:
        ValueError: if stages are invalid, the backbone is not the first stage's or cannot grow,
            there are too few batches, or training checkpoints are of another run.
    """
    settings = settings or TrainConfig()
    total = sum(stage.steps for stage in stages)
    _check(backbone, stages, growth, moments)
    if isinstance(batches, tf.data.Dataset):
        count = int(batches.cardinality())
        if 0 <= count < total:
            raise ValueError(
                f"Expected at least {total} batches for the steps of all stages, got {count}; use "
                "Dataset.repeat() for more."
            )
    after = batches.skip if isinstance(batches, tf.data.Dataset) else batches
    held_out = validation_data if callable(validation_data) else lambda _: validation_data
    stage_callbacks = callbacks if callable(callbacks) else lambda *_: callbacks
    schedule = _schedule(stages, settings, total)
    clock = Clock()
    limit = engine.time_limit(clock, settings)
    backups: list[Backup | None] = [None] * len(stages)
    if directory is not None:
        path = Path(directory)
        backups = [
            Backup(
                path / f"stage_{i}",
                settings.backup_steps,
                writes=replicas.is_chief(),
                recipe=recipe,
                clock=clock,
            )
            for i in range(len(stages))
        ]
    first = max((i for i, backup in enumerate(backups) if backup and backup.exists), default=0)
    best = None
    if backups[-1] is not None:
        best = engine.best_epoch(backups[-1], settings, held_out(len(stages) - 1))
    history: list[dict[str, float]] = []
    model, start, epoch = None, 0, 0
    first_step = 0  # the step at which the optimizer was created
    for i, (stage, backup) in enumerate(zip(stages, backups, strict=True)):
        previous, paths = model, {}
        if stage.layers not in (None, backbone.config.num_layers):
            # A resumed run must grow the same model as an uninterrupted one.
            keras.utils.set_random_seed(settings.seed + i)
            grown = grow(backbone, stage.layers, growth)
            paths, backbone = copied_paths(backbone, grown, growth), grown
            first_step, model = start if moments == "fresh" else 0, None
        if i >= first:
            if model is None:
                model = learner(backbone)
                shifted = optimizers.OffsetSchedule(schedule, first_step)
                engine.compile_model(model, settings, total, schedule=shifted)
                if previous is not None:
                    _copy_rest(previous, model, paths)
                    if moments == "copied":
                        copy_moments(previous, model, paths)
            phase = engine.Phase(
                model,
                partial(_rest, after, start, stage.steps),
                stage.steps,
                stage.epochs,
                held_out(i),
                steps_before=start,
                epochs_before=epoch,
            )
            logs = engine.fit(
                phase,
                backup,
                partial(_callbacks, stage_callbacks, i, start, total),
                best if i + 1 == len(stages) else None,
                limit,
                **fit,
            )
            if logs:
                history.append({"stage": i, **{name: values[-1] for name, values in logs.items()}})
            if i and (last := backups[i - 1]):
                last.clear()
            if limit is not None and limit.exceeded:
                break
        start += stage.steps
        epoch += stage.epochs
    assert model is not None
    return Trained(backbone, model, history)


def _rest(
    batches: Callable[[int], tf.data.Dataset], start: int, steps: int, done: int
) -> tf.data.Dataset:
    """Returns the remaining batches of a stage."""
    return batches(start + done).take(steps - done)


def _callbacks(
    others: Callable[[int, int], Callbacks], stage: int, start: int, total: int, done: int
) -> Callbacks:
    return [_RequireFullEpoch(start + done, total), *others(stage, start + done)]


class _RequireFullEpoch(keras.callbacks.Callback):
    """Raises an error if an epoch has fewer batches than steps.

    Args:
        done: the number of steps that are done.
        total: the number of steps of all stages.
    """

    def __init__(self, done: int, total: int):
        super().__init__()
        self.done = done
        self.total = total

    def on_epoch_begin(self, epoch, logs=None):
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps = batch + 1

    def on_epoch_end(self, epoch, logs=None):
        self.done += self.steps
        if self.steps < self.params["steps"] and not self.model.stop_training:
            raise ValueError(
                f"Expected at least {self.total} batches for the steps of all stages, got "
                f"{self.done}."
            )


def _check(backbone: Backbone, stages: Sequence[Stage], growth: str, moments: str) -> None:
    one_of("growth", growth, GROWTHS)
    one_of("moments", moments, MOMENTS)
    count = backbone.config.num_layers
    # A stage without a number of layers has the layers of the previous one.
    layers = list(accumulate((s.layers for s in stages), lambda a, b: b or a, initial=count))
    if not stages or any(b < a for a, b in pairwise(layers[1:])):
        raise ValueError(
            "stages must not be empty, none with fewer layers than the previous one, got "
            f"{layers[1:]}."
        )
    if layers[1] != count:
        raise ValueError(
            f"The backbone must have the {layers[1]} layers of the first stage, got {count}."
        )


def _schedule(stages: Sequence[Stage], settings: TrainConfig, total: int) -> Any:
    """Returns the learning rate as a function of the step of the whole run."""
    whole = optimizers.schedule_of(settings, total)
    starts = list(accumulate((stage.steps for stage in stages), initial=0))[:-1]

    def stage_schedule(stage: Stage, start: int) -> Any:
        if stage.learning_rate is None:
            return whole
        peak = replace(settings, learning_rate=stage.learning_rate, warmup=stage.warmup)
        return optimizers.OffsetSchedule(optimizers.schedule_of(peak, stage.steps), -start)

    return optimizers.PiecewiseSchedule(list(map(stage_schedule, stages, starts)), starts[1:])


def _grow(before: Backbone, num_layers: int | None, growth: str) -> Backbone:
    config = before.config
    count = config.num_layers
    one_of("growth", growth, GROWTHS)
    if num_layers is None:
        num_layers = 2 * count
    if not 0 < count < num_layers:
        raise ValueError(
            f"num_layers must be more than the {count} layers of this backbone, which must have at "
            f"least one, got {num_layers}."
        )
    blocks = blocks_of(before)
    if growth == "identity" and any(getattr(block, "norm", None) != "pre" for block in blocks):
        raise ValueError(
            "growth must be stack or interleave for blocks with norms after the residual sums "
            f"(post-norm), got 'identity' for {before.family}: another layer would normalize its "
            "input once more."
        )
    changed = {"num_layers": num_layers}
    heads = getattr(config, "heads_per_layer", ())
    if heads:
        changed["heads_per_layer"] = [heads[i] for i in _sources(count, num_layers, growth)]
    after = Backbone(
        before.family,
        {**config.to_dict(), **changed},
        parts=_shared_parts(before),
        dtype=before.dtype_policy,
        unpadded=before.parts.unpadded,
        name=before.name,
    )
    for to, source in _pairs(before, after, growth):
        if to is not source:
            to.assign(source)
    if growth == "identity":
        for block in blocks_of(after)[len(blocks) :]:
            for layer in (block.attention, block.feed_forward):
                for weight in layer.output_dense.weights:
                    weight.assign(ops.zeros_like(weight))
    return after


def _sources(before: int, after: int, growth: str) -> list[int]:
    """Returns the layer that each new layer is copied from."""
    if growth == "interleave":
        return [i * before // after for i in range(after)]
    return [i % before for i in range(after)]


def _layers(backbone: Backbone) -> list[list[keras.layers.Layer]]:
    """Returns the blocks of each layer."""
    blocks = blocks_of(backbone)
    per_layer = len(blocks) // backbone.config.num_layers
    return [blocks[i : i + per_layer] for i in range(0, len(blocks), per_layer)]


def _weights(layer: list[keras.layers.Layer]) -> dict[tuple[int, str], keras.Variable]:
    """Returns a layer's weights by the block and the path without the layer's number."""
    weights = {}
    for i, block in enumerate(layer):
        for weight in block.weights:
            name, *rest = weight.path.split("/")
            weights[i, "/".join([_NUMBERS.sub("", name), *rest])] = weight
    return weights


def _shared_parts(backbone: Backbone) -> dict[str, keras.layers.Layer]:
    """Returns the parts of a backbone that do not belong to exactly one layer."""
    inside = [
        {id(inner) for block in blocks for inner in block._flatten_layers()}
        for blocks in _layers(backbone)
    ]
    return {
        name: part
        for name, part in backbone.parts.items()
        if sum(id(part) in ids for ids in inside) != 1
    }


def _pairs(
    before: Backbone, after: Backbone, growth: str
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Returns pairs of each weight in the layers of ``after`` and the weight it is a copy of."""
    old, new = _layers(before), _layers(after)
    copies: dict[int, tuple[keras.Variable, keras.Variable]] = {}
    owners: Counter[int] = Counter()
    for layer, i in zip(new, _sources(len(old), len(new), growth), strict=True):
        to, source = _weights(layer), _weights(old[i])
        if source.keys() - to.keys():
            raise ValueError(
                f"The layers of this {before.family} backbone must have the weights that the "
                f"family builds, got {len(source)} of them in place of {len(to)}; updates of LoRA "
                "must be merged first."
            )
        pairs = [(to[name], weight) for name, weight in source.items()]
        for copy, original in pairs:
            if copy.shape != original.shape:
                raise ValueError(
                    f"The layers of this {before.family} backbone must have the same shapes, got "
                    f"{tuple(original.shape)} of {original.path} for {tuple(copy.shape)} of "
                    f"{copy.path}."
                )
        owners.update({id(weight) for weight in to.values()})
        for pair in pairs:
            if copies.setdefault(id(pair[0]), pair)[1] is not pair[1]:
                raise ValueError(
                    f"The layers of this {before.family} backbone must not share weights by "
                    f"groups, got {pair[0].path}, which is in layers that have different ones to "
                    "copy."
                )
    if not all(any(owners[id(w)] == 1 for block in layer for w in block.weights) for layer in new):
        raise ValueError(
            f"The layers of this {before.family} backbone must have weights of their own to copy, "
            "got layers that share them all; bertfam_tf.build(…, parts=backbone.parts) with "
            "another num_layers makes a deeper model of the same weights."
        )
    return list(copies.values())


def _copy_rest(before: keras.Model, after: keras.Model, paths: dict[str, str]) -> None:
    """Copies weights outside of the layers by path, unless both models share them."""
    sources = {weight.path: weight for weight in before.weights}
    for weight in after.weights:
        source = sources.get(weight.path)
        if source is not None and source is not weight and weight.path not in paths:
            weight.assign(source)

"""Progressive stacking: a shallow model is trained, then a deeper one made of copies of its layers.

Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf
from keras import ops

from bertfam_tf import optimizers
from bertfam_tf.config import Stage, TrainConfig
from bertfam_tf.learner import Learner
from bertfam_tf.models import Backbone
from bertfam_tf.tasks import Task
from bertfam_tf.train.backup import Backup
from bertfam_tf.tuning import blocks_of

GROWTHS = ("stack", "interleave", "identity")
MOMENTS = ("fresh", "copied")
Model = TypeVar("Model", Backbone, Task)


def grow(model: Model, num_layers: int | None = None, growth: str = "stack") -> Model:
    """A deeper model, whose layers are copies of the layers of a trained one.

    With L layers in ``model``, layer i of the new one is a copy of

    * ``"stack"``: layer i mod L, so that the whole stack is repeated (Gong et al. 2019);
    * ``"interleave"``: layer ⌊i · L / num_layers⌋, so that each layer is repeated, with twice the
      layers as 2i and 2i + 1;
    * ``"identity"``: as ``"stack"``, but the output projections of attention and feed-forward are
      zero in the new layers, which therefore pass on their input: the new model has the outputs of
      ``model``, and its gradients (arXiv 2203.06211). Only where norms precede attention and
      feed-forward (pre-norm): norms after the residual sums would normalise once more.

    The other layers, such as embeddings and poolers, are the same objects in both models, so heads
    that were built on ``model`` work on the new one. Blocks are new, and all of their weights are
    trainable. A task gets a new head with the weights of the old one.

    Args:
        model: a backbone, or a task.
        num_layers: number of layers; None for twice those of ``model``.
        growth: one of ``GROWTHS``.

    Raises:
        ValueError: for an unknown growth, a ``num_layers`` that is not larger than the model's, and
            for a model that cannot grow: one whose layers share all of their weights (ALBERT's) or
            share them by groups of layers, has other layers than its family has (such as LoRA's),
            or for ``"identity"`` is not pre-norm.
    """
    if isinstance(model, Backbone):
        return _grow(model, num_layers, growth)
    task = type(model)(
        _grow(model.backbone, num_layers, growth), model.tokenizer, **model.options.stored()
    )
    _copy_rest(model, task, copied_paths(model.backbone, task.backbone, growth))
    return task


def copied_paths(before: Backbone, after: Backbone, growth: str = "stack") -> dict[str, str]:
    """For each weight in the layers of a grown backbone, the weight it was copied from.

    Args:
        before: the backbone that was grown.
        after: what ``grow`` returned.
        growth: as for ``grow``.

    Returns:
        paths in ``after`` to paths in ``before``.

    Raises:
        ValueError: as ``grow`` raises it.
    """
    return {to.path: source.path for to, source in _pairs(before, after, growth)}


def copy_moments(before: keras.Model, after: keras.Model, paths: dict[str, str]) -> None:
    """Copies an optimizer's moments and its number of steps by variable path.

    Weights without a counterpart keep their moments, zero in a new optimizer.

    Args:
        before, after: models that are compiled with the optimizers of this package.
        paths: from ``copied_paths``; other weights have the same path in both models.

    Raises:
        ValueError: for weights of one model with the same path.
    """
    after.optimizer.build(after.trainable_variables)
    sources = _inner(before.optimizer).moments
    for path, moments in _inner(after.optimizer).moments.items():
        for moment, source in zip(moments, sources.get(paths.get(path, path), ()), strict=False):
            moment.assign(source)
    after.optimizer.iterations.assign(before.optimizer.iterations)


def _inner(optimizer: Any) -> Any:
    """The optimizer within Keras' loss scaling, which ``mixed_float16`` adds."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class Trained(NamedTuple):
    """What ``train_in_stages`` returns.

    Fields:
        backbone: of the last stage.
        learner: the compiled model of the last stage.
        history: for each stage that was trained in this call its logs and its ``stage``, from 0.
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
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **fit: Any,
) -> Trained:
    """Trains a backbone, which grows between stages.

    Each stage is one epoch of Keras' ``fit``, whose batches begin where those of the previous stage
    ended. With a ``directory`` a run that was killed resumes from its last training checkpoint when
    it is called again with the same arguments, and ends as if it had not been killed; for that,
    ``backbone`` needs the same weights only if no checkpoint was written.

    Args:
        backbone: that of the first stage, with ``stages[0].layers`` layers. It shares its
            embeddings with the grown ones.
        stages: layers and steps; each is deeper than the previous one. In "Efficient Training of
            BERT by Progressively Stacking" they are ``Stage(3, 50_000)``, ``Stage(6, 20_000)`` and
            ``Stage(12, 330_000)``.
        learner: makes the model to train from a backbone, for example ``lambda backbone:
            Learner(backbone.input, backbone(backbone.input), [objective])``. If it makes new heads,
            their weights are copied by path.
        batches: the batches of all stages, the same whenever it is iterated; or a function that
            returns them from a step on, which is faster than to skip them.
        settings: learning rate, optimizer and seed; ``backup_steps`` with a directory. The peak and
            warm-up are those of one line over the steps of all stages, for stages without a
            ``learning_rate`` of their own. None for the defaults.
        growth: as for ``grow``.
        moments: ``"fresh"`` for an optimizer that starts anew in each stage (as in the paper's
            experiments), or ``"copied"`` for one that goes on: new layers get the moments of the
            layers that they are copied from. In the paper's code these lose their number of steps,
            which makes the next steps several times as large; here they keep it.
        directory: of training checkpoints; None for none.
        callbacks, **fit: as for Keras' ``fit``. The number of the stage is that of its epoch.

    Raises:
        ValueError: for invalid stages, a backbone that is not the first stage's or that cannot
            grow, too few batches, or training checkpoints of another run.
    """
    settings = settings or TrainConfig()
    total = sum(stage.steps for stage in stages)
    _check(backbone, stages, growth, moments)
    if isinstance(batches, tf.data.Dataset):
        count = int(batches.cardinality())
        if 0 <= count < total:
            raise ValueError(
                f"batches must be at least as many as the {total} steps of all stages, got "
                f"{count}; Dataset.repeat() makes more."
            )
    after = batches.skip if isinstance(batches, tf.data.Dataset) else batches
    line = optimizers.WarmupLinearDecay(
        settings.learning_rate, round(settings.warmup * total), total
    )
    backups: list[Backup | None] = [None] * len(stages)
    if directory is not None:
        path = Path(directory)
        backups = [Backup(path / f"stage_{i}", settings.backup_steps) for i in range(len(stages))]
    first = max((i for i, backup in enumerate(backups) if backup and backup.exists), default=0)
    history: list[dict[str, float]] = []
    model, start = None, 0
    for i, (stage, backup) in enumerate(zip(stages, backups, strict=True)):
        previous, paths = model, {}
        if i:
            # So that the growth of a resumed run is that of an uninterrupted one.
            keras.utils.set_random_seed(settings.seed + i)
            grown = grow(backbone, stage.layers, growth)
            paths, backbone = copied_paths(backbone, grown, growth), grown
        if i >= first:
            begun = start if moments == "copied" else 0
            model = learner(backbone)
            schedule = _schedule(stage, line, start, begun)
            model.compile(optimizers.of(settings, total, schedule=schedule))
            if previous is not None:
                _copy_rest(previous, model, paths)
                if moments == "copied":
                    copy_moments(previous, model, paths)
            done = backup.restore(model) - begun if backup and backup.exists else 0
            if not 0 <= done <= stage.steps:
                raise ValueError(
                    f"{directory} must contain the checkpoints of a run with these stages, got one "
                    f"of step {done} of {stage.steps}; remove it to train from the beginning."
                )
            if done < stage.steps:
                steps, counter = stage.steps - done, _Counter()
                logs = model.fit(
                    after(start + done).take(steps),
                    initial_epoch=i,
                    epochs=i + 1,
                    steps_per_epoch=steps,
                    # The checkpoint comes last: a stage is done when other callbacks have seen it.
                    callbacks=[counter, *callbacks, *([backup] if backup else [])],
                    **{"shuffle": False, **fit},
                ).history
                if counter.steps < steps and not model.stop_training:
                    raise ValueError(
                        f"batches must be at least as many as the {total} steps of all stages, got "
                        f"{start + done + counter.steps}."
                    )
                history.append({"stage": i, **{name: values[-1] for name, values in logs.items()}})
            if i and (last := backups[i - 1]):
                last.clear()
        start += stage.steps
    assert model is not None
    return Trained(backbone, model, history)


class _Counter(keras.callbacks.Callback):
    """Counts steps: loss scaling leaves some out of the optimizer's number."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps = batch + 1


def _check(backbone: Backbone, stages: Sequence[Stage], growth: str, moments: str) -> None:
    if growth not in GROWTHS:
        raise ValueError(f"growth must be one of {', '.join(GROWTHS)}, got {growth!r}.")
    if moments not in MOMENTS:
        raise ValueError(f"moments must be one of {', '.join(MOMENTS)}, got {moments!r}.")
    layers = [stage.layers for stage in stages]
    if not layers or any(b <= a for a, b in pairwise(layers)):
        raise ValueError(
            "stages must be at least one, each with more layers than the previous one, got "
            f"{layers}."
        )
    if backbone.config.num_layers != layers[0]:
        raise ValueError(
            f"The backbone must have the {layers[0]} layers of the first stage, got "
            f"{backbone.config.num_layers}."
        )


def _schedule(stage: Stage, line: Any, start: int, begun: int) -> Any:
    """The learning rate of a stage that begins at a step, by the optimizer's step, ``begun``."""
    if stage.learning_rate is None:
        return optimizers.Shifted(line, start - begun)
    rise = round(stage.warmup * stage.steps)
    own = optimizers.WarmupLinearDecay(stage.learning_rate, rise, stage.steps)
    return optimizers.Shifted(own, -begun)


def _grow(before: Backbone, num_layers: int | None, growth: str) -> Backbone:
    config = before.config
    count = config.num_layers
    if growth not in GROWTHS:
        raise ValueError(f"growth must be one of {', '.join(GROWTHS)}, got {growth!r}.")
    if num_layers is None:
        num_layers = 2 * count
    if not 0 < count < num_layers:
        raise ValueError(
            f"num_layers must be more than the {count} of this backbone, of which there must be at "
            f"least one, got {num_layers}."
        )
    blocks = blocks_of(before)
    if growth == "identity" and any(getattr(block, "norm", None) != "pre" for block in blocks):
        raise ValueError(
            "growth must be stack or interleave for blocks with norms after the residual sums "
            f"(post-norm), got 'identity' for {before.family}: another layer would normalise its "
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
            for part in (block.attention, block.feed_forward):
                for weight in part.output_dense.weights:
                    weight.assign(ops.zeros_like(weight))
    return after


def _sources(before: int, after: int, growth: str) -> list[int]:
    """For each layer, the one that it is copied from."""
    if growth == "interleave":
        return [i * before // after for i in range(after)]
    return [i % before for i in range(after)]


def _layers(backbone: Backbone) -> list[list[keras.layers.Layer]]:
    """The blocks of each layer."""
    blocks = blocks_of(backbone)
    per_layer = len(blocks) // backbone.config.num_layers
    return [blocks[i : i + per_layer] for i in range(0, len(blocks), per_layer)]


def _shared_parts(backbone: Backbone) -> dict[str, keras.layers.Layer]:
    """The parts that are not in one of the layers alone."""
    inside = [
        {id(each) for block in layer for each in block._flatten_layers()}
        for layer in _layers(backbone)
    ]
    return {
        name: part
        for name, part in backbone.parts.items()
        if sum(id(part) in each for each in inside) != 1
    }


def _pairs(
    before: Backbone, after: Backbone, growth: str
) -> list[tuple[keras.Variable, keras.Variable]]:
    """The weights in the layers of ``after``, each with the one that it is a copy of."""
    old, new = _layers(before), _layers(after)
    found: dict[int, tuple[keras.Variable, keras.Variable]] = {}
    owners: Counter[int] = Counter()
    for layer, i in zip(new, _sources(len(old), len(new), growth), strict=True):
        to = [weight for block in layer for weight in block.weights]
        source = [weight for block in old[i] for weight in block.weights]
        if [(w.name, tuple(w.shape)) for w in to] != [(w.name, tuple(w.shape)) for w in source]:
            raise ValueError(
                f"The layers of this {before.family} backbone must have the weights that the "
                f"family builds, got {len(source)} of them in place of {len(to)}; updates of LoRA "
                "must be merged first."
            )
        owners.update({id(weight) for weight in to})
        for pair in zip(to, source, strict=True):
            if found.setdefault(id(pair[0]), pair)[1] is not pair[1]:
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
    return list(found.values())


def _copy_rest(before: keras.Model, after: keras.Model, paths: dict[str, str]) -> None:
    """Copies weights that are not in the layers, and not the same objects, by path."""
    sources = {weight.path: weight for weight in before.weights}
    for weight in after.weights:
        source = sources.get(weight.path)
        if source is not None and source is not weight and weight.path not in paths:
            weight.assign(source)

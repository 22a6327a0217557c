"""Which heads and hidden units a task needs: switched off one by one, or by their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import layers
from bertfam_tf.layers.attention import Attention
from bertfam_tf.layouts import splits
from bertfam_tf.learner import Batch
from bertfam_tf.models import Backbone
from bertfam_tf.tasks import Task
from bertfam_tf.tuning import blocks_of


class Ablation(NamedTuple):
    """What the score is without heads.

    Fields:
        score: of the whole model.
        heads: of each layer float (heads,): the score without that head, less ``score``.
        layers: float (layers,): the same without all heads of a layer.
    """

    score: float
    heads: list[np.ndarray]
    layers: np.ndarray


class Importance(NamedTuple):
    """What the loss depends on.

    Fields:
        heads: of each layer float (heads,): the mean over examples of the absolute gradient of the
            loss with respect to a factor on the head's output.
        units: of each layer float (units,), the same of the feed-forward's hidden units.
    """

    heads: list[np.ndarray]
    units: list[np.ndarray]


def attentions(backbone: Backbone) -> list[Attention]:
    """The attention of each block; blocks that share one have it once.

    Raises:
        ValueError: for a backbone without attention.
    """
    found = [
        layer
        for block in blocks_of(backbone)
        for layer in block._flatten_layers()
        if isinstance(layer, Attention)
    ]
    if not found:
        raise ValueError(f"The {backbone.family} backbone has no attention.")
    return found


def feed_forwards(backbone: Backbone) -> list[layers.FeedForward]:
    """The feed-forward layers of all blocks."""
    return [
        layer
        for block in blocks_of(backbone)
        for layer in block._flatten_layers()
        if isinstance(layer, layers.FeedForward)
    ]


def _outputs_of_parts(layer: keras.layers.Layer) -> tuple[keras.Variable, int, int]:
    """The kernel that adds up heads or units, the axis of them and their number."""
    dense = layer.output_dense
    kernel = dense._kernel if isinstance(dense, keras.layers.Dense) else dense.kernel
    [found] = [each for each in splits(layer) if each[0] is kernel]
    return found


@contextlib.contextmanager
def without_heads(backbone: Backbone, heads: Mapping[int, Iterable[int]]) -> Iterator[None]:
    """A context in which heads of a backbone give nothing.

    The rows of the output kernel that belong to a head are 0, as its output times 0 would be (a
    gate on the head, Michel et al. 2019, arXiv 1905.10650), in every graph that reads the weights,
    and no model is built or traced again.

    Args:
        backbone: the backbone, of a task or alone.
        heads: indices of heads by index of the layer, from 0.

    Raises:
        ValueError: for a layer or head that is not there.
    """
    found = attentions(backbone)
    before = []
    for index, chosen in heads.items():
        if not 0 <= index < len(found):
            raise ValueError(f"Layers are from 0 to {len(found) - 1}, got {index}.")
        variable, axis, parts = _outputs_of_parts(found[index])
        chosen = list(chosen)
        wrong = [head for head in chosen if not 0 <= head < parts]
        if wrong:
            raise ValueError(f"Heads of layer {index} are from 0 to {parts - 1}, got {wrong[0]}.")
        before.append((variable, variable.numpy()))
        values = np.moveaxis(before[-1][1].copy(), axis, 0)
        by_head = values.reshape(parts, -1, *values.shape[1:])
        by_head[chosen] = 0
        variable.assign(np.moveaxis(by_head.reshape(values.shape), 0, axis))
    try:
        yield
    finally:
        for variable, values in reversed(before):
            variable.assign(values)


def ablation(backbone: Backbone, score: Callable[[], float], *, verbose: bool = True) -> Ablation:
    """Scores a model without each head, and without all heads of each layer.

    Kovaleva et al. 2019 (arXiv 1908.08593, section 4.4): without some heads, models score better.

    Args:
        backbone: the backbone that the score depends on.
        score: computes the score, such as ``lambda: task.evaluate(x, y, return_dict=True,
            verbose=0)["accuracy"]``.
        verbose: whether to show a progress bar.
    """
    counts = [each.num_heads for each in attentions(backbone)]
    base = score()
    switched = [{i: [head]} for i, count in enumerate(counts) for head in range(count)]
    switched += [{i: list(range(count))} for i, count in enumerate(counts)]
    changes = []
    progress = keras.utils.Progbar(len(switched), verbose=int(verbose), unit_name="model")
    for heads in switched:
        with without_heads(backbone, heads):
            changes.append(score() - base)
        progress.add(1)
    single, whole = np.array(changes[: sum(counts)]), np.array(changes[sum(counts) :])
    return Ablation(base, np.split(single, np.cumsum(counts)[:-1]), whole)


def pair_ablation(
    backbone: Backbone,
    score: Callable[[], float],
    heads: Sequence[tuple[int, int]] | None = None,
    *,
    verbose: bool = True,
) -> np.ndarray:
    """Scores a model without each pair of heads.

    Args:
        backbone, score, verbose: as of ``ablation``.
        heads: pairs are made of these, each as (layer, head); None for all, whose pairs are many:
            2,556 of 72 heads.

    Returns:
        float64 (heads, heads), symmetric: the score without both, less that of the whole model; on
        the diagonal that without one head.

    Raises:
        ValueError: for a layer or head that is not there.
    """
    if heads is None:
        heads = [
            (i, head)
            for i, each in enumerate(attentions(backbone))
            for head in range(each.num_heads)
        ]
    changes = np.zeros((len(heads),) * 2)
    base = score()
    progress = keras.utils.Progbar(
        len(heads) * (len(heads) + 1) // 2, verbose=int(verbose), unit_name="model"
    )
    for i, first in enumerate(heads):
        for j, second in enumerate(heads[: i + 1]):
            switched: dict[int, list[int]] = {}
            for layer, head in {first, second}:
                switched.setdefault(layer, []).append(head)
            with without_heads(backbone, switched):
                changes[i, j] = changes[j, i] = score() - base
            progress.add(1)
    return changes


def importance(
    task: Task, x: Any, y: Any = None, *, examples: int | None = None, verbose: bool = True
) -> Importance:
    """How much the loss of each example depends on each head and each hidden unit.

    The gradient of the loss with respect to a factor on a head's output, at 1, is the product of
    the head's part of the output kernel with that part's gradient; its absolute value is averaged
    over examples (Michel et al. 2019, arXiv 1905.10650, equation 2).

    Args:
        task: a task with a loss.
        x, y: labelled examples, as ``fit`` takes them.
        examples: the number that is read; None for all.
        verbose: whether to show a progress bar.
    """
    parts = [*attentions(task.backbone), *feed_forwards(task.backbone)]
    outputs = [_outputs_of_parts(each) for each in parts]
    kernels = [variable for variable, *_ in outputs]
    batches = task.training_batches(x, y, batch_size=1)
    batches = batches if examples is None else batches.take(examples)

    @tf.function(input_signature=[batches.element_spec], autograph=False)
    def products(batch: Any) -> list[tf.Tensor]:
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for kernel in kernels:
                tape.watch(kernel.value)
            answers = task(inputs, training=False)
            losses = [
                total / tf.cast(count, total.dtype)
                for objective in task.objectives
                for total, count in objective.loss(
                    answers, objective.heads, Batch(inputs, targets, weights)
                ).values()
            ]
        gradients = tape.gradient(tf.add_n(losses), [kernel.value for kernel in kernels])
        found = []
        for gradient, (kernel, axis, count) in zip(gradients, outputs, strict=True):
            product = tf.zeros_like(kernel.value) if gradient is None else gradient * kernel.value
            others = [i for i in range(len(product.shape)) if i != axis]
            by_row = tf.reduce_sum(product, axis=others)
            found.append(tf.abs(tf.reduce_sum(tf.reshape(by_row, [count, -1]), axis=1)))
        return found

    sums: list[np.ndarray] | None = None
    number = 0
    progress = keras.utils.Progbar(None, verbose=int(verbose), unit_name="example")
    for batch in batches:
        values = [each.numpy().astype("float64") for each in products(batch)]
        sums = values if sums is None else [a + b for a, b in zip(sums, values, strict=True)]
        number += 1
        progress.add(1)
    assert sums is not None
    means = [each / number for each in sums]
    count = len(attentions(task.backbone))
    return Importance(means[:count], means[count:])

"""Importance of heads and hidden units, by switching them off or by their gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import layers
from bertfam_tf.data import inputs
from bertfam_tf.layers.attention import Attention
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.objectives.objective import Batch
from bertfam_tf.tasks import Task
from bertfam_tf.training.layouts import splits
from bertfam_tf.training.tuning import blocks_of

Mode = Literal["zero", "uniform"]
_MODES = get_args(Mode)


class Ablation(NamedTuple):
    """Scores of a model without some of its heads.

    Fields:
        score: the score of the whole model.
        heads: float (heads,) for each layer: the score without that head, minus ``score``. Layers
            that share an attention, as ALBERT's do, are one.
        layers: float (layers,): the same without all heads of a layer.
    """

    score: float
    heads: list[np.ndarray]
    layers: np.ndarray


class Importance(NamedTuple):
    """Importance of heads and hidden units for the loss.

    Fields:
        heads: float (heads,) for each layer: the mean over examples of the absolute gradient of the
            loss with respect to a factor on the head's output.
        units: float (units,) for each layer: the same for the feed-forward's hidden units.
    """

    heads: list[np.ndarray]
    units: list[np.ndarray]


def attentions(backbone: Backbone) -> list[Attention]:
    """Returns the attention of each block; one that several blocks share is listed once.

    Raises:
        ValueError: if the backbone has no attention.
    """
    layers = _in_blocks(backbone, Attention)
    if not layers:
        raise ValueError(f"The {backbone.family} backbone has no attention.")
    return layers


def feed_forwards(backbone: Backbone) -> list[layers.FeedForward]:
    """Returns the feed-forward layers of all blocks; a shared one is listed once."""
    return _in_blocks(backbone, layers.FeedForward)


def _in_blocks(backbone: Backbone, kind: type) -> list[Any]:
    inside = (layer for block in blocks_of(backbone) for layer in block._flatten_layers())
    return list(dict.fromkeys(layer for layer in inside if isinstance(layer, kind)))


def _outputs_of_parts(layer: keras.layers.Layer) -> tuple[keras.Variable, int, int]:
    """Returns the kernel that adds up heads or units, the axis of them and their number."""
    dense = layer.output_dense
    kernel = dense._kernel if isinstance(dense, keras.layers.Dense) else dense.kernel
    [split] = [candidate for candidate in splits(layer) if candidate[0] is kernel]
    return split


def _kernels_by_head(layer: Attention) -> list[keras.Variable]:
    """Returns the weights with rows by head: the output kernel, and LoRA's first factor."""
    dense = layer.output_dense
    kernel, *_ = _outputs_of_parts(layer)
    return [kernel, dense.lora_kernel_a] if getattr(dense, "lora_enabled", False) else [kernel]


Heads = Mapping[int, Iterable[int]]
# Maps indices of heads by layer to a context in which these are off.
_Off = Callable[[Heads], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def without_heads(
    model: Task | Backbone, heads: Heads, *, mode: Mode | str = "zero"
) -> Iterator[None]:
    """Returns a context in which heads of a model are off.

    Args:
        model: a task, or a backbone.
        heads: the indices of heads by index of the layer, from 0.
        mode: the output of a head that is off. ``"zero"``: nothing, as with a mask of 0 on it
            (Michel et al. 2019, arXiv 1905.10650), which has the same effect as ``prune``. Every
            graph that reads the weights is without the heads; none is traced again. ``"uniform"``:
            the mean of the values that a query may attend to, each with the probability 1 / L,
            whatever their scores (Kovaleva et al. 2019, arXiv 1908.08593, "Disabling self-attention
            heads"). The graphs of ``model`` are traced again, inside the context and after it, and
            its output ``attention_probabilities`` stays as without this context.

    Raises:
        ValueError: if a layer or head does not exist, the mode is unknown, or nothing that ran
            inside with ``"uniform"`` had switches: a graph that was traced before, such as a task's
            where ``model`` is only its backbone.
    """
    with _switches(model, mode) as off, off(heads):
        yield


@contextlib.contextmanager
def _switches(model: Task | Backbone, mode: Mode | str) -> Iterator[_Off]:
    """Returns a context with a function that switches heads off without tracing a graph again."""
    if mode not in _MODES:
        raise ValueError(unknown("mode", mode, _MODES))
    layers = attentions(_backbone(model))
    if mode == "zero":
        yield functools.partial(_zero_heads, layers)
        return
    switches = [_Switch(layer) for layer in layers]
    with contextlib.ExitStack() as stack:
        stack.callback(_trace_again, model)
        for switch in switches:
            stack.enter_context(switch)
        _trace_again(model)
        yield functools.partial(_uniform_heads, switches)


def _trace_again(model: Task | Backbone) -> None:
    if isinstance(model, Task):
        model.forget_graphs()
    # A new function, not a running training step's: its callbacks may score heads.
    model.test_function = model.predict_function = None


def checked_heads(heads: Heads, counts: Sequence[int]) -> dict[int, list[int]]:
    """Returns heads by layer as lists; raises ValueError for one that does not exist.

    Args:
        heads: the indices of heads by index of the layer.
        counts: the number of heads of each layer.
    """
    chosen = {index: list(heads_of_layer) for index, heads_of_layer in heads.items()}
    for index, heads_of_layer in chosen.items():
        if not 0 <= index < len(counts):
            raise ValueError(f"Layers are from 0 to {len(counts) - 1}, got {index}.")
        wrong = [head for head in heads_of_layer if not 0 <= head < counts[index]]
        if wrong:
            last = counts[index] - 1
            raise ValueError(f"Heads of layer {index} are from 0 to {last}, got {wrong[0]}.")
    return chosen


@contextlib.contextmanager
def _zero_heads(layers: Sequence[Attention], heads: Heads) -> Iterator[None]:
    before = []
    for index, chosen in checked_heads(heads, [x.num_heads for x in layers]).items():
        # The rows of the output kernel that belong to a head are 0, as its output times 0 would be.
        _, axis, parts = _outputs_of_parts(layers[index])
        for variable in _kernels_by_head(layers[index]):
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


class _Switch:
    """A context in which an attention layer has a switch for each head: 0 makes it uniform.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: Attention):
        self.layer = layer
        self.on = tf.Variable(tf.ones([layer.num_heads]), trainable=False)
        self.is_read = False

    def __enter__(self) -> _Switch:
        self._replaced = self.layer.__dict__.get("_context")
        attend = self.layer._context

        def context(scores: Any, value: Any, attention_mask: Any, training: Any) -> Any:
            self.is_read = True
            on = self.on[:, tf.newaxis, tf.newaxis] > 0
            # Equal scores before the mask: equal probabilities of all that it leaves.
            scores = tf.where(on, scores, tf.zeros_like(scores))
            return attend(scores, value, attention_mask, training)

        self.layer.__dict__["_context"] = context
        return self

    def __exit__(self, *error: Any) -> None:
        del self.layer.__dict__["_context"]
        if self._replaced is not None:
            self.layer.__dict__["_context"] = self._replaced


@contextlib.contextmanager
def _uniform_heads(switches: Sequence[_Switch], heads: Heads) -> Iterator[None]:
    chosen = checked_heads(heads, [switch.layer.num_heads for switch in switches])
    before = {index: switches[index].on.numpy() for index in chosen}
    for index, off in chosen.items():
        on = before[index].copy()
        on[off] = 0
        switches[index].on.assign(on)
    try:
        yield
        if chosen and not any(switches[index].is_read for index in chosen):
            raise ValueError(
                "The heads had no effect: what was computed was traced before they were switched "
                'off. With mode="uniform", pass the task in place of its backbone, and call no '
                "tf.function of your own that was called before."
            )
    finally:
        for index, on in before.items():
            switches[index].on.assign(on)


def ablation(
    model: Task | Backbone,
    score: Callable[[], float],
    *,
    mode: Mode | str = "zero",
    verbose: bool = True,
) -> Ablation:
    """Computes a model's score without each head, and without all heads of each layer.

    With ``mode="zero"`` as Michel et al. 2019 (arXiv 1905.10650) do it; with ``"uniform"`` as
    Kovaleva et al. 2019 (arXiv 1908.08593), who found models that score better without some heads.

    Args:
        model: the task, or the backbone, that the score depends on.
        score: computes the score, such as ``lambda: task.evaluate(x, y, return_dict=True,
            verbose=0)["accuracy"]``.
        mode: the same as for ``without_heads``.
        verbose: whether to show a progress bar.

    Raises:
        ValueError: as ``without_heads`` raises it.
    """
    counts = [layer.num_heads for layer in attentions(_backbone(model))]
    switched = [{i: [head]} for i, count in enumerate(counts) for head in range(count)]
    switched += [{i: list(range(count))} for i, count in enumerate(counts)]
    changes = []
    progress = keras.utils.Progbar(len(switched), verbose=int(verbose), unit_name="model")
    with _switches(model, mode) as off:
        base = score()
        for heads in switched:
            with off(heads):
                changes.append(score() - base)
            progress.add(1)
    single, whole = np.array(changes[: sum(counts)]), np.array(changes[sum(counts) :])
    return Ablation(base, np.split(single, np.cumsum(counts)[:-1]), whole)


def pair_ablation(
    model: Task | Backbone,
    score: Callable[[], float],
    heads: Sequence[tuple[int, int]] | None = None,
    *,
    mode: Mode | str = "zero",
    verbose: bool = True,
) -> np.ndarray:
    """Computes a model's score without each pair of heads.

    Args:
        model, score, mode, verbose: the same as for ``ablation``.
        heads: the heads to pair, each as (layer, head); None for all. 72 heads have 2,556 pairs.

    Returns:
        float64 (heads, heads), symmetric: the score without both, minus the score of the whole
        model; on the diagonal, the same without one head.

    Raises:
        ValueError: as ``without_heads`` raises it.
    """
    if heads is None:
        heads = [
            (i, head)
            for i, layer in enumerate(attentions(_backbone(model)))
            for head in range(layer.num_heads)
        ]
    changes = np.zeros((len(heads),) * 2)
    progress = keras.utils.Progbar(
        len(heads) * (len(heads) + 1) // 2, verbose=int(verbose), unit_name="model"
    )
    with _switches(model, mode) as off:
        base = score()
        for i, first in enumerate(heads):
            for j, second in enumerate(heads[: i + 1]):
                switched: dict[int, list[int]] = {}
                for layer, head in {first, second}:
                    switched.setdefault(layer, []).append(head)
                with off(switched):
                    changes[i, j] = changes[j, i] = score() - base
                progress.add(1)
    return changes


def _backbone(model: Task | Backbone) -> Backbone:
    return model if isinstance(model, Backbone) else model.backbone


def importance(
    task: Task, x: Any, y: Any = None, *, examples: int | None = None, verbose: bool = True
) -> Importance:
    """Computes how much the loss of each example depends on each head and each hidden unit.

    The gradient of the loss with respect to a factor on a head's output, at 1, is the product of
    the head's part of the output kernel with that part's gradient; its absolute value is averaged
    over examples (Michel et al. 2019, arXiv 1905.10650, equation 2).

    Args:
        task: a task with a loss.
        x, y: labelled examples, as ``fit`` takes them.
        examples: the number of examples to read; None for all.
        verbose: whether to show a progress bar.
    """
    parts: list[Any] = [*attentions(task.backbone), *feed_forwards(task.backbone)]
    outputs = [_outputs_of_parts(part) for part in parts]
    kernels = [variable for variable, *_ in outputs]
    x, y, _ = inputs.examples(x, y, None, task.fields, task.components.targets.prepared)
    if isinstance(x, tf.data.Dataset):
        # One that is batched would keep its batches, whose gradients are sums over examples.
        x = inputs.batches(x, batch_size=1, fields=task.fields).unbatch()
    batches = task.text_batches(x, y, batch_size=1)
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
        sums = []
        for part, gradient, (_, axis, count) in zip(parts, gradients, outputs, strict=True):
            # With LoRA's updates merged; their gradient is the kernel's gradient too.
            kernel = tf.convert_to_tensor(part.output_dense.kernel)
            product = tf.zeros_like(kernel) if gradient is None else gradient * kernel
            others = [i for i in range(len(product.shape)) if i != axis]
            by_row = tf.reduce_sum(product, axis=others)
            sums.append(tf.abs(tf.reduce_sum(tf.reshape(by_row, [count, -1]), axis=1)))
        return sums

    sums: list[np.ndarray] | None = None
    number = 0
    progress = keras.utils.Progbar(None, verbose=int(verbose), unit_name="example")
    for batch in batches:
        values = [product.numpy().astype("float64") for product in products(batch)]
        sums = values if sums is None else [a + b for a, b in zip(sums, values, strict=True)]
        number += 1
        progress.add(1)
    assert sums is not None
    means = [total / number for total in sums]
    count = len(attentions(task.backbone))
    return Importance(means[:count], means[count:])

"""Plans a run: parameters, FLOPs, memory, communication, hours and cost.

The planner traces the training step of a recipe into a graph with static shapes and reads its
operations, so the same code plans all families. It allocates no weights and trains nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from bertfam_tf.plan.layout import GIB, Devices, Plan, StagePlan
from bertfam_tf.plan.memory import peak_memory
from bertfam_tf.plan.stages import StageSpec, stage_specs
from bertfam_tf.plan.trace import Step, trace
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe, Recipe
from bertfam_tf.validation import in_range

_log = logging.getLogger(__name__)
# Keras keeps weights, moments and the sums of accumulated gradients in float32.
_BYTES = 4
_MOMENTS = 2


def read(file: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> PretrainRecipe | Recipe:
    """Reads a recipe of pretraining or fine-tuning.

    Args:
        file: the recipe's YAML file.
        overrides: ``section.field=value`` for fields that differ from the file.

    Raises:
        ValueError: as for ``recipes.load_recipe``.
    """
    return load_recipe(file, overrides, PretrainRecipe | Recipe)


def plan(recipe: PretrainRecipe | Recipe, devices: Devices, steps: int | None = None) -> Plan:
    """Estimates a run of a recipe.

    * FLOPs: the FLOPs of matrix products, ``2 · m · k · n`` each, forward and backward. They are
      close to 6 for each weight and token (arXiv 2001.08361, section 2.1), and attention's products
      of queries, keys and values. Logits over the vocabulary are only computed at predicted tokens.
      An adaptive softmax computes each cluster's logits at the cluster's own tokens only, whose
      number is estimated by Zipf's law: a token's frequency is in proportion to 1 / rank.
    * Memory: weights and two moments in float32, and the step's other tensors at the operation with
      the most live bytes. A tensor lives from the operation that computes it to the last one that
      reads it. For a BERT block these are the tensors of arXiv 2205.05198, section 4.1, and more
      that TensorFlow's gradients read, because its operations are smaller. Examples have full
      length, one row of tokens each (or one for each choice), and padding is computed. The memory
      of libraries and the allocator's fragmentation are not included.
    * Gradient checkpointing: tensors within a block are freed after it, and live again from the
      first operation of its gradient.
    * Tensor parallelism: weights, tensors and products within attention and feed-forward are
      divided, and so are the token embedding and the logits. All others are copied.
    * Communication: an all-reduce of b bytes over n devices sends ``2 (n - 1) / n · b`` from each
      (ring; arXiv 1909.08053). A step has one for the gradients, in float32, and for each
      micro-batch one for each output of attention and feed-forward, forward and backward.

    Args:
        recipe: a recipe of pretraining or fine-tuning.
        devices: the devices.
        steps: the number of steps, for recipes without one; None for the recipe's, which in
            fine-tuning follows from the number of rows in the files.

    Raises:
        ValueError: if the recipe has no number of steps; the model has loops (recurrent networks);
            the task's head is over the vocabulary; or the devices cannot divide the batch, heads or
            widths.
    """
    if steps is not None:
        in_range("steps", steps, at_least=1, integer=True)
    specs = [
        (spec, cache(partial(trace, spec.network, devices.dtype)))
        for spec in stage_specs(recipe, steps)
    ]
    stages = tuple(
        _stage_plan(spec, devices, _device_batch(spec, devices), traced) for spec, traced in specs
    )
    planned = Plan(devices, stages)
    if planned.fits:
        return planned
    largest = max(range(len(specs)), key=lambda i: stages[i].memory)
    return dataclasses.replace(planned, advice=tuple(_advice(*specs[largest], devices)))


def flops_per_token(
    recipe: PretrainRecipe | Recipe, length: int | None = None, stage: int = 0
) -> float | None:
    """Returns the training FLOPs per token, counted as by ``plan``, without recomputation.

    Args:
        recipe: a recipe of pretraining or fine-tuning.
        length: the tokens of an example in fine-tuning; None for the recipe's.
        stage: the index of a stage of pretraining.

    Returns:
        The FLOPs, or None for a model or task that cannot be planned.
    """
    if isinstance(recipe, Recipe):
        model = dataclasses.replace(recipe.model, max_length=length or recipe.model.max_length)
        train = dataclasses.replace(recipe.train, batch_size=1, batch_tokens=None)
        recipe = dataclasses.replace(recipe, model=model, train=train)
    steps = None if isinstance(recipe, PretrainRecipe) and recipe.stages else 1
    try:
        spec = list(stage_specs(recipe, steps))[stage]
        step = trace(spec.network, "float32", 1)
    except Exception as error:  # a number in the log must not end a training
        _log.info("FLOPs are not counted: %s", error)
        return None
    return sum(op.flops for op in step.ops) / (spec.rows * spec.length)


def _device_batch(spec: StageSpec, devices: Devices) -> int:
    parts = devices.replicas * devices.accumulation
    if spec.batch_size % parts:
        raise ValueError(
            f"The batch size must be a multiple of {parts}, the {devices.replicas} copies of the "
            f"model times accumulation {devices.accumulation}, got {spec.batch_size}."
        )
    return spec.batch_size // parts


def _stage_plan(
    spec: StageSpec, devices: Devices, batch: int, traced: Callable[[int], Step]
) -> StagePlan:
    step, ways, times = traced(batch), devices.tensor_parallel, devices.accumulation
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
    reduced = 2 * sum(op.reduced for op in step.ops)
    if devices.recompute:
        recomputed = [op for op in step.ops if op.block is not None and not op.backward]
        flops += sum(op.flops / (ways if op.divided else 1) for op in recomputed)
        reduced += sum(op.reduced for op in recomputed)
    peak = peak_memory(step, devices)
    copies = devices.replicas
    data_bytes = 2 * (copies - 1) / copies * _BYTES * trained
    tensor_bytes = 2 * (ways - 1) / ways * reduced * times
    seconds = times * flops / devices.flops_per_second
    if devices.bandwidth is not None:
        seconds += (data_bytes + tensor_bytes) / devices.bandwidth
    return StagePlan(
        length=spec.length,
        batch_size=spec.batch_size,
        device_batch=batch,
        steps=spec.steps,
        parameters=sum(counts.values()),
        trained=counts[True, True] + counts[True, False],
        flops_per_token=total / (batch * spec.rows * spec.length),
        step_flops=times * flops,
        weights=_BYTES * stored + peak["weights"],
        optimizer=_MOMENTS * _BYTES * trained,
        gradients=peak["gradients"] + (_BYTES * trained if times > 1 else 0),
        activations=peak["activations"],
        data_bytes=data_bytes,
        tensor_bytes=tensor_bytes,
        seconds=seconds,
    )


def _advice(spec: StageSpec, traced: Callable[[int], Step], devices: Devices) -> list[str]:
    """Returns layouts of these devices in which a stage fits, as options with their memory."""
    planned = _device_batch(spec, devices)

    def memory(trial: Devices) -> float:
        # Memory is linear in the batch size, so two traced sizes are enough.
        batch = _device_batch(spec, trial)
        low = _stage_plan(spec, trial, 1, traced).memory
        if planned == 1:
            return low
        high = _stage_plan(spec, trial, planned, traced).memory
        return low + (high - low) * (batch - 1) / (planned - 1)

    layouts: list[str] = []
    ways = devices.tensor_parallel
    while not layouts and devices.count % ways == 0:
        for recompute in sorted({devices.recompute, True}):
            for times in range(devices.accumulation, spec.batch_size + 1):
                trial = dataclasses.replace(
                    devices, tensor_parallel=ways, accumulation=times, recompute=recompute
                )
                try:
                    size = memory(trial)
                except ValueError:
                    continue  # the devices cannot divide this batch
                if size <= (devices.memory or 0) * GIB:
                    options = [f"--tensor-parallel {ways}"] if ways > 1 else []
                    options += [f"--accumulation {times}"] if times > 1 else []
                    options += ["--gradient-checkpointing"] if recompute else []
                    layouts.append(f"{' '.join(options)} ({size / GIB:.1f} GiB)")
                    break
        ways *= 2
    return layouts

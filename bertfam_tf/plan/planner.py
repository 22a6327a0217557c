"""What a run will take: parameters, FLOPs, memory, communication, hours and cost.

Nothing is trained and no weight is allocated: the training step of a recipe is traced into a graph
in which every shape is known, and read there, so the same code plans all families.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from bertfam_tf import parsing
from bertfam_tf.plan.layout import GIB, Devices, Plan, StagePlan
from bertfam_tf.plan.memory import peak_memory
from bertfam_tf.plan.stages import StageSpec, stage_specs
from bertfam_tf.plan.trace import Step, trace
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import PretrainRecipe, Recipe

_log = logging.getLogger(__name__)
# Weights, moments, and the sums of accumulated gradients, which Keras keeps in float32.
_WEIGHT = 4
_MOMENTS = 2


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
        (part, cache(partial(trace, part.network, devices.dtype)))
        for part in stage_specs(recipe, steps)
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
        part = list(stage_specs(recipe, steps))[stage]
        step = trace(part.network, "float32", 1)
    except Exception as error:  # a number beside a training must not end it
        _log.info("FLOPs are not counted: %s", error)
        return None
    return sum(op.flops for op in step.ops) / part.length


def _stage(part: StageSpec, devices: Devices, traced: Callable[[int], Step]) -> StagePlan:
    batch = _device_batch(part, devices)
    return _laid_out(part, devices, batch, traced(batch))


def _device_batch(part: StageSpec, devices: Devices) -> int:
    parts = devices.replicas * devices.accumulation
    if part.batch_size % parts:
        raise ValueError(
            f"The batch size must be a multiple of {parts}, the {devices.replicas} copies of the "
            f"model times accumulation {devices.accumulation}, got {part.batch_size}."
        )
    return part.batch_size // parts


def _laid_out(part: StageSpec, devices: Devices, batch: int, step: Step) -> StagePlan:
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
    peak = peak_memory(step, devices)
    copies = devices.replicas
    data_bytes = 2 * (copies - 1) / copies * _WEIGHT * trained
    tensor_bytes = 2 * (ways - 1) / ways * sums * times
    seconds = times * flops / devices.flops_per_second
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


def _advice(part: StageSpec, traced: Callable[[int], Step], devices: Devices) -> list[str]:
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
                    options += ["--gradient-checkpointing"] if recompute else []
                    found.append(f"{' '.join(options)} ({size / GIB:.1f} GiB)")
                    break
        ways *= 2
    return found

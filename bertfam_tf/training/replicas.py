"""Support for models that are built in a ``tf.distribute`` strategy's scope and used outside of it.

All functions except ``strategy`` do nothing on backends other than TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

import keras

from bertfam_tf.training.settings import check_strategy

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
else:
    tf = None


def scope(model: keras.Model) -> Any:
    """Returns the scope that ``model`` was built in."""
    if tf is None:
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()


def strategy(name: str) -> Any:
    """Returns a ``tf.distribute.Strategy`` by name; models are built and compiled in its scope.

    Args:
        name: ``"none"``, one device; ``"mirrored"``, all GPUs of this machine, or its logical CPUs
            without GPUs; ``"multi_worker"``, the workers that ``TF_CONFIG`` lists, each of which
            runs the same program; ``"tpu"``, the TPU that ``TPU_NAME`` names (untested;
            ``padding="max_length"`` keeps shapes fixed, and texts are tokenized on the host).

    Raises:
        ValueError: for any other name. Parameter servers are not supported, because Keras 3 has no
            asynchronous ``fit``.
    """
    import tensorflow as tf

    check_strategy(name)
    if name == "none":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        gpus = tf.config.list_logical_devices("GPU")
        devices = gpus or tf.config.list_logical_devices("CPU")
        return _mirrored(tuple(device.name for device in devices))
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> Any:
    """Returns one strategy for all runs of a process.

    TensorFlow numbers the collective operations of each strategy from the same start, and those of
    two models with the same number fail because of their shapes.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(list(devices))


def is_chief() -> bool:
    """Returns whether this process writes files: a single process, or the chief of ``TF_CONFIG``,
    which is the first worker if there is no task of type ``chief``."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    task = config.get("task", {})
    kind = "chief" if config.get("cluster", {}).get("chief") else "worker"
    return task.get("type", kind) == kind and int(task.get("index", 0)) == 0


def all_gather(value: int, strategy: Any = None) -> list[int]:
    """Gathers a number from all workers; returns when all of them have called it.

    Args:
        value: this worker's number.
        strategy: the strategy; None for the current scope's.

    Returns:
        The numbers of all replicas, in order; replicas of one worker have the same number. Only
        ``value`` if there are not several workers.
    """
    if tf is None:
        return [value]
    strategy = strategy or tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return [value]
    numbers = _gather(strategy)(tf.constant(value, tf.int64))
    return strategy.experimental_local_results(numbers)[0].numpy().tolist()


@functools.cache
def _gather(strategy: Any) -> Callable:
    """Returns a function that gathers a number from all replicas of a multi-worker strategy."""

    def gathered(number: Any) -> Any:
        context = tf.distribute.get_replica_context()
        row = tf.one_hot(
            context.replica_id_in_sync_group, context.num_replicas_in_sync, number, 0, dtype="int64"
        )
        return context.all_reduce(tf.distribute.ReduceOp.SUM, row)

    return tf.function(lambda number: strategy.run(gathered, (number,)), autograph=False)


def wait_for_workers(strategy: Any = None) -> None:
    """Returns when all workers have called it; arguments as for ``all_gather``."""
    all_gather(0, strategy)


def several() -> bool:
    """Whether the current strategy has several replicas."""
    if tf is None:
        return False
    return tf.distribute.get_strategy().num_replicas_in_sync > 1


def total(value: Any) -> Any:
    """Returns a tensor's sum over all replicas; outside of a replica context the tensor."""
    if tf is None:
        return value
    if tf.distribute.in_cross_replica_context():
        return value
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def reducible(results: Any) -> Any:
    """Converts the metrics of a replica so that Keras' training loop can reduce them.

    With several workers Keras takes means over axis 0, which scalars do not have (keras#20585), so
    each becomes a vector of size 1.
    """
    if tf is None:
        return results
    several = isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)
    if not several or tf.distribute.in_cross_replica_context():
        return results
    return keras.tree.map_structure(lambda x: keras.ops.reshape(x, (-1,)), results)


def check_optimizer(optimizer: Any) -> None:
    """Checks that an optimizer belongs to the strategy of the current scope.

    Args:
        optimizer: a Keras optimizer; names and configs are not checked.

    Raises:
        ValueError: if its variables were created outside of the scope, or it accumulates gradients,
            which Keras cannot do in replicas.
    """
    if tf is None:
        return
    if not isinstance(optimizer, keras.optimizers.Optimizer) or not tf.distribute.has_strategy():
        return
    # With accumulated gradients, ``iterations`` is computed from this variable.
    created_in = getattr(optimizer._iterations.value, "distribute_strategy", None)
    if created_in is not tf.distribute.get_strategy():
        raise ValueError(
            "The optimizer was created outside of the scope of the strategy that this model was "
            "built in: create it inside the scope, or pass its name."
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and several():
        raise ValueError(
            "gradient_accumulation_steps of the optimizer must be None with a strategy, got "
            f"{steps}: Keras fails to accumulate in replicas; compile(accumulation_steps={steps}) "
            "does."
        )


def build(model: keras.Model, iterator: Any, data_batch: Any) -> None:
    """Creates the variables of optimizer and metrics, in place of Keras' ``_maybe_symbolic_build``.

    Without a strategy, Keras creates them in the first trace of the training step, which TensorFlow
    therefore repeats. With one, Keras infers shapes from the sum of the replicas' shards of the
    first batch, and fails if they differ in sequence length. Here, shapes are taken from the
    dataset's ``element_spec`` and the model's outputs.

    Args:
        model: a compiled functional model.
        iterator, data_batch: the arguments of ``_maybe_symbolic_build``.
    """
    if tf is None:
        return
    if data_batch is None:
        spec = iterator.data_adapter.get_tf_dataset().element_spec
        data_batch = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape.as_list(), x.dtype.name), spec
        )
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data_batch)
    with model.distribute_strategy.scope():
        for compiled, function in (
            (model._compile_metrics, model.compute_metrics),
            (model._compile_loss, model.compute_loss),
        ):
            if compiled is not None and not compiled.built:
                _create_variables(function, x, y, model.output, weights)
        model._symbolic_build(data_batch=data_batch)


def _create_variables(function: Callable, *tensors: Any) -> None:
    """Traces a function with symbolic tensors, to create its variables."""
    specs = keras.tree.map_structure(
        lambda x: x if x is None else tf.TensorSpec(x.shape, x.dtype), tensors
    )
    with keras.StatelessScope(), keras.SymbolicScope():
        tf.function(function, autograph=False).get_concrete_function(*specs)


def without_trace_warnings(function: Callable) -> Callable:
    """Disables TensorFlow's warning about frequent tracing for a Keras training loop.

    TensorFlow counts traces by code, and all models share the code of Keras' loop: a few models,
    each traced once, would look like one that is traced repeatedly.
    """
    if tf is None:
        return function
    for traced in inspect.getclosurevars(function).nonlocals.values():
        if isinstance(traced, tf.types.experimental.PolymorphicFunction):
            traced._omit_frequent_tracing_warning = True
    return function

"""Models that are built in a ``tf.distribute`` strategy's scope and used outside of it.

Every function but ``strategy`` does nothing where Keras runs on another backend than TensorFlow.
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


def scope(model: keras.Model) -> Any:
    """The scope that ``model`` was built in, for what else belongs to it."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()


def strategy(name: str) -> Any:
    """A ``tf.distribute.Strategy`` by name, in whose scope models are built and compiled.

    Args:
        name: ``"none"``, one device; ``"mirrored"``, all GPUs of this machine, or else its logical
            CPUs; ``"multi_worker"``, the workers that ``TF_CONFIG`` lists, each of which runs the
            same program; ``"tpu"``, the TPU that ``TPU_NAME`` names (not run: options
            ``padding="max_length"`` keep shapes fixed, and texts are tokenized on the host).

    Raises:
        ValueError: for another name. Parameter servers are not supported: Keras 3 cannot train
            with them, because it has no asynchronous ``fit``.
    """
    import tensorflow as tf

    check_strategy(name)
    if name == "none":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        gpus = tf.config.list_logical_devices("GPU")
        found = gpus or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in found])
    if name == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def is_chief() -> bool:
    """Whether this process writes files: alone, or the chief of ``TF_CONFIG``.

    That is the process of the type ``chief``, or, where there is none, the first worker.
    """
    given = json.loads(os.environ.get("TF_CONFIG") or "{}")
    task = given.get("task", {})
    kind = "chief" if given.get("cluster", {}).get("chief") else "worker"
    return task.get("type", kind) == kind and int(task.get("index", 0)) == 0


def all_gather(value: int, strategy: Any = None) -> list[int]:
    """A number that each worker has; returns when all of them have called this.

    Args:
        value: of this worker.
        strategy: None for that of the scope in which this is called.

    Returns:
        The numbers of all replicas, in their order: those of one worker are the same. The number
        alone where the strategy is not one of several workers.
    """
    if keras.backend.backend() != "tensorflow":
        return [value]
    import tensorflow as tf

    strategy = strategy or tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return [value]
    found = _gather(strategy)(tf.constant(value, tf.int64))
    return strategy.experimental_local_results(found)[0].numpy().tolist()


@functools.cache
def _gather(strategy: Any) -> Callable:
    """A function from a number to those of all replicas of a strategy of several workers."""
    import tensorflow as tf

    def gathered(number: Any) -> Any:
        context = tf.distribute.get_replica_context()
        row = tf.one_hot(
            context.replica_id_in_sync_group, context.num_replicas_in_sync, number, 0, dtype="int64"
        )
        return context.all_reduce(tf.distribute.ReduceOp.SUM, row)

    return tf.function(lambda number: strategy.run(gathered, (number,)), autograph=False)


def wait_for_workers(strategy: Any = None) -> None:
    """Returns when all workers have called this, arguments as for ``all_gather``."""
    all_gather(0, strategy)


def total(value: Any) -> Any:
    """A tensor's sum over all replicas; outside of replicas the tensor itself."""
    if keras.backend.backend() != "tensorflow":
        return value
    import tensorflow as tf

    if tf.distribute.in_cross_replica_context():
        return value
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def reducible(results: Any) -> Any:
    """Metrics of a replica as Keras' training loop can reduce them.

    With several workers it takes means over axis 0, which scalars do not have (keras#20585): in a
    replica of theirs each becomes a vector of one.
    """
    if keras.backend.backend() != "tensorflow":
        return results
    import tensorflow as tf

    several = isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)
    if not several or tf.distribute.in_cross_replica_context():
        return results
    return keras.tree.map_structure(lambda x: keras.ops.reshape(x, (-1,)), results)


def check_optimizer(optimizer: Any) -> None:
    """Checks that an optimizer belongs to the strategy in whose scope this is called.

    Args:
        optimizer: a Keras optimizer; names and configs are not checked.

    Raises:
        ValueError: its variables were created outside of the scope, or it accumulates gradients,
            which Keras cannot do in replicas.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if not isinstance(optimizer, keras.optimizers.Optimizer) or not tf.distribute.has_strategy():
        return
    # With accumulated gradients, ``iterations`` is computed from this variable.
    made = getattr(optimizer._iterations.value, "distribute_strategy", None)
    if made is not tf.distribute.get_strategy():
        raise ValueError(
            "The optimizer was created outside of the scope of the strategy that this model was "
            "built in: create it inside the scope, or pass its name."
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise ValueError(
            "gradient_accumulation_steps of the optimizer must be None with a strategy, got "
            f"{steps}: Keras fails to accumulate in replicas; compile(accumulation_steps={steps}) "
            "does."
        )


def build(model: keras.Model, iterator: Any, data_batch: Any) -> None:
    """Creates the variables of optimizer and metrics, as Keras' ``_maybe_symbolic_build`` does.

    Without a strategy Keras leaves it to the first trace of the training step, which TensorFlow
    repeats because variables were created in it. With one, Keras infers shapes from the sum of the
    replicas' parts of the first batch and fails if they differ in sequence length. This takes the
    shapes from the dataset's ``element_spec``, and those of the outputs from the model, which Keras
    would trace for them.

    Args:
        model: a compiled functional model.
        iterator, data_batch: Keras' arguments of ``_maybe_symbolic_build``.
    """
    if keras.backend.backend() != "tensorflow":
        return
    if data_batch is None:
        spec = iterator.data_adapter.get_tf_dataset().element_spec
        data_batch = keras.tree.map_structure(
            lambda each: keras.KerasTensor(each.shape.as_list(), each.dtype.name), spec
        )
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data_batch)
    with model.distribute_strategy.scope():
        for made, function in (
            (model._compile_metrics, model.compute_metrics),
            (model._compile_loss, model.compute_loss),
        ):
            if made is not None and not made.built:
                _create_variables(function, x, y, model.output, weights)
        model._symbolic_build(data_batch=data_batch)


def _create_variables(function: Callable, *tensors: Any) -> None:
    """Calls a function of symbolic tensors for the variables that it creates."""
    import tensorflow as tf

    specs = keras.tree.map_structure(
        lambda x: x if x is None else tf.TensorSpec(x.shape, x.dtype), tensors
    )
    with keras.StatelessScope(), keras.SymbolicScope():
        tf.function(function, autograph=False).get_concrete_function(*specs)


def without_trace_warnings(function: Callable) -> Callable:
    """A Keras training loop whose ``tf.function`` objects are not counted among often traced ones.

    TensorFlow counts traces by code, and that of Keras' loop is every model's: a few small models,
    each traced once, would look like one that is traced again and again.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    for traced in inspect.getclosurevars(function).nonlocals.values():
        if isinstance(traced, tf.types.experimental.PolymorphicFunction):
            traced._omit_frequent_tracing_warning = True
    return function

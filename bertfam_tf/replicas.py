"""Models that are built in a ``tf.distribute`` strategy's scope and used outside of it."""

from typing import Any

import keras
import tensorflow as tf


def check_optimizer(optimizer: Any) -> None:
    """Raises ValueError for one whose variables are not of the scope that this is called in."""
    if not isinstance(optimizer, keras.optimizers.Optimizer) or not tf.distribute.has_strategy():
        return
    made = getattr(optimizer.iterations.value, "distribute_strategy", None)
    if made is not tf.distribute.get_strategy():
        raise ValueError(
            "The optimizer was made outside of the strategy's scope that this model was built in: "
            "make it inside, or give its name."
        )


def build(model: keras.Model, iterator: Any, data_batch: Any) -> None:
    """Makes the variables of optimizer and metrics, as Keras' ``_maybe_symbolic_build`` does.

    Keras adds up the replicas' parts of the first batch for their shapes, so that it fails where
    the parts differ in length; the data set knows the shapes.

    Args:
        model: compiled.
        iterator, data_batch: as Keras hands them to ``_maybe_symbolic_build``.
    """
    if model._distribute_strategy is None:
        return
    if data_batch is None:
        spec = iterator.data_adapter.get_tf_dataset().element_spec
        data_batch = tf.nest.map_structure(
            lambda each: keras.KerasTensor(each.shape.as_list(), each.dtype.name), spec
        )
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=data_batch)

"""Objectives, which ``bertfam_tf.training.Learner`` optimises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import keras

# The sum of some losses and their number, float scalars: means are taken over all replicas.
SumAndCount = tuple[Any, Any]


class Batch(NamedTuple):
    """A batch as Keras hands it to ``compute_loss``.

    Fields:
        inputs: the inputs of the network, by name.
        targets: the targets; None where the data has none.
        weights: the sample weights; None where there are none.
    """

    inputs: Any
    targets: Any = None
    weights: Any = None


class Objective(Protocol):
    """An objective that a network is trained for.

    Attributes:
        heads: the layers with weights of their own, by name, that are trained with the network;
            every one is built.
        weights: the factor of each loss in the total, by name.

    It may also have ``metrics``, by name the function of a mean that is reported: ``ops.exp`` for
    a perplexity, ``mean`` for the mean itself, such as an accuracy.
    """

    heads: Mapping[str, keras.layers.Layer]
    weights: Mapping[str, float]

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        """Computes the losses of a batch, or of one replica's shard of it.

        Args:
            outputs: the outputs of the network.
            heads: the heads of this objective.
            batch: inputs, targets and weights.

        Returns:
            for each name in ``weights`` the sum of the losses, from which gradients flow, and the
            number that it is divided by; the same for each name in ``metrics``. Each replica
            returns its own, and they are summed.
        """


def mean(value: Any) -> Any:
    """Returns the metric of an objective that is a mean."""
    return value


class Supervised:
    """The objective that compares the network's outputs with targets.

    Args:
        function: a function from targets, outputs and sample weights (or None) to a sum and a
            count.
    """

    weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(self, function: Callable[[Any, Any, Any], SumAndCount]):
        self.heads: Mapping[str, keras.layers.Layer] = {}
        self.function = function

    def loss(
        self, outputs: Any, heads: Mapping[str, keras.layers.Layer], batch: Batch
    ) -> dict[str, SumAndCount]:
        return {"loss": self.function(batch.targets, outputs, batch.weights)}

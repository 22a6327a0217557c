"""The interface of objectives, which ``bertfam_tf.training.Learner`` optimizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import keras

# A sum of losses and their count, float scalars; the mean is taken over all replicas.
SumAndCount = tuple[Any, Any]


class Batch(NamedTuple):
    """A batch as Keras passes it to ``compute_loss``.

    Fields:
        inputs: the inputs of the network, by name.
        targets: the targets, or None.
        weights: the sample weights, or None.
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
            For each name in ``weights`` and ``metrics`` a sum and the count that divides it.
            Gradients flow through the sums of losses. The sums and counts of replicas are added.
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

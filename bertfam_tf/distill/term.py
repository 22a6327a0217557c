"""The base class of terms of the distillation loss, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from bertfam_tf import layers as building
from bertfam_tf.distill.network import Network
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.validation import one_of

AUTO = "auto"


class Outputs(NamedTuple):
    """The outputs of the student or the teacher.

    Fields:
        backbone: the backbone's outputs by name.
        logits: the task's logits (…, classes); None if no term reads them.
        counted: weights of the logits, float32 (…); 0 for logits that do not count.
        is_causal: whether attention is causal.
    """

    backbone: Mapping[str, Any]
    logits: Any = None
    counted: Any = None
    is_causal: bool = False


class Projections:
    """Dense layers from the student's width to the teacher's, by name, which terms can share."""

    def __init__(self, dtype: Any = None):
        self.layers: dict[str, keras.layers.Layer] = {}
        self._dtype = dtype

    def __call__(self, name: str, width: int, to: int) -> keras.layers.Layer:
        """Returns the layer of a name; creates it if it does not exist.

        Raises:
            ValueError: if the layer exists with other widths.
        """
        if name not in self.layers:
            dense = keras.layers.Dense(
                to,
                kernel_initializer=building.normal(0.02),
                name=f"{name}_projection",
                dtype=self._dtype,
            )
            dense.build((None, width))
            self.layers[name] = dense
        layer = self.layers[name]
        if tuple(layer.kernel.shape) != (width, to):
            raise ValueError(
                f"The projection {name!r} is from width {layer.kernel.shape[0]} to "
                f"{layer.kernel.shape[1]}, a second term needs one from {width} to {to}."
            )
        return layer


@dataclass(frozen=True, kw_only=True)
class Term:
    """The base class of terms.

    Attributes:
        weight: the weight of the term in the loss.
        name: the name of its metric; None for the class name in snake case.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    reads_logits: ClassVar[bool] = False
    scalings: ClassVar[tuple[str, ...]] = ("mean",)

    weight: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        scaling = getattr(self, "scaling", "mean")
        one_of(f"scaling of {self.label}", scaling, self.scalings)

    @property
    def label(self) -> str:
        return self.name or snake_case(type(self).__name__)

    def bind(self, student: Network, teacher: Network, projections: Projections) -> Term:
        """Checks the networks, and returns the term with its layer map resolved for them.

        Raises:
            ValueError: if the networks do not fit this term.
        """
        return self

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        """Computes the sum of the losses of a batch, and their count.

        Args:
            student, teacher: the networks' outputs.
            mask: bool (batch, length), true at real tokens.
            projections: the layers that ``bind`` created.
        """
        raise NotImplementedError


def snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def sum_and_count(losses: Any, weights: Any, *, count_all: bool = False) -> SumAndCount:
    """Returns the weighted sum of losses, and the sum of the weights.

    Args:
        losses: losses (…).
        weights: bool or float weights that broadcast to ``losses``.
        count_all: whether to return the size of ``weights`` instead of their sum.
    """
    weights = ops.cast(weights, losses.dtype)
    return ops.sum(losses * weights), ops.sum(ops.ones_like(weights) if count_all else weights)

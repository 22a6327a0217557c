"""A term of a distillation's loss, and what it reads."""

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
    """What a term reads of one side.

    Fields:
        backbone: the backbone's outputs by name.
        logits: (…, classes) of the task's distributions; None if no term reads them.
        counted: float32 (…), 0 for distributions that do not count.
        is_causal: whether tokens attend to themselves and to earlier ones only.
    """

    backbone: Mapping[str, Any]
    logits: Any = None
    counted: Any = None
    is_causal: bool = False


class Projections:
    """Dense layers from the student's width to the teacher's, by name.

    Terms that name the same one share it.
    """

    def __init__(self, dtype: Any = None):
        self.layers: dict[str, keras.layers.Layer] = {}
        self._dtype = dtype

    def __call__(self, name: str, width: int, to: int) -> keras.layers.Layer:
        """The layer of a name.

        Raises:
            ValueError: if it exists with other widths.
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
        found = self.layers[name]
        if tuple(found.kernel.shape) != (width, to):
            raise ValueError(
                f"The projection {name!r} is from width {found.kernel.shape[0]} to "
                f"{found.kernel.shape[1]}, a second term needs one from {width} to {to}."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Term:
    """Base of the terms.

    Attributes:
        weight: of the term in the loss.
        name: under which it is reported; None for the class's.
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
        """The term with its layer map resolved for two networks, which it checks.

        Raises:
            ValueError: for networks that do not fit this term; the text says what does not match.
        """
        return self

    def loss(
        self, student: Outputs, teacher: Outputs, mask: Any, projections: Projections
    ) -> SumAndCount:
        """The sum of the losses of a batch, and their number.

        Args:
            student, teacher: the outputs.
            mask: bool (batch, length), true at real tokens.
            projections: those that ``bind`` made.
        """
        raise NotImplementedError


def snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def sum_and_count(found: Any, counted: Any, *, of_all: bool = False) -> SumAndCount:
    """The sum of the losses that count, and a number.

    Args:
        found: losses (…).
        counted: bool or float of the same shape, or one that broadcasts to it.
        of_all: whether the number is the size of ``counted``, and not its sum.
    """
    counted = ops.cast(counted, found.dtype)
    return ops.sum(found * counted), ops.sum(ops.ones_like(counted) if of_all else counted)

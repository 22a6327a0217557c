"""Devices, and what a run takes on them."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import InitVar, dataclass
from typing import Any

from bertfam_tf.validation import check, setting

# FLOP/s of an NVIDIA A100 in dense matrix products (its datasheet), by dtype policy; TensorFlow
# multiplies float32 matrices as TF32.
PEAKS = {"float32": 156e12, "mixed_bfloat16": 312e12, "mixed_float16": 312e12}
GIB = 2**30


@dataclass(frozen=True)
class Devices:
    """Where a run is planned, and how it is laid out.

    Attributes:
        count: number of devices; ``count / tensor_parallel`` of them have parts of the batch.
        tensor_parallel: number of devices that share one copy of the model, each with some of the
            attention heads and of the feed-forward layers' width (arXiv 1909.08053, section 3).
        accumulation: number of parts of a device's batch, one after the other, whose gradients are
            added before a step.
        recompute: whether only the inputs of blocks are kept, and blocks computed again for their
            gradients (arXiv 1604.06174).
        dtype: dtype policy: ``float32``, ``mixed_bfloat16`` or ``mixed_float16``.
        peak: of a device, FLOP/s; None for ``PEAKS``, those of an NVIDIA A100.
        mfu: model FLOPs utilization, the fraction of the peak that is reached, on all FLOPs,
            recomputed ones included.
        memory: of a device, GiB; None if it does not matter.
        bandwidth: between devices, bytes/s; its time is added, as if nothing else ran meanwhile.
            None where ``mfu`` includes it.
        price: of a device and hour; None if unknown.

    Raises:
        ValueError: for numbers out of their range, or devices that cannot be divided so.
    """

    count: int = setting(1, at_least=1)
    tensor_parallel: int = setting(1, at_least=1)
    accumulation: int = setting(1, at_least=1)
    recompute: bool = False
    dtype: str = setting("float32", choices=PEAKS)
    peak: float | None = setting(None, above=0)
    mfu: float = setting(0.4, above=0, at_most=1)
    memory: float | None = setting(None, above=0)
    bandwidth: float | None = setting(None, above=0)
    price: float | None = setting(None, above=0)
    share: InitVar[float | None] = None  # the name of ``mfu`` in version 0.1

    def __post_init__(self, share):
        if share is not None:
            warnings.warn(
                "Devices.share is called mfu; the old name is for version 0.1 only.",
                FutureWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "mfu", share)
        check(self)
        if self.count % self.tensor_parallel:
            raise ValueError(
                f"devices must be a multiple of tensor_parallel {self.tensor_parallel}, got "
                f"{self.count}."
            )

    @property
    def replicas(self) -> int:
        """The number of copies of the model."""
        return self.count // self.tensor_parallel

    @property
    def flops_per_second(self) -> float:
        """FLOP/s that a device reaches."""
        return self.assumed_peak * self.mfu

    @property
    def assumed_peak(self) -> float:
        """FLOP/s of a device, ``peak`` or the one of an NVIDIA A100."""
        return PEAKS[self.dtype] if self.peak is None else self.peak


@dataclass(frozen=True)
class StagePlan:
    """A part of a run, with examples of one length. Numbers are of one device unless they say.

    Attributes:
        length: tokens of an example.
        batch_size: examples of a step, on all devices.
        device_batch: examples that a device computes at once.
        steps: number of steps.
        parameters, trained: how many there are, heads included, and are trained.
        flops_per_token: of forward and backward, in matrix products alone, without recomputation.
        step_flops: with recomputation, of one step.
        weights: bytes; with copies in half precision where the peak of memory is.
        optimizer: bytes.
        gradients: bytes, where the peak of memory is; all of them with accumulation.
        activations: bytes, where the peak of memory is.
        data_bytes: sent in a step to add up gradients.
        tensor_bytes: sent in a step within copies of the model.
        seconds: of one step.
    """

    length: int
    batch_size: int
    device_batch: int
    steps: int
    parameters: int
    trained: int
    flops_per_token: float
    step_flops: float
    weights: float
    optimizer: float
    gradients: float
    activations: float
    data_bytes: float
    tensor_bytes: float
    seconds: float

    @property
    def memory(self) -> float:
        """Bytes of a device."""
        return self.weights + self.optimizer + self.gradients + self.activations


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        devices: as it was planned.
        stages: one after the other.
        advice: layouts that fit the memory, best first, if this one does not.
    """

    devices: Devices
    stages: tuple[StagePlan, ...]
    advice: tuple[str, ...] = ()

    @property
    def memory(self) -> float:
        """Bytes of a device, in the stage that needs most."""
        return max(stage.memory for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether it fits the memory of a device."""
        return self.devices.memory is None or self.memory <= self.devices.memory * GIB

    @property
    def hours(self) -> float:
        """Of all stages."""
        return sum(stage.steps * stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float | None:
        """Of all devices; None without a price."""
        price = self.devices.price
        return None if price is None else self.hours * self.devices.count * price

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain values."""
        devices = {**dataclasses.asdict(self.devices), "peak": self.devices.assumed_peak}
        stages = [{**dataclasses.asdict(s), "memory": s.memory} for s in self.stages]
        found = {"memory": self.memory, "fits": self.fits, "hours": self.hours, "cost": self.cost}
        return {**found, "devices": devices, "stages": stages,
                "advice": list(self.advice)}  # fmt: skip

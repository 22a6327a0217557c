"""The devices of a planned run, and the plan."""

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
    """The devices of a planned run, and how the run uses them.

    Attributes:
        count: the number of devices; the batch is divided among ``count / tensor_parallel`` copies
            of the model.
        tensor_parallel: the number of devices that share one copy of the model, each with some of
            the attention heads and of the feed-forward layers' width (arXiv 1909.08053, section 3).
        accumulation: the number of micro-batches of a device's batch, whose gradients are added
            before a step.
        recompute: whether to use gradient checkpointing: only the inputs of blocks are kept, and
            blocks are computed again for their gradients (arXiv 1604.06174).
        dtype: the dtype policy: ``float32``, ``mixed_bfloat16`` or ``mixed_float16``.
        peak: the peak FLOP/s of a device; None for an NVIDIA A100, as in ``PEAKS``.
        mfu: model FLOPs utilization, the fraction of the peak that is reached. All FLOPs count,
            also recomputed ones.
        memory: the memory of a device in GiB; None if it does not matter.
        bandwidth: the bytes per second between devices. Communication adds to the time, as if it
            overlapped with nothing. None if ``mfu`` includes it.
        price: the price of a device per hour; None if unknown.

    Raises:
        ValueError: if a number is out of range, or ``count`` is not a multiple of
            ``tensor_parallel``.
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
        """The peak FLOP/s of a device: ``peak``, or an NVIDIA A100's."""
        return PEAKS[self.dtype] if self.peak is None else self.peak


@dataclass(frozen=True)
class StagePlan:
    """A stage of a run, with examples of one length. Numbers are per device unless noted.

    Attributes:
        length: the tokens of an example.
        batch_size: the examples of a step on all devices.
        device_batch: the examples of a micro-batch on one device.
        steps: the number of steps.
        parameters, trained: the number of parameters, including heads, and of trainable ones, of
            the whole model.
        flops_per_token: the FLOPs of matrix products, forward and backward, without recomputation.
        step_flops: the FLOPs of a step, with recomputation.
        weights: bytes of weights, with copies in half precision that exist at the memory peak.
        optimizer: bytes of optimizer states.
        gradients: bytes of gradients at the memory peak; all gradients with accumulation.
        activations: bytes of activations at the memory peak.
        data_bytes: bytes sent in a step to add up gradients.
        tensor_bytes: bytes sent in a step within copies of the model.
        seconds: the seconds of a step.
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
        """The bytes that a device needs."""
        return self.weights + self.optimizer + self.gradients + self.activations


@dataclass(frozen=True)
class Plan:
    """The estimates of a run.

    Attributes:
        devices: the devices that the plan is for.
        stages: the stages of the run, in order.
        advice: layouts that fit the memory, best first, if this one does not.
    """

    devices: Devices
    stages: tuple[StagePlan, ...]
    advice: tuple[str, ...] = ()

    @property
    def memory(self) -> float:
        """The bytes that a device needs, in the stage that needs most."""
        return max(stage.memory for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether the run fits the memory of a device."""
        return self.devices.memory is None or self.memory <= self.devices.memory * GIB

    @property
    def hours(self) -> float:
        """The hours of all stages."""
        return sum(stage.steps * stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float | None:
        """The cost of all devices; None without a price."""
        price = self.devices.price
        return None if price is None else self.hours * self.devices.count * price

    def to_dict(self) -> dict[str, Any]:
        """Returns all numbers as JSON values."""
        return {
            "memory": self.memory,
            "fits": self.fits,
            "hours": self.hours,
            "cost": self.cost,
            "devices": {**dataclasses.asdict(self.devices), "peak": self.devices.assumed_peak},
            "stages": [{**dataclasses.asdict(s), "memory": s.memory} for s in self.stages],
            "advice": list(self.advice),
        }

"""The hardware and software of a measurement: the processor, versions of packages, memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bertfam_tf.recipes.experiments.hardware import cpu, cpu_info, versions

__all__ = ["cpu", "forget_peak", "memory", "onednn_by_default", "vectors", "versions"]

# Instructions that matrix products are written for, by the names in /proc/cpuinfo.
_VECTORS = (
    *("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
)
# With these TensorFlow uses oneDNN without TF_ENABLE_ONEDNN_OPTS.
_ONEDNN = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")


def vectors() -> list[str]:
    """The vector instructions it has that matrix products can use."""
    has = set(cpu_info("flags").split())
    return [flag for flag in _VECTORS if flag in has]


def onednn_by_default() -> bool:
    """Whether TensorFlow uses oneDNN here if TF_ENABLE_ONEDNN_OPTS is not set."""
    return any(flag in _ONEDNN for flag in vectors())


def memory() -> dict[str, float]:
    """Megabytes of this process: resident now (VmRSS), and at most (VmHWM)."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        found = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
        return {name: int(value.split()[0]) / 1024 for name, value in found.items()}
    return {"VmRSS": 0.0, "VmHWM": 0.0}


def forget_peak() -> float:
    """Makes the peak what is resident now, and returns that in megabytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory()["VmRSS"]

"""The hardware and software of a measurement: the processor and versions of packages."""

from __future__ import annotations

from bertfam_tf.recipes.experiments.hardware import cpu, cpu_info, versions

__all__ = ["cpu", "onednn_by_default", "vectors", "versions"]

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

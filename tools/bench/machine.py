"""What a measurement ran on: the processor and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path

# Instructions that matrix products are written for, by the names in /proc/cpuinfo.
_VECTORS = (
    *("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
)
# With these TensorFlow uses oneDNN without TF_ENABLE_ONEDNN_OPTS.
_ONEDNN = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")


def cpu() -> str:
    """The processor's name."""
    return _line("model name") or platform.machine()


def vectors() -> list[str]:
    """The vector instructions it has that matrix products can use."""
    has = set(_line("flags").split())
    return [flag for flag in _VECTORS if flag in has]


def onednn_by_default() -> bool:
    """Whether TensorFlow uses oneDNN here if TF_ENABLE_ONEDNN_OPTS is not set."""
    return any(flag in _ONEDNN for flag in vectors())


def versions(packages: Iterable[str]) -> str:
    """Names and versions of those that are installed."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _line(name: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")

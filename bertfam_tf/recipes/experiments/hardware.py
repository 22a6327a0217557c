"""The hardware and software of a measurement: processor, GPUs, versions of packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path


def cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu() -> str:
    """Returns the processor's name."""
    return cpu_info("model name") or platform.machine()


def gpus() -> list[str]:
    """Returns the names of NVIDIA GPUs."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


def versions(packages: Iterable[str]) -> str:
    """Returns names and versions of installed packages."""
    installed = []
    for name in packages:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(installed)


def cpu_info(name: str) -> str:
    """Returns a value of ``/proc/cpuinfo``, or an empty string."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
    return next(values, "")

"""Returns memory that the C library keeps after large requests to the operating system."""

import ctypes
import resource
import sys

# 64 KiB on some ARM systems.
_PAGE_KIB = resource.getpagesize() >> 10
_GROWTH_KIB = 128 << 10


class MemoryTrimmer:
    """Watches the memory of this process; ``trim`` is meant to be called periodically.

    glibc keeps freed memory in each of its arenas. After a request with hundreds of rows this can
    be gigabytes, and glibc does not return them on its own.
    """

    def __init__(self) -> None:
        self._smallest = _resident_kib()

    def trim(self) -> None:
        """Returns free memory to the system if the process has grown by more than 128 MiB."""
        resident = _resident_kib()
        if resident > self._smallest + _GROWTH_KIB:
            _malloc_trim()
            # The rest is in use, by runs in progress or newly loaded models.
            resident = _resident_kib()
            self._smallest = max(self._smallest, resident - _GROWTH_KIB)
        self._smallest = min(self._smallest, resident)


def _resident_kib() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_KIB
    except OSError:
        return 0  # not Linux


def _malloc_trim() -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)

"""Memory that a large request took and the C library keeps, given back to the system."""

import ctypes
import sys

_PAGE_KIB = 4
_WORTH_KIB = 128 << 10


class Memory:
    """Watches the process; `trim`, called now and then, gives back what has come to be free.

    glibc keeps memory that was freed for what may come, each of its arenas some: after a request
    of hundreds of rows that was gigabytes, for good.
    """

    def __init__(self) -> None:
        self._least = _resident_kib()

    def trim(self) -> None:
        """Gives back what is free, if the process has grown since it was smallest."""
        resident = _resident_kib()
        if resident > self._least + _WORTH_KIB:
            _malloc_trim()
            # What is left is in use: by a run in progress, or by models that were loaded.
            resident = _resident_kib()
            self._least = max(self._least, resident - _WORTH_KIB)
        self._least = min(self._least, resident)


def _resident_kib() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_KIB
    except OSError:
        return 0  # no Linux


def _malloc_trim() -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)

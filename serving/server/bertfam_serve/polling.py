"""Calls a function periodically in a background thread."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class PeriodicCall:
    """Calls a function periodically until it is closed.

    Exceptions are logged; the same error in consecutive calls is logged once.

    Args:
        call: the function.
        wait_s: seconds from the end of a call to the next one.
        name: the name of the thread.
    """

    def __init__(self, call: Callable[[], None], wait_s: float, name: str) -> None:
        self._call = call
        self._wait_s = wait_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread and waits for a call in progress."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        logged = ""
        while not self._closed.wait(self._wait_s):
            try:
                self._call()
                logged = ""
            except Exception as error:
                if str(error) != logged:
                    logger.error("%s: %s", self._thread.name, error)
                logged = str(error)

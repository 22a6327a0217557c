"""A function called again and again in a thread of its own."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Periodic:
    """Calls a function every so many seconds until closed.

    What it raises is logged, once as long as it raises the same again.

    Args:
        call: the function.
        wait_s: seconds between the end of a call and the next.
        name: the thread's.
    """

    def __init__(self, call: Callable[[], None], wait_s: float, name: str) -> None:
        self._call = call
        self._wait_s = wait_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops; returns when a call in progress, if any, has come to its end."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        complaint = ""
        while not self._closed.wait(self._wait_s):
            try:
                self._call()
                complaint = ""
            except Exception as error:
                if str(error) != complaint:
                    logger.error("%s: %s", self._thread.name, error)
                complaint = str(error)

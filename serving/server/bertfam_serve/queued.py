"""Requests that wait in a queue, without a thread for each of them."""

from concurrent.futures import Future
from typing import Protocol

import numpy as np

from bertfam_tf.export.runtime.status import ServingError


class Pending(Protocol):
    """A request in a queue.

    Attributes:
        future: output name to array, or an exception that all requests of a batch share; it cannot
            be cancelled.
        deadline: seconds of the monotonic clock; infinity for no limit.
    """

    future: Future[dict[str, np.ndarray]]
    deadline: float

    def timeout_error(self) -> ServingError:
        """Returns the error of the request if its deadline passes before it is answered."""

"""The interface of servables with queues."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from bertfam_tf.export.runtime.servable import Inputs, ServableLike
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


class QueuedServable(ServableLike, Protocol):
    """A servable with queues, so that requests can wait without a thread for each of them."""

    def submit(
        self,
        signature: str,
        inputs: Inputs,
        *,
        outputs: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> Pending | None:
        """As ``run``, but returns immediately; None if this request has to be passed to ``run``."""

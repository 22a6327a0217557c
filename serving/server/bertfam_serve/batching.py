"""Dynamic batching of concurrent requests, with the rules of TensorFlow Serving's BatchingSession.

    with Batcher(read_parameters("batching.config")) as batcher:
        servable = batcher(load("/exports/sentiment/1"))
        servable.run("serving_default", {"text": texts})  # from many threads

Each signature has a queue. A thread pool, shared by all queues, runs a batch as soon as it is full
or its first request has waited ``batch_timeout_micros``. As in Serving, an error of the graph on
the rows of one request fails all requests of the batch.
"""

import collections
import concurrent.futures
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bertfam_serve import merging
from bertfam_serve.batching_parameters import BatchingParameters, read_parameters
from bertfam_tf.export.runtime import tensor_protos
from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, Inputs, ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

__all__ = ["BatchedServable", "Batcher", "BatchingParameters", "read_parameters"]

Arrays = dict[str, np.ndarray]


class PendingRequest:
    """A request in a queue, whose outputs are computed in one or more parts.

    Attributes:
        inputs: input name to array.
        deadline: seconds of the monotonic clock; infinity for no limit.
        started: whether a part of it is being computed.
        future: output name to array, or an exception that all requests of a batch share; it cannot
            be cancelled.
    """

    def __init__(self, inputs: Arrays, deadline: float) -> None:
        self.inputs = inputs
        self.deadline = deadline
        self.started = False
        self.future: concurrent.futures.Future[Arrays] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()
        self._parts: list[Arrays | None] = []
        self._lock = threading.Lock()

    def split(self, sizes: list[int]) -> list["_Task"]:
        """Splits the request into tasks with these numbers of rows."""
        self._parts = [None] * len(sizes)
        stops = np.cumsum(sizes).tolist()
        return [
            _Task(self, i, stop - size, size)
            for i, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]

    def finish(self, part: int, outputs: Arrays) -> None:
        with self._lock:
            self._parts[part] = outputs
            parts = [part for part in self._parts if part is not None]
            if len(parts) == len(self._parts) and not self.future.done():
                self.future.set_result(_joined(parts))

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def timeout_error(self) -> ServingError:
        """Returns the error of the request if its deadline passes before it is answered."""
        if not self.started:
            return _expired()
        return ServingError(Code.DEADLINE_EXCEEDED, "Timed out while the batch was being run")


class _Task(NamedTuple):
    """A range of a request's rows that runs in one batch."""

    request: PendingRequest
    part: int
    start: int
    size: int

    @property
    def inputs(self) -> Arrays:
        stop = self.start + self.size
        return {name: array[self.start : stop] for name, array in self.request.inputs.items()}


class _Batch:
    def __init__(self) -> None:
        self.tasks: list[_Task] = []
        self.size = 0
        self.opened = math.inf

    def add(self, task: _Task) -> None:
        if not self.tasks:
            self.opened = time.monotonic()
        self.tasks.append(task)
        self.size += task.size


class _Queue:
    """Waiting batches; only the last accepts more rows. Guarded by the batcher's lock."""

    def __init__(self, parameters: BatchingParameters, run: Callable[..., Arrays]) -> None:
        self.run = run
        self._parameters = parameters
        self._batches = collections.deque([_Batch()])

    def put(self, request: PendingRequest, size: int) -> None:
        parameters, limit = self._parameters, self._parameters.rows_executed
        if size > parameters.max_batch_size:
            raise invalid(
                f"Task size {size} is larger than maximum input batch size "
                f"{parameters.max_batch_size}"
            )
        full = "The batch scheduling queue to which this task was submitted is full; "
        left = limit - self._batches[-1].size
        sizes = [size]
        if parameters.enable_large_batch_splitting:
            capacity = (parameters.max_enqueued_batches - len(self._batches)) * limit + left
            if size > capacity:
                raise ServingError(
                    Code.UNAVAILABLE,
                    f"{full}task size is {size} but scheduling capacity is only {capacity} "
                    f"(num_enqueued_batches={len(self._batches)}, "
                    f"max_enqueued_batches={parameters.max_enqueued_batches}, "
                    f"open_batch_size={limit - left}, max_execution_batch_size={limit})",
                )
            if size > left:
                whole, rest = divmod(size - left, limit)
                sizes = [part for part in (left, *[limit] * whole, rest) if part]
        elif size > left and len(self._batches) >= parameters.max_enqueued_batches:
            raise ServingError(
                Code.UNAVAILABLE,
                f"{full}currently {len(self._batches)} batches enqueued and max_enqueued_batches "
                f"is {parameters.max_enqueued_batches}",
            )
        for task in request.split(sizes):
            if self._batches[-1].size + task.size > limit:
                self._batches.append(_Batch())
            self._batches[-1].add(task)

    def due(self) -> float:
        """Returns when the next batch may run, in monotonic seconds; infinity if there is none."""
        first = self._batches[0]
        if len(self._batches) > 1 or first.size >= self._parameters.rows_executed:
            return 0.0
        return first.opened + self._parameters.batch_timeout_micros / 1e6

    def take(self) -> _Batch:
        batch = self._batches.popleft()
        if not self._batches:
            self._batches.append(_Batch())
        return batch


class Batcher:
    """A thread pool that runs batches for any number of models; calling it wraps a servable.

    A model's queues are freed with the model.

    Args:
        parameters: sizes, timeout and threads.
    """

    def __init__(self, parameters: BatchingParameters) -> None:
        self.parameters = parameters
        self._changed = threading.Condition()
        # Weak references, so that unloading a servable frees its queues.
        self._queues: collections.deque[weakref.ref[_Queue]] = collections.deque()
        self._closed = False
        self._threads = [
            threading.Thread(
                target=self._work, name=f"{parameters.thread_pool_name}-{i}", daemon=True
            )
            for i in range(parameters.num_batch_threads)
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, servable: ServableLike) -> "BatchedServable":
        return BatchedServable(servable, self)

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Runs the waiting batches and ends the threads; later requests fail with UNAVAILABLE."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def add_queue(self, run: Callable[..., Arrays]) -> _Queue:
        """Creates a queue; ``run`` takes the inputs of a batch, and ``timeout_ms``."""
        queue = _Queue(self.parameters, run)
        with self._changed:
            self._queues.append(weakref.ref(queue))
        return queue

    def submit(self, queue: _Queue, request: PendingRequest, size: int) -> None:
        """Adds a request with ``size`` rows, at least one, to the queue.

        Raises:
            ServingError: INVALID_ARGUMENT for too many rows, UNAVAILABLE for a full queue.
        """
        with self._changed:
            if self._closed:
                raise ServingError(Code.UNAVAILABLE, "The batch scheduler has been shut down")
            queue.put(request, size)
            self._changed.notify()

    def _work(self) -> None:
        while self._work_once():
            pass

    # A separate function: a local variable of the loop would keep the last model alive.
    def _work_once(self) -> bool:
        next_batch = self._next()
        if next_batch is not None:
            self._run(*next_batch)
        return next_batch is not None

    def _next(self) -> tuple[_Queue, _Batch] | None:
        with self._changed:
            while True:
                earliest = math.inf
                now = time.monotonic()
                for _ in range(len(self._queues)):
                    reference = self._queues.popleft()
                    queue = reference()
                    if queue is None:
                        continue
                    self._queues.append(reference)  # round robin
                    due = queue.due()
                    if due <= now or (self._closed and due < math.inf):
                        self._changed.notify()  # another thread may take the next batch
                        return queue, queue.take()
                    earliest = min(earliest, due)
                    del queue
                if self._closed:
                    return None
                self._changed.wait(None if earliest == math.inf else earliest - now)

    def _run(self, queue: _Queue, batch: _Batch) -> None:
        now = time.monotonic()
        tasks = []
        for task in batch.tasks:
            if task.request.deadline > now:
                task.request.started = True
                tasks.append(task)
            else:
                task.request.fail(_expired())
        if not tasks:
            return
        try:
            answers = self._run_tasks(queue, tasks, now)
        except Exception as error:
            for task in tasks:
                task.request.fail(error)
            return
        for task, outputs in zip(tasks, answers, strict=True):
            task.request.finish(task.part, outputs)

    def _run_tasks(self, queue: _Queue, tasks: list[_Task], now: float) -> list[Arrays]:
        sizes = [task.size for task in tasks]
        size = merging.allowed_size(sum(sizes), self.parameters.allowed_batch_sizes)
        merged = merging.merge(
            [task.inputs for task in tasks],
            size=size,
            pad=self.parameters.pad_variable_length_inputs,
        )
        # As in Serving, a batch has the latest deadline of its requests.
        seconds = max(task.request.deadline for task in tasks) - now
        timeout_ms = 0 if seconds == math.inf else max(1, int(seconds * 1000))
        return merging.split(queue.run(merged, timeout_ms=timeout_ms), sizes, size)


class BatchedServable:
    """A servable that runs requests in batches. Thread-safe.

    Requests without rows and requests that do not match the signature in names, dtypes or shapes
    are passed to the servable without batching, so that an error affects only that request.
    (Serving batches requests with undeclared shapes, and an error fails the whole batch.)

    Attributes:
        signatures: name to SignatureDef.
        model: the name of the servable's model.
    """

    def __init__(self, servable: ServableLike, batcher: Batcher) -> None:
        self.signatures = servable.signatures
        self.model = servable.model
        self._servable = servable
        self._batcher = batcher
        self._queues: dict[tuple[str, frozenset[str]], _Queue] = {}
        self._lock = threading.Lock()

    def run(
        self, signature: str, inputs: Inputs, *, outputs: Sequence[str] = (), timeout_ms: int = 0
    ) -> dict[str, np.ndarray]:
        """Runs a signature as ``Servable.run`` does, batched with requests from other threads.

        Args:
            signature: the key; empty means ``serving_default``.
            inputs: input name to value, (rows, …), with the same number of rows in all inputs.
            outputs: names of the outputs to compute; empty means all. Requests for different
                outputs are in different batches.
            timeout_ms: milliseconds until the answer; 0 means no limit.

        Raises:
            ServingError: as ``Servable.run``; INVALID_ARGUMENT for a scalar, different numbers of
                rows, or more rows than a batch may have; UNAVAILABLE for a full queue;
                RESOURCE_EXHAUSTED if the request timed out in the queue; FAILED_PRECONDITION if
                dimensions differ from other requests in the batch, or an output does not
                have the batch as dimension 0; any error of the batch.
        """
        request = self.submit(signature, inputs, outputs=outputs, timeout_ms=timeout_ms)
        if request is None:
            return self._servable.run(signature, inputs, outputs=outputs, timeout_ms=timeout_ms)
        remaining_s = request.deadline - time.monotonic()
        try:
            return request.future.result(None if remaining_s == math.inf else max(0.0, remaining_s))
        except ServingError as error:
            # A new exception: all requests of the batch share one, and each would add a traceback.
            raise ServingError(error.code, error.message) from error
        except concurrent.futures.TimeoutError:
            raise request.timeout_error() from None

    def submit(
        self, signature: str, inputs: Inputs, *, outputs: Sequence[str] = (), timeout_ms: int = 0
    ) -> PendingRequest | None:
        """Queues a request and returns when it is in its queue.

        Returns:
            The request; None if it is not batched and has to be passed to ``run``.

        Raises:
            ServingError: as ``run``, for requests that no queue takes.
        """
        signature = signature or DEFAULT_SIGNATURE
        arrays = self._arrays(signature, inputs, outputs)
        size = 0 if arrays is None else merging.rows(arrays)
        if arrays is None or size == 0 or not self._fits(signature, arrays):
            return None
        deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else math.inf
        request = PendingRequest(arrays, deadline)
        self._batcher.submit(self._queue(signature, frozenset(outputs)), request, size)
        return request

    def run_together(
        self, signatures: Sequence[str], inputs: Inputs, *, timeout_ms: int = 0
    ) -> list[dict[str, np.ndarray]]:
        """Runs several signatures as ``Servable.run_together`` does, without batching."""
        return self._servable.run_together(signatures, inputs, timeout_ms=timeout_ms)

    def _arrays(self, signature: str, inputs: Inputs, outputs: Sequence[str]) -> Arrays | None:
        """The inputs as arrays; None if names, dtypes or outputs do not match the signature."""
        definition = self.signatures.get(signature)
        if definition is None or inputs.keys() != definition.inputs.keys():
            return None
        # This also bounds the number of queues.
        if len(set(outputs)) < len(outputs) or not set(outputs) <= definition.outputs.keys():
            return None
        arrays = {}
        for name, value in inputs.items():
            dtype = definition.inputs[name].dtype
            if isinstance(value, tensor_pb2.TensorProto):
                value = None if value.dtype != dtype else tensor_protos.read(value)
            kind = None if value is None else tensor_protos.dtype_of(value)
            if value is None or kind is None or kind.as_datatype_enum != dtype:
                return None
            arrays[name] = value
        return arrays

    def _fits(self, signature: str, inputs: Arrays) -> bool:
        """Whether the shapes are compatible with the signature."""
        declared = self.signatures[signature].inputs
        return all(
            tf.TensorShape(declared[name].tensor_shape).is_compatible_with(array.shape)
            for name, array in inputs.items()
            if declared[name].HasField("tensor_shape")
        )

    def _queue(self, signature: str, outputs: frozenset[str]) -> _Queue:
        with self._lock:
            key = (signature, outputs)
            if key not in self._queues:
                # Not a method of this object, which the queue must not keep alive.
                run = functools.partial(self._servable.run, signature, outputs=sorted(outputs))
                self._queues[key] = self._batcher.add_queue(run)
            return self._queues[key]


def _expired() -> ServingError:
    return ServingError(
        Code.RESOURCE_EXHAUSTED, "Run() timeout exceeded while waiting in batching queue"
    )


def _joined(parts: list[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

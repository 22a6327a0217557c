"""Processes that wait, and are asked in turns: one computes while all others are blocked on a pipe.

A process that ends, stops answering or raises is a ``Failure`` of that one alone: it is killed, and
the others go on without it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tqdm import tqdm

# Processes start with the interpreter alone, not as copies of one that has threads.
_CONTEXT = multiprocessing.get_context("spawn")
_END_SECONDS = 5


class Failure(Exception):
    """What a process was asked and did not answer, in a line; ``details`` is its traceback."""

    def __init__(self, message: str, details: str = ""):
        super().__init__(message)
        self.details = details


class Missing(Failure):
    """A package that a process needs is not installed."""


class Worker:
    """A process of its own that makes an object, and calls its methods when it is asked.

    Args:
        make: a function of a module, which returns the object. It is called in the process.
        args: its arguments; they are pickled.
        cores: the numbers of the only processor cores that the process uses; ``pin`` may take
            others later.
        environment: variables that are set before ``make`` is imported and called.
        first_on_path: a directory whose packages come before all others in the process.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *args: Any,
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        first_on_path: str = "",
    ):
        self._pipe, other = _CONTEXT.Pipe()
        where = f"{make.__module__}:{make.__qualname__}"
        self._process = _CONTEXT.Process(
            target=_serve,
            args=(other, where, args, tuple(cores), dict(environment or {}), first_on_path),
            daemon=True,
        )
        self._process.start()
        other.close()  # so that a process that ends is the end of the pipe

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive()

    def begin(self, method: str, *args: Any) -> None:
        """Asks without waiting; ``result`` waits.

        Raises:
            Failure: when the process has ended.
        """
        try:
            self._pipe.send((method, args))
        except OSError as error:
            raise self._ended() from error

    def result(self, limit: float) -> Any:
        """Waits for the answer.

        Args:
            limit: seconds, after which the process is killed.

        Raises:
            Missing: when a package is not installed.
            Failure: when the process raises, ends, or takes longer.
        """
        if not self._pipe.poll(limit):
            self.close(kill=True)
            raise Failure(f"did not answer within {limit:.0f} s")
        try:
            kind, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "result":
            return value
        self.close()
        raise (Missing if kind == "missing" else Failure)(*value)

    def ask(self, method: str, *args: Any, limit: float) -> Any:
        """Calls a method of the object in the process.

        Raises:
            Failure: as ``begin`` and ``result``.
        """
        self.begin(method, *args)
        return self.result(limit)

    def close(self, kill: bool = False) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(0 if kill else _END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _ended(self) -> Failure:
        self._process.join(_END_SECONDS)
        return Failure(f"ended with exit code {self._process.exitcode}")


def pin(cores: Iterable[int]) -> None:
    """Confines this process, with the threads that it has already, to some processor cores."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def _serve(
    pipe: Connection,
    where: str,
    args: tuple,
    cores: tuple[int, ...],
    environment: dict[str, str],
    first_on_path: str,
) -> None:
    """Runs in the process: answers until it is told to end, or until the asking process ends."""
    os.environ |= environment
    if cores:
        os.sched_setaffinity(0, cores)
    if first_on_path:
        sys.path.insert(0, first_on_path)
    made = None
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while (request := pipe.recv()) is not None:
            method, arguments = request
            try:
                if made is None:
                    module, _, name = where.partition(":")
                    # This module imports no library; the named one may.
                    made = getattr(__import__(module, fromlist=[name]), name)(*args)
                pipe.send(("result", getattr(made, method)(*arguments)))
            except ModuleNotFoundError as error:
                pipe.send(("missing", (f"{error.name} is not installed", traceback.format_exc())))
            except Exception as error:
                said = str(error).strip().partition("\n")[0]
                pipe.send(
                    ("error", (f"{type(error).__name__}: {said}"[:300], traceback.format_exc()))
                )


class Turns:
    """Workers by name, of which those that fail are left out from then on.

    Attributes:
        failures: by name, what went wrong.

    Args:
        workers: all of them.
        say: is called with lines for whoever waits.
        prefix: the prefix of names in ``failures``.
    """

    def __init__(
        self,
        workers: Mapping[str, Worker],
        say: Callable[[str], None] = tqdm.write,
        prefix: str = "",
    ):
        self.workers = dict(workers)
        self._prefix = prefix
        self.failures: dict[str, str] = {}
        self._say = say

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers = {}

    def drop(self, name: str, why: str) -> None:
        """Ends a worker and leaves it out."""
        self.failures[self._prefix + name] = why
        self._say(f"{self._prefix}{name} is left out: {why}")
        self.workers.pop(name).close()

    def collect(self, name: str, limit: float) -> Any:
        """The answer of one that was asked by ``Worker.begin``; None when it failed."""
        with self._failing(name):
            return self.workers[name].result(limit)
        return None

    def together(self, method: str, *args: Any, limit: float, only: Iterable[str] | None = None):
        """Asks all at once, to prepare what is not measured.

        Returns:
            answers by name.
        """
        asked = [name for name in self.workers if only is None or name in set(only)]
        for name in list(asked):
            with self._failing(name):
                self.workers[name].begin(method, *args)
        answers: dict[str, Any] = {}
        for name in asked:
            if name in self.workers:
                answer = self.collect(name, limit)
                if name in self.workers:
                    answers[name] = answer
        return answers

    def rounds(
        self,
        count: int,
        method: str,
        *args: Any,
        limit: float,
        only: Iterable[str] | None = None,
        progress: tqdm | None = None,
    ) -> dict[str, list[Any]]:
        """Asks one after the other, and all of them so many times.

        Each round begins with another one, so that none always follows the same neighbour.

        Returns:
            answers by name, in the order of rounds; only of those that answered in all rounds.
        """
        names = [name for name in self.workers if only is None or name in set(only)]
        answers: dict[str, list[Any]] = {name: [] for name in names}
        for turn in range(count):
            at = turn % max(1, len(names))
            for name in names[at:] + names[:at]:
                if name in self.workers:
                    if progress is not None:
                        progress.set_postfix_str(name)
                    with self._failing(name):
                        answers[name].append(self.workers[name].ask(method, *args, limit=limit))
                if progress is not None:
                    progress.update()
        return {name: answers[name] for name in names if name in self.workers}

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Failure as failure:
            if failure.details and not isinstance(failure, Missing):
                self._say(failure.details)
            self.drop(name, str(failure))


class Spread(NamedTuple):
    """A median, and the lowest and the highest value beside it."""

    median: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """The range as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def spread(values: Iterable[float]) -> Spread:
    """The median and the range of some values.

    Raises:
        ValueError: for none.
    """
    values = list(values)
    if not values:
        raise ValueError("There are no values, expected at least one.")
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours divided by theirs, round by round: what slows a whole round cancels.

    Raises:
        ValueError: for different numbers of rounds, or none.
    """
    return spread(a / b for a, b in zip(ours, theirs, strict=True))


def line_through(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """The line of least squares: intercept, slope, and R², the share of variance it explains."""
    middle = statistics.fmean(y)
    slope, intercept = statistics.linear_regression(x, y)
    left = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    whole = sum((b - middle) ** 2 for b in y)
    return intercept, slope, 1 - left / whole if whole else 1.0


class Clock(NamedTuple):
    """Seconds: of the process' own computing, and that went by."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.process_time(), time.perf_counter())

    def since(self, begin: Clock) -> Clock:
        return Clock(self.cpu - begin.cpu, self.wall - begin.wall)

"""Processes that are killed at a time, or before a change of files, and their status."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
_SLOW = 3600  # seconds after which a process is considered to hang
_MOST = 30  # how often workers of a job are started again


class Machine:
    """Runs functions in processes, and kills them.

    Args:
        work: a directory for everything.
    """

    def __init__(self, work: Path):
        self.log = work / "log"
        self.calls = work / "calls"

    def run(
        self,
        function: Callable[[], int],
        *,
        seconds: float = _SLOW,
        call: int | None = None,
        root: Path | None = None,
    ) -> int | None:
        """Runs a function and returns the exit status; None if it was killed.

        Args:
            function: runs in a separate process.
            seconds: the time after which it is killed.
            call: the number of the file change in ``root`` before which it is killed.
            root: the directory in which changes are counted.
        """
        process = os.fork()
        if not process:
            self._child(function, self.log, call, root)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                break
            time.sleep(min(0.01, max(end - time.monotonic(), 0)))
        else:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if seconds == _SLOW:
                raise RuntimeError(f"It hangs:\n{self.log.read_text()}")
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) != signal.SIGKILL:
                raise RuntimeError(f"Signal {os.WTERMSIG(status)}:\n{self.log.read_text()}")
            return None
        return os.waitstatus_to_exitcode(status)

    def job(
        self,
        function: Callable[[], int],
        workers: int,
        *,
        killed: Sequence[int] = (),
        seconds: float = _SLOW,
        call: int | None = None,
        root: Path | None = None,
    ) -> tuple[int, int]:
        """Runs a function as several workers; those that end with an error are started again.

        Args:
            function: runs in a separate process for each worker.
            workers: their number.
            killed: the workers that are killed, once.
            seconds: the time after which they are.
            call: the number of the file change in ``root`` before which the first one, which
                writes, is killed, and then the others of ``killed``.
            root: the directory in which changes are counted.

        Returns:
            How many were killed, and how many ended with an error and were started again.
        """
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(workers)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()

        def start(index: int, call: int | None = None, root: Path | None = None) -> int:
            if process := os.fork():
                return process
            task = {"type": "worker", "index": index}
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
            self._child(function, self.log.with_suffix(f".{index}"), call, root)
            raise AssertionError

        running = {
            index: start(index, *(() if index else (call, root))) for index in range(workers)
        }
        begin = time.monotonic()
        dead = failed = 0
        while running:
            time.sleep(0.02)
            now = time.monotonic() - begin
            if not dead and now >= seconds:
                for index in killed:
                    if index in running:
                        os.kill(running[index], signal.SIGKILL)
            for index, process in list(running.items()):
                found, status = os.waitpid(process, os.WNOHANG)
                if not found:
                    continue
                if status == 0:
                    del running[index]
                    continue
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    if call is not None and not dead:
                        for other in set(killed) & set(running) - {index}:
                            os.kill(running[other], signal.SIGKILL)
                    dead += 1
                else:
                    failed += 1
                if failed > _MOST or now > _SLOW:
                    logs = [self.log.with_suffix(f".{i}").read_text() for i in range(workers)]
                    raise RuntimeError("It does not end:\n" + "\n".join(logs))
                running[index] = start(index)
            if dead:
                seconds = _SLOW
        return dead, failed

    def _child(
        self, function: Callable[[], int], log: Path, call: int | None, root: Path | None
    ) -> None:
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, 1)
        os.dup2(written, 2)
        count = itertools.count()
        seen = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal seen
            if event not in _CHANGES or not str(arguments[0]).startswith(f"{root}/"):
                return
            if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
            seen = next(count)
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)

        if root is not None:
            sys.addaudithook(hook)
        status = 99
        try:
            status = function()
            if call is None and root is not None:
                self.calls.write_text(str(seen))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

"""Runs the cells of an experiment in parallel, each run in its own process."""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from bertfam_tf.files import write
from bertfam_tf.names import truncated
from bertfam_tf.recipes.directory import METRICS, MODEL, Flops
from bertfam_tf.recipes.experiments import hardware
from bertfam_tf.recipes.experiments.cells import EVALUATE, PAIRS, PAIRS_FILE, Cell, Run
from bertfam_tf.recipes.reading import expand, load_finished

_log = logging.getLogger(__name__)
_PAUSE = 0.2
_PATIENCE = 30.0  # seconds that an interrupted run may take to end
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_PACKAGES = ("bertfam-tf", "tensorflow", "keras")


@dataclass(frozen=True)
class Progress:
    """The progress of ``run_cells``.

    Attributes:
        finished, total: the numbers of finished and of all runs.
        running: the names of running runs.
    """

    finished: int
    total: int
    running: tuple[str, ...]


def runs_of(cells: Iterable[Cell]) -> list[Run]:
    """Returns the distinct runs of cells, row by row."""
    return list(dict.fromkeys(run for cell in cells for run in cell.runs.values()))


def default_workers() -> int:
    """Returns the number of processor cores; 1 with a GPU, because a run takes its memory."""
    return 1 if hardware.gpus() else hardware.cores()


def run_cells(
    cells: Sequence[Cell],
    workers: int,
    *,
    flops: Flops | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Runs all cells that are not finished.

    Each run is a process of ``bertfam`` that uses its fraction of the processor's cores, with its
    output in a file next to its directory. An interrupted run resumes from its training checkpoint.
    If a run fails, runs that do not need its model continue.

    Args:
        cells: the result of ``plan_cells``.
        workers: the number of parallel runs; 0 runs all in this process.
        flops: the same as for ``RunDirectory``, for runs in this process.
        progress: is called when a run starts or ends.

    Raises:
        ValueError: if a directory has a run with other settings; and at the end, if a run failed
            because of a setting or file.
        OSError: at the end, if runs failed for other, possibly temporary reasons.
    """
    runs = runs_of(cells)
    for run in runs:
        run.check()
    waiting = [run for run in runs if not run.finished]
    failed: dict[Run, tuple[int, str]] = {}
    running: dict[Run, _Process] = {}

    def show() -> None:
        done = sum(run.finished for run in runs)
        progress(Progress(done, len(runs), tuple(run.name for run in running)))

    def fail(run: Run, status: int, error: str) -> None:
        failed[run] = (status, error)
        _log.warning("%s failed: %s", run.name, error)

    try:
        while waiting or running:
            for run in list(waiting):
                broken = [parent for parent in run.parents if parent in failed]
                if broken:
                    waiting.remove(run)
                    failed[run] = (failed[broken[0]][0], f"it needs {broken[0].name}")
                elif all(x.finished for x in run.parents) and len(running) < max(workers, 1):
                    waiting.remove(run)
                    if workers:
                        running[run] = _Process(run, hardware.cores() // workers)
                        show()
                    else:
                        progress(Progress(len(runs) - len(waiting) - 1, len(runs), (run.name,)))
                        try:
                            _run_here(run, flops)
                        except (ValueError, OSError) as error:
                            lasting = isinstance(error, ValueError | FileNotFoundError)
                            fail(run, 2 if lasting else 1, str(error))
                        show()
            for run, process in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                del running[run]
                if status != 0 or not run.finished:
                    fail(run, status, process.last_line())
                show()
            if running:
                time.sleep(_PAUSE)
    finally:
        for process in running.values():
            process.interrupt()
        for process in running.values():
            process.end()
    if failed:
        causes = {x: why for x, why in failed.items() if not why[1].startswith("it needs ")}
        logs = {x: f" ({x.log})" if workers else "" for x in causes}
        listed = "; ".join(
            f"{x.name}{logs[x]}: {truncated(why.removesuffix('.'))}"
            for x, (_, why) in causes.items()
        )
        text = f"{len(failed)} of {len(runs)} runs failed: {listed}."
        raise (ValueError if any(code == 2 for code, _ in causes.values()) else OSError)(text)


def _measurements(seconds: float, cpu_seconds: float, run: Run) -> dict[str, Any]:
    """Returns the record of a run; its time is added to the time before an interruption."""
    before = run.record()
    return {
        "seconds": round(before.get("seconds", 0.0) + seconds, 1),
        "cpu_seconds": round(before.get("cpu_seconds", 0.0) + cpu_seconds, 1),
        "machine": ", ".join([hardware.cpu(), *hardware.gpus()]),
        "versions": hardware.versions(_PACKAGES),
        "date": datetime.date.today().isoformat(),
    }


def _run_here(run: Run, flops: Flops | None) -> None:
    """Runs a run in this process."""
    from bertfam_tf import tasks
    from bertfam_tf.recipes import distillation, multi_task, pretraining
    from bertfam_tf.recipes.fine_tuning import evaluate

    run.write_record({})
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        if run.verb == "pretrain":
            pretraining.pretrain(run.loaded, flops=flops)
        elif run.verb == "distill":
            distillation.distill(run.loaded)
        elif PAIRS in run.settings:
            _write_metrics(run, _score_pairs(run))
        elif run.verb == EVALUATE:
            *overrides, split = run.overrides
            recipe = load_finished(run.recipe / "recipe.yaml", overrides)
            task: Any = tasks.load(run.recipe / MODEL)
            score: Any = (
                multi_task.evaluate_tasks if isinstance(task, tasks.MultiTask) else evaluate
            )
            _write_metrics(run, score(task, recipe, split.partition("=")[2]))
        else:
            multi_task.train(run.loaded, flops=flops)
    finally:
        spent = time.perf_counter() - start, time.process_time() - cpu_start
        run.write_record(_measurements(*spent, run))


def _score_pairs(run: Run) -> dict[str, float]:
    from bertfam_tf import metrics, tasks

    directory = str(run.recipe / MODEL)
    # Pretraining writes a checkpoint.
    task = tasks.load(directory) if tasks.is_saved(directory) else tasks.load_checkpoint(directory)
    file = run.directory / PAIRS_FILE
    return metrics.minimal_pairs(task, expand(run.settings[PAIRS]), file=file)


def _write_metrics(run: Run, metrics: Any) -> None:
    write(run.directory / METRICS, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")


class _Process:
    """The process of a run.

    Args:
        run: the run.
        threads: the number of threads for matrix products.
    """

    def __init__(self, run: Run, threads: int):
        self.run = run
        run.write_record({})
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        thread_counts = {name: str(max(threads, 1)) for name in names}
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **thread_counts, **os.environ}
        self._stream: IO[bytes] = run.log.open("ab")
        self._stream.write(f"$ {run.command}\n".encode())
        self._stream.flush()
        self._offset = self._stream.tell()
        evaluates = run.verb == EVALUATE
        self._begin = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bertfam_tf.cli", *run.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if evaluates else self._stream,
            stderr=self._stream,
            # Ctrl-C only reaches this process, which passes it on.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )

    def poll(self) -> int | None:
        """Returns the exit status; None while the process runs."""
        process = self._process
        if process.returncode is None:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                self._finish(os.waitstatus_to_exitcode(status), used)
        return process.returncode

    def interrupt(self) -> None:
        """Asks the process to end."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> None:
        """Waits for the end of an interrupted process."""
        until = time.monotonic() + _PATIENCE
        while self.poll() is None:
            if time.monotonic() > until:
                os.kill(self._process.pid, signal.SIGKILL)
            time.sleep(_PAUSE)

    def last_line(self) -> str:
        """Returns the last line of the output, which names the error."""
        with self.run.log.open("rb") as stream:
            stream.seek(self._offset)
            lines = [line for line in stream.read().decode("utf-8", "replace").split("\n") if line]
        return lines[-1].strip() if lines else f"exit status {self._process.returncode}"

    def _finish(self, status: int, used: Any) -> None:
        self._process.returncode = status
        spent = time.perf_counter() - self._begin, used.ru_utime + used.ru_stime
        self.run.write_record(_measurements(*spent, self.run))
        if self._process.stdout is not None:
            with self._process.stdout as stream:
                lines = stream.read().decode("utf-8", "replace").strip().split("\n")
            if status == 0:
                _write_metrics(self.run, json.loads(lines[-1]))
        self._stream.close()


_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Makes the system end this process if the experiment is killed, which can resume it later."""
    if _LIBC is not None:
        _LIBC.prctl(_DEATH_SIGNAL, signal.SIGTERM)

"""Logs training: steps as JSON and for TensorBoard, epochs as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bertfam_tf import parsing
from bertfam_tf.data.errors import os_errors
from bertfam_tf.files import remove_files, write
from bertfam_tf.names import truncated

# The size of the matrices whose multiplication is timed.
_CPU_SIZE, _GPU_SIZE = 1024, 8192
_REPEATS, _SECONDS = 5, 1.0
_DIGITS = 7
# Keys of lines that version 0.1 wrote.
_RENAMED = {"flops_share": "mfu"}
_MOST_STEPS = 1 << 63  # in TensorBoard's events
_EVENTS = "events.out.tfevents.*"


class StepLog(keras.callbacks.Callback):
    """Writes a line of JSON every ``every`` steps, and after each epoch.

    The line of a step has ``step``, from 1; the ``loss``, ``learning_rate`` and ``gradient_norm``
    (before clipping) of this step; and, since the previous line and without evaluation,
    ``examples_per_second`` (windows of long documents), ``tokens_per_second``, of real tokens, and
    ``mfu``: the FLOP/s for these tokens, divided by the FLOP/s that the devices reach in
    multiplications of large matrices (model FLOPs utilization, arXiv 2204.02311, appendix B;
    ``flops_share`` in logs of version 0.1). The line of an epoch has its last ``step``, its
    ``epoch``, from 0, and all losses and metrics. Values that are not finite are null.

    A resumed run removes lines after its checkpoint, and writes TensorBoard's events again. It must
    be called before a ``Backup``.

    Args:
        file: the file of lines.
        board: the directory of TensorBoard's events; no other writer may use it.
        step: the number of steps that are done.
        every: the number of steps between lines.
        flops: returns the training FLOPs per token for the mean number of tokens of an example in
            the first steps; None if unknown.
        writes: whether this process writes. All workers must read the logged values.
    """

    def __init__(
        self,
        file: Path,
        board: Path,
        step: int = 0,
        every: int = 50,
        flops: Callable[[int], float | None] = lambda length: None,
        *,
        writes: bool = True,
    ):
        super().__init__()
        self.file = file
        self.board = board
        self.step = step
        self.every = every
        self.writes = writes
        self._flops = cache(flops)
        self._start: float | None = None  # the time of the last line
        self._rate = 0.0
        self._length = 0  # the mean length of examples, for FLOPs
        self._events: Any = None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines so far, without truncated or damaged ones."""
        return read_lines(self.file)

    def on_train_begin(self, logs=None):
        self._start = None
        if self.writes and self._events is None:
            earlier = [line for line in self.lines if line["step"] <= self.step]
            write(self.file, "".join(map(_as_json, earlier)))
            remove_files(self.board, [_EVENTS])
            with os_errors(self.board):
                self._events = tf.summary.create_file_writer(str(self.board))
                for line in earlier:
                    self._show(line)

    def on_test_begin(self, logs=None):
        self._paused = time.perf_counter()

    def on_test_end(self, logs=None):
        if self._start is not None:
            self._start += time.perf_counter() - self._paused

    def on_train_batch_begin(self, batch, logs=None):
        if self.writes and (self.step + 1) % self.every == 0:
            self._rate = float(self.model.optimizer.learning_rate)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        start, due = self._start, self.step % self.every == 0
        if start is not None and not due:
            return
        counts, loss = self.model.step_counts.take(), self.model.step_loss.read()
        now = time.perf_counter()
        if due and self.writes:
            optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
            line = {"loss": loss, "learning_rate": self._rate}
            line["gradient_norm"] = optimizer.gradient_norm.read()
            # The first step includes tracing.
            self._write(line if start is None else line | self._rates(counts, now - start))
        self._start = time.perf_counter()

    def _rates(self, counts: Any, seconds: float) -> dict[str, float]:
        examples, rows, tokens = (float(count) / seconds for count in counts)
        rates = {"examples_per_second": examples, "tokens_per_second": tokens}
        if not self._length and rows and tokens:
            self._length = max(round(tokens / rows), 1)
        flops = self._flops(self._length) if self._length else None
        if flops is not None:
            devices = self.model.distribute_strategy.num_replicas_in_sync
            peak = devices * matmul_rate(self.model.compute_dtype)
            rates["mfu"] = flops * tokens / peak
        return rates

    def on_epoch_end(self, epoch, logs=None):
        if self.writes:
            logs = logs or {}
            self._write({"epoch": epoch, **{name: logs[name] for name in sorted(logs)}})

    def _write(self, values: Mapping[str, Any]) -> None:
        line = {"step": self.step, **{name: _rounded(x) for name, x in values.items()}}
        with os_errors(self.file), self.file.open("a", encoding="utf-8") as stream:
            stream.write(_as_json(line))
        with os_errors(self.board):
            self._show(line)
            self._events.flush()

    def _show(self, line: Mapping[str, Any]) -> None:
        prefix = "epoch/" if "epoch" in line else ""
        # One operation for all values: a long run writes many lines again when it resumes.
        summary = tf.compat.v1.Summary()
        for name, value in line.items():
            if name not in ("step", "epoch") and value is not None:
                summary.value.add(tag=f"{prefix}{name}", simple_value=value)
        with self._events.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=line["step"])


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the lines that a ``StepLog`` wrote, without truncated or damaged ones."""
    if not file.is_file():
        return []
    lines = []
    for line in file.read_text("utf-8", "replace").split("\n"):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_line(values):
            lines.append({_RENAMED.get(name, name): x for name, x in values.items()})
    return lines


@cache
def matmul_rate(dtype: str) -> float:
    """Returns the FLOP/s of a device in multiplications of large square matrices, at its fastest.

    Args:
        dtype: the dtype of the matrices.
    """
    size = _GPU_SIZE if tf.config.list_logical_devices("GPU") else _CPU_SIZE
    product = tf.function(lambda x: tf.reduce_max(tf.linalg.matmul(x, x)), autograph=False)
    matrix = tf.ones((size, size), dtype)
    float(product(matrix))
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _SECONDS:
        start = time.perf_counter()
        float(product(matrix))
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def _rounded(value: Any) -> int | float | None:
    if isinstance(value, int):
        return value
    value = float(value)
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _is_line(values: Any) -> bool:
    """Returns whether a JSON value is a line of the log."""
    return (
        isinstance(values, dict)
        and all(type(values.get(name, 0)) is int for name in ("step", "epoch"))
        and 0 <= values.get("step", -1) < _MOST_STEPS
        and all(x is None or type(x) in (int, float) for x in values.values())
    )


def _as_json(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


class History(keras.callbacks.Callback):
    """Writes a line for each epoch.

    Keras' ``CSVLogger`` appends; here an epoch that is repeated after an interruption replaces its
    earlier line, and the file is written atomically.

    Args:
        file: the CSV file.
    """

    def __init__(self, file: Path):
        super().__init__()
        self.file = file

    @property
    def rows(self) -> list[dict[str, str]]:
        """The epochs so far: numbers as text by column, empty if an epoch has no value.

        Raises:
            ValueError: if the file is damaged.
        """
        if not os.path.lexists(self.file):
            return []
        reader = csv.DictReader(io.StringIO(parsing.read_text(self.file), newline=""))
        try:
            rows = list(reader)
            for row in rows:
                int(row["epoch"])
                for value in row.values():
                    float(value or "nan")
        except (csv.Error, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{self.file} is not the history of a run, expected numbers in all columns: "
                f"{truncated(error)}. Remove it to continue without these epochs."
            ) from error
        return rows

    def on_epoch_end(self, epoch, logs=None):
        logs = logs or {}
        row = {"epoch": str(epoch), **{name: str(logs[name]) for name in sorted(logs)}}
        rows = [*(earlier for earlier in self.rows if int(earlier["epoch"]) < epoch), row]
        text = io.StringIO(newline="")
        # Stages of a distillation have different losses.
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(text, list(columns))
        writer.writeheader()
        writer.writerows(rows)
        write(self.file, text.getvalue())

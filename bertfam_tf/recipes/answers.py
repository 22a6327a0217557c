"""Predictions for files of any size; interrupted runs resume after the last complete line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np

from bertfam_tf import parsing
from bertfam_tf.data import Row, Rows
from bertfam_tf.data.labels import decoded
from bertfam_tf.data.race import archive_of
from bertfam_tf.data.reading import expanded, is_published
from bertfam_tf.files import exclusive_lock, remove_leftovers, resume, write
from bertfam_tf.sources import DESCRIPTION, sha256
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.fingerprint import fingerprint

_CHUNK = 1 << 20
_ID = "id"
_log = logging.getLogger(__name__)


def answer_file(
    task: Task,
    rows: Rows,
    output: str | Path,
    source: Mapping[str, Any],
    *,
    batch_size: int = 32,
    top: int | None = None,
    verbose: bool = True,
) -> int:
    """Writes a prediction for each row, one JSON object per line, in the order of the rows.

    Each begins with the row's ``id``, or without ids with its number, ``row``, from 0.

    ``OUTPUT.source.json`` next to the output describes the input and the model. If an interrupted
    run is started again with the same source, it resumes after the last complete line with the same
    batches, and the output is the same as without the interruption.

    Args:
        task: the task that predicts.
        rows: the input; a feature ``id`` that the task does not read is the row's id.
        output: the output file.
        source: identifies the input and the model, as JSON values; see ``source_of``.
        batch_size: the number of examples per batch.
        top: the same as for ``as_json``.
        verbose: whether to show a progress bar.

    Returns:
        The number of rows.

    Raises:
        ValueError: if the output exists and belongs to another source or none, or if another
            process is writing it.
        OSError: if writing fails, for example because the disk is full; the next run resumes.
    """
    output = Path(os.path.realpath(output))
    sidecar = output.with_name(f"{output.name}.source.json")
    job = {**source, "batch_size": batch_size, "rows": rows.count, "top": top, "numbered": True}
    with exclusive_lock(output, output.with_name(f".{output.name}.lock")):
        done = _prepare_output(output, sidecar, job)
        if done:
            _log.info("Resuming from row %d of %d.", done, rows.count)
        bar = keras.utils.Progbar(rows.count, verbose=int(verbose), unit_name="row")
        start = done // batch_size * batch_size
        if done == rows.count:
            return rows.count
        remaining = islice(rows, start, None)
        batches = iter(lambda: list(islice(remaining, batch_size)), [])
        chunks = (
            b"".join(islice(_lines(task, batch, i, batch_size, top), max(done - i, 0), None))
            for i, batch in zip(count(start, batch_size), batches, strict=False)
        )
        # Columns that the task cannot read are errors before anything is written.
        first = next(chunks)
        if not sidecar.exists():
            write(sidecar, json.dumps(job, indent=2) + "\n")
        with output.open("ab", buffering=0) as file:
            for chunk in chain([first], chunks):
                _append(file, chunk, output)
                start = min(start + batch_size, rows.count)
                bar.update(start)
            os.fsync(file.fileno())
    return rows.count


def _append(file: Any, data: bytes, output: Path) -> None:
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as error:
        text = f"{error.strerror}; the next run resumes after the last complete line"
        raise OSError(error.errno, text, str(output)) from error


def source_of(file: Path, model: Path | Task, **settings: Any) -> dict[str, Any]:
    """Identifies an input and a task.

    Args:
        file: the input, identified by name, size and modification time.
        model: the directory of a saved task, identified by its list of file digests; or a task.
        **settings: how the input is read.
    """
    digest = fingerprint(model) if isinstance(model, Task) else sha256(model / DESCRIPTION)
    return {**input_of(file), "model": digest, **settings}


def input_of(file: Path) -> dict[str, Any]:
    """Identifies an input by its name, size and modification time; or the files of a pattern."""
    if is_published(file):
        return {"input": str(file)}
    stats = [(archive_of(Path(path)) or Path(path)).stat() for path in expanded(file)]
    return {
        "input": str(file),
        "size": sum(stat.st_size for stat in stats),
        "changed_ns": max(stat.st_mtime_ns for stat in stats),
    }


def as_json(answer: Any, task: Task, top: int | None = None) -> dict[str, Any]:
    """Converts a prediction to a JSON object.

    Args:
        answer: an element of the result of ``task.predict``.
        task: the task; scores of classifiers become a dict by label, the highest score first.
        top: the maximum number of scores; None for all.
    """
    plain = _plain(answer)
    if not isinstance(plain, dict):
        return {task.answer_name: plain}
    if task.ranked_scores:
        by_label = zip(task.class_names, plain["scores"], strict=True)
        best = sorted(by_label, key=lambda item: item[1], reverse=True)
        plain["scores"] = dict(best[:top])
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _prepare_output(output: Path, sidecar: Path, job: dict[str, Any]) -> int:
    """Checks the source, removes an incomplete last line, and returns the number of lines."""
    remove_leftovers(sidecar)
    resume(output, [sidecar], job, parsing.read_json, "answers")
    if not output.exists():
        return 0
    with output.open("r+b") as file:
        lines, end = _count_complete_lines(file)
        if file.tell() != end:
            file.truncate(end)
    if lines > job["rows"]:
        raise ValueError(f"{output} has {lines} lines for {job['rows']} rows; remove it.")
    return lines


def _count_complete_lines(file: BinaryIO) -> tuple[int, int]:
    """Returns the number of complete lines, and the position after the last one."""
    lines = end = position = 0
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        last = chunk.rfind(b"\n")
        end = end if last < 0 else position + last + 1
        position += len(chunk)
    return lines, end


def _lines(
    task: Task, batch: list[Row], start: int, batch_size: int, top: int | None
) -> Iterator[bytes]:
    names = [name for name in batch[0].features if name != _ID]
    features = {name: [row.features[name] for row in batch] for name in names}
    answers = task.predict(features, batch_size=batch_size)
    for number, (row, answer) in enumerate(zip(batch, answers, strict=True), start):
        line = {**_identity(row, number), **as_json(answer, task, top)}
        yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _identity(row: Row, number: int) -> dict[str, Any]:
    """The row's id, or without one its number."""
    row_id = row.id if isinstance(row.id, int | float) else row.features.get(_ID, row.id)
    if row_id is None:
        return {"row": number}
    return {_ID: decoded(row_id)}

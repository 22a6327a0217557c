"""Builds an index; an interrupted build resumes after the last complete part."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bertfam_tf import files, tasks
from bertfam_tf.data import Row, Rows
from bertfam_tf.metrics import unit_length
from bertfam_tf.names import unknown
from bertfam_tf.search.storage import (
    FILE,
    PRECISIONS,
    Description,
    Part,
    part_file,
    read_description,
    write_description,
    write_part,
)
from bertfam_tf.tasks import TextEmbedder, quantize_embeddings
from bertfam_tf.tasks.fingerprint import fingerprint
from bertfam_tf.tasks.precision import ranges_of

# A killed build repeats at most this many rows.
_PART_ROWS = 1024
_BUILD_STATE = ("ranges", "documents")
_log = logging.getLogger(__name__)


def embedder(path: str | Path, language: str | int | None = None) -> TextEmbedder:
    """Returns the embedder at a path.

    Args:
        path: a saved task, or a checkpoint that ``TextEmbedder.from_pretrained`` reads.
        language: the language of texts, a code or an id, for models with language embeddings; None
            for the saved task's.

    Raises:
        CheckpointError: as ``tasks.load`` and ``from_pretrained`` raise it.
        ValueError: if the saved task is of another kind, or the language is unknown or missing.
    """
    if not tasks.is_saved(path):
        chosen: dict[str, Any] = {} if language is None else {"language": language}
        return TextEmbedder.from_pretrained(path, **chosen)
    task = tasks.load(path)
    if not isinstance(task, TextEmbedder):
        raise ValueError(f"{path} is a {type(task).__name__}, expected a TextEmbedder.")
    if language is not None:
        task.language = language
    return task


def build(
    task: TextEmbedder,
    rows: Rows,
    directory: str | Path,
    source: Mapping[str, Any],
    *,
    precision: str = "float32",
    prompt: str | None = None,
    batch_size: int = 32,
    verbose: bool = True,
    part_rows: int = _PART_ROWS,
) -> int:
    """Embeds the rows, and writes an index of them.

    Rows with only white space are skipped. Vectors are always normalized to length 1, so scores
    are cosines.

    Args:
        task: the model.
        rows: rows with the feature ``text`` and, optionally, ``id``.
        directory: the directory of the index: a new one, or one with an interrupted build of the
            same index.
        source: identifies the file, as JSON values.
        precision: ``"float32"``; ``"int8"``, a quarter of the size, with the ranges of the first
            part; or ``"binary"``, a 32nd.
        prompt: the name of the prompt before each document; None for no prompt.
        batch_size: the batch size of the model.
        verbose: whether to show a progress bar.
        part_rows: the number of rows of a part.

    Returns:
        The number of documents.

    Raises:
        ValueError: if the precision or prompt is unknown, the directory contains something else, or
            no row has text.
        BlockingIOError: if another process is building it.
        OSError: if writing fails, for example because the disk is full; the next build resumes.
    """
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision of an index", precision, PRECISIONS))
    if prompt is not None and prompt not in task.prompts:
        raise ValueError(unknown("prompt", prompt, task.prompts))
    target = Path(directory)
    description = Description(
        model=fingerprint(task),
        family=task.backbone.family,
        name=type(task).__name__,
        width=task.outputs[0].shape[-1],
        precision=precision,
        prompt=prompt,
        source=dict(source),
        rows=rows.count,
        part_rows=part_rows,
    )
    with files.exclusive_lock(target, target.with_name(f".{target.name}.lock")):
        described = _started(target, description)
        if described.documents is None:
            described = _filled(task, rows, target, described, batch_size, verbose)
    assert described.documents is not None
    return described.documents


def _started(target: Path, description: Description) -> Description:
    """Returns the description of an interrupted build, or of a new one."""

    def job(described: Description) -> dict[str, Any]:
        return {k: v for k, v in asdict(described).items() if k not in _BUILD_STATE}

    def read(file: Path) -> dict[str, Any]:
        return job(read_description(file.parent))

    if files.resume(target, [target / FILE], job(description), read, "an index"):
        return read_description(target)
    write_description(target, description)
    return description


def _filled(
    task: TextEmbedder,
    rows: Rows,
    target: Path,
    described: Description,
    batch_size: int,
    verbose: bool,
) -> Description:
    done, documents = 0, 0
    while done < described.parts and part_file(target, done).is_file():
        documents += Part(part_file(target, done), described).count
        done += 1
    if done:
        _log.info("Resuming from row %d of %d.", done * described.part_rows, rows.count)
    bar = keras.utils.Progbar(rows.count, verbose=int(verbose), unit_name="row")
    left = islice(rows, done * described.part_rows, None)
    for number in range(done, described.parts):
        first = number * described.part_rows
        batch = [
            (first + i, row)
            for i, row in enumerate(islice(left, described.part_rows))
            if _text(row).strip()
        ]
        vectors = _unit_vectors(task, [row for _, row in batch], described, batch_size)
        if described.precision == "int8" and described.ranges is None and len(vectors):
            described = replace(described, ranges=ranges_of(vectors).tolist())
            write_description(target, described)
        write_part(
            part_file(target, number),
            described,
            _stored(vectors, described),
            [(index, _id(row, index), _text(row)) for index, row in batch],
        )
        documents += len(batch)
        bar.update(min(first + described.part_rows, rows.count))
    if not documents:
        raise ValueError(f"No row of {described.source.get('input', 'the file')} has any text.")
    described = replace(described, documents=documents)
    write_description(target, described)
    return described


def _text(row: Row) -> bytes:
    text = row.features["text"]
    assert isinstance(text, bytes)
    return text


def _id(row: Row, index: int) -> bytes:
    identifier = row.features.get("id", row.id)
    if identifier is None:
        return str(index).encode()
    return identifier if isinstance(identifier, bytes) else str(identifier).encode()


def _unit_vectors(
    task: TextEmbedder, rows: list[Row], described: Description, batch_size: int
) -> np.ndarray:
    """Computes the embeddings of rows, of length 1, in their order."""
    if not rows:
        return np.zeros((0, described.width), "float32")
    # Batches of texts of similar length have little padding.
    order = sorted(range(len(rows)), key=lambda i: len(_text(rows[i])))
    embeddings = task.predict(
        [_text(rows[i]) for i in order], prompt=described.prompt, batch_size=batch_size
    )
    vectors = np.empty_like(embeddings)
    vectors[order] = unit_length(embeddings)
    if not np.isfinite(vectors).all():
        raise ValueError(f"The model returns NaN or infinity for {rows[0].location} or after it.")
    return vectors


def _stored(vectors: np.ndarray, described: Description) -> np.ndarray:
    if described.precision == "float32" or not len(vectors):
        width = described.stored_width
        return vectors if len(vectors) else np.zeros((0, width), "float32")
    name = "ubinary" if described.precision == "binary" else described.precision
    return quantize_embeddings(vectors, name, described.ranges)

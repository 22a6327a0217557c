"""Reads RACE's multiple-choice questions (arXiv 1704.04683)."""

from __future__ import annotations

import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from bertfam_tf import parsing
from bertfam_tf.data.rows import InvalidRow, Row, as_bytes
from bertfam_tf.names import truncated

_SPLITS = {"train", "dev", "test"}


def race_rows(path: Path) -> Iterator[Row | InvalidRow]:
    """Yields questions: ``text``, ``question`` and ``choices``; the label is a letter.

    Args:
        path: a folder of passages, each a file with a JSON object; or a tar archive of such files.
            The path may continue inside the archive, such as ``RACE.tar.gz/train/middle``. Passages
            of a folder are sorted by name; passages of an archive keep its order.

    Raises:
        ValueError: if there is no such folder, or it has more than one split.
    """
    splits = set()
    for name, content in _passages(path):
        splits |= _SPLITS.intersection(PurePosixPath(name).parts[:-1])
        if len(splits) > 1:
            splits_found = " and ".join(sorted(splits))
            raise ValueError(
                f"{path} has {splits_found}; choose one of them, such as {path}/train."
            )
        try:
            passage = json.loads(content)
            article = as_bytes(passage["article"])
            columns = [passage[key] for key in ("questions", "options", "answers")]
            rows = list(zip(*columns, strict=True))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            yield InvalidRow("passage", f"{path}: {name} is not a passage of RACE: {text}.")
            continue
        for number, row in enumerate(rows):
            yield _question(f"{path}: {name}, question {number}", article, *row)


def _question(location: str, article: bytes, question: Any, options: Any, answer: Any) -> Any:
    try:
        features: dict[str, Any] = {
            "text": article,
            "question": as_bytes(question),
            "choices": list(map(as_bytes, options)),
        }
    except (TypeError, AttributeError) as error:
        return InvalidRow("passage", f"{location} does not have RACE's format: {error}.")
    return Row(location, features, answer)


def _passages(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.txt")):
            yield str(file.relative_to(path)), parsing.read_bytes(file)
        return
    archive = archive_of(path)
    if archive is None:
        raise ValueError(f"There is no folder or archive {path}.")
    try:
        yield from _members(archive, path.relative_to(archive).parts)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{archive} cannot be read as an archive; it may be truncated or damaged: "
            f"{truncated(error)}"
        ) from error


def _members(archive: Path, folder: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            inside = any(parts[i : i + len(folder)] == folder for i in range(len(parts)))
            if member.isfile() and member.name.endswith(".txt") and inside:
                stream = tar.extractfile(member)
                assert stream is not None
                # Compressed or sparse files may be much larger than the archive.
                if member.size > parsing.MAX_BYTES:
                    raise ValueError(
                        f"{archive}: {truncated(member.name)} has {member.size:,} bytes, expected "
                        f"at most {parsing.MAX_BYTES:,} of a passage."
                    )
                # Only folders below the requested one can be splits.
                start = next(i for i in range(len(parts)) if parts[i : i + len(folder)] == folder)
                yield "/".join(parts[start:] if folder else parts), stream.read()


def archive_of(path: Path) -> Path | None:
    """Returns the tar archive that a path is or points into, or None."""
    for candidate in (path, *path.parents):
        if candidate.is_file():
            return candidate if tarfile.is_tarfile(candidate) else None
    return None

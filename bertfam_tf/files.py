"""Atomic writes of files and directories, and locks that allow an output a single writer.

A writer creates a scratch directory next to its target, ``.NAME.xxxxxxxx.tmp``, syncs its content
to disk and renames it. While it runs it holds a lock (flock) on the scratch directory, which other
containers and hosts see too. The next writer of the target can therefore distinguish the leftovers
of a killed process, which it removes, from work in progress. On file systems without locks, nothing
is removed and every writer may write.

An output that is written in steps has a description of its job, such as the recipe of a run or the
data card of shards. ``resume`` compares it with the job that is started, and raises an error for
the output of another job and for files that are not the job's; ``remove_files`` removes by name, so
that files which users add to an output are kept.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

LOCK = ".lock"
_FORMER = ".former"
_CONSEQUENCE = "; nothing was written, the previous content is unchanged"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_SCRATCH = re.compile(r"\.(?P<target>.+)\.[a-z0-9_]{8}\.tmp")
_OWNER = re.compile(rb"process \d+ on ")
# The directory of a new disk, and the lock of the process that checks.
_NO_CONTENT = {LOCK, "lost+found"}
_SHOWN, _LONGEST = 3, 200
# Arguments of ``check_kind``.
PNG = ("a PNG picture", b"\x89PNG")
HTML = ("an HTML page", b"<!doctype html>")
_log = logging.getLogger(__name__)


@contextmanager
def atomic(target: str | os.PathLike[str], *, replace: bool = True) -> Iterator[Path]:
    """Yields a temporary path for a file or directory that replaces ``target`` on exit.

    Readers see either the previous or the complete new content, even if the process is killed. An
    error in the body leaves ``target`` unchanged. Symbolic links are followed.

    Args:
        target: the final path; its parent is created if missing.
        replace: whether an existing file or non-empty directory is replaced.

    Raises:
        FileExistsError: if the target exists and ``replace`` is false.
        OSError: if writing fails, for example because the disk is full; the message names the
            target.
    """
    final = _real_path(target)
    with scratch(final) as directory:
        path = directory / final.name
        yield path
        if not replace and path.is_dir():
            with suppress(OSError):  # not empty, or missing
                final.rmdir()
        move_into_place(path, final, replace=replace)


def write(target: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file atomically, text as UTF-8. Errors as for ``atomic``."""
    with atomic(target) as path:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def scratch(target: str | os.PathLike[str], *, inside: bool = False) -> Iterator[Path]:
    """Yields an empty directory on the file system of ``target``, and removes it on exit.

    Leftovers of killed writers of the same target are removed first.

    Args:
        target: the output that will be written; errors name it.
        inside: whether the directory is created in ``target`` instead of next to it.

    Raises:
        OSError: if writing fails; the message names the target.
    """
    target = _real_path(target)
    parent = target if inside else target.parent
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target, inside=inside)
        path, lock = _new_scratch(parent, target.name)
    except OSError as error:
        raise _with_target(error, target) from error
    try:
        yield path
    except OSError as error:
        # Errors about other files, such as inputs, are not changed.
        if error.filename is None or path in Path(os.fsdecode(error.filename)).parents:
            raise _with_target(error, target) from error
        raise
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _release(lock)
        for folder in missing:
            with suppress(OSError):  # not empty, because it has been written
                folder.rmdir()


def move_into_place(source: Path, target: Path, *, replace: bool = True) -> None:
    """Syncs a file or directory in a ``scratch`` directory to disk and renames it to ``target``.

    Args:
        source: a direct child of the scratch directory.
        target: the final path.
        replace: whether an existing file or non-empty directory is replaced.

    Raises:
        FileExistsError: if the target exists and ``replace`` is false.
    """
    _sync(source)
    if not replace and os.path.lexists(target):
        raise FileExistsError(f"{target} exists; it is not overwritten.")
    if source.is_dir() and target.is_dir() and any(target.iterdir()):
        if not _exchange(source, target):
            # ``remove_leftovers`` repairs a kill between the two renames.
            former = source.with_name(_FORMER)
            os.rename(target, former)
            try:
                os.rename(source, target)
            except BaseException:
                os.rename(former, target)
                raise
    else:
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            raise FileExistsError(f"{target} exists; it is not overwritten.") from error
    _sync_one(target.parent)


def remove_leftovers(target: str | os.PathLike[str], *, inside: bool = False) -> None:
    """Removes scratch directories that killed writers of ``target`` left next to or inside it.

    If a writer was killed between two renames (on a file system that cannot exchange directories),
    the previous directory is restored. Scratch directories of running processes are kept.

    Args:
        target: the output whose leftovers are removed.
        inside: whether the scratch directories are in ``target`` instead of next to it.
    """
    target = _real_path(target)
    parent = target if inside else target.parent
    name = re.compile(re.escape(f".{target.name}.") + r"[a-z0-9_]{8}\.tmp")
    leftovers: list[Path] = []
    with suppress(OSError):  # missing, or not readable by this user
        leftovers = [path for path in parent.iterdir() if name.fullmatch(path.name)]
    for path in leftovers:
        try:
            lock = _lock(path / LOCK)
        except OSError:  # in use, or not writable by this user
            continue
        if lock is None:
            continue
        try:
            if (path / _FORMER).is_dir() and not os.path.lexists(target):
                os.rename(path / _FORMER, target)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            _release(lock)


def check_new(target: str | os.PathLike[str], expected: str = "") -> None:
    """Checks that an output does not exist or is an empty directory.

    Leftovers of killed writers are removed first.

    Args:
        target: the output directory.
        expected: the other allowed content, for the error, such as "an index".

    Raises:
        FileExistsError: if it is a file or contains files; the message names some of them.
    """
    remove_leftovers(target)
    content = _content(Path(target), strict=True)
    if content is not None:
        raise FileExistsError(
            f"{target} {content}; it is not overwritten: expected a new or empty directory"
            f"{expected and ', or '}{expected}."
        )


def check_kind(file: str | os.PathLike[str], kind: str, signature: bytes, start: int = 0) -> None:
    """Checks that a file which will be replaced is of the kind that replaces it.

    Args:
        file: the output file; it may be missing or empty.
        kind: the kind of file, for the error.
        signature: bytes of all files of this kind.
        start: their position in the file.

    Raises:
        FileExistsError: if there is a file of another kind, or a directory.
    """
    path = Path(file)
    content = b""
    if path.is_file():
        with path.open("rb") as stream:
            content = stream.read(start + len(signature))
        if not content:
            return
    if os.path.lexists(path) and content[start:] != signature:
        raise FileExistsError(f"{path} exists and is not {kind}; it is not overwritten.")


def resume(
    output: str | os.PathLike[str],
    descriptions: Iterable[Path],
    job: Mapping[str, Any],
    read: Callable[[Path], Any],
    contents: str,
) -> bool:
    """Compares the description of an output with the job that is going to write it.

    Args:
        output: a file or directory.
        descriptions: the files that describe its job, if it was started.
        job: everything that determines the content, as JSON values.
        read: reads a description, as a dict with the keys of a job.
        contents: a name for the output, for errors, such as "an index".

    Returns:
        Whether the output was started before; otherwise it is missing or an empty directory.

    Raises:
        ValueError: if it was started by another job; the message names the first values that
            differ. Or if there is no description, but a file or a directory with files.
    """
    described = False
    for file in descriptions:
        if not file.is_file():
            continue
        described, stored = True, read(file)
        if not isinstance(stored, Mapping):
            raise ValueError(f"{file} does not describe {contents}; remove {output}.")
        missing = object()
        different = [
            f"{name} is {_shown(stored[name]) if name in stored else 'missing'}, expected "
            f"{_shown(job[name]) if name in job else 'none'}"
            for name in {**job, **stored}
            if stored.get(name, missing) != job.get(name, missing)
        ]
        if different:
            more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
            raise ValueError(
                f"{output} has {contents} with other settings ({file}: "
                f"{'; '.join(different[:_SHOWN])}{more}); choose another output, or remove it."
            )
    content = None if described else _content(Path(output))
    if content is not None:
        raise ValueError(
            f"{output} {content}, and nothing that describes {contents}. Choose another output, or "
            "move what it contains; nothing was changed."
        )
    return described


def remove_files(directory: Path, patterns: Iterable[str]) -> None:
    """Removes files by name, and directories that are empty after that; others are kept.

    Args:
        directory: the directory; nothing happens if it is missing.
        patterns: relative paths as for ``Path.glob``. Leftovers of killed writers of these files
            are removed too.
    """
    folders = {directory}
    for pattern in patterns:
        above, _, name = pattern.rpartition("/")
        for folder in directory.glob(above) if above else [directory]:
            folders.add(folder)
            remove_all_leftovers(folder, name)
            for file in folder.glob(name):
                if file.is_file() or file.is_symlink():
                    file.unlink(missing_ok=True)
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # not empty, or missing
            folder.rmdir()


def keep_others(old: Path, new: Path, own: Collection[str]) -> None:
    """Copies a directory's foreign files to the directory that will replace it.

    Args:
        old: the directory that is replaced.
        new: the directory that replaces it, on the same file system; its files are kept.
        own: relative paths of the files that the writer of ``old`` wrote.
    """
    for file in old.rglob("*"):
        path = file.relative_to(old)
        if path.as_posix() in own or file.name == LOCK or os.path.lexists(new / path):
            continue
        if file.is_symlink() or not file.is_dir():
            (new / path.parent).mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, new / path, follow_symlinks=False)
            except OSError:  # a file system without hard links
                shutil.copy2(file, new / path, follow_symlinks=False)
        elif not any(file.iterdir()):
            (new / path).mkdir(parents=True)


def remove_all_leftovers(directory: Path, pattern: str = "*") -> None:
    """Removes the leftovers of all targets in a directory whose names match a pattern."""
    for path in directory.glob(".*.tmp"):
        name = _SCRATCH.fullmatch(path.name)
        if name and fnmatchcase(name["target"], pattern):
            remove_leftovers(directory / name["target"])


def _content(output: Path, *, strict: bool = False) -> str | None:
    """Describes the contents at the place of an output; None if it is missing or empty.

    Args:
        output: a file or directory.
        strict: whether locks, scratch directories and ``lost+found`` count, as for a directory that
            is replaced as a whole.
    """
    if output.is_dir():
        names = sorted(
            x.name
            for x in output.iterdir()
            if strict or not (x.name in _NO_CONTENT or _SCRATCH.fullmatch(x.name))
        )
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"contains {', '.join(names[:_SHOWN])}{more}" if names else None
    return "is a file" if os.path.lexists(output) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@contextmanager
def exclusive_lock(target: str | os.PathLike[str], lock: Path) -> Iterator[None]:
    """Holds a lock while the body runs; the system releases it if the process is killed.

    Args:
        target: the output that is written, for errors.
        lock: the file to lock; it is removed on exit.

    Raises:
        BlockingIOError: if another process holds the lock; the error names it.
        FileExistsError: if there is another file in place of the lock.
    """
    if lock.is_file():
        with lock.open("rb") as stream:
            content = stream.read(_LONGEST)
        if content and not _OWNER.match(content):
            raise FileExistsError(
                f"{lock} exists and was not written by bertfam_tf, which locks outputs with a file "
                "of this name; choose another output."
            )
    created = not lock.parent.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = _lock(lock)
    except BlockingIOError:
        owner = ""
        with suppress(OSError, UnicodeDecodeError):
            owner = lock.read_text("utf-8").strip()
        raise BlockingIOError(
            f"{target} is being written by another process ({owner or 'unknown'}); wait for it to "
            "finish, or choose another output."
        ) from None
    if held is None:
        _log.warning("%s is not locked: the file system has no locks.", target)
    else:
        with suppress(OSError):  # a full disk; the owner is information for the error only
            os.ftruncate(held, 0)
            os.write(held, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    try:
        yield
    finally:
        if held is not None:
            lock.unlink(missing_ok=True)
        _release(held)
        if created:
            with suppress(OSError):  # not empty
                lock.parent.rmdir()


def _lock(file: Path) -> int | None:
    """Locks a file; returns the descriptor, or None if the file system does not support locks.

    Raises:
        BlockingIOError: if another process holds the lock.
    """
    while True:
        # Network file systems lock files that are open for writing only.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file while we opened it.
            if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                return None
            raise
        os.close(descriptor)


def _release(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _new_scratch(parent: Path, name: str) -> tuple[Path, int | None]:
    """Creates a scratch directory and locks it."""
    while True:
        path = Path(tempfile.mkdtemp(".tmp", f".{name}.", parent))
        try:
            return path, _lock(path / LOCK)
        except (FileNotFoundError, BlockingIOError):
            continue  # another process removed it as a leftover before it was locked
        except OSError:
            path.rmdir()
            raise


def _real_path(target: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(target))


def _with_target(error: OSError, target: Path) -> OSError:
    """Returns the error with the target in place of a temporary path."""
    if error.errno is None:
        return error
    text = (error.strerror or os.strerror(error.errno)).removesuffix(_CONSEQUENCE)
    return OSError(error.errno, text + _CONSEQUENCE, str(target))


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two directories atomically; returns False if the system does not support it."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    paths = (os.fsencode(one), os.fsencode(other))
    if function(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync(path: Path) -> None:
    """Flushes a file, or a directory and everything in it, to disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        if not inner.is_symlink():
            _sync_one(inner)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some file systems do not sync directories; some directories are writable, not readable.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES) or not path.is_dir():
            raise

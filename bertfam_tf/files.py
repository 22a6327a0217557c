"""Files and directories that appear whole or not at all, and outputs with one writer at a time.

A writer fills a scratch directory beside its target, ``.NAME.xxxxxxxx.tmp``, syncs it to disk and
renames. It holds a lock (flock) on the scratch directory as long as it lives, in whatever container
or on whatever host, so the next writer of the same target can remove what a killed one left and
nothing else. Where the file system has no locks, nothing is removed and nobody is refused.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK, _FORMER = ".lock", ".former"
_CONSEQUENCE = "; nothing was written, what was there before is unchanged"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_log = logging.getLogger(__name__)


@contextmanager
def whole(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A path at which to make a file or a directory that becomes ``target`` at the end.

    At any time ``target`` is what it was before or all that was written, for whoever reads it and
    after a kill; an error in the body leaves it as it was. A link is followed.

    Args:
        target: its parent is made if it is missing.

    Raises:
        OSError: when writing fails, on a full disk say; it names the target.
    """
    final = _real(target)
    with scratch(final) as directory:
        path = directory / final.name
        yield path
        put(path, final)


def write(target: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file whole or not at all, text in UTF-8. Errors as for ``whole``."""
    with whole(target) as path:
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def scratch(target: str | os.PathLike[str], *, inside: bool = False) -> Iterator[Path]:
    """An empty directory on the disk of ``target``, removed at the end.

    Left-overs of killed writers of the same target are removed first.

    Args:
        target: what is going to be written; errors name it.
        inside: whether the directory is made in ``target``, instead of beside it.

    Raises:
        OSError: when writing fails; it names the target.
    """
    target = _real(target)
    parent = target if inside else target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        settle(target, inside=inside)
        path, lock = _claimed(parent, target.name)
    except OSError as error:
        raise _named(error, target) from error
    try:
        yield path
    except OSError as error:
        # Errors about other files, such as one that is read, stay as they are.
        if error.filename is None or path in Path(os.fsdecode(error.filename)).parents:
            raise _named(error, target) from error
        raise
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _release(lock)


def put(source: Path, target: Path, *, replace: bool = True) -> None:
    """Renames what was made in a ``scratch`` directory, after syncing it to disk.

    Args:
        source: a file or directory directly in the scratch directory.
        target: the final name.
        replace: whether a file, or a directory that is not empty, gives way.

    Raises:
        FileExistsError: when it would have to give way and must not.
    """
    _sync(source)
    if not replace and os.path.lexists(target):
        raise FileExistsError(f"{target} exists; it is not overwritten.")
    if source.is_dir() and target.is_dir() and any(target.iterdir()):
        if not _exchange(source, target):
            # A kill between the two renames is mended by ``settle``.
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


def settle(target: str | os.PathLike[str], *, inside: bool = False) -> None:
    """Removes what killed writers of ``target`` have left beside it (or ``inside`` it).

    A directory that a killed writer had moved away, on a file system that cannot exchange two,
    comes back. What a living process holds is left alone, and so is all that has another name.
    """
    target = _real(target)
    parent = target if inside else target.parent
    name = re.compile(re.escape(f".{target.name}.") + r"[a-z0-9_]{8}\.tmp")
    found: list[Path] = []
    with suppress(OSError):  # there is no such directory, or it is not ours to read
        found = [path for path in parent.iterdir() if name.fullmatch(path.name)]
    for path in found:
        try:
            lock = _lock(path / _LOCK)
        except OSError:  # in use, or not ours to remove
            continue
        if lock is None:
            continue
        try:
            if (path / _FORMER).is_dir() and not os.path.lexists(target):
                os.rename(path / _FORMER, target)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            _release(lock)


@contextmanager
def exclusive(target: str | os.PathLike[str], lock: Path) -> Iterator[None]:
    """Holds a lock as long as the body runs, or until the process ends in whatever way.

    Args:
        target: what is written; errors name it.
        lock: the file that is locked, removed at the end.

    Raises:
        ValueError: while another process, which is named, holds it.
    """
    made = not lock.parent.exists()
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = _lock(lock)
    except BlockingIOError:
        owner = ""
        with suppress(OSError, UnicodeDecodeError):
            owner = lock.read_text("utf-8").strip()
        raise ValueError(
            f"{target} is being written by another process ({owner or 'unknown'}); wait for it to "
            "end, or choose another output."
        ) from None
    if held is None:
        _log.warning("%s is not locked: the file system has no locks.", target)
    else:
        with suppress(OSError):  # a full disk; who holds it is only for the message
            os.ftruncate(held, 0)
            os.write(held, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    try:
        yield
    finally:
        if held is not None:
            lock.unlink(missing_ok=True)
        _release(held)
        if made:
            with suppress(OSError):  # there is something in it
                lock.parent.rmdir()


def _lock(file: Path) -> int | None:
    """A descriptor that holds the file's lock; None where the file system has no locks.

    Raises:
        BlockingIOError: when another process holds it.
    """
    while True:
        # Network file systems lock only what is open for writing.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed it while we opened it.
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


def _claimed(parent: Path, name: str) -> tuple[Path, int | None]:
    """A new scratch directory and its lock."""
    while True:
        path = Path(tempfile.mkdtemp(".tmp", f".{name}.", parent))
        try:
            return path, _lock(path / _LOCK)
        except (FileNotFoundError, BlockingIOError):
            continue  # another process took it for a left-over before it was locked
        except OSError:
            path.rmdir()
            raise


def _real(target: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(target))


def _named(error: OSError, target: Path) -> OSError:
    if error.errno is None:
        return error
    text = (error.strerror or os.strerror(error.errno)).removesuffix(_CONSEQUENCE)
    return OSError(error.errno, text + _CONSEQUENCE, str(target))


def _exchange(one: Path, other: Path) -> bool:
    """Lets two directories change places in one step; whether the system can."""
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
    """Waits until a file, or all of a directory, is on the disk."""
    for each in path.rglob("*") if path.is_dir() else ():
        if not each.is_symlink():
            _sync_one(each)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some file systems sync no directories, and some directories may be written, not read.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES) or not path.is_dir():
            raise

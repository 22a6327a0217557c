"""Atomic writes: with kills, full disks and concurrent processes."""

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bertfam_tf import files
from tests.selection import only_in

# Writes a target in processes without TensorFlow; the nth process is killed at its nth call that
# changes the file system, until a process finishes.
KILLED = """
    import importlib.util, itertools, os, shutil, signal, sys
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("files", sys.argv[1])
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    root, old = Path(sys.argv[2]), Path(sys.argv[3])
    if sys.argv[4] == "rename":
        files._exchange = lambda one, other: False

    def kill():
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def counted(module, name):
        function = getattr(module, name)
        def call(*arguments, **options):
            kill()
            result = function(*arguments, **options)
            kill()
            return result
        setattr(module, name, call)

    def write(target):
        for name in ("mkdir", "rename", "fsync", "rmdir", "unlink"):
            counted(os, name)
        counted(files, "_exchange")
        with files.atomic(target) as path:
            path.mkdir()
            for name in "ab":
                (path / name).write_text("new")
        os._exit(0)

    for left in itertools.count():
        target = root / str(left) / "target"
        shutil.copytree(old, target)
        process = os.fork()
        if not process:
            write(target)
        if os.waitpid(process, 0)[1] != signal.SIGKILL:
            break
"""


def _content(directory: Path) -> dict[str, str]:
    return {
        str(file.relative_to(directory)): file.read_text()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


@only_in("extended", "old1-rename")
@pytest.mark.parametrize("way", ["exchange", "rename"])
@pytest.mark.parametrize("old", [{}, {"a": "old", "c": "old"}])
def test_a_kill_at_any_call_leaves_the_old_or_the_new(tmp_path, old, way):
    new = {"a": "new", "b": "new"}
    (tmp_path / "old").mkdir()
    for name, text in old.items():
        (tmp_path / "old" / name).write_text(text)
    arguments = [files.__file__, str(tmp_path / "points"), str(tmp_path / "old"), way]
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), *arguments], check=True)
    points = sorted((tmp_path / "points").iterdir(), key=lambda point: int(point.name))
    assert len(points) > 15
    *killed, last = [(point / "target").exists() for point in points]
    assert last
    # The target is missing only between two renames; the next run restores it.
    assert all(killed) is (way == "exchange" or not old)
    for point in points:
        files.remove_leftovers(point / "target")
        assert [child.name for child in point.iterdir()] == ["target"]
        assert _content(point / "target") in (old, new)
    assert _content(points[0] / "target") == old
    assert _content(points[-1] / "target") == new


def test_running_writers_and_other_files_are_left_alone(tmp_path):
    target = tmp_path / "model"
    for name in ("model.abcdefgh.tmp", ".model.abcdefg.tmp", ".models.abcdefgh.tmp", ".model.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / ".model.stalefil.tmp").write_text("a file, not a scratch directory")
    (tmp_path / ".model.leftover.tmp").mkdir()
    before = {child.name for child in tmp_path.iterdir()} - {".model.leftover.tmp"}
    with files.atomic(target) as first:
        first.write_text("first")
        files.remove_leftovers(target)
        with files.atomic(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert {child.name for child in tmp_path.iterdir()} == before | {"model"}


def test_links_are_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "file")
    for text in ("one", "two"):
        files.write(tmp_path / "link", text)
        assert (tmp_path / "disk" / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert len(list((tmp_path / "disk").iterdir())) == 1


def test_existing_targets_are_not_replaced(tmp_path):
    (tmp_path / "1").mkdir()
    with files.scratch(tmp_path, inside=True) as scratch:
        (scratch / "version").mkdir()
        (scratch / "version" / "a").touch()
        with pytest.raises(FileExistsError, match="1 exists; it is not overwritten"):
            files.move_into_place(scratch / "version", tmp_path / "1", replace=False)
    assert _content(tmp_path) == {}


def test_errors_name_the_target_and_not_the_temporary(tmp_path):
    target = tmp_path / "model"
    target.write_text("old")

    def write(step):
        with files.atomic(target) as path:
            path.write_text("new")
            step(path)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    unchanged = "nothing was written, the previous content is unchanged: "
    for step in (full, lambda path: (path.parent / "absent").read_text()):
        with pytest.raises(OSError, match=f"[a-z]; {unchanged}'{target}'$"):
            write(step)
    with pytest.raises(FileNotFoundError, match=r"\] No such file or directory: '/absent'$"):
        write(lambda _: Path("/absent").read_text())
    assert _content(tmp_path) == {"model": "old"}


def test_a_full_disk(small_disk):
    target = small_disk / "model"
    target.write_text("old")
    with pytest.raises(OSError, match="No space left on device; nothing was written") as caught:
        files.write(target, bytes(10 << 20))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(target))
    assert _content(small_disk) == {"model": "old"}


# Locks ----------------------------------------------------------------------------------------

HELD = """
    import importlib.util, sys
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("files", sys.argv[1])
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    with files.exclusive_lock("answers", Path(sys.argv[2])):
        print(flush=True)
        sys.stdin.read()
"""


def test_one_writer_at_a_time(tmp_path):
    lock = tmp_path / "new" / ".lock"
    command = [sys.executable, "-c", textwrap.dedent(HELD), files.__file__, str(lock)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == b"\n"
        error = rf"out\.jsonl is being written by another process \(process {other.pid} on .+\)"
        with pytest.raises(BlockingIOError, match=error), files.exclusive_lock("out.jsonl", lock):
            pass
        other.kill()
    # The lock of a killed process is free, and its file is removed.
    with files.exclusive_lock("out.jsonl", lock):
        pass
    assert not list(lock.parent.iterdir())


def test_without_locks_nothing_is_refused_or_removed(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".model.leftover.tmp").mkdir()
    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.exclusive_lock("model", tmp_path / ".lock"):
        files.write(tmp_path / "model", "new")
    assert "model is not locked: the file system has no locks" in caplog.text
    assert (tmp_path / "model").read_text() == "new"
    assert (tmp_path / ".model.leftover.tmp").is_dir()

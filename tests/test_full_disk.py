"""If the disk is full, errors name the file that could not be written, and the old one is kept."""

import errno
import os

import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import convert, save_pretrained
from tests.selection import in_full


@pytest.fixture(scope="module")
def task(smallest):
    return bf.TextClassifier.from_pretrained(smallest, ["a", "b"], pair=False)


def _fill(disk, left):
    """Fills the disk except for ``left`` bytes."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(max(free.f_bavail * free.f_bsize - left, 0)))


def _content(disk):
    return {file: file.read_bytes() for file in disk.rglob("*") if file.is_file()}


def _fails(disk, target, function):
    before = _content(disk)
    with pytest.raises(OSError, match="No space left on device") as caught:
        function()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(target))
    assert _content(disk) == before
    assert not list(disk.rglob("*.tmp"))


@pytest.mark.parametrize("left", in_full([0, 1 << 14, 1 << 15], [1 << 14]))
def test_save_and_convert(task, smallest, small_disk, left):
    old, new = small_disk / "old", small_disk / "new"
    task.save(old)
    _fill(small_disk, left)
    _fails(small_disk, old, lambda: task.save(old))
    _fails(small_disk, new, lambda: convert(smallest, new))
    _fails(small_disk, new, lambda: save_pretrained(task.backbone, new))
    assert not new.exists()
    assert bf.load(old).labels == ["a", "b"]


@pytest.mark.extended
@pytest.mark.parametrize("left", in_full([0, 1 << 16], [1 << 16]))
def test_export(task, small_disk, left):
    _fill(small_disk, left)
    _fails(small_disk, small_disk / "model", lambda: task.export(small_disk / "model"))
    file = small_disk / "model.tflite"
    _fails(small_disk, file, lambda: task.export_tflite(file, inputs="ids"))

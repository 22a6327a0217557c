"""Outputs of commands in places with files of the user's: refused, and nothing is lost."""

import ast

import pytest

from bertfam_tf import files
from bertfam_tf.checkpoints import save_pretrained
from bertfam_tf.training.callbacks.logs import StepLog


def test_a_file_is_replaced_by_its_own_kind_only(tmp_path):
    file = tmp_path / "report.html"
    files.check_kind(file, *files.HTML)
    for content in (b"", b"<!doctype html><html>"):
        file.write_bytes(content)
        files.check_kind(file, *files.HTML)
    file.write_bytes(b"text\tlabel\n")
    with pytest.raises(FileExistsError, match=r"report\.html exists and is not an HTML page"):
        files.check_kind(file, *files.HTML)
    with pytest.raises(FileExistsError, match="is not a PNG picture"):
        files.check_kind(tmp_path, *files.PNG)


def test_new_outputs(tmp_path):
    target = tmp_path / "new"
    files.check_new(target)
    target.mkdir()
    files.check_new(target)
    with files.atomic(target, replace=False) as path:
        path.mkdir()
        (path / "a").touch()
    with pytest.raises(FileExistsError, match="new contains a; it is not overwritten"):
        files.check_new(target)
    with (
        pytest.raises(FileExistsError, match="new exists; it is not overwritten"),
        files.atomic(target, replace=False) as path,
    ):
        path.mkdir()
    assert [x.name for x in target.iterdir()] == ["a"]


def test_another_process_fills_the_output_meanwhile(tmp_path):
    def write():
        with files.atomic(tmp_path / "new", replace=False) as path:
            path.mkdir()
            (tmp_path / "new").mkdir()
            (tmp_path / "new" / "thesis.txt").write_text("mine")

    with pytest.raises(FileExistsError, match="it is not overwritten"):
        write()
    assert (tmp_path / "new" / "thesis.txt").read_text() == "mine"


def test_descriptions(tmp_path):
    job, file = {"seed": 1, "length": 2}, tmp_path / "job"
    read = lambda path: ast.literal_eval(path.read_text())  # noqa: E731
    assert not files.resume(tmp_path / "absent", [file], job, read, "shards")
    assert not files.resume(tmp_path, [file], job, read, "shards")
    file.write_text(repr(job))
    (tmp_path / "notes").touch()
    assert files.resume(tmp_path, [file], job, read, "shards")
    file.write_text("{'seed': 3, 'length': 2, 'width': 4}")
    error = r"seed is 3, expected 1; width is 4, expected none\)"
    with pytest.raises(ValueError, match=error):
        files.resume(tmp_path, [file], job, read, "shards")
    file.write_text("[]")
    with pytest.raises(ValueError, match="job does not describe shards"):
        files.resume(tmp_path, [file], job, read, "shards")
    file.unlink()
    with pytest.raises(ValueError, match="contains notes, and nothing that describes shards"):
        files.resume(tmp_path, [file], job, read, "shards")


def test_files_are_removed_by_name(tmp_path):
    own = ("a/rows-1.x", "a/rows-2.x", "a/b/card", "a/.rows-3.x.abcdefgh.tmp/rows-3.x")
    for name in (*own, "a/mine", "c/rows-1.x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files.remove_files(tmp_path / "a", ("rows-*.x", "b/card"))
    left = sorted(x.relative_to(tmp_path).as_posix() for x in tmp_path.rglob("*"))
    assert left == ["a", "a/mine", "c", "c/rows-1.x"]
    files.remove_files(tmp_path / "c", ("rows-*.x",))
    files.remove_files(tmp_path / "absent", ("rows-*.x",))
    assert [x.name for x in tmp_path.iterdir()] == ["a"]


def test_tensorboard_s_folder_keeps_other_files(tmp_path):
    board = tmp_path / "board"
    board.mkdir()
    for name in ("events.out.tfevents.1", "notes.txt"):
        (board / name).write_text("x")
    log = StepLog(tmp_path / "metrics.jsonl", board)
    log.on_train_begin()
    assert (board / "notes.txt").exists()
    assert not (board / "events.out.tfevents.1").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_directory_that_is_not_a_checkpoint(smallest, tmp_path, name):
    import bertfam_tf as bf

    backbone = bf.load_backbone(smallest)
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match=f"{name} exists, and config.json does not describe"):
        save_pretrained(backbone, tmp_path)
    assert (tmp_path / name).read_text() == '{"mine": 1}'
    (tmp_path / name).unlink()
    (tmp_path / "notes").touch()
    for _ in range(2):
        save_pretrained(backbone, tmp_path)
    assert {x.name for x in tmp_path.iterdir()} == {"config.json", "model.safetensors", "notes"}

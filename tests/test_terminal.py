"""What commands print of files that others wrote: a terminal obeys no name, label or text."""

import json
import logging

import pytest

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.data.labels import not_listed
from bertfam_tf.recipes.runs import _directory_name

# Clears the screen, sets the title, ends a line early, reverses the direction of text.
HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb"


def _run(directory, name):
    directory.mkdir()
    recipe = f"output: {json.dumps(str(directory))}\nmodel: {{path: {json.dumps(name)}}}\n"
    (directory / "recipe.yaml").write_text(recipe)
    (directory / "metrics.json").write_text(json.dumps({"accuracy": 0.5, name: 0.25}))


def _checked(capsys):
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert text.replace("\n", "").isprintable()
    return captured


def test_runs(tmp_path, capsys):
    _run(tmp_path / "one", HOSTILE)
    _run(tmp_path / HOSTILE.replace("/", ""), "x" * 100_000)
    assert main(["runs", str(tmp_path)]) == 0
    out = _checked(capsys).out
    assert r"a\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb" in out
    assert len(out) < 20_000


def test_errors_and_messages(tmp_path, capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    _run(tmp_path / HOSTILE, "x")
    (tmp_path / HOSTILE / "metrics.json").write_text("{")
    _run(tmp_path / "whole", "x")
    assert main(["runs", str(tmp_path)]) == 0
    assert r"Left out: " in _checked(capsys).err
    assert main(["runs", str(tmp_path / HOSTILE / "no")]) == 2
    assert r"a\x1b[2J" in _checked(capsys).err
    text = not_listed("x", ["y" * 1_000_000], "label")
    assert len(text) < 3000


def test_answers(smallest, tmp_path, capsys):
    labels = [HOSTILE, "\ud7ff" + "b" * 100, "c"]
    bf.TextClassifier.from_pretrained(smallest, labels=labels).save(tmp_path / "task")
    assert main(["predict", str(tmp_path / "task"), "a fine film", HOSTILE]) == 0
    rows = [json.loads(line) for line in _checked(capsys).out.splitlines()]
    assert {label for row in rows for label in row["scores"]} == set(labels)


@pytest.mark.parametrize("length", [240, 241, 5000])
def test_names_of_runs_of_a_sweep(tmp_path, length):
    names = {_directory_name(f"path={end * (length - 5)}") for end in "ab"}
    assert len(names) == 2
    for name in names:
        assert len(f".{name}.12345678.tmp".encode()) <= 255
        (tmp_path / name).mkdir()
    assert (_directory_name("x" * length) == "x" * length) == (length == 240)

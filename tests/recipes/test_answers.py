"""Answers for whole files: what is written and refused, and that a killed run loses nothing."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.data import read_rows
from bertfam_tf.files import exclusive_lock
from bertfam_tf.recipes import answer_file, source_of

TEXTS = ["a good film", "", "the bad 😀", "long " * 40, '"quoted"', "it\tis"] * 5 + ["last"]


@pytest.fixture(scope="module")
def model(smallest, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "task"
    bf.TextClassifier.from_pretrained(smallest, pair=False).save(directory)
    return directory


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "in.txt"
    file.write_bytes("".join(f"{text}\r\n" for text in TEXTS).encode() + b"\xff broken")
    return file


def _predict(model, file, output, *more):
    return main(
        [
            "predict",
            str(model),
            "--input",
            str(file),
            "--output",
            str(output),
            "--batch-size",
            "4",
            *more,
        ]
    )


@pytest.mark.extended
def test_a_file_of_lines(model, lines, tmp_path, capsys):
    output = tmp_path / "new" / "out.jsonl"
    assert _predict(model, lines, output) == 0
    assert capsys.readouterr().out.endswith(f"32 answers in {output}\n")
    found = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    expected = bf.load(model).predict([text.encode() for text in TEXTS] + [b"\xff broken"])
    assert [row["label"] for row in found] == [row["label"] for row in expected]
    for row, answer in zip(found, expected, strict=True):
        assert sorted(row["scores"].values()) == pytest.approx(sorted(answer["scores"]), abs=1e-5)
    # Done is done.
    before = output.stat().st_mtime_ns
    assert _predict(model, lines, output) == 0
    assert output.stat().st_mtime_ns == before


@pytest.mark.full
@pytest.mark.parametrize("keep", [1000, None])
def test_it_goes_on_behind_the_last_whole_line(model, lines, tmp_path, keep):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert _predict(model, lines, whole) == 0
    assert _predict(model, lines, cut) == 0
    if keep is None:
        cut.unlink()
    else:
        cut.write_bytes(whole.read_bytes()[:keep])
    assert _predict(model, lines, cut) == 0
    assert cut.read_bytes() == whole.read_bytes()


KILLED = """
    import importlib, os, signal, sys
    from bertfam_tf import cli, tasks

    answer_file = importlib.import_module("bertfam_tf.recipes.answers")

    rows, lines = int(sys.argv[1]), answer_file._lines

    def some(*arguments):
        global rows
        for line in lines(*arguments):
            if rows == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            rows -= 1
            yield line

    answer_file._lines = some
    cli.main(sys.argv[2:])
"""


@pytest.mark.full
def test_a_killed_run_ends_as_one_that_was_not(model, lines, tmp_path):
    output, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    arguments = ["predict", str(model), "--input", str(lines), "--output", str(output)]
    command = [sys.executable, "-c", textwrap.dedent(KILLED), "14", *arguments, "--batch-size", "4"]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    begun = output.read_bytes()
    assert 12 <= begun.count(b"\n") < len(TEXTS)
    assert _predict(model, lines, output) == 0
    assert _predict(model, lines, whole) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert output.read_bytes().startswith(begun)


@pytest.mark.full
def test_outputs_that_belong_to_others(model, smallest, lines, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    output.write_text("mine\n")
    assert _predict(model, lines, output) == 2
    assert "out.jsonl is a file, and nothing that describes answers" in capsys.readouterr().err
    assert output.read_text() == "mine\n"
    output.unlink()
    assert _predict(model, lines, output) == 0
    stored = output.read_bytes()
    other = tmp_path / "other"
    bf.TextClassifier.from_pretrained(smallest, labels=["x", "y"], pair=False).save(other)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(lines.read_bytes())
    for arguments, what in (
        ((other, lines, output), "model is"),
        ((model, copy, output), "input is"),
        ((model, lines, output, "--batch-size", "5"), "batch_size is 4, expected 5"),
    ):
        assert _predict(*arguments) == 2
        error = capsys.readouterr().err
        assert "has answers with other settings" in error
        assert what in error
    lines.write_bytes(lines.read_bytes() + b"\nmore")
    assert _predict(model, lines, output) == 2
    assert "size" in capsys.readouterr().err
    assert output.read_bytes() == stored


@pytest.mark.full
@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl"])
def test_columns(model, tmp_path, form):
    texts = ["a good film", "bad"]
    file = tmp_path / f"in.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps({"id": 1, "a": {"b": text}}) + "\n" for text in texts))
    else:
        between = {"tsv": "\t", "csv": ","}[form]
        file.write_text(f"id{between}a.b\n" + "".join(f"1{between}{text}\n" for text in texts))
    output = tmp_path / "out.jsonl"
    assert _predict(model, file, output, "--text", "a.b") == 0
    expected = [row["label"] for row in bf.load(model).predict(texts)]
    assert [json.loads(line)["label"] for line in output.open()] == expected


def test_a_mistake_is_found_before_anything_is_written(model, tmp_path, capsys):
    file = tmp_path / "in.csv"
    file.write_text("text\n" + "a\n" * 40 + "b,c\n")
    assert _predict(model, file, tmp_path / "out.jsonl") == 2
    assert "in.csv: line 42 has 2 columns; expected 1" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))
    file.write_text("text\n" + "a\n" * 6)
    assert _predict(model, file, tmp_path / "out.jsonl", "--question", "text") == 2
    assert "got ['question', 'text']" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--input", "x"], "both --input and --output"),
        (["--output", "x"], "both --input and --output"),
        (["text", "--input", "x", "--output", "y"], "and no texts"),
        (
            ["--input", "x", "--output", "y", "--batch-size", "0"],
            "--batch-size must be at least 1, got 0",
        ),
        (["--input", "absent.txt", "--output", "y"], "no file absent.txt"),
        (["--input", "x.txt", "--output", "y", "--text", "a"], "--text is for columns with names"),
        (["--input", "x.conll", "--output", "y", "--text", "a"], "which x.conll (conll) does not"),
        (["--input", "x.conll", "--output", "y", "--text", "1"], "no file x.conll"),
    ],
)
def test_mistakes_of_the_command(model, capsys, monkeypatch, arguments, error):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["predict", str(model), *arguments]) == 2
    assert error in capsys.readouterr().err


class Asked:
    """Answers with what it was asked, and counts the rows that are held at once."""

    feature_names = ("question", "context")
    answer_name = "answer"
    ranked_scores = False
    most = 0

    def predict(self, features, batch_size):
        self.most = max(self.most, len(features["question"]))
        return [
            {"answer": q.decode(), "best": [{"score": i}]}
            for i, q in enumerate(features["question"])
        ]


def test_questions_keep_their_names(tmp_path, model):
    questions = [{"id": f"n{i}", "question": f"q{i}"} for i in range(1000)]
    article = {"paragraphs": [{"context": "c", "qas": questions}]}
    file = tmp_path / "in.json"
    file.write_text(json.dumps({"data": [article]}))
    task, output = Asked(), tmp_path / "out.jsonl"
    source = source_of(file, model)
    assert answer_file(task, read_rows(file), output, source, batch_size=16, verbose=False) == 1000
    assert [json.loads(line) for line in output.open()] == [
        {"id": f"n{i}", "answer": f"q{i}", "best": [{"score": i % 16}]} for i in range(1000)
    ]
    assert task.most == 16


def test_ids_that_are_numbers_stay_numbers(tmp_path, model):
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    ids = [17, 1.5, "17", True]
    file.write_text("".join(json.dumps({"key": key, "text": "a"}) + "\n" for key in ids))
    rows = read_rows(file, {"text": "text", "id": "key"})
    answer_file(Fake(), rows, output, source_of(file, model), verbose=False)
    assert [json.loads(line)["id"] for line in output.open()] == [17, 1.5, "17", "true"]


# A second process, a full disk ----------------------------------------------------------------


class Fake:
    """Answers without a model."""

    answer_name = "answer"

    def predict(self, features, batch_size):
        return [len(text) * "é" for text in features["text"]]


@pytest.mark.extended
def test_two_processes_do_not_write_one_file(model, lines, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    with exclusive_lock(output, tmp_path / ".out.jsonl.lock"):
        assert _predict(model, lines, output) == 1
    error = capsys.readouterr().err
    assert f"out.jsonl is being written by another process (process {os.getpid()} on " in error
    assert not output.exists()
    assert _predict(model, lines, output) == 0
    assert {child.name for child in tmp_path.iterdir()} >= {"out.jsonl", "out.jsonl.source.json"}
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_costs_no_answer(tmp_path, small_disk):
    (tmp_path / "rows.txt").write_text("a row of some length\n" * 2000)
    rows = read_rows(tmp_path / "rows.txt")
    whole, cut, filler = tmp_path / "whole.jsonl", small_disk / "cut.jsonl", small_disk / "filler"
    answer_file(Fake(), rows, whole, {}, verbose=False)
    filler.write_bytes(bytes((1 << 20) - (48 << 10)))
    error = r"No space left on device; the next run resumes .*: '.*/disk/cut\.jsonl'"
    with pytest.raises(OSError, match=error):
        answer_file(Fake(), rows, cut, {}, verbose=False)
    begun = cut.stat().st_size
    assert 0 < begun < whole.stat().st_size
    filler.unlink()
    answer_file(Fake(), rows, cut, {}, verbose=False)
    assert cut.read_bytes() == whole.read_bytes()
    assert {child.name for child in small_disk.iterdir()} == {"cut.jsonl", "cut.jsonl.source.json"}


def test_a_damaged_description_of_the_answers(tmp_path):
    (tmp_path / "rows.txt").write_text("a\n")
    (tmp_path / "out.jsonl.source.json").write_text("[1")
    rows = read_rows(tmp_path / "rows.txt")
    with pytest.raises(ValueError, match=r"out\.jsonl\.source\.json is not JSON"):
        answer_file(Fake(), rows, tmp_path / "out.jsonl", {})
    (tmp_path / "out.jsonl.source.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"source\.json does not describe answers; remove"):
        answer_file(Fake(), rows, tmp_path / "out.jsonl", {})

"""The ``bertfam`` command: subcommands on a small run, and errors in one line."""

import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.cli import main
from bertfam_tf.cli.common import stdin_lines
from bertfam_tf.cli.main import _parsed
from bertfam_tf.export import BatchingOptions, ExportError
from bertfam_tf.export.runtime import load
from bertfam_tf.recipes import as_json
from tests.selection import in_full, only_in
from tests.test_families import PUBLISHED
from tools import make_family_table

COMMANDS = (
    "families", "train", "evaluate", "predict", "convert", "export", "serve", "tokenize",
    "vocabulary",
)  # fmt: skip

TEXTS = ["a good film", "it is bad"]


@pytest.fixture(scope="module")
def trained(smallest, tmp_path_factory):
    """A run of ``bertfam train``: its directory, and the command's output."""
    directory = tmp_path_factory.mktemp("cli")
    rows = "text\tlabel\n" + "a good film\tpositive\nit is bad\tnegative\n" * 3
    for split in ("train", "dev", "test"):
        (directory / f"{split}.tsv").write_text(rows)
    recipe = {
        "output": str(directory / "run"),
        "model": {"path": str(smallest)},
        "data": {split: str(directory / f"{split}.tsv") for split in ("train", "dev", "test")},
        "train": {"epochs": 5},
    }
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    printed = io.StringIO()
    stdout, sys.stdout = sys.stdout, printed
    try:
        assert main(["train", str(directory / "recipe.yaml"), "train.epochs=1"]) == 0
    finally:
        sys.stdout = stdout
    return directory / "run", printed.getvalue()


def _last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def test_families(capsys):
    assert main(["families"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    # Columns are separated by two spaces and aligned with their titles; numbers are right-aligned.
    starts = [header.index(name) for name in ("size", "tokenizer", "objectives", "heads")]
    assert all(line[i - 2 : i] == "  " != line[i - 1 : i + 1] for line in lines for i in starts)
    assert all(line[starts[1] - 3] != " " for line in [header, *lines])
    rows = [re.split(" {2,}", line) for line in lines]
    counts = {(row[0], row[1]): int(row[2].replace(",", "")) for row in rows}
    assert PUBLISHED.items() <= counts.items()
    sizes = [(name, size) for name in bf.families() for size in registry.get(name).sizes]
    assert list(counts) == sizes
    for name, _, _, *rest in rows:
        record = registry.get(name)
        assert rest == [
            record.tokenizer.kind,
            ", ".join(record.objectives),
            ", ".join(record.heads),
        ]


@pytest.mark.full
def test_the_table_of_families_is_up_to_date():
    stored = make_family_table.FILE.read_text("utf-8")
    assert json.loads(stored) == make_family_table.table(), "python -m tools.make_family_table"
    assert "models/table.json" in Path("pyproject.toml").read_text("utf-8")


def test_families_by_name(capsys):
    assert main(["families", "spanbert", "tinybert"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"spanbert", "tinybert"}
    assert main(["families", "bret"]) == 2
    assert "Unknown family 'bret'. Did you mean 'bert'?" in capsys.readouterr().err


@pytest.mark.full
def test_train_prints_the_metrics(trained):
    run, printed = trained
    assert _last_json(printed) == json.loads((run / "metrics.json").read_text())
    assert yaml.safe_load((run / "recipe.yaml").read_text())["train"]["epochs"] == 1


@pytest.mark.extended
def test_a_run_without_a_dev_split(smallest, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\na good film\tyes\nit is bad\tno\n")
    recipe = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest)},
        "data": {"train": str(tmp_path / "train.tsv")},
        "train": {"epochs": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["train", str(tmp_path / "recipe.yaml")]) == 0
    assert _last_json(capsys.readouterr().out).keys() == {"train_loss", "train_accuracy"}
    assert main(["runs", str(tmp_path)]) == 0
    assert "unfinished" not in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("split", ["dev", "test"])
def test_evaluate(trained, capsys, split):
    run, printed = trained
    assert main(["evaluate", str(run), "--split", split]) == 0
    # Both files have the same examples.
    assert _last_json(capsys.readouterr().out) == pytest.approx(_last_json(printed), rel=1e-5)


@pytest.mark.extended
def test_evaluate_as_an_export(trained, tmp_path, capsys):
    run, printed = trained
    exact = _last_json(printed)["loss"]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    calibration = ["--calibration", str(tmp_path / "texts.txt")]
    losses = {}
    for dtype, options in (("bfloat16", []), ("int8-weights", []), ("int8", calibration)):
        assert main(["evaluate", str(run), "--dtype", dtype, *options]) == 0
        losses[dtype] = _last_json(capsys.readouterr().out)["loss"]
    assert all(loss != exact for loss in losses.values())
    assert losses == pytest.approx(dict.fromkeys(losses, exact), rel=0.1)
    assert main(["evaluate", str(run), "--dtype", "int8"]) == 2
    assert "needs calibration" in capsys.readouterr().err
    assert main(["evaluate", str(run), *calibration]) == 2
    assert "calibration is only for dtype='int8'" in capsys.readouterr().err


@pytest.mark.extended
@pytest.mark.parametrize(
    ("source", "what"), in_full([("arguments", "run"), ("stdin", "model")], [("arguments", "run")])
)
def test_predict(trained, capsys, monkeypatch, source, what):
    run, _ = trained
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS) + "\n"))
    texts = TEXTS if source == "arguments" else []
    assert main(["predict", str(run if what == "run" else run / "model"), *texts]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = bf.load(run / "model").predict(TEXTS)
    assert [row["label"] for row in rows] == [answer["label"] for answer in expected]
    for row, answer in zip(rows, expected, strict=True):
        named = dict(zip(["negative", "positive"], answer["scores"].tolist(), strict=True))
        assert row["scores"] == pytest.approx(named, abs=1e-6)
        # Best first.
        assert next(iter(row["scores"])) == row["label"]


@pytest.mark.full
def test_predict_the_best_alone(trained, capsys, tmp_path):
    run, _ = trained
    assert main(["predict", str(run), TEXTS[0], "--top", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert list(row["scores"]) == [row["label"]]
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    command = ["predict", str(run), "--input", str(tmp_path / "in.txt"), "--format", "txt"]
    output = tmp_path / "out.jsonl"
    assert main([*command, "--output", str(output), "--top", "1"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [list(row["scores"]) for row in rows] == [[row["label"]] for row in rows]
    # A resumed run writes lines in the same format.
    capsys.readouterr()
    assert main([*command, "--output", str(output)]) == 2
    assert "top is 1, expected None" in capsys.readouterr().err


def test_scores_of_several_labels_have_names(smallest):
    task = bf.MultiLabelClassifier.from_pretrained(smallest, labels=["x", "y", "z"])
    answer = {"labels": ["y"], "scores": np.float32([0.25, 0.75, 0.5])}
    shown = as_json(answer, task)
    assert shown == {"labels": ["y"], "scores": {"y": 0.75, "z": 0.5, "x": 0.25}}
    assert list(shown["scores"]) == ["y", "z", "x"]
    assert as_json(answer, task, 2)["scores"] == {"y": 0.75, "z": 0.5}


@pytest.mark.extended
def test_predict_tells_where_pairs_are_read(smallest, tmp_path, capsys):
    bf.SpanQA.from_pretrained(smallest).save(tmp_path / "task")
    assert main(["predict", str(tmp_path / "task"), "Who?", "Ada met Bob."]) == 2
    error = capsys.readouterr().err
    assert "This SpanQA reads question, context: write them to columns of a file" in error


@pytest.mark.extended
def test_predict_embeddings(smallest, tmp_path, capsys):
    bf.TextEmbedder.from_pretrained(smallest).save(tmp_path / "task")
    assert main(["predict", str(tmp_path / "task"), "a"]) == 0
    assert len(json.loads(capsys.readouterr().out)["embedding"]) == 32
    assert main(["predict", str(tmp_path / "task"), "a", "--top", "1"]) == 2
    assert "--top is for classifiers" in capsys.readouterr().err


@pytest.mark.full
def test_export(trained, tmp_path, capsys):
    run, _ = trained
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    version = capsys.readouterr().out.strip()
    assert version == str(tmp_path / "model" / "1")
    load(version)
    card = json.loads((Path(version) / "assets.extra" / "bertfam.json").read_text("utf-8"))
    assert card["metrics"] == json.loads((run / "metrics.json").read_text("utf-8"))
    assert card["metrics"].keys() >= {"loss", "accuracy"}


@pytest.mark.full
@pytest.mark.parametrize("source", ["run", "model"])
def test_convert_a_task(trained, tmp_path, capsys, source):
    run, _ = trained
    saved = run if source == "run" else run / "model"
    assert main(["convert", str(saved), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    found = bf.TextClassifier.from_pretrained(tmp_path / "out").predict(TEXTS)
    expected = bf.load(run / "model").predict(TEXTS)
    assert [row["scores"].tolist() for row in found] == [row["scores"].tolist() for row in expected]
    assert main(["convert", str(saved), str(tmp_path / "out")]) == 1
    assert "it is not overwritten" in capsys.readouterr().err
    assert main(["convert", str(saved), str(tmp_path / "other"), "--family", "bert"]) == 2
    assert "--family is for checkpoints" in capsys.readouterr().err


@pytest.mark.extended
def test_options_of_export(trained, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(
        bf.TextClassifier, "export", lambda task, *args, **kwargs: given.update(kwargs, args=args)
    )
    texts = tmp_path / "texts"
    texts.write_text("a film\na text\ta pair\n", "utf-8")
    options = ["--dtype", "int8", "--batching", "--version", "7", "--fallback"]
    options += ["--calibration", str(texts)]
    assert main(["export", str(trained[0] / "model"), str(tmp_path), *options]) == 0
    assert given == {
        "args": (str(tmp_path),),
        "version": 7,
        "dtype": "int8",
        "calibration": [("a film",), ("a text", "a pair")],
        "fallback": True,
        "batching": BatchingOptions(),
        "metrics": None,
    }


def test_calibration_of_choices(smallest, tmp_path, monkeypatch, capsys):
    """Choices are columns; a question follows them."""
    given = {}
    monkeypatch.setattr(
        bf.MultipleChoice, "export", lambda task, *args, **kwargs: given.update(kwargs)
    )
    bf.MultipleChoice.from_pretrained(smallest, 2, pair=True).save(tmp_path / "model")
    texts = tmp_path / "texts"
    texts.write_text("it is\tgood\tbad\twhat\u2028\nthe film\ta plot\tnot\twhich\n", "utf-8")
    options = ["--dtype", "int8", "--calibration", str(texts)]
    assert main(["export", str(tmp_path / "model"), str(tmp_path), *options]) == 0
    assert given["calibration"] == [
        ("it is", ["good", "bad"], "what\u2028"),
        ("the film", ["a plot", "not"], "which"),
    ]
    texts.write_text("it is\tgood\tbad\twhat\nthe film\ta plot\n")
    assert main(["export", str(tmp_path / "model"), str(tmp_path), *options]) == 2
    assert (
        "line 2: expected 4 texts with tabs between them, the text, 2 choices, the question, got 2."
    ) in capsys.readouterr().err


@only_in("extended", "options0---version is for SavedModels")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--tflite", "--version", "0"], "--version is for SavedModels"),
        (["--tflite", "--dtype", "int8"], "--dtype is for SavedModels"),
        (["--tflite", "--batching"], "--batching is for SavedModels"),
        (["--tflite", "--fallback"], "--fallback is for SavedModels"),
        (["--quantize", "int8"], "--quantize is for --tflite"),
        (["--inputs", "text"], "--inputs is for --tflite"),
    ],
)
def test_options_of_the_other_export_are_refused(trained, tmp_path, capsys, options, error):
    assert main(["export", str(trained[0]), str(tmp_path / "m.tflite"), *options]) == 2
    assert error in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_for_phones(trained, tmp_path, capsys, monkeypatch):
    given = {}

    def export(task, file, **kwargs):
        given.update(kwargs, file=file)
        return file

    monkeypatch.setattr(bf.TextClassifier, "export_tflite", export)
    texts = tmp_path / "texts"
    texts.write_text("a film\na text\ta pair\n", "utf-8")
    options = ["--tflite", "--inputs", "ids", "--quantize", "int8-full", "--length", "32"]
    options += ["--calibration", str(texts)]
    assert main(["export", str(trained[0]), "m.tflite", *options]) == 0
    assert capsys.readouterr().out == "m.tflite\n"
    assert given == {
        "file": "m.tflite",
        "inputs": "ids",
        "quantize": "int8-full",
        "length": 32,
        "calibration": [("a film",), ("a text", "a pair")],
    }


@pytest.fixture
def pieces(tmp_path):
    """A directory that contains only a vocabulary."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "##s", "film", "中"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("<unk>\na\nfilm\n")
    config = '{"tokenizer_class": "TransfoXLTokenizer"}'
    (tmp_path / "words" / "tokenizer_config.json").write_text(config)
    return str(tmp_path / "words")


def _stdin(monkeypatch, data):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_tokenize_shows_a_table(pieces, capsys):
    assert main(["tokenize", pieces, "A good\t\tfilms 中\0x", ""]) == 0
    assert (
        capsys.readouterr().out
        == r"""WordPieceTokenizer, 10 pieces; unk [UNK] 1; \
cls [CLS] 2; sep [SEP] 3; pad [PAD] 0; mask [MASK] 4

A good\t\tfilms 中\x00x
id  bytes  piece  text
5   0-1    a      A
6   2-6    good   good
8   8-12   film   film
7   12-13  ##s    s
9   14-17  中     中
1   18-19  [UNK]  x


id  bytes  piece  text
""".replace("\\\n", "")
    )


def test_tokenize_with_the_tokenizer_of_a_run(trained, capsys):
    found = []
    for path in (trained[0], trained[0] / "model"):
        assert main(["tokenize", str(path), "a good film", "--ids"]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != ""


def test_tokenize_shows_packed_pairs(pieces, capsys):
    assert main(["tokenize", "--pair", "films", pieces, "a", "good good"]) == 0
    _, first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines() == [
        "a films",
        "id  mask  segment  from  bytes  piece  text",
        "2   1     0                     [CLS]",
        "5   1     0        a     0-1    a      a",
        "3   1     0                     [SEP]",
        "8   1     1        b     0-4    film   film",
        "7   1     1        b     4-5    ##s    s",
        "3   1     1                     [SEP]",
        "0   0     0                     [PAD]",
    ]
    assert len(second.splitlines()) == 9


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_tokenize_lines_to_ids(words, capsys, monkeypatch, tmp_path, source):
    # More lines than in a batch, and one that is not UTF-8.
    lines = b"a film\r\n\nbad \xff byte\n" * 40
    (tmp_path / "lines").write_bytes(lines if source == "file" else b"")
    _stdin(monkeypatch, lines if source == "stdin" else b"")
    options = ["--input", str(tmp_path / "lines")] if source == "file" else []
    assert main(["tokenize", words, "--ids", *options]) == 0
    assert capsys.readouterr().out == "1 2\n\n0 0 0\n" * 40


def test_tokenize_to_json(words, capsys, monkeypatch):
    _stdin(monkeypatch, b"a film\nbad \xff\n")
    assert main(["tokenize", words, "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {
        "text": "a film", "token_ids": [1, 2], "pieces": ["a", "film"],
        "starts": [0, 2], "ends": [1, 6],
    }  # fmt: skip
    assert second["text"] == "bad \ufffd"


def test_tokenize_to_packed_json(pieces, capsys):
    arguments = ["a good good good", "a", "--json", "--packed", "--max-length", "5"]
    assert main(["tokenize", pieces, *arguments]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["token_ids"] == [2, 5, 6, 6, 3]
    assert second == {
        "text": "a", "token_ids": [2, 5, 3, 0, 0], "padding_mask": [1, 1, 1, 0, 0],
        "segment_ids": [0] * 5, "pieces": ["[CLS]", "a", "[SEP]", "[PAD]", "[PAD]"],
        "from": [None, "a", None, None, None], "starts": [None, 0, None, None, None],
        "ends": [None, 1, None, None, None],
    }  # fmt: skip


def test_vocabulary(tmp_path, capsys):
    (tmp_path / "text").write_text("a b b\n")
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "out")]
    special = ["--special", "<unk>,<pad>", "--size", "3", "--no-lower-case"]
    assert main(["vocabulary", "words", *arguments, *special]) == 0
    assert capsys.readouterr().out == f"3 entries in {tmp_path / 'out'}\n"
    assert bf.load_tokenizer(tmp_path / "out").vocabulary == ["<unk>", "<pad>", "b"]


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        assert command in capsys.readouterr().out


def test_options_stand_anywhere():
    for given in (
        ["predict", "runs/desk", "--top", "3", "a text", "another"],
        ["predict", "--top", "3", "runs/desk", "a text", "another"],
        ["predict", "runs/desk", "a text", "--top", "3", "another"],
    ):
        options = _parsed(given)
        assert (options.command, options.model, options.top) == ("predict", "runs/desk", 3)
        assert options.text == ["a text", "another"]
    options = _parsed(["evaluate", "runs/x", "--split", "test", "data.test=other.tsv"])
    assert (options.model, options.split, options.override) == (
        "runs/x",
        "test",
        ["data.test=other.tsv"],
    )
    options = _parsed(["predict", "runs/desk", "--", "--top is a text"])
    assert options.text == ["--top is a text"]


@pytest.mark.parametrize(
    ("command", "first", "options", "last"),
    [
        ("predict", ["runs/desk"], ["--top", "3"], ["a text"]),
        ("search", ["model", "index"], ["--top", "3"], ["a query"]),
        ("tokenize", ["model"], ["--ids"], ["a text"]),
        ("analyze", ["model"], ["--output", "page"], ["a text"]),
        ("plan", ["recipe.yaml"], ["--steps", "1"], ["train.batch_size=4"]),
        ("sweep", ["recipe.yaml"], ["--over", "train.seed=0,1"], ["train.epochs=1"]),
    ],
)
def test_options_of_each_command_stand_anywhere(command, first, options, last):
    expected = _parsed([command, *options, *first, *last])
    assert _parsed([command, *first, *options, *last]) == expected
    assert _parsed([command, *first, *last, *options]) == expected


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        ([], "usage: bertfam [-h] [--version] COMMAND"),
        (["tarin"], "usage: bertfam [-h] [--version] COMMAND"),
        (["train"], "usage: bertfam train [-h]"),
        (["evaluate", "x", "--split", "y"], "usage: bertfam evaluate [-h]"),
        (["predict", "x", "--tpo", "3"], "usage: bertfam predict [-h]"),
    ],
)
def test_usage(arguments, usage, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(usage)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["train", "absent.yaml"], "There is no recipe absent.yaml."),
        (["train", "{recipe}", "train.epoch=1"], "Did you mean 'epochs'?"),
        (["train", "{recipe}"], "has a run with other settings"),
        (["train", "{recipe}", "output={tmp}/x", "data.train=absent.tsv"], "no file absent.tsv"),
        (["train", "{recipe}", "output={tmp}/x", "model.path={tmp}"], "No config.json in"),
        (["evaluate", "{tmp}"], "No config.json in"),
        (["evaluate", "{run}", "--batch-size", "8"], "--output and --batch-size are for --blimp"),
        (
            ["evaluate", "{run}", "--submission", "{tmp}/SST-2.tsv", "--report", "{tmp}/r.html"],
            "--report needs labels",
        ),
        (["evaluate", "{run}", "--report", "{recipe}"], "is not an HTML page"),
        (["analyze", "{run}", "a", "good", "film", "--output", "{tmp}/page"], "needs quotes"),
        (["analyze", "{run}", "good", "film", "--output", "{tmp}/page"], "takes no 'text_pair'"),
        (["analyze", "{run}", "a", "--pairs", "2", "--output", "{tmp}/page"], "is for --heads"),
        (["analyze", "{run}", "--heads", "--word", "2", "--output", "{tmp}/page"], "the texts of"),
        (["analyze", "{tmp}", "a", "--output", "{tmp}/page"], "No config.json in"),
        (["predict", "{tmp}", "text"], "No config.json in"),
        (["predict", "{run}"], "There is no text in the input."),
        (["predict", "{run}", "--text", "a film"], "--text is for --input"),
        (["predict", "{run}", "a film", "--id", "x"], "--id is for --input"),
        (["predict", "{run}", "a", "--top", "0"], "--top must be at least 1, got 0"),
        (["export", "{tmp}", "{tmp}/out"], "No config.json in"),
        (["predict", "{run}", "a", "--labels", "x,y"], "--labels is for checkpoints"),
        (["export", "{run}", "{run}/recipe.yaml"], "File exists"),
        (["serve", "{tmp}"], "NOT_FOUND"),
        (["serve", "{tmp}/absent"], "INVALID_ARGUMENT"),
        (["tokenize", "{tmp}", "text"], "found no tokenizer"),
        (["tokenize", "{tmp}/absent", "text"], "No checkpoint at"),
        (["tokenize", "{tiny}", "text", "--input", "x"], "expected one of them"),
        (["tokenize", "{tiny}", "--input", "absent"], "No such file"),
        (["tokenize", "{tiny}", "a", "--packed", "--max-length", "4"], "a pair needs 5 tokens"),
        (
            ["vocabulary", "word", "--input", "x", "--output", "{tmp}/x"],
            "kind must be one of wordpiece",
        ),
        (["vocabulary", "words", "--input", "absent", "--output", "{tmp}/x"], "no file absent"),
        (["vocabulary", "bpe", "--input", "{recipe}", "--output", "{tmp}/x"], "needs a size"),
    ],
)
def test_errors_are_one_line(trained, tiny, tmp_path, capsys, monkeypatch, arguments, error):
    run, _ = trained
    names = {"recipe": run.parent / "recipe.yaml", "run": run, "tmp": tmp_path, "tiny": tiny}
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    # Of the system and the server, which may pass, and of what was given, which does not.
    passing = ("File exists", "NOT_FOUND", "INVALID_ARGUMENT", "is not an HTML page")
    status = 1 if error in passing else 2
    assert main([argument.format(**names) for argument in arguments]) == status
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"bertfam {arguments[0]}: ")
    assert error in line
    assert not captured.out
    assert not (tmp_path / "page").exists()


def test_an_error_of_several_lines_becomes_one(trained, tmp_path, capsys, tiny_copy):
    run, _ = trained
    (tiny_copy / "config.json").write_text(
        (tiny_copy / "config.json").read_text().replace('"vocab_size": 64', '"vocab_size": 65')
    )
    override = [f"output={tmp_path}/x", f"model.path={tiny_copy}"]
    assert main(["train", str(run.parent / "recipe.yaml"), *override]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "do not match. Wrong shapes: " in line


def test_a_refused_export_is_a_users_error(trained, tmp_path, capsys, monkeypatch):
    def refuse(*args, **kwargs):
        raise ExportError("differs")

    monkeypatch.setattr(bf.TextClassifier, "export", refuse)
    assert main(["export", str(trained[0]), str(tmp_path)]) == 1
    assert capsys.readouterr().err == "bertfam export: differs\n"


def test_a_bug_keeps_its_traceback(trained, monkeypatch):
    def fail(*args, **kwargs):
        # A package that is broken can no longer be imported.
        monkeypatch.setitem(sys.modules, "bertfam_tf.export", None)
        raise RuntimeError("a bug")

    monkeypatch.setattr(bf.TextClassifier, "export", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["export", str(trained[0]), "x"])


@pytest.mark.full
def test_the_process(tmp_path):
    command = [sys.executable, "-m", "bertfam_tf.cli", "serve", str(tmp_path), "--port", "0"]
    environment = {n: v for n, v in os.environ.items() if n != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert result.stderr.startswith("bertfam serve: NOT_FOUND: ")
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


@pytest.mark.parametrize(
    ("command", "status"),
    [(["train", "absent.yaml"], 2), (["families"], 0), (["families", "bret"], 2)],
)
def test_what_needs_no_tensorflow_does_not_wait_for_it(command, status):
    code = (
        f"import sys; from bertfam_tf.cli import main; status = main({command}); "
        "print(status, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == f"{status} False False"


@pytest.mark.extended
@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is for x86")
@pytest.mark.parametrize(("given", "command", "found"), [
    ("", "train", "1"), ("0", "train", "0"), ("", "evaluate", "1"), ("", "tokenize", ""),
])  # fmt: skip
def test_commands_that_compute_batches_use_onednn(given, command, found, tmp_path):
    code = (
        f"import os; from bertfam_tf.cli import main; main([{command!r}, 'absent', 'absent']); "
        "print(os.environ.get('TF_ENABLE_ONEDNN_OPTS', ''))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    environment |= {"TF_ENABLE_ONEDNN_OPTS": given} if given else {}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.stdout.split("\n")[-2] == found, run.stderr


def test_an_interruption_is_one_line(trained, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(bf.TextClassifier, "export", interrupt)
    assert main(["export", str(trained[0]), "x"]) == 130
    assert capsys.readouterr().err == "bertfam export: interrupted\n"


def test_lines_of_another_system(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffa film\r\n\r\nit is", newline=""))
    assert stdin_lines() == ["a film", "", "it is"]


def test_lines_in_any_encoding_of_the_system(monkeypatch):
    data = io.BytesIO("é\na\rb\r\n".encode() + b"bad \xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data, "latin-1"))
    assert stdin_lines() == ["é", "a\rb", "bad \ufffd"]


@pytest.mark.parametrize("options", [[], ["--output", "scores.json"]])
def test_an_interrupted_scoring_of_pairs(monkeypatch, capsys, options):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertfam_tf.cli.evaluate.loaded_task", interrupt)
    assert main(["evaluate", "model", "--blimp", "pairs", *options]) == 130
    again = "; the same command continues it" if options else ""
    assert capsys.readouterr().err == f"bertfam evaluate: interrupted{again}\n"


@pytest.mark.parametrize("command", ["train", "pretrain", "distill", "sweep"])
def test_an_interrupted_training_says_how_to_continue(monkeypatch, capsys, command):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    for module in ("reading", "runs"):
        monkeypatch.setattr(f"bertfam_tf.recipes.{module}.load_recipe", interrupt)
    over = ["--over", "train.seed=0,1"] if command == "sweep" else []
    assert main([command, "recipe.yaml", *over]) == 130
    error = capsys.readouterr().err
    assert error == f"bertfam {command}: interrupted; the same command continues it\n"


@pytest.mark.extended
def test_ctrl_c_in_a_training(trained, tmp_path):
    """A process of its own: TensorFlow runs in other threads, which the signal does not reach."""
    recipe = str(trained[0].parent / "recipe.yaml")
    output, rows = tmp_path / "run", tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "a good film\tpositive\nit is bad\tnegative\n" * 2000)
    command = [sys.executable, "-m", "bertfam_tf.cli", "train", recipe, f"output={output}"]
    command += [f"data.train={rows}", "train.epochs=20"]
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # A background job of a shell ignores the signal, and so would its children.
    handled = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    with subprocess.Popen(command, **pipes, **handled) as process:
        while not (output / "history.csv").is_file() and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "bertfam train: interrupted; the same command continues it"
    assert "Traceback" not in error


def test_the_reader_of_the_output_has_ended():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "bertfam_tf.cli", "families"]
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"bertfam {bf.__version__}\n"


@pytest.mark.full
def test_one_of_several_tasks(smallest, tmp_path, capsys):
    backbone, tokenizer = bf.load_backbone(smallest), bf.load_tokenizer(smallest)
    tasks = {
        "film": bf.TextClassifier(backbone, tokenizer, labels=["a", "b"], pair=False),
        "score": bf.TextRegressor(backbone, tokenizer, pair=False),
    }
    bf.MultiTask(tasks).save(tmp_path / "saved")
    saved = str(tmp_path / "saved")
    assert main(["predict", saved, "it is", "--task", "film"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("a", "b")
    assert main(["predict", saved, "it is"]) == 2
    assert "choose one with --task: film, score" in capsys.readouterr().err
    assert main(["predict", saved, "it is", "--task", "filn"]) == 2
    assert "'film'" in capsys.readouterr().err
    assert main(["export", saved, str(tmp_path / "export")]) == 0
    assert main(["export", saved, str(tmp_path / "export"), "--label-names"]) == 2
    assert "--label-names is for one task; choose it with --task: film" in capsys.readouterr().err
    tasks["film"].save(tmp_path / "film")
    assert main(["predict", str(tmp_path / "film"), "it is", "--task", "film"]) == 2
    assert "is a TextClassifier, without a task" in capsys.readouterr().err


@pytest.mark.full
def test_analyze(trained, tmp_path, capsys):
    """Which words made an answer; which heads a run needs; a report of its mistakes."""
    run = str(trained[0])
    assert main(["analyze", run, "a good film", "--output", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["word"] for each in found["words"]] == ["a", "good", "film"]
    assert "a good film".split()[1] in (tmp_path / "example.html").read_text()
    assert (tmp_path / "words.png").is_file()
    assert (tmp_path / "attention.png").is_file()
    assert main(["analyze", run, "--heads", "--mode", "uniform", "--output", str(tmp_path)]) == 0
    changes = json.loads((tmp_path / "heads.json").read_text())
    assert (changes["metric"], changes["mode"]) == ("accuracy", "uniform")
    assert (tmp_path / "heads.png").is_file()
    assert main(["analyze", run, "--output", str(tmp_path)]) == 2
    assert "needs the texts of an example, or --heads" in capsys.readouterr().err
    assert main(["analyze", run, "--heads", "--metric", "f2", "--output", str(tmp_path)]) == 2
    assert main(["evaluate", run, "--report", str(tmp_path / "report.html")]) == 0
    assert "Confusion" in (tmp_path / "report.html").read_text()


@pytest.mark.extended
@pytest.mark.parametrize("saved", [False, True])
def test_minimal_pairs(saved, smallest, tmp_path, capsys):
    task = bf.MaskedLM.from_pretrained(smallest)
    path = tmp_path / "model"
    if saved:
        task.save(path)
    else:
        task.save_pretrained(path)
    pair = {"sentence_good": "the film was good", "sentence_bad": "good the was film"}
    (tmp_path / "order.jsonl").write_text(json.dumps(pair))
    assert main(["evaluate", str(path), "--blimp", str(tmp_path)]) == 0
    good, bad = task.log_likelihood(list(pair.values()))
    expected = float(good > bad)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"order": expected, "mean": expected}
    assert "1/1" in printed.err
    file = tmp_path / "scores.json"
    again = ["evaluate", str(path), "--blimp", str(tmp_path), "--output", str(file)]
    assert main(again) == 0
    stored = json.loads(file.read_text())
    assert stored["paradigms"]["order"]["accuracy"] == expected
    stored["paradigms"]["order"]["accuracy"] = 0.25
    file.write_text(json.dumps(stored))
    capsys.readouterr()
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out) == {"order": 0.25, "mean": 0.25}
    assert main(["evaluate", str(path), "--output", str(file)]) == 2
    assert "--output and --batch-size are for --blimp" in capsys.readouterr().err


def test_minimal_pairs_of_another_task(smallest, tmp_path, capsys):
    bf.TextClassifier.from_pretrained(smallest, labels=["a", "b"]).save(tmp_path / "saved")
    assert main(["evaluate", str(tmp_path / "saved"), "--blimp", str(tmp_path)]) == 2
    assert "--blimp is for a MaskedLM or a CausalLM; " in capsys.readouterr().err

"""Commands on checkpoints: the task is the one that the head is for, or that is named."""

import json
import logging
import os
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

import pytest

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.cli import serve as serve_command
from bertfam_tf.cli.main import _plain_warnings
from bertfam_tf.tasks import load_checkpoint
from bertfam_tf.tasks.loading import _class_of
from bertfam_tf.user_warnings import UntrainedWarning, new_heads_logged, warn

KINDS = {
    "TextClassifier": {"labels": ["x", "y"]},
    "MultiLabelClassifier": {"labels": ["x", "y"]},
    "TextRegressor": {},
    "TokenTagger": {"tags": ["O", "B-x"]},
    "SpanQA": {},
    "MultipleChoice": {"num_choices": 2},
    "MaskedLM": {},
    "Reranker": {},
    "TextEmbedder": {},
    "SparseEmbedder": {},
}


def _json(text):
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_the_head_says_what_a_checkpoint_is_for(smallest, tmp_path, kind):
    cls = getattr(bf, kind)
    cls.from_pretrained(smallest, **KINDS[kind]).save_pretrained(tmp_path / "saved")
    assert _class_of(tmp_path / "saved") is cls


def test_several_numbers_are_no_regression_of_ours(smallest, tmp_path):
    """It predicted by a head with random weights."""
    shutil.copytree(smallest, tmp_path / "in")
    config = json.loads((smallest / "config.json").read_text("utf-8"))
    config["problem_type"] = "regression"
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has the heads sequence; choose its task, one of"):
        _class_of(tmp_path / "in")


@pytest.mark.extended
def test_a_checkpoint_without_a_head_needs_a_task(smallest, tmp_path, capsys):
    directory = tmp_path / "encoder"
    bf.save_pretrained(bf.load_backbone(smallest), directory)
    shutil.copy(Path(smallest) / "vocab.txt", directory)
    assert main(["predict", str(directory), "a film"]) == 2
    error = capsys.readouterr().err
    assert "encoder has no head; choose its task, one of CausalLM, FewShotClassifier, " in error
    command = ["predict", str(directory), "a film", "--task", "TextClassifier"]
    with pytest.warns(UntrainedWarning, match="^The sequence head is initialized at random: "):
        assert main([*command, "--labels", "x,y"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("x", "y")
    with pytest.warns(UntrainedWarning):
        assert main([*command, "--labels", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("LABEL_0", "LABEL_1")
    assert main([*command, "--labels", "x"]) == 2
    assert "labels must be at least two distinct strings" in capsys.readouterr().err
    assert main(["predict", str(directory), "a", "--task", "TextEmbedder", "--labels", "x,y"]) == 2
    assert "labels must be None for a TextEmbedder" in capsys.readouterr().err


@pytest.mark.extended
def test_a_new_head_warns_at_the_users_line(smallest):
    with pytest.warns(UserWarning, match="initialized at random: the head of .* is for the labels"):
        task = bf.TextClassifier.from_pretrained(smallest, labels=["x", "y"])
    assert task.predict(["a film"])[0]["label"] in ("x", "y")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bf.TokenTagger.from_pretrained(smallest, tags=["O", "B-x"])
        load_checkpoint(smallest, "SpanQA")
    assert [each.category for each in caught] == [UntrainedWarning] * 2
    assert {each.filename for each in caught} == {__file__}


def test_the_warning_of_a_command_is_one_line():
    with _plain_warnings():
        assert warnings.formatwarning(UserWarning("a text"), UserWarning, "a.py", 3) == "a text\n"
    assert "a.py:3: UserWarning: a text" in warnings.formatwarning("a text", UserWarning, "a.py", 3)


def test_a_recipe_logs_that_a_head_is_new(caplog):
    """Without advice to train it, which is what the recipe does; other warnings pass."""
    caplog.set_level("INFO")

    def build():
        with new_heads_logged(logging.getLogger()):
            warn(UntrainedWarning("sequence head", "is", "x", "TextClassifier"))
            warn("another")

    with pytest.warns(UserWarning, match="another"):
        build()
    assert caplog.messages == ["The sequence head is initialized at random: x has none."]


@pytest.mark.extended
def test_predict_and_evaluate(tiny, tmp_path, capsys):
    expected = bf.TextClassifier.from_pretrained(tiny).predict(["a film"])[0]
    assert main(["predict", str(tiny), "a film"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label"] == expected["label"]
    assert sorted(found["scores"].values()) == pytest.approx(sorted(expected["scores"]), abs=1e-6)
    file = tmp_path / "dev.tsv"
    file.write_text("comment\tlabel\na good film\tpositive\nit is bad\tnegative\n")
    assert main(["evaluate", str(tiny)]) == 2
    assert "no recipe that names its data; add data.dev=FILE" in capsys.readouterr().err
    assert main(["evaluate", str(tiny), f"data.dev={file}", "data.text=comment"]) == 0
    assert _json(capsys.readouterr().out).keys() == {"accuracy", "loss"}
    # The output of a file has the number of each row, or its id, and resumes.
    output = tmp_path / "out.jsonl"
    command = ["predict", str(tiny), "--input", str(file), "--output", str(output)]
    command += ["--text", "comment"]
    assert main(command) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["row"] for row in rows] == [0, 1]
    whole = output.read_text()
    output.write_text(whole.splitlines(keepends=True)[0])
    assert main(command) == 0
    assert output.read_text() == whole
    output = tmp_path / "ids.jsonl"
    assert main([*command[:5], str(output), "--text", "comment", "--id", "label"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["positive", "negative"]
    assert "row" not in rows[0]


@pytest.mark.extended
def test_serve_exports_first(tiny, tmp_path, capsys, monkeypatch):
    served = []

    def run_server(options):
        served.append(options.base_path)
        if Path(options.base_path).is_dir():
            served.append(sorted(child.name for child in Path(options.base_path).iterdir()))

    monkeypatch.setattr(serve_command, "run_server", run_server)
    assert main(["serve", str(tiny)]) == 0
    assert served[1] == ["1"]
    assert not Path(served[0]).exists()
    assert f"`bertfam export {tiny} DIRECTORY` keeps the export" in capsys.readouterr().err
    # A directory with versions is served as it is.
    (tmp_path / "model" / "1").mkdir(parents=True)
    assert main(["serve", str(tmp_path / "model")]) == 0
    assert served[2] == str(tmp_path / "model")
    assert main(["serve", str(tmp_path / "model"), "--labels", "a,b"]) == 2
    assert "--labels is for models that are not exported yet" in capsys.readouterr().err


def test_serve_that_is_ended_while_it_exports(tmp_path, monkeypatch):
    class Task:
        def export(self, folder):
            Path(folder, "1").mkdir()
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve_command, "loaded_task", lambda *_, **__: Task())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # not the end of the tests
    try:
        with pytest.raises(SystemExit) as ended:
            main(["serve", "package:any"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert not list(tmp_path.iterdir())


def test_a_level_too_high_or_too_low(tmp_path, capsys):
    for name in ("desk", "mood"):
        (tmp_path / "exports" / name / "3").mkdir(parents=True)
        (tmp_path / "exports" / name / "3" / "saved_model.pb").touch()
    exports = tmp_path / "exports"
    assert main(["serve", str(exports)]) == 1
    error = capsys.readouterr().err
    assert f"one level below: serve {exports / 'desk'} or {exports / 'mood'}, or several" in error
    assert main(["serve", str(exports / "desk" / "3")]) == 1
    assert f"3 is one version of a model: serve {exports / 'desk'}." in capsys.readouterr().err


@pytest.mark.parametrize("directory", ["desk", "desk/3"])
def test_an_export_is_no_model(directory, tmp_path, capsys):
    (tmp_path / "desk" / "3").mkdir(parents=True)
    (tmp_path / "desk" / "3" / "saved_model.pb").touch()
    assert main(["predict", str(tmp_path / directory), "a text"]) == 2
    assert "It has a SavedModel, for bertfam serve: name the model" in capsys.readouterr().err

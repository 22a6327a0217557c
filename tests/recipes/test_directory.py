"""Run directories: files that a run did not write are never replaced or removed."""

import dataclasses
import os

import numpy as np
import pytest
import yaml

from bertfam_tf.checkpoints.safetensors import write as write_tensors
from bertfam_tf.distill.settings import DistillStage, StudentConfig
from bertfam_tf.recipes.directory import (
    RunDirectory,
    check_unchanged,
    digests,
    model_directory,
    model_source,
    run_directory,
)
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import DistillRecipe


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "given.yaml"
    values = {
        "output": str(tmp_path / "victim"),
        "model": {"path": "package:any"},
        "data": {"train": "train.tsv"},
        "train": {"epochs": 2},
    }
    file.write_text(yaml.safe_dump(values))
    return load_recipe(file)


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "victim"
    folder.mkdir()
    return folder


def _files(folder):
    return {x.relative_to(folder).as_posix(): x.read_bytes() for x in folder.rglob("*.*")
            if x.is_file()}  # fmt: skip


def _write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"backup/thesis.txt": "mine", "history.csv": "day,steps"}, "backup, history.csv"),
        ({"history.csv": "day,steps"}, "history.csv"),
        ({"metrics.json": "{}"}, "metrics.json"),
        ({"model/notes.txt": "mine"}, "model"),
        ({".hidden": ""}, ".hidden"),
        ({f"{i}.txt": "" for i in range(9)}, "0.txt, 1.txt, 2.txt and 6 more"),
    ],
)
def test_a_folder_that_is_not_a_run(recipe, output, files, named):
    _write(output, files)
    before = _files(output)
    with (
        pytest.raises(ValueError, match=f"victim contains {named}, and nothing that describes"),
        run_directory(recipe) as directory,
    ):
        directory.begin()
    assert _files(output) == before


def test_a_user_s_recipe_in_the_output(recipe, output):
    text = "# Mine.\noutput: victim\n"
    (output / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.yaml was not written by a run"):
        RunDirectory(recipe)
    assert (output / "recipe.yaml").read_text() == text


@pytest.mark.parametrize("name", [".lock", "lost+found", ".recipe.yaml.abcdefgh.tmp"])
def test_what_a_new_folder_may_contain(recipe, output, name):
    (output / name).touch()
    with run_directory(recipe) as directory:
        directory.begin()
    assert (output / "recipe.yaml").read_text() == recipe.to_yaml()


def test_a_lock_of_another_program(recipe, output):
    (output / ".lock").write_text("mine")
    with (
        pytest.raises(FileExistsError, match="was not written by bertfam_tf"),
        run_directory(recipe),
    ):
        pass
    assert (output / ".lock").read_text() == "mine"


def test_a_run_that_was_moved_goes_on(recipe, output, tmp_path):
    with run_directory(recipe) as directory:
        directory.begin()
    (output / "backup").mkdir()
    state = output / "backup" / "state.safetensors"
    write_tensors({"x": np.ones(1)}, state, {"recipe": recipe.to_yaml()})
    output.rename(tmp_path / "moved")
    moved = dataclasses.replace(recipe, output=str(tmp_path / "moved"))
    with run_directory(moved) as directory:
        directory.begin()
    assert (tmp_path / "moved" / "backup" / "state.safetensors").is_file()
    assert load_recipe(tmp_path / "moved" / "recipe.yaml") == moved
    train = dataclasses.replace(moved.train, epochs=3)
    other = dataclasses.replace(moved, train=train)
    with pytest.raises(ValueError, match=r"recipe\.yaml: train\.epochs is 2, expected 3\)"):
        RunDirectory(other)


def test_files_beside_those_of_a_run_are_kept(recipe, output):
    with run_directory(recipe) as directory:
        directory.begin()
    own = ("backup/state.safetensors", "backup/best/values.json", "backup/stage_1/best/values.json")
    own += ("backup/.state.safetensors.abcdefgh.tmp/x", "backup/stage_1/previous.safetensors")
    kept = {"notes.txt": "mine", "backup/thesis.txt": "mine", "backup/best/x.csv": "mine"}
    _write(output, kept | dict.fromkeys(own[1:], "{}"))
    write_tensors({"x": np.ones(1)}, output / own[0], {"recipe": recipe.to_yaml()})
    with run_directory(recipe) as directory:
        directory.begin()
        assert (output / own[0]).exists()
        directory.finish({})
    text = {name: content.decode() for name, content in _files(output).items()}
    assert kept.items() <= text.items()
    assert set(text) - set(kept) == {"recipe.yaml", "data_files.json", "metrics.json"}
    assert not list(output.rglob("*.tmp"))
    with run_directory(recipe) as directory:
        assert directory.metrics() == {}


def test_metrics_of_another_recipe_without_its_model(recipe, output):
    with run_directory(recipe) as directory:
        directory.begin()
        directory.finish({"accuracy": 1.0})
    other = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=4))
    with pytest.raises(ValueError, match=r"a run with other settings \(.*: train.seed is 0, exp"):
        RunDirectory(other)


def test_a_recipe_that_failed_may_be_changed(recipe, output):
    with run_directory(recipe) as directory:
        directory.begin()
    other = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, seed=4))
    with run_directory(other) as directory:
        directory.begin()
    assert (output / "recipe.yaml").read_text() == other.to_yaml()
    assert not os.path.lexists(output / ".lock")


def test_a_run_of_version_0_1_goes_on(recipe, output):
    """Its recipe has names that were changed since; other settings are still another run."""
    checkpointed = dataclasses.replace(recipe.train, gradient_checkpointing=True)
    recipe = dataclasses.replace(recipe, train=checkpointed)
    stored = recipe.to_yaml().replace("gradient_checkpointing: true", "recompute: blocks")
    _write(output, {"recipe.yaml": stored, "metrics.json": '{"loss": 1.0}'})
    with run_directory(recipe) as directory:
        assert directory.metrics() == {"loss": 1.0}
    _write(output, {"recipe.yaml": stored.replace("recompute: blocks", "recompute: none")})
    with (
        pytest.raises(ValueError, match=r"train\.gradient_checkpointing is False, expected True"),
        run_directory(recipe),
    ):
        pass


def test_the_model_of_a_run_that_is_not_finished(recipe, output):
    assert model_directory(output) == output
    (output / "recipe.yaml").write_text(recipe.to_yaml())
    with pytest.raises(ValueError, match=r"victim has no model yet; the command that started"):
        model_directory(output)
    (output / "metrics.json").write_text("{}")
    with pytest.raises(ValueError, match=r"whose model was removed; remove metrics\.json"):
        model_directory(output)
    (output / "model").mkdir()
    assert model_directory(output) == output / "model"


def test_the_model_that_a_recipe_names(recipe, output, tiny, monkeypatch):
    monkeypatch.setenv("RUNS", str(output))
    (output / "recipe.yaml").write_text(recipe.to_yaml())
    with pytest.raises(ValueError, match="victim has no model yet"):
        model_source("$RUNS")
    (output / "model").mkdir()
    assert model_source("$RUNS") == output / "model"
    (output / "config.json").write_bytes((tiny / "config.json").read_bytes())
    assert model_source("$RUNS") == str(output)
    assert model_source("google-bert/bert-base-uncased") == "google-bert/bert-base-uncased"


def test_data_that_changes(recipe, output, tmp_path, monkeypatch):
    """Neither a run that goes on nor a finished one takes other data for its own."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "train.tsv"
    data.write_text("a\tpos\n")
    with run_directory(recipe) as directory:
        directory.begin()
    data.write_text("a\tneg\n")  # a run without a checkpoint begins again
    with run_directory(recipe) as directory:
        directory.begin()
        directory.finish({"loss": 1.0})
    with run_directory(recipe) as directory:
        assert directory.metrics() == {"loss": 1.0}
    data.write_text("a\tpos\n")
    with (
        pytest.raises(ValueError, match=r"has changed since it began \(data\.train: train\.tsv\)"),
        run_directory(recipe),
    ):
        pass
    data.unlink()  # the results stay without the data
    with run_directory(recipe) as directory:
        assert directory.metrics() == {"loss": 1.0}


def test_folders_word_vectors_and_teachers_that_change(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "race/high/1.txt": "{}",
        "race/.DS_Store": "",
        ".dev": "{}",
        "vectors.txt": "a 1\n",
        "teacher/bertfam.json": "{}",
        "checkpoint/model.safetensors": "x",
        "checkpoint/README.md": "y",
    }
    for folder in ("race/high", "teacher", "checkpoint"):
        (tmp_path / folder).mkdir(parents=True)
    _write(tmp_path, files)
    distilled = DistillRecipe(
        str(tmp_path / "victim"),
        ["teacher", "checkpoint", "package:x", "google-bert/bert-base-uncased"],
        StudentConfig(word_vectors="vectors.txt"),
        dataclasses.replace(
            recipe.data, train="race", dev=["tfds:race/dev", "a.tar.gz/dev", ".dev"]
        ),
        [DistillStage({})],
    )
    stored = digests(distilled)
    assert {key: list(found) for key, found in stored.items()} == {
        "teacher": ["teacher/bertfam.json", "checkpoint/model.safetensors"],
        "student.word_vectors": ["vectors.txt"],
        "data.train": ["race/high/1.txt"],
        "data.dev": [".dev"],
    }
    check_unchanged(stored, distilled, tmp_path)
    check_unchanged({}, distilled, tmp_path)  # of an earlier version
    _write(tmp_path, {"checkpoint/README.md": "z"})
    check_unchanged(stored, distilled, tmp_path)
    for name in ("race/high/1.txt", "vectors.txt", *stored["teacher"]):
        _write(tmp_path, {**files, name: "other"})
        with pytest.raises(ValueError, match=rf"has changed since it began \(.*: {name}\)"):
            check_unchanged(stored, distilled, tmp_path)


def test_large_data_of_which_a_part_is_gone(recipe, output, tmp_path, monkeypatch):
    monkeypatch.setattr("bertfam_tf.recipes.directory._LARGEST", 8)
    texts = {"a.tsv": "a\tpos\n", "b.tsv": "b\tneg\n"}
    train, dev = (str(tmp_path / name) for name in texts)
    recipe = dataclasses.replace(
        recipe, data=dataclasses.replace(recipe.data, train=train, dev=dev)
    )
    _write(tmp_path, texts)
    with run_directory(recipe) as directory:
        directory.begin()
        directory.finish({"loss": 1.0})
    (tmp_path / "a.tsv").unlink()
    with run_directory(recipe) as directory:
        assert directory.metrics() == {"loss": 1.0}
    (tmp_path / "b.tsv").write_text("another\tneg\n")
    with pytest.raises(ValueError, match=r"data\.dev: .*/b\.tsv\)"), run_directory(recipe):
        pass


def test_a_pattern_that_matches_other_files(recipe, output, tmp_path):
    """Fewer files, more, or the same texts in another order are other rows."""
    recipe = dataclasses.replace(
        recipe, data=dataclasses.replace(recipe.data, train=str(tmp_path / "*.tsv"))
    )
    texts = {"a.tsv": "a\tpos\n", "b.tsv": "b\tneg\n"}
    _write(tmp_path, texts)
    with run_directory(recipe) as directory:
        directory.begin()
        directory.finish({"loss": 1.0})
    for changed, named in (
        ({"c.tsv": "c\tpos\n"}, r"/c\.tsv\)"),
        ({"b.tsv": texts["a.tsv"], "a.tsv": texts["b.tsv"]}, r"/a\.tsv, .*/b\.tsv\)"),
        ({"b.tsv": None}, "1 files instead of 2"),
    ):
        for file in tmp_path.glob("*.tsv"):
            file.unlink()
        _write(tmp_path, {n: x for n, x in {**texts, **changed}.items() if x is not None})
        with pytest.raises(ValueError, match=named), run_directory(recipe):
            pass
    for file in tmp_path.glob("*.tsv"):
        file.rename(output.parent / f"{file.stem}.moved")
    with run_directory(recipe) as directory:
        assert directory.metrics() == {"loss": 1.0}

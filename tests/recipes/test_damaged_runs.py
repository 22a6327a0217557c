"""Damaged files of runs: named in an error, or left out of a table, and never a traceback."""

import dataclasses
import json
import random
import re
import shutil

import keras
import numpy as np
import pytest
import yaml

from bertfam_tf import cli
from bertfam_tf.checkpoints.safetensors import write as write_tensors
from bertfam_tf.recipes.directory import RunDirectory, run_directory
from bertfam_tf.recipes.reading import load_recipe, load_run
from bertfam_tf.training.callbacks import curves
from bertfam_tf.training.callbacks.logs import StepLog
from tests.selection import in_full
from tests.support.file_mutations import mutate

EPOCHS = [{"step": i, "epoch": i, "loss": 1.5, "val_loss": 1.2} for i in range(1, 3)]
STEPS = [{"step": i, "loss": 1.0, "learning_rate": 1e-4, "gradient_norm": None} for i in range(4)]


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    """A run that was interrupted, and has metrics all the same."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    file = folder.with_name("given.yaml")
    data = {"train": "train.tsv", "labels": ["a", "b"]}
    values = {"output": str(folder), "model": {"path": "package:any"}, "data": data}
    file.write_text(yaml.safe_dump(values))
    directory = RunDirectory(load_recipe(file))
    directory.begin()
    callbacks = [directory.history(), directory.backup(1)]
    x = np.ones((4, 1))
    model.fit(x, x, batch_size=1, epochs=2, callbacks=callbacks, verbose=0)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in STEPS + EPOCHS)
    )
    (folder / "metrics.json").write_text(json.dumps({"accuracy": 0.5, "loss": 1.0}))
    return folder


def _damaged(run, tmp_path, seed):
    folder = tmp_path / "a"
    shutil.copytree(run, folder)
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    # One folder alone would be swapped for itself.
    return folder, mutate(folder, run.parent, secret, random.Random(seed))


@pytest.mark.parametrize("seed", in_full(range(150), range(9)))
def test_mutations(run, model, tmp_path, capsys, seed):
    folder, change = _damaged(run, tmp_path, seed)
    shutil.copytree(run, tmp_path / "b")
    try:
        assert cli.main(["runs", str(folder), str(tmp_path / "b")]) == 0, change
        printed = capsys.readouterr()
        assert str(tmp_path / "b") in printed.out
        assert cli.main(["runs", str(folder)]) in (0, 2), change
        _read(folder, model)
    except Exception as error:
        raise AssertionError(change) from error
    assert not (tmp_path / "executed").exists()


def _read(folder, model):
    """Reads all files of a run; errors name one of them."""
    log = StepLog(folder / "metrics.jsonl", folder / "tensorboard")
    curves.draw(log.lines, folder / "curves.png")

    def resume():
        recipe = dataclasses.replace(load_run(folder / "recipe.yaml"), output=str(folder))
        directory = RunDirectory(recipe, writes=False)
        directory.metrics()
        _ = directory.history().rows
        directory.backup().restore(model)

    try:
        resume()
    except ValueError as error:
        assert str(folder) in str(error), error  # noqa: PT017


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("recipe.yaml", b"", r"recipe\.yaml is not a mapping"),
        # Longer than the limit of the csv module, which reading data files raises.
        ("history.csv", b"epoch,loss\n0," + b"x" * 200_000, r"history\.csv is not the history"),
        ("history.csv", b"epoch,loss\n0,1.0\nx,1.0\n", r"history\.csv is not the history"),
        ("history.csv", b"epoch,loss\n0,1.0,2.0\n", r"history\.csv is not the history"),
        ("history.csv", b"\xff\n", r"history\.csv: line 1 contains the byte 0xff"),
        ("metrics.json", b"[1]", r"metrics\.json is not a mapping"),
    ],
)
def test_a_damaged_run_is_left_out(run, tmp_path, capsys, caplog, name, content, error):
    for other in "ab":
        shutil.copytree(run, tmp_path / other)
    (tmp_path / "a" / name).write_bytes(content)
    assert cli.main(["runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert str(tmp_path / "b") in printed
    assert str(tmp_path / "a") not in printed
    assert "Left out: " in caplog.text
    assert cli.main(["runs", str(tmp_path / "a")]) == 2
    assert re.search(error, caplog.text)
    assert re.search(error, capsys.readouterr().err)


def test_a_damaged_history_is_an_error_before_training(run, tmp_path):
    recipe = dataclasses.replace(load_run(run / "recipe.yaml"), output=str(tmp_path / "a"))
    with run_directory(recipe) as directory:
        directory.begin()
    (tmp_path / "a" / "backup").mkdir()
    state = tmp_path / "a" / "backup" / "state.safetensors"
    write_tensors({"batches": np.asarray(4)}, state, {"recipe": recipe.to_yaml()})
    (tmp_path / "a" / "history.csv").write_text("epoch,loss\nx,1.0\n")
    with pytest.raises(ValueError, match=r"history\.csv is not the history of a run"):
        RunDirectory(recipe).begin()
    assert (tmp_path / "a" / "history.csv").exists()
    state.unlink()  # without a checkpoint, training starts from the beginning
    RunDirectory(recipe).begin()
    assert not (tmp_path / "a" / "history.csv").exists()


def test_lines_of_the_log_that_are_damaged_are_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "loss": 1.0}',
        "[1]",
        '{"loss": 1.0}',
        '{"step": "x"}',
        "\x00",
        "[" * 9999,
    ]
    lines += ['{"step": 2, "epoch": null}', '{"step": 1, "loss": "x"}', '{"step": 2, "loss": nu']
    file.write_bytes("\n".join(lines).encode() + b"\n\xff\n")
    assert StepLog(file, tmp_path / "board").lines == [{"step": 1, "loss": 1.0}]

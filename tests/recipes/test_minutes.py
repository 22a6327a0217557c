"""``train.minutes`` stops every kind of training; the time of interrupted parts is added up."""

import itertools
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from bertfam_tf.checkpoints.safetensors import write
from bertfam_tf.cli import main
from bertfam_tf.training.callbacks import time_limit
from bertfam_tf.training.callbacks.backup import STATE, Backup
from tests.recipes.kinds import KINDS, recipes, write_files
from tests.selection import in_full


@pytest.fixture
def run(tiny, smallest, tmp_path, monkeypatch):
    """Runs a recipe by its name; a step takes 20 seconds, of which evaluation is not a part."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    known = recipes(tiny, smallest)

    def made(name, output="run", **train):
        command, recipe = known[name]
        if train:
            recipe = {**recipe, "train": {**recipe["train"], **train}}
        (tmp_path / "recipe.yaml").write_text(json.dumps({**recipe, "output": output}))
        assert main([command, "recipe.yaml"]) == 0
        lines = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    ticks = itertools.count(step=20)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    return made


@pytest.mark.extended
@pytest.mark.parametrize("name", in_full(KINDS, ["fine_tuning", "stages"]))
def test_every_training_stops(run, name, tmp_path):
    """After the third step of 20 seconds, in the first epoch, with all that a run leaves."""
    if name == "distillation":
        run("fine_tuning", "teacher", minutes=None, epochs=1)
    lines = run(name)
    epochs = [(line["epoch"], line["step"]) for line in lines if "epoch" in line]
    # Each stage of a distillation has its own time.
    assert epochs == [(0, 3), (9, 75)] if name == "distillation" else [(0, 3)]
    assert (tmp_path / "run" / "model").is_dir()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics.get("steps", 3) == 3
    assert not (tmp_path / "run" / "backup").exists()


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.extended
def test_time_of_an_interrupted_run(run, monkeypatch):
    """A killed run goes on with the time of its checkpoint, and a stopped one is over."""
    original, steps = Backup.on_train_batch_end, []

    def end(self, batch, logs=None):
        original(self, batch, logs)
        steps.append(self.batches)
        if steps in ([1, 2], [1, 2, 3]):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", end)
        with pytest.raises(Killed):
            run("fine_tuning")
        # Killed after its last step, before its evaluation: one more step, then that.
        with pytest.raises(Killed):
            run("fine_tuning")
        lines = run("fine_tuning")
    assert steps == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "epoch" in line] == [4]
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "clear", lambda self: None)
        patch.setattr(
            "bertfam_tf.recipes.directory.RunDirectory.finish",
            lambda *_: (_ for _ in ()).throw(Killed),
        )
        with pytest.raises(Killed):
            run("fine_tuning", "stopped")
    assert run("fine_tuning", "stopped")[-1]["step"] == 3


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), [1.0]], ids=str)
def test_a_damaged_time(tmp_path, seconds):
    write({"batches": np.asarray(1), "seconds": np.asarray(seconds)}, tmp_path / STATE)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="seconds is not a time"):
        Backup(tmp_path, 1).restore(model)

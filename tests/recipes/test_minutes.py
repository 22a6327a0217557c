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
from tests.selection import in_full

ROWS = [("a good film", "pos"), ("the bad movie", "neg"), ("it is", "pos"), ("very dull", "neg")]
TEXT = "\n".join(["The good film. The bad plot!", "It is a film. It is dull.", ""] * 6)
TRAIN = {"epochs": 9, "batch_size": 2, "backup_steps": 1, "log_steps": 1, "minutes": 1}
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
ELMO = {"filter_counts": [4, 4, 8], "hidden_size": 16, "cell_size": 16}


def _pretraining(tiny, family, objective, format, **others):
    overrides = ELMO if family == "elmo" else SIZES
    return {
        "model": {
            "family": family,
            "size": "tiny",
            "tokenizer": "characters" if family == "elmo" else str(tiny),
            "overrides": overrides,
        },
        "data": {"train": ["text.txt"], "dev": ["text.txt"], "format": format, "length": 16},
        "objectives": {objective: 1.0},
        "train": TRAIN,
        **others,
    }


def _recipes(tiny, smallest):
    """The command and the recipe of each kind of training."""
    data = {"train": "rows.tsv", "dev": "rows.tsv"}
    fine_tuning = {"model": {"path": str(smallest)}, "data": data, "train": TRAIN}
    stages = [{"steps": 9, "length": 8}, {"steps": 9}]
    terms = {"logits_error": {}}
    return {
        "fine_tuning": ("train", fine_tuning),
        "several tasks": (
            "train",
            {
                "model": {"path": str(smallest)},
                "tasks": {name: {"data": data} for name in ("film", "other")},
                "train": TRAIN,
            },
        ),
        "stream": ("pretrain", _pretraining(tiny, "gpt2", "clm", "stream")),
        "sentences": ("pretrain", _pretraining(tiny, "bert", "mlm", "full_sentences")),
        "stages": (
            "pretrain",
            _pretraining(tiny, "bert", "mlm", "full_sentences", stages=stages),
        ),
        "words": ("pretrain", _pretraining(tiny, "elmo", "bilm", "sentences")),
        "distillation": (
            "distill",
            {
                "teacher": "teacher/model",
                "student": {"num_layers": 1, "layers": "none"},
                "data": data,
                "stages": [{"terms": terms, "train": TRAIN}] * 2,
            },
        ),
    }


@pytest.fixture
def run(tiny, smallest, tmp_path, monkeypatch):
    """Runs a recipe by its name; a step takes 20 seconds, of which evaluation is not a part."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    rows = "".join(f"{text}\t{label}\n" for text, label in ROWS * 4)
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + rows)
    recipes = _recipes(tiny, smallest)

    def made(name, output="run", **train):
        command, recipe = recipes[name]
        if train:
            recipe = {**recipe, "train": {**recipe["train"], **train}}
        (tmp_path / "recipe.yaml").write_text(json.dumps({**recipe, "output": output}))
        assert main([command, "recipe.yaml"]) == 0
        lines = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    ticks = itertools.count(step=20)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    return made


KINDS = ["fine_tuning", "several tasks", "stream", "sentences", "stages", "words", "distillation"]


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

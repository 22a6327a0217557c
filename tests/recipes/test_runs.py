"""Runs beside each other, and sweeps."""

import json

import pytest
import yaml

from bertfam_tf import cli
from bertfam_tf.recipes import runs
from bertfam_tf.recipes.reading import expand

RECIPE = {
    "output": "out",
    "model": {"path": "package:any"},
    "data": {"train": "train.tsv"},
    "train": {"epochs": 2},
}


def _write(folder, seed, rate, accuracy=None):
    folder.mkdir(parents=True)
    train = {"epochs": 2, "seed": seed, "learning_rate": rate}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "train": train}))
    lines = ["epoch,loss,val_accuracy,val_loss", "0,1.5,0.4,1.2", "1,1.0,0.5,1.1"]
    (folder / "history.csv").write_text("\n".join(lines) + "\n")
    if accuracy is not None:
        (folder / "metrics.json").write_text(json.dumps({"accuracy": accuracy, "loss": 1.0}))


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / "a", 0, 1e-4, 0.5)
    _write(tmp_path / "b", 1, 1e-4, 0.75)
    _write(tmp_path / "deep" / "c", 0, 2e-4)
    return tmp_path


def test_a_table_of_what_differs(folder, capsys):
    assert cli.main(["runs", str(folder), "--plot", str(folder / "runs.png")]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed[0] == ["run", "train.learning_rate", "train.seed", "epochs", "accuracy", "loss"]
    assert printed[1] == [str(folder / "a"), "0.0001", "0", "2", "0.5", "1"]
    unfinished = [str(folder / "deep" / "c"), "0.0002", "0", "2,", "unfinished", "0.5", "1.1"]
    assert printed[3] == unfinished
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_means_over_seeds(folder):
    found = runs.read_runs([folder / "a", folder / "b"])
    assert runs.summary(found) == [
        ["runs", "accuracy", "loss"],
        ["2", "0.625 (0.5 to 0.75)", "1 (1 to 1)"],
    ]


def test_unknown_metrics_and_directories(folder, tmp_path):
    found = runs.read_runs([folder])
    with pytest.raises(ValueError, match=r"Unknown metric 'accuracy'.*val_accuracy"):
        runs.draw(found, tmp_path / "x.png", "accuracy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"There is no recipe\.yaml of a run"):
        runs.read_runs([tmp_path / "empty"])


def test_a_sweep_runs_all_combinations(tmp_path, monkeypatch, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, "output": str(tmp_path / "runs")}))
    seen = []

    def run(recipe, flops=None):
        seen.append((recipe.train.seed, recipe.train.learning_rate))
        accuracy = recipe.train.seed / 10
        _write(expand(recipe.output), recipe.train.seed, recipe.train.learning_rate, accuracy)

    monkeypatch.setattr(runs, "train", run)
    over = ["--over", "train.learning_rate=1e-4,2e-4", "--over", "train.seed=0,1"]
    assert cli.main(["sweep", str(file), "train.epochs=2", *over]) == 0
    assert seen == [(0, 1e-4), (1, 1e-4), (0, 2e-4), (1, 2e-4)]
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names[0] == "learning_rate=1e-4,seed=0"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["0.0002", "2", "0.05", "(0", "to", "0.1)", "1", "(1", "to", "1)"]


@pytest.mark.parametrize("over", ["train.seed", "train.seed=", "=1"])
def test_invalid_values(over, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    assert cli.main(["sweep", str(file), "--over", over]) == 2
    assert "--over must be KEY=VALUE,VALUE" in capsys.readouterr().err

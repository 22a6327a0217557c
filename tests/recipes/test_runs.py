"""Runs beside each other, and sweeps."""

import json

import pytest
import yaml

from bertfam_tf import cli
from bertfam_tf.recipes import runs
from bertfam_tf.recipes.reading import expand
from bertfam_tf.recipes.search_space import values_of

RECIPE = {
    "output": "out",
    "model": {"path": "package:any"},
    "data": {"train": "train.tsv"},
    "train": {"epochs": 2},
}


def _write(folder, seed, rate, accuracy=None):
    folder.mkdir(parents=True)
    train = {"epochs": 2, "seed": seed, "learning_rate": rate, "monitor": "loss"}
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
    _write(folder / "near", 0, 1.00001e-4, 0.5)
    found = runs.read_runs([folder / "a", folder / "b", folder / "near"])
    assert [row[:2] for row in runs.summary(found)[1:]] == [["0.0001", "2"], ["0.0001", "1"]]


def test_a_score_that_is_no_number_is_never_the_best(folder):
    first, second = (runs.read_runs([folder / name])[0] for name in "ab")
    nan = first._replace(metrics={"loss": float("nan")})
    assert runs.best([nan, second]) == ("loss", second)
    assert runs.best([nan]) is None


def test_unknown_metrics_and_directories(folder, tmp_path):
    found = runs.read_runs([folder])
    with pytest.raises(ValueError, match=r"Unknown metric 'accuracy'.*val_accuracy"):
        runs.draw(found, tmp_path / "x.png", "accuracy")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))  # a user's
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
    lines = capsys.readouterr().out.splitlines()
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names[0] == "learning_rate=1e-4,seed=0"
    seen.clear()
    assert cli.main(["sweep", str(file), "--over", "train.learning_rate=0.5,1.5"]) == 0
    assert (tmp_path / "runs" / "learning_rate=0.5").is_dir()
    assert (tmp_path / "runs" / "learning_rate=1.5").is_dir()
    assert lines[-1].split() == ["0.0002", "2", "0.05", "(0", "to", "0.1)", "1", "(1", "to", "1)"]


def test_values_of_a_sweep_may_be_any_text(tmp_path, monkeypatch):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, "output": str(tmp_path / "😀")}))
    outputs = []

    def run(recipe, flops=None):
        outputs.append(expand(recipe.output))
        _write(outputs[-1], 0, 1e-4, 0.5)

    monkeypatch.setattr(runs, "train", run)
    over = ["--over", "data.train=$DATA/a.tsv", "--over", "data.dev=😀.tsv"]
    assert cli.main(["sweep", str(file), *over]) == 0
    assert outputs == [tmp_path / "😀" / "train=_DATA_a.tsv,dev=😀.tsv"]


def test_values_of_a_sweep_may_be_lists():
    assert values_of("data.labels", "[a,b],[b, a],{x: [1,2], y: 3},1") == [
        *("[a,b]", "[b, a]", "{x: [1,2], y: 3}", "1")
    ]
    assert values_of("layers", "choice([-1], [-1, -2])") == ["[-1]", "[-1, -2]"]


@pytest.mark.parametrize("over", ["train.seed", "train.seed=", "=1", "train.epochs=3"])
def test_invalid_values(over, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    assert cli.main(["sweep", str(file), "--over", "train.epochs=1,2", "--over", over]) == 2
    assert "--over must be KEY=VALUE,VALUE" in capsys.readouterr().err


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """A recipe's file, and the runs that a search starts, which end at once."""
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**RECIPE, "output": str(tmp_path / "runs")}))
    seen = []

    def run(recipe, flops=None):
        output = expand(recipe.output)
        if not (output / "metrics.json").exists():
            seen.append((recipe.train.learning_rate, recipe.train.batch_size, recipe.train.epochs))
            _write(output, 0, recipe.train.learning_rate, recipe.train.learning_rate * 100)

    monkeypatch.setattr(runs, "train", run)
    return file, seen


OVER = [
    *("--over", "train.learning_rate=log_uniform(1e-5, 1e-3)"),
    *("--over", "train.batch_size=choice(8, 16, 32)"),
    *("--over", "train.epochs=uniform(2, 4)"),
]


def test_random_search(searched, tmp_path, capsys):
    """Samples in their ranges, which more trials continue, and which the seed changes."""
    file, seen = searched
    search = ["sweep", str(file), *OVER, "--search", "random"]
    assert cli.main([*search, "--trials", "40", "--seed", "3"]) == 0
    rates, sizes, epochs = (list(values) for values in zip(*seen, strict=True))
    assert len(set(seen)) == 40
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    # Half of the logarithms are below the mean of the bounds' logarithms.
    assert 10 < sum(rate < 1e-4 for rate in rates) < 30
    assert (set(sizes), set(epochs)) == ({8, 16, 32}, {2, 3, 4})
    first = seen[:]
    assert cli.main([*search, "--trials", "42", "--seed", "3"]) == 0
    assert seen[:40] == first
    assert len(seen) == 42
    assert cli.main([*search, "--trials", "2", "--seed", "4"]) == 0
    assert not set(seen[42:]) & set(first)
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.startswith(f"Best loss: 1 in {tmp_path / 'runs'}/learning_rate=")


def test_random_search_of_few_combinations(searched):
    """Trials differ, as far as there are different ones."""
    file, seen = searched
    over = ["--over", "train.batch_size=8,16,32", "--over", "train.epochs=uniform(1, 2)"]
    assert cli.main(["sweep", str(file), *over, "--search", "random", "--trials", "9"]) == 0
    assert len(seen) == len(set(seen)) == 6


@pytest.mark.parametrize(
    ("over", "options", "message"),
    [
        ("train.epochs=uniform(1, 3)", [], "train.epochs has a distribution, which needs random"),
        ("train.epochs=1,2", ["--search", "random"], "--trials must be given for --search random"),
        ("train.epochs=1,2", ["--trials", "2"], "--trials must be given for --search random"),
        ("train.epochs=1,2", ["--search", "random", "--trials", "0"], "trials must be at least 1"),
        ("train.epochs=log_unifrom(1, 3)", [], "Did you mean 'log_uniform'?"),
        ("train.epochs=log_uniform(0, 3)", [], "lower bound of train.epochs must be above 0"),
        ("train.epochs=uniform(3, 1)", [], "upper bound of train.epochs must be above 3"),
        ("train.epochs=uniform(3)", [], "uniform of train.epochs must have two bounds"),
        ("train.epochs=1,1", [], "values of a sweep must be different, got"),
        ("train.epochs=choice()", [], "choice of train.epochs must have values"),
    ],
)
def test_invalid_searches(searched, over, options, message, capsys):
    file, seen = searched
    assert cli.main(["sweep", str(file), "--over", over, *options]) == 2
    assert message in capsys.readouterr().err
    assert not seen

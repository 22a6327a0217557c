"""Files for GLUE's server: labels, scores, order and errors."""

import json

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.submissions import FILES, write_submission
from tests.selection import only_in

TEXTS = ["the film was good", "a dull film", "It was", "good good good"]


@pytest.fixture
def recipe(tmp_path, smallest):
    """Returns a function that makes a recipe whose test file has no labels."""
    (tmp_path / "test.tsv").write_text(
        "index\tsentence\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS))
    )
    (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")

    def make(**data):
        found = {
            "output": str(tmp_path / "run"),
            "model": {"path": str(smallest)},
            "data": {
                "train": str(tmp_path / "train.tsv"),
                "test": str(tmp_path / "test.tsv"),
                "text": "sentence",
                **data,
            },
        }
        (tmp_path / "recipe.yaml").write_text(json.dumps(found))
        return load_recipe(tmp_path / "recipe.yaml")

    return make


def _written(file):
    header, *lines = file.read_text().splitlines()
    assert header == "index\tprediction"
    return [tuple(line.split("\t")) for line in lines]


@only_in("extended", "CoLA", "MRPC", "RTE", "MNLI")
@pytest.mark.parametrize(
    ("name", "classes", "labels"),
    [
        ("SST-2.tsv", ["0", "1"], None),
        ("CoLA.tsv", ["no", "yes"], {"1": "no", "0": "yes"}),  # as the recipe renames them
        ("MRPC.tsv", ["different", "same"], None),  # in the order of the task's labels
        ("RTE.tsv", ["not_entailment", "entailment"], None),
        ("MNLI-mm.tsv", ["neutral", "entailment", "contradiction"], None),
    ],
    ids=["SST-2", "CoLA", "MRPC", "RTE", "MNLI"],
)
def test_labels(name, classes, labels, recipe, smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest, labels=classes)
    made = recipe() if labels is None else recipe(labels=labels)
    assert write_submission(task, made, tmp_path / name) == 4
    found = [answer["label"] for answer in task.predict(TEXTS)]
    expected = {"CoLA.tsv": {"no": "1", "yes": "0"}, "MRPC.tsv": {"different": "0", "same": "1"}}
    known = expected.get(name, {each: each for each in classes})
    assert _written(tmp_path / name) == [(str(i), known[each]) for i, each in enumerate(found)]


def test_a_line_of_names_that_is_read_as_a_row(recipe, smallest, tmp_path):
    """CoLA's test file has one, its training file has none."""
    task = bf.TextClassifier.from_pretrained(smallest, labels=["0", "1"])
    warning = r"test\.tsv: line 1 seems to have the names .* choose the column 'sentence' in place"
    with pytest.warns(UserWarning, match=warning):
        assert write_submission(task, recipe(text=1), tmp_path / "CoLA.tsv") == 5


@pytest.mark.extended
def test_scores_are_limited(recipe, smallest, tmp_path):
    task = bf.TextRegressor.from_pretrained(smallest)
    for weight in task.weights:
        weight.assign(weight + np.random.default_rng(0).normal(0, 1, weight.shape))
    expected = np.clip(task.predict(TEXTS), 0, 5)
    assert write_submission(task, recipe(), tmp_path / "STS-B.tsv") == 4
    assert _written(tmp_path / "STS-B.tsv") == [
        (str(i), f"{score:.3f}") for i, score in enumerate(expected)
    ]


def test_errors(recipe, smallest, tmp_path):
    task = bf.TextClassifier.from_pretrained(smallest, labels=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"Unknown file of GLUE 'cola.tsv'. Did you mean 'CoLA"):
        write_submission(task, recipe(), tmp_path / "cola.tsv")
    with pytest.raises(ValueError, match=r"STS-B.tsv is for a TextRegressor, got a TextClassifier"):
        write_submission(task, recipe(), tmp_path / "STS-B.tsv")
    with pytest.raises(ValueError, match=r"RTE.tsv has the labels entailment, not_entailment"):
        write_submission(task, recipe(), tmp_path / "RTE.tsv")
    other = bf.TextRegressor.from_pretrained(smallest)
    with pytest.raises(ValueError, match=r"names no test file; name it as data.test=FILE"):
        write_submission(other, recipe(test=None), tmp_path / "STS-B.tsv")
    assert not [name for name in FILES if (tmp_path / name).exists()]
    two = bf.TextClassifier.from_pretrained(smallest, labels=["x", "y"])
    renamed = recipe(labels={"0": "no", "1": "yes"})
    with pytest.raises(ValueError, match=r"labels 0, 1, got a task with the labels x, y"):
        write_submission(two, renamed, tmp_path / "CoLA.tsv")
    (tmp_path / "QNLI.tsv").write_text("index\tquestion\tsentence\n")
    with pytest.raises(FileExistsError, match=r"QNLI.tsv exists and is not a file of predictions"):
        write_submission(two, recipe(), tmp_path / "QNLI.tsv")
    assert (tmp_path / "QNLI.tsv").read_text() == "index\tquestion\tsentence\n"


@pytest.mark.extended
def test_by_command(recipe, smallest, tmp_path, capsys):
    made = recipe()
    made_run = tmp_path / "run"
    assert main(["train", str(tmp_path / "recipe.yaml"), "train.epochs=1"]) == 0
    file = tmp_path / "SST-2.tsv"
    command = ["evaluate", str(made_run), "--split", "test", "--submission", str(file)]
    capsys.readouterr()
    assert main(command) == 0
    assert "4 predictions" in capsys.readouterr().out
    expected = bf.load(made_run / "model").predict(TEXTS)
    assert _written(file) == [(str(i), each["label"]) for i, each in enumerate(expected)]
    assert made.data.test is not None

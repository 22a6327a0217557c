"""Several tasks on one backbone from a recipe, whole, killed and resumed."""

import json

import numpy as np
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.recipes import multi_task
from bertfam_tf.recipes.reading import load_run
from bertfam_tf.training.callbacks.backup import Backup

FILMS = [("a good film", "pos"), ("the bad movie", "neg"), ("it is", "pos"), ("very dull", "neg")]
PAIRS = [("a good film", "good film", 5.0), ("the plot", "we play", 0.5), ("it is", "it was", 3.0)]


@pytest.fixture
def recipe(tmp_path, smallest):
    """A recipe of two tasks, in a file."""
    films = ["text\tlabel", *("\t".join(row) for row in FILMS * 3)]
    pairs = ["a\tb\tscore", *("\t".join(map(str, row)) for row in PAIRS * 2)]
    for name, lines in (("films", films), ("pairs", pairs)):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    films, pairs = (
        {split: str(tmp_path / f"{name}.tsv") for split in ("train", "dev")}
        for name in ("films", "pairs")
    )
    values = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest), "overrides": {"dropout": 0.1}},
        "tasks": {
            "film": {"data": films, "metrics": ["accuracy"]},
            "score": {
                "task": "TextRegressor",
                "data": {**pairs, "text": "a", "text_pair": "b", "label": "score"},
                "weight": 0.5,
            },
        },
        "sampling": 0.5,
        "train": {"epochs": 2, "batch_size": 2, "learning_rate": 1e-3, "backup_steps": 2},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.full
def test_a_run_and_one_that_was_killed(recipe, tmp_path, capsys, monkeypatch):
    assert main(["train", str(recipe)]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"film_accuracy", "film_loss", "score_spearman"} <= set(metrics)
    model = bf.load(tmp_path / "run" / "model")
    assert isinstance(model, bf.MultiTask)
    right = [
        x["label"] == y
        for x, (_, y) in zip(model["film"].predict([text for text, _ in FILMS]), FILMS, strict=True)
    ]
    assert metrics["film_accuracy"] == pytest.approx(np.mean(right))
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == pytest.approx(metrics, rel=1e-5)

    original, steps = Backup.on_train_batch_end, []

    def end(self, batch, logs=None):
        original(self, batch, logs)
        steps.append(self.batches)
        if steps == list(range(1, 14)):
            raise Killed

    output = f"output={tmp_path / 'again'}"
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", end)
        with pytest.raises(Killed):
            main(["train", str(recipe), output])
        steps.append(None)
        assert main(["train", str(recipe), output]) == 0
    # 9 batches in an epoch: 6 of films and 3 of pairs.
    assert steps == [*range(1, 14), None, *range(13, 19)]
    again = bf.load(tmp_path / "again" / "model")
    for a, b in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("tasks.film.data.trian=x", "Unknown key in section tasks.film.data 'trian'. Did you mean"),
        ("tasks.film.option={}", "Unknown key in section tasks.film 'option'. Did you mean"),
        ("train.metrics=[accuracy]", "train.metrics must be null or omitted for several tasks"),
        ("train.accumulation_steps=2", "accumulation_steps must be 1 for several tasks"),
        ("tasks.film.options.top=1", "Unknown option of TextClassifier 'top'"),
        ("tasks.film.data.dev_languages={de: absent.tsv}", "There is no file absent.tsv"),
    ],
)
def test_mistakes_are_named(recipe, override, error, tmp_path, capsys):
    assert main(["train", str(recipe), override]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


def test_a_task_with_files_of_other_languages_alone_is_scored(recipe, monkeypatch):
    monkeypatch.setattr(multi_task, "evaluate", lambda task, recipe, split: {"de_accuracy": 1.0})
    film = ["tasks.film.data.dev=null", "tasks.film.data.dev_languages={de: de.tsv}"]
    loaded = load_run(recipe, [*film, "tasks.score.data.dev=null"])
    members = dict.fromkeys(loaded.tasks)
    assert multi_task.evaluate_tasks(members, loaded, "dev") == {"film_de_accuracy": 1.0}
    with pytest.raises(ValueError, match="The recipe names no test file"):
        multi_task.evaluate_tasks(members, loaded, "test")


@pytest.fixture
def run(recipe, smallest, tmp_path):
    """The directory of a run, whose model is untrained."""
    backbone, tokenizer = bf.load_backbone(smallest), bf.load_tokenizer(smallest)
    film = bf.TextClassifier(backbone, tokenizer, labels=["neg", "pos"], pair=False)
    score = bf.TextRegressor(backbone, tokenizer, pair=True)
    bf.MultiTask({"film": film, "score": score}).save(tmp_path / "run" / "model")
    recipe.rename(tmp_path / "run" / "recipe.yaml")
    return tmp_path / "run"


def test_commands_on_a_run_read_the_settings_of_a_task(run, tmp_path, capsys):
    file = tmp_path / "films.tsv"
    output = tmp_path / "answers.jsonl"
    files = ["--input", str(file), "--output", str(output)]
    assert main(["predict", str(run), "--task", "film", *files]) == 0
    assert len(output.read_text().splitlines()) == len(FILMS) * 3
    submission = tmp_path / "SST-2.tsv"
    evaluate = ["evaluate", str(run), "--split", "dev", "--submission", str(submission)]
    assert main(evaluate) == 2
    assert "choose it with --task: film, score" in capsys.readouterr().err
    assert not submission.exists()


@pytest.mark.full
def test_heads_of_a_run_of_several_tasks(run, tmp_path, capsys):
    command = ["analyze", str(run), "--task", "film", "--heads", "--output", str(tmp_path / "page")]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metric"] == "accuracy"


def test_a_recipe_is_read_as_it_was_written(recipe, tmp_path):
    found = load_run(recipe)
    (tmp_path / "again.yaml").write_text(found.to_yaml())
    assert load_run(tmp_path / "again.yaml") == found

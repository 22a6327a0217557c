"""Recipes of embedders and rerankers."""

import dataclasses
import inspect
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import bertfam_tf as bf
from bertfam_tf.metrics import retrieval_scores
from bertfam_tf.recipes import evaluate, read_split, run
from bertfam_tf.recipes.reading import load_recipe, with_defaults
from bertfam_tf.recipes.schema import Recipe
from tests.recipes.test_run import KILLED

WORDS = ("film", "movie", "plot", "cast", "actor", "story", "music", "scene")
PAIRS = [(f"a good {word}", f"the {word} is fine") for word in WORDS]


@pytest.fixture(scope="module")
def files(tmp_path_factory, smallest):
    """Writes a recipe of an embedder, with files of pairs beside it."""
    directory = tmp_path_factory.mktemp("embedders")
    rows = [{"q": q, "a": a, "n": PAIRS[i - 1][1], "m": "long"} for i, (q, a) in enumerate(PAIRS)]
    scored = [{"q": q, "a": PAIRS[i % 3][1], "s": i % 5} for i, (q, _) in enumerate(PAIRS)]
    for name, lines in (("pairs", rows), ("scored", scored)):
        text = "\n".join(map(json.dumps, lines))
        (directory / f"{name}.jsonl").write_text(text)

    def recipe(output, embedder=None, name="pairs", train=(), **data):
        values = {
            "output": str(directory / output),
            "model": {"path": str(smallest)},
            "task": "TextEmbedder",
            "trainer": embedder or {},
            "data": {
                **{split: str(directory / f"{name}.jsonl") for split in ("train", "dev")},
                "columns": {"text": "q", "text_pair": "a"},
                "label": "s" if name == "scored" else None,
                **data,
            },
            "train": {"epochs": 2, "batch_size": 3, "backup_steps": 2, **dict(train)},
        }
        file = directory / f"{output}.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    recipe.directory = directory
    return recipe


@pytest.fixture(scope="module")
def finished(files):
    """A run on pairs with negatives that nobody interrupted, and its metrics."""
    columns = {"text": "q", "text_pair": "a", "negatives": ["n", "m"]}
    recipe = load_recipe(files("whole", columns=columns))
    return recipe, run(recipe)


@pytest.mark.extended
def test_pairs_and_negatives(finished):
    recipe, metrics = finished
    embedder = bf.load(f"{recipe.output}/model")
    assert isinstance(embedder, bf.TextEmbedder)
    assert embedder.pair is False
    questions, answers = zip(*PAIRS, strict=True)
    documents = [*answers, "long"]
    vectors = embedder.predict(documents)
    found = np.argsort(-embedder.predict(questions) @ vectors.T, axis=1, kind="stable")
    expected = retrieval_scores(found[:, :9].tolist(), [[i] for i in range(len(PAIRS))])
    assert metrics == pytest.approx(expected)
    assert evaluate(embedder, recipe, "dev") == pytest.approx(metrics)
    assert load_recipe(f"{recipe.output}/recipe.yaml") == recipe
    with open(f"{recipe.output}/history.csv") as history:
        assert "val_loss" in history.readline()


@pytest.mark.full
def test_a_killed_run_ends_as_one_that_was_not(finished, files):
    recipe, metrics = finished
    file = files("killed", columns=recipe.data.columns)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), "4", str(file)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert run(load_recipe(file)) == metrics
    one, other = (
        load_file(files.directory / name / "model" / "model.safetensors")
        for name in ("whole", "killed")
    )
    for name, weight in one.items():
        np.testing.assert_array_equal(other[name], weight)


@pytest.mark.full
def test_scored_pairs_and_prompts(files):
    """With LoRA, a rate for each layer, the best epoch, and computed in parts."""
    settings = {"objective": "cosent", "prompts": ["query", None], "mini_batch_size": 2}
    train = {"patience": 1, "layer_decay": 0.5}
    file = files("scored", settings, "scored", train)
    values = yaml.safe_load(file.read_text())
    values["model"]["lora_rank"] = 2
    values["options"] = {"prompts": {"query": "find "}, "dimensions": 8}
    file.write_text(yaml.safe_dump(values))
    recipe = load_recipe(file)
    metrics = run(recipe)
    assert load_recipe(f"{recipe.output}/recipe.yaml") == recipe
    embedder = bf.load(f"{recipe.output}/model")
    rows = [json.loads(x) for x in (files.directory / "scored.jsonl").read_text().splitlines()]
    first = embedder.predict([row["q"] for row in rows], prompt="query")
    second = embedder.predict([row["a"] for row in rows], prompt=None)
    correlation = bf.metrics.Spearman()
    correlation.update_state([row["s"] for row in rows], np.sum(first * second, axis=1))
    assert metrics == {"spearman": pytest.approx(float(correlation.result()))}
    source = bf.load_backbone(recipe.model.path)
    changed = [
        w.path
        for w, other in zip(source.weights, embedder.backbone.weights, strict=True)
        if not np.array_equal(w, other)
    ]
    assert changed
    assert all("/attention/" in path for path in changed)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["data.label=q"], r"data.label must be null .*contrastive.*, got 'q'"),
        (["trainer.objective=cosent"], r"data.label must be a column .*cosent.*, got None"),
        (["trainer.objective=cosine", "data.label=q"], "line 1: 'a good film' is not a number"),
        (["trainer.objective=embedding_mse"], "trainer.objective must be one of"),
        (["trainer.objectiv=cosent"], "key in section trainer 'objectiv'. Did you mean 'objecti"),
        (["trainer.prompts=[query]"], "prompts must be two names"),
        (["trainer.temperature=hot"], "temperature"),
        (["data.columns={text: q}"], "Features must be 'text' and 'text_pair'"),
        (["train.batch_tokens=64", "train.batch_size=null"], "train.batch_tokens must be null"),
        (["train.metrics=[accuracy]"], "train.metrics must be null"),
        (["train.accumulation_steps=2"], "mini_batch_size"),
        (["options={pool: max}"], "option of TextEmbedder"),
        (["task=TextClassifier"], "trainer must be empty for the task TextClassifier"),
        (["task=TextEmbeder"], "TextEmbedder"),
    ],
)
def test_mistakes(files, overrides, error):
    file = files("mistakes", {"objective": "contrastive"})

    def load_and_run():
        run(load_recipe(file, overrides))

    with pytest.raises(ValueError, match=error):
        load_and_run()
    assert not (files.directory / "mistakes" / "model").exists()


def test_the_former_name_of_the_section(files):
    """Also of runs that an earlier version began, of all tasks."""
    file = files("former", {"objective": "cosent"}, "scored")
    recipe = load_recipe(file)
    text = file.read_text()
    file.write_text(text.replace("trainer:", "embedder:"))
    with pytest.warns(FutureWarning, match="embedder is called trainer"):
        assert load_recipe(file) == recipe
    stored = recipe.to_yaml()
    assert with_defaults(stored.replace("trainer:", "embedder:"), Recipe) == stored
    without = dataclasses.replace(recipe, trainer={}).to_yaml()
    assert with_defaults(without.replace("trainer: {}", "embedder: null"), Recipe) == without


def test_defaults_are_those_of_the_trainer():
    named = inspect.signature(bf.EmbedderTrainer).parameters
    for field in dataclasses.fields(bf.EmbedderTrainer.Settings):
        assert field.default == named[field.name].default


def test_questions_and_their_contexts(files, tmp_path):
    """SQuAD's format, whose answers are not read."""
    question = {"id": "1", "question": "who?"}
    articles = [{"paragraphs": [{"context": "Ada wrote it.", "qas": [question]}]}]
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"data": articles}))
    columns = {"text": "question", "text_pair": "context", "choices": ["a", "b"]}
    data = load_recipe(files("squad", train=[], columns=columns)).data
    data = dataclasses.replace(data, train=str(file))
    [(features,)] = read_split(data, "train", "TextEmbedder").as_numpy_iterator()
    assert features == {"text": b"who?", "text_pair": b"Ada wrote it."}


@pytest.mark.full
def test_labels_of_a_reranker(smallest, tmp_path):
    """Names in a file that stand for numbers."""
    rows = [("what?", "it is", "yes"), ("what?", "no", "no")] * 2
    file = tmp_path / "train.tsv"
    file.write_text("q\td\tl\n" + "".join("\t".join(row) + "\n" for row in rows))
    values = {
        "output": str(tmp_path / "reranker"),
        "model": {"path": str(smallest)},
        "task": "Reranker",
        "data": {
            **dict.fromkeys(("train", "dev"), str(file)),
            "columns": {"query": "q", "document": "d"},
            "label": "l",
            "labels": {"yes": "1", "no": "0"},
        },
        "train": {"epochs": 1, "batch_size": 2},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    rows = read_split(load_recipe(recipe).data, "train", "Reranker")
    assert [label for _, label in rows.as_numpy_iterator()] == [b"1", b"0"] * 2
    assert run(load_recipe(recipe))["loss"] > 0
    assert isinstance(bf.load(Path(values["output"]) / "model"), bf.Reranker)
    for labels, error in (
        ('{"no": "0"}', "line 2: The number 'yes' is not one of: no"),
        ('{"yes": good, "no": bad}', "line 2: 'good' is not a number"),
    ):
        wrong = load_recipe(recipe, [f"data.labels={labels}", f"output={tmp_path}/other"])
        with pytest.raises(ValueError, match=error):
            run(wrong)

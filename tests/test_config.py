"""Recipes: defaults, overrides, and errors that name the key."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

from bertfam_tf.cli import main
from bertfam_tf.recipes.reading import (
    expand,
    load_recipe,
    load_run,
    source,
    with_defaults,
    with_types,
)
from bertfam_tf.recipes.schema import DistillRecipe, MultiTaskRecipe, PretrainRecipe, Recipe
from bertfam_tf.tasks import TextClassifier
from bertfam_tf.training.settings import TrainConfig

ROOT = Path(__file__).parent.parent
MINIMAL = {"output": "out", "model": {"path": "checkpoint"}, "data": {"train": "train.tsv"}}
DISTILLED = {
    "output": "out",
    "teacher": "teacher",
    "student": {"num_layers": 2},
    "data": {"train": "train.tsv"},
    "stages": [{"terms": {"soft_targets": {"layers": {1: 2}}}}, {"terms": {"soft_targets": {}}}],
}


@pytest.fixture
def recipe(tmp_path):
    """Loads the smallest recipe with replaced top-level keys, or a given text."""

    def load(text=None, overrides=(), **keys):
        file = tmp_path / "recipe.yaml"
        file.write_text(text if text is not None else yaml.safe_dump({**MINIMAL, **keys}), "utf-8")
        return load_recipe(file, overrides)

    return load


# Recipes, but not the manifests of a cluster and experiments, which are tested with their code.
OTHERS = ("cluster", "experiments")
RECIPES = sorted(f for f in ROOT.glob("configs/*/*.yaml") if f.parent.name not in OTHERS)


@pytest.mark.parametrize("file", RECIPES, ids=lambda f: f.name)
def test_the_recipes_here_load(file):
    text = file.read_text("utf-8")
    if "\nteacher: " in text:
        assert isinstance(load_run(file), DistillRecipe)
    elif "\ntasks:" in text:
        assert isinstance(load_run(file), MultiTaskRecipe)
    elif "\n  family: " in text:
        load_recipe(file, kind=PretrainRecipe)
    else:
        assert isinstance(load_run(file), Recipe)


def test_the_recipe_of_squad_2_predicts_that_there_is_no_answer():
    assert load_run(ROOT / "configs" / "bert" / "squad2.yaml").options["null_threshold"] == 0.0


def test_defaults_and_round_trip(recipe):
    loaded = recipe()
    assert loaded.train == TrainConfig()
    assert recipe(text=loaded.to_yaml()) == loaded
    assert set(yaml.safe_load(loaded.to_yaml())["train"]) == {
        field.name for field in dataclasses.fields(TrainConfig)
    }


@pytest.mark.parametrize(
    ("override", "section", "name", "value"),
    [
        ("train.epochs=7", "train", "epochs", 7),
        ("train.learning_rate=5e-5", "train", "learning_rate", 5e-5),
        ("train.weight_decay=1", "train", "weight_decay", 1.0),
        ("train.clip_norm=null", "train", "clip_norm", None),
        ("train.optimizer=lamb", "train", "optimizer", "lamb"),
        ("data.labels=[a, b]", "data", "labels", ["a", "b"]),
        ('data.labels={"0": a, "1": b}', "data", "labels", {"0": "a", "1": "b"}),
        ("data.text=0", "data", "text", 0),
        ("data.text=a=b", "data", "text", "a=b"),
        ("model.overrides.dropout=0.0", "model", "overrides", {"dropout": 0.0}),
        ("model.overrides.dropout=1e-1", "model", "overrides", {"dropout": 0.1}),
    ],
)
def test_overrides(recipe, override, section, name, value):
    found = getattr(getattr(recipe(overrides=[override]), section), name)
    assert found == value
    assert type(found) is type(value)


def test_a_batch_has_examples_or_tokens(recipe, tmp_path):
    assert recipe().train.batch_size == 32
    by_tokens = recipe(train={"batch_tokens": 4096})
    assert (by_tokens.train.batch_size, by_tokens.train.batch_tokens) == (None, 4096)
    for made in (recipe(), by_tokens):
        (tmp_path / "again.yaml").write_text(made.to_yaml())
        assert load_recipe(tmp_path / "again.yaml") == made


def test_options_have_the_types_of_their_task():
    options = {
        "temperature": "1e-1",
        "pair": False,
        "max_length": 8,
        "labels": ["a"],
        "language": "de",
    }
    typed = with_types(options, TextClassifier.options_type, "options")
    assert typed == {**options, "temperature": 0.1}
    for value in ("long", 1.5, "1e1"):
        with pytest.raises(ValueError, match=r'options: .*"max_length" - should be "int'):
            with_types({"max_length": value}, TextClassifier.options_type, "options")


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"trian": {}}, "Unknown key 'trian'. Did you mean 'train'?"),
        ({"train": {"epoch": 1}}, "Unknown key in section train 'epoch'. Did you mean 'epochs'?"),
        ({"data": {"trian": "x"}}, "Unknown key in section data 'trian'. Did you mean 'train'?"),
        ({1: 2}, "Unknown key '1'. Known: data, model, options"),
        ({"model": {}}, 'missing value for field "model.path"'),
        ({"model": "m"}, '"model" - should be "ModelConfig"'),
        ({"train": None}, '"train" - should be "TrainConfig"'),
        ({"train": {"epochs": 1.5}}, '"train.epochs" - should be "int"'),
        ({"train": {"epochs": "two"}}, '"train.epochs" - should be "int"'),
        ({"train": {"epochs": "1e1"}}, "\"train.epochs\" - .*; '1e1' is text, the number is 10"),
        ({"train": {"metrics": "f1"}}, '"train.metrics" - .* instead of a single text$'),
        ({"train": {"metrics": {"f1": 1}}}, "train.metrics must be a list, got the keys f1."),
        ({"train": {"epochs": True}}, "train.epochs is True"),
        ({"train": {"epochs": 0}}, "train.epochs must be at least 1, got 0"),
        ({"train": {"batch_size": -1}}, "train.batch_size must be at least 1, got -1"),
        ({"train": {"batch_tokens": 0}}, "train.batch_tokens must be at least 1, got 0"),
        (
            {"train": {"batch_tokens": 9, "batch_size": 2}},
            "Either train.batch_size or train.batch_tokens must be null or omitted, got 2 and 9",
        ),
        ({"train": {"learning_rate": "fast"}}, '"train.learning_rate" - should be "float"'),
        ({"data": {"train": "t", "label": False}}, "data.label is False; a name such as no needs"),
        ({"data": {"train": "t", "labels": {0: "a"}}}, '"data.labels".*0 and no need quotes'),
        ({"data": {"train": "t", "labels": [False, True]}}, '"data.labels".*no need quotes'),
        ({"train": {"class_weights": {0: 1}}}, '"train.class_weights".*0 and no need quotes'),
        ({"train": {"learning_rate": float("inf")}}, "train.learning_rate must be .*finite"),
        ({"output": None}, '"output" - should be "str"'),
    ],
    ids=str,
)
def test_errors_name_the_key(recipe, keys, error):
    with pytest.raises(ValueError, match=rf"recipe\.yaml: .*{error}"):
        recipe(**keys) if all(isinstance(k, str) for k in keys) else recipe(yaml.safe_dump(keys))


def test_recipes_of_distillation(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(DISTILLED))
    loaded = load_recipe(file, kind=DistillRecipe)
    assert loaded.train is loaded.stages[-1].train
    file.write_text(loaded.to_yaml())
    assert load_run(file) == loaded


@pytest.mark.parametrize(
    ("command", "values", "error"),
    [
        ("train", DISTILLED, "a recipe of distillation, which bertfam distill runs; expected one"),
        ("sweep", DISTILLED, "of distillation, .*expected one of fine-tuning or several tasks"),
        ("train", {"model": {"family": "bert"}}, "of pretraining, which bertfam pretrain runs"),
        ("pretrain", {"model": {"path": "p"}}, "of fine-tuning, .*expected one of pretraining"),
        ("distill", {"model": {"path": "p"}}, "of fine-tuning, which bertfam train runs"),
        ("plan", {"tasks": {}}, "of several tasks, which bertfam train runs; expected one of pre"),
        ("pretrain", {}, 'missing value for field "model"'),
        ("pretrain", {"model": {}}, 'missing value for field "model.family"'),
    ],
)
def test_a_recipe_of_another_command(command, values, error, tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        yaml.safe_dump({"output": "o", "data": {"train": ["t"], "dev": ["t"]}} | values)
    )
    over = ["--over", "train.seed=0"] if command == "sweep" else []
    assert main([command, str(file), *over]) == 2
    assert re.search(error, capsys.readouterr().err)


CORPUS = {"train": ["t"], "dev": ["t"], "format": "full_sentences"}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            {"train": {"class_weights": {"a": 2}}},
            "train.class_weights must be null or omitted for pretraining",
        ),
        (
            {"train": {"metrics": ["accuracy"]}},
            "train.metrics must be null or omitted for pretraining",
        ),
        (
            {"train": {"layer_decay": 0.9}},
            "train.layer_decay must be 1.0 or omitted for pretraining",
        ),
        ({"generator": {"num_heads": 1}}, "generator must be empty without the objective rtd"),
        ({"prompts": ["a"]}, "prompts must be empty unless data.format is stream"),
        *(
            ({"masking": {name: value}}, f"masking.{name} must be .* unless masking.unit is {unit}")
            for name, value, unit in (
                ("labels", ["PER"], "tagged"),
                ("words", 0.3, "tagged"),
                ("tagger", "t", "tagged"),
                ("longest", 5, "ngram"),
            )
        ),
        *(
            ({"data": {**CORPUS, "format": form, name: value}}, f"data.{name} must be .* {when}")
            for form, name, value, when in (
                ("stream", "documents", "file", "for data.format stream"),
                ("stream", "sentences", "split", "for data.format stream"),
                ("stream", "shuffle", 5, "for data.format stream"),
                ("sentences", "shuffle", 5, "for data.format sentences"),
                ("full_sentences", "end", "<eos>", "unless data.format is stream"),
                ("full_sentences", "words", 5, "unless data.format is sentences"),
                ("full_sentences", "exponent", 0.5, "unless data.train is a table of several"),
            )
        ),
        (
            {"data": {**CORPUS, "train": {"en": ["t"]}, "exponent": 0.5}},
            "data.exponent must be 0.7 or omitted unless data.train is a table of several",
        ),
        ({"stages": [{"steps": 2}], "train": {"steps": 5}}, "train.steps must be .* with stages"),
    ],
)
def test_keys_that_pretraining_would_ignore(keys, error, tmp_path):
    values = {
        "output": "o",
        "model": {"family": "bert", "size": "tiny", "tokenizer": "t"},
        "data": CORPUS,
        "objectives": {"mlm": 1.0},
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(values | keys))
    with pytest.raises(ValueError, match=error):
        load_recipe(file, kind=PretrainRecipe)


def _stage(**keys):
    return {"stages": [DISTILLED["stages"][0], {"terms": {}, **keys}]}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"studnet": {}}, "Unknown key 'studnet'. Did you mean 'student'?"),
        ({"student": {"layer": 2}}, "key in section student 'layer'. Did you mean 'layers'?"),
        (
            {"student": {"path": "p", "num_layers": 2}},
            r"student\.num_layers must be null or omitted with student\.path, .*, got 2\.",
        ),
        (_stage(text="original"), "key in section stages.1 'text'. Did you mean 'texts'?"),
        (_stage(train={"epoch": 1}), "section stages.1.train 'epoch'. Did you mean 'epochs'?"),
        (_stage(labels=True), "stages.1.labels is True"),
        (_stage(labels="no"), '"stages.labels" - should be "float"'),
        (
            _stage(texts="augmentd"),
            r"stages\[i\].texts must be original or augmented, got 'augmentd'. Did you mean 'augm",
        ),
        (
            _stage(texts="augmented"),
            r"stages\[1\].texts: \"augmented\" needs an augmentation section",
        ),
        (_stage(teacher_outputs="disk"), "must be each_step or cached, got 'disk'"),
        (
            _stage(train={"class_weights": {"a": 2.0}}),
            "class_weights must be null or omitted in a stage of a",
        ),
        (
            {"augmentation": {"masked": "m"}},
            "section augmentation 'masked'. Did you mean 'masked_l",
        ),
        ({"stages": []}, "stages must not be empty"),
        ({"stages": [1]}, '"stages" - should be'),
    ],
    ids=str,
)
def test_errors_of_distillation_name_the_key(tmp_path, keys, error):
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps({**DISTILLED, **keys}))
    with pytest.raises(ValueError, match=rf"recipe\.yaml: .*{error}"):
        load_recipe(file, kind=DistillRecipe)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not a mapping"),
        ("- a", "not a mapping"),
        ("a: [", "is not YAML"),
        ("output: o\n", 'missing value for field "model"'),
    ],
)
def test_invalid_texts(recipe, text, error):
    with pytest.raises(ValueError, match=error):
        recipe(text)


def test_invalid_files(tmp_path):
    with pytest.raises(ValueError, match=r"There is no recipe .*absent\.yaml"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("output: é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.yaml: line 1 contains the byte 0xe9"):
        load_recipe(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("output: &a [*a]", "aliases"),
        ("output: &a o\nmodel: {path: *a}", "aliases"),
        ("output: o\nmodel: {path: p}\ntrain: {epochs: 0x" + "f" * 5000 + "}", "beyond 64 bits"),
        ("output: " + "[" * 5000, "nested more than 32 levels deep"),
        ("output: a\noutput: b", "found the key 'output' twice"),
        ("output: !!int ''", "is not YAML"),
        ("output: !!timestamp x", "is not YAML"),
        ("output: 2001-99-99", "is not YAML"),
        ("output: " + "x" * 300_000, "has 300,008 bytes; expected at most 262,144"),
        (
            "output: o\nmodel: {path: p}\ndata: {train: t}\ntrain: {epsilon: .nan}",
            "epsilon must be .*finite",
        ),
    ],
)
def test_texts_that_expand(recipe, text, error):
    with pytest.raises(ValueError, match=rf"(?s)recipe\.yaml.*{error}"):
        recipe(text).to_yaml()


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("train.epochs", "must be key=value, such as train.epochs=1, got 'train.epochs'"),
        ("=1", "must be key=value"),
        ("output.x=1", "output is not a section"),
        ("train.epochs=[1", r"value of 'train.epochs=\[1' is not YAML"),
        ("train.epoch=1", "Did you mean 'epochs'"),
        ("train.=1", "Unknown key in section train ''"),
    ],
)
def test_invalid_overrides(recipe, override, error):
    with pytest.raises(ValueError, match=error):
        recipe(overrides=[override])


@pytest.mark.parametrize("name", ["hf://google/bert", "google/bert", "package:any"])
def test_names_of_checkpoints_stay_as_they_are(name):
    assert source(name) == name


def test_paths_read_the_environment(monkeypatch):
    monkeypatch.setenv("BERTFAM_TEST", "/data")
    monkeypatch.delenv("BERTFAM_UNSET", raising=False)
    assert expand("$BERTFAM_TEST/a") == expand("${BERTFAM_TEST}/a") == Path("/data/a")
    assert expand("~/a") == Path.home() / "a"
    for path in ("$BERTFAM_UNSET/a", "${BERTFAM_UNSET}/a"):
        with pytest.raises(ValueError, match="The environment variable BERTFAM_UNSET in"):
            expand(path)


def test_names_of_version_0_1(recipe, tmp_path):
    """They are read with a warning, in every section, by file and as an override."""
    with pytest.warns(FutureWarning, match=r"train.recompute is called train.gradient_checkpointi"):
        old = recipe(train={"recompute": "blocks"})
    assert old == recipe(train={"gradient_checkpointing": True})
    with pytest.warns(FutureWarning, match=r"train.recompute is called"):
        assert not recipe(overrides=["train.recompute=none"]).train.gradient_checkpointing
    file = tmp_path / "distilled.yaml"
    stages = [DISTILLED["stages"][0], {"terms": {}, "train": {"recompute": "blocks"}}]
    file.write_text(yaml.safe_dump({**DISTILLED, "stages": stages}))
    with pytest.warns(FutureWarning, match=r"stages\.1\.train\.recompute is called"):
        loaded = load_recipe(file, kind=DistillRecipe)
    assert [s.train.gradient_checkpointing for s in loaded.stages] == [False, True]
    with pytest.raises(
        ValueError, match=r"recipe\.yaml: train.recompute must be none or blocks, g"
    ):
        recipe(train={"recompute": "all"})
    with pytest.raises(ValueError, match=r"recipe\.yaml: train.recompute is called .*, got both"):
        recipe(train={"recompute": "all", "gradient_checkpointing": True})


def test_a_stored_recipe_of_version_0_1(recipe):
    """A run that an earlier version began has the same settings, without a warning."""
    text = recipe(train={"gradient_checkpointing": True}).to_yaml()
    stored = text.replace("gradient_checkpointing: true", "recompute: blocks")
    assert stored != text
    assert with_defaults(stored, Recipe) == text

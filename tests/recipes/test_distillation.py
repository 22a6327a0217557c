"""A distillation from a recipe, whole, killed and resumed."""

import csv
import io
import json
import shutil
import sys

import keras
import numpy as np
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.distill import cache
from bertfam_tf.files import exclusive_lock
from bertfam_tf.recipes import distill, distillation
from bertfam_tf.recipes.distillation import terms_of
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import DistillRecipe
from bertfam_tf.training import tuning
from bertfam_tf.training.callbacks.backup import Backup
from tests.distill.conftest import tokenizer  # noqa: F401
from tests.distill.test_distiller import task_of

ROWS = [("a fine film", "yes"), ("dull", "no"), ("fine ones", "yes"), ("a dull film one", "no")] * 2
STAGES = [
    {
        "terms": {"hidden_states": {"projection": "shared"}},
        "teacher_outputs": "cached",
    },
    {"terms": {"soft_targets": {"temperature": 2.0}}, "labels": 0.5},
]
TRAIN = {"epochs": 2, "batch_size": 3, "backup_steps": 2, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def files(tokenizer, tmp_path_factory):  # noqa: F811
    """A folder with a saved teacher, texts, and the values of a recipe for them."""
    folder = tmp_path_factory.mktemp("distill")
    # Dropout, so that a run depends on its random state.
    task_of(tokenizer, 1, dropout=0.1).save(folder / "teacher")
    rows = "".join(f"{text}\t{label}\n" for text, label in ROWS)
    (folder / "rows.tsv").write_text("text\tlabel\n" + rows)
    (folder / "lines.txt").write_text("".join(f"{text}\n\n" for text, _ in ROWS))
    return folder, {
        "teacher": str(folder / "teacher"),
        "student": {"num_layers": 1, "layers": "none"},
        "data": {name: str(folder / "rows.tsv") for name in ("train", "dev")},
        "stages": [{**stage, "train": TRAIN} for stage in STAGES],
    }


@pytest.fixture
def recipe(files, tmp_path):
    """Makes a recipe with other values."""
    _, values = files

    def made(**others):
        file = tmp_path / "recipe.yaml"
        file.write_text(json.dumps({"output": str(tmp_path / "run"), **values, **others}))
        return load_recipe(file, kind=DistillRecipe)

    return made


def test_two_processes_do_not_distil_one_run(recipe, tmp_path):
    lock = exclusive_lock(tmp_path / "run", tmp_path / "run" / ".lock")
    with lock, pytest.raises(BlockingIOError, match="run is being written by another process"):
        distill(recipe())


@pytest.fixture(scope="module", autouse=True)
def small_shards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_BATCHES_PER_SHARD", 1)
        patch.setattr("bertfam_tf.distill.distiller.BATCH", 2)
        yield


@pytest.fixture(scope="module")
def whole(files, small_shards):
    """The directory of a run of ``bertfam distill`` that was not killed, and what it printed."""
    folder, values = files
    file = folder / "recipe.yaml"
    file.write_text(json.dumps({"output": "elsewhere", **values}))
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        assert main(["distill", str(file), f"output={folder / 'run'}"]) == 0
        printed = sys.stdout.getvalue()
    finally:
        sys.stdout = stdout
    return folder / "run", json.loads(printed.strip().splitlines()[-1])


def _weights(directory):
    return [np.array(weight) for weight in bf.load(directory / "model").weights]


def _same(one, other):
    for a, b in zip(_weights(one), _weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.extended
def test_what_a_run_leaves(whole):
    """The student that was saved has learned, and is the one that was evaluated."""
    directory, printed = whole
    assert printed == json.loads((directory / "metrics.json").read_text())
    student = bf.load(directory / "model")
    assert printed["parameters"] == printed["teacher_parameters"] == student.count_params()
    texts, labels = zip(*ROWS, strict=True)
    answers = [answer["label"] for answer in student.predict(list(texts))]
    right = sum(a == b for a, b in zip(answers, labels, strict=True))
    assert printed["accuracy"] == right / len(ROWS)
    left = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    logs = {"history.csv", "metrics.jsonl", "tensorboard", "curves.png"}
    assert left == {"recipe.yaml", "data_files.json", "model", "metrics.json", *logs}
    with (directory / "history.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3]
    assert [bool(row["hidden_states"]) for row in rows] == [True, True, False, False]
    assert [bool(row["soft_targets"] and row["labels"]) for row in rows] == [False] * 2 + [True] * 2


@pytest.mark.full
def test_commands_on_a_run(whole, files, capsys):
    directory, printed = whole
    assert main(["evaluate", str(directory)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found) == {"accuracy", "loss"}
    assert found == {name: printed[name] for name in found}
    teacher = bf.load(files[0] / "teacher")
    texts, labels = map(list, zip(*ROWS, strict=True))
    for name, value in teacher.evaluate(texts, labels, return_dict=True, verbose=0).items():
        assert printed[f"teacher_{name}"] == pytest.approx(value, rel=1e-5)
    answers = files[0] / "answers.jsonl"
    given = ["--input", str(files[0] / "rows.tsv"), "--output", str(answers)]
    assert main(["predict", str(directory), *given]) == 0
    assert len(answers.read_text().splitlines()) == len(ROWS)


@pytest.mark.extended
def test_a_finished_run_whose_settings_are_refused_now(whole, files, tmp_path, capsys):
    """Its model is evaluated and predicts as before; training it anew is an error."""
    run = shutil.copytree(whole[0], tmp_path / "run")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["student"] |= {"path": "student", "num_layers": 2}
    recipe["stages"][0]["train"]["class_weights"] = {"no": 2.0}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["evaluate", str(run)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == {name: whole[1][name] for name in ("accuracy", "loss")}
    answers = ["--input", str(files[0] / "rows.tsv"), "--output", str(tmp_path / "answers.jsonl")]
    assert main(["predict", str(run), *answers]) == 0
    assert main(["evaluate", str(run), "data.devv=x"]) == 2
    assert "Did you mean 'dev'?" in capsys.readouterr().err
    assert main(["distill", str(run / "recipe.yaml"), f"output={tmp_path / 'again'}"]) == 2
    assert "student.num_layers must be null or omitted with student.path" in capsys.readouterr().err


class Killed(BaseException):
    """What no code handles."""


@pytest.mark.full
@pytest.mark.parametrize(("stage", "step"), [(1, 1), (1, 3), (1, 5), (2, 5)])
def test_a_run_that_was_killed_in_a_stage(stage, step, recipe, whole, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", _killed_at(stage, step))
        with pytest.raises(Killed):
            distill(recipe())
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", _counted(steps))
        metrics = distill(recipe())
    # Of 6 in each stage those after the last checkpoint: an epoch has 3, and one at its end.
    first = [0, 0, 2, 2, 4, 4][step]
    done = [("stage_1", i) for i in range(6)] + [("stage_2", i) for i in range(6)]
    assert steps == done[(stage - 1) * 6 + first :]
    directory, printed = whole
    _same(directory, directory.parent / recipe().output)
    assert metrics == printed


def _killed_at(stage, step):
    original = Backup.on_train_batch_end

    def end(self, batch, logs=None):
        original(self, batch, logs)
        if self.directory.name == f"stage_{stage}" and self.batches == step:
            raise Killed

    return end


def _counted(steps):
    original = Backup.on_train_batch_end

    def end(self, batch, logs=None):
        original(self, batch, logs)
        steps.append((self.directory.name, self.batches - 1))

    return end


@pytest.mark.full
def test_settings_of_training(recipe, whole, tmp_path):
    """Micro-batches, gradient checkpointing and the logs' settings, as in any recipe."""
    settings = {"accumulation_steps": 2, "gradient_checkpointing": True, "log_steps": 1}
    settings |= {"patience": 1, "on_divergence": "skip", "layer_decay": 0.9, "schedule": "cosine"}
    train = {**TRAIN, **settings}
    stages = [{**STAGES[1], "train": train}]
    metrics = distill(recipe(stages=stages, student={"num_layers": 1, "layers": "none"}))
    assert set(metrics) == set(whole[1])
    steps = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in steps if "learning_rate" in x][:3] == [1, 2, 3]
    with (tmp_path / "run" / "history.csv").open() as stream:
        assert all(row["val_soft_targets"] for row in csv.DictReader(stream))


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [{"accumulation_steps": 3}, {"gradient_checkpointing": True}, {"strategy": "mirrored"}],
)
def test_settings_that_change_only_how_a_step_is_computed(settings, recipe, files):
    """Without dropout, whose random numbers differ."""
    folder, _ = files
    student = {"num_layers": 1, "layers": "none", "overrides": {"dropout": 0.0}}
    found = []
    for name, given in (("plain", {}), ("-".join(settings), settings)):
        stages = [{**stage, "train": {**TRAIN, **given}} for stage in STAGES]
        output = str(folder / name)
        made = recipe(stages=stages, student=student, output=output)
        found.append(distill(made) if not (folder / name / "model").exists() else None)
    plain, other = (_weights(folder / name) for name in ("plain", "-".join(settings)))
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("train", "stage", "error"),
    [
        (
            {"class_weights": {"yes": 2.0}},
            {},
            "class_weights must be null or omitted in a stage of a distill",
        ),
        (
            {"batch_tokens": 64, "batch_size": None},
            {"teacher_outputs": "cached"},
            "must be null wi",
        ),
        (
            {"strategy": "multi_worker"},
            {"teacher_outputs": "cached"},
            "must not be cached with str",
        ),
    ],
)
def test_settings_that_do_not_fit(train, stage, error, recipe):
    with pytest.raises(ValueError, match=error):
        recipe(stages=[{**STAGES[1], **stage, "train": {**TRAIN, **train}}])


def test_all_stages_have_one_strategy(recipe):
    first, second = (
        {**x, "train": {**TRAIN, "strategy": y}}
        for x, y in zip(STAGES, ("none", "mirrored"), strict=True)
    )
    with pytest.raises(ValueError, match="same in all stages, got mirrored and none"):
        recipe(stages=[first, second])


@pytest.mark.full
def test_a_causal_language_model(files, recipe):
    folder, _ = files
    teacher = bf.load(folder / "teacher")
    backbone = bf.build("gpt2", "tiny", vocab_size=teacher.tokenizer.vocab_size)
    bf.CausalLM(backbone, teacher.tokenizer).save(folder / "causal_lm")
    lines = str(folder / "lines.txt")
    metrics = distill(
        recipe(
            task="CausalLM",
            teacher=str(folder / "causal_lm"),
            student={"num_layers": 1},
            data={"train": lines, "dev": lines},
            stages=[{"terms": {"soft_targets": {}}, "labels": 1.0, "train": TRAIN}],
            output=str(folder / "small_gpt"),
        )
    )
    assert metrics["parameters"] < metrics["teacher_parameters"]
    assert {"perplexity", "teacher_perplexity"} <= set(metrics)
    assert bf.load(folder / "small_gpt" / "model").generate("a fine", max_new_tokens=3, seed=0)


@pytest.mark.full
def test_a_run_that_was_killed_while_outputs_are_cached(recipe, whole, monkeypatch):
    original, written = cache.write, []

    def write(path, text):
        if path.name == "counts-00002.json":
            raise Killed
        written.append(path.name)
        original(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write", write)
        with pytest.raises(Killed):
            distill(recipe())
    assert written == ["counts-00000.json", "counts-00001.json"]
    written.clear()
    monkeypatch.setattr(
        cache, "write", lambda path, text: (written.append(path.name), original(path, text))
    )
    distill(recipe())
    assert written == ["counts-00002.json", "counts-00003.json", "card.json"]
    directory, _ = whole
    _same(directory, directory.parent / recipe().output)


@pytest.mark.parametrize(
    ("others", "error"),
    [
        (
            {
                "student": {"layers": "none", "overrides": {"hidden_size": 24}},
                "stages": [{"terms": {"hidden_cosine": {}}}],
            },
            "layer 1 of the student has width 24, layer 1 of the teacher 16",
        ),
        ({"task": "TokenTagger"}, "is a TextClassifier, expected a TokenTagger"),
        ({"stages": [{"terms": {"relations": {"heads": 5}}}]}, "width 16 is not a multiple of 5"),
        ({"stages": [{"terms": {"relation": {}}}]}, "Unknown term 'relation'. Did you mean 'relat"),
        ({"data": {"train": "absent.tsv"}}, "no file absent.tsv"),
    ],
)
def test_a_mismatch_is_found_before_anything_is_written(others, error, recipe, tmp_path):
    with pytest.raises(ValueError, match=error):
        distill(recipe(**others))
    run = tmp_path / "run"
    assert not run.exists() or [path.name for path in run.iterdir()] in ([], [".lock"])


def test_a_teacher_and_a_student_of_runs(recipe, tmp_path):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").write_text("output: begun\n")
    for others in (
        {"teacher": str(tmp_path / "begun")},
        {"student": {"path": str(tmp_path / "begun")}},
    ):
        with pytest.raises(ValueError, match="begun has no model yet"):
            distill(recipe(**others))


def test_a_student_of_a_run_with_frozen_layers_is_trained(recipe, files, tmp_path):
    teacher = bf.load(files[0] / "teacher")
    tuning.freeze(teacher.backbone)
    teacher.save(tmp_path / "frozen")
    overrides = {"attention_dropout": 0.2}
    chosen = recipe(student={"path": str(tmp_path / "frozen"), "overrides": overrides})
    student = distillation._student(chosen, bf.TextClassifier, teacher)
    assert len(student.trainable_variables) == len(student.weights)
    rates = {
        x.rate for x in student.backbone._flatten_layers() if isinstance(x, keras.layers.Dropout)
    }
    assert {0.1, 0.2} <= rates


def test_files_of_other_languages_alone_are_scored(recipe, files, monkeypatch):
    teacher, rows = bf.load(files[0] / "teacher"), str(files[0] / "rows.tsv")
    chosen = recipe(data={"train": rows, "dev_languages": {"de": rows}})
    monkeypatch.setattr(distillation, "evaluate", lambda *_: {"de_accuracy": 1.0})
    found = distillation._metrics(chosen, bf.TextClassifier, teacher, [teacher])
    assert found["de_accuracy"] == found["teacher_de_accuracy"] == 1.0


@pytest.mark.extended
def test_a_student_of_a_run_keeps_its_head_and_gets_what_it_lacks(recipe, files, tmp_path):
    teacher = bf.load(files[0] / "teacher")

    def started(**student):
        return distillation._student(recipe(student=student), bf.TextClassifier, teacher)

    again = started(path=str(files[0] / "teacher"), overrides={"dropout": 0.3})
    assert again.backbone.config.dropout == 0.3
    for ours, theirs in zip(again.head.weights, teacher.head.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    fields = {**teacher.backbone.config.to_dict(), "pooler": False}
    backbone = bf.build("bert", **fields)
    bf.TextEmbedder(backbone, teacher.tokenizer).save(tmp_path / "general")
    student = started(path=str(tmp_path / "general"))
    assert student.backbone.config.pooler
    np.testing.assert_array_equal(student.backbone.weights[0], backbone.weights[0])


def test_terms_and_their_options_are_checked():
    assert [term.label for term in terms_of({"soft_targets": {}, "embeddings": {}})] == [
        "soft_targets",
        "embeddings",
    ]
    for given, error in (
        ({"soft_target": {}}, "Unknown term 'soft_target'. Did you mean 'soft_targets'"),
        ({"soft_targets": {"temprature": 2}}, "option of soft_targets 'temprature'. Did you mean"),
        ({"soft_targets": {"weight": "big"}}, "weight of soft_targets must be a number, got 'big'"),
        ({"soft_targets": {"temperature": 0}}, "temperature must be above 0"),
        ({"hidden_states": {"scaling": "tiny"}}, "scaling of hidden_states must be mean or tiny"),
    ):
        with pytest.raises(ValueError, match=error):
            terms_of(given)


@pytest.mark.full
def test_texts_without_labels(recipe, files, monkeypatch):
    """A general distillation, whose model is the student of the next; killed, for masks."""
    lines = str(files[0] / "lines.txt")
    stage = {"terms": {"soft_targets": {}, "hidden_cosine": {}}, "labels": 0.5, "train": TRAIN}
    teacher = bf.load(files[0] / "teacher")
    bf.MaskedLM(teacher.backbone, teacher.tokenizer).save(files[0] / "masked_lm")
    given = {
        "task": "MaskedLM",
        "teacher": str(files[0] / "masked_lm"),
        "data": {"train": lines},
        "stages": [stage],
    }
    whole = recipe(**given, output=str(files[0] / "general"))
    assert set(distill(whole)) == {"parameters", "teacher_parameters"}
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_train_batch_end", _killed_at(1, 5))
        with pytest.raises(Killed):
            distill(recipe(**given))
    distill(recipe(**given))
    _same(files[0] / "general", files[0].parent / recipe(**given).output)
    cached = [{**stage, "teacher_outputs": "cached"}]
    with pytest.raises(ValueError, match="cannot be cached for a MaskedLM, which draws masks anew"):
        distill(recipe(**{**given, "stages": cached, "output": str(files[0] / "no")}))
    output = files[0] / "next"
    distill(recipe(student={"path": str(files[0] / "general" / "model")}, output=str(output)))
    assert isinstance(bf.load(output / "model"), bf.TextClassifier)

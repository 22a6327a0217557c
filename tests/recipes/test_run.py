"""Runs from a recipe: what they write, what they refuse, and that a killed one loses nothing."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf.data import as_value_errors
from bertfam_tf.files import exclusive_lock
from bertfam_tf.metrics import Spearman
from bertfam_tf.plan import flops_per_token
from bertfam_tf.recipes import evaluate, fine_tuning, read_split, run
from bertfam_tf.recipes.directory import RunDirectory
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.runs import read_runs, table
from bertfam_tf.training.callbacks.backup import Backup, remaining
from bertfam_tf.training.engine import Passes
from bertfam_tf.training.optimizers import WarmupLinearDecay
from bertfam_tf.training.settings import TrainConfig
from tests.training.test_steps import events

ROWS = [
    (f"{text} {word}", label)
    for word in ("film", "movie", "plot", "cast")
    for text, label in (
        ("a good", "positive"),
        ("the bad", "negative"),
        ("it is a", "neutral"),
        ("very great fine", "positive"),
        ("dull long", "negative"),
    )
] + [("short", "neutral")]
BATCH, EPOCHS = 4, 3
STEPS = -(-len(ROWS) // BATCH)
# With these settings the second of three epochs is the best.
BEST = {"learning_rate": 3e-2, "seed": 1, "patience": 2, "monitor": "accuracy", "log_steps": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory, smallest):
    """A directory with train and dev files, and a function that writes a recipe into it."""
    directory = tmp_path_factory.mktemp("run")
    for split, rows in (("train", ROWS), ("dev", ROWS[::2])):
        lines = ["text\tlabel", *("\t".join(row) for row in rows)]
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n")

    def recipe(output, train=(), **data):
        values = {
            "output": str(directory / output),
            "model": {"path": str(smallest), "overrides": {"dropout": 0.2}},
            "data": {
                "train": str(directory / "train.tsv"),
                "dev": str(directory / "dev.tsv"),
                **data,
            },
            "train": {
                "epochs": EPOCHS,
                "batch_size": BATCH,
                "learning_rate": 1e-3,
                "backup_steps": 2,
                **dict(train),
            },
        }
        file = directory / f"{output}.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    recipe.directory = directory
    return recipe


@pytest.fixture(scope="module")
def finished(files):
    """A run that nobody interrupted, and the metrics that it returned."""
    file = files("whole", BEST)
    return load_recipe(file), run(load_recipe(file), flops=flops_per_token)


def _history(recipe):
    with open(f"{recipe.output}/history.csv") as stream:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def _lines(recipe):
    lines = Path(recipe.output, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _weights(recipe):
    return load_file(f"{recipe.output}/model/model.safetensors")


@pytest.mark.full
def test_a_recipe_with_nothing_chosen(files, smallest, tmp_path):
    """Three epochs of two batches, of 32 and 10 rows, shuffled, with dropout."""
    rows = [(f"{text} {text}", label) for text, label in ROWS] + ROWS
    lines = ["text\tlabel", *("\t".join(row) for row in rows)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    values = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(smallest)},
        "data": {"train": str(tmp_path / "train.tsv"), "dev": str(files.directory / "dev.tsv")},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    found = run(recipe)
    history = _history(recipe)
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert [line["step"] for line in _lines(recipe) if "step" in line][-1] == 6
    task = bf.load(tmp_path / "run" / "model")
    texts, labels = zip(*ROWS[::2], strict=True)
    scores = [task.predict(text)[0] for text in texts]
    right = np.mean([row["label"] == label for row, label in zip(scores, labels, strict=True)])
    chances = [row["scores"][task.class_names.index(label)] for row, label in zip(
        scores, labels, strict=True)]  # fmt: skip
    assert found["accuracy"] == pytest.approx(right)
    assert found["loss"] == pytest.approx(-np.log(chances).mean(), rel=1e-4)


def test_epochs_share_a_number_of_steps():
    """The last epoch has the steps that are left over; others are as long as before."""
    for steps, epochs, done, expected in (
        (1000, 3, 0, [(0, 2, 333), (2, 3, 334)]),
        (1000, 3, 400, [(1, 2, 266), (2, 3, 334)]),
        (1000, 3, 999, [(2, 3, 1)]),
        (1000, 3, 1000, []),
        (6, 3, 0, [(0, 3, 2)]),
        (2, 3, 0, [(0, 2, 1)]),
    ):
        settings = TrainConfig(steps=steps, epochs=epochs)
        phase = Passes(7, lambda number: None).phase(None, settings)
        assert remaining(done, phase.total, phase.epochs) == expected


def test_many_passes_are_joined_in_a_tree():
    """In a chain, a batch of the first pass would come through all others."""

    def depth(dataset):
        return 1 + max(map(depth, dataset._inputs()), default=0)

    passes = Passes(2, lambda number: tf.data.Dataset.from_tensor_slices([number, number]))
    batches = passes.phase(None, TrainConfig(steps=200, epochs=1)).batches(3)
    assert list(batches.as_numpy_iterator()) == [step // 2 for step in range(3, 200)]
    assert depth(batches) < 20


@pytest.mark.extended
def test_as_many_steps_as_the_recipe_says(files, monkeypatch):
    recipe = load_recipe(files("uneven", {"steps": 5, "epochs": 2, "log_steps": 1}))
    with monkeypatch.context() as patch:
        # The last epoch's validation is not repeated.
        patch.setattr(fine_tuning, "evaluate", None)
        metrics = run(recipe)
    assert [line["step"] for line in _lines(recipe) if "epoch" in line] == [2, 5]
    task = bf.load(f"{recipe.output}/model")
    assert evaluate(task, recipe, "dev") == pytest.approx(metrics, rel=1e-5)


def test_answers_are_scored_after_the_validation(files, smallest):
    recipe = load_recipe(files("validated"))
    given = bf.load_backbone(smallest), bf.load_tokenizer(smallest)
    tagger, reader = bf.TokenTagger(*given, ["O", "B"]), bf.SpanQA(*given)
    classifier = bf.TextClassifier(*given, ["a", "b"])
    for task, expected in ((classifier, {"loss": 0.5}), (tagger, {}), (reader, {})):
        history = {"loss": [0.7, 0.6], "val_loss": [0.4, 0.5]}
        assert fine_tuning._validated(task, task, recipe, history) == expected


# What learns ----------------------------------------------------------------------------------


@pytest.mark.full
def test_what_a_recipe_says_of_training(files):
    """A frozen backbone, rates by layer, weights of labels, metrics by name, the best epoch."""
    train = {
        "epochs": 4,
        "learning_rate": 1e-30,
        "patience": 1,
        "monitor": "accuracy",
        "layer_decay": 0.5,
        "class_weights": {"neutral": 2.0},
        "metrics": ["accuracy"],
    }
    file = files("tuned", train)
    values = yaml.safe_load(file.read_text())
    values["model"]["frozen"] = "backbone"
    file.write_text(yaml.safe_dump(values))
    recipe = load_recipe(file)
    metrics = run(recipe)
    assert set(metrics) == {"loss", "accuracy"}
    with open(f"{recipe.output}/history.csv") as stream:
        epochs = list(csv.DictReader(stream))
    assert len(epochs) == 2  # the second is no better
    assert float(epochs[0]["val_accuracy"]) == pytest.approx(metrics["accuracy"])
    source = bf.load_backbone(recipe.model.path)
    task = bf.load(f"{recipe.output}/model")
    for a, b in zip(source.weights, task.backbone.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    again = load_recipe(file, ["data.dev=null", f"output={recipe.output}_again"])
    with pytest.raises(ValueError, match="patience needs a dev split"):
        run(again)


# What is written ------------------------------------------------------------------------------


@pytest.mark.extended
def test_outputs(finished, files):
    recipe, metrics = finished
    output = files.directory / "whole"
    assert sorted(child.name for child in output.iterdir()) == [
        *("curves.png", "data_files.json", "history.csv", "metrics.json", "metrics.jsonl"),
        *("model", "recipe.yaml", "tensorboard"),
    ]
    assert load_recipe(output / "recipe.yaml") == recipe
    assert json.loads((output / "metrics.json").read_text()) == metrics
    assert metrics.keys() == {"loss", "accuracy"}
    history = _history(recipe)
    assert [row["epoch"] for row in history] == [0, 1, 2]
    best = max(history, key=lambda row: row["val_accuracy"])
    assert best["val_loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.extended
def test_what_is_logged_of_steps(finished, files):
    """The same in ``metrics.jsonl`` and in TensorBoard, and epochs as in the history."""
    recipe, _ = finished
    lines = _lines(recipe)
    steps = [line for line in lines if "epoch" not in line]
    assert [line["step"] for line in steps] == list(range(2, EPOCHS * STEPS + 1, 2))
    schedule = WarmupLinearDecay(3e-2, round(0.1 * EPOCHS * STEPS), EPOCHS * STEPS)
    for line in steps:
        assert line["learning_rate"] == pytest.approx(float(schedule(line["step"] - 1)), rel=1e-5)
        assert {"loss", "gradient_norm", "tokens_per_second"} <= line.keys()
        assert line["tokens_per_second"] > line["examples_per_second"] > 0
        assert 0 < line["mfu"] < 1
    history = _history(recipe)
    epochs = [line for line in lines if "epoch" in line]
    assert [line.pop("step") for line in epochs] == [STEPS, 2 * STEPS, 3 * STEPS]
    for line, row in zip(epochs, history, strict=True):
        assert line == pytest.approx(row, rel=1e-6)
    found = events(files.directory / "whole" / "tensorboard")
    for name in ("loss", "mfu"):
        wanted = {line["step"]: pytest.approx(line[name], rel=1e-6) for line in steps}
        assert found[name] == wanted
    assert list(found["epoch/val_accuracy"]) == [STEPS, 2 * STEPS, 3 * STEPS]


@pytest.mark.extended
def test_the_saved_task_is_the_one_that_was_evaluated(finished):
    recipe, metrics = finished
    task = bf.load(f"{recipe.output}/model")
    assert task.labels == ["negative", "neutral", "positive"]
    assert task.pair is False
    assert evaluate(task, recipe, "dev") == pytest.approx(metrics, rel=1e-5)
    with pytest.raises(ValueError, match="The recipe names no test file"):
        evaluate(task, recipe, "test")


@pytest.mark.extended
def test_a_finished_run_is_not_run_again(finished, files, monkeypatch):
    recipe, metrics = finished
    before = {f: f.stat().st_mtime_ns for f in (files.directory / "whole").rglob("*")}
    assert run(recipe) == metrics
    assert {f: f.stat().st_mtime_ns for f in (files.directory / "whole").rglob("*")} == before


# Killed and started again ---------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    from bertfam_tf.recipes import load_recipe
    from bertfam_tf.recipes import run
    from bertfam_tf.training.callbacks import backup

    step, file = int(sys.argv[1]), sys.argv[2]

    class Backup(backup.Backup):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if batch + 1 < self.params["steps"]:
                self._kill()

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self._kill()

        def _kill(self):
            if int(self.model.optimizer.iterations) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.modules["bertfam_tf.recipes.directory"].Backup = Backup
    run(load_recipe(file))
"""


class Killed(BaseException):
    """Ends a run without a process of its own."""


class _Kill(keras.callbacks.Callback):
    """Comes before the callback that writes states."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def on_test_end(self, logs=None):
        if self.where == "evaluated" and int(self.model.optimizer.iterations) == 2 * STEPS:
            raise Killed

    def on_epoch_end(self, epoch, logs=None):
        if (self.where, epoch) == ("compared", 1):
            raise Killed


@pytest.mark.full
def test_a_killed_run_ends_as_one_that_was_not(finished, files, monkeypatch):
    """The second epoch is the best, and a state is due at its last step."""
    file = files("killed", BEST)
    recipe, output = load_recipe(file), files.directory / "killed"
    whole, expected = finished
    # In the middle of the second epoch, a step after a state.
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(STEPS + 3), str(file)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (output / "metrics.json").exists()
    assert list((output / "backup").iterdir())
    # After its evaluation, and between that and the state.
    fit = bf.TextClassifier.fit
    for kill in (_Kill("evaluated"), _Kill("compared")):

        def interrupted(task, *args, callbacks, kill=kill, **kwargs):
            return fit(task, *args, callbacks=[*callbacks[:-1], kill, callbacks[-1]], **kwargs)

        monkeypatch.setattr(bf.TextClassifier, "fit", interrupted)
        with pytest.raises(Killed):
            run(recipe)
        monkeypatch.undo()
    metrics = run(recipe)
    found, wanted = _weights(recipe), _weights(whole)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
    assert metrics == pytest.approx(expected, rel=1e-5)
    histories = [_history(each) for each in (recipe, whole)]
    for row, wanted_row in zip(*histories, strict=True):
        assert row == pytest.approx(wanted_row, rel=1e-5)
    for line, wanted_line in zip(*map(_lines, (recipe, whole)), strict=True):
        measured = ("examples_per_second", "tokens_per_second", "mfu")
        for name in measured:  # of a first step after a start, there is none
            line.pop(name, None)
            wanted_line.pop(name, None)
        assert line == pytest.approx(wanted_line, rel=1e-4)
    names = [
        sorted(child.name for child in Path(each.output).iterdir()) for each in (recipe, whole)
    ]
    assert names[0] == names[1]
    start = load_file(f"{recipe.model.path}/model.safetensors")["bert.pooler.dense.bias"]
    assert np.abs(wanted["pooler/dense/bias"] - start).max() > 1e-4


@pytest.mark.full
def test_a_seed_gives_the_same_bits_in_each_process(files):
    """Dropout, new heads and the order of examples; other hashes of strings in each process."""
    recipes = []
    for name, hashes in (("first", "1"), ("second", "2")):
        file = files(name, {"epochs": 2, "log_steps": 3})
        command = [sys.executable, "-m", "bertfam_tf.cli", "train", str(file)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hashes}, check=True)
        recipes.append(load_recipe(file))
    one, two = map(_weights, recipes)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value, err_msg=name)
    histories = [Path(each.output, "history.csv").read_text() for each in recipes]
    assert histories[0] == histories[1]


@pytest.mark.full
def test_batches_of_tokens_of_a_killed_run(files, monkeypatch):
    """All steps are counted, and those that are done are not repeated."""
    train = {"epochs": 2, "batch_size": None, "batch_tokens": 24}
    seen = []

    class Count(keras.callbacks.Callback):
        def __init__(self, last=None):
            super().__init__()
            self.last = last

        def on_train_batch_end(self, batch, logs=None):
            seen.append(int(self.model.optimizer.iterations))
            if seen[-1] == self.last:
                raise Killed

    fit = bf.TextClassifier.fit

    def run_with(recipe, callback):
        def counted(task, x, **kwargs):
            sizes = x.map(lambda features, _: tf.reduce_sum(task.count_tokens(features)))
            assert max(sizes.as_numpy_iterator()) <= 24
            kwargs["callbacks"] = [*kwargs["callbacks"], callback]
            return fit(task, x, **kwargs)

        monkeypatch.setattr(bf.TextClassifier, "fit", counted)
        run(recipe)

    recipes = [load_recipe(files(name, train), ["data.dev=null"]) for name in ("tokens", "again")]
    run_with(recipes[0], Count())
    steps = len(seen)
    assert seen == list(range(1, steps + 1))
    assert steps % 2 == 0
    seen.clear()
    last = steps // 2 + 3
    with pytest.raises(Killed):
        run_with(recipes[1], Count(last))
    seen.clear()
    run_with(recipes[1], Count())
    assert seen == list(range(last, steps + 1))
    found, wanted = map(_weights, recipes)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_state_that_is_damaged(files, damage):
    file = files(f"damaged_{damage}", {"epochs": 1})
    recipe = load_recipe(file, ["data.dev=null"])
    directory = Path(recipe.output)
    state = directory / "backup" / "state.safetensors"
    state.parent.mkdir(parents=True)
    (directory / "recipe.yaml").write_text(recipe.to_yaml())
    if damage == "cut":
        state.write_bytes(b"cut off")
    else:
        save_file({"other": np.zeros(1)}, state)
    error = rf"{state} is not a checkpoint .*Remove {state.parent} to train from the beginning"
    with pytest.raises(ValueError, match=error):
        run(recipe)
    assert state.exists()


@pytest.mark.parametrize(
    ("values", "restored"),
    [([6, 2], [6, 2]), ([6, 2, 5, 5], [0, 0]), ([6], [0, 0]), ([6, [2, 2]], [0, 0])],
)
def test_metrics_of_an_epoch_of_another_version_are_not_restored(tmp_path, values, restored):
    """They are stored by position, and would be read as other metrics."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = Backup(tmp_path, 1)
    backup.set_model(model)
    backup._write({i: keras.Variable(np.float32(value)) for i, value in enumerate(values)})
    backup.restore(model)
    backup.on_epoch_begin(0)
    assert list(map(float, model.metrics_variables)) == restored


def test_what_spearman_has_seen_is_restored(tmp_path):
    """Keras has no variables that grow; a model's state has none but Keras' variables."""
    x, y = np.random.default_rng(0).normal(size=(2, 9, 1)).astype("float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    metric = Spearman()
    model.compile("sgd", "mse", metrics=[metric])
    expected = model.evaluate(x, y, verbose=0, return_dict=True)["spearman"]
    assert "spearman" not in model.get_state_tree()["metrics_variables"]
    backup = Backup(tmp_path, 1)
    backup.set_model(model)
    backup.params = {"steps": 2}
    metric.reset_state()
    metric.update_state(y[:5], x[:5])
    backup.on_train_batch_end(0)
    metric.update_state(y[:5], -x[:5])
    backup.restore(model)
    backup.on_epoch_begin(0)
    metric.update_state(y[5:], x[5:])
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.full
def test_a_damaged_checkpoint_and_the_one_before(files, caplog):
    """A file that was cut after it was written: the run goes on from the previous one."""
    train = {"epochs": 2, "backup_steps": 1}
    whole, again = (load_recipe(files(n, train), ["data.dev=null"]) for n in ("intact", "cut"))
    run(whole)
    state = Path(again.output) / "backup" / "state.safetensors"

    class Cut(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise Killed

    fit = bf.TextClassifier.fit
    with pytest.MonkeyPatch.context() as patch:
        added = lambda task, x, **given: fit(  # noqa: E731
            task, x, **{**given, "callbacks": [*given["callbacks"], Cut()]}
        )
        patch.setattr(bf.TextClassifier, "fit", added)
        with pytest.raises(Killed):
            run(again)
    state.write_bytes(state.read_bytes()[:-100])
    run(again)
    assert "Resuming from the previous one" in caplog.text
    found, wanted = map(_weights, (again, whole))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.full
def test_a_full_disk_loses_nothing(files, small_disk):
    """Before training it is an error; in the middle of it what was saved stays, and is resumed."""
    train, filler = {"epochs": 2, "backup_steps": 1}, small_disk / "filler"
    whole = load_recipe(files("roomy", train), ["data.dev=null"])
    again = load_recipe(files("roomy", train), ["data.dev=null", f"output={small_disk}/run"])
    run(whole)
    state = Path(again.output) / "backup" / "state.safetensors"
    begun = []

    def fill():
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    class Fill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            begun.append(batch)
            if batch == 1:  # later ones take the space of the one before the last
                begun.append(state.read_bytes())
                fill()

    fit = bf.TextClassifier.fit
    with pytest.MonkeyPatch.context() as patch:
        added = lambda task, x, **given: fit(  # noqa: E731
            task, x, **{**given, "callbacks": [*given["callbacks"], Fill()]}
        )
        patch.setattr(bf.TextClassifier, "fit", added)
        fill()
        with pytest.raises(OSError, match="No space left on device"):
            run(again)
        assert not begun
        filler.unlink()
        with pytest.raises(OSError, match=r"No space left on device.*state\.safetensors"):
            run(again)
    assert begun[-1] == state.with_name("previous.safetensors").read_bytes()
    filler.unlink()
    run(again)
    found, wanted = map(_weights, (again, whole))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.full
def test_sigterm_writes_a_checkpoint(files):
    """Schedulers send it before they stop a process, and start again what ends with 143."""
    train = {"epochs": 2, "backup_steps": 1000}
    whole, again = (load_recipe(files(n, train), ["data.dev=null"]) for n in ("calm", "ended"))
    run(whole)
    code = """if True:
        import os, signal, sys
        import keras
        import bertfam_tf as bf
        from bertfam_tf.recipes import load_recipe
        from bertfam_tf.recipes import run

        class Signal(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == 1:
                    os.kill(os.getpid(), signal.SIGTERM)

        fit = bf.TextClassifier.fit
        bf.TextClassifier.fit = lambda task, x, **given: fit(
            task, x, **{**given, "callbacks": [*given["callbacks"], Signal()]}
        )
        run(load_recipe(sys.argv[1], ["data.dev=null"]))
    """
    command = [sys.executable, "-c", code, str(files.directory / "ended.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 143, ended.stderr
    run(again)
    found, wanted = map(_weights, (again, whole))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


@pytest.mark.extended
def test_a_loss_that_is_not_finite(files):
    """The error names the texts of the batch, and the checkpoint is from before."""
    recipe = load_recipe(files("nan", {"backup_steps": 1}), ["data.dev=null"])

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                weight = self.model.backbone.weights[0]
                weight.assign(weight * np.nan)

    fit = bf.TextClassifier.fit
    with pytest.MonkeyPatch.context() as patch:
        spoiled = lambda task, x, **given: fit(  # noqa: E731
            task, x, **{**given, "callbacks": [*given["callbacks"], Spoil()]}
        )
        patch.setattr(bf.TextClassifier, "fit", spoiled)
        with pytest.raises(ValueError, match=r"nan in step 4: .*Examples of the batch: '\w"):
            run(recipe)
    backup = Path(recipe.output) / "backup"
    assert all(np.isfinite(x).all() for x in load_file(backup / "state.safetensors").values())


@pytest.mark.full
def test_batches_that_are_skipped(files, caplog):
    """The loss of one label is infinite: steps with such texts are named, and leave no trace."""
    train = {"on_divergence": "skip", "epochs": 1, "batch_size": 1}
    recipe = load_recipe(files("skipped", train), ["data.dev=null"])
    # Which no recipe can have.
    object.__setattr__(recipe.train, "class_weights", {"neutral": float("inf")})
    run(recipe)
    warnings = [text for text in caplog.messages if "is skipped" in text]
    assert len(warnings) == sum(label == "neutral" for _, label in ROWS)
    for text in warnings:
        assert "its gradients are not finite" in text
        assert "Examples of the batch: 'it is a " in text or "batch: 'short'" in text
    assert np.isfinite(_history(recipe)[0]["loss"])
    assert all(np.isfinite(value).all() for value in _weights(recipe).values())


# What is refused ------------------------------------------------------------------------------


def test_two_processes_do_not_train_one_run(files):
    recipe = load_recipe(files("twice"))
    with (
        exclusive_lock(recipe.output, Path(recipe.output) / ".lock"),
        pytest.raises(BlockingIOError, match="twice is being written by another process"),
    ):
        run(recipe)
    assert not Path(recipe.output).exists()


@pytest.mark.extended
def test_the_output_of_another_recipe(finished, files):
    recipe = load_recipe(files.directory / "whole.yaml", ["train.seed=4"])
    with pytest.raises(
        ValueError, match=r"other settings .*whole/recipe\.yaml: train\.seed is 1, expected 4\)"
    ):
        run(recipe)


def test_a_checkpoint_of_another_recipe_alone(files):
    """A run whose directory is removed while it writes a checkpoint leaves nothing else."""
    recipe = load_recipe(files("removed"))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [RunDirectory(recipe).backup()]
    model.fit(np.ones((2, 1)), np.ones(2), callbacks=callbacks, verbose=0)
    other = load_recipe(files.directory / "removed.yaml", ["train.seed=4"])
    with pytest.raises(
        ValueError, match=r"settings .*/state\.safetensors: train\.seed is 0, expected 4\)"
    ):
        run(other)
    assert [x.name for x in Path(recipe.output).iterdir() if x.name != ".lock"] == ["backup"]
    RunDirectory(recipe)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("task=TextClasifier", "Unknown task 'TextClasifier'. Did you mean 'TextClassifier'"),
        ("task=MaskedLM", "Unknown task 'MaskedLM'"),
        ("task=TextEmbedder", "data.label must be null for the task TextEmbedder"),
        ("task=load", "Unknown task 'load'"),
        ("data.train=absent.tsv", r"There is no file absent\.tsv"),
        ("data.train=$BERTFAM_UNSET/a.tsv", "environment variable BERTFAM_UNSET"),
        ("model.path=$BERTFAM_UNSET/a", "environment variable BERTFAM_UNSET"),
        ("data.text=sentence", "Unknown column 'sentence'"),
        ("model.path=/absent", "No checkpoint at /absent"),
        ("model.max_length=99", "max_length 99 exceeds"),
        ("model.overrides.droput=0.0", "Unknown BertConfig field 'droput'"),
        ("data.limit=0", "limit must be at least 1, got 0"),
        ('data.labels={"positive": a, "negative": b}', "'neutral' is not one of: positive, neg"),
        ("data.labels=[positive, negative]", "'neutral' is not one of: positive, negative"),
    ],
)
def test_mistakes_of_a_recipe(files, override, error):
    file = files("mistaken")
    with pytest.raises(ValueError, match=error):
        run(load_recipe(file, [override, "train.epochs=1"]))


def test_a_mended_recipe_needs_no_other_output(files):
    file = files("mended")
    with pytest.raises(ValueError, match="no file"):
        run(load_recipe(file, ["data.dev=null", "data.train=absent.tsv"]))
    assert not (files.directory / "mended").exists()


def test_a_broken_row_of_the_training_file(files, tmp_path):
    (tmp_path / "broken.tsv").write_text("text\tlabel\na\tneutral\nbroken\n")
    with pytest.raises(ValueError, match=r"^.*broken\.tsv: line 3 has 1 columns"):
        run(load_recipe(files("broken"), [f"data.train={tmp_path}/broken.tsv"]))


# Splits and labels ----------------------------------------------------------------------------


@pytest.mark.full
def test_a_table_of_labels_pairs_and_limit(files, smallest, tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\t1\nc\td\t0\nbroken\n")
    recipe = load_recipe(
        files("table"),
        [
            f"data.train={tmp_path}/train.tsv",
            *("data.dev=null", "data.limit=2", "data.text=0", "data.text_pair=1", "data.label=2"),
            'data.labels={"0": no, "1": "yes"}'.replace("no", '"no"'),
            "train.epochs=1",
        ],
    )
    rows = [
        (features["text"], features["text_pair"], label)
        for features, label in read_split(recipe.data, "train").as_numpy_iterator()
    ]
    assert rows == [(b"a", b"b", b"yes"), (b"c", b"d", b"no")]
    metrics = run(recipe)
    assert metrics.keys() == {"train_loss", "train_accuracy"}
    task = bf.load(f"{recipe.output}/model")
    assert (task.labels, task.pair) == (["no", "yes"], True)
    assert run(recipe) == metrics
    [_, row] = table(read_runs([recipe.output]))
    assert row[1] == "1"  # of one epoch, not unfinished


@pytest.mark.full
def test_formats_of_one_run_and_rows_that_are_skipped(files, tmp_path, caplog):
    (tmp_path / "a.csv").write_text('say,mark\n"a, good",x\nbroken\n')
    (tmp_path / "b.jsonl").write_text('{"say": "it is bad", "mark": "y"}\n')
    overrides = [
        f"data.train=[{tmp_path}/a.csv, {tmp_path}/b.jsonl]",
        f"data.dev={tmp_path}/b.jsonl",
        *("data.text=say", "data.label=mark", "data.on_error=skip", "train.epochs=1"),
    ]
    recipe = load_recipe(files("formats"), overrides)
    found = list(read_split(recipe.data, "train").as_numpy_iterator())
    assert found == [({"text": b"a, good"}, b"x"), ({"text": b"it is bad"}, b"y")]
    assert "Skipped 1 rows and kept 2: 1 columns." in caplog.text
    assert run(recipe).keys() == {"loss", "accuracy"}
    assert bf.load(f"{recipe.output}/model").labels == ["x", "y"]


def test_an_unknown_label_is_named_with_its_line(files, tmp_path):
    for name, text in (("t.tsv", "text\tlabel\na\tx\nb\tz\n"), ("t.csv", "text,label\na,x\nb,z\n")):
        (tmp_path / name).write_text(text)
        override = [f"data.dev={tmp_path}/{name}", "data.labels=[x, y]"]
        rows = load_recipe(files("unknown"), override).data
        error = rf"{name}: line 3: The label 'z' is not one of: x, y\."
        with pytest.raises(ValueError, match=error), as_value_errors():
            list(read_split(rows, "dev"))


def test_columns_that_a_task_does_not_take(files):
    recipe = load_recipe(files("other"), ["data.columns={question: text}"])
    with pytest.raises(ValueError, match="Features must be 'text'"):
        run(recipe)
    for override, error in (
        ("data.on_error=ignore", "data.on_error must be raise or skip, got 'ignore'"),
        ("data.tag_scheme=iob1", "data.tag_scheme must be iob2, got 'iob1'"),
        ("data.tag_scheme=iob2", "data.tag_scheme must be null for TextClassifier"),
        ("data.format=xml", "Unknown format 'xml'"),
    ):
        with pytest.raises(ValueError, match=error):
            run(load_recipe(files("other"), [override]))

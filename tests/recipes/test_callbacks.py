"""``train.precision`` and ``train.callbacks``, in every kind of training."""

import importlib.util
import json
import re
import sys
import types
from pathlib import Path

import keras
import pytest
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from tests.recipes.kinds import KINDS, recipes, write_files
from tests.selection import in_full

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "recipes.md"
# Logs what a callback sees, as lines of JSON.
MODULE = """
import json
import keras

class Spy(keras.callbacks.Callback):
    def __init__(self, file, tag="none"):
        super().__init__()
        self.file, self.tag = file, tag

    def on_epoch_end(self, epoch, logs=None):
        logs["from_spy"] = 7.0
        compute, variable = keras.config.dtype_policy().compute_dtype, self.model.weights[0].dtype
        with open(self.file, "a") as stream:
            line = {"epoch": epoch, "tag": self.tag, "compute": compute, "variable": variable}
            stream.write(json.dumps(line) + "\\n")

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True

def no_class():
    pass
"""


@pytest.fixture
def write(tiny, smallest, tmp_path, monkeypatch):
    """Writes the recipe of a kind of training, and returns its command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(tmp_path)
    (tmp_path / "spies.py").write_text(MODULE)
    known = recipes(tiny, smallest)

    def made(name, output="run", **train):
        command, recipe = known[name]
        train = {"epochs": 1, "batch_size": 4, "log_steps": 1, **train}
        if "stages" in recipe and name == "distillation":
            recipe = {**recipe, "stages": [{**each, "train": train} for each in recipe["stages"]]}
        recipe = {**recipe, "train": train, "output": output}
        if name == "distillation":
            del recipe["train"]
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
        return [command, "recipe.yaml"]

    yield made
    sys.modules.pop("spies", None)


@pytest.mark.extended
@pytest.mark.parametrize("name", in_full(KINDS, ["stages"]))
def test_every_training(write, name, tmp_path):
    """All kinds train in the precision of the recipe, and call its callbacks before their logs."""
    if name == "distillation":
        assert main(write("fine_tuning", "teacher")) == 0
    spy = {"spies.Spy": {"file": "seen.jsonl", "tag": "a"}}
    assert main(write(name, precision="mixed_bfloat16", callbacks=[spy])) == 0
    seen = [json.loads(line) for line in Path("seen.jsonl").read_text().splitlines()]
    assert [each["epoch"] for each in seen] == list(range(len(seen)))
    assert len(seen) == {"stages": 2, "distillation": 2}.get(name, 1)
    expected = {"tag": "a", "compute": "bfloat16", "variable": "float32"}
    assert all(expected.items() <= each.items() for each in seen)
    assert "from_spy" in Path("run/history.csv").read_text().splitlines()[0].split(",")
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.extended
def test_a_run_in_reduced_precision(write, tmp_path):
    """A recipe's user gets a float32 task from mixed precision, and the callbacks are stored."""
    spy = {"spies.Spy": {"file": "seen.jsonl"}}
    given = ["keras.callbacks.TerminateOnNaN", spy]
    assert main(write("fine_tuning", precision="mixed_bfloat16", callbacks=given)) == 0
    [seen] = map(json.loads, Path("seen.jsonl").read_text().splitlines())
    assert (seen["compute"], seen["variable"]) == ("bfloat16", "float32")
    assert "train_from_spy" not in json.loads(Path("run/metrics.json").read_text())
    task = bf.load(tmp_path / "run" / "model")
    assert task.backbone.dtype_policy.name == "float32"
    # Commands that read the run directory run no code of its recipe.
    sys.modules.pop("spies")
    Path("spies.py").write_text("raise SystemExit('imported')")
    assert main(["evaluate", "run", "--split", "dev"]) == 0
    assert main(["predict", "run", "a good film"]) == 0
    assert main(["runs", "run"]) == 0
    assert main(["plan", "run/recipe.yaml", "--steps", "1"]) == 0
    assert "spies" not in sys.modules


@pytest.mark.extended
def test_plan_uses_the_precision(write, capsys):
    write("fine_tuning", precision="mixed_bfloat16")
    assert main(["plan", "recipe.yaml", "--steps", "1"]) == 0
    assert "mixed_bfloat16" in capsys.readouterr().out
    assert main(["plan", "recipe.yaml", "--steps", "1", "--dtype", "float32"]) == 0
    assert "mixed_bfloat16" not in capsys.readouterr().out


@pytest.mark.extended
def test_a_callback_stops(write):
    assert main(write("fine_tuning", epochs=3, callbacks=["spies.Stop"])) == 0
    assert len(Path("run/history.csv").read_text().splitlines()) == 2


ERRORS = {
    "missing module": (["nowhere.Logger"], "nowhere.Logger in train.callbacks cannot be imported"),
    "missing class": (
        ["keras.callbacks.TerminateOnNan"],
        "Unknown name in keras.callbacks 'TerminateOnNan'. Did you mean 'TerminateOnNaN'?",
    ),
    "function": (["spies.no_class"], "must be a class of Keras callbacks, got <function no_class"),
    "code": (["os.system"], "must be a class of Keras callbacks, got <built-in function system>"),
    "no path": (["TerminateOnNaN"], "must be the import path of a class, such as keras.callbacks."),
    "expression": (["os.system('x').y"], "must be the import path of a class"),
    "two": ([{"a.B": None, "c.D": None}], "one import path with its arguments"),
    "list": ([{"keras.callbacks.CSVLogger": ["log.csv"]}], "must be a mapping of names to values"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_callbacks_that_are_none(write, name, capsys, tmp_path):
    """They are an error before anything is loaded or written."""
    callbacks, message = ERRORS[name]
    assert main(write("fine_tuning", callbacks=callbacks)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_arguments_that_do_not_fit(write, capsys):
    callbacks = [{"keras.callbacks.CSVLogger": {"file": "log.csv"}}]
    assert main(write("fine_tuning", callbacks=callbacks)) == 2
    message = "keras.callbacks.CSVLogger in train.callbacks cannot be created with {'file': "
    assert message in capsys.readouterr().err


def test_an_unknown_precision(write, capsys):
    assert main(write("fine_tuning", precision="mixed_bfloat")) == 2
    error = capsys.readouterr().err
    assert "train.precision must be one of float32, mixed_bfloat16, mixed_float16" in error
    assert "Did you mean 'mixed_bfloat16'?" in error


def test_precisions_of_stages_differ(write, capsys):
    command = write("distillation")
    recipe = json.loads(Path("recipe.yaml").read_text())
    recipe["stages"] = [dict(each) for each in recipe["stages"]]
    recipe["stages"][1]["train"] = {"precision": "mixed_bfloat16"}
    Path("recipe.yaml").write_text(json.dumps(recipe))
    assert main(command) == 2
    assert "train.precision must be the same in all stages" in capsys.readouterr().err


# The guide's examples ---------------------------------------------------------------------------


@pytest.fixture
def guide(write):
    """Writes the module and the recipe of the guide's example, with this run's data."""

    def made(name):
        text = GUIDE.read_text("utf-8")
        modules = re.findall(r"```python\n(# tracking\.py\n.*?)```", text, re.DOTALL)
        Path("tracking.py").write_text(modules[0])
        callbacks = [
            block
            for block in re.findall(r"```yaml\n(train:\n  callbacks:.*?)```", text, re.DOTALL)
            if name in block
        ]
        return write("fine_tuning", **yaml.safe_load(callbacks[0])["train"])

    yield made
    sys.modules.pop("tracking", None)


@pytest.mark.extended
def test_weights_and_biases(guide, monkeypatch):
    """In its offline mode; a module in its place records calls where it is not installed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    seen = []
    if importlib.util.find_spec("wandb") is None:
        _stub_wandb(monkeypatch, seen)
    assert main(guide("tracking.WandbLogger")) == 0
    if not seen:
        import wandb

        wandb.finish()
        [file] = Path("wandb").glob("offline-run-*/run-*.wandb")
        content = file.read_bytes()
        assert b"epoch/val_accuracy" in content
        assert b"support-desk" in content
    else:
        assert seen[0] == {"project": "support-desk"}
        assert {"epoch/loss", "epoch/val_accuracy"} <= set(seen[1])


def _stub_wandb(monkeypatch, seen):
    class WandbMetricsLogger(keras.callbacks.Callback):
        def __init__(self, log_freq="epoch"):
            super().__init__()
            assert seen, "You must call wandb.init() before"

        def on_epoch_end(self, epoch, logs=None):
            seen.append({f"epoch/{name}": value for name, value in logs.items()})

    root, integration, module = map(
        types.ModuleType, ("wandb", "wandb.integration", "wandb.integration.keras")
    )
    root.init = lambda **settings: seen.append(settings)
    module.WandbMetricsLogger = WandbMetricsLogger
    for each in (root, integration, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)


@pytest.mark.extended
def test_mlflow(guide, monkeypatch, tmp_path):
    """In files, without a server; a module in its place where it is not installed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    stub = importlib.util.find_spec("mlflow") is None
    if stub:
        seen = _stub_mlflow(monkeypatch)
    assert main(guide("mlflow.keras.MlflowCallback")) == 0
    if stub:
        assert {"loss", "val_accuracy"} <= set(seen[0])
        return
    import mlflow

    mlflow.end_run()
    [run] = mlflow.search_runs(output_format="list")
    assert {"loss", "val_accuracy"} <= set(run.data.metrics)


def _stub_mlflow(monkeypatch):
    seen = []

    class MlflowCallback(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    root, module = types.ModuleType("mlflow"), types.ModuleType("mlflow.keras")
    module.MlflowCallback = MlflowCallback
    monkeypatch.setitem(sys.modules, "mlflow", root)
    monkeypatch.setitem(sys.modules, "mlflow.keras", module)
    return seen

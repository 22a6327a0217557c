"""Experiments: cells of recipes, what they resume, share and refuse, and the table's verdicts."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file
from scipy import stats

from bertfam_tf import cli
from bertfam_tf.files import LOCK, exclusive_lock
from bertfam_tf.recipes.experiments.cells import plan_cells
from bertfam_tf.recipes.experiments.report import table
from bertfam_tf.recipes.experiments.running import run_cells, runs_of
from bertfam_tf.recipes.experiments.settings import ColumnConfig, load_experiment
from bertfam_tf.recipes.experiments.statistics import (
    paired_difference,
    student_t_cdf,
    student_t_quantile,
)
from bertfam_tf.training.callbacks.backup import Backup
from tests.selection import only_in

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "configs" / "experiments").glob("*.yaml"))
SMALL = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
TEXT = "\n".join("The good film. The bad plot!\nThe bad film. The good plot!\n" for _ in range(8))
ROWS = "text\tlabel\n" + "a good film\tpositive\nit is bad\tnegative\n" * 3


@pytest.fixture
def files(tiny, smallest, tmp_path):
    """Writes an experiment beside its recipes, from changed keys; a null removes one."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "rows.tsv").write_text(ROWS)
    model = {"family": "bert", "size": "tiny", "tokenizer": str(tiny), "overrides": SMALL}
    text = str(tmp_path / "a.txt")
    pretrain = {
        "output": "unused",
        "model": model,
        "data": {"train": [text], "dev": [text], "format": "full_sentences", "length": 16},
        "objectives": {"mlm": 1.0},
        "train": {"steps": 4, "epochs": 2, "batch_size": 4, "log_steps": 1, "learning_rate": 0.01},
    }
    tune = {
        "output": "unused",
        "model": {"path": str(smallest)},
        "data": {"train": str(tmp_path / "rows.tsv"), "dev": str(tmp_path / "rows.tsv")},
        "train": {"epochs": 2, "batch_size": 4},
    }
    for name, recipe in (("pretrain", pretrain), ("tune", tune)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))

    def write(**changes):
        values = {
            "title": "Masks",
            "recipe": "pretrain.yaml",
            "output": str(tmp_path / "runs"),
            "seeds": [0, 1],
            "rows": {"static": {"masking.copies": 1}, "dynamic": None},
            "columns": ["loss"],
            **changes,
        }
        file = tmp_path / "experiment.yaml"
        file.write_text(
            yaml.safe_dump({k: v for k, v in values.items() if v is not None}, sort_keys=False)
        )
        return file

    return write


CHAIN = {
    "recipe": None,
    "steps": {
        "teacher": {"recipe": "pretrain.yaml", "seed": 5},
        "tune": {"recipe": "tune.yaml", "takes": {"model.path": "teacher"}},
        "again": {"evaluate": "tune", "overrides": {"data.limit": 1}},
    },
    "rows": {
        "from text": {"tune.train.epochs": 1},
        "other rate": {"tune.train.learning_rate": 1.0e-3},
        "without": {"teacher.recipe": None},
    },
    "columns": ["tune.accuracy", {"metric": "again.loss", "title": "loss", "digits": 2}],
}


def _weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def test_runs_follow_their_parents_and_are_not_repeated(files, tmp_path, monkeypatch):
    """With recipes that take no time; the others train."""
    seen = []

    def finish(recipe, **kwargs):
        seen.append(recipe.output.removeprefix(f"{tmp_path}/runs/"))
        if recipe.output.endswith("other rate/0/tune") and len(seen) < 4:
            raise OSError("No space left on device")
        folder = Path(recipe.output)
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text('{"accuracy": 0.5, "loss": 1.0}')

    monkeypatch.setattr("bertfam_tf.recipes.pretraining.pretrain", finish)
    monkeypatch.setattr("bertfam_tf.recipes.multi_task.train", finish)
    steps = {name: CHAIN["steps"][name] for name in ("teacher", "tune")}
    columns = [{"metric": ["tune.accuracy", "teacher.loss"], "title": "mean", "scale": 10}]
    file = files(seeds=[0], **{**CHAIN, "steps": steps, "columns": columns})
    cells = plan_cells(load_experiment(file), file)
    # Runs that do not need the one that failed go on.
    with pytest.raises(OSError, match="1 of 4 runs failed: other rate/0/tune: No space left"):
        run_cells(cells, 0)
    assert seen[:3] == ["from text/0/teacher", "from text/0/tune", "other rate/0/tune"]
    assert seen[3:] == ["without/0/tune"]
    run_cells(cells, 0)
    assert seen[4:] == ["other rate/0/tune"]
    written = table(load_experiment(file), cells, "command")
    assert "| other rate | 7.500 |\n| without | – |" in written
    assert "| other rate | teacher, as of from text |" in written


class _Killed(BaseException):
    """As Ctrl-C, which pytest would take for its own."""


@pytest.mark.full
def test_a_killed_experiment_resumes_and_ends_as_one_that_was_not(files, tmp_path, monkeypatch):
    rows = {"static": {"train.learning_rate": 1.0e-4}, "dynamic": None}
    whole = str(files(recipe="tune.yaml", rows=rows))
    assert cli.main(["experiment", whole, "--workers", "0"]) == 0
    before = {n: _weights(tmp_path / "runs" / n) for n in ("static/0", "static/1", "dynamic/1")}
    written = (tmp_path / "runs" / "table.md").read_text("utf-8")
    assert len(re.findall(r"\d\.\d{3} ± \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)", written)) == 2

    cells = plan_cells(load_experiment(whole, [f"output={tmp_path / 'killed'}"]), whole)
    saved = 0
    save = Backup.on_epoch_end

    def interrupted(self, *args, **kwargs):
        nonlocal saved
        save(self, *args, **kwargs)
        saved += 1
        if saved == 3:  # the first epoch of the second run
            raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_epoch_end", interrupted)
        with pytest.raises(_Killed):
            run_cells(cells, 0)
    assert [each.finished for each in runs_of(cells)] == [True, False, False, False]
    shown = table(load_experiment(whole), cells, "command")
    assert "**Not finished: 1 of 4 runs are.**" in shown
    assert re.search(r"\| static \| \d\.\d{3} \|\n\| dynamic \| – \|", shown)
    trained = []
    with monkeypatch.context() as patch:
        patch.setattr(Backup, "on_epoch_end", lambda *a, **k: (trained.append(1), save(*a, **k)))
        run_cells(cells, 0)
    assert len(trained) == 5  # of six in three runs, one was already done
    for name, tensors in before.items():
        again = _weights(tmp_path / "killed" / name)
        assert all((tensors[key] == again[key]).all() for key in tensors | again)


@pytest.mark.slow  # A process for each run.
def test_processes_that_are_killed(files, tmp_path):
    file = files(seeds=[0], overrides={"train.steps": 40, "train.backup_steps": 1})
    command = [sys.executable, "-m", "bertfam_tf.cli", "experiment", str(file), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list((tmp_path / "runs").glob("*/0/backup/*")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130
    assert "the same command resumes" in errors
    assert subprocess.run(command).returncode == 0
    found = [load_file(tmp_path / "runs" / n / "0/model/model.safetensors") for n in ("static",)]
    assert found
    assert (tmp_path / "runs" / "static" / "0.log").read_text().count("$ bertfam") == 2


def test_two_experiments_in_one_folder(files, tmp_path, capsys):
    file = str(files(seeds=[0]))
    with exclusive_lock(tmp_path / "runs", tmp_path / "runs" / LOCK):
        assert cli.main(["experiment", file, "--workers", "0"]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path}/runs is being written by another process" in error
    assert not (tmp_path / "runs").exists()


def test_a_report_before_any_run_is_finished(files, tmp_path, capsys, caplog):
    assert cli.main(["experiment", str(files()), "--report-only"]) == 0
    assert not capsys.readouterr().out
    assert f"No run in {tmp_path}/runs is finished" in caplog.text


@pytest.mark.full
def test_a_chain_shares_runs_and_evaluates(files, tmp_path, capsys):
    file = str(files(seeds=[0], **CHAIN))
    assert cli.main(["experiment", file, "--plan"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [
        *("from text/0/teacher", "from text/0/tune", "from text/0/again"),
        *("other rate/0/tune", "other rate/0/again"),
        *("without/0/tune", "without/0/again"),
    ]
    assert f"model.path={tmp_path}/runs/from text/0/teacher/model" in lines[3][2]
    assert "train.seed=5" in lines[0][2]
    assert "--split=dev" in lines[2][2]
    assert "model.path" not in lines[5][2]

    assert cli.main(["experiment", file, "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    assert "| other rate | teacher, as of from text |" in printed
    assert "| from text | teacher | 4 | 256 |" in printed
    metrics = json.loads((tmp_path / "runs/without/0/again/metrics.json").read_text())
    assert metrics == json.loads((tmp_path / "runs/without/0/tune/metrics.json").read_text())

    # A row before the others does not move the run that they share.
    rows = {"new": {"tune.train.epochs": 3}, **CHAIN["rows"]}
    cells = plan_cells(load_experiment(files(seeds=[0], **{**CHAIN, "rows": rows})), file)
    [teacher] = {run for cell in cells for name, run in cell.runs.items() if name == "teacher"}
    assert teacher.finished
    assert teacher.name == "from text/0/teacher"
    changed = load_experiment(file, ["tune.train.batch_size=3"])
    with pytest.raises(ValueError, match=r"from text/0/tune has a run with train\.batch_size 4, e"):
        run_cells(plan_cells(changed, file)[1:], 0)


def test_a_row_takes_the_model_of_another_step(files, tmp_path):
    steps = {**CHAIN["steps"]}
    steps = {"teacher": steps["teacher"], "other": {"recipe": "pretrain.yaml"}, **steps}
    steps["more"] = {"evaluate": "other"}
    rows = {
        "teacher": {"other.recipe": None},
        "other": {"tune.takes": {"model.path": "other"}, "more.evaluate": "tune"},
    }
    file = files(seeds=[0], **{**CHAIN, "steps": steps, "rows": rows})
    first, second = plan_cells(load_experiment(file), file)
    assert list(first.runs) == ["teacher", "tune", "again"]
    assert first.runs["tune"].settings["model"]["path"].endswith("/runs/teacher/0/teacher/model")
    assert second.runs["tune"].settings["model"]["path"].endswith("/runs/other/0/other/model")
    assert second.runs["tune"].parents == (second.runs["other"],)
    assert second.runs["more"].recipe == tmp_path / "runs/other/0/tune"


@pytest.mark.extended
def test_minimal_pairs_are_a_metric(files, tmp_path, monkeypatch):
    monkeypatch.setenv("PAIRS", str(tmp_path / "pairs"))
    (tmp_path / "pairs").mkdir()
    pair = {"sentence_good": "the good film", "sentence_bad": "the film good"}
    (tmp_path / "pairs" / "order.jsonl").write_text(json.dumps(pair) + "\n")
    steps = {
        "pretrain": "pretrain.yaml",
        "pairs": {"evaluate": "pretrain", "minimal_pairs": "$PAIRS"},
    }
    columns = ["pretrain.loss", {"metric": "pairs.mean", "title": "pairs", "scale": 100}]
    keys = dict(recipe=None, seeds=[0], rows={"only": None}, steps=steps, columns=columns)
    file = str(files(**keys))
    found = []
    for workers in ("0", "1"):  # in this process, and in its own
        output = f"output={tmp_path / workers}"
        assert cli.main(["experiment", file, "--workers", workers, output]) == 0
        metrics = json.loads((tmp_path / workers / "only/0/pairs/metrics.json").read_text())
        assert set(metrics) == {"order", "mean"}
        found.append(metrics)
        # As if it had been interrupted: what is known is not scored again.
        (tmp_path / workers / "only/0/pairs/metrics.json").unlink()
        kept = tmp_path / workers / "only/0/pairs/minimal_pairs.json"
        stored = json.loads(kept.read_text())
        stored["paradigms"]["order"]["accuracy"] = 0.25
        kept.write_text(json.dumps(stored))
        assert cli.main(["experiment", file, "--workers", workers, output]) == 0
        metrics = json.loads((tmp_path / workers / "only/0/pairs/metrics.json").read_text())
        assert metrics == {"order": 0.25, "mean": 0.25}
    assert found[0] == found[1]
    with pytest.raises(ValueError, match="minimal_pairs needs evaluate"):
        load_experiment(
            files(**{**keys, "steps": {"pretrain": {"recipe": "a", "minimal_pairs": "b"}}})
        )


@pytest.mark.full  # A process for each run.
def test_other_runs_go_on_after_a_failure(files, tmp_path, capsys, caplog):
    rows = {"broken": {"pretrain.data.train": ["nothing.txt"]}, "works": None}
    steps = {"pretrain": "pretrain.yaml", "tune": CHAIN["steps"]["tune"]}
    steps["tune"] = {**steps["tune"], "takes": {"model.path": "pretrain"}}
    columns = ["tune.accuracy"]
    prepare = ["make nothing.txt"]
    file = files(recipe=None, seeds=[0], rows=rows, steps=steps, columns=columns, prepare=prepare)
    assert cli.main(["experiment", str(file), "--plan"]) == 0
    assert capsys.readouterr().out.startswith("prepare\tby hand\tmake nothing.txt\n")
    assert cli.main(["experiment", str(file), "--workers", "2"]) == 2
    found = capsys.readouterr()
    assert "2 of 4 runs failed: broken/0/pretrain" in found.err
    assert found.err.endswith("There is no file nothing.txt.\n")
    assert "these commands write:\nmake nothing.txt" in caplog.text
    assert re.search(r"\| broken \| – \|\n\| works \| \d", found.out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {"a": {"masking.copie": 1}}}, r"row a: .*'copie'\. Did you mean 'copies'"),
        ({"rows": {"a": {"train.steps": "x"}}}, r"row a: .*train\.steps"),
        ({"rows": {"a": {"train.seed": 1}}}, r"row a: train\.seed must not be overridden; use se"),
        ({"rows": {"a": {"stages.0.steps": 1}}}, r"row a: .*stages"),
        ({"rows": {False: None}}, r"\"rows\" - .*names such as 0 and no need quotes"),
        ({"compare": {"better": "x"}}, r"compare must be a list, got the keys better\."),
        ({"rows": {"a/b": None}}, r"name of a row must be a file name, got 'a/b'"),
        ({"row": {}}, r"Unknown key 'row'\. Did you mean 'rows'"),
        ({"seeds": [1, 1]}, r"seeds must differ"),
        ({"recipe": None}, r"either a recipe or steps"),
        ({"recipe": "none.yaml"}, r"There is no recipe .*none\.yaml"),
        ({"compare": [{"better": "x", "than": "static"}]}, r"Unknown row of compare\.0 'x'"),
        ({"published": {"source": "", "rows": {"static": {"l": 1.0}}}}, r"published\.rows\.static"),
        ({**CHAIN, "columns": ["tun.loss"]}, r"Unknown step of a column 'tun'.* 'tune'"),
        ({**CHAIN, "rows": {"a": {"train.steps": 1}}}, r"Unknown step of an override 'train'"),
        (
            {**CHAIN, "rows": {"a": {"tune.takes": {"model.path": "again"}}}},
            r"row a, step tune: Unknown earlier step of steps\.tune 'again'",
        ),
        ({**CHAIN, "rows": {"a": {"tune.takes": "again"}}}, r"row a, step tune: .*takes"),
        ({**CHAIN, "rows": {"a": {"tune.evaluate": "teacher"}}}, r"either a recipe or evaluate"),
        (
            {**CHAIN, "steps": {"tune": {"recipe": "tune.yaml", "takes": {"model.path": "b"}}}},
            r"Unknown earlier step of steps\.tune 'b'",
        ),
    ],
)
def test_errors_name_the_key(files, changes, message):
    file = files(**changes)
    with pytest.raises(ValueError, match=message):
        plan_cells(load_experiment(file), file)


def test_an_unknown_metric_names_those_there_are(files, tmp_path):
    file = files(columns=["accuracy"], seeds=[0])
    cells = plan_cells(load_experiment(file), file)
    folder = tmp_path / "runs" / "static" / "0"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text('{"loss": 1.0}')
    with pytest.raises(ValueError, match=r"no metric 'accuracy' .*; it has loss\."):
        table(load_experiment(file), cells, "command")


@pytest.mark.parametrize("metric", ["mse", "tune.score_mae", "pretrain.masked_lm", "sst2.loss"])
def test_low_errors_and_losses_by_name_are_better(metric):
    assert ColumnConfig(metric).lower_is_better
    assert not ColumnConfig(metric, best="higher").lower_is_better
    assert not ColumnConfig("masked_lm_accuracy").lower_is_better


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 30, 99])
def test_quantiles_of_students_t(degrees):
    assert student_t_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), 1e-9)
    assert student_t_cdf(-1.3, degrees) == pytest.approx(stats.t.cdf(-1.3, degrees), 1e-12)


def _measured(files, tmp_path, losses, **changes):
    """The table of losses, by row, one for each seed."""
    claim = {"better": "dynamic", "than": "static", "source": "a paper"}
    file = files(seeds=list(range(len(losses["static"]))), compare=[claim], **changes)
    for row, numbers in losses.items():
        for seed, number in enumerate(numbers):
            folder = tmp_path / "runs" / row / str(seed)
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(json.dumps({"loss": number}))
    experiment = load_experiment(file)
    return table(experiment, plan_cells(experiment, file), "command")


@pytest.mark.parametrize(
    ("dynamic", "verdict"),
    [
        ([1.0, 2.0, 3.1], "agrees"),
        ([2.0, 3.0, 4.1], "disagrees"),
        ([1.4, 2.6, 3.3], r"not decided: 3 seeds; about 23 would decide such a difference"),
        ([1.5, 2.5, 3.5], "not decided: no difference"),
    ],
)
def test_verdicts(files, tmp_path, dynamic, verdict):
    published = {"source": "a paper", "rows": {"static": {"loss": 5.0}, "dynamic": {"loss": 4.5}}}
    losses = {"static": [1.5, 2.5, 3.5], "dynamic": dynamic}
    found = _measured(files, tmp_path, losses, published=published)
    pairs = [a - b for a, b in zip(dynamic, losses["static"], strict=True)]
    low, high = stats.ttest_1samp(pairs, 0).confidence_interval() if pairs[0] else (0, 0)
    line = rf"\(a paper\) \| loss \| .* \| {low:+.3f} to {high:+.3f} \| -0\.5 \| {verdict} \|"
    assert re.search(line.replace("+", r"\+"), found), found


def test_one_seed_decides_nothing(files, tmp_path):
    found = _measured(files, tmp_path, {"static": [1.5], "dynamic": [1.0]})
    assert "| -0.500 | – | – | not decided: one seed has no spread |" in found
    assert paired_difference([1.0]).seeds_needed() is None


def test_the_figure_has_a_dot_for_each_seed(files, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", reason="pip install 'bertfam_tf[plots]'")
    saved, original = [], figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure,
        "savefig",
        lambda self, *a, **k: saved.append(self) or original(self, *a, **k),
    )
    columns = ["loss", {"metric": "loss", "title": "points", "scale": 10.0, "best": "higher"}]
    rows = {"static": None, "dynamic": {"masking.copies": 1}, "to do": {"masking.copies": 2}}
    losses = {"static": [1.5, 2.5], "dynamic": [1.0, 1.0]}
    _measured(files, tmp_path, losses, columns=columns, rows=rows)
    command = ["experiment", str(tmp_path / "experiment.yaml"), "--report-only"]
    assert cli.main(command) == 0
    assert (tmp_path / "runs/table_values.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs/table.md").read_text().endswith("](table_values.png)\n")
    loss, points = saved[-1].axes
    assert [label.get_text() for label in loss.get_yticklabels()] == list(rows)
    assert (loss.get_xlabel(), points.get_xlabel()) == ("← better", "better →")
    dots = [[*line.get_xdata()] for line in points.lines]
    assert dots == [[15.0, 25.0], [10.0, 10.0], []]
    assert [means.get_segments()[0][0][0] for means in points.collections] == [20.0, 10.0]


@only_in("extended", "tinybert", "distillation")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_experiments_here_have_keys_of_their_recipes(file, capsys):
    experiment = load_experiment(file)
    cells = plan_cells(experiment, file)
    assert len(cells) == len(experiment.rows) * len(experiment.seeds)
    assert all(cell.runs for cell in cells)
    # The teacher of masked tokens has a head that was trained, and the students are DistilBERTs.
    for general in (run for cell in cells if (run := cell.runs.get("general"))):
        if general.loaded.task == "MaskedLM":
            assert general.loaded.student.family == "distilbert"
            assert [parent.verb for parent in general.parents] == ["pretrain"]

"""Kills each command that writes at random points, and runs it again.

    python -m tools.kill_runs [--points 50] [--verbs fit predict …] [--seed 0] [--report FILE]

Half of the points are times, spread over the duration of the command, and half are calls that
change files, spread over all such calls in its directory. At each point the process gets a SIGKILL.
Then the target must be either unchanged or complete, and the same command is run again to its end:
the results must equal an uninterrupted run's, and nothing else may remain in the directory
or in the system's temporary directory.

A command of several workers runs in processes of their own, as of several machines. One of them, or
all, get the SIGKILL, and what ends with an error is started again, as schedulers do, each process
for itself.

Processes are forked from one that has imported TensorFlow but not used it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
import bertfam_tf.checkpoints
import bertfam_tf.export
import bertfam_tf.recipes
from bertfam_tf import cli
from tests.support.compare_tokenizers import markdown
from tools.kill_processes import Machine

ROOT = Path(__file__).parent.parent
CHECKPOINT = ROOT / "tests" / "goldens" / "bert" / "classifier"


class Verb(NamedTuple):
    """A command to kill.

    Fields:
        run: runs the command in a directory, and returns the exit status.
        target: the output, in that directory.
        before: existing content of the target, from the directory of inputs; None for nothing.
        resumes: whether a killed run leaves a partial target, from which the next run resumes.
        again: exit statuses of the next run if the killed one had finished except for clean-up.
        workers: number of processes that run it together.
    """

    run: Callable[[Path, Path], int]
    target: str
    before: str | None = None
    resumes: bool = False
    again: tuple[int, ...] = (0,)
    workers: int = 1


def command(*arguments: str) -> Callable[[Path, Path], int]:
    """A command line, in which ``{inputs}`` and ``{directory}`` are paths."""

    def run(inputs: Path, directory: Path) -> int:
        return cli.main([each.format(inputs=inputs, directory=directory) for each in arguments])

    return run


def _save(inputs: Path, directory: Path) -> int:
    bf.load(inputs / "new").save(directory / "task")
    return 0


_FIT = ("train", "{inputs}/recipe.yaml", "output={directory}/run")
_PRETRAIN = ("pretrain", "{inputs}/pretraining.yaml", "output={directory}/run")
_DISTILL = ("distill", "{inputs}/distillation.yaml", "output={directory}/run")
_WORKERS = "train.strategy=multi_worker"
# Shorter: most of the time goes into the traces of both workers.
_SHORT = ("train.epochs=2", "train.backup_steps=2", "train.patience=null", "data.dev=null")
_ANSWERS = ("--input", "{inputs}/texts.txt", "--output", "{directory}/answers.jsonl")
_VERSION = ("{directory}/model", "--version", "2")
_MOBILE = ("{directory}/model.tflite", "--tflite", "--inputs", "ids")
VERBS = {
    "fit": Verb(command(*_FIT), "run", resumes=True),
    "fit, two workers": Verb(command(*_FIT, _WORKERS, *_SHORT), "run", resumes=True, workers=2),
    "pretrain": Verb(command(*_PRETRAIN), "run", resumes=True),
    "pretrain, two workers": Verb(command(*_PRETRAIN, _WORKERS), "run", resumes=True, workers=2),
    "distill": Verb(command(*_DISTILL), "run", resumes=True),
    "predict": Verb(command("predict", "{inputs}/new", *_ANSWERS), "answers.jsonl", resumes=True),
    "export": Verb(
        command("export", "{inputs}/new", *_VERSION), "model", before="exported", again=(0, 1)
    ),
    "export --tflite": Verb(
        command("export", "{inputs}/new", *_MOBILE), "model.tflite", before="old.tflite"
    ),
    "convert": Verb(
        command("convert", "{inputs}/checkpoint", "{directory}/converted"),
        "converted",
        again=(0, 1),
    ),
    "save": Verb(_save, "task"),
    "save over another": Verb(_save, "task", before="old"),
}


def write_inputs(directory: Path) -> int:
    """Creates the inputs of the commands, and existing outputs."""
    # One layer: the time to trace a training step grows with the variables.
    small = directory / "checkpoint"
    shutil.copytree(CHECKPOINT, small)
    tensors = load_file(CHECKPOINT / "model.safetensors")
    kept = {n: v for n, v in tensors.items() if ".layer." not in n or ".layer.0." in n}
    save_file(kept, small / "model.safetensors")
    config = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))
    (small / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    for name, labels in (("old", "xyz"), ("new", "abc")):
        task = bf.TextClassifier.from_pretrained(small, list(labels), pair=False)
        task.save(directory / name)
    (directory / "exported" / "1").mkdir(parents=True)
    (directory / "exported" / "1" / "saved_model.pb").write_text("an older version")
    (directory / "old.tflite").write_bytes(b"....TFL3, an older file")
    words = ["a good film", "the bad movie", "it is a plot", "very great fine cast", "dull long"]
    labels = ["positive", "negative", "neutral", "positive", "negative"]
    for split, rows in (("train", 40), ("dev", 20)):
        lines = [f"{words[i % 5]} {i % 7}\t{labels[i % 5]}\n" for i in range(rows)]
        (directory / f"{split}.tsv").write_text("text\tlabel\n" + "".join(lines))
    (directory / "texts.txt").write_text("".join(f"{words[i % 5]} {i}\n" for i in range(4000)))
    recipe = {
        "output": "?",
        "model": {"path": str(small), "overrides": {"dropout": 0.2}},
        "data": {name: str(directory / f"{name}.tsv") for name in ("train", "dev")},
        "train": {
            **{"epochs": 4, "batch_size": 4, "backup_steps": 5, "patience": 3, "seed": 1},
            **{"learning_rate": 0.01, "monitor": "accuracy"},
        },
    }
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    sizes = {"hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "dropout": 0.1}
    texts = [str(directory / "texts.txt")]
    pretraining = {
        "output": "?",
        "model": {"family": "bert", "size": "tiny", "tokenizer": str(small), "overrides": sizes},
        "data": {"train": texts, "dev": [str(directory / "few.txt")], "format": "full_sentences"},
        "objectives": {"mlm": 1.0},
        # The second stage is deeper, so that its weights and its first checkpoint are others.
        "stages": [{"steps": 8, "layers": 1}, {"steps": 7, "layers": 2}],
        "train": {"batch_size": 4, "learning_rate": 0.01, "backup_steps": 3, "seed": 1},
    }
    pretraining["data"] |= {"length": 16, "shuffle": 64}
    term = {"hidden_states": {"projection": "shared"}, "embeddings": {"projection": "shared"}}
    distillation = {
        "output": "?",
        "teacher": str(directory / "new"),
        "student": {"layers": "none", "overrides": {"hidden_size": 16, "num_heads": 2}},
        "data": {
            **{name: str(directory / f"{name}.tsv") for name in ("train", "dev")},
            "labels": {"positive": "a", "negative": "b", "neutral": "c"},
        },
        "max_length": 16,
        "stages": [
            {"terms": term, "train": {"epochs": 2, "batch_size": 4, "backup_steps": 3, "seed": 1}},
            {
                "terms": {"soft_targets": {}},
                "train": {"epochs": 2, "batch_size": 4, "backup_steps": 4, "seed": 1},
            },
        ],
    }
    (directory / "distillation.yaml").write_text(yaml.safe_dump(distillation))
    (directory / "few.txt").write_text("\n".join(words * 4) + "\n")
    (directory / "pretraining.yaml").write_text(yaml.safe_dump(pretraining))
    return 0


def _content(path: Path) -> dict[str, str]:
    """Digests by file name; for files that differ between runs, only the name."""
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
    found = {}
    for file in files:
        name = str(file.relative_to(path))
        if "tensorboard" in file.parts or any(part.startswith(".") for part in Path(name).parts):
            continue  # for left-overs, see ``_left``
        exported = path.name == "model" and name.startswith("2/")
        content = file.read_bytes() if file.name != "metrics.jsonl" else _untimed(file)
        found[name] = "" if exported else hashlib.sha256(content).hexdigest()
    return found


def _different(path: Path, expected: dict[str, str]) -> list[str]:
    """The names of files that are not as expected."""
    found = _content(path)
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if found.get(name) != expected.get(name)]


def _untimed(file: Path) -> bytes:
    """The lines of a log of steps, without what depends on time."""
    lines = map(json.loads, file.read_text("utf-8").splitlines())
    timed = ("examples_per_second", "tokens_per_second", "mfu")
    return json.dumps([{k: v for k, v in x.items() if k not in timed} for x in lines]).encode()


def check_export(version: Path) -> None:
    """Checks the digests of files that an export lists."""
    if not version.is_dir():
        return
    card = json.loads((version / "assets.extra" / "bertfam.json").read_text("utf-8"))
    for name, digest in card["sha256"].items():
        assert hashlib.sha256((version / name).read_bytes()).hexdigest() == digest, name


def _left(directory: Path, temporary: Path) -> list[str]:
    """Names of unexpected files.

    TensorFlow's autograph writes generated code to temporary files and removes them when Python
    ends, so a kill leaves them; their names do not contain the process.
    """
    found = [path for path in directory.rglob("*") if path.name.startswith(".")]
    found += [p for p in temporary.iterdir() if not p.name.startswith("__autograph_generated_file")]
    return [path.name for path in found]


def kill(name: str, points: int, seed: int, work: Path) -> dict[str, object]:
    """Kills a command; returns its row of the report.

    Raises:
        AssertionError: if something was lost, or remains.
    """
    verb, machine, numbers = VERBS[name], Machine(work), random.Random(f"{seed} {name}")
    inputs, temporary = work / "inputs", work / "tmp"

    def fresh() -> Path:
        shutil.rmtree(work / "out", ignore_errors=True)
        (work / "out").mkdir()
        if verb.before is not None:
            source, target = inputs / verb.before, work / "out" / verb.target
            shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
        return work / "out"

    def run(directory: Path, **options: object) -> int | None:
        return machine.run(lambda: verb.run(inputs, directory), **options)  # type: ignore[arg-type]

    directory = fresh()
    old = _content(directory / verb.target)
    status = run(directory, root=directory)  # the first one is slower
    assert status == 0, machine.log.read_text()
    calls = int(machine.calls.read_text())
    directory = fresh()
    begin = time.monotonic()
    assert run(directory) == 0
    seconds = time.monotonic() - begin
    new = _content(directory / verb.target)
    names = sorted(path.name for path in directory.iterdir())
    assert not _left(directory, temporary), _left(directory, temporary)

    counts: Counter[str] = Counter()
    while counts["killed"] < points:
        directory = fresh()
        if counts["killed"] % 2:
            point = {"call": numbers.randint(0, calls), "root": directory}
        else:
            point = {"seconds": numbers.uniform(0, seconds)}
        status = run(directory, **point)
        if status is not None:
            assert status == 0, (point, machine.log.read_text())
            counts["ended before"] += 1
            continue
        counts["killed"] += 1
        found = _content(directory / verb.target)
        state = "new" if found == new else "old" if found == old else "part"
        assert state != "part" or verb.resumes, (point, found)
        counts[state] += 1
        if name == "export":
            check_export(directory / "model" / "2")
        counts["with left-overs"] += bool(_left(directory, temporary))
        status = run(directory)
        allowed = verb.again if state == "new" else (0,)
        assert status in allowed, (point, status, machine.log.read_text())
        if name == "export":
            check_export(directory / "model" / "2")
        assert not (differs := _different(directory / verb.target, new)), (point, differs)
        assert sorted(path.name for path in directory.iterdir()) == names, point
        assert not _left(directory, temporary), (point, _left(directory, temporary))
        print(f"{name}: {counts['killed']} of {points}, {state}", flush=True)
    return {"verb": name, "seconds": f"{seconds:.1f}", "calls": calls, **counts}


def kill_workers(name: str, points: int, seed: int, work: Path) -> dict[str, object]:
    """Kills one worker of a command or all of them; returns its row of the report.

    Raises:
        AssertionError: if something was lost, or remains.
    """
    verb, machine, numbers = VERBS[name], Machine(work), random.Random(f"{seed} {name}")
    everyone = range(verb.workers)

    def run(**options: object) -> tuple[int, int]:
        shutil.rmtree(work / "out", ignore_errors=True)
        (work / "out").mkdir()
        function = lambda: verb.run(work / "inputs", work / "out")  # noqa: E731
        return machine.job(function, verb.workers, **options)  # type: ignore[arg-type]

    assert run(root=work / "out") == (0, 0)  # the first one is slower
    calls = int(machine.calls.read_text())
    begin = time.monotonic()
    assert run() == (0, 0)
    seconds = time.monotonic() - begin
    new = _content(work / "out" / verb.target)
    names = sorted(path.name for path in (work / "out").iterdir())
    counts: Counter[str] = Counter()
    while counts["killed"] < points:
        number = counts["killed"]
        if number % 2:
            killed = numbers.choice([(0,), tuple(everyone)])
            point = {"call": numbers.randint(0, calls), "root": work / "out"}
        else:
            killed = numbers.choice([*((i,) for i in everyone), tuple(everyone)])
            point = {"seconds": numbers.uniform(0, seconds)}
        began = time.monotonic()
        dead, failed = run(killed=killed, **point)
        if not dead:
            counts["ended before"] += 1
            continue
        counts["killed"] += 1
        counts["all at once"] += dead > 1
        counts["others that failed"] += failed
        left = _left(work / "out", work / "tmp")
        differs = _different(work / "out" / verb.target, new)
        assert not differs, (point, killed, differs)
        assert sorted(path.name for path in (work / "out").iterdir()) == names, (point, killed)
        assert not left, (point, killed, left)
        took = time.monotonic() - began
        print(
            f"{name}: {number + 1} of {points}, {killed} {point}: {failed}, {took:.0f} s",
            flush=True,
        )
    return {"verb": name, "seconds": f"{seconds:.1f}", "calls": calls, "part": points, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--points", type=int, default=50, help="(%(default)s)")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="the file of the table, in Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        for name in ("inputs", "tmp"):
            (work / name).mkdir()
        os.environ["TMPDIR"] = str(work / "tmp")
        tempfile.tempdir = None
        machine = Machine(work)
        assert machine.run(lambda: write_inputs(work / "inputs")) == 0, machine.log.read_text()
        rows = [
            (kill if VERBS[name].workers == 1 else kill_workers)(
                name, options.points, options.seed, work
            )
            for name in options.verbs
        ]
    columns = ["verb", "seconds", "calls", "killed", "old", "part", "new", "with left-overs"]
    columns += ["all at once", "others that failed"]
    text = markdown(columns, [[row.get(column, 0) for column in columns] for row in rows]) + "\n"
    print(text)
    if options.report:
        options.report.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

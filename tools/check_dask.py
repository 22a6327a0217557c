"""Runs the Beam jobs of serving/batch on Dask, and kills one of two workers in the middle.

    make batch-env
    python -m tools.check_dask      # writes tools/results/dask.md

Batch inference on real texts, with a tiny BERT, and shards of examples from books. A scheduler and
two workers are processes on this machine; one worker gets a SIGKILL when a third of the shards is
complete, and nobody starts it again. The output has to equal that of Beam's local runner byte by
byte.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools import texts
from tools.bench import machine
from tools.check_corpus import BEAM, BOOKS, content, examples, pipeline, run
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "dask.md"
RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"


@contextlib.contextmanager
def cluster(work: Path) -> Iterator[tuple[Path, list[subprocess.Popen]]]:
    """A scheduler, whose address is in the file, and two workers without a nanny."""
    file, dask = work / "scheduler.json", str(BEAM.parent / "dask")
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    scheduler = [dask, "scheduler", *local, "--port", "0", "--scheduler-file", str(file)]
    worker = [dask, "worker", *local, "--scheduler-file", str(file), "--no-nanny"]
    worker += ["--nthreads", "1", "--local-directory", str(work / "scratch")]
    with (work / "scheduler.log").open("w") as log, (work / "workers.log").open("w") as other:
        started = [subprocess.Popen(scheduler, stderr=log)]
        started += [subprocess.Popen(worker, stderr=other) for _ in range(2)]
        try:
            wait_until((work / "scheduler.log"), "Register worker", 2, started)
            yield file, started[1:]
        finally:
            for process in started:
                process.kill()
                process.wait()


def wait_until(log: Path, text: str, count: int, running: list[subprocess.Popen]) -> None:
    """Waits for a text in a log. Raises RuntimeError if a process ends before."""
    while log.read_text("utf-8").count(text) < count:
        if any(process.poll() is not None for process in running):
            raise RuntimeError(log.read_text("utf-8"))
        time.sleep(0.1)


def killed(command: list[str], work: Path, complete: str, total: int) -> tuple[int, float]:
    """Runs a job on Dask, of which a worker is killed.

    Args:
        command: of the job.
        work: a folder; the job's output is in ``dask``.
        complete: the pattern of the files that mark complete shards.
        total: the number of shards.

    Returns:
        How many shards were complete when the worker was killed, and the job's seconds.
    """
    with cluster(work) as (file, workers):
        # By default 128 shards are one task of Dask.
        command = [*command, "--runner", RUNNER, "--dask_partition_size", "1"]
        command += ["--dask_scheduler_file", str(file)]
        begin = time.monotonic()
        with (work / "job.log").open("w") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log)
        while (before := len(list((work / "dask").glob(complete)))) < total // 3:
            if job.poll() is not None:
                raise RuntimeError((work / "job.log").read_text("utf-8"))
            time.sleep(0.01)
        workers[0].send_signal(signal.SIGKILL)
        if job.wait():
            raise RuntimeError((work / "job.log").read_text("utf-8"))
        assert workers[1].poll() is None
    return before, time.monotonic() - begin


def real_texts(count: int) -> list[bytes]:
    """So many lines of all real texts, spread evenly."""
    lines = [line for section in texts.corpus() for line in section.lines]
    chosen = itertools.islice(lines, 0, None, len(lines) // count)
    return [b" ".join(line.split()) for line in itertools.islice(chosen, count)]


def answers(work: Path, count: int) -> list[object]:
    """Batch inference."""
    import bertfam_tf as bf

    tiny = ROOT / "tests" / "goldens" / "bert" / "classifier"
    bf.TextClassifier.from_pretrained(tiny, pair=False).export(work / "export")
    given = real_texts(count)
    (work / "texts.txt").write_bytes(b"\n".join(given) + b"\n")

    def command(output: str) -> list[str]:
        script = str(ROOT / "serving" / "batch" / "answer.py")
        inputs = ["--model", str(work / "export"), "--input", str(work / "texts.txt")]
        return [str(BEAM), script, *inputs, "--output", str(work / output)]

    local = run(command("local"))
    total = len(list((work / "local").glob("done-*")))
    before, seconds = killed(command("dask"), work, "done-*", total)
    assert content(work / "dask") == content(work / "local")
    found = [
        json.loads(line)["input"]
        for file in sorted((work / "dask").glob("answers-*.jsonl"))
        for line in file.read_bytes().splitlines()
    ]
    expected = collections.Counter(text.decode("utf-8", "replace") for text in given)
    row = _compared(expected, collections.Counter(found))
    return ["answer.py, texts", total, before, *row, f"{local.seconds:.0f}", f"{seconds:.0f}"]


def shards(work: Path) -> list[object]:
    """Examples of pretraining."""
    units = ("--unit-bytes", "100000")
    local = run(pipeline(BOOKS, work / "local", *units))
    total = len(list((work / "local").glob("*.tfrecord")))
    command = pipeline(BOOKS, work / "dask", *units)
    before, seconds = killed(command, work, "counts-*", total)
    assert content(work / "dask") == content(work / "local")
    row = _compared(examples(work / "local"), examples(work / "dask"))
    return ["corpus.py, examples", total, before, *row, f"{local.seconds:.0f}", f"{seconds:.0f}"]


def _compared(expected: collections.Counter, found: collections.Counter) -> list[object]:
    lost, twice = (expected - found).total(), (found - expected).total()
    assert (lost, twice) == (0, 0)
    return [f"{expected.total():,}", f"{found.total():,}", lost, twice]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=100_000, help="(%(default)s)")
    options = parser.parse_args()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("answers", "shards"):
            work = Path(folder) / name
            work.mkdir()
            rows.append(answers(work, options.texts) if name == "answers" else shards(work))
            print(*rows[-1], flush=True)
    freeze = subprocess.run([BEAM, "-m", "pip", "freeze"], capture_output=True, text=True)
    versions = [each for each in freeze.stdout.split() if each.startswith(("apache-beam", "dask"))]
    head = ["job", "shards", "complete at the kill", "expected", "found", "lost", "twice"]
    head += ["local runner, s", "Dask, s"]
    table = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    lines = [
        "# Beam jobs on Dask, with a worker killed",
        "",
        f"`python -m tools.check_dask`, {datetime.date.today()}, {machine.cpu()}: "
        f"{', '.join(versions)}. A scheduler and two workers of one thread each, on one core that "
        "was shared with other work; one worker was killed (SIGKILL) in the middle and not started "
        "again. The other one answered its shards: every file of the output equals that of Beam's "
        "local runner.",
        "",
        *(f"| {' | '.join(map(str, row))} |" for row in table),
    ]
    print("\n".join(lines))
    if options.texts == parser.get_default("texts"):
        RESULT.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()

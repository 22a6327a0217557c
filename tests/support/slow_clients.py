"""Measures how clients that send half a request slow down the others.

    python -m tests.support.slow_clients                     # writes tools/results/slow_clients.md
    python -m tests.support.slow_clients --clients 200       # writes nothing

The server is a process of its own with 1,024 file descriptors (`ulimit -n 1024`). Others ask it
over REST (a new connection for each request) and gRPC, first alone, then while slow clients hold
on: half of them have sent a part of their headers, half all headers and a part of the body. Some
connect to gRPC's port and say nothing, or open a call without ever sending its message. In the end
the server is told to stop while all of them are there.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import os
import platform
import resource
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.checkout import Server, serve

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "tools" / "results" / "slow_clients.md"
CLIENTS = 2000
FILES = 1024
REQUESTS = 200
_BODY = b'{"instances": [2]}'
_PATH = "/v1/models/model:predict"
_HEADERS = f"POST {_PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n".encode()
_CALL = "/tensorflow.serving.PredictionService/Predict"


class Latency(NamedTuple):
    """Milliseconds of requests that were answered, and how many were not."""

    median: float
    slowest: float
    failed: int


class Found(NamedTuple):
    """Result of a run: latencies by type of request, and how the server stopped."""

    quiet: dict[str, Latency]
    with_slow: dict[str, Latency]
    stop_s: float
    status: int


def save_model(base: Path) -> None:
    """Half plus two as version 1."""
    import tensorflow as tf

    module = tf.Module()
    spec = tf.TensorSpec([None], tf.float32, name="x")
    module.answer = tf.function(lambda x: {"y": 0.5 * x + 2.0}, input_signature=[spec])
    tf.saved_model.save(module, str(base / "1"), signatures=module.answer)


@contextlib.contextmanager
def server(base: Path, *flags: str) -> Iterator[Server]:
    """A server over `base` that may have 1,024 files open."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    with serve(str(base), *flags, preexec_fn=limit) as running:
        try:
            yield running
        finally:
            running.process.kill()  # does not wait for clients that are slow


def ask_rest(port: int) -> None:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", _PATH, _BODY)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"answered {answer.status}: {answer.read().decode()}")
        answer.read()
    finally:
        connection.close()


def grpc_request() -> bytes:
    """A PredictRequest, serialized."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "model"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([2.0]))
    return request.SerializeToString()


def measure(ask: Callable[[], object], requests: int = REQUESTS) -> Latency:
    """Asks so often, one after the other."""
    took, failed = [], 0
    for _ in range(requests):
        start = time.perf_counter()
        try:
            ask()
        except Exception:  # whatever a client raises, it has no answer
            failed += 1
        took.append(1000 * (time.perf_counter() - start))
    return Latency(statistics.median(took), max(took), failed)


@contextlib.contextmanager
def half_sent(port: int, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Connections that have each sent one of the beginnings, and no more."""
    with contextlib.ExitStack() as stack:
        opened = []
        for beginning in beginnings:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", port), timeout=20)
                opened.append(stack.enter_context(connection))
                connection.sendall(beginning)
        yield opened


@contextlib.contextmanager
def half_called(port: int, count: int) -> Iterator[None]:
    """gRPC calls whose message is never sent, on one connection."""
    import grpc

    done = threading.Event()

    def nothing() -> Iterator[bytes]:
        done.wait()
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [channel.stream_unary(_CALL).future(nothing()) for _ in range(count)]
        try:
            yield
        finally:
            done.set()
            for call in calls:
                call.cancel()


def beginnings(clients: int) -> list[bytes]:
    """Incomplete headers and incomplete bodies, alternately."""
    return [_HEADERS, _HEADERS + b"\r\n{"] * (clients // 2)


def run(clients: int, calls: int, silent: int, *flags: str, requests: int = REQUESTS) -> Found:
    """Starts a server, besieges it, stops it.

    Args:
        clients: half-sent requests over REST.
        calls: gRPC calls without a message.
        silent: connections to gRPC's port that say nothing.
        flags: the server's flags.
        requests: how many of each kind are measured.
    """
    import grpc

    message = grpc_request()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        save_model(Path(directory))
        up = stack.enter_context(server(Path(directory), *flags))
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{up.grpc}"))
        predict: Any = channel.unary_unary(_CALL)
        kinds: dict[str, Callable[[], object]] = {
            "REST": lambda: ask_rest(up.rest),
            "gRPC": lambda: predict(message, timeout=20),
        }
        for ask in kinds.values():
            measure(ask, 20)  # warm
        quiet = {name: measure(ask, requests) for name, ask in kinds.items()}
        stack.enter_context(half_sent(up.grpc, [b""] * silent))
        stack.enter_context(half_called(up.grpc, calls))
        stack.enter_context(half_sent(up.rest, beginnings(clients)))
        with_slow = {name: measure(ask, requests) for name, ask in kinds.items()}
        start = time.monotonic()
        up.process.send_signal(signal.SIGTERM)
        status = up.process.wait(120)
        return Found(quiet, with_slow, time.monotonic() - start, status)


def table(found: Found) -> str:
    """What was found, as Markdown."""
    lines = [
        "| median, slowest ms | no slow clients | with slow clients | ratio of medians | failed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, before in found.quiet.items():
        after = found.with_slow[name]
        lines.append(
            f"| {name} | {before.median:.1f}, {before.slowest:.0f} "
            f"| {after.median:.1f}, {after.slowest:.0f} "
            f"| {after.median / before.median:.2f} | {after.failed} |"
        )
    seconds = f"{found.stop_s:.1f} s"
    stop = f"After SIGTERM the server exited within {seconds} with status {found.status}."
    return "\n".join([*lines, "", stop, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=CLIENTS, help="over REST (%(default)s)")
    parser.add_argument("--calls", type=int, default=200, help="without message (%(default)s)")
    parser.add_argument("--silent", type=int, default=200, help="to gRPC's port (%(default)s)")
    options = parser.parse_args()
    found = run(options.clients, options.calls, options.silent)
    print(table(found))
    if options.clients == CLIENTS:
        RESULT.write_text(
            "# Slow clients against the local server\n\n"
            f"`python -m tests.support.slow_clients`, {datetime.date.today()}, "
            f"{platform.machine()}, "
            f"{os.cpu_count()} cores for server and clients together: {options.clients:,} "
            f"incomplete REST requests, {options.silent} silent connections to gRPC's port and "
            f"{options.calls} gRPC calls without a message, against a server with {FILES:,} file "
            f"descriptors; {REQUESTS} requests of each type, one at a time.\n\n"
            f"{table(found)}",
            "utf-8",
        )


if __name__ == "__main__":
    main()

"""Where the local server's time between the wire and the graph goes.

    python -m tools.bench.serving_wire    # writes a section of tools/results/serving_load.md

CPU time of each stage of a request with one sentence, alone on one thread of a process without
other requests, with a graph that computes nothing: medians of five repetitions.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import tensorflow as tf
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tensorflow_serving.apis import predict_pb2
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bertfam_serve import inference, json_tensor
from bertfam_serve.batching import Batcher, BatchingParameters
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime import load
from tools.bench import serving_speed

TITLE = "Between the wire and the graph"
_TEXT = "it 's a charming and often affecting journey . "
_BODY = b'{"signature_name": "serving_default", "instances": ["%s"]}' % _TEXT.encode()
_HEADERS = (
    b"POST /v1/models/model:predict HTTP/1.1\r\nHost: 127.0.0.1:8501\r\nAccept: */*\r\n"
    b"Accept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.14.5\r\n"
    b"Content-Length: %d\r\nContent-Type: application/octet-stream\r\n\r\n" % len(_BODY)
)


class Nothing(tf.Module):
    """A classifier that computes nothing."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.shape(text)[0]
        return {"label": tf.fill([rows], "negative"), "scores": tf.fill([rows, 2], 0.123456789)}


class _Wire(asyncio.Transport):
    """A connection that reads and writes nothing."""

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class _Answer:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await Response(b"{}", media_type="application/json")(scope, receive, send)


def http(number: int = 300) -> float:
    """Microseconds to parse a request and to write an answer."""

    async def run() -> float:
        app = Starlette(routes=[Route("/{path:path}", endpoint=_Answer())])
        config = uvicorn.Config(app, lifespan="off", access_log=False)
        config.load()
        protocol = H11Protocol(config, ServerState(), {})
        protocol.connection_made(_Wire())
        times = []
        for _ in range(5):
            start = time.process_time()
            for _ in range(number):
                protocol.data_received(_HEADERS + _BODY)
                while not protocol.cycle.response_complete:
                    await asyncio.sleep(0)
            times.append((time.process_time() - start) / number * 1e6)
        return statistics.median(times)

    return asyncio.run(run())


def timed(function: Callable[[], object], number: int = 300) -> float:
    """Microseconds of CPU time of a call, in all threads."""
    function()
    times = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(number):
            function()
        times.append((time.process_time() - start) / number * 1e6)
    return statistics.median(times)


class _Models:
    def __init__(self, servable: Any) -> None:
        self._servable = servable

    def find_spec(self, spec: Any) -> tuple[int, Any]:
        return 1, self._servable


def stages() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        nothing = Nothing()
        signatures = {"serving_default": nothing.__call__.get_concrete_function()}
        tf.saved_model.save(nothing, f"{directory}/1", signatures=signatures)
        servable = load(f"{directory}/1")
    limits, declared = RequestLimits(), servable.signatures["serving_default"].inputs
    decode = lambda: json_tensor.decode_predict(_BODY, lambda _: declared, limits)  # noqa: E731
    request = decode()
    outputs = servable.run("", request.inputs)
    run = timed(lambda: servable.run("", request.inputs, timeout_ms=30_000))
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "model"
    message.inputs["text"].CopyFrom(tf.make_tensor_proto([_TEXT.encode()]))
    answer = timed(
        lambda: inference.answer(_Models(servable), message, limits=limits, timeout_ms=30_000)
    )
    with Batcher(BatchingParameters(num_batch_threads=1)) as batcher:
        batched = batcher(servable)
        queued = timed(lambda: batched.run("", request.inputs, timeout_ms=30_000))
    return {
        "REST: HTTP, request and answer": http(),
        "REST: JSON to arrays, and checks": timed(decode),
        "REST: arrays to JSON": timed(lambda: json_tensor.encode_predict(outputs, True)),
        "gRPC: messages to arrays and back, and checks, without gRPC itself": answer - run,
        "queue of the batches: to its thread and back": queued - run,
        "a run of the session: inputs, outputs and threads, once per batch": run,
    }


def main() -> None:
    rows = [[name, f"{value:.0f}"] for name, value in stages().items()]
    table = [["stage", "CPU µs"], ["---", "---:"], *rows]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in table)
    text = (
        f"## {TITLE}\n\n"
        f"`python -m tools.bench.serving_wire`, {datetime.date.today()}, {platform.machine()}: the "
        "stages of a request with one sentence to a graph that computes nothing. With requests "
        "from other threads, waiting for the interpreter lock comes on top.\n\n"
        f"{lines}\n"
    )
    print(text)
    serving_speed.write(TITLE, text)


if __name__ == "__main__":
    main()

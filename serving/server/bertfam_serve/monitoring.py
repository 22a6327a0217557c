"""TensorFlow Serving's Prometheus metrics, with the same names and buckets."""

import bisect
import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bertfam_serve import text_format
from bertfam_serve.batching import PendingRequest
from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, Inputs, ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

DEFAULT_PATH = "/monitoring/prometheus/metrics"
# Microseconds, from 10 to about 24 minutes.
_LIMITS = tuple(10 * 1.8**i for i in range(33))
_PREFIX = ":tensorflow:serving:"
_REQUEST_COUNT = f"{_PREFIX}request_count"
# Requests may contain any model name, and a series for each would grow without bound.
_MAX_SERIES = 1000
_OTHERS = "(other)"
_APIS = {"classify": "Classify", "regress": "Regress"}


class _Histogram:
    """The number of values in each bucket, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_LIMITS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_right(_LIMITS, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns the upper limit of each bucket, and the number of values up to it."""
        limits = [f"{limit:.6g}" for limit in _LIMITS] + ["+Inf"]
        return list(zip(limits, np.cumsum(self.counts).astype(float).tolist(), strict=True))


class _Family(NamedTuple):
    """A metric with a histogram for each combination of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    series: dict[tuple[str, ...], _Histogram]


class Metrics(Collector):
    """Counts and latencies of a server's requests. Thread-safe.

    It is a prometheus_client collector and can be added to the registry of a program.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], int] = {}
        self._requests = _family("request", "Tensorflow Serving request", "API", "entrypoint")
        self._runs = _family("runtime", "Tensorflow runtime", "API", "runtime")
        self._warm_ups = _Family(
            f"{_PREFIX}model_warmup_latency",
            "Distribution of wall time (in microseconds) for warming up the model.",
            ("model_path", "status"),
            {},
        )

    def observe(self, model: str, api: str, entrypoint: str, code: Code, seconds: float) -> None:
        """Counts a request, and records its latency if it succeeded.

        Args:
            model: the model's name in the request.
            api: for example "predict".
            entrypoint: "REST" or "GRPC".
            code: its status.
            seconds: its duration.
        """
        with self._lock:
            key = (model, code.name)
            if key not in self._counts and len(self._counts) >= _MAX_SERIES:
                key = (_OTHERS, code.name)
            self._counts[key] = self._counts.get(key, 0) + 1
            if code == Code.OK:
                _add(self._requests, (model, api, entrypoint), seconds)

    def observe_run(self, model: str, api: str, seconds: float) -> None:
        """Records the time that TensorFlow took for a request."""
        with self._lock:
            _add(self._runs, (model, api, "TF1"), seconds)

    def observe_warm_up(self, path: str, code: Code, seconds: float) -> None:
        """Records the duration and status of the warm-up of the version at ``path``."""
        with self._lock:
            _add(self._warm_ups, (path, code.name), seconds)

    @contextlib.contextmanager
    def time_warm_up(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Returns a context that records the duration of the warm-up of the version at ``path``."""
        code, start = Code.OK, time.perf_counter()
        try:
            yield
        except ServingError as error:
            code = error.code
            raise
        finally:
            self.observe_warm_up(os.fspath(path), code, time.perf_counter() - start)

    def collect(self) -> Iterator[Metric]:
        """Returns the current metrics, for prometheus_client."""
        with self._lock:
            yield from list(self._collect())

    def _collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(
            _REQUEST_COUNT, "The total number of requests.", labels=("model_name", "status")
        )
        for labels, count in self._counts.items():
            by_label = dict(zip(("model_name", "status"), labels, strict=True))
            counter.add_sample(_REQUEST_COUNT, by_label, count)
        yield counter
        for family in (self._requests, self._runs, self._warm_ups):
            metric = HistogramMetricFamily(family.name, family.text, labels=family.labels)
            for labels, histogram in family.series.items():
                metric.add_metric(labels, histogram.cumulative(), histogram.sum)
            yield metric

    def page(self) -> bytes:
        """Returns the current metrics in Prometheus' text format, UTF-8."""
        registry = CollectorRegistry()
        registry.register(self)
        # prometheus_client appends _total to the names of counters; Serving does not.
        return re.sub(
            rf"^(# \w+ {_REQUEST_COUNT})_total ".encode(),
            rb"\1 ",
            generate_latest(registry),
            flags=re.MULTILINE,
        )

    def timed(self, servable: ServableLike) -> "TimedServable":
        """Wraps a servable so that the durations of its runs are recorded.

        It should wrap the batching: time in the queue is part of a run.
        """
        return TimedServable(self, servable)


class TimedServable:
    """A servable that records the durations of its runs, except failed ones, as Serving does.

    Attributes:
        signatures: name to SignatureDef.
        model: the name of the servable's model.
    """

    def __init__(self, metrics: Metrics, servable: ServableLike) -> None:
        self.signatures = servable.signatures
        self.model = servable.model
        self._metrics = metrics
        self._servable = servable

    def run(self, signature: str, inputs: Inputs, **options: Any) -> dict[str, np.ndarray]:
        """Runs a signature; see ``Servable.run``."""
        start = time.perf_counter()
        outputs = self._servable.run(signature, inputs, **options)
        self._observe(signature, start)
        return outputs

    def submit(self, signature: str, inputs: Inputs, **options: Any) -> PendingRequest | None:
        """Queues a request if the servable has queues, otherwise returns None."""
        submit = getattr(self._servable, "submit", None)
        start = time.perf_counter()
        pending: PendingRequest | None = (
            None if submit is None else submit(signature, inputs, **options)
        )
        if pending is not None:

            def observe(future: Future[dict[str, np.ndarray]]) -> None:
                if future.exception() is None:
                    self._observe(signature, start)

            pending.future.add_done_callback(observe)
        return pending

    def run_together(
        self, signatures: Sequence[str], inputs: Inputs, **options: Any
    ) -> list[dict[str, np.ndarray]]:
        """Runs several signatures; see ``Servable.run_together``."""
        start = time.perf_counter()
        outputs = self._servable.run_together(signatures, inputs, **options)
        self._metrics.observe_run(self.model, "MultiInference", time.perf_counter() - start)
        return outputs

    def _observe(self, signature: str, start: float) -> None:
        method = self.signatures[signature or DEFAULT_SIGNATURE].method_name
        api = _APIS.get(method.rpartition("/")[2], "Predict")
        self._metrics.observe_run(self.model, api, time.perf_counter() - start)


def read_path(path: str | os.PathLike[str]) -> str | None:
    """Reads the path of the metrics from a file as Serving's ``--monitoring_config_file`` takes it.

    The format is MonitoringConfig in protobuf text format: ``prometheus_config { enable: true }``.

    Returns:
        The path of the URL; None if Prometheus is not enabled.

    Raises:
        ServingError: NOT_FOUND if the file does not exist; INVALID_ARGUMENT if it does not parse
            (with line, column and field), or if the path does not start with "/".
    """
    config = text_format.read(path, text_format.message("MonitoringConfig")).prometheus_config
    if not config.enable:
        return None
    url_path = config.path or DEFAULT_PATH
    if not url_path.startswith("/"):
        raise invalid(f"prometheus_config.path must start with '/'; was '{url_path}' (in {path})")
    return str(url_path)


def route(metrics: Metrics, path: str = DEFAULT_PATH) -> Route:
    """Returns a Starlette route that answers GET with the metrics."""

    async def endpoint(_: Request) -> Response:
        return PlainTextResponse(metrics.page())

    return Route(path, endpoint, methods=["GET"])


def _family(name: str, what: str, *labels: str) -> _Family:
    return _Family(
        f"{_PREFIX}{name}_latency",
        f"Distribution of wall time (in microseconds) for {what}.",
        ("model_name", *labels),
        {},
    )


def _add(family: _Family, labels: tuple[str, ...], seconds: float) -> None:
    if labels not in family.series and len(family.series) >= _MAX_SERIES:
        labels = (_OTHERS, *labels[1:])
    family.series.setdefault(labels, _Histogram()).add(max(0.0, seconds * 1e6))

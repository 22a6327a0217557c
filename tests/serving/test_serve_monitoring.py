"""The page that Prometheus reads: names, buckets, sums, and labels of any text."""

import math
import random
import threading

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from bertfam_serve.monitoring import DEFAULT_PATH, Metrics, read_path, route
from bertfam_tf.export.runtime import Code, ServingError, load

LATENCIES = ["request_latency", "runtime_latency", "model_warmup_latency"]


def samples(metrics):
    """(name without prefix, sorted labels) to value, as Prometheus would read them."""
    found = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            # The parser, not the page, has counters end in _total.
            name = sample.name.removeprefix(":tensorflow:serving:").removesuffix("_total")
            found[name, *sorted(sample.labels.items())] = sample.value
    return found


def labelled(name, **labels):
    return (name, *sorted(labels.items()))


def test_requests_are_counted_by_model_and_status():
    metrics = Metrics()
    for code in (Code.OK, Code.OK, Code.INVALID_ARGUMENT):
        metrics.observe("a", "predict", "REST", code, 0.001)
    metrics.observe("b", "Predict", "GRPC", Code.NOT_FOUND, 0.001)
    found = samples(metrics)
    assert found[labelled("request_count", model_name="a", status="OK")] == 2
    assert found[labelled("request_count", model_name="a", status="INVALID_ARGUMENT")] == 1
    assert found[labelled("request_count", model_name="b", status="NOT_FOUND")] == 1
    # As in Serving: latencies are those of answers.
    latency = labelled("request_latency_count", model_name="a", API="predict", entrypoint="REST")
    assert found[latency] == 2
    assert not [key for key in found if "latency" in key[0] and ("model_name", "b") in key]


def test_types_and_names_are_servings():
    metrics = Metrics()
    metrics.observe("a", "predict", "REST", Code.OK, 1)
    lines = metrics.page().decode().splitlines()
    assert "# TYPE :tensorflow:serving:request_count counter" in lines
    assert ':tensorflow:serving:request_count{model_name="a",status="OK"} 1.0' in lines
    for name in LATENCIES:
        assert f"# TYPE :tensorflow:serving:{name} histogram" in lines
    assert not [line for line in lines if "_total" in line or "_created" in line]


def test_buckets_against_a_count_by_hand():
    metrics = Metrics()
    generator = random.Random(1)
    micros = [10.0, 18.0] + [10 ** generator.uniform(-1, 11) for _ in range(498)]
    for value in micros:
        metrics.observe_run("m", "Predict", value / 1e6)
    limits = [10 * 1.8**i for i in range(33)]
    buckets = {
        float(dict(labels)["le"]): value
        for (name, *labels), value in samples(metrics).items()
        if name == "runtime_latency_bucket"
    }
    assert len(buckets) == 34
    for shown, limit in zip(sorted(buckets), [*limits, math.inf], strict=True):
        assert shown == float(f"{limit:.6g}")
        assert buckets[shown] == sum(value < limit for value in micros)
    labels = {"model_name": "m", "API": "Predict", "runtime": "TF1"}
    found = samples(metrics)
    assert found[labelled("runtime_latency_count", **labels)] == 500
    assert found[labelled("runtime_latency_sum", **labels)] == pytest.approx(sum(micros))


@pytest.mark.parametrize("name", ['quote"d', "back\\slash", "new\nline", "日本🙂", "", "{a=}"])
def test_labels_of_any_text(name):
    metrics = Metrics()
    metrics.observe(name, "predict", "REST", Code.OK, 0.1)
    assert samples(metrics)[labelled("request_count", model_name=name, status="OK")] == 1


@pytest.mark.full
def test_names_that_clients_make_up_do_not_fill_the_memory():
    metrics = Metrics()
    for i in range(5000):
        metrics.observe(f"model-{i}", "predict", "REST", Code.NOT_FOUND, 0.1)
        metrics.observe(f"model-{i}", "predict", "REST", Code.OK, 0.1)
    found = samples(metrics)
    assert sum(v for key, v in found.items() if key[0] == "request_count") == 10_000
    assert len([key for key in found if key[0] == "request_count"]) <= 1002
    assert sum(v for key, v in found.items() if key[0] == "request_latency_count") == 5000
    assert len([key for key in found if key[0] == "request_latency_count"]) <= 1001


def test_threads_lose_nothing():
    metrics = Metrics()

    def work():
        for _ in range(500):
            metrics.observe("m", "predict", "REST", Code.OK, 1e-5)
            metrics.observe_run("m", "Predict", 1e-5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        metrics.page()
    found = samples(metrics)
    assert found[labelled("request_count", model_name="m", status="OK")] == 4000
    labels = {"model_name": "m", "API": "Predict", "runtime": "TF1"}
    assert found[labelled("runtime_latency_count", **labels)] == 4000


def test_warm_up_is_timed_whatever_its_end():
    metrics = Metrics()
    with metrics.time_warm_up("/models/m/1"):
        pass
    with pytest.raises(ServingError), metrics.time_warm_up("/models/m/2"):
        raise ServingError(Code.DATA_LOSS, "cut")
    found = samples(metrics)
    for path, status in (("/models/m/1", "OK"), ("/models/m/2", "DATA_LOSS")):
        key = labelled("model_warmup_latency_count", model_path=path, status=status)
        assert found[key] == 1


def test_runs_of_a_servable(base_path):
    metrics = Metrics()
    servable = load(base_path / "00000123")
    servable.model = "zoo"
    timed = metrics.timed(servable)
    assert timed.model == "zoo"
    assert timed.signatures is servable.signatures
    proto = {"text": servable_text(b"one two")}
    assert timed.run("tokens", proto, timeout_ms=60_000)["count"].tolist() == [2]
    with pytest.raises(ServingError):
        timed.run("none", {})
    timed.signatures["pair"].method_name = "tensorflow/serving/regress"
    timed.run("pair", {"a": np.float32(1), "b": np.int32(1)})
    labels = {"model_name": "zoo", "API": "Regress", "runtime": "TF1"}
    assert samples(metrics)[labelled("runtime_latency_count", **labels)] == 1
    labels["API"] = "Predict"
    assert samples(metrics)[labelled("runtime_latency_count", **labels)] == 1


def servable_text(text):
    import tensorflow as tf

    return tf.make_tensor_proto([text])


# ------------------------------------------------------------------------------ path and file


def test_the_page_on_its_path():
    metrics = Metrics()
    metrics.observe("m", "predict", "REST", Code.OK, 0.1)
    client = TestClient(Starlette(routes=[route(metrics, "/metrics")]))
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert response.content == metrics.page()
    assert client.post("/metrics").status_code == 405
    assert client.get(DEFAULT_PATH).status_code == 404


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('prometheus_config: {\n enable: true,\n path: "/m"\n}', "/m"),
        ("prometheus_config { enable: true }", DEFAULT_PATH),
        ('prometheus_config { enable: false path: "/m" }', None),
        ('prometheus_config { path: "/m" }', None),
        ("# nothing", None),
    ],
)
def test_a_monitoring_file(tmp_path, text, expected):
    (tmp_path / "monitoring.config").write_text(text)
    assert read_path(tmp_path / "monitoring.config") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prometheus_config { enabled: true }", '1:21 : Message type .* no field named "enabled"'),
        ("\nprometheus_config { enable: yes }", "2:29 : .*enable: yes"),
        ('prometheus_config { enable: true path: "m" }', "path must start with '/'; was 'm'"),
        ("prometheus_config {", "1:19"),
    ],
)
def test_mistakes_in_a_monitoring_file(tmp_path, text, message):
    (tmp_path / "monitoring.config").write_text(text)
    with pytest.raises(ServingError, match=message) as caught:
        read_path(tmp_path / "monitoring.config")
    assert caught.value.code == Code.INVALID_ARGUMENT

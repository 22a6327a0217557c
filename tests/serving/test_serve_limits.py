"""Limits of one request, large requests in parts, and how much of a request errors quote."""

import argparse
import gc
import gzip
import json
import shutil
import threading
import time
import weakref

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bertfam_serve import memory_trimmer, running_server
from bertfam_serve.__main__ import add_flags
from bertfam_serve.chunks import run_in_chunks
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime import Code, ServingError, capi
from tests.serving.half_plus import (
    Stubs,
    classify_request,
    example,
    predict_request,
    regress_request,
)

PATH = "/v1/models/m:predict"
ROWS = "this server takes at most 8 in one request. Send several requests, or start the server "
ROWS += "with a higher --max-rows."


@pytest.fixture(scope="module")
def small(base_path, half_path):
    """A server with low limits; REST and gRPC."""
    options = {"max_rows": 8, "max_text_bytes": 100, "max_json_values": 200}
    with (
        running_server(base_path, model_name="m", **options) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        Stubs(server.grpc_target) as stubs,
    ):
        client.stubs = stubs
        yield client


def refused(stubs, request, api="Predict"):
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stubs.prediction, api)(request, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details()


# ------------------------------------------------------------------------------- rows, text


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ({"instances": [1.0] * 9}, "9 rows in the request"),
        ({"inputs": [1.0] * 20}, '20 rows in input "x"'),
        ({"signature_name": "tokens", "instances": [[""] * 5] * 2}, '10 rows in input "text"'),
        ({"signature_name": "tokens", "inputs": [[""] * 5] * 2}, '10 rows in input "text"'),
        ({"instances": [[]] * 80 + [1]}, "81 rows in the request"),  # before anything else
    ],
)
def test_rows_over_rest(small, body, rows):
    response = small.post(PATH, json=body)
    assert response.json() == {"error": f"{rows}: {ROWS}"}
    assert response.status_code == 400


def test_as_many_rows_as_allowed(small):
    answer = small.post(PATH, json={"instances": [2.0] * 8})
    assert answer.json() == {"predictions": [3.0] * 8}
    answer = small.post(PATH, json={"inputs": [[2.0] * 20] * 8})  # numbers count by rows
    assert answer.json() == {"outputs": [[3.0] * 20] * 8}


def strings(*shape, values=(b"",)):
    proto = tensor_pb2.TensorProto(dtype=tf.string.as_datatype_enum, string_val=values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


@pytest.mark.parametrize("proto", [strings(9), strings(3, 3), strings(1, values=[b""] * 9)])
def test_rows_over_grpc(small, proto):
    request = predict_request(model="m", signature="tokens")
    del request.inputs["x"]
    request.inputs["text"].CopyFrom(proto)
    assert refused(small.stubs, request) == f'9 rows in input "text": {ROWS}'


def test_text_over_both(small):
    error = "101 bytes of text: this server takes at most 100 in one request. Send several "
    error += "requests, or start the server with a higher --max-text-bytes."
    body = {"signature_name": "tokens", "instances": ["a" * 50, "é" * 25 + "a"]}
    response = small.post(PATH, json=body)
    assert (response.status_code, response.json()) == (400, {"error": error})
    body["instances"][1] = "é" * 25
    assert small.post(PATH, json=body).json()["predictions"][0]["count"] == 1
    request = predict_request(model="m", signature="tokens")
    del request.inputs["x"]
    request.inputs["text"].CopyFrom(strings(1, values=[b"a" * 101]))
    assert refused(small.stubs, request) == error


def test_text_by_default():
    """Tokenizing as much text as is allowed takes less than two seconds (tools/bench/length.py)."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    limits = RequestLimits()
    assert parser.parse_args(["models"]).max_text_bytes == limits.max_text_bytes == 1 << 19
    texts = np.array([b"a" * (1 << 18)] * 2 + [b""], object)
    limits.check_inputs({"text": texts})
    texts[2] = b"a"
    with pytest.raises(ServingError, match="524289 bytes of text: this server takes at most"):
        limits.check_inputs({"text": texts})


def test_text_that_fills_a_tensor(small):
    """A message's last string fills the rest of its shape, each copy with its own memory."""
    request = predict_request(model="m", signature="tokens")
    del request.inputs["x"]
    request.inputs["text"].CopyFrom(strings(8, values=[b"a" * 20]))
    assert refused(small.stubs, request).startswith("160 bytes of text: ")


def test_examples(half_path):
    options = {"max_rows": 3, "max_text_bytes": 100}
    with (
        running_server(half_path, model_name="m", **options) as server,
        Stubs(server.grpc_target) as stubs,
    ):
        for api, made in (("Classify", classify_request), ("Regress", regress_request)):
            assert getattr(stubs.prediction, api)(made(1, 2, 3), timeout=60)
            assert refused(stubs, made(1, 2, 3, 4), api).startswith("4 rows in the request: ")
        # A context is put in front of each example.
        request = regress_request()
        given = request.input.example_list_with_context
        given.context.CopyFrom(example(x=[1.0], pad=[b"a" * 40]))
        given.examples.extend([example()] * 2)
        assert "bytes of text: this server takes at most 100" in refused(stubs, request, "Regress")
        url = f"{server.url}/v1/models/m:regress"
        body = {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}] * 4}
        assert "4 rows" in httpx.post(url, json=body, timeout=60).json()["error"]


def test_messages_have_the_limit_of_bodies(half_path):
    with (
        running_server(half_path, model_name="m", max_body_bytes=1000) as server,
        Stubs(server.grpc_target) as stubs,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            stubs.prediction.Predict(predict_request(*range(300)), timeout=60)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in caught.value.details()


# ---------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "[1,2]", '{"a":[1,2],"b":""}', r'["\\",","]', r'["\"," ,"a\\\",[{",1]', '"[,{"'),
        '["' + "\\" * 8 + '","' + "\\" * 6 + '\\""]',
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_values_are_counted_as_they_are_parsed(text, chunk, monkeypatch):
    monkeypatch.setattr("bertfam_serve.request_limits._CHUNK", chunk)

    def separators(value):
        if isinstance(value, dict):
            value = list(value.values())
        elif not isinstance(value, list):
            return 0
        return 1 + max(0, len(value) - 1) + sum(map(separators, value))

    count = 1 + separators(json.loads(text))
    body = text.encode() + b" " * 100  # only longer bodies than the limit are looked at
    RequestLimits(max_json_values=count).check_json(body)
    if count > 1:
        with pytest.raises(ServingError, match=f"^INVALID_ARGUMENT: {count} JSON values: .* takes"):
            RequestLimits(max_json_values=count - 1).check_json(body)


@pytest.mark.parametrize("item", [b"1,", b'"",', b"[],", b'{"a":1},'])
def test_many_values_are_refused_before_they_are_parsed(small, item):
    for body in (b'{"instances": [' + item * 1000, b'{"inputs":' + b"[" * 201 + item * 9):
        response = small.post(PATH, content=body)
        assert response.status_code == 400
        assert "takes at most 200" in response.json()["error"]
        assert response.json()["error"].endswith("--max-json-values.")


def test_a_long_text_is_one_value(small):
    body = {"signature_name": "tokens", "instances": [",[{" * 100]}
    assert small.post(PATH, json=body).json()["error"].startswith("300 bytes of text: ")


@pytest.mark.extended
def test_a_large_body_lets_others_through(base_path):
    """It is unpacked and counted on a thread of its own, so that other requests go on."""
    body = gzip.compress(b'{"instances": [' + b"1," * 30_000_000, 1)
    with running_server(base_path, model_name="m", max_body_bytes=64 << 20) as server:
        answers = []

        def send():
            answers.append(
                httpx.post(f"{server.url}{PATH}", content=body, headers=gzipped, timeout=60)
            )

        gzipped = {"content-encoding": "gzip"}
        took = []
        with httpx.Client(base_url=server.url, timeout=60) as client:
            client.get("/v1/models/m")
            sending = threading.Thread(target=send)
            sending.start()
            while sending.is_alive():
                start = time.perf_counter()
                client.get("/v1/models/m")
                took.append(time.perf_counter() - start)
        sending.join()
    (answer,) = answers
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("30000003 JSON values: ")
    assert max(took) < 1.0, max(took)


# -------------------------------------------------------------------------------- pieces


def test_pieces_and_their_answers():
    seen = []

    def run(inputs, timeout_ms):
        seen.append(len(inputs["x"]))
        assert timeout_ms == 0
        return [{"y": inputs["x"] + 1}, {"z": inputs["t"]}]

    x = np.arange(20).reshape(10, 2)
    t = np.array([b"a"] * 10, object)
    y, z = run_in_chunks(run, {"x": x, "t": t}, rows_per_run=4)
    assert seen == [4, 4, 2]
    np.testing.assert_array_equal(y["y"], x + 1)
    assert z["z"].tolist() == t.tolist()
    seen.clear()
    choices = np.full((10, 2), b"a", object)  # two texts each
    run_in_chunks(run, {"x": x, "t": choices}, rows_per_run=4)
    assert seen == [2, 2, 2, 2, 2]
    seen.clear()
    run_in_chunks(run, {"x": x[:4], "t": t[:4]}, rows_per_run=4)
    assert seen == [4]
    seen.clear()
    t[1], t[2] = b"a" * 15_000, b"a" * 100_000  # long ones make shorter pieces
    y, z = run_in_chunks(run, {"x": x, "t": t}, rows_per_run=4)
    assert seen == [2, 1, 4, 3]
    assert z["z"].tolist() == t.tolist()


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.float32(1)},
        {"x": np.zeros(10), "by": np.float32(1)},
        {"x": np.zeros(10), "y": np.zeros(9)},
        {"x": strings(-1)},
        {"x": strings(0)},
        {"x": strings(0, 0)},
        {},
    ],
)
def test_what_has_no_rows_runs_whole(inputs):
    seen = []
    run_in_chunks(lambda given, _: [seen.append(given)], inputs, rows_per_run=4)
    assert seen == [inputs]


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x.sum(),
        lambda x: x[:1],
        lambda x: np.concatenate([x, x]),
        lambda x: np.zeros((len(x), len(x))),
    ],
)
def test_outputs_that_are_not_one_for_each_row_come_from_a_whole_run(answer):
    x = np.arange(10)
    (found,) = run_in_chunks(lambda given, _: [{"y": answer(given["x"])}], {"x": x}, rows_per_run=4)
    np.testing.assert_array_equal(found["y"], answer(x))


def test_no_piece_begins_after_the_deadline():
    seen = []

    def run(inputs, timeout_ms):
        seen.append(timeout_ms)
        time.sleep(0.05)
        return [{"y": inputs["x"]}]

    with pytest.raises(ServingError) as caught:
        run_in_chunks(run, {"x": np.zeros(1000)}, rows_per_run=1, timeout_ms=200)
    assert caught.value.code == Code.DEADLINE_EXCEEDED
    assert 1 < len(seen) <= 4
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("ours", [True, False])
def test_exports_of_ours_run_in_pieces(base_path, tmp_path, monkeypatch, ours):
    shutil.copytree(base_path / "00000123", tmp_path / "1")
    if ours:
        (tmp_path / "1" / "assets.extra").mkdir(exist_ok=True)
        (tmp_path / "1" / "assets.extra" / "bertfam.json").write_text("{}")
    sizes = []
    run = capi.Session.run

    def watched(self, feeds, *arguments):
        sizes.append([dim.size for dim in feeds[0].value.tensor_shape.dim])
        return run(self, feeds, *arguments)

    with running_server(tmp_path, model_name="m", max_rows_per_run=4) as server:
        monkeypatch.setattr(capi.Session, "run", watched)
        url = server.url + PATH
        body = {"signature_name": "tokens", "instances": ["a b"] * 9 + ["a"]}
        rows = httpx.post(url, json=body, timeout=60).json()["predictions"]
        assert [row["count"] for row in rows] == [2] * 9 + [1]
        assert sizes == ([[4], [4], [2]] if ours else [[10]])
        # Over gRPC too, where tensors come as messages.
        sizes.clear()
        with Stubs(server.grpc_target) as stubs:
            y = stubs.prediction.Predict(predict_request(*range(6), model="m")).outputs["y"]
        assert list(y.float_val) == [2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
        assert sizes == ([[4], [2]] if ours else [[6]])
        body = {"signature_name": "scalar", "inputs": [1.0] * 10}
        assert httpx.post(url, json=body, timeout=60).json() == {"outputs": 10.0}


def test_a_request_that_timed_out_is_let_go(base_path, monkeypatch):
    """At once, not when the garbage is collected."""
    held = []
    check = RequestLimits.check_inputs

    def watched(self, inputs):
        held.extend(map(weakref.ref, inputs.values()))
        return check(self, inputs)

    monkeypatch.setattr(RequestLimits, "check_inputs", watched)
    gc.disable()
    try:
        with running_server(base_path, model_name="m", timeout_s=0.2) as server:
            body = {"signature_name": "endless", "instances": [1] * 4}
            assert httpx.post(server.url + PATH, json=body, timeout=60).status_code == 504
            deadline = time.monotonic() + 10
            while any(reference() is not None for reference in held):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        gc.enable()
    assert held


# -------------------------------------------------------------------------------- errors

LONG = "a" * 60_000


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [LONG]},
        {"instances": [{LONG: 1}]},
        {"instances": LONG},
        {"instances": [[LONG], LONG]},
        {"instances": [{"b64": LONG + "!"}]},
        {"signature_name": LONG, "instances": [1]},
        {"signature_name": "\x00" * 60_000, "instances": [1]},
        {"signature_name": "pair", "instances": [{"a": 1, "b": 1, LONG: 2}]},
        {"instances": [int("9" * 4000)]},
        LONG,
    ],
)
def test_errors_quote_little_of_a_request(client, body):
    response = client.post("/v1/models/zoo:predict", json=body)
    assert response.status_code == 400
    assert len(response.json()["error"]) <= 1100
    assert len(response.content) <= 8000  # as escapes


@pytest.mark.parametrize("path", [LONG[:50_000], f"models/{LONG[:50_000]}:predict"])
def test_errors_quote_little_of_a_path(client, path):
    response = client.post(f"/v1/{path}", json={"instances": [1]})
    assert response.status_code in (400, 404)
    assert len(response.json()["error"]) <= 1100


# ------------------------------------------------------------------------------- reloads


def test_reloading_has_to_be_allowed(half_path):
    from tensorflow_serving.apis import model_management_pb2

    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()  # of no model: all would be unloaded
    with (
        running_server(half_path, model_name="m") as server,
        Stubs(server.grpc_target) as stubs,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            stubs.model.HandleReloadConfigRequest(request, timeout=60)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "--allow-reload-config" in caught.value.details()
        assert stubs.prediction.Predict(predict_request(2)).outputs["y"].float_val == [3.0]


def test_free_memory_is_given_back_when_there_is_much(monkeypatch):
    sizes, trimmed = iter([700, 750, 3000, 800, 2000, 1990, 1985]), []
    monkeypatch.setattr(memory_trimmer, "_resident_kib", lambda: next(sizes) << 10)
    monkeypatch.setattr(memory_trimmer, "_malloc_trim", lambda: trimmed.append(True))
    watched = memory_trimmer.MemoryTrimmer()
    watched.trim()
    assert not trimmed  # 50 MiB are not worth it
    watched.trim()
    assert len(trimmed) == 1
    watched.trim()  # what is in use stays, and is not looked for at every turn
    watched.trim()
    assert len(trimmed) == 2

"""Routes, verbs, status and metadata, and the limits of a request."""

import gzip
import json
import socket

import anyio
import httpx
import pytest

from bertfam_serve import Models, Options, json_tensor, rest_api, running_server

AVAILABLE = {
    "model_version_status": [
        {
            "version": "123",
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]
}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/zoo:predict",
        "/V1/MODELS/zoo:predict",
        "/v1/models/zoo/versions/123:predict",
        "/v1/models/zoo/versions/0123:predict",
        "/v1/models/z%6fo:predict",
    ],
)
def test_predict_paths(client, path):
    assert client.post(path, content='{"instances": [2]}').json() == {"predictions": [3.0]}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/zoo",
        "/V1/models/zoo",
        "/v1/models/zoo/versions/123",
        "/v1/models/zoo/labels/any",
        "/v1/models/zoo/METADATA",
    ],
)
def test_status_paths(client, path):
    response = client.get(path)
    assert response.status_code == 200
    assert response.json() == AVAILABLE
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path", ["/v1/models/zoo/metadata", "/v1/models/zoo/versions/123/metadata"]
)
def test_metadata(client, path):
    answer = client.get(path).json()
    assert answer["model_spec"] == {"name": "zoo", "signature_name": "", "version": "123"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert {"__saved_model_init_op", "serving_default", "tokens"} <= set(signatures)
    assert signatures["serving_default"] == {
        "inputs": {
            "x": {
                "dtype": "DT_FLOAT",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
                "name": "serving_default_x:0",
            }
        },
        "outputs": {
            "y": {
                "dtype": "DT_FLOAT",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
                "name": signatures["serving_default"]["outputs"]["y"]["name"],
            }
        },
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


BODY = '{"instances": [1]}'
BIG = 2**64 - 1
HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        *(
            (method, path, 400, f"Malformed request: {method} {path}")
            for method, path in [
                ("GET", "/v1/"),
                ("POST", "/v1/foo"),
                ("GET", "/v1/models/debug/zoo"),
                ("POST", "/v1/models"),
                ("POST", "/v1/models/zoo"),
                ("GET", "/v1/models/zoo:predict"),
                ("POST", "/v1/models/zoo:explain"),
                ("POST", "/v1/models/zoo:PREDICT"),
                ("POST", "/v1/models/zoo:predict?verbose=1"),
                ("GET", "/v1/models/zoo/version/50:predict"),
                ("POST", "/v1/models/zoo/version/50:regress"),
                ("POST", "/v1/models/zoo/versions/HELLO:regress"),
                ("POST", "/v1/models/zoo/metadata"),
                ("POST", "/v1/models/zoo/label/some:regress"),
                ("POST", "/v1/models/zoo/versions/50/labels/some:regress"),
                ("POST", "/v1/models/zoo:predict/"),
                ("PUT", "/v1/models/zoo:predict"),
                ("DELETE", "/v1/models/zoo"),
                ("PATCH", "/v1/models/zoo"),
            ]
        ),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        # A query is part of the path, and so, here, of the name.
        ("GET", "/v1/models/zoo?a=1", 404, "Could not find any versions of model zoo?a=1"),
        ("GET", "/v1/models/metadata/metadata", 404,
         "Servable not found for request: Latest(metadata)"),
        ("POST", f"/v1/models/zoo/versions/{BIG}:predict", 400,
         f"Failed to convert version: {BIG} to numeric."),
        ("GET", f"/v1/models/zoo/versions/{HUGE}", 400,
         f"Failed to convert version: {HUGE}"[:1024] + "...TRUNCATED"),
        ("POST", "/v1/models/foo:predict", 404, "Servable not found for request: Latest(foo)"),
        ("POST", "/v1/models/f%C3%A9%2Fo:predict", 404,
         "Servable not found for request: Latest(fé/o)"),
        ("POST", "/v1/models/zoo/versions/50:predict", 404,
         "Servable not found for request: Specific(zoo, 50)"),
        ("POST", "/v1/models/zoo/labels/new%20one:predict", 400,
         "Unrecognized servable version label: new one"),
        ("GET", "/v1/models/foo", 404, "Could not find any versions of model foo"),
        ("GET", "/v1/models/foo/versions/9", 404, "Could not find version 9 of model foo"),
        ("GET", "/v1/models/zoo/versions/9", 404, "Could not find version 9 of model zoo"),
        ("GET", "/v1/models/foo/metadata", 404, "Servable not found for request: Latest(foo)"),
        ("GET", "/v1/models/zoo/versions/9/metadata", 404,
         "Servable not found for request: Specific(zoo, 9)"),
        ("OPTIONS", "/v1/models/zoo", 400, "Origin header is missing in CORS preflight"),
    ],
)  # fmt: skip
def test_refused_paths(client, method, path, status, error):
    response = client.request(method, path, content=BODY if method == "POST" else None)
    assert response.json() == {"error": error}
    assert response.status_code == status


def test_malformed_json_is_reported_before_an_unknown_model(client):
    response = client.post("/v1/models/foo:predict", content="{")
    assert response.status_code == 400
    assert "not JSON" in response.json()["error"]


def test_preflight(client):
    response = client.options("/v1/models/zoo", headers={"Origin": "http://example.com"})
    assert (response.status_code, response.content) == (200, b"")


def test_answers_are_for_one_origin_unless_asked(client, base_path):
    assert "access-control-allow-origin" not in client.get("/v1/models/zoo").headers
    with running_server(base_path, cors=True) as server:
        for path in ("model", "absent"):
            headers = httpx.get(f"{server.url}/v1/models/{path}", timeout=60).headers
            assert headers["access-control-allow-origin"] == "*"
            assert headers["access-control-allow-methods"] == "POST, GET"
            assert headers["access-control-allow-headers"].startswith("Content-Type")


@pytest.mark.parametrize("path", ["/", "/v2/models/zoo", "/healthz", "/v1"])
def test_paths_outside_the_api(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")


def gzipped(content):
    return {"content": gzip.compress(content), "headers": {"Content-Encoding": "gzip"}}


def test_gzipped_request(client):
    response = client.post("/v1/models/zoo:predict", **gzipped(b'{"instances": [2]}'))
    parts = gzip.compress(b'{"instances"') + gzip.compress(b": [2]}")
    headers = {"Content-Encoding": "GZIP"}
    same = client.post("/v1/models/zoo:predict", content=parts, headers=headers)
    assert same.content == response.content
    assert response.json() == {"predictions": [3.0]}
    assert "content-encoding" not in response.headers


# Ids of tests must not contain the time: pytest's workers would collect different ones.
CUT = gzip.compress(b'{"instances": [2]}', mtime=0)[:-9]


@pytest.mark.parametrize("body", [b"plain", b"", CUT])
def test_damaged_gzip(client, body):
    headers = {"Content-Encoding": "gzip"}
    response = client.post("/v1/models/zoo:predict", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json() == {"error": "Failed to uncompress the gzipped body"}


@pytest.fixture(scope="module")
def strict(base_path):
    """A client of a server that allows little."""
    with (
        running_server(base_path, timeout_s=0.2, max_body_bytes=1000) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def padded(size):
    body = json.dumps({"instances": [2], "pad": ""}).encode()
    return body.replace(b'""', b'"' + b"x" * (size - len(body)) + b'"')


def test_body_limit(strict):
    path = "/v1/models/model:predict"
    assert strict.post(path, content=padded(1000)).json() == {"predictions": [3.0]}
    assert strict.post(path, **gzipped(padded(1000))).json() == {"predictions": [3.0]}
    too_large = {
        "error": "Request body is larger than 1000 bytes, before or after gunzipping. Send several "
        "requests, or start the server with a higher --max-body-bytes."
    }
    for request in ({"content": padded(1001)}, gzipped(padded(1001)), {"content": padded(1 << 20)}):
        response = strict.post(path, **request)
        assert (response.status_code, response.json()) == (413, too_large)


def test_deadline(strict):
    body = {"signature_name": "endless", "instances": [1]}
    response = strict.post("/v1/models/model:predict", json=body)
    assert response.status_code == 504
    # TensorFlow's own words: the run itself was cancelled, not only the wait for it.
    assert response.json() == {"error": "Timed out waiting for notification"}
    assert strict.post("/v1/models/model:predict", content=BODY).status_code == 200


def test_a_client_that_leaves_is_no_error(caplog):
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    path = "/v1/models/zoo:predict"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": []}
    anyio.run(rest_api.app(Models(), Options()), scope, receive, send)
    assert sent[0]["status"] == 499
    assert not caplog.text


def test_surprises_are_not_shown_to_the_client(base_path, monkeypatch, caplog):
    def fail(*_):
        raise KeyError("a detail of ours")

    with running_server(base_path) as server:
        monkeypatch.setattr(json_tensor, "encode_predict", fail)
        response = httpx.post(f"{server.url}/v1/models/model:predict", content=BODY, timeout=60)
    assert response.status_code == 500
    assert response.json() == {"error": "Internal error"}
    assert "a detail of ours" in caplog.text


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_all_addresses_include_those_of_ipv4(half_path):
    with running_server(half_path, host="::", grpc_port=None) as server:
        for host in ("[::1]", "127.0.0.1"):
            assert httpx.get(f"http://{host}:{server.port}/v1/models/model").status_code == 200


@pytest.mark.parametrize("port", [-1, 65536, 70000])
def test_ports_out_of_range(port):
    for name in ("rest_port", "grpc_port"):
        with pytest.raises(ValueError, match=f"{name} must be from 0 to 65535, got {port}"):
            Options(**{name: port})

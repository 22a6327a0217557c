"""The example clients against servers over an export."""

import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving.clients import grpc_client, rest_client
from serving.mobile import run

CLIENTS = Path(rest_client.__file__).parent
TEXTS = ["a fine film", "", "dull \U0001f642", "word " * 600]


@pytest.fixture(scope="module")
def expected(servable):
    return servable.run("", {"text": np.array([text.encode() for text in TEXTS], object)})


# REST -------------------------------------------------------------------------------------------


@pytest.fixture
def url(export_server):
    return f"{export_server.url}/v1/models/m"


def test_rest(url, expected):
    client = rest_client.Client(url)
    assert client.states() == {1: "AVAILABLE"}
    answers = client.predict(TEXTS)
    assert [answer["label"].encode() for answer in answers] == expected["label"].tolist()
    np.testing.assert_allclose([a["scores"] for a in answers], expected["scores"], atol=1e-6)
    assert rest_client.Client(f"{url}/versions/1/").predict(TEXTS) == answers


def test_rest_says_why(url, export_server):
    with pytest.raises(RuntimeError, match='400: Serving signature name: "x" not found'):
        rest_client.Client(url).predict(TEXTS, "x")
    with pytest.raises(RuntimeError, match="404: Could not find any versions of model y"):
        rest_client.Client(f"{export_server.url}/v1/models/y").states()


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses the first two requests, answers the third."""

    bodies: list[dict] = []

    def do_POST(self):
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        full = len(self.bodies) < 3
        body = b"a proxy's page" if full else b'{"results": [[["good", 0.5]]]}'
        self.send_response(503 if full else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def test_rest_classifies_and_asks_again_where_a_queue_was_full():
    with http.server.HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = rest_client.Client(f"http://127.0.0.1:{server.server_port}/v1/models/m")
        assert client.classify([{"text": "fine"}]) == [[["good", 0.5]]]
        server.shutdown()
    wanted = {"signature_name": "classify", "examples": [{"text": "fine"}]}
    assert Busy.bodies == [wanted] * 3


def test_rest_command(url):
    run = _run("rest_client.py", url, "a fine film", "dull")
    versions, *answers = run.splitlines()
    assert versions == "versions: {1: 'AVAILABLE'}"
    assert [json.loads(line)["text"] for line in answers] == ["a fine film", "dull"]


def test_curl(url, expected):
    run = subprocess.run(
        [CLIENTS / "curl.sh", url], capture_output=True, text=True, check=True, timeout=60
    )
    decoder, rest, answers = json.JSONDecoder(), run.stdout.strip(), []
    while rest:
        answer, end = decoder.raw_decode(rest)
        answers.append(answer)
        rest = rest[end:].strip()
    status, metadata, rows, columns, encoded, *_ = answers
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    assert "serving_default" in metadata["metadata"]["signature_def"]["signature_def"]
    assert rows["predictions"][0]["label"].encode() == expected["label"][0]
    assert columns["outputs"]["scores"][0] == rows["predictions"][0]["scores"]
    assert len(encoded["predictions"]) == 1


def test_curl_says_why(export_server):
    url = f"{export_server.url}/v1/models/y"
    run = subprocess.run([CLIENTS / "curl.sh", url], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "Could not find any versions of model y" in run.stdout


# gRPC -------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_grpc(address, expected):
    with grpc_client.Client(address, "m") as client:
        assert client.states() == {1: "AVAILABLE"}
        answers = client.predict({"text": TEXTS})
        assert answers.keys() == {"label", "scores"}
        assert answers["label"].tolist() == expected["label"].tolist()
        np.testing.assert_allclose(answers["scores"], expected["scores"], atol=1e-6)
        assert client.predict({"text": [b"\xff"]}, outputs=("scores",)).keys() == {"scores"}
        rows = client.classify([{"text": text} for text in TEXTS])
        scores = [[score for _, score in row] for row in rows]
        np.testing.assert_allclose(scores, expected["scores"], atol=1e-6)


def test_grpc_says_why(address):
    with grpc_client.Client(address, "y") as client, pytest.raises(grpc.RpcError) as error:
        client.predict({"text": TEXTS})
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    assert error.value.details() == "Servable not found for request: Latest(y)"


@pytest.mark.full
def test_grpc_command(address):
    out = _run("grpc_client.py", address, "m", "--signature", "classify", "a fine film")
    versions, answer = out.splitlines()
    assert versions == "versions: {1: 'AVAILABLE'}"
    assert re.match(r"a fine film( \w+: 0\.\d{3}){3}$", answer)


def _run(script, *arguments):
    command = [sys.executable, CLIENTS / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


# Phones -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("query", "document"), ("text", "text_pair"), ("text",)])
def test_texts_of_an_example_are_in_the_order_of_the_task(names):
    feed = run.feed_of({name: {} for name in sorted(names)}, None)
    inputs = feed([f"a {name}" for name in names])
    assert inputs == {name: np.array([f"a {name}".encode()], object) for name in names}
    with pytest.raises(ValueError, match=f"Expected {', '.join(names)}, separated by tabs, got"):
        feed([*names, "a text with a tab"])

"""Clients that send half a request: they time out, and other clients are not slowed down."""

import contextlib
import http.client
import socket
import threading
import time

import grpc
import httpx
import pytest
import tensorflow as tf

from bertfam_serve import rest_connections, running_server
from bertfam_serve.rest_connections import Connections
from tests.serving.half_plus import Stubs, predict_request
from tests.support import slow_clients

HALF = {"headers": slow_clients._HEADERS, "body": slow_clients._HEADERS + b"\r\n{"}


def connect(server, *sent):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    for part in sent:
        connection.sendall(part)
    return connection


def rest_of(connection):
    """What the server sends until it closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            received += part
    return received


@pytest.fixture(scope="module")
def impatient(half_path):
    options = {"header_timeout_s": 0.5, "body_timeout_s": 0.5, "max_connections": 8}
    with running_server(half_path, **options) as server:
        yield server


@pytest.mark.parametrize("what", HALF)
def test_what_does_not_arrive_in_time_is_408(impatient, what):
    flags = {"headers": "--header-timeout-seconds", "body": "--body-timeout-seconds"}
    with connect(impatient, HALF[what]) as connection:
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert f"The request's {what} did not arrive in time ({flags[what]})".encode() in answer


@pytest.mark.parametrize("what", HALF)
def test_a_byte_now_and_then_is_no_more_time(impatient, what):
    start = time.monotonic()
    with connect(impatient, HALF[what]) as connection, contextlib.suppress(OSError):
        while time.monotonic() < start + 20:
            connection.sendall(b"x")
            time.sleep(0.05)
    assert time.monotonic() < start + 10


def test_the_second_request_of_a_connection_has_a_deadline_too(impatient):
    whole = HALF["headers"].replace(b"1000", b"18") + b"\r\n" + slow_clients._BODY
    with connect(impatient, whole) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(HALF["headers"])
        assert b"408" in rest_of(connection)


def test_an_idle_connection_takes_a_next_request(impatient):
    connection = http.client.HTTPConnection("127.0.0.1", impatient.port, timeout=30)
    with contextlib.closing(connection):
        for _ in range(2):
            connection.request("GET", "/v1/models/model")
            with connection.getresponse() as response:
                assert (response.status, response.read()[:1]) == (200, b"{")
            time.sleep(1.5)  # three times as long as headers may take


def test_an_idle_connection_is_closed_without_an_answer(half_path, monkeypatch):
    monkeypatch.setattr(rest_connections, "KEEP_ALIVE_S", 0.5)
    with running_server(half_path) as server:
        whole = HALF["headers"].replace(b"1000", b"18") + b"\r\n" + slow_clients._BODY
        with connect(server, whole) as connection:
            assert rest_of(connection).count(b"HTTP/1.1") == 1


def test_a_client_that_says_nothing_is_closed(impatient):
    with connect(impatient) as connection:
        assert rest_of(connection) == b""


def test_an_answer_is_not_held_back_until_its_headers_are_acknowledged(half_path, monkeypatch):
    accepted = []
    add = Connections.add
    monkeypatch.setattr(Connections, "add", lambda *both: accepted.append(both[1]) or add(*both))
    with running_server(half_path) as server, httpx.Client(timeout=30) as client:
        assert client.get(f"{server.url}/v1/models/model").status_code == 200
        assert accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_beyond_the_limit_the_one_that_has_waited_longest_goes(half_path):
    options = {"max_connections": 8, "header_timeout_s": 60, "body_timeout_s": 60}
    with running_server(half_path, **options) as server, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(server, HALF["body"])) for _ in range(8)]
        for _ in range(3):  # whose connections stay open
            client = stack.enter_context(httpx.Client(timeout=30))
            assert client.get(f"{server.url}/v1/models/model").status_code == 200
        for connection in waiting[:3]:
            assert rest_of(connection) == b""
        waiting[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            waiting[-1].recv(1)


@pytest.mark.full
def test_a_request_in_progress_is_not_closed_for_others(base_path):
    body = {"signature_name": "endless", "instances": [1]}
    with (
        running_server(base_path, max_connections=4, timeout_s=2) as server,
        contextlib.ExitStack() as stack,
    ):
        answers = []
        url = f"{server.url}/v1/models/model:predict"
        send = lambda: answers.append(httpx.post(url, json=body, timeout=60).status_code)  # noqa: E731
        running = threading.Thread(target=send)
        running.start()
        time.sleep(0.5)
        for _ in range(20):
            stack.enter_context(connect(server, HALF["headers"]))
        running.join()
        assert answers == [504]


def test_grpc_calls_without_a_message_take_few_threads(half_path):
    with (
        running_server(half_path, model_name="m", grpc_threads=4) as server,
        slow_clients.half_called(server.grpc_port, 40),
        Stubs(server.grpc_target) as stubs,
    ):
        for _ in range(3):
            y = stubs.prediction.Predict(predict_request(2), timeout=30).outputs["y"]
            assert y.float_val == [3.0]


def test_calls_beyond_the_limit_are_refused(half_path):
    with (
        running_server(half_path, model_name="m", max_grpc_calls=4) as server,
        slow_clients.half_called(server.grpc_port, 8),
        Stubs(server.grpc_target) as stubs,
    ):
        code, deadline = None, time.monotonic() + 20
        while code is None:  # until the eight have arrived
            assert time.monotonic() < deadline
            with contextlib.suppress(grpc.FutureTimeoutError):
                error = stubs.prediction.Predict.future(predict_request(2), timeout=30).exception()
                code = error and error.code()
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.full
def test_half_sent_requests_do_not_hold_up_the_end(half_path):
    with contextlib.ExitStack() as stack:
        with running_server(half_path, model_name="m", grace_s=30) as server:
            for part in HALF.values():
                stack.enter_context(connect(server, part))
            stack.enter_context(slow_clients.half_called(server.grpc_port, 3))
            time.sleep(0.5)
            start = time.monotonic()
        assert time.monotonic() - start < 15


@pytest.mark.full
def test_one_grace_period_for_rest_and_grpc(base_path):
    """Runs that do not end within it are cancelled, over both at once."""
    body = {"signature_name": "endless", "instances": [1]}
    request = predict_request(model="m", signature="endless")
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1], tf.int64))
    with contextlib.ExitStack() as stack:
        with running_server(base_path, model_name="m", timeout_s=60, grace_s=3) as server:
            stubs = stack.enter_context(Stubs(server.grpc_target))
            stubs.prediction.Predict.future(request)
            url = f"{server.url}/v1/models/m:predict"
            asked = threading.Thread(target=ask, args=(url, body))
            asked.start()
            time.sleep(1)
            start = time.monotonic()
        assert time.monotonic() - start < 3 + 5
        asked.join()


def ask(url, body):
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url, json=body, timeout=60)


@pytest.mark.full
def test_many_half_sent_requests():
    """A process with 1,024 file descriptors; `slow_clients.main` has more, timed."""
    found = slow_clients.run(1200, 100, 0, "--grace-seconds=20", requests=20)
    for kind, latency in found.with_slow.items():
        assert latency.failed == 0, (kind, latency)
        # Generous: other tests run beside this one.
        assert latency.median < 10 * found.quiet[kind].median + 100, (kind, found)
    assert found.status == 0
    assert found.stop_s < 20 + 10

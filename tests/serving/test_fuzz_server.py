"""A few hundred of the cases that `tools.fuzz_server` sends by the thousand."""

import functools
import json

import pytest

from tools import fuzz_server
from tools.fuzz_server import Case, case, fault

CASES = 300


@pytest.mark.full
def test_malformed_requests_break_nothing():
    with fuzz_server.server() as server:
        report = fuzz_server.fuzz(server, 7, list(range(CASES)), quiet=True)
        assert server.process.poll() is None
    assert report.faults == []
    assert sum(report.counts.values()) == CASES
    statuses = {status for _, status in report.counts}
    assert {"200", "400", "404"} <= statuses
    assert f"| {CASES:>6} |" in fuzz_server.table(report)


@pytest.mark.full
def test_an_export_answers_what_fits_and_refuses_all_else():
    with fuzz_server.server(exports=["classifier"]) as server:
        report = fuzz_server.fuzz(server, 3, list(range(CASES)), quiet=True)
        assert server.process.poll() is None
        _check_judgement(server)
    assert report.faults == []
    assert report.fitting["rows compared"] > 30
    assert report.fitting["requests refused"] > 60
    kinds = {"inputs REST", "instances REST", "predict gRPC", "classify REST", "classify gRPC"}
    assert kinds <= {kind for kind, _ in report.counts}


def _check_judgement(server):
    """Wrong answers are noticed, and answers and refusals without cause."""
    sent = [case(3, i, grpc=True, exports=server.exports) for i in range(CASES)]
    asked = [c for c in sent if c.request is not None and c.method == "POST"]
    predicted = [c for c in asked if c.request.kind in ("inputs REST", "instances REST")]
    fitting = next(c for c in predicted if c.request.expected and b'"inputs"' not in c.body)
    fault = functools.partial(server.exports.fault, fitting.request)
    status, body = fuzz_server.send(fitting, server)
    assert status == "200"
    assert fault(status, body) == ""
    assert "refused" in fault("400", b"{}")
    assert "500" in fault("500", b"{}")
    answer = json.loads(body)
    rows = answer["predictions"]
    assert "rows of" in fault("200", json.dumps({"predictions": rows + rows[:1]}).encode())
    rows[-1]["scores"][0] += 0.01
    assert "wrong scores" in fault("200", json.dumps(answer).encode())
    other = next(c for c in asked if c.request.expected == ())
    assert "answered" in server.exports.fault(other.request, "200", body)
    assert server.exports.fault(other.request, "400", b"{}") == ""


def test_a_case_is_the_same_whenever_it_is_made():
    assert [case(3, i) for i in range(50)] == [case(3, i) for i in range(50)]
    kinds = {case(3, i, grpc=True).kind for i in range(200)}
    assert {"cut proto", "changed proto", "odd proto", "gzip", "deep"} <= kinds


def test_what_breaks_the_contract():
    ask = Case("x", "POST", "/v1/models/m:predict")
    assert fault(ask, "400", b'{"error": "no"}') == ""
    assert fault(ask, "501", b"{}") == ""
    assert fault(ask, "200", b'{"predictions": [NaN, Infinity]}') == ""
    assert "500" in fault(ask, "500", b"{}")
    assert "503" in fault(ask, "503", b"{}")
    assert "not JSON" in fault(ask, "400", b"<html>")
    assert "ConnectionResetError" in fault(ask, "ConnectionResetError", b"")
    assert fault(ask._replace(path="/other"), "404", b"<html>") == ""
    call = ask._replace(grpc=True)
    assert fault(call, "INVALID_ARGUMENT", b"Input is empty.") == ""
    assert fault(call, "INTERNAL", b"Exception deserializing request!") == ""
    assert "INTERNAL" in fault(call, "INTERNAL", b"assertion")
    assert "UNKNOWN" in fault(call, "UNKNOWN", b"Exception calling application")


@pytest.mark.full
def test_the_server_that_is_asked_is_right():
    with fuzz_server.server() as server:
        assert fuzz_server.check_good(server) == ""
        wrong = server._replace(port=1)
        assert "ConnectionRefusedError" in fuzz_server.check_good(wrong)
        status, body = fuzz_server.send(case(0, 0), server)
        assert status.isdecimal()
        assert isinstance(json.loads(body), dict)

"""A few hundred of the cases that `tools.fuzz_server` sends by the thousand."""

import json

from tools import fuzz_server
from tools.fuzz_server import Case, case, fault

CASES = 300


def test_malformed_requests_break_nothing():
    with fuzz_server.server() as server:
        report = fuzz_server.fuzz(server, 7, list(range(CASES)), quiet=True)
        assert server.process.poll() is None
    assert report.faults == []
    assert sum(report.counts.values()) == CASES
    statuses = {status for _, status in report.counts}
    assert {"200", "400", "404"} <= statuses
    assert f"| {CASES:>6} |" in fuzz_server.table(report)


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


def test_the_server_that_is_asked_is_right():
    with fuzz_server.server() as server:
        assert fuzz_server.check_good(server) == ""
        wrong = server._replace(port=1)
        assert "ConnectionRefusedError" in fuzz_server.check_good(wrong)
        status, body = fuzz_server.send(case(0, 0), server)
        assert status.isdecimal()
        assert isinstance(json.loads(body), dict)

"""The load test: which errors it notices, and its report."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
import threading
import time

import pytest

from serving import load_test
from serving.load_test import Load, Refused, check, load, same, target

EXPECTED = [[{"label": "a", "scores": [0.25, 0.75]}, {"label": "b", "scores": [0.5, 0.5]}]]


class Fake:
    """Answers `script(number, instance)`, a place in `versions`; no network."""

    def __init__(self, versions, script, pause=0.0):
        self.versions, self.script, self.pause = versions, script, pause
        self.numbers = itertools.count()

    def encode(self, instance):
        return str(instance).encode()

    def decode(self, answer):
        return json.loads(answer)

    @contextlib.asynccontextmanager
    async def connect(self, concurrency):
        async def ask(body):
            version = self.script(next(self.numbers), int(body))
            await asyncio.sleep(self.pause)
            return json.dumps(self.versions[version][int(body)]).encode()

        yield ask


def _load(target, count=2, **options):
    options = {"requests": 100, "concurrency": 8} | options
    return asyncio.run(load(target, range(count), **options))


# Counting ---------------------------------------------------------------------------------------


def test_every_request_is_sent_once():
    asked = []
    fake = Fake(EXPECTED, lambda number, instance: asked.append(instance) or 0)
    result = _load(fake, requests=101)
    assert len(result.answer) == len(asked) == 101
    assert asked == [n % 2 for n in range(101)]
    found = check(result, fake, EXPECTED)
    assert (found.wrong, found.versions, result.failed) == (0, [101], 0)


def test_no_more_than_the_concurrency_is_under_way():
    under_way, most = 0, 0

    class Counting(Fake):
        @contextlib.asynccontextmanager
        async def connect(self, concurrency):
            async def ask(body):
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.001)
                under_way -= 1
                return b"{}"

            yield ask

    _load(Counting(EXPECTED, None), requests=50, concurrency=5)
    assert most == 5


def test_percentiles_are_of_what_was_answered():
    result = Load([0.0] * 6, [0.001, 0.002, 0.003, 0.004, 9.0, 0.005], [0, 0, 0, 0, -1, 0])
    assert [result.percentile(p) for p in (0.5, 0.8, 0.81, 1)] == [3.0, 4.0, 5.0, 5.0]
    assert math.isnan(Load([0.0], [1.0], [-1]).percentile(0.5))


def test_memory():
    flat = Load([], [], [], memory=[(i, 100.0 if i < 10 else 200.0) for i in range(40)])
    assert flat.growth == 0
    leak = Load([], [], [], memory=[(i, 100.0 + i) for i in range(40)])
    assert leak.growth == 10
    assert load_test.curve(leak, points=3) == "100 120 139"
    assert math.isnan(Load([], [], [], memory=[(0, 1.0)]).growth)
    result = _load(Fake(EXPECTED, lambda *_: 0, pause=0.1), concurrency=32, pid=os.getpid())
    assert all(size > 10 for _, size in result.memory)


# What is wrong ----------------------------------------------------------------------------------


def test_answers_of_another_text_are_wrong():
    mixed = [[EXPECTED[0][1], EXPECTED[0][0]]]
    fake = Fake([*EXPECTED, *mixed], lambda number, _: number == 7)
    assert check(_load(fake), fake, EXPECTED).wrong == 1


def test_what_is_no_answer_is_wrong():
    class Broken(Fake):
        def decode(self, answer):
            raise KeyError("predictions")

    fake = Broken(EXPECTED, lambda *_: 0)
    found = check(_load(fake, requests=10), fake, EXPECTED)
    assert (found.wrong, found.versions) == (10, [0])


def test_a_swap():
    other = [{"label": "b", "scores": [0.5, 0.5]}, {"label": "b", "scores": [0.1, 0.9]}]
    versions = [*EXPECTED, other]
    swapped = threading.Event()

    def swap():
        time.sleep(0.1)
        swapped.set()

    fake = Fake(versions, lambda *_: swapped.is_set(), pause=0.001)
    result = _load(fake, requests=400, meanwhile=swap)
    found = check(result, fake, versions)
    assert (found.wrong, result.failed) == (0, 0)
    assert found.versions[0] > 200
    assert 200 <= found.versions[1] < 300


def test_what_goes_wrong_meanwhile_is_an_error():
    with pytest.raises(ZeroDivisionError):
        _load(Fake(EXPECTED, lambda *_: 0, pause=0.001), meanwhile=lambda: 1 / 0)


def test_to_go_back_to_the_old_version_is_wrong():
    other = [{"label": "b", "scores": [0.5, 0.5]}, {"label": "b", "scores": [0.1, 0.9]}]
    versions = [*EXPECTED, other]
    fake = Fake(versions, lambda number, _: number in (50, 52))
    result = _load(fake, requests=100, concurrency=1)
    assert check(result, fake, versions).wrong == 48


def test_versions_that_answer_alike_tell_nothing():
    fake = Fake(EXPECTED, lambda *_: 0)
    with pytest.raises(ValueError, match="give the same answer to instance 0"):
        check(_load(fake), fake, [*EXPECTED, *EXPECTED])


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        ({"a": [1.0, 2]}, {"a": [1.000001, 2.0]}, True),
        ({"a": [1.0, 2]}, {"a": [1.001, 2.0]}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], [1], False),
        ("x", "x", True),
        ("x", 1, False),
        (float("nan"), 1.0, False),
    ],
)
def test_same(found, expected, equal):
    assert same(found, expected) == equal


def test_failures_are_counted_by_reason():
    class Failing(Fake):
        @contextlib.asynccontextmanager
        async def connect(self, concurrency):
            async def ask(body):
                if next(self.numbers) % 10 == 0:
                    raise Refused("503: full")
                return json.dumps(EXPECTED[0][int(body)]).encode()

            yield ask

    fake = Failing(EXPECTED, None)
    result = _load(fake)
    assert result.failures == {"Refused: 503: full": 10}
    found = check(result, fake, EXPECTED)
    assert (found.wrong, found.versions) == (0, [90])
    assert "failed: 10; wrong: 0" in load_test.report(result, found)


# Real servers -----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server(protocol, export_server, address, export):
    url = f"{export_server.url}/v1/models/m" if protocol == "http" else f"grpc://{address}/m"
    asked = target(url)
    instances = [*load_test.TEXTS, {"text": "good"}]
    expected = [load_test.answers_of(export / "1", instances, "serving_default")]
    result = asyncio.run(load(asked, instances, requests=60, concurrency=8))
    found = check(result, asked, expected)
    assert (result.failures, found.wrong, found.versions) == ({}, 0, [60])


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_refusal_says_why(protocol, export_server, address):
    url = f"{export_server.url}/v1/models/y" if protocol == "http" else f"grpc://{address}/y"
    result = asyncio.run(load(target(url), ["good"], requests=2, concurrency=1))
    (reason,) = result.failures
    assert "404" in reason or "NOT_FOUND" in reason
    assert "Servable not found for request: Latest(y)" in reason


@pytest.mark.full
def test_command(export_server, export, tmp_path, monkeypatch, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('"a fine film"\n{"text": "dull"}\n', "utf-8")
    url = f"{export_server.url}/v1/models/m"
    options = ["--requests", "20", "--texts", str(texts), "--pid", str(os.getpid())]
    monkeypatch.setattr(sys, "argv", ["load_test.py", url, *options])
    with pytest.raises(SystemExit) as status:
        load_test.main()
    assert status.value.code == 0
    out = capsys.readouterr().out
    assert "20 requests in" in out
    assert "failed: 0; wrong: 0; by version: [20]" in out
    monkeypatch.setattr(sys, "argv", ["load_test.py", "http://127.0.0.1:9/v1/models/m"])
    with pytest.raises(SystemExit) as status:
        load_test.main()
    assert "The server does not answer" in status.value.code

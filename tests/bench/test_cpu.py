"""`make bench`: taking turns, numbers and tables, without the libraries that are measured."""

import os
import re

import numpy as np
import pytest

from tests.bench.fakes import Fake, Sleeper
from tools.bench import machine
from tools.bench.cpu import engines, report, workloads
from tools.bench.cpu.results import Measured, Results, agreeing
from tools.bench.cpu.sections import FULL, Plan
from tools.bench.cpu.turns import (
    Failure,
    Spread,
    Turns,
    Worker,
    line_through,
    ratios,
    spread,
)
from tools.bench.cpu.workloads import Shape, Workload


def _turns(log, *names, **kwargs):
    said = []
    workers = {name: Worker(Fake, log, name, **kwargs) for name in names}
    return Turns(workers, said.append), said


def test_one_works_while_the_others_wait(tmp_path):
    log = tmp_path / "log"
    with _turns(log, "a", "b")[0] as turns:
        assert turns.rounds(3, "work", 4, limit=60) == {"a": [8, 8, 8], "b": [8, 8, 8]}
        assert turns.rounds(1, "work", 1, limit=60, only=["b"]) == {"b": [2]}
    lines = log.read_text().splitlines()
    # Nobody begins before the one before has ended; rounds begin with another one.
    assert lines == [f"{n} {what}" for n in "abbaabb" for what in ("begins", "ends")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "limit", "why"),
    [
        ("hangs", 1, "did not answer within 1 s"),
        ("dies", 60, "ended with exit code 3"),
        ("raises", 60, "ValueError: no such text"),
        ("missing", 60, "no_such_package_of_anyone is not installed"),
    ],
)
def test_who_fails_is_named_and_left_out(tmp_path, kind, limit, why):
    turns, said = _turns(tmp_path / "log", "sound", kind)
    with turns:
        turns.together("surroundings", limit=60, only=["sound"])  # has started
        failing = turns.workers[kind]
        assert turns.rounds(2, "work", 1, limit=limit) == {"sound": [2, 2]}
        assert turns.failures == {kind: why}
        assert said[-1] == f"{kind} is left out: {why}"
        # Only of mistakes there is a traceback to read.
        assert len(said) == (2 if kind == "raises" else 1)
        assert not failing.alive
        sound = turns.workers["sound"]
        assert sound.alive
    assert not sound.alive


def test_a_process_that_ends_between_turns(tmp_path):
    worker = Worker(Fake, tmp_path / "log", "a")
    assert worker.ask("work", 1, limit=60) == 2
    worker._process.kill()
    worker._process.join()
    with pytest.raises(Failure, match="ended with exit code -9"):
        worker.ask("work", 1, limit=60)


def test_the_surroundings_of_a_process(tmp_path):
    core = min(os.sched_getaffinity(0))
    worker = Worker(
        Fake,
        *(tmp_path / "log", "a"),
        cores=[core],
        environment={"A_VARIABLE": "set"},
        first_on_path="/another/checkout",
    )
    assert worker.ask("surroundings", limit=60) == ("set", "/another/checkout", {core})
    worker.close()
    assert not worker.alive


def test_medians_and_ranges():
    assert spread([9.0, 1.0, 2.0]) == Spread(2.0, 1.0, 9.0)
    assert spread([9.0, 1.0, 2.0]).share == 4.0
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_ratios_are_of_rounds():
    # The second round was half as fast for both.
    assert ratios([4.0, 2.0], [2.0, 1.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratios([4.0, 2.0], [2.0])


def test_a_line_of_least_squares():
    assert line_through([0, 1, 2], [1.0, 3.0, 5.0]) == pytest.approx((1, 2, 1))
    _, _, explained = line_through([0, 1, 2, 3], [0.0, 1.0, 0.0, 1.0])
    assert explained == pytest.approx(0.2)


def test_operations_are_those_of_real_tokens():
    shape = Shape(layers=2, width=3, inner=5)
    dense = 2 * (4 * 9 + 2 * 15)
    assert shape.operations([4, 1]) == 2 * (dense * 5 + 4 * 3 * (16 + 1))


def test_equal_rows():
    assert workloads.equal(4, 2).rows == ["film film"] * 2
    with pytest.raises(ValueError, match="tokens is 1"):
        workloads.equal(1, 2)


# In the process ----------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch, tmp_path):
    monkeypatch.setitem(vars(engines), "Sleeper", Sleeper)
    return engines.Host(tmp_path, "Sleeper", "", 1)


ROWS = Workload("some", "classify", ["a", "bb", "ccc", "dddd", "eeeee"], 128)


def test_batches_and_time(host):
    found = host.time(ROWS, 2, 60.0)
    assert host._engine.asked == [2, 2, 2, 1]  # one to warm up
    assert found["rows"] == 5
    assert found["wall"] >= 0.005 > found["cpu"] >= 0
    host._engine.asked.clear()
    assert host.time(ROWS, 2, 0.0)["rows"] == 2  # the time is up after a batch
    assert [x.tolist() for x in host.answers(ROWS, 3)] == [[[1], [2], [3]], [[4], [5]]]


def test_memory():
    np.ones(16_000_000)  # 122 MB, given back at once
    before = machine.forget_peak()
    assert machine.memory()["VmHWM"] - before < 60
    np.ones(16_000_000)
    assert machine.memory()["VmHWM"] - before > 110


def test_agreement():
    ours = [np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[1.0, 0.0]])]
    theirs = [ours[0] + [[0, 0.0005], [0.0, 0.1]], ours[1]]
    assert agreeing(theirs, ours, 1e-3) == pytest.approx((2 / 3, 0.1))
    assert agreeing([x * np.nan for x in ours], ours, 1e-3)[0] == 0
    with pytest.raises(ValueError, match=r"expected \[\(2, 2\), \(1, 2\)\]"):
        agreeing(theirs[::-1], ours, 1e-3)


# The answers of peers that return logits ----------------------------------------------------------


class _Encoded:
    """A window as ``tokenizers`` returns it: cls, question, sep, context, sep."""

    def __init__(self, first, last):
        context = range(first, last)
        self.sequence_ids = [None, 0, None, *(1 for _ in context), None]
        self.offsets = [(0, 0), (0, 3), (0, 0), *((2 * i, 2 * i + 1) for i in context), (0, 0)]


def test_the_best_span_of_overlapping_windows():
    windows = [_Encoded(0, 6), _Encoded(4, 10)]
    logits = np.zeros([2, 10, 2], np.float32)
    logits[0, 3 + 5, 0] = 9  # token 5 begins an answer, but has more context in the second window
    logits[1, 3 + 2, :] = [4, 0]  # token 6
    logits[1, 3 + 3, :] = [0, 3]  # token 7
    logits[1, 3 + 1, 1] = 8  # before its beginning
    ((start, end, score),) = engines._best_spans(logits, windows, [0, 0], 1)
    # Token 4 and 5 of the second window to 5: 0 + 8; 6 to 7: 4 + 3.
    assert (start, end) in {(8, 11), (10, 11)}
    assert 0 < score < 1
    logits[1, 3 + 1, 1] = 0
    ((start, end, _),) = engines._best_spans(logits, windows, [0, 0], 1)
    assert (start, end) == (12, 15)


def test_the_first_token_of_each_word():
    probabilities = np.array([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.5, 0.5]]])
    found = engines._first_tokens(probabilities, [[None, 0, 0, 1, None]])
    assert found.tolist() == pytest.approx([0.8, 0.7])


# The report ---------------------------------------------------------------------------------------


@pytest.fixture
def results():
    def rounds(*seconds):
        return [{"rows": 10, "cpu": each, "wall": 1.2 * each} for each in seconds]

    names = (engines.OURS, engines.ONNX, engines.INT8, engines.ONNX_INT8)
    times = (0.5, 0.25), (1.0, 0.5), (0.25, 0.25), (0.5, 0.5)
    found = {n: rounds(*each) for n, each in zip(names, times, strict=True)}
    results = Results(Shape(1, 1, 1), lambda rows: [3 for _ in rows])
    results.tables["classify"] = [Measured(ROWS, 2, found)]
    results.rates = {"torch": [1000.0, 3000.0]}
    return results


def test_ratios_come_first(results):
    text = report.speeds(results, results.tables["classify"], "sentences")
    assert "| ours / ONNX Runtime | 2.00 |" in text
    assert "| ours, int8 / ONNX Runtime, int8 | 2.00 |" in text
    assert "| ours, int8 / ours | 1.50 (1.00 to 2.00) |" in text
    assert "| ours | 30 ± 33 % |" in text
    # 5 rows of 3 tokens: (2 · 6 · 3 + 4 · 9) operations each, in 0.25 to 0.5 s; of 2000 a second.
    assert "| ours | 54 % |" in text


def test_the_document_says_what_went_wrong(results):
    results.failures = {"KerasHub": "keras_hub is not installed"}
    text = report.document(results, FULL, "make bench", "MiniLM-L6")
    assert "`make bench`" in text
    assert "* KerasHub: keras_hub is not installed" in text
    assert "at most 20% more time went by" in text
    assert "–" not in text.partition("## Left out")[0].partition("## The machine")[2]


def test_who_did_not_answer_has_a_dash(results):
    del results.tables["classify"][0].found[engines.ONNX]
    results.tables["classify"].append(Measured(ROWS, 4, {engines.ONNX: []}))
    text = report.speeds(results, results.tables["classify"], "sentences")
    assert "| ours | 30 ± 33 % | – |" in text


@pytest.fixture
def nothing():
    """All engines have failed."""
    results = Results(Shape(1, 1, 1), len, failures={"ours": "did not answer within 1 s"})
    results.tables["classify"] = [Measured(ROWS, 2, {})]
    results.growth["rows"] = {}
    results.training["fine-tune"] = {}
    return results


def test_the_document_without_results(nothing):
    text = report.document(nothing, FULL, "make bench", "MiniLM-L6")
    assert "* ours: did not answer within 1 s" in text
    assert "| --- |" not in text


def test_the_picture_without_results(nothing, tmp_path):
    pytest.importorskip("matplotlib")
    report.picture(nothing, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_training_is_compared_round_by_round(nothing):
    def rounds(*rows):
        return [dict(rows=x, cpu=2.0, peak=900.0, loss=0.5) for x in rows]

    nothing.training["fine-tune"] = {engines.OURS: rounds(40, 20), "other": rounds(20, 10)}
    text = report.document(nothing, FULL, "make bench", "MiniLM-L6")
    assert re.search(r"\| other \| 2\.00 \| 7\.5 ± 33 % \| 900 \| 0\.500 \|", text)


def test_plans_measure_each_batch():
    assert isinstance(FULL, Plan)
    assert set(FULL.rows) == set(FULL.mixed) == {1, 8, 32, 128}
    assert all(rows >= size for size, rows in {**FULL.rows}.items())

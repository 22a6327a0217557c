"""The measurement of time against length, with costs that are known."""

import pytest

from tools.bench import length
from tools.bench.length import Cost, Costs, Prepared


def test_the_exponent_is_between_the_two_longest_texts():
    costs = {10: Cost(5.0, 0.0), 100: Cost(1.0, 0.0), 1000: Cost(100.0, 0.0)}
    assert length.exponent(costs) == pytest.approx(2)


@pytest.mark.parametrize("kind", length.KINDS)
def test_texts_have_the_length_that_is_asked_for(kind):
    for size in (1000, 10_000):
        assert size - 4 < len(length.KINDS[kind](size)) <= size


def test_each_size_is_measured_once(monkeypatch):
    monkeypatch.setattr(length, "measure", lambda run: Cost(float(run()), 0.0))
    read = []

    def reader(text):
        def run():
            read.append(len(text))
            return len(text)

        return Prepared(run, rows=len(text) // 100)

    found = length.by_kind(reader, (1000, 2000), ["spaces"])
    assert read == [1000, 1000, 2000]  # the first one is not measured
    by_size = {1000: Cost(1000.0, 0.0), 2000: Cost(2000.0, 0.0)}
    assert found == {"spaces": Costs(by_size, rows=20)}
    assert found["spaces"].longest == by_size[2000]

"""The mutation check notices mistakes, and its last result covers every family."""

import re
from unittest import mock

import pytest

from tests.selection import only_in
from tools import mutations


@pytest.mark.full
def test_goldens_notice_each_mistake(capsys):
    """One family here; python -m tools.mutations runs all."""
    before = mutations.RESULT.read_text("utf-8")
    assert mutations.main(["spanbert"]) == 0
    assert capsys.readouterr().out.endswith("Every mutation was caught.\n")
    assert mutations.RESULT.read_text("utf-8") == before


def _broken(family):
    return mutations._renamed(family, lambda path, name: (path, name + ".absent"))


@only_in("extended", "no mistake")
@pytest.mark.parametrize(
    ("mutation", "said"),
    [(lambda family: mock.patch.dict({}), "survived"), (_broken, "CheckpointError: ")],
    ids=["no mistake", "an error that is no difference"],
)
def test_a_survivor_is_a_failure(monkeypatch, capsys, mutation, said):
    monkeypatch.setattr(mutations, "MUTATIONS", {"it": mutation})
    assert mutations.main(["spanbert"]) == 1
    assert f"spanbert: it: **{said}" in capsys.readouterr().out


def test_what_make_test_runs_comes_first():
    names = [path.name for path in mutations.goldens("xlnet")]
    assert names[:2] == ["default", "clamped_and_cut"]
    assert [path.name for path in mutations.goldens("xlnet", quick=True)] == names[:2]


@pytest.mark.full
def test_a_failure_without_mutation_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(mutations, "MUTATIONS", {})
    monkeypatch.setattr(mutations.parity, "TOLERANCE", 0.0)
    assert mutations.main(["spanbert"]) == 1
    assert "spanbert: fails without a mutation" in capsys.readouterr().out


def test_an_edit_that_finds_no_place_is_an_error():
    with pytest.raises(ValueError, match=r"SelfAttention\.call no longer contains 'absent'"):
        mutations._edited(mutations.layers.SelfAttention, "call", "absent", "")
    with pytest.raises(ValueError, match="The table of bert has no such names"):
        mutations._swapped("bert", "absent", "gone")


def test_the_last_result_is_of_every_family_and_mutation():
    text = mutations.RESULT.read_text("utf-8")
    assert re.search(r"Of (\d+) mistakes `make test` catches \1, `make test-all` \1\.", text)
    header, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header.split("|")[3:-1]] == list(mutations.MUTATIONS)
    assert [row.split("|")[1].strip() for row in rows] == mutations.parity.FAMILIES
    assert "**survived**" not in text
    assert "Error" not in text

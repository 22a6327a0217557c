"""Some cases of tools.fuzz_files in this process: only documented errors, quickly."""

import pytest

from tests.selection import in_full
from tools import fuzz_files


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base")
    return directory, fuzz_files.subjects(directory, all_kinds=False)


@pytest.mark.extended
@pytest.mark.parametrize("seed", in_full(range(6), [0]))
def test_no_damage_escapes(base, seed):
    directory, made = base
    results = [fuzz_files.case(directory, made, seed, number) for number in range(10)]
    assert not [result for result in results if result["outcome"].startswith("ESCAPE")]
    assert "CheckpointError" in {result["outcome"] for result in results}


@pytest.mark.extended
def test_undamaged_directories_load(base):
    fuzz_files.check_subjects(*base)


def test_a_directory_that_is_refused_undamaged_stops_the_tool(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.yaml").write_text("task: Unknown\n")
    with pytest.raises(ValueError, match="recipe of the subject recipe fails without a mutation"):
        fuzz_files.check_subjects(tmp_path, {"recipe": ["recipe"]})


def test_an_escape_is_seen(base, monkeypatch):
    directory, made = base

    def fail(*_):
        raise KeyError("x")

    monkeypatch.setattr(fuzz_files, "run", fail)
    assert fuzz_files.case(directory, made, 0, 0)["outcome"] == "ESCAPE: KeyError"

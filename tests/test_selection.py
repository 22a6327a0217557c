"""The list of tests that only `make test-all` runs."""

from types import SimpleNamespace

import pytest

from tests import conftest


@pytest.fixture
def stale(tmp_path, monkeypatch):
    """An item of a file, of which the list names a test that does not exist."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "only_in_test_all.txt").write_text("tests/test_a.py::test_gone\n")
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    monkeypatch.setattr(conftest, "_USAGE_ERRORS", set())
    return SimpleNamespace(nodeid="tests/test_a.py::test_here", path=tmp_path)


ERROR = "only_in_test_all.txt has no such tests: .*test_gone"


def test_a_stale_line_is_a_usage_error(stale):
    with pytest.raises(pytest.UsageError, match=ERROR):
        conftest.pytest_collection_modifyitems(SimpleNamespace(args=["tests"]), [stale])


def test_lines_of_files_that_are_not_collected_do_not_hide_a_stale_line(stale, tmp_path):
    with (tmp_path / "tests" / "only_in_test_all.txt").open("a") as file:
        file.write("tests/serving/test_b.py::test_there\n")
    with pytest.raises(pytest.UsageError, match=ERROR):
        conftest.pytest_collection_modifyitems(SimpleNamespace(args=["tests"]), [stale])


def test_one_test_of_a_file_can_be_run(stale):
    single = SimpleNamespace(args=["tests/test_a.py::test_here"])
    conftest.pytest_collection_modifyitems(single, [stale])


def test_a_stale_line_is_a_usage_error_of_the_process_that_starts_workers(stale):
    worker, items = SimpleNamespace(args=["tests"], workeroutput={}), [stale]
    conftest.pytest_collection_modifyitems(worker, items)
    assert not items
    conftest.pytest_testnodedown(worker)
    conftest.pytest_testnodedown(SimpleNamespace())  # one that failed earlier
    with pytest.raises(pytest.exit.Exception, match=ERROR) as caught:
        conftest.pytest_sessionfinish()
    assert caught.value.returncode == pytest.ExitCode.USAGE_ERROR


def test_without_a_stale_line_the_exit_status_is_kept(stale):
    conftest.pytest_testnodedown(SimpleNamespace(workeroutput={}))
    conftest.pytest_sessionfinish()

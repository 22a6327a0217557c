"""Marks of some of a test's cases."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.selection import mark_cases, only_in
from tools import quick


def _item(case, marked):
    marks = []
    return SimpleNamespace(
        nodeid=f"tests/test_a.py::test_here[{case}]",
        callspec=SimpleNamespace(id=case),
        iter_markers=lambda name: [only_in("extended", *marked).mark],
        add_marker=marks.append,
        marks=marks,
    )


def test_only_the_named_cases_get_the_mark():
    items = [_item(case, ["one"]) for case in ("one", "two")]
    mark_cases(items)
    assert [item.marks for item in items] == [["extended"], []]


def test_an_unknown_case_is_a_usage_error():
    with pytest.raises(pytest.UsageError, match=r"test_here has no such cases: \['gone'\]"):
        mark_cases([_item("one", ["one", "gone"])])


def test_a_change_needs_the_tests_of_its_name_and_those_that_import_it():
    tests = quick.tests_of(
        [Path("bertfam_tf/files.py"), Path("tests/test_cli.py"), Path("README.md")]
    )
    assert tests[:2] == ["tests/test_cli.py", "tests/test_files.py"]
    assert "tests/recipes/test_answers.py" in tests

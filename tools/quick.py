"""Checks what a change needs, in about a minute: python -m tools.quick [--since COMMIT] [--list]

Runs ruff and mypy, then the tests of the files that differ from a commit (the last one by default):
changed tests, the tests of the same name or package as a changed module, and the tests that import
it. ``make test`` and ``make test-all`` run more.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE, TESTS = "bertfam_tf", Path("tests")
# What every change may break, in seconds.
ALWAYS = ("tests/test_package.py::test_imports_have_one_direction", "tests/test_config.py")
MOST_FILES = 8


def changed(since: str) -> list[Path]:
    """Returns the files that differ from a commit, untracked ones included."""

    def lines(*command: str) -> list[str]:
        found = subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True)
        return found.stdout.decode().splitlines()

    untracked = lines("ls-files", "--others", "--exclude-standard")
    names = lines("diff", "--name-only", since) + untracked
    return [Path(name) for name in names if (ROOT / name).is_file()]


def tests_of(files: Iterable[Path]) -> list[str]:
    """Returns the test files of changed files, those with the nearest names first."""
    files = list(files)
    found = dict.fromkeys(
        str(f) for f in files if f.parts[0] == "tests" and f.name.startswith("test_")
    )
    modules = [f for f in files if f.parts[0] == PACKAGE and f.suffix == ".py"]
    for module in modules:
        room = TESTS.joinpath(*module.parts[1:-1])
        named = [room / f"test_{module.stem}.py", TESTS / f"test_{module.stem}.py"]
        found |= dict.fromkeys(str(each) for each in named if (ROOT / each).is_file())
    names = {".".join(m.with_suffix("").parts).removesuffix(".__init__") for m in modules}
    for test in sorted((ROOT / TESTS).rglob("test_*.py")) if names else ():
        if names & set(_imported(test)):
            found.setdefault(str(test.relative_to(ROOT)))
    return list(found)


def _imported(file: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="(default: the last one)")
    parser.add_argument("--list", action="store_true", help="print the tests only")
    options = parser.parse_args()
    tests = tests_of(changed(options.since))
    if len(tests) > MOST_FILES:
        print(f"Left to make test: {' '.join(tests[MOST_FILES:])}")
    tests = [*ALWAYS, *tests[:MOST_FILES]]
    if options.list:
        print("\n".join(tests))
        return 0
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        tool = [sys.executable, "-m", *command]
        if status := subprocess.run(tool, cwd=ROOT).returncode:
            return status
    parallel = ["-n", "2", "--dist", "loadfile"] if len(tests) > len(ALWAYS) + 1 else []
    command = [sys.executable, "-m", "pytest", "-q", *parallel, *tests]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())

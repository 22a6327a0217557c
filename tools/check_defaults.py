"""Lists arguments that have a default, and that every test passes with another value.

    python -m tools.check_defaults

The behaviour that users get by default is then never tested. Callables are found by their
names alone; ``**options`` is read where the test file has a dict of that name, and calls with other
stars are not. A dict whose keys are fields of a section of a recipe, at least two, is a call of the
section's class. So the list is one to look through: ``results/defaults.md`` has a verdict on each
row, and on helpers of tests that always pass an argument. The tool fails for rows without a
verdict, and for verdicts whose sister test does not exist.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERDICTS = ROOT / "tools" / "results" / "defaults.md"
_CELLS = re.compile(r"^\| `(.+?)` \| `(.+?)` \|.*\|(.*)\|$", re.MULTILINE)
_SISTER = re.compile(r"`(test_\w+|tests/[\w/.]+)`")


@dataclasses.dataclass
class Signature:
    """The arguments of the callables with a name.

    Attributes:
        order: names of positional arguments.
        defaults: source of the default by name.
        files: where they are defined.
    """

    order: list[str] = dataclasses.field(default_factory=list)
    defaults: dict[str, str] = dataclasses.field(default_factory=dict)
    files: set[str] = dataclasses.field(default_factory=set)

    def add(self, function: ast.FunctionDef, file: str, *, method: bool) -> None:
        """Adds a function, or a method without its first argument."""
        given = function.args
        positional = [*given.posonlyargs, *given.args][int(method) :]
        self.order = self.order or [each.arg for each in positional]
        tail = positional[len(positional) - len(given.defaults) :]
        pairs = [*zip(tail, given.defaults, strict=False)]
        pairs += [(x, y) for x, y in zip(given.kwonlyargs, given.kw_defaults, strict=True) if y]
        self.defaults |= {argument.arg: ast.unparse(value) for argument, value in pairs}
        self.files.add(file)

    def add_fields(self, fields: list[ast.AnnAssign], file: str) -> None:
        """Adds the fields of a dataclass."""
        self.order = self.order or [ast.unparse(each.target) for each in fields]
        self.defaults |= {
            ast.unparse(each.target): ast.unparse(each.value) for each in fields if each.value
        }
        self.files.add(file)


def signatures() -> dict[str, Signature]:
    """Public functions, methods and classes of the package by name."""
    found: dict[str, Signature] = defaultdict(Signature)
    for path, tree in (*_trees("bertfam_tf"), *_trees("serving/server")):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].add(node, path, method=False)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
                if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                    found[node.name].add_fields(fields, path)
                for each in node.body:
                    if not isinstance(each, ast.FunctionDef):
                        continue
                    name = node.name if each.name == "__init__" else each.name
                    static = any(ast.unparse(x) == "staticmethod" for x in each.decorator_list)
                    if not name.startswith("_"):
                        found[name].add(each, path, method=not static)
    return found


def never_default(known: dict[str, Signature]) -> list[tuple[str, str, str, int, str]]:
    """Callable, argument, default, number of calls, and values of arguments that all calls pass."""
    calls: Counter[str] = Counter()
    values: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    sections = {
        n: each for n, each in known.items() if "bertfam_tf/recipes/schema.py" in each.files
    }
    for _, tree in _trees("tests"):
        for name, given in _calls(tree, known, sections):
            calls[name] += 1
            for argument, value in given.items():
                source = ast.unparse(value)
                if known[name].defaults.get(argument, source) != source:
                    values[name, argument][source] += 1
    return [
        (name, argument, known[name].defaults[argument], calls[name], ", ".join(list(found)[:3]))
        for (name, argument), found in sorted(values.items())
        if sum(found.values()) == calls[name]
    ]


def _calls(
    tree: ast.Module, known: dict[str, Signature], sections: dict[str, Signature]
) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Names of what a file calls, with the arguments by name."""
    named = {
        target.id: _entries(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            entries = _entries(node) or {}
            found = [n for n, each in sections.items() if entries.keys() <= set(each.order)]
            if len(entries) > 1 and len(found) == 1:
                yield found[0], entries
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in known or any(isinstance(each, ast.Starred) for each in node.args):
            continue
        given: dict[str, ast.expr] = dict(zip(known[name].order, node.args, strict=False))
        for each in node.keywords:
            if each.arg is not None:
                given[each.arg] = each.value
                continue
            options = named.get(getattr(each.value, "id", ""), _entries(each.value))
            if options is None:
                break
            given |= options
        else:
            yield name, given


def _entries(node: ast.expr) -> dict[str, ast.expr] | None:
    """What a dict with strings as keys has, written in braces or as a call; None for others."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict" and not node.args:
        return {each.arg: each.value for each in node.keywords if each.arg}
    if not isinstance(node, ast.Dict):
        return None
    pairs = zip(node.keys, node.values, strict=True)
    return {k.value: v for k, v in pairs if isinstance(k, ast.Constant) and type(k.value) is str}


def _trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / folder).rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8"))


def main() -> None:
    rows = never_default(signatures())
    for row in rows:
        print("\t".join(map(str, row)))
    print(f"{len(rows)} arguments", file=sys.stderr)
    cells = _CELLS.findall(VERDICTS.read_text("utf-8"))
    judged = {
        pair
        for where, arguments, _ in cells
        for pair in itertools.product(where.split(", "), arguments.split(", "))
    }
    missing = [f"{row[0]}.{row[1]} has no verdict" for row in rows if row[:2] not in judged]
    tests = "".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    missing += [
        f"{sister} does not exist"
        for *_, sisters in cells
        for sister in _SISTER.findall(sisters)
        if f"def {sister}(" not in tests and not (ROOT / sister).exists()
    ]
    if missing:
        sys.exit("\n".join(missing))


if __name__ == "__main__":
    main()

"""Lists arguments that have a default, and that every test passes with another value.

    python -m tools.check_defaults

What users get without a choice of their own is then never tested. Callables are found by their
names alone, and calls with ``*args`` or ``**kwargs`` are not read, so the table is a list to look
through, not a verdict.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
    for path, tree in _trees("bertfam_tf"):
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
    for _, tree in _trees("tests"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            starred = any(isinstance(each, ast.Starred) for each in node.args)
            if name not in known or starred or any(each.arg is None for each in node.keywords):
                continue
            calls[name] += 1
            given = dict(zip(known[name].order, node.args, strict=False))
            given |= {each.arg: each.value for each in node.keywords if each.arg}
            for argument, value in given.items():
                source = ast.unparse(value)
                if known[name].defaults.get(argument, source) != source:
                    values[name, argument][source] += 1
    return [
        (name, argument, known[name].defaults[argument], calls[name], ", ".join(list(found)[:3]))
        for (name, argument), found in sorted(values.items())
        if sum(found.values()) == calls[name]
    ]


def _trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sorted((ROOT / folder).rglob("*.py")):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8"))


def main() -> None:
    rows = never_default(signatures())
    for row in rows:
        print("\t".join(map(str, row)))
    print(f"{len(rows)} arguments", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Checks that imports go one way, between rooms and between files: python -m tools.check_imports

A room may import only rooms before it in ``LAYERS``, and no files may import each other in a
circle. All imports count: in functions, relative ones, and calls of ``import_module``; those for
type checkers alone count between rooms. ``ALLOWED`` lists the exceptions.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "bertfam_tf"

LAYERS = [
    {"names", "files", "generation"},
    {"parsing"},
    {"registry", "sources", "config"},
    {"layers"},
    {"models", "optimizers", "replicas", "data", "metrics"},
    {"heads", "checkpoints", "learner", "tuning", "text"},
    {"tasks"},
    {"train", "serve"},
    {"export"},
    {"cli"},
]
# Methods that users look for on the object, and that only call the function that does it; and an
# operation that Keras does not have or has with others around it, where Keras runs on TensorFlow.
ALLOWED = {
    ("layers.fused", "Dense.call"),
    ("layers.fused", "take"),
    ("models.base", "Backbone.save_pretrained"),
    ("tasks.base", "Task.export"),
    ("tasks.base", "Task.export_tflite"),
}
# Keras operations alone, so that they run on each of Keras' backends.
KERAS_ONLY = {"registry", "names", "layers", "models", "heads"}
_NOT_KERAS = ("tensorflow", "tensorflow_text", "keras_hub")
_RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}


@dataclass(frozen=True)
class Import:
    """One import: what is imported, and the class and function that do it (``""`` for none)."""

    name: str
    place: str
    types_only: bool


def imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """All imports of a module that is in ``package``."""

    def walk(node: ast.AST, place: str, types_only: bool) -> Iterator[Import]:
        names: list[str] = []
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                place = f"{place}.{node.name}".lstrip(".")
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                types_only = True
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                above = package.split(".")[: len(package.split(".")) + 1 - node.level]
                start = ".".join([*(above if node.level else []), *filter(None, [node.module])])
                names = [f"{start}.{alias.name}" for alias in node.names]
            case ast.Call(
                func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str() as name), *_],
            ):
                names = [package + name if name.startswith(".") else name]
        for name in names:
            yield Import(name, place, types_only)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, place, types_only)

    yield from walk(tree, "", False)


def problems(package: Path = PACKAGE, allowed: Collection[tuple[str, str]] = ALLOWED) -> list[str]:
    """One line for each import that goes the wrong way, and for each circle of files.

    Args:
        package: the directory of the package.
        allowed: (module within the package, its class and function) of imports that do not count.
    """
    modules = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        modules[".".join(parts).removesuffix("__init__").removesuffix(".")] = file
    modules.pop("", None)  # what users import, from every room
    found, edges = [], {module: set[str]() for module in modules}
    for module, file in modules.items():
        room = module.partition(".")[0]
        if room not in _RANK:
            found.append(f"{file}: the room {room!r} has no place in LAYERS")
            continue
        parent = module if file.name == "__init__.py" else module.rpartition(".")[0]
        within = f"{package.name}.{parent}".rstrip(".")
        for each in imports(ast.parse(file.read_text("utf-8")), within):
            top, _, name = each.name.partition(".")
            permitted = (module, each.place) in allowed
            if room in KERAS_ONLY and top in _NOT_KERAS and not permitted:
                found.append(f"{file}: imports {top}; {room} uses Keras operations alone")
            if top != package.name or permitted:
                continue
            target = name if name in modules else name.rpartition(".")[0]
            other = name.partition(".")[0]
            if other != room and _RANK.get(other, -1) >= _RANK[room]:
                found.append(f"{file}: {room} imports {other}, which is not below it")
            if target in modules and target != module and not each.types_only:
                edges[module].add(target)
    circles = [sorted(circle) for circle in _circles(edges) if len(circle) > 1]
    return found + [f"{len(circle)} files in a circle: {', '.join(circle)}" for circle in circles]


def _circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of a graph."""
    reached = {start: _reachable(edges, start) for start in edges}
    components: list[set[str]] = []
    for start in edges:
        if not any(start in each for each in components):
            components.append({start, *(m for m in reached[start] if start in reached[m])})
    return components


def _reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    pending = [start]
    while pending:
        new = edges[pending.pop()] - seen
        seen |= new
        pending += new
    return seen


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "Imports go one way.")
    sys.exit(bool(lines))

"""Checks that imports have one direction and no cycles: python -m tools.check_imports

A package may only import packages before it in ``LAYERS``, and files may not import each other in
cycles. This includes imports in functions, relative imports, and calls of ``import_module``;
imports under ``TYPE_CHECKING`` are only checked between packages. ``ALLOWED`` lists the exceptions.

The server (``bertfam_serve``) may only import ``SERVER_READS`` from the package, and only
``SERVER_STARTERS`` may import the server.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bertfam_tf"
SERVER = ROOT / "serving" / "server" / "bertfam_serve"

LAYERS = [
    {"hints"},
    {"lazy", "user_warnings", "keras_objects", "names", "files", "attention_html"},
    {"parsing", "validation"},
    {"registry"},
    {"model_garden"},
    {"sources"},
    {"layers"},
    {"models", "data", "metrics", "generation"},
    {"heads", "checkpoints"},
    {"text"},
    {"objectives", "corpora"},
    {"training"},
    {"tasks"},
    {"distill", "export", "search"},
    {"recipes"},
    {"plan", "analysis", "doctor"},
    {"cli", "serve"},
    {"train", "learner", "config"},  # names of version 0.1
]
# Methods for the convenience of users that only call a function; and what Keras lacks when it runs
# on TensorFlow.
ALLOWED = {
    ("training.optimizers", "_apply_adam"),
    ("layers.fused", "Dropout.call"),
    ("layers.fused", "Product.__call__"),
    ("layers.fused", "gelu"),
    ("layers.fused", "scan"),
    ("layers.fused", "split_rows"),
    ("layers.fused", "take"),
    ("layers.fused", "write"),
    ("layers.fused", "with_gradient"),
    ("layers.tracing", "_function"),
    ("layers.tracing", "_recomputed"),
    ("layers.tracing", "call_once_traced"),
    ("tasks.task_storage", "TaskStorage.export"),
    ("tasks.task_storage", "TaskStorage.export_tflite"),
    ("tasks.task_storage", "TaskStorage.signatures"),
    ("tasks.multi_task", "MultiTask.export"),
}
# These use only Keras operations, so that they run on all backends.
KERAS_ONLY = {"registry", "hints", "names", "layers", "models", "heads", "objectives"}
KERAS_ONLY |= {
    f"training.{name}" for name in ("layouts", "learner", "optimizers", "schedules", "step_value")
}
# Runs exports without the code that created them.
RUNTIME = "export.runtime"
RUNTIME_READS = {RUNTIME, "lazy", "parsing"}
SERVER_READS = {RUNTIME, "attention_html"}
SERVER_STARTERS = {"cli", "serve"}
_NOT_KERAS = ("tensorflow", "tensorflow_text", "keras_hub")
_RANK = {top_level: rank for rank, layer in enumerate(LAYERS) for top_level in layer}


@dataclass(frozen=True)
class Import:
    """An import: the imported module, and the enclosing class and function (``""`` for none)."""

    name: str
    place: str
    types_only: bool


def imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Yields all imports of a module in ``package``."""

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
    """Returns one line for each wrong import and each import cycle.

    Args:
        package: the directory of the package.
        allowed: (module within the package, class and function) of imports that are allowed.
    """
    modules = _modules(package)
    modules.pop("", None)  # the public API, which imports all packages
    found, edges = [], {module: set[str]() for module in modules}
    for module, file in modules.items():
        top_level = module.partition(".")[0]
        if top_level not in _RANK:
            found.append(f"{file}: {top_level!r} is missing in LAYERS")
            continue
        for each in _imports_of(package, module, file):
            top, _, name = each.name.partition(".")
            if top == SERVER.name and top_level not in SERVER_STARTERS:
                found.append(f"{file}: {top_level} imports {top}")
            if (
                top == package.name
                and _within(module, {RUNTIME})
                and not _within(name, RUNTIME_READS)
            ):
                found.append(f"{file}: {RUNTIME} imports {name}")
            permitted = (module, each.place) in allowed
            neutral = {top_level, module} & KERAS_ONLY
            if neutral and top in _NOT_KERAS and not permitted:
                found.append(f"{file}: imports {top}; {module} may only use Keras operations")
            if top != package.name or permitted:
                continue
            target = name if name in modules else name.rpartition(".")[0]
            other = name.partition(".")[0]
            if other != top_level and _RANK.get(other, -1) >= _RANK[top_level]:
                found.append(f"{file}: {top_level} imports {other}, which is not below it")
            if target in modules and target != module and not each.types_only:
                edges[module].add(target)
    return found + _cycles(edges)


def server_problems(server: Path = SERVER, package: str = PACKAGE.name) -> list[str]:
    """Returns one line for each wrong import and each import cycle of the server.

    Args:
        server: the directory of the server's package.
        package: the name of the package beside which it stands.
    """
    modules = _modules(server)
    found, edges = [], {module: set[str]() for module in modules}
    for module, file in modules.items():
        for each in _imports_of(server, module, file):
            top, _, name = each.name.partition(".")
            if top == package and not _within(name, SERVER_READS):
                found.append(f"{file}: imports {each.name}; expected {', '.join(SERVER_READS)}")
            target = name if name in modules else name.rpartition(".")[0]
            if top == server.name and target not in {"", module} and not each.types_only:
                edges[module].add(target)
    return found + _cycles(edges)


def _modules(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules; ``""`` is ``__init__``."""
    modules = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        modules[".".join(parts).removesuffix("__init__").removesuffix(".")] = file
    return modules


def _imports_of(package: Path, module: str, file: Path) -> Iterator[Import]:
    parent = module if file.name == "__init__.py" else module.rpartition(".")[0]
    within = f"{package.name}.{parent}".rstrip(".")
    yield from imports(ast.parse(file.read_text("utf-8")), within)


def _within(module: str, rooms: Collection[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def _cycles(edges: Mapping[str, set[str]]) -> list[str]:
    cycles = [sorted(cycle) for cycle in _components(edges) if len(cycle) > 1]
    return [f"{len(cycle)} files in a cycle: {', '.join(cycle)}" for cycle in cycles]


def _components(edges: Mapping[str, set[str]]) -> list[set[str]]:
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
    lines = problems() + server_problems()
    print("\n".join(lines) or "No wrong imports and no cycles.")
    sys.exit(bool(lines))

"""Checks that rooms import one way only: python -m tools.check_imports

A room may import what stands before it in ``LAYERS``. Only imports at the top of a module count:
``Task.export`` reaches up to its verb when it is called.
"""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "bertfam_tf"

LAYERS = [
    {"names", "files", "generation"},
    {"parsing"},
    {"registry", "sources", "config"},
    {"layers"},
    {"models", "text", "optimizers", "replicas", "data", "metrics"},
    {"heads", "checkpoints", "tuning"},
    {"tasks"},
    {"train", "serve"},
    {"export"},
    {"cli"},
]
# Keras operations alone, so that they run on each of Keras' backends.
KERAS_ONLY = {"layers", "models", "heads"}
_RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}


def _imports(tree: ast.Module) -> list[str]:
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def problems(package: Path = PACKAGE) -> list[str]:
    """One line for each import that goes the wrong way."""
    found = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        room = parts[0]
        if room == "__init__":
            continue
        if room not in _RANK:
            found.append(f"{file}: the room {room!r} has no place in LAYERS")
            continue
        for name in _imports(ast.parse(file.read_text("utf-8"))):
            top, *rest = name.split(".")
            if room in KERAS_ONLY and top in ("tensorflow", "tensorflow_text", "keras_hub"):
                found.append(f"{file}: imports {top}; {room} uses Keras operations alone")
            if top != package.name or not rest or rest[0] == room or rest[0] not in _RANK:
                continue
            if _RANK[rest[0]] >= _RANK[room]:
                found.append(f"{file}: {room} imports {rest[0]}, which does not stand below it")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "Imports go one way.")
    sys.exit(bool(lines))

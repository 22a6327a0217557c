"""Runs programs of a checkout: its packages come first on their path."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(tree: Path = ROOT) -> dict[str, str]:
    """The variables of this process, with the packages of a checkout on Python's path."""
    packages = (tree, tree / "serving" / "server")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}

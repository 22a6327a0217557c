"""Runs programs of a checkout: its packages come first on their path."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


def environment(tree: Path = ROOT) -> dict[str, str]:
    """The variables of this process, with the packages of a checkout on Python's path."""
    packages = (tree, tree / "serving" / "server")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}


class Server(NamedTuple):
    """A server that is up: its process and its ports."""

    process: subprocess.Popen[str]
    rest: int
    grpc: int


@contextlib.contextmanager
def serve(*arguments: str, tree: Path = ROOT, **options: Any) -> Iterator[Server]:
    """Runs the local server of a checkout on free ports.

    Args:
        *arguments: the server's.
        tree: the checkout.
        **options: further arguments of ``subprocess.Popen``.

    Raises:
        RuntimeError: if the server does not start.
    """
    ports = ["--rest-port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-m", "bertfam_serve", *arguments, *ports]
    variables = {**environment(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tree, env=variables, **options
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline() + process.stdout.readline()
            found = re.findall(r":(\d+)", said)
            if len(found) != 2:
                raise RuntimeError(f"The server did not start: {' '.join(command)}: {said}")
            yield Server(process, *map(int, found))
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()

"""Engines without a library, for processes of tests."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np


class Fake:
    """Answers at once, and writes when it did; or does not, by its name.

    Args:
        log: a file for what it was asked.
        name: "hangs", "dies" and "raises" do that when they are asked.
    """

    def __init__(self, log: Path, name: str):
        self.log, self.name = log, name
        if name == "missing":
            __import__("no_such_package_of_anyone")

    def work(self, value: int) -> int:
        with self.log.open("a") as file:
            file.write(f"{self.name} begins\n")
        match self.name:
            case "hangs":
                time.sleep(1000)
            case "dies":
                os._exit(3)
            case "raises":
                raise ValueError("no such text\nand more")
        with self.log.open("a") as file:
            file.write(f"{self.name} ends\n")
        return 2 * value

    def surroundings(self) -> tuple[str, str, set[int]]:
        """A variable, the first directory on the path, and the cores of the process."""
        return os.environ.get("A_VARIABLE", ""), sys.path[0], os.sched_getaffinity(0)


class Sleeper:
    """An engine for ``Host`` that takes a known time for each row."""

    def __init__(self, folder: Path, variant: str, threads: int):
        self.asked: list[int] = []

    def runner(self, kind: str, longest: int):
        def run(rows: list[str]) -> np.ndarray:
            self.asked.append(len(rows))
            time.sleep(0.001 * len(rows))
            return np.array([[len(row)] for row in rows], np.float32)

        return run

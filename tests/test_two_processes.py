"""Two processes that write one output: it is the output of one of them, or each has its own.

``python -m tools.full_disks`` does the same for all commands.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import cli
from bertfam_tf.export.runtime import load

LABELS = ["negative", "neutral", "positive"]
TEXTS = [f"the film was good {i}" for i in range(200)]


@pytest.fixture(scope="module")
def model(smallest, tmp_path_factory) -> Path:
    """A saved task."""
    directory = tmp_path_factory.mktemp("two") / "task"
    bf.TextClassifier.from_pretrained(smallest, LABELS, pair=False).save(directory)
    return directory


def _together(*arguments: str | Path) -> list[tuple[int, str]]:
    """Runs a command in two processes; returns their statuses and last messages, in order."""
    command = [sys.executable, "-m", "bertfam_tf.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    ends = [(process.communicate()[1].strip(), process.returncode) for process in processes]
    return sorted((status, error.splitlines()[-1] if error else "") for error, status in ends)


def _content(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


@pytest.mark.full
def test_convert(model, tmp_path):
    assert cli.main(["convert", str(model), str(tmp_path / "alone" / "out")]) == 0
    (first, _), (second, error) = _together("convert", model, tmp_path / "both" / "out")
    assert (first, second) == (0, 1)
    assert "; it is not overwritten" in error
    assert f"{tmp_path / 'both' / 'out'} " in error
    assert _content(tmp_path / "both") == _content(tmp_path / "alone")


@pytest.mark.full
def test_predict(model, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    options = ["predict", str(model), "--input", str(file), "--output"]
    (tmp_path / "alone").mkdir()
    (tmp_path / "both").mkdir()
    assert cli.main([*options, str(tmp_path / "alone" / "out.jsonl")]) == 0
    (first, _), (second, error) = _together(*options, tmp_path / "both" / "out.jsonl")
    assert first == 0
    # The second one may start after the end of the first, whose answers it then finds.
    assert second == 0 or "out.jsonl is being written by another process" in error
    assert _content(tmp_path / "both") == _content(tmp_path / "alone")


@pytest.mark.full
def test_export(model, tmp_path):
    assert [status for status, _ in _together("export", model, tmp_path / "served")] == [0, 0]
    versions = sorted((tmp_path / "served").iterdir())
    assert [path.name for path in versions] == ["1", "2"]
    expected = bf.load(model).predict(TEXTS[:3])
    for version in versions:
        card = json.loads((version / "assets.extra" / "bertfam.json").read_text("utf-8"))
        assert {name: hashlib.sha256((version / name).read_bytes()).hexdigest()
                for name in card["sha256"]} == card["sha256"]  # fmt: skip
        scores = load(version).run("", {"text": np.array([x.encode() for x in TEXTS[:3]], object)})
        assert [label.decode() for label in scores["label"]] == [x["label"] for x in expected]
    (first, _), (second, error) = _together("export", model, tmp_path / "served", "--version", "7")
    assert (first, second) == (0, 1)
    assert "served already has a version 7" in error or "served/7 exists" in error
    assert sorted(path.name for path in (tmp_path / "served").iterdir()) == ["1", "2", "7"]

"""oneDNN's packed weights: when the server turns them on, and that answers do not change."""

import json
import shutil

import httpx
import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_serve import packed_weights
from bertfam_serve.servable_loader import load_for
from bertfam_tf.export.runtime import ServingError, load
from tests.serving.process import start
from tests.support.exports import perturbed


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(packed_weights.VARIABLE, raising=False)
    monkeypatch.setattr(packed_weights, "_enabled", False)


@pytest.fixture
def cpu(tmp_path, monkeypatch):
    """Sets the flags of the CPU."""

    def has(flags):
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flags} avx2\n")
        monkeypatch.setattr(packed_weights, "_CPU", tmp_path / "cpuinfo")

    return has


@pytest.fixture(scope="module")
def half(smallest, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "model"
    task = perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))
    task.export(directory, dtype="bfloat16")
    return directory


def test_in_float32_only_with_avx512(export, half, tmp_path, cpu, monkeypatch):
    cpu("avx")
    assert not packed_weights.enable(export)
    shutil.copytree(half, tmp_path / "both")
    shutil.copytree(export / "1", tmp_path / "both" / "2")
    assert not packed_weights.enable(tmp_path / "both")
    monkeypatch.setattr(packed_weights, "_CPU", tmp_path / "missing")
    assert not packed_weights.enable(export)
    cpu("avx512f")
    assert packed_weights.enable(tmp_path / "both")
    monkeypatch.delenv(packed_weights.VARIABLE)
    assert packed_weights.enable(export)


def test_not_for_others(half, export, base_path, tmp_path, cpu, monkeypatch):
    cpu("avx512f")
    assert not packed_weights.enable(base_path)
    # As of a Keras model that is no task.
    shutil.copytree(export, tmp_path / "model")
    card = tmp_path / "model" / "1" / "assets.extra" / "bertfam.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "task": None}))
    assert not packed_weights.enable(tmp_path / "model")
    assert not packed_weights.enable(tmp_path)
    assert not packed_weights.enable(tmp_path / "missing")
    monkeypatch.setenv(packed_weights.VARIABLE, "0")
    assert not packed_weights.enable(half)
    monkeypatch.delenv(packed_weights.VARIABLE)
    assert packed_weights.enable(half)


def test_other_models_are_refused_then(half, base_path):
    load_for("m", base_path / "00000123")
    packed_weights.enable(half)
    with pytest.raises(ServingError, match=r"is no export of a task.*FROZEN_WEIGHTS=0"):
        load_for("m", base_path / "00000123")


@pytest.mark.extended
@pytest.mark.parametrize("name", ["half", "export"])
def test_answers_are_those_without(name, request):
    directory = request.getfixturevalue(name)
    expected = load(directory / "1")
    texts = ["the film was good", "a dull , unhappy cast", "good " * 20, "", "film"]
    inputs = [*([text] for text in texts), texts, texts * 5, texts[:1], texts[::-1]]
    flags = ["--model-name=m", "--rest-port=0", "--grpc-port=-1"]
    with start("-m", "bertfam_serve", directory, *flags) as process:
        try:
            url = process.stdout.readline().split()[-1]
            for rows in inputs:
                answer = httpx.post(f"{url}:predict", json={"inputs": rows}, timeout=60).json()
                run = expected.run("", {"text": np.array([x.encode() for x in rows], object)})
                # Products of other sizes round differently.
                np.testing.assert_allclose(answer["outputs"]["scores"], run["scores"], atol=0.01)
        finally:
            process.terminate()
            process.communicate(timeout=60)

"""oneDNN's packed weights: when the server turns them on, and that answers do not change."""

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


@pytest.fixture(scope="module")
def half(smallest, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports") / "model"
    task = perturbed(bf.TextClassifier.from_pretrained(smallest, pair=False))
    task.export(directory, dtype="bfloat16")
    return directory


def test_only_for_exports_in_bfloat16(half, export, tmp_path, monkeypatch):
    assert not packed_weights.enable(export)
    assert not packed_weights.enable(tmp_path)
    assert not packed_weights.enable(tmp_path / "missing")
    shutil.copytree(half, tmp_path / "both")
    shutil.copytree(export / "1", tmp_path / "both" / "2")
    assert not packed_weights.enable(tmp_path / "both")
    monkeypatch.setenv(packed_weights.VARIABLE, "0")
    assert not packed_weights.enable(half)
    monkeypatch.delenv(packed_weights.VARIABLE)
    assert packed_weights.enable(half)


def test_other_models_are_refused_then(half, base_path):
    load_for("m", base_path / "00000123")
    packed_weights.enable(half)
    with pytest.raises(ServingError, match=r"is no export of bertfam_tf.*FROZEN_WEIGHTS=0"):
        load_for("m", base_path / "00000123")


@pytest.mark.extended
def test_answers_are_those_without(half):
    expected = load(half / "1")
    texts = ["the film was good", "a dull , unhappy cast", "good " * 20, "", "film"]
    requests = [*([text] for text in texts), texts, texts * 5, texts[:1], texts[::-1]]
    flags = ["--model-name=m", "--rest-port=0", "--grpc-port=-1"]
    with start("-m", "bertfam_serve", half, *flags) as process:
        try:
            url = process.stdout.readline().split()[-1]
            for request in requests:
                answer = httpx.post(f"{url}:predict", json={"inputs": request}, timeout=60).json()
                run = expected.run("", {"text": np.array([x.encode() for x in request], object)})
                # Products of other sizes round differently.
                np.testing.assert_allclose(answer["outputs"]["scores"], run["scores"], atol=0.01)
        finally:
            process.terminate()
            process.communicate(timeout=60)

"""``pytorch_model.bin``: read only by torch's weights-only loader."""

import json
import pickle
import shutil
import sys

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError
from tests.selection import only_in

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def directory(tiny, tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    shutil.copy(tiny / "config.json", directory)
    return directory


class _Runs:
    """An object whose pickle creates a file when it is opened."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_without_torch_the_error_has_a_remedy_and_nothing_runs(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    evidence = directory / "evidence"
    (directory / SINGLE).write_bytes(pickle.dumps({"a": _Runs(evidence)}))
    with pytest.raises(CheckpointError, match=r"torch is not installed: pip install torch; or "):
        bf.load_backbone(directory)
    assert not evidence.exists()


def test_safetensors_are_taken_where_there_are_both(tiny_copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tiny_copy / SINGLE).write_bytes(b"never opened")
    assert bf.load_backbone(tiny_copy).family == "bert"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def tensors(tiny, torch):
    from safetensors.torch import load_file

    return load_file(tiny / "model.safetensors")


def _equal(found, expected, tolerance=0.0):
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), tolerance, err_msg=ours.path)


@only_in("extended", "True")
@pytest.mark.parametrize("zipped", [True, False])
def test_single(tiny, directory, torch, tensors, zipped):
    torch.save(tensors, directory / SINGLE, _use_new_zipfile_serialization=zipped)
    _equal(bf.load_backbone(directory), bf.load_backbone(tiny))


def test_shards(tiny, directory, torch, tensors):
    names = sorted(tensors)
    index = {name: f"pytorch_model-{i % 3 + 1:05}.bin" for i, name in enumerate(names)}
    for shard in set(index.values()):
        part = {name: tensors[name] for name in names if index[name] == shard}
        torch.save(part, directory / shard)
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    _equal(bf.load_backbone(directory), bf.load_backbone(tiny))
    (directory / index[QUERY]).unlink()
    with pytest.raises(CheckpointError, match=f"names {index[QUERY]}, which is missing"):
        bf.load_backbone(directory)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_precisions(tiny, directory, torch, tensors, dtype):
    cast = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    torch.save(cast, directory / SINGLE)
    _equal(bf.load_backbone(directory), bf.load_backbone(tiny), 8e-3)


def _nan(torch, tensors):
    return {**tensors, QUERY: tensors[QUERY] * float("nan")}


DAMAGES = {
    "missing": (
        lambda torch, t: {n: v for n, v in t.items() if n != QUERY},
        "Missing tensors: encoder.layer.1.attention.self.query.weight",
    ),
    "left over": (
        lambda torch, t: {**t, "bert.adapter.weight": torch.ones(1)},
        "Unexpected tensors: bert.adapter.weight",
    ),
    "shape": (
        lambda torch, t: {**t, QUERY: torch.ones(16, 32)},
        rf"{QUERY} \(32, 16\), expected \(32, 32\)",
    ),
    "NaN": (_nan, f"{QUERY} contains NaN or infinity"),
    "integers": (
        lambda torch, t: {**t, QUERY: torch.ones(32, 32, dtype=torch.int8)},
        f"Wrong types: {QUERY} int8",
    ),
    "nested": (
        lambda torch, t: {"state_dict": t},
        "not a dict of tensors: it contains 'state_dict'",
    ),
    "a list": (lambda torch, t: [1], "not a dict of tensors, but a list"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damages_are_named(directory, torch, tensors, damage):
    change, error = DAMAGES[damage]
    torch.save(change(torch, tensors), directory / SINGLE)
    with pytest.raises(CheckpointError, match=error):
        bf.load_backbone(directory)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_cut_file(directory, torch, tensors, zipped):
    file = directory / SINGLE
    torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read .*truncated"):
        bf.load_backbone(directory)


@pytest.mark.parametrize("content", [b"", b"text"])
def test_no_such_file(directory, torch, content):
    (directory / SINGLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read"):
        bf.load_backbone(directory)


def test_code_in_a_pickle_does_not_run(directory, torch):
    evidence = directory / "evidence"
    torch.save({"a": _Runs(evidence)}, directory / SINGLE)
    with pytest.raises(CheckpointError, match="or contain more than tensors"):
        bf.load_backbone(directory)
    assert not evidence.exists()

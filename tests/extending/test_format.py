"""A checkpoint format in one file: NumPy's archives of weights by our paths."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import registry
from bertfam_tf.checkpoints import CheckpointError, Source, Stored, Tensors, convert, formats

CONFIG, WEIGHTS = "model.json", "weights.npz"


def _is_in(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def _read(directory: Path, family: str | None) -> Source:
    stored = json.loads((directory / CONFIG).read_text())
    record = registry.get(family or stored["family"])
    archive = np.load(directory / WEIGHTS)
    tensors = (
        (name, Stored(directory / WEIGHTS, name, array.shape, "F32", lambda array=array: array))
        for name, array in archive.items()
    )
    return Source(record, record.config.from_dict(stored["config"]), Tensors(tensors))


NUMPY = formats.Format(f"{CONFIG} with {WEIGHTS} (NumPy)", _is_in, _read)


@pytest.fixture(autouse=True)
def registered():
    with mock.patch.object(formats, "FORMATS", [*formats.FORMATS]):
        formats.register(NUMPY)
        yield


@pytest.fixture
def written(tiny, tmp_path):
    """A directory in the format, and the backbone that it was written from."""
    backbone = bf.load_backbone(tiny)
    directory = tmp_path / "numpy"
    directory.mkdir()
    np.savez(directory / WEIGHTS, **{v.path: v.numpy() for v in backbone.weights})
    config = {"family": backbone.family, "config": backbone.config.to_dict()}
    (directory / CONFIG).write_text(json.dumps(config))
    return directory, backbone


def _equal(found, expected):
    assert found.config == expected.config
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        assert ours.path == theirs.path
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def test_it_is_detected_and_loaded(written):
    directory, backbone = written
    _equal(bf.load_backbone(directory), backbone)
    assert bf.load_backbone(directory, "spanbert", dropout=0.0).family == "spanbert"


def test_it_is_converted(written, tmp_path):
    directory, backbone = written
    convert(directory, tmp_path / "out")
    _equal(bf.load_backbone(tmp_path / "out"), backbone)


def test_every_tensor_is_accounted_for(written):
    directory, _ = written
    weights = dict(np.load(directory / WEIGHTS))
    np.savez(directory / WEIGHTS, **weights, adapter=np.ones(2, "f4"))
    with pytest.raises(CheckpointError, match="Unexpected tensors: adapter"):
        bf.load_backbone(directory)
    del weights["pooler/dense/bias"]
    np.savez(directory / WEIGHTS, **weights)
    with pytest.raises(CheckpointError, match="Missing tensors: pooler/"):
        bf.load_backbone(directory)
    np.savez(directory / WEIGHTS, **weights, adapter=np.ones(2, "f4"))
    both = r"Missing tensors: pooler/dense/bias\.\nUnexpected tensors: adapter\."
    with pytest.raises(CheckpointError, match=both):
        bf.load_backbone(directory)


def test_errors_list_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"Looked for .*model\.json with weights\.npz"):
        bf.load_backbone(tmp_path)

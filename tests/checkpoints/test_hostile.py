"""Hostile files that exhaust memory, read other files or run code: each raises a ValueError."""

import json
import os
import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import registry, sources
from bertfam_tf.checkpoints import CheckpointError, convert, hdf5, keras_hub, tf_checkpoint
from bertfam_tf.checkpoints.shapes import declared
from bertfam_tf.models import config_of
from tests.selection import in_full
from tests.support import weight_mutations

ROOT = Path(__file__).parents[2]
WEIGHTS = "model.safetensors"


def _change(directory, **values):
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


# Config and tensors ----------------------------------------------------------------------------


@pytest.fixture
def unbuilt(monkeypatch):
    """Fails if a backbone is built: configs must be rejected before that."""

    def refuse(*_, **__):
        raise AssertionError("a backbone was built")

    monkeypatch.setattr("bertfam_tf.checkpoints.loader.Backbone", refuse)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"vocab_size": 20_000_000}, r"Wrong shapes: .*expected \(20000000, 32\)"),
        ({"intermediate_size": 10**9}, "Wrong shapes"),
        ({"max_position_embeddings": 2**31 - 1}, "Wrong shapes"),
        ({"hidden_size": 2**30}, "Wrong shapes"),
        ({"num_hidden_layers": 256}, "num_layers = 256, but only 57 tensors"),
        ({"num_hidden_layers": 1_000_000}, "num_layers must be from 0 to 256, got 1000000"),
        ({"num_hidden_layers": -1}, "num_layers must be from 0 to 256, got -1"),
        ({"num_attention_heads": 0}, "num_heads must be from 1"),
        ({"num_attention_heads": -2}, "num_heads must be from 1"),
        ({"num_attention_heads": False}, "num_heads must be of type int, got False"),
        ({"vocab_size": 10**400}, "vocab_size must be from 1"),
        ({"layer_norm_eps": float("nan")}, "norm_epsilon must be from 0"),
        ({"layer_norm_eps": -1e-12}, "norm_epsilon must be from 0"),
        ({"layer_norm_eps": float("inf")}, "norm_epsilon must be from 0"),
        ({"hidden_dropout_prob": 2}, "dropout must be from 0 to 1, got 2"),
        ({"initializer_range": "0.02"}, "initializer_range must be of type float, got '0.02'"),
        ({"hidden_act": ["gelu"]}, "activation must be of type str"),
        ({"hidden_size": "a" * 10**6}, "hidden_size must be of type int, got 'aaa"),
    ],
)
def test_a_config_is_checked_before_anything_is_built(tiny_copy, unbuilt, values, error):
    _change(tiny_copy, **values)
    with pytest.raises(CheckpointError, match=f"(?s){error}") as raised:
        bf.load_backbone(tiny_copy)
    assert len(str(raised.value)) < 2000


def test_shared_layers_are_bounded():
    record = registry.get("albert")
    config = config_of("albert", "tiny", num_layers=256, layers_per_group=2)
    shapes = declared(record, config, 100, "The config")  # one block of each is wired
    assert "attention_0_1/query/kernel" in shapes
    with pytest.raises(ValueError, match="256 layers of 2 blocks are more than 256 blocks"):
        bf.build("albert", "tiny", num_layers=256, layers_per_group=2)


@pytest.mark.parametrize(
    "family",
    in_full(["albert", "bert", "gpt2", "transformer_xl", "xlm", "xlnet"], ["albert", "xlnet"]),
)
def test_declared_shapes_are_those_of_the_backbone(family):
    config = config_of(family, "tiny")
    shapes = {v.path: tuple(v.shape) for v in bf.build(family, "tiny").weights}
    assert declared(registry.get(family), config, 1000, "The config") == shapes


@pytest.mark.parametrize("shape", [(), (3,), (20_000_000, 0), (3, 32, 1)])
def test_a_head_of_another_rank(tiny_copy, shape):
    tensors = load_file(tiny_copy / WEIGHTS)
    tensors["classifier.weight"] = np.zeros(shape, np.float32)
    save_file(tensors, tiny_copy / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"classifier\.weight has the shape"):
        bf.TextClassifier.from_pretrained(tiny_copy)


@pytest.mark.extended
def test_a_saved_task_is_compared_before_it_is_built(tiny, tmp_path, monkeypatch):
    bf.TextClassifier.from_pretrained(tiny).save(tmp_path / "task")
    file = tmp_path / "task" / "bertfam.json"
    stored = json.loads(file.read_text())
    for change, error in (
        ({"config": {**stored["config"], "vocab_size": 20_000_000}}, "Wrong shapes"),
        ({"config": {**stored["config"], "num_layers": 1_000_000}}, "num_layers must be from"),
        ({"config": {**stored["config"], "num_heads": 0}}, "num_heads must be from"),
        ({"config": [1]}, "has no config"),
        ({"family": {"a": 1}}, "has no config"),
        ({"options": [1]}, "is not the description of a task"),
        ({"options": {**stored["options"], "max_length": "x"}}, "cannot be loaded"),
        ({"sha256": {"../../secret": "0"}}, r"lists '\.\./\.\./secret', outside of it"),
        ({"sha256": {"/etc/passwd": "0"}}, "lists '/etc/passwd', outside of it"),
    ):
        file.write_text(json.dumps({**stored, **change}))
        with pytest.raises(CheckpointError, match=f"(?s)bertfam.json.*{error}|{error}"):
            bf.load(tmp_path / "task")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"model_type": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b'{"model_type": "bert", "model_type": "gpt2"}', "key 'model_type' appears twice"),
        (b'{"model_type": "\xff"}', "not JSON in UTF-8"),
        (b"{\x00}", "not JSON in UTF-8"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not JSON in UTF-8"),
        (b"", "not JSON in UTF-8"),
    ],
)
def test_json_that_cannot_be_read(tiny_copy, content, error):
    (tiny_copy / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json .*{error}"):
        bf.load_backbone(tiny_copy)


# KerasHub's HDF5 -------------------------------------------------------------------------------


def _external(h5, secret):
    h5.create_dataset("x", (4,), "f4", external=[(str(secret), 0, 16)])


def _virtual(h5, secret):
    layout = h5py.VirtualLayout((4,), "f4")
    layout[...] = h5py.VirtualSource(str(secret), "x", (4,))
    h5.create_virtual_dataset("x", layout)


def _link(h5, secret):
    h5["x"] = h5py.ExternalLink(str(secret), "/x")


def _soft(h5, secret):
    h5["y"] = np.ones(4, "f4")
    h5["x"] = h5py.SoftLink("/y")


def _never_stored(h5, secret):
    h5.create_dataset("x", (20_000_000, 64), "f4", chunks=(1024, 64))


def _bomb(h5, secret):
    h5.create_dataset("x", data=np.zeros((10**6,), "f4"), compression="gzip")


def _text(h5, secret):
    h5["x"] = "text"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_external, "x has its values in another file"),
        (_virtual, "x has its values in another file"),
        (_link, "x is a ExternalLink"),
        (_soft, "x is a SoftLink"),
        (_never_stored, "x declares 5,120,000,000 bytes, but the file contains 0"),
        (_bomb, "x declares 4,000,000 bytes, but the file contains"),
        (_text, "x is not a numeric tensor"),
    ],
)
def test_hdf5_holds_what_it_names(tmp_path, change, error):
    (tmp_path / "secret").write_bytes(b"\0" * 16)
    with h5py.File(tmp_path / keras_hub.WEIGHTS, "w") as h5:
        h5["fine"] = np.ones(4, "f4")
        change(h5, tmp_path / "secret")
    with pytest.raises(CheckpointError, match=rf"model\.weights\.h5: {error}"):
        list(hdf5.read(tmp_path / keras_hub.WEIGHTS, ""))


def test_compressed_hdf5_is_read(tmp_path):
    weights = np.random.default_rng(0).normal(size=(300, 64)).astype("f4")
    with h5py.File(tmp_path / keras_hub.WEIGHTS, "w") as h5:
        h5.create_dataset("x", data=weights, compression="gzip")
        h5.create_dataset("bias", data=np.zeros(3072, "f4"), compression="gzip")
    found = dict(hdf5.read(tmp_path / keras_hub.WEIGHTS, ""))
    np.testing.assert_array_equal(found["x"].read(), weights)
    assert found["bias"].shape == (3072,)


@pytest.mark.extended
def test_a_stretched_tensor_of_torch(tiny_copy):
    torch = pytest.importorskip("torch")
    (tiny_copy / WEIGHTS).unlink()
    name = "bert.embeddings.word_embeddings.weight"
    torch.save({name: torch.zeros(1).expand(20_000_000, 32)}, tiny_copy / "pytorch_model.bin")
    _change(tiny_copy, vocab_size=20_000_000)
    with pytest.raises(CheckpointError, match=rf"bin: {name} declares 2,560,000,000 bytes"):
        bf.load_backbone(tiny_copy)


# YAML ------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "task: &a [*a]", "task: &a {b: *a}", "[" * 5000, "!!python/object/apply:os.getcwd []"],
)
def test_yaml_that_expands(tmp_path, text):
    directory = tmp_path / "garden"
    shutil.copytree(ROOT / "tests" / "fixtures" / "garden_bert_v2", directory)
    (directory / "params.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"params\.yaml is not YAML"):
        bf.load_backbone(directory)


# TensorFlow's checkpoints ----------------------------------------------------------------------


def test_an_index_with_true_checksums_and_false_entries(tmp_path):
    """TensorFlow's reader aborts the process for some of these."""
    outcomes = set()
    for seed in range(150):
        directory = tmp_path / str(seed)
        shutil.copytree(ROOT / "tests" / "fixtures" / "tf1_bert", directory)
        weight_mutations.damage_index(directory / "bert_model.ckpt.index", random.Random(seed))
        try:
            tensors = tf_checkpoint.read(directory).tensors
            for name in tensors:
                tensors[name]
            outcomes.add("read")
        except CheckpointError as error:
            assert "bert_model.ckpt" in str(error)  # noqa: PT017
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# Links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vocab.txt", WEIGHTS, "config.json"])
def test_convert_rejects_external_links(tiny_copy, tmp_path, name):
    outside = tmp_path / "outside"
    (tiny_copy / name).rename(outside)
    (tiny_copy / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match=rf"{name} is a link to .*outside, which is not part"):
        convert(tiny_copy, tmp_path / "converted")
    assert not (tmp_path / "converted").exists()
    bf.load_backbone(tiny_copy)  # links are followed if nothing is written


def test_a_link_to_itself(tiny_copy):
    (tiny_copy / "merges.txt").symlink_to("merges.txt")
    with pytest.raises(CheckpointError, match=r"merges\.txt is a broken link"):
        sources.reject_external_links(tiny_copy, tiny_copy)


def test_a_link_in_a_folder_of_shards(tiny_copy, tmp_path):
    (tiny_copy / "shards").mkdir()
    (tiny_copy / "shards" / WEIGHTS).symlink_to(tmp_path)
    sources.reject_external_links(tiny_copy, tiny_copy)  # nothing reads the folder
    (tiny_copy / f"{WEIGHTS}.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="which is not part of the checkpoint"):
        sources.reject_external_links(tiny_copy, tiny_copy)


def test_links_of_a_hub_cache_are_followed(tiny, tmp_path):
    repository = tmp_path / "models--a--b"
    snapshot, blobs = repository / "snapshots" / "1", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in tiny.iterdir():
        shutil.copyfile(file, blobs / f"blob-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob-{file.name}")
    sources.reject_external_links(snapshot, snapshot)
    sources.reject_external_links("a/b", snapshot)
    (snapshot / "vocab.txt").unlink()
    (blobs / "c").symlink_to("/etc/hostname")
    (snapshot / "vocab.txt").symlink_to("../../blobs/c")
    with pytest.raises(CheckpointError, match=r"vocab\.txt is a link to /etc/hostname"):
        sources.reject_external_links(snapshot, snapshot)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_special_files(tmp_path, make):
    directory = tmp_path / "tf1"
    shutil.copytree(ROOT / "tests" / "fixtures" / "tf1_bert", directory)
    (directory / "bert_model.ckpt.index").unlink()
    make(directory / "bert_model.ckpt.index")
    with pytest.raises(CheckpointError, match="No weights in"):
        bf.load_backbone(directory)

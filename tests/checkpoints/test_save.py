"""Writing Hugging Face's format: bit-equal weights and the same config, or an error."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import heads, registry
from bertfam_tf.checkpoints import (
    Checkpoint,
    CheckpointError,
    convert,
    save_pretrained,
    tokenizer_files,
)
from bertfam_tf.cli import main
from tests.parity import load_head
from tests.selection import WIRINGS, each_once, in_full

GOLDENS = Path(__file__).parent.parent / "goldens"
FIXTURES = Path(__file__).parent.parent / "fixtures"
CHECKPOINTS = sorted(
    file.parent
    for file in GOLDENS.glob("*/*/model.safetensors")
    if (file.parent / "length_7.npz").exists()
)
HEADS = sorted(file.parent for file in GOLDENS.glob("*/heads/*/model.safetensors"))
WEIGHTS = "model.safetensors"


def _name(directory):
    return "-".join(directory.relative_to(GOLDENS).parts)


def _family(directory):
    """The family of a golden whose config does not name it."""
    return directory.relative_to(GOLDENS).parts[0]


def _first_of_each(directories):
    """All directories; `make test` uses the first of each family and head."""
    return each_once(
        directories, lambda path: (_family(path), path.parent.name == "heads" and path.name)
    )


def _equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    "directory",
    in_full(CHECKPOINTS, [GOLDENS / family / "default" for family in WIRINGS]),
    ids=_name,
)
def test_round_trip(directory, tmp_path):
    backbone = bf.load_backbone(directory, _family(directory))
    bf.save_pretrained(backbone, tmp_path / "there")
    prefix = registry.get(backbone.family).huggingface.prefix
    stored = load_file(directory / WEIGHTS)
    _equal(
        load_file(tmp_path / "there" / WEIGHTS),
        {name.removeprefix(prefix): value for name, value in stored.items()},
    )
    before = json.loads((directory / "config.json").read_text())
    after = json.loads((tmp_path / "there" / "config.json").read_text())
    differ = {key for key in after if after[key] != before.get(key, after[key])}
    assert not differ
    back = bf.load_backbone(tmp_path / "there", backbone.family)
    assert back.config == backbone.config
    _equal({v.path: v.numpy() for v in back.weights}, {v.path: v.numpy() for v in backbone.weights})


def test_files_are_complete_and_readable(tiny, tmp_path):
    bf.save_pretrained(bf.load_backbone(tiny), tmp_path / "a" / "b")
    files = sorted(file.name for file in (tmp_path / "a" / "b").iterdir())
    assert files == ["config.json", WEIGHTS]
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "a" / "b").iterdir()}
    assert len(modes) == 1


def test_other_files_stay(tiny, tmp_path):
    (tmp_path / "vocab.txt").write_text("a\n")
    backbone = bf.load_backbone(tiny)
    bf.save_pretrained(backbone, tmp_path)
    for variable in backbone.weights:
        variable.assign(variable + 1)
    bf.save_pretrained(backbone, tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == "a\n"
    again = bf.load_backbone(tmp_path)
    _equal(
        {v.path: v.numpy() for v in again.weights}, {v.path: v.numpy() for v in backbone.weights}
    )


def test_without_a_pooler(tiny, tmp_path):
    drop = ("pooler.dense.weight", "pooler.dense.bias")
    tensors = load_file(tiny / WEIGHTS)
    shutil.copytree(tiny, tmp_path / "in")
    kept = {name: value for name, value in tensors.items() if not name.endswith(drop)}
    save_file(kept, tmp_path / "in" / WEIGHTS)
    bf.save_pretrained(bf.load_backbone(tmp_path / "in", pooler=False), tmp_path / "out")
    assert not any("pooler" in name for name in load_file(tmp_path / "out" / WEIGHTS))
    assert bf.load_backbone(tmp_path / "out", pooler=False).config.pooler is False


def test_a_head_and_its_labels(tiny, tmp_path):
    task = bf.TextClassifier.from_pretrained(tiny)
    save_pretrained(task.backbone, tmp_path, heads={"sequence": task.head}, labels=task.labels)
    _equal(load_file(tmp_path / WEIGHTS), load_file(tiny / WEIGHTS))
    found = json.loads((tmp_path / "config.json").read_text())
    expected = json.loads((tiny / "config.json").read_text())
    assert found["id2label"] == expected["id2label"]
    assert found["label2id"] == {"negative": 0, "neutral": 1, "positive": 2}
    with pytest.raises(ValueError, match=r"head of bert 'sequenze'. Did you mean 'sequence'"):
        save_pretrained(task.backbone, tmp_path, heads={"sequenze": task.head})


def test_two_heads_of_one_name_are_refused(tiny, tmp_path):
    """Both are ``classifier.weight``: one would replace the other."""
    backbone = bf.load_backbone(tiny)
    both = {name: heads.build(backbone, name, 3) for name in ("sequence", "tokens")}
    with pytest.raises(CheckpointError, match=r"tokens head and another.*classifier.weight"):
        save_pretrained(backbone, tmp_path / "out", heads=both)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.parametrize("directory", _first_of_each(HEADS), ids=_name)
def test_the_class_is_named(directory, tmp_path):
    """Needed by transformers, and because tensors of some heads have the same names."""
    family, head = _family(directory), directory.name
    said = json.loads((directory / "config.json").read_text())["architectures"]
    convert(directory, tmp_path / "converted", family=family)
    backbone, layer = load_head(directory, family, head)
    save_pretrained(backbone, tmp_path / "saved", heads={head: layer})
    for written in ("converted", "saved"):
        found = json.loads((tmp_path / written / "config.json").read_text())["architectures"]
        assert found == said
        again = Checkpoint(tmp_path / written, family)
        assert again.has_head(head)
        assert not any(again.has_head(o) for o in ("sequence", "tokens", "choice") if o != head)


def test_a_class_that_is_not_known_is_not_named(tmp_path):
    source = shutil.copytree(GOLDENS / "bert" / "heads" / "tokens", tmp_path / "in")
    values = json.loads((source / "config.json").read_text())
    del values["architectures"]
    (source / "config.json").write_text(json.dumps(values))
    convert(source, tmp_path / "out")
    assert "architectures" not in json.loads((tmp_path / "out" / "config.json").read_text())


SAYS_NOT = {
    "sharing": dict(sharing="attention"),
    "project_embeddings": dict(embedding_size=16, project_embeddings=False),
}


@pytest.mark.parametrize("field", SAYS_NOT)
def test_configs_that_the_format_cannot_represent_are_rejected(tmp_path, field):
    small = dict(vocab_size=30, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24)
    backbone = bf.build("albert", **small, **SAYS_NOT[field])
    with pytest.raises(CheckpointError, match=f"cannot represent .*{field} = "):
        bf.save_pretrained(backbone, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_not_finite_is_refused(tiny, tmp_path):
    backbone = bf.load_backbone(tiny)
    backbone.weights[3].assign(backbone.weights[3] * np.nan)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in embeddings.LayerNorm.weight"):
        bf.save_pretrained(backbone, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# convert ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_convert_keeps_heads_labels_and_tokenizer(tiny, tmp_path):
    assert convert(tiny, tmp_path / "out") == tmp_path / "out"
    _equal(load_file(tmp_path / "out" / WEIGHTS), load_file(tiny / WEIGHTS))
    assert Checkpoint(tmp_path / "out").labels == ["negative", "neutral", "positive"]
    texts = ["a good film", "it is bad"]
    found = bf.TextClassifier.from_pretrained(tmp_path / "out").predict(texts)
    expected = bf.TextClassifier.from_pretrained(tiny).predict(texts)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["label"] == theirs["label"]
        np.testing.assert_array_equal(ours["scores"], theirs["scores"])
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


# Its head has another activation than its blocks, which no config of transformers says.
UNSAID = "garden_bert_masked_lm"


def test_an_activation_of_the_head_alone_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot represent lm_activation = 'relu'"):
        convert(FIXTURES / UNSAID, tmp_path / "out")


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({d.name for d in FIXTURES.iterdir()} - {UNSAID}))
def test_convert_from_tensorflow(name, tmp_path):
    convert(FIXTURES / name, tmp_path / "out")
    expected, found = bf.load_backbone(FIXTURES / name), bf.load_backbone(tmp_path / "out")
    assert found.config == expected.config
    _equal(
        {v.path: v.numpy() for v in found.weights}, {v.path: v.numpy() for v in expected.weights}
    )


@pytest.mark.parametrize(("pieces", "lower"), [("[UNK] the film", True), ("[UNK] the Film", False)])
def test_case_is_read_off_a_bare_vocabulary(tmp_path, pieces, lower):
    source = shutil.copytree(FIXTURES / "tf1_bert", tmp_path / "in")
    (source / "vocab.txt").write_text("\n".join(pieces.split()) + "\n")
    convert(source, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert said == {"do_lower_case": lower}


def test_a_sentencepiece_model_gets_its_name(tmp_path):
    source = shutil.copytree(FIXTURES / "tf1_albert", tmp_path / "in")
    (source / "30k-clean.model").write_bytes(b"model")
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "spiece.model").read_bytes() == b"model"


def test_the_vocabulary_of_transformer_xl_is_copied(tmp_path):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "vocab.pkl").write_bytes(b"words")
    tokenizer_files.copy(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out" / "vocab.pkl").read_bytes() == b"words"


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_convert_overwrites_nothing(tiny, tmp_path, kind):
    target = tmp_path / "out"
    if kind == "directory":
        target.mkdir()
        target = target / "kept"
    target.write_text("kept")
    with pytest.raises(FileExistsError, match="it is not overwritten"):
        convert(tiny, tmp_path / "out")
    assert target.read_text() == "kept"


def test_a_failure_leaves_nothing(tiny_copy, tmp_path):
    (tiny_copy / WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError):
        convert(tiny_copy, tmp_path / "out")
    shutil.copy(GOLDENS / "bert" / "classifier" / WEIGHTS, tiny_copy)
    tensors = load_file(tiny_copy / WEIGHTS)
    tensors["classifier.bias"][0] = np.nan
    save_file(tensors, tiny_copy / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in classifier.bias"):
        convert(tiny_copy, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tiny_copy]


def test_the_command(tiny, tmp_path, capsys):
    target = str(tmp_path / "out")
    assert main(["convert", str(tiny), target]) == 0
    assert capsys.readouterr().out.strip() == target
    assert main(["convert", str(tiny), target]) == 1
    assert (
        capsys.readouterr().err.strip()
        == f"bertfam convert: {target} contains config.json, model.safetensors, "
        "tokenizer_config.json and 1 more; it is not overwritten: expected a new or empty "
        "directory."
    )

"""A task on disk: whole or not at all, and never taken for another."""

import copy
import json
import pickle
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf import files
from bertfam_tf.checkpoints import CheckpointError, safetensors
from tests.selection import in_full

TEXTS = ["The film was very good!", "a dull, unhappy story.", ""]
WEIGHTS = "model.safetensors"
VOCABULARY = "tokenizer/vocab.txt"


@pytest.fixture(scope="module")
def stored(reader, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored") / "task"
    reader.save(directory)
    return directory


@pytest.fixture
def copied(stored, tmp_path):
    return Path(shutil.copytree(stored, tmp_path / "task"))


def _scores(task):
    return np.stack([answer["scores"] for answer in task.predict(TEXTS)])


def _content(directory):
    return {
        str(file.relative_to(directory)): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_a_classifier_comes_back(reader, stored):
    task = bf.load(stored)
    assert type(task) is bf.TextClassifier
    assert (task.labels, task.pair, task.max_length) == (reader.labels, False, reader.max_length)
    np.testing.assert_array_equal(_scores(task), _scores(reader))


@pytest.mark.full
def test_an_embedder_comes_back(smallest, tmp_path):
    task = bf.TextEmbedder.from_pretrained(smallest, max_length=6)
    task.save(tmp_path / "task")
    again = bf.load(tmp_path / "task")
    assert type(again) is bf.TextEmbedder
    assert (again.pooling, again.normalize, again.max_length) == ("mean", True, 6)
    np.testing.assert_array_equal(again.predict(TEXTS), task.predict(TEXTS))


def test_projections_are_loaded_from_a_saved_embedder(smallest, tmp_path, recwarn):
    task = bf.TextEmbedder.from_pretrained(smallest, projections=[{"width": 3}], dimensions=2)
    task.save(tmp_path / "task")
    recwarn.clear()
    again = bf.TextEmbedder.from_pretrained(tmp_path / "task")
    np.testing.assert_array_equal(again.predict(TEXTS), task.predict(TEXTS))
    few = bf.FewShotClassifier.from_pretrained(tmp_path / "task", ["a", "b"])
    np.testing.assert_array_equal(few.embedder.predict(TEXTS), task.predict(TEXTS))
    assert not [x for x in recwarn if "projections" in str(x.message)]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:The sequence head is initialized at random")
def test_options_of_other_tasks_are_left_alone(reader, smallest, tmp_path):
    """Tasks have options of the same name that mean something else."""
    pairs = bf.TextClassifier(
        reader.backbone, reader.tokenizer, reader.labels, pair=True, temperature=2.0
    )
    pairs.save(tmp_path / "pairs")
    assert bf.TextClassifier.from_pretrained(tmp_path / "pairs").temperature == 2
    same = bf.TextClassifier.from_pretrained(tmp_path / "pairs", np.array(reader.labels))
    assert (same.temperature, same.labels) == (2, reader.labels)
    unnamed = ["LABEL_0", "LABEL_1"]
    bf.TextClassifier(reader.backbone, reader.tokenizer, unnamed, temperature=2.0).save(
        tmp_path / "unnamed"
    )
    assert bf.TextClassifier.from_pretrained(tmp_path / "unnamed", ["a", "b"]).temperature == 2
    other = bf.TextClassifier.from_pretrained(tmp_path / "pairs", ["a", "b", "c"])
    assert (other.temperature, other.pair) == (1, True)
    embedder = bf.TextEmbedder.from_pretrained(tmp_path / "pairs", pooling="first")
    assert embedder.pair is False
    assert bf.TextRegressor.from_pretrained(tmp_path / "pairs").pair is True
    embedder.save(tmp_path / "embedder")
    # This one is declared for each of them and means the same.
    bf.TextClassifier(reader.backbone, reader.tokenizer, ["a", "b"], max_length=20).save(
        tmp_path / "short"
    )
    with pytest.warns(UserWarning, match="span head is initialized"):
        assert bf.SpanQA.from_pretrained(tmp_path / "short").max_length == 20
    assert bf.TextClassifier.from_pretrained(tmp_path / "embedder", ["a", "b"]).pair is None
    assert (
        bf.FewShotClassifier.from_pretrained(tmp_path / "embedder", ["a", "b"]).pooling == "first"
    )
    description = json.loads((tmp_path / "embedder" / "bertfam.json").read_text())
    # An embedder has no such poolings as sparse embedders have, and the reverse.
    sparse = {**description, "task": "SparseEmbedder", "options": {"pooling": "max"}}
    (tmp_path / "embedder" / "bertfam.json").write_text(json.dumps(sparse))
    assert bf.TextEmbedder.from_pretrained(tmp_path / "embedder").pooling == "mean"


@pytest.mark.extended
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(reader, copied):
    """They answer alike, and are changed by themselves."""
    again = copied(reader)
    assert type(again) is bf.TextClassifier
    assert again.options == reader.options
    np.testing.assert_array_equal(_scores(again), before := _scores(reader))
    for weight in again.head.weights:
        weight.assign(weight + 1)
    np.testing.assert_array_equal(_scores(reader), before)


@pytest.mark.full
def test_copies_of_several_tasks(smallest):
    backbone, tokenizer = bf.load_backbone(smallest), bf.load_tokenizer(smallest)
    number = bf.TextRegressor(backbone, tokenizer)
    classifier = bf.TextClassifier(backbone, tokenizer, labels=["no", "yes"])
    model = bf.MultiTask({"number": number, "class": classifier})
    again = copy.deepcopy(model)
    assert list(again.tasks) == ["number", "class"]
    assert again["number"].backbone is again["class"].backbone is not backbone
    np.testing.assert_array_equal(_scores(again["class"]), _scores(classifier))


def test_files(stored):
    assert set(_content(stored)) == {
        "bertfam.json",
        WEIGHTS,
        VOCABULARY,
        "tokenizer/tokenizer_config.json",
    }
    modes = {stat.S_IMODE(f.stat().st_mode) for f in stored.rglob("*") if f.is_file()}
    assert len(modes) == 1
    assert [child.name for child in stored.parent.iterdir()] == ["task"]


def test_saving_again_replaces_the_task_and_keeps_other_files(smallest, copied):
    (copied / "tokenizer" / "stale").touch()
    description = json.loads((copied / "bertfam.json").read_text())
    description["sha256"]["tokenizer/stale"] = ""
    (copied / "bertfam.json").write_text(json.dumps(description))
    (copied / "README.md").write_text("mine")
    (copied / "notes" / "empty").mkdir(parents=True)
    (copied / "notes" / "thesis.txt").write_text("mine")
    (copied / "notes" / "link").symlink_to("absent")
    other = bf.TextClassifier.from_pretrained(smallest, ["a", "b"], pair=True)
    other.save(copied)
    assert bf.load(copied).labels == ["a", "b"]
    assert not (copied / "tokenizer" / "stale").exists()
    assert (copied / "README.md").read_text() == "mine"
    assert (copied / "notes" / "thesis.txt").read_text() == "mine"
    assert (copied / "notes" / "empty").is_dir()
    assert (copied / "notes" / "link").is_symlink()
    assert [child.name for child in copied.parent.iterdir()] == ["task"]
    with pytest.raises(FileExistsError, match=r"contains .*; it is not overwritten"):
        other.save(copied, overwrite=False)
    with pytest.raises(TypeError, match="overwriting"):
        other.save(copied, overwriting=False)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_not_a_task_is_left_alone(reader, tmp_path, kind):
    target = tmp_path / "photos"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "a.jpg").write_text("mine")
    before = _content(tmp_path)
    with pytest.raises(FileExistsError, match=r"photos .*not overwritten: .*, or a saved task"):
        reader.save(target)
    assert _content(tmp_path) == before


@pytest.mark.parametrize("step", ["weights", "tokenizer", "move"])
@pytest.mark.parametrize("error", in_full([OSError, KeyboardInterrupt], [KeyboardInterrupt]))
def test_an_interrupted_save_leaves_the_old_one(reader, copied, monkeypatch, step, error):
    before = _content(copied)

    def fail(*args, **kwargs):
        raise error("interrupted")

    if step == "weights":
        monkeypatch.setattr(safetensors, "save_file", fail)
    elif step == "tokenizer":
        monkeypatch.setattr(type(reader.tokenizer), "save", fail)
    else:
        monkeypatch.setattr(files, "_exchange", fail)
    with pytest.raises(error):
        reader.save(copied)
    monkeypatch.undo()
    assert [child.name for child in copied.parent.iterdir()] == ["task"]
    assert _content(copied) == before
    bf.load(copied)


def _flip(file, position=-1):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def _edit(**values):
    def change(directory):
        file = directory / "bertfam.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return change


def _remove(name):
    return lambda directory: (directory / name).unlink()


CHANGES = {
    "no directory": (shutil.rmtree, r"No bertfam\.json in .*task; expected a directory"),
    "no description": (_remove("bertfam.json"), r"No bertfam\.json"),
    "no weights": (_remove(WEIGHTS), r"model\.safetensors is missing"),
    "no vocabulary": (_remove(VOCABULARY), r"vocab\.txt is missing"),
    "cut weights": (
        lambda d: (d / WEIGHTS).write_bytes((d / WEIGHTS).read_bytes()[:-100]),
        r"model\.safetensors is not the file that was saved",
    ),
    "a bit of the weights": (lambda d: _flip(d / WEIGHTS), "is not the file that was saved"),
    "a letter of the vocabulary": (
        lambda d: _flip(d / VOCABULARY, 40),
        r"vocab\.txt is not the file that was saved",
    ),
    "description is text": (
        lambda d: (d / "bertfam.json").write_text("{"),
        "is not JSON",
    ),
    "description is a list": (
        lambda d: (d / "bertfam.json").write_text("[]"),
        "is not the description of a task",
    ),
    "description lacks a key": (
        lambda d: (d / "bertfam.json").write_text('{"task": "TextClassifier"}'),
        "is not the description of a task: KeyError.'family'",
    ),
    "unknown task": (_edit(task="TextClasifier"), "Did you mean 'TextClassifier'"),
    "a list as task": (_edit(task=["TextClassifier"]), "Unknown task"),
    "another task": (_edit(task="TextEmbedder"), "Unknown argument 'labels'"),
    "unknown family": (_edit(family="brt"), "Unknown family 'brt'"),
    "unknown config": (_edit(config={"hidden": 1}), "Unknown BertConfig field 'hidden'"),
    "another config": (_edit(config={"num_layers": 1}), "do not match"),
    "no config": (_edit(config=None), "it has no config"),
    "unknown option": (_edit(options={"label": []}), "cannot be loaded"),
    "other labels": (
        _edit(options={"labels": ["a", "b"], "pair": None, "max_length": 8}),
        r"Wrong shapes: .*\(32, 3\), expected \(32, 2\)",
    ),
    "length too long": (
        _edit(options={"labels": ["a", "b", "c"], "pair": None, "max_length": 99}),
        "max_length 99 exceeds",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused(copied, change):
    function, error = CHANGES[change]
    function(copied)
    with pytest.raises(CheckpointError, match=f"(?s){error}"):
        bf.load(copied)


def test_a_file_is_no_task(stored):
    with pytest.raises(CheckpointError, match=r"No bertfam\.json"):
        bf.load(stored / WEIGHTS)

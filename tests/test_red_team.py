"""Damaged and crafted files that once ended in another error, a hang or a wrong result."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

import bertfam_tf as bf
from bertfam_tf import parsing
from bertfam_tf.checkpoints import Checkpoint, CheckpointError, safetensors
from bertfam_tf.corpora import Format, Masked, Shards, documents, shards, token_streams
from bertfam_tf.corpora.languages import Translations
from bertfam_tf.data import as_value_errors, read_rows, targets
from bertfam_tf.data.tfrecords import read_tfrecords
from bertfam_tf.distill import augmentation_folder
from bertfam_tf.distill.augmentation import Augmentation
from bertfam_tf.distill.cache import Cache
from bertfam_tf.names import unknown
from bertfam_tf.recipes.reading import load_run
from bertfam_tf.search.storage import Description, Part
from bertfam_tf.text import Layout, load_tokenizer
from bertfam_tf.training.callbacks import backup
from bertfam_tf.training.callbacks.best import BestEpoch

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("levels", [101, 500, 900, 940, 980])
def test_json_that_can_only_just_be_parsed(tmp_path, levels):
    (tmp_path / "a.json").write_text("[" * levels + "]" * levels)
    with pytest.raises(ValueError, match=r"a\.json is (not JSON: it is )?nested"):
        parsing.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[" * 100 + "]" * 100)
    assert parsing.read_json(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_paths_that_are_none(tmp_path, name):
    with pytest.raises(CheckpointError, match="is not the path of a file"):
        parsing.read_bytes(tmp_path / name, CheckpointError)


def test_numbers_to_the_base_60(tmp_path):
    """A hundred kilobytes took nine seconds."""
    (tmp_path / "recipe.yaml").write_text("epochs: " + "1:" * 60_000 + "1\n")
    with pytest.raises(ValueError, match=r"recipe\.yaml is not YAML: 1:1.* is beyond 64 bits"):
        load_run(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(f"a: {2**63 - 1:+_b}\n".replace("+", "0b"))
    assert parsing.read_yaml(tmp_path / "recipe.yaml") == {"a": 2**63 - 1}


def test_errors_do_not_repeat_a_header_of_megabytes():
    assert len(unknown("column", "text", ["x" * 10**6, *map(str, range(10**4))])) < 3000


# Tokenizers -----------------------------------------------------------------------------------


def _tokenizer_json(directory, **changes):
    pieces = ["[UNK]", "[CLS]", "[SEP]", "a"]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    whole = {
        "added_tokens": [{"id": i, "content": pieces[i], "special": True} for i in range(3)],
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "model": {**model, "vocab": {piece: i for i, piece in enumerate(pieces)}},
    }
    whole["model"] |= changes.pop("model", {})
    (directory / "tokenizer.json").write_text(json.dumps(whole | changes))


def _template(index=1, segment=0):
    special = {"SpecialToken": {"id": "x", "type_id": segment}}
    entries = [special, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": entries,
        "pair": [*entries, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"x": {"id": "x", "ids": [index], "tokens": ["x"]}},
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": {"type": {}}}, r"the model is \{\}, expected"),
        ({"model": {"type": [1]}}, r"the model is \[1\]"),
        ({"model": {"max_input_chars_per_word": True}}, "max_input_chars_per_word of WordPiece"),
        ({"normalizer": {"type": "BertNormalizer", "strip_accents": 1}}, "strip_accents of"),
        ({"post_processor": _template(index=-1)}, "entry .* of the post-processor's single"),
        ({"post_processor": _template(index=True)}, "entry .* of the post-processor's single"),
        ({"post_processor": _template(segment=2**40)}, "layout.single_segments must be integers"),
        (
            {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["a", True]}},
            "cls of BertProcessing is",
        ),
    ],
)
def test_tokenizer_json(tmp_path, changes, error):
    _tokenizer_json(tmp_path)
    assert load_tokenizer(tmp_path).vocabulary[3] == "a"
    _tokenizer_json(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=rf"(?s)tokenizer\.json.*{error}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"single_segments": (0, 0, 0.5)},
        {"single_segments": (0, True, 0)},
        {"pair_segments": (0, 0, 0, 1, 2**31)},
        {"pad_segment": "0"},
        {"pad_segment": -1},
        {"pad_left": 1},
        {"truncate_left": 1},
    ],
)
def test_layouts_with_values_that_no_graph_takes(values):
    with pytest.raises(ValueError, match=f"layout.{next(iter(values))} must be"):
        Layout(**values)


# Checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pruned", "more"),
    [
        ({"0": [float("inf")]}, {}),
        ({"0": [0.5]}, {}),
        ({"0": [True]}, {}),
        ({"0": [0]}, {"num_hidden_layers": 10**12}),
        ({"0": [0]}, {"num_hidden_layers": "2"}),
    ],
)
def test_pruned_heads(tiny, tmp_path, pruned, more):
    directory = shutil.copytree(tiny, tmp_path / "copy")
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "pruned_heads": pruned, **more}))
    with pytest.raises(CheckpointError, match=r"config\.json: pruned_heads must be lists"):
        bf.load_backbone(directory)


def test_the_number_of_heads_does_not_take_memory(tiny, tmp_path):
    directory = shutil.copytree(tiny, tmp_path / "copy")
    values = json.loads((directory / "config.json").read_text())
    values |= {"pruned_heads": {"0": [0]}, "num_attention_heads": 2**60}
    (directory / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="num_heads must be from 1 to"):
        bf.load_backbone(directory)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\xff", "contains the byte 0xff, expected UTF-8"),
        (b"model_checkpoint_path: 5", "is not a list of checkpoints"),
        (None, "is not a file"),
    ],
)
def test_lists_of_tensorflow_checkpoints(tmp_path, content, error):
    directory = shutil.copytree(FIXTURES / "garden_bert_classifier", tmp_path / "copy")
    for file in list(directory.glob("ckpt-7.*")):
        shutil.copy(file, file.with_name(file.name.replace("7", "8", 1)))
    file = directory / "checkpoint"
    file.write_text('model_checkpoint_path: "ckpt-8"\n')
    assert Checkpoint(directory).family.name == "bert"
    file.unlink()
    os.mkfifo(file) if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"checkpoint.*{error}"):
        Checkpoint(directory)


@pytest.mark.parametrize("end", ["abc", "00000", "9" * 200])
def test_names_of_data_files(tmp_path, end):
    directory = shutil.copytree(FIXTURES / "garden_bert_classifier", tmp_path / "copy")
    file = directory / "ckpt-7.data-00000-of-00001"
    file.rename(file.with_name(f"ckpt-7.data-00000-of-{end}"))
    with pytest.raises(CheckpointError, match="is not the name of a data file"):
        Checkpoint(directory)


# Data -----------------------------------------------------------------------------------------


def _archive(file, members, cut=None):
    with tarfile.open(file, "w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    if cut is not None:
        file.write_bytes(file.read_bytes()[:cut])


PASSAGE = json.dumps(
    {"article": "a", "questions": ["q"], "options": [["b", "c"]], "answers": ["A"]}
).encode()


def test_archives_that_are_cut(tmp_path):
    members = {f"train/{i}.txt": os.urandom(2000).hex().encode() for i in range(30)}
    _archive(tmp_path / "a.tar.gz", members, cut=30_000)
    with pytest.raises(ValueError, match=r"a\.tar\.gz cannot be read as an archive"):
        read_rows(tmp_path / "a.tar.gz", format="race", skip=True)


def test_archives_that_are_small_for_their_content(tmp_path, monkeypatch):
    monkeypatch.setattr(parsing, "MAX_BYTES", 1 << 16)
    _archive(tmp_path / "a.tar.gz", {"train/1.txt": PASSAGE, "train/2.txt": bytes(1 << 20)})
    with pytest.raises(ValueError, match=r"a\.tar\.gz: train/2\.txt has 1,048,576 bytes"):
        read_rows(tmp_path / "a.tar.gz", format="race", skip=True)


def test_passages_that_are_no_files(tmp_path):
    (tmp_path / "1.txt").write_bytes(PASSAGE)
    assert read_rows(tmp_path, format="race").count == 1
    os.mkfifo(tmp_path / "2.txt")
    with pytest.raises(ValueError, match=r"2\.txt is not a file"):
        read_rows(tmp_path, format="race")


@pytest.mark.parametrize("name", ["a.tsv", "a.json", "a.conll"])
def test_errors_of_a_disk_name_the_file(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/mem")  # opens, and cannot be read
    form = {"a.json": "squad"}.get(name)
    with pytest.raises(OSError, match=name):
        read_rows(tmp_path / name, {"text": 0, "label": 1} if form is None else None, format=form)


@pytest.mark.parametrize(("target", "label"), [(targets.Name, "x"), (targets.Names, "y,x")])
def test_labels_of_rows_that_are_left_out(tmp_path, target, label):
    bad = label.replace("x", "\udcff")
    text = f"text\tlabel\na\tgood\nb\t{bad}\n"
    (tmp_path / "a.tsv").write_bytes(text.encode("utf-8", "surrogateescape"))
    made = target()
    rows = read_rows(tmp_path / "a.tsv", target=made, skip=True)
    assert (rows.count, made.names) == (1, ["good"])


# Shards and runs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": {"examples": 1.5}},
        {"counts": {"examples": True}},
        {"counts": {"examples": 1e308}},
        {"length": "8"},
        {"format": None},
        {"shards": [{"file": "a", "bytes": 1.0, "examples": 1}]},
        {"shards": [{"file": "a", "bytes": float("inf"), "examples": 1}]},
        {"shards": [{"file": "a", "bytes": 1, "examples": 1.5}]},
        {"shards": [{"file": "a", "bytes": 1}]},
    ],
)
def test_data_cards(tmp_path, changes):
    card = {"version": shards.VERSION, "tokenizer_sha256": "0", "length": 8, "format": "x"}
    shard = {"file": "a", "bytes": 1, "examples": 1}
    card |= {"task": None, "counts": {"examples": 1}, "shards": [shard]}
    (tmp_path / "a").write_text("x")
    file = tmp_path / shards.CARD
    file.write_text(json.dumps(card))
    assert shards.read_card(tmp_path)
    file.write_text(json.dumps({**card, **changes}))
    with pytest.raises(ValueError, match=f"{shards.CARD} is not a data card"):
        shards.read_card(tmp_path)


@pytest.mark.parametrize("content", ["[", "[1]", "{}", '{"examples": 1.5}'])
def test_counts_beside_shards(tmp_path, content):
    (tmp_path / "counts-0.json").write_text(content)
    with pytest.raises(ValueError, match=r"counts-0\.json is not"):
        shards.read_counts(tmp_path / "counts-0.json", ["examples"])


@pytest.mark.parametrize(
    "scores", ["[" * 900 + "]" * 900, '{"0": 1' + "0" * 400 + "}", '{"0": [1]}', "[1]"]
)
def test_scores_of_epochs(tmp_path, scores):
    (tmp_path / "values.json").write_text(scores)
    with pytest.raises(ValueError, match="has no valid scores of epochs"):
        assert BestEpoch(tmp_path, "val_loss", 1).exhausted
    (tmp_path / "values.json").unlink()
    weights = {"w": np.zeros(1, "f4")}
    save_file(weights, tmp_path / "weights.safetensors", {"score": scores})
    with pytest.raises(ValueError, match="has no valid scores of epochs"):
        assert BestEpoch(tmp_path, "val_loss", 1).exhausted


def test_pipes_in_place_of_weights(tmp_path):
    """safetensors waits for another process to write."""
    pipe = tmp_path / "part.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"part\.safetensors is not a file"):
        safetensors.read_file(pipe)
    with pytest.raises(ValueError, match=r"part\.safetensors is not a file"):
        Part(pipe, Description("", "", "", 1, "float32", None, {}, 1, 1))
    with pytest.raises(ValueError, match=r"part\.safetensors is not a checkpoint"):
        backup.read_state(pipe, tmp_path)
    assert backup.recipe_of(pipe) is None


def test_devices_in_place_of_text():
    """Reading them never ends."""
    device = Path("/dev/zero")
    for read in (
        lambda: list(token_streams.read_lines([device])),
        lambda: [list(each) for each in documents.read_documents([device])],
        lambda: Translations([device], (0, 1), None, None).count(),
    ):
        with pytest.raises(ValueError, match="/dev/zero is not a file"):
            read()


@pytest.mark.parametrize("change", ["cut", "flipped", "fewer"])
def test_records_that_are_damaged(tmp_path, change):
    """TensorFlow's errors do not name the file."""
    file = tmp_path / "a.tfrecord"
    records = [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))}
            )
        ).SerializeToString()
        for i in range(3)
    ]
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records:
            writer.write(record)
    whole = file.read_bytes()
    features = {"x": tf.io.FixedLenFeature([], tf.int64)}
    read = read_tfrecords(str(file), 4 if change == "fewer" else 3, features)
    file.write_bytes(
        {"cut": whole[:-1], "flipped": whole[:-5] + b"x" + whole[-4:]}.get(change, whole)
    )
    message = r"a\.tfrecord has records that are truncated or damaged: record (3 of 3|4 of 4)\.$"
    with pytest.raises(ValueError, match=message), as_value_errors():
        list(read)
    file.write_bytes(whole)
    good = read_tfrecords(str(file), 3, features)
    assert [each.numpy() for each in good] == records


def _shards(folder, tiny):
    text = folder / "text"
    text.write_text("good film\nbad plot\n" * 3)
    form = Format(load_tokenizer(tiny), 8, "full_sentences")
    options = {"documents": "line", "sentences": "line", "seed": 0}
    units = shards.units_of([(str(text), text.stat().st_size)], 1 << 20, "line")
    job = shards.description(form, files=[], unit=1 << 20, **options)
    shards.begin(folder / "written", job)
    shards.write_shard(folder / "written", units[0], form, **options)
    shards.finish(folder / "written", job, units)

    def unmasked(token_ids, _, seeds):
        return Masked(token_ids, seeds, seeds, tf.ones(tf.shape(seeds)), seeds, seeds)

    return lambda: Shards([folder / "written"], form).batches(2, unmasked, passes=1)


def _augmented(folder, tiny):
    rows = tf.data.Dataset.from_tensor_slices(({"text": ["1", "2"]}, [0, 1]))
    augmentation = Augmentation(bf.MaskedLM.from_pretrained(tiny))
    augmented = augmentation_folder.augment(rows, augmentation, folder / "written", verbose=0)
    return lambda: augmented


def _cached(folder, tiny):
    inputs = {"x": tf.constant([[1.0], [2.0], [3.0]]), "padding_mask": tf.ones([3, 1])}
    batches = tf.data.Dataset.from_tensors((inputs,))
    cache = Cache(folder / "written", batches, lambda x: (x,), {}, {})
    return lambda: cache.dataset(2)


def _with_second_record(file, record):
    records = [each.numpy() for each in tf.data.TFRecordDataset(str(file))]
    with tf.io.TFRecordWriter(str(file)) as writer:
        for each in [records[0], record, *records[2:]]:
            writer.write(each)
    return len(records)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(_shards, marks=pytest.mark.extended),
        _cached,
        pytest.param(_augmented, marks=pytest.mark.extended),
    ],
)
def test_records_that_are_no_examples(tiny, tmp_path, write, monkeypatch):
    """Their checksums are right. TensorFlow's error repeats the bytes, which are not UTF-8."""
    monkeypatch.setattr(shards, "check_shards", lambda *_: None)  # of the size
    read = write(tmp_path, tiny)
    assert len(list(read())) > 0
    (file,) = (tmp_path / "written").glob("*.tfrecord")
    for record in (b"\xff\xfe\x80", b"text", tf.train.Example().SerializeToString() + b"\xff"):
        number = _with_second_record(file, record)
        message = rf"{file.name} has records that are .* damaged: record 2 of {number}\.$"
        with pytest.raises(ValueError, match=message), as_value_errors():
            list(read())


# Files that change while they are read --------------------------------------------------------


@pytest.mark.parametrize("change", ["replaced", "shorter", "other bytes"])
def test_weights_that_change(tmp_path, change):
    """Half of a model was from the one file, and half from the other."""
    file, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    save_file({"a": np.ones(9, "f4"), "b": np.ones(9, "f4")}, file)
    save_file({"a": np.zeros(9, "f4"), "b": np.zeros(9, "f4")}, other)
    tensors = safetensors.read_file(file)
    assert tensors["a"].sum() == 9
    if change == "replaced":
        other.rename(file)
    else:
        os.truncate(file, 100) if change == "shorter" else file.write_bytes(other.read_bytes())
    with pytest.raises(CheckpointError, match=r"model\.safetensors; .* changed or replaced"):
        assert tensors["b"].sum()


def test_headers_of_megabytes_are_not_repeated(tmp_path):
    text = json.dumps({"a" * 10**6: {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}})
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(4))
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read") as caught:
        safetensors.read_file(file)
    assert len(str(caught.value)) < 3000


def test_a_context_of_many_questions_is_decoded_once():
    """The time grew with the square of the file's size."""

    class Context(bytes):
        count = 0

        def decode(self, *args):
            Context.count += 1
            return super().decode(*args)

    features = {"context": Context(b"some words")}
    target = targets.Answers()
    for _ in range(3):
        assert target.read([("words", 5)], features) == [("words", 5)]
    assert Context.count == 1
    with pytest.raises(ValueError, match="is not at character 5"):
        target.read([("words", 5)], {"context": b"other text"})

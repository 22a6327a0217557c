"""Examples of pretraining in shards: written in units of documents, read as batches."""

import functools
import json
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.corpora import Corpus, Format, Masked, Shards, shards
from bertfam_tf.corpora.documents import FileRange, read_documents
from bertfam_tf.corpora.shards import Unit
from bertfam_tf.sources import sha256
from bertfam_tf.text import load_tokenizer
from tests.selection import in_full

TEXT = "\n".join(
    "\n".join(f"good film {'the ' * (i % 5)}bad plot {'dull ' * (i % 3)}." for i in range(n)) + "\n"
    for n in (7, 1, 12, 4, 3, 9)
)
# Loaded once: their functions are traced when they are first called.
_tokenizer = functools.cache(load_tokenizer)
LINES = ["", "", " ", "a b. C d", "é" * 3, "x\rY", "\r", "z"]


@pytest.mark.parametrize("documents", ["blank_line", "line", "file"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 1000])
def test_each_document_is_in_one_unit(tmp_path, documents, size):
    draw = random.Random(size)
    files = []
    for name in map(str, range(20)):
        text = "".join(
            draw.choice(LINES) + draw.choice(["\n", "\r\n", "\n\n"])
            for _ in range(draw.randrange(12))
        )
        content = (draw.choice(["", "\ufeff"]) + text + draw.choice(["", "end"])).encode()
        (tmp_path / name).write_bytes(content)
        files.append((str(tmp_path / name), len(content)))
    expected = [list(each) for each in read_documents([file for file, _ in files], documents)]
    units = shards.units_of(files, size, documents)
    assert [unit.number for unit in units] == list(range(len(units)))
    found = [list(each) for unit in units for each in read_documents(unit.texts, documents)]
    assert found == expected
    if documents == "line" and size < 20:
        assert len(units) > 20


def test_units_are_ranges_over_all_files():
    files = [("a", 5), ("b", 9), ("c", 0), ("d", 1)]
    assert shards.units_of(files, 4, "blank_line") == [
        Unit(0, (FileRange("a", 0, 4),)),
        Unit(1, (FileRange("a", 4, None), FileRange("b", 0, 3))),
        Unit(2, (FileRange("b", 3, 7),)),
        Unit(3, (FileRange("b", 7, None), FileRange("c"), FileRange("d"))),
    ]
    assert shards.units_of(files, 4, "file") == [
        Unit(0, (FileRange("a"),)),
        Unit(1, (FileRange("b"),)),
        Unit(2, (FileRange("c"), FileRange("d"))),
    ]


@pytest.fixture
def written(tiny, tmp_path):
    """Makes a folder of shards."""
    (tmp_path / "text").write_text(TEXT)

    def make(name="shards", size=300, finish=True, task="nsp", **changes):
        form = Format(_tokenizer(tiny), changes.pop("length", 24), "segment_pairs", task)
        options = {"documents": "blank_line", "sentences": "line", "seed": 3, **changes}
        text = tmp_path / "text"
        units = shards.units_of([(str(text), len(TEXT))], size, options["documents"])
        files = [{"name": "text", "bytes": len(TEXT), "sha256": sha256(text)}]
        job = shards.description(form, files=files, unit=size, **options)
        folder = tmp_path / name
        shards.begin(folder, job)
        for unit in shards.missing(folder, units):
            shards.write_shard(folder, unit, form, **options)
        if finish:
            shards.finish(folder, job, units)
        return folder

    return make


def _read(folder, tiny, length=24, format="segment_pairs", task="nsp", **options):
    return Shards([folder], Format(_tokenizer(tiny), length, format, task), **options)


def _all(batches):
    """Examples without padding."""
    found = []
    for inputs, targets, _ in batches:
        rows = zip(inputs["token_ids"], inputs["padding_mask"], targets["pair"], strict=True)
        found += [(tuple(row.numpy()[mask.numpy() > 0]), int(pair)) for row, mask, pair in rows]
    return found


def _seeds(token_ids, padding_mask, seeds):
    """No masks; the seeds that they would be drawn with, as positions."""
    return Masked(token_ids, seeds, seeds, tf.ones(tf.shape(seeds)), seeds, seeds)


def _with_seeds(batches):
    seeds = [tuple(map(int, row)) for _, targets, _ in batches for row in targets["positions"]]
    return list(zip(_all(batches), seeds, strict=True))


@pytest.mark.extended
def test_one_unit_has_the_examples_of_the_text(written, tiny, tmp_path):
    read = _read(written(size=10_000), tiny, shuffle=1, seed=3)
    text = Corpus([tmp_path / "text"], _tokenizer(tiny), 24, "segment_pairs", shuffle=1, seed=3)
    assert _with_seeds(read.batches(4, _seeds)) == _with_seeds(text.batches(4, _seeds))
    assert read.count() == text.count()


@pytest.mark.full
def test_a_pass_has_all_examples_in_an_order_of_its_own(written, tiny):
    folder = written()
    card = json.loads((folder / "card.json").read_text())
    number = _read(folder, tiny).count()
    ordered = _all(_read(folder, tiny, shuffle=1).batches(4, _seeds))
    assert len(card["shards"]) > 3
    assert card["counts"] == {
        "documents": 6,
        "sentences": 36,
        "tokens": sum(len(ids) - 2 - (pair >= 0) for ids, pair in ordered),
        "examples": len(ordered),
        "labels": {label: sum(pair == int(label) for _, pair in ordered) for label in ("0", "1")},
    }
    assert number == len(ordered)
    read = _read(folder, tiny, shuffle=8, seed=5)
    whole = _with_seeds(read.batches(4, _seeds, passes=2))
    order = [example for example, _ in whole]
    assert sorted(order[:number]) == sorted(order[number:]) == sorted(ordered)
    assert order[:number] != order[number:]
    assert len({seeds for _, seeds in whole}) == 2 * number
    # The order is that of the seed alone, in batches of any size, from any place.
    tf.random.set_seed(2)
    again = _read(folder, tiny, shuffle=8, seed=5)
    assert whole == _with_seeds(again.batches(1, _seeds, passes=2))
    assert whole[6:] == _with_seeds(again.batches(3, _seeds, passes=2).skip(2))
    endless = again.batches(1, _seeds, passes=None)
    assert whole[6:] == _with_seeds(endless.skip(6).take(2 * number - 6))
    other = _read(folder, tiny, shuffle=8, seed=6)
    assert _all(other.batches(4, _seeds)) != order[:number]


@pytest.mark.extended
@pytest.mark.parametrize("shuffle", in_full([1, 4, 10_000], [4]))
def test_static_masks_repeat_and_dynamic_ones_do_not(written, tiny, shuffle):
    read = _read(written(), tiny, shuffle=shuffle)
    number = read.count()
    for copies, repeats in ((1, True), (2, False), (None, False)):
        found = _with_seeds(read.batches(4, _seeds, copies=copies, passes=3))
        passes = [found[n * number : (n + 1) * number] for n in range(3)]
        first, second, third = map(sorted, passes)
        assert (first == second) == repeats
        assert (first == third) == (copies is not None)
        assert (passes[0] == passes[2]) == (copies is not None and shuffle == 1)
        assert len({seeds for _, seeds in passes[0]}) == number
        if copies != 2:
            continue
        begin = number + 3
        resumed = read.batches(4, _seeds, copies=copies, passes=3, start=begin)
        assert _with_seeds(resumed) == found[begin:]


@pytest.mark.extended
def test_batches_of_tokens(written, tiny):
    read = _read(written(), tiny, shuffle=8)
    options = dict(batch_tokens=50, passes=2)
    whole = [_with_seeds([batch]) for batch in read.batches(None, _seeds, **options)]
    found = [row for batch in whole for row in batch]
    assert found == _with_seeds(read.batches(4, _seeds, passes=2))
    sizes = [sum(len(ids) for (ids, _), _ in batch) for batch in whole]
    assert 0 < min(sizes) <= max(sizes) <= 50
    resumed = read.batches(None, _seeds, start=7, **options)
    assert [_with_seeds([batch]) for batch in resumed] == whole[7:]


def test_pairs_with_one_label_are_an_error(written, tiny):
    _read(written(), tiny).check_labels()
    with pytest.raises(ValueError, match=r"nsp needs pairs with both labels, but .*alone has no"):
        _read(written("alone", documents="file"), tiny).check_labels()


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_resumed_folder_equals_one_written_at_once(written, tmp_path):
    whole = _content(written("whole"))
    part = written("part", finish=False)
    assert set(_content(part)) > {"job.json", "counts-00000.json"}
    (part / "counts-00001.json").unlink()
    (part / "examples-00001.tfrecord").write_bytes(b"damaged")
    kept = (part / "examples-00000.tfrecord").stat().st_mtime_ns
    left = part / ".examples-00000.tfrecord.abcdefgh.tmp"
    left.mkdir()
    (left / "examples-00000.tfrecord").write_bytes(b"half")
    assert _content(written("part")) == whole
    assert (part / "examples-00000.tfrecord").stat().st_mtime_ns == kept
    # As if it was killed before it had removed everything.
    (part / "counts-00001.json").write_text("{}")
    assert _content(written("part")) == whole
    left.mkdir()  # by one of several workers, which was killed
    shards.end(part)
    assert _content(part) == whole
    written("begun", finish=False)
    for changes, name in (
        ({"seed": 4}, "seed"),
        ({"length": 20}, "length"),
        ({"size": 99}, "unit"),
    ):
        for folder in ("part", "begun"):
            with pytest.raises(ValueError, match=f"has shards with other settings .*{name} is"):
                written(folder, **changes)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    with pytest.raises(ValueError, match="mine contains file, and nothing that describes shards"):
        written("mine")


def test_errors(written, tiny, tmp_path):
    folder = written()
    for options, message in (
        (dict(length=25), "another length: 24, expected 25"),
        (dict(format="full_sentences"), "another format: 'segment_pairs', expected 'full_sent"),
        (dict(task="sop"), "another task: 'nsp', expected 'sop'"),
        (dict(shuffle=0), "shuffle must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            _read(folder, tiny, **options)
    shutil.copytree(tiny, tmp_path / "other")
    vocabulary = tmp_path / "other" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    with pytest.raises(ValueError, match="another tokenizer_sha256"):
        _read(folder, tmp_path / "other")
    with pytest.raises(ValueError, match=r"tmp.* has no card\.json"):
        _read(tmp_path, tiny)
    card = json.loads((folder / "card.json").read_text())
    row = {**card["shards"][0], "file": "../text"}
    for changes, message in (
        ({"version": 2}, "version is 2, expected 1"),
        ({"counts": {}}, "is not a data card: KeyError"),
        ({"shards": [{}]}, "is not a data card: KeyError"),
        ({"counts": {"examples": 9, "labels": [0]}}, "is not a data card: it has invalid labels"),
        ({"shards": [row]}, "a shard is '../text', expected a file name in its folder"),
    ):
        (folder / "card.json").write_text(json.dumps({**card, **changes}))
        with pytest.raises(ValueError, match=message):
            _read(folder, tiny)
    (folder / "card.json").write_text(json.dumps(card))
    shard = folder / max(card["shards"], key=lambda each: each["bytes"])["file"]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"\d.tfrecord is [\d,]+ bytes, expected"):
        _read(folder, tiny)
    shard.unlink()
    with pytest.raises(ValueError, match=r"\d.tfrecord is missing, expected"):
        _read(folder, tiny)
    with pytest.raises(ValueError, match="must be at least 1 byte"):
        written("small", size=0)
    (tmp_path / "text").write_text("\n" * len(TEXT))
    with pytest.raises(ValueError, match="There is no text in text"):
        written("empty")


def test_a_copy_of_a_tokenizer_is_the_same(tiny, tmp_path):
    tokenizer = load_tokenizer(tiny)
    tokenizer.save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert shards.tokenizer_digest(load_tokenizer(tmp_path)) == shards.tokenizer_digest(tokenizer)


def test_other_programs_read_the_records(written, tiny):
    tokenizer, folder = _tokenizer(tiny), written()
    data = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord"))))
    found = [tf.train.Example.FromString(each.numpy()).features.feature for each in data]
    words = [t for each in found for n in ("first", "second") for t in each[n].int64_list.value]
    expected = tokenizer.tokenize(TEXT.split("\n")).flat_values.numpy()
    np.testing.assert_array_equal(sorted(words), sorted(expected))

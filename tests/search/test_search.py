"""Indexes of documents, and search in them."""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertfam_tf as bf
from bertfam_tf import cli, search
from bertfam_tf.data import read_rows
from bertfam_tf.files import exclusive_lock
from bertfam_tf.search.storage import Part, read_description
from tests.selection import in_full, only_in

WORDS = "a the film plot cast good bad is it of not was".split()


def _documents(count=23):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


DOCUMENTS = _documents()


@pytest.fixture(scope="module")
def task(tiny):
    prompts = {"query": "it is ", "document": "the "}
    return bf.TextEmbedder.from_pretrained(tiny, prompts=prompts, normalize=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    path.write_text("\n".join([*DOCUMENTS[:9], "", " \t ", *DOCUMENTS[9:]]) + "\n")
    return path


ROWS = [*range(9), *range(11, 25)]
SOURCE = {"input": "documents.txt"}


def _build(task, file, directory, **options):
    given = dict(part_rows=8, verbose=False, prompt="document", batch_size=4)
    return search.build(task, read_rows(file), directory, SOURCE, **{**given, **options})


@pytest.fixture(scope="module")
def built(task, file, tmp_path_factory):
    directories = {}
    for precision in ("float32", "int8", "binary"):
        directories[precision] = tmp_path_factory.mktemp("indexes") / precision
        assert _build(task, file, directories[precision], precision=precision) == len(DOCUMENTS)
    return directories


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built["float32"], tmp_path / "copy")


def _cosines(task, queries):
    found = [task.predict(queries, prompt="query"), task.predict(DOCUMENTS, prompt="document")]
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in found)
    return a @ b.T


def _unique(scores):
    """Documents may be equal: the best score, and not the document, is known."""
    return np.sort(scores, axis=1)[:, ::-1]


@only_in("extended", "float32-1e-05")
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("int8", 0.02)])
def test_the_nearest_are_those_with_the_largest_cosines(task, built, precision, tolerance):
    pytest.importorskip("faiss")
    queries = ["a good film", "bad", ""]
    found = search.Index(built[precision]).search(task, queries, top=5, prompt="query")
    cosines = _cosines(task, queries)
    scores = np.array([[hit.score for hit in hits] for hits in found])
    np.testing.assert_allclose(scores, _unique(cosines)[:, :5], atol=tolerance)
    for row, hits in enumerate(found):
        for hit in hits:
            place = ROWS.index(hit.row)
            assert (hit.text, hit.id) == (DOCUMENTS[place], str(hit.row))
            assert hit.score == pytest.approx(cosines[row, place], abs=tolerance)


@pytest.mark.extended
def test_an_index_of_more_than_a_part_with_nothing_chosen(task, tmp_path, capfd):
    """Parts of 1,024 rows, batches of 32 texts in order of their lengths, no prompts."""
    pytest.importorskip("faiss")
    documents = _documents(1050)
    (tmp_path / "documents.txt").write_text("\n".join(documents) + "\n")
    rows = read_rows(tmp_path / "documents.txt")
    assert search.build(task, rows, tmp_path / "index", SOURCE) == 1050
    assert "1050/1050" in capfd.readouterr().out
    assert read_description(tmp_path / "index").parts == 2
    [hits] = search.Index(tmp_path / "index").search(task, ["a good film"])
    found = np.concatenate(
        [task.predict(documents, prompt=None), task.predict(["a good film"], prompt=None)]
    )
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    cosines = found[:-1] @ found[-1]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(cosines)[::-1][:10], atol=1e-5)
    assert all(hit.text == documents[hit.row] for hit in hits)


def test_bits_find_what_is_near(task, built):
    pytest.importorskip("faiss")
    index = search.Index(built["binary"])
    [hits] = index.search(task, ["a good film"], top=3, prompt="query")
    vectors = np.concatenate([part.vectors() for part in index._parts])
    signs = np.unpackbits(vectors, axis=-1, count=32) * 2.0 - 1
    query = task.predict(["a good film"], prompt="query")[0]
    expected = signs @ (query / np.linalg.norm(query)) / np.sqrt(32)
    found = [hit.score for hit in hits]
    np.testing.assert_allclose(found, np.sort(expected)[::-1][:3], atol=1e-5)


def test_int8_is_searched_in_chunks(task, built, monkeypatch):
    pytest.importorskip("faiss")
    whole = search.Index(built["int8"]).search(task, ["bad"], top=20, prompt="query")
    monkeypatch.setattr("bertfam_tf.search.index._CHUNK", 7)
    chunks = search.Index(built["int8"]).search(task, ["bad"], top=20, prompt="query")
    assert [h.score for h in chunks[0]] == pytest.approx([h.score for h in whole[0]], abs=1e-6)
    assert sorted(h.row for h in chunks[0]) == sorted(h.row for h in whole[0])


def test_more_than_all_are_all(task, built):
    pytest.importorskip("faiss")
    for directory in built.values():
        index = search.Index(directory)
        [hits] = index.search(task, ["bad"], top=99)
        assert sorted(hit.row for hit in hits) == ROWS
        assert index.search(task, []) == []


@pytest.mark.parametrize("precision", in_full(["float32", "int8", "binary"], ["int8"]))
def test_a_killed_build_resumes(task, file, built, tmp_path, monkeypatch, precision):
    embedded, whole, target = [], task.predict, tmp_path / "index"

    def predict(texts, **options):
        if embedded == [8, 6]:
            raise KeyboardInterrupt
        embedded.append(len(texts))
        return whole(texts, **options)

    monkeypatch.setattr(task, "predict", predict)
    with pytest.raises(KeyboardInterrupt):
        _build(task, file, target, precision=precision)
    with pytest.raises(ValueError, match=r"is not complete; the same .* resumes"):
        search.Index(target)
    embedded.clear()
    assert _build(task, file, target, precision=precision) == len(DOCUMENTS)
    assert embedded == [8, 1]
    for part in built[precision].iterdir():
        assert (target / part.name).read_bytes() == part.read_bytes()
    assert _build(task, file, target, precision=precision) == len(DOCUMENTS)
    assert embedded == [8, 1]


def test_two_processes_do_not_write_one_index(task, file, tmp_path):
    target = tmp_path / "index"
    lock = exclusive_lock(target, tmp_path / ".index.lock")
    with lock, pytest.raises(BlockingIOError, match="index is being written by another process"):
        _build(task, file, target)
    assert not target.exists()


def test_an_index_that_is_replaced_while_it_is_searched(copy):
    found = search.Index(copy)
    part = copy / "part-00000.safetensors"
    other = Path(shutil.copy(part, part.with_name("other")))
    other.rename(part)
    with pytest.raises(ValueError, match=r"part-00000\.safetensors; .* changed or replaced"):
        found._parts[0].documents([0])


def test_another_build_is_refused(task, file, copy, tmp_path):
    for options, error in (
        (dict(precision="int8"), "precision is 'float32', expected 'int8'"),
        (dict(prompt=None), "prompt is 'document', expected None"),
        (dict(precision="int4"), "'int4'"),
        (dict(prompt="passage"), "'passage'"),
    ):
        with pytest.raises(ValueError, match=error):
            _build(task, file, copy, **options)
    with pytest.raises(ValueError, match=r"source is .*, expected"):
        search.build(task, read_rows(file), copy, {"input": "x"}, prompt="document", part_rows=8)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(ValueError, match="contains notes, and nothing that describes an index"):
        _build(task, file, tmp_path / "full")


def test_another_model_is_refused(tiny, built):
    pytest.importorskip("faiss")
    index = search.Index(built["float32"])
    prompts = {"query": "it is ", "document": "the "}
    other = bf.TextEmbedder.from_pretrained(tiny, prompts=prompts)
    error = r"was built by another model: a bert TextEmbedder of 32 values, \w{12}; this one is a"
    with pytest.raises(ValueError, match=error):
        index.search(other, ["bad"])
    same = bf.TextEmbedder.from_pretrained(tiny, prompts=prompts, normalize=False)
    index.check(same)
    weight = same.backbone.get_layer("token_embedding").embeddings
    weight.assign(weight + 1e-3)
    with pytest.raises(ValueError, match="another model"):
        index.check(same)


def test_the_fingerprint_is_that_of_a_saved_task(task, tmp_path):
    task.save(tmp_path / "saved")
    assert search.fingerprint(search.embedder(tmp_path / "saved")) == search.fingerprint(task)


def test_rows_without_any_text(task, tmp_path):
    (tmp_path / "a.txt").write_text("\n \n\n")
    with pytest.raises(ValueError, match=r"No row of documents.txt has any text"):
        _build(task, tmp_path / "a.txt", tmp_path / "index")


def _description(**values):
    def change(directory):
        file = directory / "index.json"
        stored = {**json.loads(file.read_text()), **values}
        file.write_text(json.dumps({k: v for k, v in stored.items() if v is not ...}))

    return change


def _part(name="part-00001.safetensors", **values):
    def change(directory):
        file = directory / name
        stored = load_file(file) | values
        save_file({k: v for k, v in stored.items() if v is not None}, file)

    return change


def _cut(directory):
    file = directory / "part-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


NAN = np.full((6, 32), np.nan, "f4")
DAMAGES = {
    "no description": (lambda d: (d / "index.json").unlink(), "No index.json in"),
    "not JSON": (lambda d: (d / "index.json").write_text("{"), "index.json is not JSON"),
    "another format": (_description(format=2), "index of format 1"),
    "a missing key": (_description(width=...), "is not the description"),
    "an unknown key": (_description(code="x"), "is not the description"),
    "width": (_description(width=10**9), "width must be from 1 to"),
    "bool for a number": (_description(rows=True), "rows must be from 1 to"),
    "rows": (_description(rows=10**12), "part-00004.safetensors cannot be read"),
    "part of nothing": (_description(part_rows=0), "part_rows must be from 1"),
    "precision": (_description(precision="f64"), "has a value that is not valid"),
    "no ranges": (_description(precision="int8"), "index.json: int8 needs the ranges"),
    "ranges": (
        _description(precision="int8", ranges=[["a"], ["b"]]),
        "index.json: could not convert",
    ),
    "documents": (_description(documents=24), "says 24 documents, but its parts have 23"),
    "no documents": (_description(documents=0), "has a value that is not valid"),
    "missing part": (lambda d: (d / "part-00002.safetensors").unlink(), "part-00002.* cannot be"),
    "cut part": (_cut, "part-00001.safetensors cannot be read as safetensors"),
    "another tensor": (
        _part(x=np.ones(1)),
        "part-00001.safetensors has id_ends, .* x, expected id_ends",
    ),
    "no texts": (_part(texts=None), "expected id_ends, ids, rows, text_ends, texts, vectors"),
    "another width": (
        _part(vectors=np.ones((6, 31), "f4")),
        r"vectors is F32 \(6, 31\), expected F32 \(6, 32\)",
    ),
    "another type": (_part(vectors=np.ones((6, 32))), "vectors is F64"),
    "NaN": (_part(vectors=NAN), "vectors contains NaN or infinity"),
    "texts of floats": (_part(texts=np.ones(3, "f4")), "texts is .*F32.*, expected bytes"),
    "too many": (
        _part(
            **dict.fromkeys(("rows", "text_ends", "id_ends"), np.zeros(9, "int64")),
            vectors=np.ones((9, 32), "f4"),
        ),
        "at most 8 rows",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_indexes_are_named(copy, damage):
    pytest.importorskip("faiss")
    change, error = DAMAGES[damage]
    change(copy)
    with pytest.raises(ValueError, match=f"(?s){error}"):
        search.Index(copy)


@pytest.mark.parametrize("ends", [[5, 4, 6, 7, 8, 9], [-1] * 6, [10**12] * 6, [0] * 6])
def test_texts_are_inside_of_their_file(copy, ends):
    _part(text_ends=np.array(ends, "int64"))(copy)
    part = Part(copy / "part-00001.safetensors", read_description(copy))
    with pytest.raises(ValueError, match=r"text_ends does not divide \d+ bytes"):
        part.documents([0])


def test_texts_that_are_not_utf8(copy):
    texts = load_file(copy / "part-00001.safetensors")["texts"] | 0x80
    _part(texts=texts)(copy)
    part = Part(copy / "part-00001.safetensors", read_description(copy))
    assert "\ufffd" in part.documents([0])[0][2]


def test_without_faiss(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match=r"faiss-cpu: pip install 'bertfam-tf\[search\]'"):
        search.Index(built["float32"])


def test_another_task_is_no_embedder(tiny, tmp_path):
    bf.TextClassifier.from_pretrained(tiny).save(tmp_path / "classifier")
    with pytest.raises(ValueError, match="is a TextClassifier, expected a TextEmbedder"):
        search.embedder(tmp_path / "classifier")


@pytest.mark.full
def test_commands(task, tmp_path, capsys):
    pytest.importorskip("faiss")
    task.save(tmp_path / "model")
    rows = [{"key": i * 10, "body": text} for i, text in enumerate(DOCUMENTS)]
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, index = str(tmp_path / "model"), str(tmp_path / "index")
    given = ["--input", str(file), "--text", "body", "--id", "key"]
    assert cli.main(["index", model, *given, "--output", index, "--precision", "int8"]) == 0
    assert capsys.readouterr().out.endswith(f"23 documents in {index}\n")
    assert read_description(tmp_path / "index").prompt == "document"
    assert cli.main(["search", model, index, "a good film", "bad", "--top", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["query"] for line in lines] == ["a good film", "bad"]
    expected = search.Index(index).search(task, ["a good film"], top=2, prompt="query")[0]
    best = [{**hit._asdict(), "score": round(hit.score, 6)} for hit in expected]
    assert lines[0]["results"] == best
    assert all(int(each["id"]) == 10 * each["row"] for each in best)
    other = tmp_path / "other"
    bf.TextEmbedder(task.backbone, task.tokenizer).save(other)
    assert cli.main(["search", str(other), index, "bad"]) == 2
    assert "was built by another model" in capsys.readouterr().err
    assert cli.main(["index", model, *given[:-1], "kye", "--output", index + "2"]) == 2
    assert "kye" in capsys.readouterr().err


def test_a_csv_with_columns(task, tmp_path):
    (tmp_path / "a.csv").write_text('title,body\n"x, y",good\nz,bad\n')
    rows = read_rows(tmp_path / "a.csv", {"text": "body", "id": "title"})
    search.build(task, rows, tmp_path / "index", SOURCE, verbose=False)
    part = Part(tmp_path / "index" / "part-00000.safetensors", read_description(tmp_path / "index"))
    assert part.documents([1, 0]) == [(1, "z", "bad"), (0, "x, y", "good")]
    assert asdict(read_description(tmp_path / "index"))["documents"] == 2

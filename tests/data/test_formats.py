"""Formats of files: compressed, columnar and JSON ones, patterns, and what is no text."""

import contextlib
import gzip
import json
import logging
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest

from bertfam_tf import cli
from bertfam_tf.corpora import read_documents
from bertfam_tf.corpora.documents import find_files
from bertfam_tf.corpora.shards import units_of
from bertfam_tf.corpora.token_streams import read_lines
from bertfam_tf.data import as_value_errors, format_of, read_rows, targets
from bertfam_tf.data.columnar import columnar_rows
from bertfam_tf.data.reading import expanded

ROWS = [("a café", "yes"), ("it is", "no"), ("good", "yes")]
RECORDS = [{"text": text, "label": label} for text, label in ROWS]


def _text(form):
    if form == "tsv":
        return "text\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in ROWS)
    if form == "csv":
        return "text,label\n" + "".join(f'"{t}",{y}\n' for t, y in ROWS)
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in RECORDS)
    return json.dumps(RECORDS, indent=2)


def _columnar(file, columns, names=None):
    """Writes columns as the file's name says; ``names`` are those of the label's classes."""
    arrow = pytest.importorskip("pyarrow")
    table = columns if isinstance(columns, arrow.Table) else arrow.table(columns)
    if names is not None:
        label = {"names": names, "_type": "ClassLabel"}
        kind = {"feature": label, "_type": "List"} if "tokens" in columns else label
        features = {"info": {"features": {"label": kind, "text": {"dtype": "string"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    if file.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, file, row_group_size=2)
    elif file.suffix == ".feather":
        from pyarrow import feather

        feather.write_feather(table, file)
    else:  # a stream, as ``datasets`` writes it
        with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table, max_chunksize=2)
    return file


def _found(files, target=None, **options):
    rows = read_rows(files, target=target or targets.Name(), **options)
    with as_value_errors():
        elements = list(rows.dataset().as_numpy_iterator())
    assert len(elements) == rows.count
    return [(x["text"].decode(), y.decode()) for x, y in elements]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "json"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_text_formats(tmp_path, form, compressed, bom):
    data = (bom + _text(form)).encode()
    file = tmp_path / f"train.{form}{'.gz' if compressed else ''}"
    file.write_bytes(gzip.compress(data) if compressed else data)
    assert format_of(file) == form
    assert _found(file) == ROWS


def test_a_file_that_is_compressed_without_the_name(tmp_path):
    (tmp_path / "train.csv").write_bytes(gzip.compress(_text("csv").encode()))
    assert _found(tmp_path / "train.csv") == ROWS


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
@pytest.mark.parametrize("names", [None, ["no", "yes"]])
def test_columnar_files(tmp_path, name, names):
    labels = [label if names is None else names.index(label) for _, label in ROWS]
    columns = {"id": [1, 2, 3], "text": [text for text, _ in ROWS], "label": labels}
    file = _columnar(tmp_path / name, columns, names)
    assert _found(file) == ROWS
    rows = read_rows(file, target=targets.Name(["yes"]), skip=True)
    assert (rows.count, rows.skipped) == (2, {"label": 1})
    with pytest.raises(ValueError, match=rf"{name}: Unknown column 'txt'\. Did you mean 'text'"):
        read_rows(file, {"text": "txt"})


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_values_of_columnar_files(tmp_path, name):
    columns = {"text": ["a", None], "label": [0, -1], "tokens": [["a"], ["b"]]}
    file = _columnar(tmp_path / name, columns)
    with pytest.raises(ValueError, match=rf"{name}: row 1: text must be a string .*, got null"):
        read_rows(file)
    nested = {"tokens": [["Anna", "is"], ["b"]], "label": [[1, 0], [0]], "s": [{"x": "p"}] * 2}
    file = _columnar(tmp_path / name, nested, ["O", "B-PER"])
    columns = {"text": "tokens", "label": "label"}
    assert _found(file, targets.Tags(), columns=columns) == [("Anna is", "B-PER O"), ("b", "O")]
    assert [row.features for row in read_rows(file, {"text": "s.x"})] == [{"text": b"p"}] * 2
    numbers = {"text": ["a", "b"], "label": [Decimal("1.50"), Decimal("2.00")]}
    file = _columnar(tmp_path / name, numbers)
    assert _found(file, targets.Number()) == [("a", "1.50"), ("b", "2.00")]
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-40])
    with pytest.raises(ValueError, match=rf"{name} cannot be read as Parquet or Arrow; it may"):
        list(read_rows(file, columns))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_that_python_cannot_read(tmp_path, name):
    """Strings that are not UTF-8, and dates that Python does not have, are errors of their row."""
    arrow = pytest.importorskip("pyarrow")
    offsets, characters = np.array([0, 1, 3, 4], "int32"), b"ab\xffc"
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(characters)]
    broken = arrow.Array.from_buffers(arrow.string(), 3, buffers)
    far = arrow.array([0, 2**62, 0], arrow.timestamp("us"))
    label = ["yes", "no", "yes"]
    file = _columnar(tmp_path / name, {"text": broken, "day": far, "label": label})
    with pytest.raises(ValueError, match=rf"{name}: row 1: text is not UTF-8: the byte 0xff after"):
        read_rows(file, target=targets.Name())
    rows = read_rows(file, target=targets.Name(), skip=True)
    assert ([row.features["text"] for row in rows], rows.skipped) == ([b"a", b"c"], {"encoding": 1})
    *_, days = zip(*enumerate(columnar_rows(file, {"text": "day"})), strict=True)
    assert str(days[1]) == f"{file}: row 1: day cannot be read: date value out of range."


@pytest.mark.parametrize("kind", ["offset", "index"])
def test_arrow_files_that_point_outside(tmp_path, kind):
    """pyarrow reads any memory that an Arrow file's offsets point to."""
    arrow = pytest.importorskip("pyarrow")
    values = ["a fine film", "dull"] * 20
    column = arrow.array(values)
    column = column.dictionary_encode() if kind == "index" else column
    table, file = arrow.table({"text": column}), tmp_path / "a.arrow"
    with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    assert len(list(read_rows(file))) == len(values)
    data = file.read_bytes()
    numbers = [0, 1, 0, 1] if kind == "index" else [0, 11, 15, 26]
    old = np.array(numbers, "int32").tobytes()
    assert data.count(old) >= 1
    numbers[1] = 2**30
    file.write_bytes(data.replace(old, np.array(numbers, "int32").tobytes()))
    with pytest.raises(ValueError, match=r"a\.arrow cannot be read as Parquet or Arrow; it may be"):
        read_rows(file)


def _write_large(file, text, compression):
    """Writes rows that share one text, which a file of a few kilobytes holds."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    indices = arrow.array([0] * 1024, arrow.int32())
    column = arrow.DictionaryArray.from_arrays(indices, arrow.array([text]))
    if file.suffix == ".parquet":
        parquet.write_table(arrow.table({"text": column}), file, compression=compression or "none")
        return
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    write = arrow.ipc.new_file if file.suffix == ".feather" else arrow.ipc.new_stream
    table = arrow.table({"text": column})
    with arrow.OSFile(str(file), "wb") as sink, write(sink, table.schema, options=options) as out:
        out.write_table(table)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
def test_values_that_expand(tmp_path, name):
    """JSON and gzip have the same limit; texts of other tests are compressed too."""
    file = tmp_path / name
    _write_large(file, "a" * (65 << 20), "zstd")
    assert file.stat().st_size < 1 << 16
    with pytest.raises(ValueError, match=rf"{name}: .* would expand to 68,15.*at most 67,10"):
        read_rows(file, {"text": "text"})


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow"])
def test_rows_that_share_a_value(tmp_path, monkeypatch, name):
    """1,024 rows of 64 KiB are not strings in Python at the same time."""
    monkeypatch.setattr("bertfam_tf.data.columnar_limits._BATCH_BYTES", 1 << 20)
    file = tmp_path / name
    _write_large(file, "a" * (1 << 16), None)
    tracemalloc.start()
    try:
        count = sum(len(row.features["text"]) for row in columnar_rows(file, {"text": "text"}))
        assert count == 1 << 26
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_list_that_expands(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    words = arrow.array([[None] * (65 << 20)], arrow.list_(arrow.string()))
    file = _columnar(tmp_path / "a.parquet", {"text": words})
    with pytest.raises(ValueError, match=r"a\.parquet: column text\..*: its lists of .* expand to"):
        read_rows(file, {"text": "text"})


@pytest.mark.parametrize("cut", [5, 40, 200])
def test_damaged_sizes(tmp_path, cut):
    """The sizes that a file declares are read before pyarrow reads it."""
    for name in ("a.parquet", "a.feather", "a.arrow"):
        file = tmp_path / name
        _write_large(file, "a fine film " * 100, "zstd")
        data = bytearray(file.read_bytes())
        data[4 : 4 + cut] = b"\xff" * cut
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}"):
            read_rows(file, {"text": "text"})


def test_damaged_parquet_metadata(tmp_path):
    """pyarrow aborts the process when it is asked for some damaged metadata of a column."""
    file = tmp_path / "a.parquet"
    _columnar(file, pytest.importorskip("pyarrow").table({"text": ["a", None], "n": [[1], []]}))
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    random = np.random.default_rng(0)
    for place in random.permutation(np.arange(len(data) - 8 - length, len(data)))[:400]:
        damaged = bytearray(data)
        damaged[place] = random.integers(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            list(columnar_rows(file, {"text": "text"}))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_and_classes_that_are_wrong(tmp_path, name):
    arrow = pytest.importorskip("pyarrow")
    twice = arrow.Table.from_arrays([arrow.array(["a"]), arrow.array(["b"])], ["text", "text"])
    file = _columnar(tmp_path / name, twice)
    with pytest.raises(ValueError, match=rf"{name} has 2 columns 'text', expected one"):
        read_rows(file)
    features = {"info": {"features": {"text": []}}}
    table = arrow.table({"text": ["a"]}).replace_schema_metadata(
        {"huggingface": json.dumps(features)}
    )
    assert [row.features for row in read_rows(_columnar(file, table))] == [{"text": b"a"}]
    compressed = tmp_path / f"{name}.gz"
    compressed.write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"{name}\.gz is compressed by gzip; Parquet and Arrow"):
        read_rows(compressed)


def test_answers_in_records(tmp_path):
    answers = [{"text": ["b", "a"], "answer_start": [2, 0]}, {"text": [], "answer_start": []}]
    columns = {"question": ["q", "r"], "context": ["a b", "c"], "answers": answers}
    named = {"question": "question", "context": "context", "label": "answers"}
    file = _columnar(tmp_path / "a.parquet", columns)
    lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for each in (file, tmp_path / "a.jsonl"):
        rows = read_rows(each, named, target=targets.Answers())
        assert [row.label for row in rows] == [[("b", 2), ("a", 0)], []]
        assert rows.labels == {"answer": 1, "no answer": 1}


def test_json_lines_and_squad_by_content(tmp_path):
    (tmp_path / "lines.json").write_text(_text("jsonl"))
    assert format_of(tmp_path / "lines.json") == "json"
    assert _found(tmp_path / "lines.json") == ROWS
    (tmp_path / "squad.json").write_text('{"version": "1.1",\n "data": []}')
    assert format_of(tmp_path / "squad.json") == "squad"


def test_a_json_array_is_read_object_by_object(tmp_path):
    # More than what is read at a time, with objects across the bounds.
    rows = [{"text": "x" * (997 * i % 4001) + "é", "label": "y"} for i in range(200)]
    rows[7]["text"] = "long " * 40_000
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    assert _found(tmp_path / "a.json") == [(row["text"], "y") for row in rows]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ('[{"text": "a", "label": "x"},\n {"text": "b"}]', "line 2: Unknown column 'label'"),
        ('[{"text": "a", "label": "x"},\n 3]', "line 2 is not a JSON object"),
        ('[{"text": "a", "label": "x"},\n {"text": ', "line 2 is not JSON"),
        ('[{"text": "a", "label": "x"}\n', "is not JSON: the array does not end"),
        (b'[{"text": "a",\n "label": "caf\xe9"}]', "line 2 is not UTF-8: the byte 0xe9 after"),
        ("[" * 100_000, "line 1 is not JSON: it is nested too deeply"),
        ("[]", "a.json has no rows"),
        (
            '[{"text": "a", "label": "x"}]\n \n[{"text": "b", "label": "x"}]',
            "line 3 is not JSON: th",
        ),
        ('[{"text": "a", "label": "x"}]' + " " * 70_000 + "x", "there is more after the array's e"),
        ('[,{"text": "a", "label": "x"}]', "line 1 is not JSON: there is no element before ','"),
        (
            '[{"text": "a", "label": "x"},\n,{"text": "b", "label": "x"}]',
            "line 2 is not JSON: there is no element before ','",
        ),
        ('[{"text": "a", "label": "x"},\n]', "line 2 is not JSON: there is no element before ']'"),
        (
            '[{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}]',
            "line 2 is not JSON: there is no comma between two elements",
        ),
    ],
    ids=range(13),
)
def test_json_arrays_that_are_wrong(tmp_path, content, error):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(ValueError, match=error):
        read_rows(tmp_path / "a.json", target=targets.Name())


def test_patterns(tmp_path):
    for i, name in enumerate(("b.csv", "a.csv.gz", "c[1].csv")):
        data = f"text,label\n{i},x\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert [text for text, _ in _found(str(tmp_path / "[ab].csv*"))] == ["1", "0"]
    assert format_of(tmp_path / "[ab]*.gz") == "csv"
    # A file of that name.
    assert _found(tmp_path / "c[1].csv") == [("2", "x")]
    assert expanded([tmp_path / "b.csv"]) == [tmp_path / "b.csv"]
    with pytest.raises(ValueError, match=r"There is no file .*\*\.tsv"):
        read_rows(tmp_path / "*.tsv")


# What is no text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("t.tsv", b"text\tlabel\na\tx\ncaf\xe9\tx\n", "line 3 is not UTF-8: the byte 0xe9"),
        ("t.csv", b'text,label\n"a\nb",x\ncaf\xe9,x\n', "line 4 is not UTF-8: the byte 0xe9"),
        ("t.csv", b"text,caf\xe9\na,x\n", "line 1 is not UTF-8"),
        ("t.jsonl", b'{"text": "caf\xe9", "label": "x"}', "line 1 is not JSON: 'utf-8' codec"),
        ("t.conll", b"caf\xe9 O\n", "line 1 is not UTF-8: the byte 0xe9 after 'caf'"),
        ("t.txt", b"good\ncaf\xe9\n", "line 1: There is no label"),
        ("t.json", b'{"data": [\n"caf\xe9"]}', "line 2 is not UTF-8"),
    ],
)  # fmt: skip
def test_files_that_are_not_utf8(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    target = {"t.conll": targets.Tags(), "t.json": targets.Answers()}.get(name, targets.Name())
    with pytest.raises(ValueError, match=rf"{name}: {place}"):
        read_rows(tmp_path / name, target=target)


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.txt", "t.conll"])
def test_files_without_labels_that_are_not_utf8(tmp_path, caplog, name):
    header = b"text\n" if name in ("t.tsv", "t.csv") else b""
    (tmp_path / name).write_bytes(header + b"good\n\ncaf\xe9\n")
    with caplog.at_level(logging.WARNING):
        rows = read_rows(tmp_path / name)
    assert [row.features["text"] for row in rows][-1] == b"caf\xe9"
    line = 4 if header else 3
    assert "1 rows are not UTF-8, and the bytes that are not are read as U+FFFD" in caplog.text
    assert f"{name}: line {line} is not UTF-8: the byte 0xe9 after 'caf'" in caplog.text


def test_rows_that_are_not_utf8_are_skipped(tmp_path, caplog):
    (tmp_path / "t.csv").write_bytes(b"text,label\ncaf\xe9,x\na,x\n")
    with caplog.at_level(logging.WARNING):
        rows = read_rows(tmp_path / "t.csv", target=targets.Name(), skip=True)
    assert (rows.count, rows.skipped) == (1, {"encoding": 1})
    assert "iconv" in caplog.text


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"PK\x03\x04\x14\0", "a ZIP archive or a spreadsheet"),
        ("text\tlabel\n".encode("utf-16"), "text in UTF-16"),
        (b"%PDF-1.7", "a PDF file"),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl", "t.conll", "t.txt", "data"])
@pytest.mark.parametrize("compressed", [False, True])
def test_binary_files_are_named_and_not_printed(tmp_path, start, kind, name, compressed):
    data = start + bytes(range(256))
    (tmp_path / name).write_bytes(gzip.compress(data) if compressed else data)
    with pytest.raises(ValueError, match=f"{name} is {kind}, expected text in UTF-8") as raised:
        read_rows(tmp_path / name, target=None)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["t.tsv", "t.csv", "t.jsonl", "t.conll", "t.txt"])
def test_no_error_prints_control_characters(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x1b[31m\0\x07 a,b\tc\n\x1b]0;title\x07,x\n\x9b\n")
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        read_rows(tmp_path / name, {"text": "\x1b[31m", "label": "b"}, target=targets.Name(["x"]))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("cut", [5, 30])
def test_compressed_files_that_are_damaged(tmp_path, cut):
    data = gzip.compress(_text("csv").encode() * 3)
    (tmp_path / "t.csv.gz").write_bytes(data[:-cut])
    with pytest.raises(ValueError, match=r"t\.csv\.gz cannot be decompressed; it may be trunc"):
        read_rows(tmp_path / "t.csv.gz", target=None)


def test_a_compressed_file_does_not_fill_memory(tmp_path):
    with gzip.open(tmp_path / "t.tsv.gz", "wb") as stream:
        for _ in range(65):
            stream.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=r"t\.tsv\.gz has a line of more than 64 MiB"):
        read_rows(tmp_path / "t.tsv.gz", {"text": 0})


# Labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "error"),
    [
        ("", "line 3: The label '' is empty"),
        (" neg", "line 3: The label ' neg' begins or ends with white space"),
        ("neg ", "line 3: The label 'neg ' begins or ends with white space"),
    ],
)
def test_labels_that_are_empty_or_padded(tmp_path, label, error):
    file = tmp_path / "t.csv"
    file.write_text(f"text,label\na,pos\nb,{label}\n")
    with pytest.raises(ValueError, match=rf"t\.csv: {error}"):
        read_rows(file, target=targets.Name())
    # Unless they are named.
    assert _found(file, targets.Name({"pos": "pos", label: "neg"}))[1] == ("b", "neg")


def test_labels_that_look_the_same(tmp_path):
    """A letter with an accent, as one character and as two."""
    file = tmp_path / "t.csv"
    one, two = "caf\u00e9", "cafe\u0301"
    file.write_text(f"text,label\na,{one}\nb,{two}\n", "utf-8")
    with pytest.raises(ValueError, match=r"line 3: The label 'cafe\\u0301' is another spelling of"):
        read_rows(file, target=targets.Name())
    assert _found(file, targets.Name({one: one, two: one})) == [("a", one), ("b", one)]


@pytest.mark.parametrize("cell", ["['x', 'y']", '[""x"", ""y""]', "['x' 'y']", "[0, 1]", "[]"])
@pytest.mark.parametrize("target", [targets.Names, targets.Tags])
def test_lists_that_were_written_as_text(tmp_path, target, cell):
    """pandas writes lists to CSV as Python does."""
    file = tmp_path / "t.csv"
    text = "" if cell == "[]" else "a b"
    file.write_text(f'text,label\n{text},"{cell}"\n')
    with pytest.raises(ValueError, match=r"line 2: .* is a list that was written as text"):
        read_rows(file, target=target())
    file.write_text("text,label\na,[spam]\n")  # a name in brackets is one
    assert read_rows(file, target=target()).count == 1
    file.write_text("text,label\na b,[0] [1]\n")  # as are numbers in brackets
    assert read_rows(file, target=target()).count == 1


# Text of pretraining --------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_documents(tmp_path, compressed):
    data = "\ufeffA café.\nIt is.\n\nGood.\r\n".encode()
    file = tmp_path / ("a.txt.gz" if compressed else "a.txt")
    file.write_bytes(gzip.compress(data) if compressed else data)
    files = find_files([str(tmp_path / "*.txt*")])
    assert [list(each) for each in read_documents(files)] == [["A café.", "It is."], ["Good."]]
    lines = [b"A caf\xc3\xa9.", b"It is.", b"", b"Good."]
    assert list(read_lines(files)) == lines
    # A compressed file is one unit, wherever its bytes would divide it.
    units = units_of([(str(file), len(data))], 10, "blank_line")
    assert len(units) == (1 if compressed else 3)
    found = [list(each) for unit in units for each in read_documents(unit.texts)]
    assert found == [["A café.", "It is."], ["Good."]]


def test_streams_that_are_not_utf8(tmp_path):
    (tmp_path / "a").write_bytes(b"good\ncaf\xe9\n")
    with pytest.raises(ValueError, match="a: line 2 is not UTF-8: the byte 0xe9 after 'caf'"):
        list(read_lines([tmp_path / "a"]))


def test_real_wikipedia(real_data):
    (file,) = find_files([str(real_data("wikipedia-en")) + "/dev.txt.gz"])
    documents = [sum(len(line.split()) for line in each) for each in read_documents([file])]
    assert (len(documents) > 300, sum(documents) > 150_000) == (True, True)


def test_a_vocabulary_of_compressed_text(tmp_path, capsys):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"good film\nbad film\n"))
    output = tmp_path / "words"
    assert not cli.main(
        ["vocabulary", "words", "--input", str(tmp_path / "a.txt.gz"), "--output", str(output)]
    )
    assert "5 entries" in capsys.readouterr().out

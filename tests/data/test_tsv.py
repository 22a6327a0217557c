"""Tab-separated files: what a row is, and errors that name file and line."""

import pytest
import tensorflow as tf

from bertfam_tf.data import as_value_errors, read_tsv

NAMED = {"text": "text", "label": "label"}
NUMBERED = {"text": 0, "label": 1}


@pytest.fixture
def tsv(tmp_path):
    def write(content: bytes):
        file = tmp_path / "rows.tsv"
        file.write_bytes(content)
        return file

    return write


def _rows(dataset):
    return [(row["text"], row["label"]) for row in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    ("content", "columns", "expected"),
    [
        (b"text\tlabel\na b\tx\nc\ty\n", NAMED, [(b"a b", b"x"), (b"c", b"y")]),
        (b"text\tlabel\na\tx", NAMED, [(b"a", b"x")]),
        (b"\xef\xbb\xbftext\tlabel\r\na\tx\r\n", NAMED, [(b"a", b"x")]),
        (b"label\tid\ttext\nx\t1\ta\n", NAMED, [(b"a", b"x")]),
        (b"a\tx\nb\ty\n", NUMBERED, [(b"a", b"x"), (b"b", b"y")]),
        (b"\xef\xbb\xbfa\tx\n", NUMBERED, [(b"a", b"x")]),
        (b'"a\tx\n"b" c\t"y"\n', NUMBERED, [(b'"a', b"x"), (b'"b" c', b'"y"')]),
        (b"text\tlabel\n\t\n", NAMED, [(b"", b"")]),
        (b"text\tlabel\n\xff\xfe\tx\n", NAMED, [(b"\xff\xfe", b"x")]),
        (b"text\tlabel\na\0b\tx\n", NAMED, [(b"a\0b", b"x")]),
        # Other ends of lines that Python's str.splitlines knows are text.
        ("text\tlabel\na\x85\u2028\x0b\tx\n".encode(), NAMED, [("a\x85\u2028\x0b".encode(), b"x")]),
        # A property of TensorFlow's reader.
        (b"text\tlabel\na\rb\tx\n", NAMED, [(b"ab", b"x")]),
        (b"text\nlabel\n\n", {"text": "text", "label": 0}, [(b"label", b"label"), (b"", b"")]),
    ],
)  # fmt: skip
def test_rows(tsv, content, columns, expected):
    dataset = read_tsv(tsv(content), columns)
    assert _rows(dataset) == expected
    assert int(dataset.cardinality()) == len(expected)


@pytest.mark.parametrize(
    ("content", "columns", "error"),
    [
        (b"", NAMED, "Unknown column 'text'"),
        (b"", NUMBERED, "has 1 columns; there is no column 1"),
        (b"", {"text": 0}, "has no rows"),
        (b"text\tlabel\n", NAMED, "has no rows"),
        (b"Text\tlabel\na\tx\n", NAMED, "first line: Unknown column 'text'. Did you mean 'Text'?"),
        (b"a\tx\n", {"text": 0, "label": 2}, "has 2 columns; there is no column 2"),
        (b"a\tx\n", {"text": 0, "label": -1}, "there is no column -1"),
    ],
)
def test_refused_at_once(tsv, content, columns, error):
    with pytest.raises(ValueError, match=rf"rows\.tsv.*{error}"):
        read_tsv(tsv(content), columns)


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file .*absent\.tsv"):
        read_tsv(tmp_path / "absent.tsv", NAMED)


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"text\tlabel\na\tx\na\tb\tx\n", 3, 3),
        (b"text\tlabel\na\n", 2, 1),
        (b"text\tlabel\na\tx\n\n", 3, 1),
    ],
)
def test_a_row_of_another_width_is_named(tsv, content, line, found):
    dataset = read_tsv(tsv(content), NAMED)
    error = rf"rows\.tsv: line {line} has {found} columns; expected 2, as in the first line\."
    with pytest.raises(tf.errors.InvalidArgumentError, match=error):
        _rows(dataset)
    with pytest.raises(ValueError, match=error + "$"), as_value_errors():
        _rows(dataset)


def test_limit(tsv):
    file = tsv(b"text\tlabel\na\tx\nb\ty\nbroken\n")
    assert _rows(read_tsv(file, NAMED, limit=2)) == [(b"a", b"x"), (b"b", b"y")]
    assert int(read_tsv(file, NAMED, limit=100).cardinality()) == 3
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"1 or more rows, not {limit}"):
            read_tsv(file, NAMED, limit=limit)


def test_many_rows_without_python_for_each(tsv):
    count = 100_000
    dataset = read_tsv(
        tsv(b"text\tlabel\n" + b"".join(b"row %d\tx\n" % i for i in range(count))), NAMED
    )
    assert b"PyFunc" not in dataset._as_serialized_graph().numpy()
    assert int(dataset.cardinality()) == count
    texts = [text for rows in dataset.batch(10_000) for text in rows["text"].numpy()]
    assert len(texts) == count
    assert texts[-1] == b"row %d" % (count - 1)

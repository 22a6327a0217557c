"""Tab-separated files: what a row is, and errors that name file and line."""

import pytest

from bertfam_tf.data import read_rows
from bertfam_tf.data.targets import Name

NAMED = {"text": "text", "label": "label"}
NUMBERED = {"text": 0, "label": 1}


@pytest.fixture
def tsv(tmp_path):
    def write(content: bytes):
        file = tmp_path / "rows.tsv"
        file.write_bytes(content)
        return file

    return write


def _read(file, columns, **kwargs):
    return read_rows(file, columns, target=Name(), **kwargs).dataset()


def _rows(dataset):
    return [(features["text"], label) for features, label in dataset.as_numpy_iterator()]


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
        (b"text\tlabel\n\tx\n", NAMED, [(b"", b"x")]),
        (b"text\tlabel\na\0b\tx\n", NAMED, [(b"a\0b", b"x")]),
        # Other ends of lines that Python's str.splitlines knows are text.
        ("text\tlabel\na\x85\u2028\x0b\tx\n".encode(), NAMED, [("a\x85\u2028\x0b".encode(), b"x")]),
        # So are carriage returns within a line.
        (b"text\tlabel\na\rb\tx\r\n", NAMED, [(b"a\rb", b"x")]),
        (b"text\nlabel\n", {"text": "text", "label": 0}, [(b"label", b"label")]),
    ],
)  # fmt: skip
def test_rows(tsv, content, columns, expected):
    dataset = _read(tsv(content), columns)
    assert _rows(dataset) == expected
    assert int(dataset.cardinality()) == len(expected)


@pytest.mark.parametrize(
    ("content", "columns", "error"),
    [
        (b"", NAMED, "has no rows"),
        (b"text\tlabel\n", NAMED, "has no rows"),
        (b"Text\tlabel\na\tx\n", NAMED, "first line: Unknown column 'text'. Did you mean 'Text'?"),
        (b"a\tx\n", {"text": 0, "label": 2}, "has 2 columns; there is no column 2"),
        (b"a\tx\n", {"text": 0, "label": -1}, "there is no column -1"),
    ],
)
def test_refused_at_once(tsv, content, columns, error):
    with pytest.raises(ValueError, match=rf"rows\.tsv.*{error}"):
        _read(tsv(content), columns)


def test_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file .*absent\.tsv"):
        _read(tmp_path / "absent.tsv", NAMED)


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        (b"text\tlabel\na\tx\na\tb\tx\n", 3, 3),
        (b"text\tlabel\na\n", 2, 1),
        (b"text\tlabel\na\tx\n\n", 3, 1),
    ],
)
def test_a_row_of_another_width_is_named(tsv, content, line, found):
    error = rf"rows\.tsv: line {line} has {found} columns; expected 2, as in the first line\."
    with pytest.raises(ValueError, match=error + "$"):
        _read(tsv(content), NAMED)


def test_limit(tsv):
    file = tsv(b"text\tlabel\na\tx\nb\ty\nbroken\n")
    assert _rows(_read(file, NAMED, limit=2)) == [(b"a", b"x"), (b"b", b"y")]
    assert int(_read(file, NAMED, limit=2).cardinality()) == 2
    with pytest.raises(ValueError, match="line 4 has 1 columns"):
        _read(file, NAMED, limit=3)
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
            _read(file, NAMED, limit=limit)

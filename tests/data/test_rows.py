"""Rows of files: what each format's rows are, errors with their location, and skipping them."""

import csv
import io
import json
import logging
import random
import tarfile

import pytest

from bertfam_tf.data import as_value_errors, format_of, read_rows, targets

PAIR = {"text": "a", "text_pair": "b", "label": "c"}
SQUAD_CONTEXT = "Café 😀 Denver Broncos"


def _write(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return file


def _elements(rows):
    """The elements of the data set, whose number has to be the one that it says."""
    dataset = rows.dataset()
    with as_value_errors():
        found = list(dataset.as_numpy_iterator())
    assert len(found) == rows.count == int(dataset.cardinality())
    return found


# Records --------------------------------------------------------------------------------------

HOSTILE = [
    "",
    '"',
    ",",
    "a,b\r\nc",
    "\n",
    "tab\there",
    "😀 中文",
    "x" * 10_000,
    '""',
    " a ",
    "\u2028",
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_csv_is_what_python_wrote(tmp_path, end, bom):
    numbers = random.Random(0)
    table = [[numbers.choice(HOSTILE) for _ in "ab"] + ["yes"] for _ in range(600)]
    stream = io.StringIO()
    csv.writer(stream, lineterminator=end).writerows([list("abc"), *table])
    file = _write(tmp_path, "t.csv", bom + stream.getvalue())
    found = _elements(read_rows(file, PAIR, target=targets.Name()))
    assert [(x["text"].decode(), x["text_pair"].decode()) for x, _ in found] == [
        (a, b) for a, b, _ in table
    ]
    assert {y for _, y in found} == {b"yes"}


def test_null_bytes_come_through(tmp_path):
    file = _write(tmp_path, "t.csv", b'a,c\n"b\nc",x\n\x00\x00,y\n')
    found = _elements(read_rows(file, {"text": "a", "label": "c"}, target=targets.Name()))
    assert [x["text"] for x, _ in found] == [b"b\nc", b"\0\0"]


def test_jsonl(tmp_path):
    lines = [
        {"a": "x\ny", "b": {"c": [{"d": "deep"}]}, "e": 1.5, "f.g": "flat"},
        {"a": "\ud800", "b": {"c": [{"d": "😀"}]}, "e": 2, "f.g": ""},
    ]
    text = "\ufeff" + "\n\n".join(map(json.dumps, lines)) + "\n"
    columns = {"text": "a", "text_pair": "b.c.0.d", "question": "f.g", "label": "e"}
    found = _elements(
        read_rows(_write(tmp_path, "t.jsonl", text), columns, target=targets.Number())
    )
    assert found == [
        ({"text": b"x\ny", "text_pair": b"deep", "question": b"flat"}, b"1.5"),
        ({"text": b"?", "text_pair": "😀".encode(), "question": b""}, b"2"),
    ]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl"])
def test_multiple_choice(tmp_path, form):
    columns = {"text": "start", "choices": ["e0", "e1", "e2"], "label": "right"}
    rows = [("a", "x", "y", "z", "2"), ("b", "u", "v", "w", "A")]
    names = ["start", "e0", "e1", "e2", "right"]
    if form == "jsonl":
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    else:
        between = {"tsv": "\t", "csv": ","}[form]
        text = "".join(between.join(row) + "\n" for row in [names, *rows])
    found = _elements(
        read_rows(_write(tmp_path, f"t.{form}", text), columns, target=targets.Choice())
    )
    assert [(x["text"], x["choices"].tolist(), int(y)) for x, y in found] == [
        (b"a", [b"x", b"y", b"z"], 2),
        (b"b", [b"u", b"v", b"w"], 0),
    ]


def test_lists_in_json_are_choices_words_tags_and_names(tmp_path):
    record = {"w": ["New", "York"], "t": ["B-LOC", "I-LOC"], "o": ["x", "y"], "n": 1, "m": ["q"]}
    file = _write(tmp_path, "t.jsonl", json.dumps(record))
    words = read_rows(file, {"text": "w", "label": "t"}, target=targets.Tags())
    assert _elements(words) == [({"text": b"New York"}, b"B-LOC I-LOC")]
    choices = read_rows(file, {"text": "n", "choices": "o", "label": "n"}, target=targets.Choice())
    assert _elements(choices)[0][0]["choices"].tolist() == [b"x", b"y"]
    names = read_rows(file, {"text": "n", "label": "m"}, target=targets.Names(["p", "q"]))
    assert _elements(names)[0][1].tolist() == [0, 1]


def test_names_between_commas(tmp_path):
    file = _write(tmp_path, "t.tsv", "text\tlabel\na\tx, z\nb\t\nc\ty\n")
    rows = read_rows(file, target=targets.Names())
    assert rows.target.names == ["x", "y", "z"]
    assert [y.tolist() for _, y in _elements(rows)] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    twice = _write(tmp_path, "twice.tsv", "text\tlabel\na\tx, x\n")
    assert read_rows(twice, target=targets.Names()).labels == {"x": 1}
    none = _write(tmp_path, "none.tsv", "text\tlabel\na\t\nb\t\n")
    with pytest.raises(ValueError, match=r"No row of .*none\.tsv has a label\."):
        read_rows(none, target=targets.Names())
    assert _elements(read_rows(none, target=targets.Names(["x"])))[0][1].tolist() == [0]


@pytest.mark.parametrize(
    ("name", "header", "error"),
    [
        ("t.csv", "text;label", "Semicolons seem to separate the columns: save the file with"),
        ("t.csv", "text\tlabel", "Tabs seem to separate the columns: its format is tsv."),
        ("t.tsv", "text,label", "Commas seem to separate the columns: its format is csv."),
    ],
)
def test_columns_between_other_characters(tmp_path, name, header, error):
    file = _write(tmp_path, name, f"{header}\n")
    for columns in (None, {"text": 1}):
        with pytest.raises(ValueError, match=error):
            read_rows(file, columns)
    with pytest.raises(ValueError, match=r"Unknown column 'text'\. Known: message\.$"):
        read_rows(_write(tmp_path, name, "message\n"))


def test_several_files_are_one_and_a_limit_ends_within(tmp_path):
    files = [
        _write(tmp_path, "1.csv", "text,label\na,x\nb,y\n"),
        _write(tmp_path, "2.jsonl", '{"text": "c", "label": "z"}\nbroken'),
    ]
    assert [x["text"] for x, _ in _elements(read_rows(files, target=targets.Name(), limit=3))] == [
        b"a",
        b"b",
        b"c",
    ]
    with pytest.raises(ValueError, match=r"2\.jsonl: line 2 is not JSON"):
        read_rows(files, target=targets.Name(), limit=4)


def test_without_a_target_there_are_no_labels(tmp_path):
    file = _write(tmp_path, "t.csv", "text\n\n1\n")
    rows = read_rows(file, {"text": "text", "label": "label"})
    assert _elements(rows) == [({"text": b""},), ({"text": b"1"},)]


def test_a_file_that_changes_is_not_read_on(tmp_path):
    file = _write(tmp_path, "t.csv", "text,label\na,x\nb,y\n")
    rows = read_rows(file, target=targets.Name())
    _write(tmp_path, "t.csv", "text,label\na,x\n")
    with pytest.raises(
        ValueError, match=r"t\.csv has 1 valid rows less than when it was validated"
    ):
        _elements_unchecked(rows)


def _elements_unchecked(rows):
    with as_value_errors():
        list(rows.dataset().as_numpy_iterator())


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "target", "error"),
    [
        ("t.csv", "", targets.Name(), r"t\.csv has no rows"),
        ("t.csv", "text,label\n", targets.Name(), r"t\.csv has no rows"),
        ("t.csv", "txt,label\na,b\n", targets.Name(), r"t\.csv, first line: Unknown column 'text'"),
        ("t.csv", 'text,label\n"a\nb",c\nd\n', targets.Name(), r"line 4 has 1 columns; expected 2"),
        ("t.csv", 'text,label\na,b\n"a"b,c\n', targets.Name(), r"t\.csv: line 3 is not CSV"),
        ("t.csv", 'text,label\na,b\n"a,c\n', targets.Name(), r"t\.csv: line 3 is not CSV"),
        ("t.csv", "text,label\na,b\n", targets.Name(["x"]), r"line 2: The label 'b' is not one of"),
        ("t.csv", "text,label\na,b\n", targets.Name({"x": "y"}), r"line 2: The label 'b' is not"),
        ("t.csv", "text,label,label\na,b,c\n", targets.Name(), r"has 2 columns 'label'"),
        ("t.csv", "text,label\na,1_0\n", targets.Number(), r"line 2: '1_0' is not a number"),
        ("t.csv", "text,label\na,nan\n", targets.Number(), r"line 2: 'nan' is not a number"),
        ("t.csv", "text,label\na b,O\n", targets.Tags(), r"line 2: 1 tags for 2 words"),
        ("t.jsonl", "{}\n", targets.Name(), r"t\.jsonl: line 1: Unknown column 'text'"),
        ("t.jsonl", '{"text": "a", "lable": 1}', targets.Name(), "Did you mean 'lable'"),
        ("t.jsonl", "\n[1]\n", targets.Name(), r"line 2 is not a JSON object"),
        ("t.jsonl", '{"text": null, "label": 1}', targets.Name(), "must be a string or number"),
        ("t.jsonl", '{"text": NaN, "label": 1}', targets.Name(), "or number, got NaN"),
        ("t.jsonl", '{"text": "a", "label": NaN}', targets.Name(), "or number, got NaN"),
        ("t.jsonl", '{"text": ["a", NaN], "label": "O O"}', targets.Tags(), "or number, got "),
        ("t.jsonl", '{"text": -1e400, "label": 1}', targets.Name(), "or number, got -Infinity"),
        ("t.jsonl", b'{"text": "\xff"}', targets.Name(), r"line 1 is not JSON: .*utf-8"),
        ("t.jsonl", "[" * 100_000, targets.Name(), r"line 1 is not JSON"),
        ("t.conll", "a O\nb\n\n", targets.Tags(), r"t\.conll: line 2 has 1 columns; expected 2"),
        ("t.conll", "a\xa0b O\n\n", targets.Tags(), r"conll: line 1: the word 'a\\xa0b' has"),
        ("t.csv", "text,label\na\xa0b,O\n", targets.Tags(), r"2 words. .* at '.xa0' too"),
        ("t.conll", "a X\n\nb Y\n", targets.Tags(["X"]), r"line 3: The tag 'Y' is not one of: X"),
        ("t.conll", "a\n\n", targets.Tags(), r"t\.conll has words in the column of tags"),
        ("t.json", "{}", targets.Answers(), r"t\.json has no list 'data'.*, an array of obj"),
        ("t.json", "{", targets.Answers(), r"t\.json is not JSON"),
        ("t.json", '{"data": [{}]}', targets.Answers(), r"article 0 does not .*'paragraphs' is m"),
        ("t.txt", "", None, r"t\.txt has no rows"),
    ],
)  # fmt: skip
def test_errors_name_the_location(tmp_path, name, content, target, error):
    with pytest.raises(ValueError, match=error):
        read_rows(_write(tmp_path, name, content), target=target)


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ('["x", "y"]', '["x"]', "line 2 has 1 choices, expected 2 as before"),
        ('["x", "y"]', '"xy"', "line 2 has no list of choices, expected 2 as before"),
        ("[]", "[]", "line 1 has 0 choices, expected some"),
    ],
)
def test_rows_of_other_widths(tmp_path, first, second, error):
    lines = [f'{{"t": "a", "o": {choices}, "r": 0}}' for choices in (first, second)]
    file = _write(tmp_path, "t.jsonl", "\n".join(lines))
    columns = {"text": "t", "choices": "o", "label": "r"}
    with pytest.raises(ValueError, match=error):
        read_rows(file, columns, target=targets.Choice())


@pytest.mark.parametrize(
    ("label", "error"), [("2", "beyond"), ("C", "beyond"), ("-1", "not the n")]
)
def test_labels_of_choices(tmp_path, label, error):
    file = _write(tmp_path, "t.csv", f"t,x,y,r\na,b,c,{label}\n")
    columns = {"text": "t", "choices": ["x", "y"], "label": "r"}
    with pytest.raises(ValueError, match=rf"line 2: '{label}' is .*{error}"):
        read_rows(file, columns, target=targets.Choice())


def test_skipping_counts_by_kind_and_shows_the_first(tmp_path, caplog):
    content = 'text,label\na,x\nb\n"c"d,y\ne,wrong\nf,y\ng\n'
    file = _write(tmp_path, "t.csv", content)
    with caplog.at_level(logging.WARNING):
        rows = read_rows(file, target=targets.Name(["x", "y"]), skip=True)
    assert [(x["text"], y) for x, y in _elements(rows)] == [(b"a", b"x"), (b"f", b"y")]
    assert rows.skipped == {"columns": 2, "quotes": 1, "label": 1}
    assert "Skipped 4 rows and kept 2: 2 columns, 1 quotes, 1 label." in caplog.text
    assert "line 3 has 1 columns" in caplog.text
    assert "line 7" not in caplog.text
    error = r"has no rows that are valid\. The first error: .*line 2: The label 'x' is not one of"
    with pytest.raises(ValueError, match=error):
        read_rows(file, target=targets.Name(["z"]), skip=True)


def test_labels_of_skipped_rows_are_not_collected(tmp_path):
    for kind, first in ((targets.Names, ["x", " y"]), (targets.Tags, ["x", "\ty"])):
        rows = [{"text": "a b", "label": label} for label in (first, ["v", "w"])]
        file = _write(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows)))
        assert read_rows(file, target=kind(), skip=True).target.names == ["v", "w"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"files": "absent.csv"}, "There is no file absent.csv"),
        ({"files": "absent/x", "format": "race"}, "There is no folder or archive absent/x"),
        ({"files": []}, "There are no files"),
        ({"files": "x", "format": "cvs"}, "Unknown format 'cvs'. Did you mean 'csv'"),
        ({"files": "x", "format": "tfds"}, "needs the name of a data set"),
    ],
)
def test_what_cannot_be_read(arguments, error):
    with pytest.raises(ValueError, match=error):
        read_rows(**arguments)


def test_formats_by_name(tmp_path):
    assert [format_of(f"x.{end}") for end in ("csv", "jsonl", "json", "conll", "train")] == [
        *("csv", "jsonl", "squad", "conll", "tsv")
    ]
    assert [format_of(f"X.{end}") for end in ("CSV", "JSONL.GZ", "Parquet")] == [
        *("csv", "jsonl", "parquet")
    ]
    assert format_of(tmp_path) == "race"
    assert format_of("eng.train", "conll") == "conll"


# CoNLL ----------------------------------------------------------------------------------------

SENTENCES = (
    "-DOCSTART- -X- O O\n\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\r\n\nPeter\tNNP I-NP I-PER"
)


def test_conll(tmp_path):
    rows = read_rows(_write(tmp_path, "t.conll", SENTENCES), target=targets.Tags())
    assert _elements(rows) == [
        ({"text": b"EU rejects"}, b"I-ORG O"),
        ({"text": b"Peter"}, b"I-PER"),
    ]
    assert [row.location.rsplit(" ", 1)[1] for row in rows] == ["4", "7"]
    assert rows.target.names == ["I-ORG", "I-PER", "O"]
    pos = read_rows(tmp_path / "t.conll", {"text": 0, "label": 1}, target=targets.Tags())
    assert [y for _, y in _elements(pos)] == [b"NNP VBZ", b"NNP"]
    assert _elements(read_rows(tmp_path / "t.conll")) == [
        ({"text": b"EU rejects"},),
        ({"text": b"Peter"},),
    ]
    with pytest.raises(ValueError, match="has 4 columns; there is no column 0 or 4"):
        read_rows(tmp_path / "t.conll", {"text": 0, "label": 4}, target=targets.Tags())


@pytest.mark.parametrize(("name", "line"), [("t.conll", "Title O"), ("t.txt", "Title")])
def test_only_tables_have_a_line_of_names(recwarn, tmp_path, name, line):
    """A recipe's columns of a CoNLL file are also those that `predict` has for a text file."""
    read_rows(_write(tmp_path, name, f"{line}\n\nBerlin O\n"), {"text": 0})
    assert not recwarn


def test_a_line_with_the_numbers_of_columns(recwarn, tmp_path):
    """As pandas writes it for a frame whose columns have no names."""
    file = tmp_path / "t.csv"
    file.write_text("0,1\na,x\nb,y\n")
    with pytest.warns(UserWarning, match=r"t\.csv: line 1 .* numbers of columns, as pandas"):
        assert read_rows(file, {"text": 0, "label": 1}).count == 3
    recwarn.clear()
    read_rows(file, {"text": "0", "label": "1"})
    file.write_text("1,0\n0,1\n")
    read_rows(file, {"text": 0, "text_pair": 1})
    assert not recwarn


def test_comments_before_a_sentence_are_no_words(tmp_path):
    comments = ["# newdoc", "# text = a tag", "# id 12-3\tdomain=en", "#\thttp://x.y [2009]"]
    sentences = "\na _ _ O\n# id x O\n\n# # # O\ntag _ _ B-x\n"
    rows = read_rows(_write(tmp_path, "t.conll", "\n".join(comments) + sentences))
    assert [text["text"] for (text,) in _elements(rows)] == [b"a #", b"# tag"]
    rows = read_rows(_write(tmp_path, "tagged_id.conll", "#\tid\n5\tid\n"))
    assert [text["text"] for (text,) in _elements(rows)] == [b"# 5"]


def test_a_word_with_white_space_is_named(tmp_path):
    file = _write(tmp_path, "t.conll", "in O\nNew\u00a0York B-x\n\na O\n")
    with pytest.raises(ValueError, match=r"t\.conll: line 2: the word 'New\\xa0York' has white"):
        read_rows(file, target=targets.Tags())
    assert read_rows(file, target=targets.Tags(), skip=True).skipped == {"word": 1}
    assert read_rows(file).count == 2  # without tags, it is two words


@pytest.mark.parametrize(
    ("stray", "end", "kind"),
    [
        ('"stray,x', 'a "quote",y', "quotes"),  # not the end of a cell
        ('"stray,x', "no quote,y", "quotes"),  # the file ends
        ('c,"x', 'd,"', "label"),  # a row of two cells, as far as a parser can tell
        ('"c,x', '"', "columns"),
    ],
)
def test_lines_that_a_stray_quote_swallows_are_counted(tmp_path, caplog, stray, end, kind):
    lines = ["text,label", "a,y", stray, *(f"row {i},y" for i in range(988)), end]
    more = [] if end == "no quote,y" else ["good,y"]
    file = _write(tmp_path, "t.csv", "".join(line + "\n" for line in lines + more))
    target = targets.Name(["y"])
    text = "Quotes make 990 lines, from that one on, a single row."
    with pytest.raises(ValueError, match=rf"(?s)t\.csv: line 3.* {text}$") as caught:
        read_rows(file, target=target)
    assert len(str(caught.value)) < 600
    rows = read_rows(file, target=target, skip=True)
    assert (rows.skipped, rows.skipped_lines, rows.count) == ({kind: 1}, 990, 1 + len(more))
    assert f"Skipped 1 rows (990 lines) and kept {rows.count}: 1 {kind}" in caplog.text
    assert text in caplog.text


def test_a_quote_in_a_tsv_file_is_text(tmp_path):
    file = _write(tmp_path, "t.tsv", 'text\tlabel\n"stray\tx\nb"c"\ty\n')
    rows = read_rows(file, target=targets.Name(), skip=True)
    assert [x["text"] for x, _ in _elements(rows)] == [b'"stray', b'b"c"']


def test_a_sentence_with_a_broken_line_is_skipped_as_a_whole(tmp_path):
    file = _write(tmp_path, "t.conll", "a O\nb\nc O\n\nd O\n")
    rows = read_rows(file, target=targets.Tags(), skip=True)
    assert _elements(rows) == [({"text": b"d"}, b"O")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_sentences_of_files_of_other_systems(tmp_path, end):
    file = _write(tmp_path, "t.conll", end.join(["a O", "b B-x", "", "c O", ""]))
    rows = read_rows(file, target=targets.Tags())
    assert _elements(rows) == [({"text": b"a b"}, b"O B-x"), ({"text": b"c"}, b"O")]
    assert [row.location for row in rows] == [f"{file}: line 1", f"{file}: line 4"]


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("I-PER I-PER O I-PER", "B-PER I-PER O B-PER"),
        ("I-PER B-PER I-PER", "B-PER B-PER I-PER"),
        ("I-PER I-LOC B-LOC", "B-PER B-LOC B-LOC"),
        ("O B-PER I-PER O", "O B-PER I-PER O"),
    ],
)
def test_iob2(tmp_path, iob1, iob2):
    text = "".join(f"w {tag}\n" for tag in iob1.split())
    rows = read_rows(_write(tmp_path, "t.conll", text), target=targets.Tags(), iob2=True)
    assert _elements(rows)[0][1].decode() == iob2
    names = {str(i): tag for i, tag in enumerate({*iob1.split(), *iob2.split()})}
    numbers = [number for tag in iob1.split() for number, name in names.items() if name == tag]
    for tags, named in ((iob1, None), (iob1.split(), None), (numbers, names)):
        record = json.dumps({"text": "w " * len(iob1.split()), "label": tags})
        file, target = _write(tmp_path, "t.jsonl", record), targets.Tags(named)
        assert _elements(read_rows(file, target=target, iob2=True))[0][1].decode() == iob2


def test_iob2_is_for_one_reading(tmp_path):
    file, target = _write(tmp_path, "t.conll", "w I-x\n"), targets.Tags()
    assert _elements(read_rows(file, target=target, iob2=True))[0][1] == b"B-x"
    assert _elements(read_rows(file, target=target))[0][1] == b"I-x"
    assert target.names == ["B-x", "I-x"]


def test_iob2_tags_have_to_be_named(tmp_path):
    file = _write(tmp_path, "t.jsonl", json.dumps({"text": "w", "label": ["1"]}))
    with pytest.raises(ValueError, match="The tag 'B-x' is not one of: O, I-x"):
        read_rows(file, target=targets.Tags({"0": "O", "1": "I-x"}), iob2=True).dataset()


@pytest.mark.parametrize(
    ("kind", "names", "error"),
    [
        (targets.Number, ["1", "2"], "null, or a table from labels to numbers, got"),
        (targets.Choice, {"A": "0"}, "null if labels are indices or letters of choices, got"),
        (targets.Answers, ["a"], "null if labels are answers, got"),
    ],
)
def test_names_of_labels_that_have_none(kind, names, error):
    with pytest.raises(ValueError, match=f"data.labels must be {error}"):
        kind(names)


# SQuAD ----------------------------------------------------------------------------------------


def _squad(*questions):
    paragraph = {"context": SQUAD_CONTEXT, "qas": list(questions)}
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def _question(name, *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"q {name}", "answers": found, **more}


def test_squad(tmp_path):
    file = _write(
        tmp_path,
        "t.json",
        _squad(
            _question("1", ("Denver", 7), ("Denver Broncos", 7)),
            _question("2", is_impossible=True, plausible_answers=[{"text": "x"}]),
            _question("3", ("", 0)),
            _question("4", ("😀", 5)),
        ),
    )
    rows = read_rows(file, target=targets.Answers())
    found = _elements(rows)
    assert all(x["context"].decode() == SQUAD_CONTEXT for x, _ in found)
    assert [
        (y["answer"].decode(), int(y["answer_start"]), [a.decode() for a in y["answers"]])
        for _, y in found
    ] == [
        ("Denver", 7, ["Denver", "Denver Broncos"]),
        ("", -1, ["", ""]),
        ("", -1, ["", ""]),
        ("😀", 5, ["😀", ""]),
    ]
    assert [row.id for row in rows] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (_question("7", ("Denver", 8)), "question 7: The answer 'Denver' is not at chara"),
        (_question("7", ("Denver", 7), ("x", 0)), "question 7: The answer 'x' is not at character"),
        (
            _question("7", ("x", "0")),
            "question 7: An answer must be a string and an integer, got 'x' and '0'",
        ),
        (
            {"id": "7", "question": "q"},
            "question 7 does not have SQuAD's format: 'answers' is missing",
        ),
        (
            {"id": "7", "answers": []},
            "question 7 does not have SQuAD's format: 'question' is missing",
        ),
    ],
)
def test_questions_that_are_wrong(tmp_path, question, error):
    file = _write(tmp_path, "t.json", _squad(question, _question("8", ("Denver", 7))))
    with pytest.raises(ValueError, match=error):
        read_rows(file, target=targets.Answers())
    rows = read_rows(file, target=targets.Answers(), skip=True)
    assert [row.id for row in rows] == ["8"]


def test_questions_without_answers_for_prediction(tmp_path):
    file = _write(tmp_path, "t.json", _squad({"id": "7", "question": "q"}))
    assert len(_elements(read_rows(file))) == 1


# RACE -----------------------------------------------------------------------------------------


def _passage(name, **more):
    return json.dumps(
        {
            "article": f"article {name}",
            "questions": ["It is _ .", "Why?"],
            "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
            "answers": ["B", "D"],
            **more,
        }
    )


@pytest.fixture
def race(tmp_path):
    """A folder with two splits, and an archive of it."""
    for split, name in (("train", "1"), ("train", "2"), ("dev", "3")):
        folder = tmp_path / "RACE" / split / "middle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(_passage(name))
    with tarfile.open(tmp_path / "race.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "RACE", "RACE")
    return tmp_path


@pytest.mark.parametrize(
    "place", ["RACE/train", "race.tar.gz/train", "race.tar.gz/RACE/train/middle"]
)
def test_race(race, place):
    found = _elements(read_rows(race / place, target=targets.Choice()))
    assert sorted({x["text"] for x, _ in found}) == [b"article 1", b"article 2"]
    assert [(x["question"], x["choices"].tolist(), int(y)) for x, y in found[:2]] == [
        (b"It is _ .", [b"a", b"b", b"c", b"d"], 1),
        (b"Why?", [b"e", b"f", b"g", b"h"], 3),
    ]


def test_race_of_all_splits_or_none(race):
    for place in ("RACE", "race.tar.gz"):
        with pytest.raises(ValueError, match="has dev and train; choose one of them"):
            read_rows(race / place, target=targets.Choice())
    with pytest.raises(ValueError, match="has no rows"):
        read_rows(race / "race.tar.gz" / "tset", target=targets.Choice())


def test_passages_that_are_wrong(race):
    folder = race / "RACE" / "dev" / "middle"
    (folder / "4.txt").write_text(_passage("4", answers=["B"]))
    (folder / "5.txt").write_text(_passage("5", options=[["a", "b", "c", "d"], None]))
    (folder / "6.txt").write_text(_passage("6", answers=["E", "A"]))
    (folder / "7.txt").write_text("[]")
    with pytest.raises(ValueError, match=r"middle/4\.txt is not a passage of RACE"):
        read_rows(race / "RACE" / "dev", target=targets.Choice())
    rows = read_rows(race / "RACE" / "dev", target=targets.Choice(), skip=True)
    assert rows.count == 2 + 1 + 1
    assert rows.skipped == {"passage": 3, "choice": 1}


# Real files -----------------------------------------------------------------------------------

NLI = {"text": 0, "text_pair": 1, "label": 2}
STS = {"text": "sentence1", "text_pair": "sentence2", "label": "score"}
REAL = [
    ("conll2003/eng.train", "conll", None, targets.Tags, 14_041),
    ("conll2003/eng.testa", "conll", None, targets.Tags, 3_250),
    ("conll2003/eng.testb", "conll", None, targets.Tags, 3_453),
    ("squad/dev-v1.1.json", None, None, targets.Answers, 10_570),
    ("squad/cs224n-dev-v2.0.json", None, None, targets.Answers, 6_078),
    ("tydiqa/tydiqa.goldp.en.train.json", None, None, targets.Answers, 3_696),
    ("tydiqa/tydiqa.goldp.en.dev.json", None, None, targets.Answers, 440),
    ("race/race-middle.tar.gz/train", None, None, targets.Choice, 25_421),
    ("race/race-middle.tar.gz/dev", None, None, targets.Choice, 1_436),
    ("race/race-middle.tar.gz/test", None, None, targets.Choice, 1_436),
    ("glue/STS-B/train.tsv", None, STS, targets.Number, 5_749),
    ("glue/STS-B/dev.tsv", None, STS, targets.Number, 1_500),
    ("glue/MRPC/dev.tsv", None,
     {"text": "#1 String", "text_pair": "#2 String", "label": "Quality"}, targets.Name, 408),
    ("glue/RTE/dev.tsv", None,
     {"text": "sentence1", "text_pair": "sentence2", "label": "label"}, targets.Name, 277),
    ("glue/CoLA/train.tsv", None, {"text": 3, "label": 1}, targets.Name, 8_551),
    *((f"xnli/dev-{code}.tsv", None, NLI, targets.Name, 2_490)
      for code in "en fr de es zh ar".split()),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize(("file", "form", "columns", "target", "count"), REAL, ids=lambda v: str(v))
def test_real_files_whole(real_data, file, form, columns, target, count):
    rows = read_rows(real_data(file), columns, format=form, target=target())
    assert rows.count == count
    assert sum(len(features["text" if "text" in features else "question"])
               for features, _ in rows.dataset().batch(4096)) == count  # fmt: skip


def test_the_unanswerable_of_real_questions(real_data):
    rows = read_rows(real_data("squad/cs224n-dev-v2.0.json"), target=targets.Answers())
    assert sum(not row.label for row in rows) == 3_168


@pytest.mark.extended
def test_tags_of_real_sentences(real_data):
    file = real_data("conll2003/eng.train")
    tags = read_rows(file, format="conll", target=targets.Tags(), iob2=True)
    kinds = ("LOC", "MISC", "ORG", "PER")
    assert tags.target.names == [*(f"B-{k}" for k in kinds), *(f"I-{k}" for k in kinds), "O"]
    # The shared task's own count of names in its training data.
    assert sum(row.label.count(b"B-") for row in tags) == 23_499

"""``bertfam init``: what it says about a file, and a recipe that runs."""

import functools
import gzip
import json
from pathlib import Path

import pytest
import yaml

from bertfam_tf import text
from bertfam_tf.cli import main
from bertfam_tf.data.sampling import guess_columns, sample

ROWS = [("a good film", "positive"), ("it is bad", "negative"), ("a film", "positive")] * 4


@pytest.fixture(scope="module", autouse=True)
def one_tokenizer():
    """All commands share a tokenizer, whose graphs are traced once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "load_tokenizer", functools.cache(text.load_tokenizer))
        yield


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def init(tiny, capsys):
    """Runs the command; returns its output and the recipe."""

    def run(*arguments):
        status = main(["init", "--checkpoint", str(tiny), *arguments])
        captured = capsys.readouterr()
        assert status == 0, captured.err
        printed, _, written = captured.out.partition("\n\nThe recipe is ")
        name = written.split(":")[0]
        return printed, yaml.safe_load(Path(name).read_text())

    return run


def _csv(file, rows=ROWS, header="text,label\n"):
    text = header + "".join(f"{','.join(row)}\n" for row in rows)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text, "utf-8")


def test_a_table_is_described(init, tmp_path, tiny):
    _csv(tmp_path / "desk.csv.gz", [*ROWS, ("a film", "negative"), ("long " * 200, "negative")])
    printed, recipe = init("desk.csv.gz")
    assert (
        "desk.csv.gz: 14 rows for TextClassifier. Columns: text 'text', label 'label'." in printed
    )
    lines = [line.split() for line in printed.splitlines()]
    assert ["positive", "8", "57.1%"] in lines
    assert ["negative", "6", "42.9%"] in lines
    # Three texts are repeated three times, and one of them once more with another label.
    assert "an earlier row: 10, and 1 of them have another label; " in printed
    assert "desk.csv.gz: line 14 repeats desk.csv.gz: line 4." in printed
    assert "truncated at 128: 1 rows (7.1%)" in printed
    assert "truncated at 512" in printed
    assert recipe == {
        "output": "runs/desk",
        "model": {"path": str(tiny), "max_length": 24},
        "task": "TextClassifier",
        "data": {"train": "desk.csv.gz"},
        "train": {"epochs": 4, "learning_rate": 0.0002},
    }


FILES = {
    "names.tsv": (
        "id\tReview\tStars\n" + "1\ta good film\tgood\n2\tit is bad\tbad\n" * 4,
        ("TextClassifier", {"text": "Review", "label": "Stars"}),
    ),
    "no_header.csv": (
        "a good film,positive\nit is bad,negative\na film,positive\nbad,negative\n",
        ("TextClassifier", {"text": 0, "label": 1}),
    ),
    "pairs.jsonl": (
        '{"premise": "a film", "hypothesis": "good", "label": 1}\n'
        '{"premise": "a film", "hypothesis": "bad", "label": 0}\n' * 3,
        ("TextClassifier", {"text": "premise", "text_pair": "hypothesis"}),
    ),
    "scores.csv": (
        "text,score\n" + "".join(f"film {i},{i / 8}\n" for i in range(8)),
        ("TextRegressor", {"label": "score"}),
    ),
    "numbers.csv": (  # of classes
        "text,label\n" + "".join(f"film {i},{i % 30}\n" for i in range(90)),
        ("TextClassifier", {}),
    ),
    "several.json": (
        json.dumps([{"text": f"film {i}", "labels": ["a", "b"][: i % 2 + 1]} for i in range(6)]),
        ("MultiLabelClassifier", {"label": "labels"}),
    ),
    "words.json": (
        json.dumps([{"tokens": ["a", "film"], "ner_tags": ["O", "B-x"]}] * 2),
        ("TokenTagger", {"text": "tokens", "label": "ner_tags"}),
    ),
    "iob1.conll": (
        "a I-x\nfilm I-x\n\nbad O\nfilm I-x\n",
        ("TokenTagger", {"tag_scheme": "iob2"}),
    ),
    "squad.json": (
        json.dumps(
            {"data": [{"paragraphs": [{"context": "a good film", "qas": [
                {"id": "1", "question": "which film", "answers": [
                    {"text": "good", "answer_start": 2}]}]}]}]}
        ),
        ("SpanQA", {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_columns_and_task_are_seen(init, tmp_path, name):
    content, (task, data) = FILES[name]
    (tmp_path / name).write_text(content, "utf-8")
    _, recipe = init(name, "--output", "recipe.yaml")
    assert (recipe["task"], recipe["data"]) == (task, {"train": name, **data})
    assert recipe["output"] == "runs/recipe"


def test_questions_without_answers_have_a_threshold(init, tmp_path):
    question = {"id": "1", "question": "who", "answers": []}
    content = {"data": [{"paragraphs": [{"context": "a film", "qas": [question]}]}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    _, recipe = init("x.json")
    assert recipe["options"] == {"null_threshold": 0.0}


def test_a_parquet_file_with_names_of_classes(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    features = {"intent": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    stored = json.dumps({"info": {"features": features}})
    table = arrow.table({"message": ["a", "b", "c", "d"], "intent": [0, 1, 0, 1]})
    parquet.write_table(
        table.replace_schema_metadata({"huggingface": stored}), tmp_path / "x.parquet"
    )
    rows = sample(tmp_path / "x.parquet", "parquet")
    assert [row["intent"] for row in rows] == ["no", "yes", "no", "yes"]
    assert guess_columns(rows) == {"text": "message", "label": "intent"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("id question sentence label", ("question", "sentence", "label")),
        ("pair_ID sentence_A sentence_B judgment", ("sentence_A", "sentence_B", "judgment")),
        ("genre sentence1 sentence2 gold_label", ("sentence1", "sentence2", "gold_label")),
    ],
)
def test_two_texts_of_published_data(names, expected):
    columns = names.split()
    several = [f"a film {i}" for i in range(12)]
    cells = ["xy" if columns[0] == "genre" else several, several, several, "abc"]
    rows = [
        dict(zip(columns, (values[i % len(values)] for values in cells), strict=True))
        for i in range(12)
    ]
    assert guess_columns(rows) == dict(zip(("text", "text_pair", "label"), expected, strict=True))


def test_a_csv_file_of_another_system(tmp_path):
    """With carriage returns alone, and a cell that is longer than Python's default limit."""
    cell = "a" * (1 << 18)
    (tmp_path / "mac.csv").write_bytes(f"text,label\r{cell},x\rb,y\r".encode())
    rows = [{"text": cell, "label": "x"}, {"text": "b", "label": "y"}]
    assert sample(tmp_path / "mac.csv", "csv") == rows


def test_columns_that_are_named(init, tmp_path):
    _csv(tmp_path / "x.csv", [("1", "2", "a", "u"), ("3", "4", "a", "v")] * 2, "a,b,c,d\n")
    printed, recipe = init("x.csv", "--text", "d", "--label", "a", "--task", "TextClassifier")
    assert recipe["data"] == {"train": "x.csv", "text": "d", "label": "a"}
    assert "Columns: text 'd', label 'a'" in printed


@pytest.mark.parametrize(
    ("content", "arguments", "error"),
    [
        (None, ["x.csv"], "There is no file x.csv."),
        ("a,b\n1,2\n3,4\n", ["x.csv"], "No column looks like the label; name it with --label."),
        ("text,label\na,b\na\n", ["x.csv"], "x.csv: line 3 has 1 columns; expected 2"),
        ("text,label\na,\n", ["x.csv"], "x.csv: line 2"),
        ("text,label\na,b\nc,b\n", ["x.csv", "--text", "txt"], "Did you mean 'text'?"),
        ("text,label\na,b\n", ["x.csv", "--task", "Classifier"], "Unknown task 'Classifier'."),
        ("text,label\na,0\n", ["x.csv", "--task", "MultipleChoice"], "reads choices too"),
        ("text,label\na,b\n", ["x.csv", "--dev", "y", "--holdout", "0.1"], "Choose one."),
        ("text,label\na,b\n", ["x.csv", "--holdout", "1.5"], "must be above 0 and below 1"),
        ("text,label\na,b\n", ["x.csv", "--format", "txt"], "tabs, add --format tsv."),
        ("text,label\na,b\n", ["x.csv", "--output", "x.csv"], "x.csv exists; it is not replaced"),
        ('text,label\n"a,b\nc,d\n', ["x.csv"], "x.csv: line 2 is not CSV"),
        ("text;label\na;b\n", ["x.csv"], "text;label. Semicolons seem to separate the columns"),
        (
            '{"text": "a", "label": "b"}\n{"text": null, "label": "b"}\n',
            ["x.csv", "--format", "jsonl"],
            "x.csv: line 2: text must be a string or number, got null.",
        ),
    ],
)
def test_errors(tiny, tmp_path, capsys, content, arguments, error):
    if content is not None:
        (tmp_path / "x.csv").write_text(content)
    assert main(["init", *arguments, "--checkpoint", str(tiny)]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertfam init: ")
    assert error in line
    assert not (tmp_path / "x.yaml").exists()


def test_labels_of_one_row_are_not_held_out(init, tmp_path):
    _csv(tmp_path / "x.csv", [(f"film {i}", f"label {max(i, 20)}") for i in range(40)])
    _, recipe = init("x.csv", "--holdout", "0.5", "--task", "TextClassifier")
    labels = [
        {json.loads(line)["label"] for line in Path(recipe["data"][part]).read_text().splitlines()}
        for part in ("train", "dev")
    ]
    assert labels[0] == {f"label {i}" for i in range(20, 40)}
    assert labels[1] == {"label 20"}


def test_a_single_label(init, tmp_path, tiny, capsys):
    _csv(tmp_path / "x.csv", [("a film", "good"), ("it is", "good")])
    assert "All rows have the label 'good', and training needs" in init("x.csv")[0]
    for rows, limit in ((None, "null"), (ROWS, "1")):
        if rows is not None:
            _csv(tmp_path / "x.csv", rows)
        assert main(["train", "x.yaml", f"data.limit={limit}"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("bertfam train: All rows of x.csv ")
        assert ("up to data.limit (1)" in error) == (limit == "1")


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:The sequence head")
def test_the_recipe_runs(init, tmp_path, capsys):
    """Also from a file that is split; rows with the same text are on one side."""
    rows = [(f"film {chr(97 + i)}", ("good", "bad")[i % 2]) for i in range(20)] * 2
    _csv(tmp_path / "x.csv", rows)
    _, recipe = init("x.csv", "--holdout", "0.3")
    assert recipe["data"] == {"train": "x.train.jsonl", "dev": "x.dev.jsonl"}
    parts = [
        [json.loads(line)["text"] for line in (tmp_path / recipe["data"][part]).open()]
        for part in ("train", "dev")
    ]
    assert sum(map(len, parts)) == 40
    assert not set(parts[0]) & set(parts[1])
    assert main(["train", "x.yaml", "train.epochs=1"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == {"accuracy", "loss"}

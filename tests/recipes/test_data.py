"""Data of recipes and commands as they lie: columnar and compressed files, patterns, tfds names."""

import gzip
import json
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
import yaml

import bertfam_tf as bf
from bertfam_tf.cli import main
from bertfam_tf.recipes.reading import build
from bertfam_tf.recipes.schema import Recipe
from bertfam_tf.recipes.splits import open_split

ROWS = [("a good film", "positive"), ("it is bad", "negative"), ("it is", "neutral")] * 3
NAMES = ["negative", "neutral", "positive"]


class Films(tfds.core.GeneratorBasedBuilder):
    """A data set whose columns have names of their own."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "review": tfds.features.Text(),
            "stars": tfds.features.ClassLabel(names=NAMES),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, manager):
        return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self):
        for i, (text, label) in enumerate(ROWS):
            yield i, {"review": text, "stars": label}


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("tfds"))
    tfds.builder("films", data_dir=directory).download_and_prepare()
    tfds.core.add_data_dir(directory)
    return {"text": "review", "label": "stars"}


def _tsv(rows=ROWS):
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


def _write(directory):
    """Writes the same rows in several formats; returns them by the word for the format."""
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"text": [t for t, _ in ROWS], "label": [NAMES.index(y) for _, y in ROWS]})
    features = {"info": {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, directory / "rows.parquet")
    file = str(directory / "rows.arrow")
    with arrow.OSFile(file, "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    records = [{"text": text, "label": label} for text, label in ROWS]
    (directory / "rows.json").write_text(json.dumps(records, indent=1))
    (directory / "rows.tsv").write_text(_tsv())
    for i in range(3):
        part = _tsv(ROWS[3 * i : 3 * i + 3]).encode()
        (directory / f"part-{i}.tsv.gz").write_bytes(gzip.compress(part))
    names = {name: str(directory / f"rows.{name}") for name in ("parquet", "arrow", "json", "tsv")}
    return {**names, "pattern": str(directory / "part-*.tsv.gz")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("files"))


def _recipe(directory, model, **data):
    values = {
        "output": str(directory / "run"),
        "model": {"path": str(model)},
        "data": data,
        "train": {"epochs": 1, "seed": 3},
    }
    file = directory / "recipe.yaml"
    file.write_text(yaml.safe_dump(values))
    return str(file)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "json", "pattern"])
def test_the_splits_of_a_recipe(files, tmp_path, capsys, kind):
    data = {"train": files[kind]}
    recipe = build(
        {"output": "x", "model": {"path": "y"}, "data": data}, tmp_path / "recipe.yaml", Recipe
    )
    split = open_split(recipe.data, "train", "TextClassifier")
    rows, names, said = split
    found = [(x["text"].decode(), y.decode()) for x, y in rows.as_numpy_iterator()]
    assert (found, names) == (ROWS, NAMES)
    counts = "Labels: 'negative' 3, 'neutral' 3, 'positive' 3."
    assert said == f"{files[kind]}: 9 examples. {counts}"
    split.announce()
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.extended
def test_a_run_on_compressed_and_columnar_files(files, smallest, tmp_path, capsys):
    recipe = _recipe(tmp_path, smallest, train=files["pattern"], dev=files["parquet"])
    assert main(["train", recipe]) == 0
    shown = capsys.readouterr()
    assert "9 examples. Labels: 'negative' 3, 'neutral' 3, 'positive' 3." in shown.err
    metrics = json.loads(shown.out.splitlines()[-1])
    for kind in ("tsv", "json", "arrow", "pattern"):
        assert main(["evaluate", str(tmp_path / "run"), f"data.dev={files[kind]}"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found == pytest.approx(metrics)
    answers = []
    for kind in files:
        output = tmp_path / f"{kind}.jsonl"
        predict = ["predict", str(tmp_path / "run"), "--input", files[kind]]
        assert main([*predict, "--output", str(output)]) == 0
        # The same input and model: there is nothing to do, or to refuse.
        assert main([*predict, "--output", str(output)]) == 0
        answers.append(output.read_text())
    assert answers == answers[:1] * 5
    assert answers[0].count("\n") == 9


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("t.csv", b"text,label\na,pos\nb,\n", "t.csv: line 3: The label '' is empty"),
        ("t.csv", b"text,label\na,pos\nb, neg\n", "t.csv: line 3: The label ' neg' begins or"),
        ("t.csv", b"text,label\na,pos\ncaf\xe9,neg\n", "t.csv: line 3 is not UTF-8"),
        ("t.dat", b"PAR1\x1b[31m\n\0\0", "t.dat is a Parquet file, expected text in UTF-8"),
        ("t.xlsx", b"PK\x03\x04\x1b[31m", "t.xlsx is a ZIP archive or a spreadsheet"),
    ],
    ids=range(5),
)
def test_files_that_are_refused(smallest, tmp_path, capsys, name, content, error):
    (tmp_path / name).write_bytes(content)
    assert main(["train", _recipe(tmp_path, smallest, train=str(tmp_path / name))]) == 2
    shown = capsys.readouterr().err
    assert error in shown
    assert shown.rstrip("\n").isprintable()


def test_floats_as_labels_are_said_to_be_names(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,0.0\nb,1.0\nc,1.0\n")
    recipe = build(
        {"output": "x", "model": {"path": "y"}, "data": {"train": str(tmp_path / "t.csv")}},
        tmp_path / "recipe.yaml",
        Recipe,
    )
    said = "Labels: '0.0' 1, '1.0' 2. They are read as names, not as numbers: '0.0' is not '0'."
    assert open_split(recipe.data, "train", "TextClassifier").description.endswith(said)


# tensorflow-datasets --------------------------------------------------------------------------


def test_names_of_splits_in_recipes(films):
    data = {"train": "tfds:films/train[:4]", "dev": "tfds:films/test", **films}
    values = {"output": "x", "model": {"path": "y"}, "data": data}
    recipe = build(values, None, Recipe)
    rows, names, said = open_split(recipe.data, "train", "TextClassifier")
    assert {(x["text"].decode(), y.decode()) for x, y in rows.as_numpy_iterator()} <= set(ROWS)
    assert int(rows.cardinality()) == 4
    assert set(names) <= set(NAMES)
    assert said.startswith("tfds:films/train[:4]: 4 examples. Labels: ")


@pytest.mark.extended
def test_names_of_splits_in_python_and_in_commands(films, smallest, tmp_path, capsys):
    task = bf.TextClassifier.from_pretrained(smallest, pair=False)
    history = task.fit(
        "tfds:films/train", columns=films, validation_data="tfds:films/test", verbose=0
    )
    assert "val_loss" in history.history
    texts, labels = zip(*ROWS, strict=True)
    found = task.evaluate("tfds:films/test", columns=films, verbose=0)
    assert found == pytest.approx(task.evaluate(list(texts), list(labels), verbose=0), rel=1e-5)
    task.save(tmp_path / "task")
    output = tmp_path / "out.jsonl"
    predict = ["predict", str(tmp_path / "task"), "--input", "tfds:films/test", "--text", "review"]
    assert main([*predict, "--output", str(output)]) == 0
    split = tfds.load("films", split="test")
    expected = task.predict(split, columns={"text": "review"})
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [a["label"] for a in answers] == [a["label"] for a in expected]
    scores = [list(a["scores"].values()) for a in answers]
    np.testing.assert_allclose(np.sort(scores), np.sort([a["scores"] for a in expected]), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("tfds:films", "must have a data set and a split, such as tfds:glue/mrpc/train"),
        ("tfds:films/trian", "films: Unknown split 'trian'. Did you mean 'train'"),
        ("tfds:filsm/train", "tensorflow-datasets has no filsm"),
    ],
)
def test_names_that_are_wrong(films, smallest, tmp_path, capsys, name, error):
    recipe = _recipe(tmp_path, smallest, train=name, **films)
    assert main(["train", recipe]) == 2
    assert error in capsys.readouterr().err


def test_without_tensorflow_datasets(films, smallest, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    recipe = _recipe(tmp_path, smallest, train="tfds:films/train", **films)
    assert main(["train", recipe]) == 2
    error = "The data set films needs the package tensorflow-datasets: pip install 'bertfam_tf"
    assert error in capsys.readouterr().err


def test_without_pyarrow(files, smallest, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["train", _recipe(tmp_path, smallest, train=files["parquet"])]) == 2
    assert "needs the package pyarrow: pip install pyarrow." in capsys.readouterr().err


# Pretraining ----------------------------------------------------------------------------------


@pytest.mark.extended
def test_pretraining_on_compressed_text(tmp_path, capsys):
    lines = ["the cat sat on the mat and the dog sat on the cat\n"] * 8
    for i in range(2):
        part = "".join(lines[4 * i : 4 * i + 4]).encode()
        (tmp_path / f"part-{i}.txt.gz").write_bytes(gzip.compress(part))
    (tmp_path / "text").write_text("".join(lines))
    words = str(tmp_path / "words")
    assert not main(["vocabulary", "words", "--input", str(tmp_path / "text"), "--output", words])
    found = []
    for name, train in (("plain", "text"), ("compressed", "part-*.txt.gz")):
        sizes = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
        recipe = {
            "output": str(tmp_path / name),
            "model": {"family": "gpt2", "size": "tiny", "tokenizer": words, "overrides": sizes},
            "data": {
                "train": [str(tmp_path / train)],
                "dev": [str(tmp_path / train)],
                "end": "<eos>",
                "length": 8,
            },
            "train": {"epochs": 1, "batch_size": 2, "learning_rate": 0.03, "seed": 1},
            "prompts": [],
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        capsys.readouterr()
        assert main(["pretrain", str(tmp_path / "recipe.yaml")]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert found[0]["tokens"] == found[1]["tokens"] == 8 * 14
    assert found[0]["perplexity"] == pytest.approx(found[1]["perplexity"], rel=1e-5)

"""Tables, data sets and rows as other libraries have them, passed to fit, evaluate and predict."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.data import tables
from bertfam_tf.data.inputs import TEXTS, Fields, examples
from bertfam_tf.data.tables import as_table
from tests.selection import only_in

TEXT = ["a good film", "bad movie", "it is", "a film"]
LABEL = ["positive", "negative", "neutral", "positive"]
NAMES = ["negative", "neutral", "positive"]
INDEX = [NAMES.index(label) for label in LABEL]
COLUMNS = {"text": "review", "label": "stars"}
RENAMED = {"review": TEXT, "stars": LABEL, "id": [7, 8, 9, 10]}
TAGS = ["O", "B-PER", "I-PER"]
WORDS = [["Anna", "is", "good"], ["bad", "film"]]
TAG_IDS = [[1, 0, 0], [0, 2]]
CONTEXT, QUESTION = ["a good film", "it is bad"], ["good", "bad"]
ANSWERS = [
    {"text": ["film", "good film"], "answer_start": [7, 2]},
    {"text": [], "answer_start": []},
]


def _polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def _arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


def _datasets(columns, **names):
    """A data set whose columns of numbers have names for them."""
    library = pytest.importorskip("datasets")
    found = library.Dataset.from_dict(columns)
    features = found.features.copy()
    for column, classes in names.items():
        kind = library.ClassLabel(names=classes)
        nested = isinstance(columns[column][0], list)
        features[column] = library.Sequence(kind) if nested else kind
    return found.cast(features)


class Exporter:
    """A table of a library that only exports Arrow's C stream."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def _rows(columns, kind=dict):
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(names, row, strict=True)) if kind is dict else row for row in rows]


def _batched_frame(columns):
    return tf.data.Dataset.from_tensor_slices(columns)


TABLES = {
    "polars": _polars,
    "polars lazy": lambda columns: _polars(columns).lazy(),
    "pyarrow": _arrow,
    "arrow stream": lambda columns: Exporter(_arrow(columns)),
    "record batches": lambda columns: _arrow(columns).to_reader(),
    "datasets": lambda columns: _datasets(columns),
    "datasets as numpy": lambda columns: _datasets(columns).with_format("numpy"),
    "iterable": lambda columns: _datasets(columns).to_iterable_dataset(),
    "pyarrow.dataset": lambda columns: pytest.importorskip("pyarrow.dataset").dataset(
        _arrow(columns)
    ),
    "dicts": _rows,
    "pandas": pd.DataFrame,
    "dict": dict,
    "tf.data": _batched_frame,
}


@pytest.fixture(scope="module")
def expected(reader):
    scores = reader.evaluate(TEXT, LABEL, verbose=0, return_dict=True)
    return scores, [answer["label"] for answer in reader.predict(TEXT)]


# Training is traced anew for each.
FITTED = ("dicts", "iterable", "tf.data")


@only_in("extended", *sorted(set(TABLES) - {"pyarrow"}))
@pytest.mark.parametrize("kind", TABLES)
def test_a_classifier(reader, expected, kind):
    def made():  # a reader of batches is read once
        return TABLES[kind](RENAMED)

    if kind in FITTED:
        history = reader.fit(made(), columns=COLUMNS, validation_data=made(), verbose=0)
        assert "val_loss" in history.history
    found = reader.evaluate(made(), columns=COLUMNS, verbose=0, return_dict=True)
    assert found == pytest.approx(expected[0])
    answers = reader.predict(made(), columns={"text": "review"})
    assert [answer["label"] for answer in answers] == expected[1]


@only_in("extended", *sorted({*TABLES} - {"dict", "tf.data", "dicts", "pyarrow"}))
@pytest.mark.parametrize("kind", sorted({*TABLES} - {"dict", "tf.data"}))
def test_columns_of_the_usual_names(reader, expected, kind):
    made = TABLES[kind]({"text": TEXT, "label": INDEX, "id": [7, 8, 9, 10]})
    assert [answer["label"] for answer in reader.predict(made)] == expected[1]


def test_names_of_classes(reader, expected):
    # In an order that is not the task's.
    names = [*NAMES[1:], NAMES[0]]
    columns = {"text": TEXT, "label": [names.index(label) for label in LABEL]}
    made = _datasets(columns, label=names)
    arrow = made.data.table
    for data in (made, made.to_iterable_dataset(), arrow, made.select([0, 1, 2, 3])):
        found = reader.evaluate(data, verbose=0, return_dict=True)
        assert found == pytest.approx(expected[0])
    unlabelled = _datasets({"text": TEXT, "label": [-1] * 4}, label=names)
    assert len(reader.predict(unlabelled)) == 4
    with pytest.raises(ValueError, match="Row 0 of 'label' is missing, and 4 of 4"):
        reader.fit(unlabelled)
    with pytest.raises(ValueError, match="'bad' is not one of: negative, neutral, positive"):
        reader.fit(_datasets(columns, label=["bad", "neutral", "positive"]))


def test_tuples(reader, expected):
    made = list(zip(TEXT, LABEL, strict=True))
    found = reader.evaluate(made, verbose=0, return_dict=True)
    assert found == pytest.approx(expected[0])
    assert [answer["label"] for answer in reader.predict(made)] == expected[1]
    assert [answer["label"] for answer in reader.predict([(t,) for t in TEXT])] == expected[1]
    with pytest.raises(ValueError, match="Example 1 must be a tuple of 2, as the first one"):
        reader.fit([made[0], "bad movie"])
    with pytest.raises(ValueError, match=r"single texts.*Example 0 is a pair: The label 'a film'"):
        reader.predict([("a good film", "a film")])


@pytest.mark.extended
def test_tuples_of_pairs(smallest):
    task = bf.TextClassifier.from_pretrained(smallest, pair=True)
    task.compile(keras.optimizers.SGD(0.0))
    expected = task.evaluate((TEXT, TEXT), LABEL, return_dict=True, verbose=0)
    made = list(zip(TEXT, TEXT, LABEL, strict=True))
    assert task.evaluate(made, return_dict=True, verbose=0) == pytest.approx(expected)
    answers = task.predict([row[:2] for row in made])
    assert [a["label"] for a in answers] == [a["label"] for a in task.predict((TEXT, TEXT))]
    assert [a["label"] for a in task.predict(made)] == [a["label"] for a in answers]


def test_which_lists_are_labels_and_texts():
    pairs, words = TEXTS._replace(required=("a", "b")), TEXTS._replace(optional=(), words=True)
    texts, tags = ["a", "b", "c"], [0, 1, 0]
    for data, fields in (
        ([texts, tags], TEXTS),
        ([(texts, texts), tags], TEXTS),
        ([{"a": texts, "b": texts}, tags, [1.0, 2.0, 1.0]], pairs),
        ([[["a"], ["b"]], [["O"], ["O"]]], words),
    ):
        assert tables.members(data, fields) == tuple(data)
    for rows, fields in (
        (["a", "b"], TEXTS),
        ([("a", "b"), ("c", "d")], TEXTS),
        ([["a", "b"], ["c", "d"]], pairs),
        ([{"a": "x", "b": "y"}] * 2, pairs),
        ([(["a"], ["O"]), (["b"], ["O"])], words),
        ([texts, texts, texts, texts], TEXTS),
    ):
        assert tables.members(rows, fields) == (rows,)
    with pytest.raises(ValueError, match=r"write a tuple \(x, y\) for the latter"):
        tables.members([["a", "b"], ["O", "O"]], words)


def test_which_tuples_are_examples():
    pair = [("a", "b"), ("c", "d")]
    assert examples(pair, None, None)[0] == {"text": ["a", "c"], "label": ["b", "d"]}
    assert examples(pair, ["x", "y"], None)[0] == {"text": ["a", "c"], "text_pair": ["b", "d"]}
    unlabelled = TEXTS._replace(labelled=False)
    both = {"text": ["a", "c"], "text_pair": ["b", "d"]}
    assert examples(pair, None, None, unlabelled)[0] == both
    two = Fields(("query", "document"), ())
    assert examples([("a", "b", 1)], None, None, two)[0] == {
        "query": ["a"], "document": ["b"], "label": [1],
    }  # fmt: skip
    words = Fields(("text",), (), words=True)
    assert examples([("a", "b")], [["O", "O"]], None, words)[0] == [("a", "b")]
    assert examples([(["a"], ["O"])], None, None, words)[0] == {"text": [["a"]], "label": [["O"]]}


CONLL = {"id": ["0", "1"], "tokens": WORDS, "pos_tags": TAG_IDS, "ner_tags": TAG_IDS}
TAGGED = {
    "datasets": lambda: _datasets(CONLL, ner_tags=TAGS),
    "iterable": lambda: _datasets(CONLL, ner_tags=TAGS).to_iterable_dataset(),
    "pyarrow": lambda: _arrow(CONLL),
    "polars": lambda: _polars(CONLL),
    "dicts": lambda: _rows(CONLL),
    "tuples": lambda: list(zip(WORDS, [[TAGS[i] for i in row] for row in TAG_IDS], strict=True)),
    "strings": lambda: [("Anna is good", "B-PER O O"), ("bad film", "O I-PER")],
}


@pytest.fixture(scope="module")
def tagger(smallest):
    task = bf.TokenTagger.from_pretrained(smallest, tags=TAGS)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@only_in("extended", *sorted({*TAGGED} - {"dicts", "tuples"}))
@pytest.mark.parametrize("kind", TAGGED)
def test_tokens_and_tags(tagger, kind):
    made = TAGGED[kind]()
    if kind in ("datasets", "iterable"):
        tagger.fit(made, verbose=0)
    assert tagger.evaluate(made) == tagger.evaluate(WORDS, TAG_IDS)
    if kind != "strings":  # two words
        assert tagger.predict(made) == tagger.predict(WORDS)
    if kind == "datasets":
        assert tagger.evaluate(made["tokens"], made["ner_tags"]) == tagger.evaluate(made)
        assert tagger.evaluate(made, columns={"label": "pos_tags"}) == tagger.evaluate(made)


SQUAD = {"id": ["0", "1"], "question": QUESTION, "context": CONTEXT, "answers": ANSWERS}
QUESTIONS = {
    "datasets": lambda: _datasets(SQUAD),
    "iterable": lambda: _datasets(SQUAD).to_iterable_dataset(),
    "pyarrow": lambda: _arrow(SQUAD),
    "polars": lambda: _polars(SQUAD),
    "dicts": lambda: _rows(SQUAD),
    "pandas": lambda: pd.DataFrame(SQUAD),
    "tuples": lambda: list(zip(QUESTION, CONTEXT, ANSWERS, strict=True)),
    "one answer": lambda: pd.DataFrame(
        {"question": QUESTION, "context": CONTEXT, "answer": ["film", ""], "answer_start": [7, -1]}
    ),
}


@pytest.fixture(scope="module")
def reader_of_passages(smallest):
    task = bf.SpanQA.from_pretrained(smallest)
    task.compile(keras.optimizers.SGD(0.0))
    return task


@only_in("extended", *sorted({*QUESTIONS} - {"dicts"}))
@pytest.mark.parametrize("kind", QUESTIONS)
def test_answers_of_squad(reader_of_passages, kind):
    task, made = reader_of_passages, QUESTIONS[kind]()
    gold = [["film", "good film"] if kind != "one answer" else ["film"], [""]]
    labels = {"answer": ["film", ""], "answer_start": [7, -1], "answers": gold}
    asked = {"question": QUESTION, "context": CONTEXT}
    if kind in ("datasets", "iterable"):
        task.fit(made, validation_data=made, verbose=0)
    assert task.evaluate(made) == task.evaluate(asked, labels)
    assert [a["answer"] for a in task.predict(made)] == [a["answer"] for a in task.predict(asked)]


@pytest.mark.extended
def test_gold_answers_of_a_stream_differ_in_number(reader_of_passages):
    many = {name: values * 200 for name, values in SQUAD.items()}
    last = {"text": ["it", "is", "bad"], "answer_start": [0, 3, 6]}
    many["answers"] = [*many["answers"][:-1], last]
    made = _datasets(many)
    task = reader_of_passages
    assert task.evaluate(made.to_iterable_dataset()) == task.evaluate(made)


def test_answers_that_are_wrong(reader_of_passages):
    wrong = {**SQUAD, "answers": [{"text": ["film"]}, {"text": []}]}
    with pytest.raises(ValueError, match="Example 0 of the labels must be answers, such as"):
        reader_of_passages.fit(_rows(wrong))


@pytest.mark.extended
def test_an_embedder(embedder):
    expected = embedder.predict(TEXT)
    for kind in TABLES:
        found = embedder.predict(TABLES[kind](RENAMED), columns={"text": "review"})
        np.testing.assert_allclose(found, expected, atol=1e-6)
    pairs = {"anchor": TEXT, "positive": TEXT[::-1]}
    names = {"text": "anchor", "text_pair": "positive"}
    trainer = bf.EmbedderTrainer(embedder)
    trainer.compile(keras.optimizers.SGD(0.0))
    for kind in ("polars", "datasets", "dicts", "iterable"):
        made = TABLES[kind](pairs)
        trainer.fit(made, columns=names, verbose=0)
    trainer.fit(_rows(pairs, tuple), verbose=0)
    scored = bf.EmbedderTrainer(embedder, "cosent")
    scored.compile(keras.optimizers.SGD(0.0))
    scored.fit(_rows({**pairs, "score": [0.1, 0.2, 0.3, 0.4]}, tuple), verbose=0)


@pytest.mark.extended
def test_several_labels_and_numbers(smallest):
    several = bf.MultiLabelClassifier.from_pretrained(smallest, labels=["x", "y"])
    several.compile(keras.optimizers.SGD(0.0))
    made = {"text": TEXT, "label": [[0], [0, 1], [], [1]]}
    names = [["x"], ["x", "y"], [], ["y"]]
    expected = several.evaluate(TEXT, names, verbose=0)
    assert several.evaluate(_datasets(made, label=["x", "y"]), verbose=0) == pytest.approx(expected)
    regressor = bf.TextRegressor.from_pretrained(smallest)
    regressor.compile(keras.optimizers.SGD(0.0))
    scores = {"text": TEXT, "label": [0.5, 1.0, 2.0, 3.0]}
    expected = regressor.evaluate(TEXT, scores["label"], verbose=0)
    for kind in ("polars", "datasets", "iterable", "dicts"):
        assert regressor.evaluate(TABLES[kind](scores), verbose=0) == pytest.approx(expected)


@pytest.mark.extended
def test_queries_with_documents(smallest):
    task = bf.Reranker.from_pretrained(smallest)
    queries, documents = ["good", "bad"], ["a good film", "bad movie"]
    expected = task.predict((queries, documents))
    np.testing.assert_allclose(task.predict(list(zip(queries, documents, strict=True))), expected)
    made = {"q": queries, "d": documents}
    names = {"query": "q", "document": "d"}
    np.testing.assert_allclose(task.predict(_rows(made), columns=names), expected)


def test_columns_of_other_libraries(reader, expected):
    library, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    made = _datasets({"text": TEXT, "label": INDEX})
    for x, y in (
        (library.Series(TEXT), library.Series(LABEL)),
        (arrow.array(TEXT), arrow.array(INDEX)),
        (arrow.chunked_array([TEXT]), arrow.chunked_array([LABEL]).dictionary_encode()),
        (made["text"], made["label"]),
        ({"text": library.Series(TEXT)}, arrow.array(LABEL)),
    ):
        found = reader.evaluate(x, y, verbose=0, return_dict=True)
        assert found == pytest.approx(expected[0])
    with pytest.raises(ValueError, match="Row 1 of 'stars' is missing, and 1 of 2"):
        reader.fit(TEXT[:2], library.Series("stars", ["positive", None]))


@pytest.mark.parametrize(
    ("x", "columns", "error"),
    [
        (_rows(RENAMED), None, r"list of dicts has no column 'text', only \['review', 'stars'"),
        (_rows(RENAMED), {"text": "reviews"}, "Unknown column 'reviews'. Did you mean 'review'"),
        (_rows(RENAMED), {"texts": "review"}, "columns: Unknown text 'texts'. Did you mean 'text'"),
        ([{"text": "a"}, {"txt": "b"}], None, r"Row 1 has no 'text', got \{'txt': 'b'\}"),
        ([{"text": "a"}, {"text": None}], None, "Row 1 of 'text' is missing, and 1 of 2"),
        ([{"text": "a"}, {"text": "b", "text_pair": "c"}], None, "Row 0 has no 'text_pair'"),
        (TEXT, {"text": "review"}, "columns is for data with named columns, .* got a list"),
        (RENAMED, None, "Features must be 'text'"),
    ],
    ids=range(8),
)
def test_errors(reader, x, columns, error):
    with pytest.raises(ValueError, match=error):
        reader.predict(x, columns=columns)


def test_strings_of_one_example(reader):
    (answer,) = reader.predict({"review": "a good film", "id": 3}, columns={"text": "review"})
    assert answer["label"] == reader.predict("a good film")[0]["label"]


def test_other_objects_are_no_tables():
    for x in (TEXT, (TEXT, TEXT), {"text": TEXT}, np.array(TEXT), pd.Series(TEXT), [], "a", None):
        assert as_table(x) is None


# Labels ---------------------------------------------------------------------------------------


@pytest.mark.extended
def test_labels_are_printed_before_training(reader, capsys):
    reader.fit(TEXT, LABEL)
    shown = capsys.readouterr().out
    assert shown.startswith("Labels: 'negative' 1, 'neutral' 1, 'positive' 2.\n")
    for labels in (INDEX, _arrow({"y": LABEL})["y"]) if pytest.importorskip("pyarrow") else ():
        reader.fit(TEXT, labels)
        assert "'positive' 2." in capsys.readouterr().out
    reader.fit(TEXT, LABEL, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.extended
def test_tags_are_printed_before_training(tagger, capsys):
    tagger.fit(WORDS, TAG_IDS, validation_data=(WORDS, TAG_IDS))
    assert capsys.readouterr().out.startswith("Labels: 'O' 3, 'B-PER' 1, 'I-PER' 1.\n")


@pytest.mark.parametrize("label", ["", " positive"])
def test_labels_that_are_empty_or_padded(reader, label):
    with pytest.raises(ValueError, match=f"The label '{label}' is not one of"):
        reader.fit(TEXT, [label, *LABEL[1:]])


@pytest.mark.parametrize("values", [np.array([0.0, 1.0, 2.0, 2.0]), pd.Series([0.0, 1, 2, 2])])
def test_labels_that_are_floats(reader, values):
    with pytest.raises(ValueError, match=r"names or indices, got the float64 0\.0; .*astype"):
        reader.fit(TEXT, values)

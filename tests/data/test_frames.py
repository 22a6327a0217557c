"""pandas: columns of every kind are what lists of the same values are."""

import numpy as np
import pandas as pd
import pytest

from bertfam_tf.data import batches
from bertfam_tf.data.inputs import Fields, examples, split_rows, texts_of

A, B, Y = ["a", "b", "c"], ["d", "e", "f"], ["x", "y", "x"]
FRAME = pd.DataFrame({"id": [7, 8, 9], "text": A, "text_pair": B, "label": Y}, index=[10, 4, 4])
QUESTIONS = Fields(("question", "context"), ())


def _collect(*arguments, **options):
    stream = batches(*arguments, batch_size=2, **options)
    columns = zip(*[_flat(element) for element in stream], strict=True)
    return [np.concatenate(column).tolist() for column in columns]


def _flat(element):
    features, *rest = element
    return [value.numpy() for value in (*features.values(), *rest)]


def _bytes(values):
    return [value.encode() for value in values]


@pytest.mark.parametrize(
    "texts",
    [
        FRAME["text"],
        pd.Series(A, dtype=object),
        pd.Series(A, dtype=pd.StringDtype("python")),
        pd.Series(A, dtype="string[pyarrow]"),
        pd.Series(A).astype("category"),
        pd.Series(_bytes(A)),
        pd.Index(A),
        FRAME["text"].array,
        FRAME["text"].values,
        FRAME[["text"]],
        {"text": FRAME["text"]},
        np.array(A),
        np.array(_bytes(A)),
        np.array(A, object),
        np.array(A, np.dtypes.StringDType()),
    ],
    ids=range(15),
)
def test_texts_with_labels(texts):
    assert _collect(texts, FRAME["label"]) == [_bytes(A), _bytes(Y)]


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (pd.Series([2, 0, 1]), [2, 0, 1]),
        (pd.Series([2, 0, 1], dtype="Int64"), [2, 0, 1]),
        (pd.Series([True, False, True]), [True, False, True]),
        (pd.Series([True, False, True], dtype="boolean"), [True, False, True]),
        (pd.Series([0.5, 1.0, 2.0]), [0.5, 1.0, 2.0]),
        (pd.Series(Y).astype("category"), _bytes(Y)),
        (pd.Series([2, 0, 1]).astype("category"), [2, 0, 1]),
        (FRAME[["label"]], _bytes(Y)),
    ],
    ids=range(8),
)
def test_labels(labels, values):
    assert _collect(A, labels) == [_bytes(A), values]


def test_frames_have_fields_for_columns():
    assert _collect(FRAME) == [_bytes(A), _bytes(B), _bytes(Y)]
    assert _collect(FRAME, pd.Series([1, 2, 3])) == [_bytes(A), _bytes(B), [1, 2, 3]]
    assert _collect((FRAME["text"], FRAME["text_pair"])) == [_bytes(A), _bytes(B)]
    assert texts_of(FRAME[["id", "text"]]) == {"text": A}
    asked = pd.DataFrame({"context": B, "question": A, "answer": A, "answer_start": [0, 1, 2]})
    x, y, _ = examples(asked, asked[["answer", "answer_start"]], None, QUESTIONS)
    assert x == {"question": A, "context": B}
    assert y["answer"] == A
    assert y["answer_start"].tolist() == [0, 1, 2]


def test_weights():
    assert _collect(A, Y, pd.Series([1, 2, 3]))[-1] == [1.0, 2.0, 3.0]


def test_lists_in_cells():
    words = pd.Series([["a", "b"], ["c"]])
    assert texts_of(words) == [["a", "b"], ["c"]]
    # As a Parquet file has them.
    assert texts_of(pd.Series([np.array(["a", "b"]), np.array(["c"])])) == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            (pd.Series(["a", None, "c"], name="review"),),
            "^Row 1 of 'review' is missing, and 1 of 3",
        ),
        (
            (pd.Series(["a", np.nan, None], dtype=object),),
            "^Row 1 of 'text' is missing, and 2 of 3",
        ),
        ((pd.Series(["a", pd.NA], dtype="string[pyarrow]"),), "^Row 1 of 'text' is missing"),
        ((FRAME.assign(text_pair=["d", None, "f"]),), r"^Row 1 \(index 4\) of 'text_pair'"),
        ((A, pd.Series([1, None, 0])), "^Row 1 of 'the labels' is missing"),
        (
            (A, pd.Series(["x", None, "y"], dtype=object, name="stars")),
            "^Row 1 of 'stars' is missing",
        ),
        ((A, Y, pd.Series([1.0, None, 2.0])), "^Row 1 of 'the weights' is missing"),
        ((A, ["x", np.nan, "y"]), "^Row 1 of 'the labels' is missing"),
        ((A, np.array(["x", None, "y"], object)), "^Row 1 of 'the labels' is missing"),
        (({"text": A, "label": [None, 1, np.nan]},), "^Row 0 of 'label' is missing, and 2 of 3"),
        (([{"text": "a", "label": np.nan}],), "^Row 0 of 'label' is missing"),
        ((FRAME[["text", "text"]],), "^The DataFrame has several columns 'text', expected one"),
        ((FRAME[["label"]],), r"has no column 'text', only \['label'\]"),
        ((FRAME["id"],), "^Example 0 of 'text' must be a string, got 7"),
        ((FRAME["text"][:0],), "There is no text"),
        ((FRAME["text"], FRAME["label"][:2]), r"differ in number: \[2, 3\]"),
    ],
    ids=range(16),
)
def test_errors(arguments, error):
    with pytest.raises(ValueError, match=error):
        list(batches(*arguments, batch_size=2))


def test_a_missing_label_is_no_fault_where_labels_are_not_read():
    assert texts_of(FRAME.assign(label=None)) == {"text": A, "text_pair": B}


@pytest.mark.parametrize("x", [A, {"text": A}, np.array(A)], ids=range(3))
def test_the_last_rows_are_split_off(x):
    (first, labels, _), (last, others, _) = split_rows(x, Y, None, 0.34)
    assert (list(first["text"]), labels) == (A[:1], Y[:1])
    assert (list(last["text"]), others) == (A[1:], Y[1:])
    pairs, _ = split_rows((A, B), None, None, 0.34)
    assert pairs == ({"text": A[:1], "text_pair": B[:1]}, None, None)


@pytest.mark.parametrize(("rows", "part"), [(3, 1.0), (3, -0.1), (1, 0.5)])
def test_what_cannot_be_split_off(rows, part):
    with pytest.raises(ValueError, match=r"validation_split"):
        split_rows(A[:rows], Y[:rows], None, part)

"""Every shape of input becomes the same stream, or an error that says what was expected."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.data import batches, index_of
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import Fields

A, B, Y = ["a", "b", "c"], ["d", "e", "f"], ["x", "y", "x"]
W = [1.0, 2.0, 0.5]
slices = tf.data.Dataset.from_tensor_slices


def _collect(stream):
    """The stream's columns, end to end."""
    flat = [tf.nest.flatten(element) for element in stream]
    return [np.concatenate(column).tolist() for column in zip(*flat, strict=True)]


def _bytes(values):
    return [value.encode() for value in values]


@pytest.mark.parametrize(
    "arguments",
    [
        (A, Y),
        (tuple(A), tuple(Y)),
        (np.array(A), np.array(Y)),
        (np.array(A, object), np.array(Y, object)),
        (_bytes(A), _bytes(Y)),
        (tf.constant(A), tf.constant(Y)),
        ({"text": A}, Y),
        ({"text": A, "label": Y},),
        (slices((A, Y)),),
        (slices((A, Y)).batch(3),),
        (slices(({"text": A}, Y)),),
        (slices({"text": A, "label": Y}),),
        (slices({"label": Y, "text": A}).batch(1),),
        (slices((A, Y)).filter(lambda *_: True),),
    ],
    ids=range(14),
)
def test_texts_with_labels(arguments):
    stream = batches(*arguments, batch_size=2)
    features, label = stream.element_spec
    assert features.keys() == {"text"}
    assert label.dtype == tf.string
    assert _collect(stream) == [_bytes(A), _bytes(Y)]


@pytest.mark.parametrize(
    "arguments",
    [
        ((A, B), Y, W),
        ({"text": A, "text_pair": B}, Y, W),
        (slices(((A, B), Y, W)),),
        (slices(({"text": A, "text_pair": B}, Y, W)).batch(2),),
    ],
    ids=range(4),
)
def test_pairs_with_labels_and_weights(arguments):
    stream = batches(*arguments, batch_size=2)
    assert stream.element_spec[0].keys() == {"text", "text_pair"}
    assert _collect(stream) == [_bytes(A), _bytes(B), _bytes(Y), W]


@pytest.mark.parametrize(
    "x", [A, {"text": A}, slices(A), slices({"text": A}).batch(2)], ids=range(4)
)
def test_texts_alone(x):
    stream = batches(x, batch_size=2)
    assert len(stream.element_spec) == 1
    assert _collect(stream) == [_bytes(A)]


def test_two_texts_are_not_a_pair():
    assert _collect(batches(("a", "b"), batch_size=2)) == [[b"a", b"b"]]


@pytest.mark.parametrize("arguments", [(A, Y), (slices((A, Y)),)], ids=["lists", "data set"])
def test_parallelism_is_not_tuned(arguments):
    """Else it may take half a minute to delete an iterator."""
    stream = batches(*arguments, batch_size=2).map(lambda *element: element)
    assert stream.options().autotune.enabled is False


class Batches(keras.utils.PyDataset):
    """Batches that are in the opposite order in the next epoch."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.begun, self.epochs = batches, 0, 0

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.epochs += 1
        self.batches = self.batches[::-1]


@pytest.mark.parametrize("indexed", [True, False])
def test_generators(indexed):
    """Batches of any size, with labels and weights, of Keras' two kinds of generators."""
    both = [(A[:2], Y[:2], W[:2]), (np.array(A[2:]), Y[2:], np.float64(W[2:]))]
    given = Batches(both) if indexed else (batch for batch in both)
    stream = batches(given, batch_size=9)
    assert int(stream.cardinality()) == (2 if indexed else tf.data.UNKNOWN_CARDINALITY)
    assert _collect(stream) == [_bytes(A), _bytes(Y), W]
    again = _collect(stream)
    if not indexed:
        assert again == []  # as with Keras, it is read once
        return
    assert again == [_bytes([A[2], *A[:2]]), _bytes([Y[2], *Y[:2]]), [W[2], *W[:2]]]
    assert given.begun == given.epochs == 2


def test_structures_of_generators():
    texts = {"text": A, "text_pair": B}
    for batch in ((texts, {"y": Y}), ((A, B), {"y": Y})):
        stream = batches((each for each in [batch]), batch_size=2)
        assert stream.element_spec[1].keys() == {"y"}
        assert _collect(stream) == [_bytes(A), _bytes(B), _bytes(Y)]
    stream = batches((each for each in [{**texts, "label": Y}]), batch_size=2)
    assert _collect(stream) == [_bytes(A), _bytes(B), _bytes(Y)]
    pd = pytest.importorskip("pandas")
    for batch in (pd.DataFrame({**texts, "other": A}), texts):
        stream = batches((each for each in [batch]), batch_size=2)
        assert _collect(stream) == [_bytes(A), _bytes(B)]
    assert _collect(batches((each for each in [A]), batch_size=2)) == [_bytes(A)]
    for empty in (([], []), ({"text": []}, []), (([], []), [])):
        filled = (
            A if empty[0] == [] else (A, B) if isinstance(empty[0], tuple) else {"text": A},
            Y,
        )
        stream = batches((each for each in [empty, filled, empty, filled]), batch_size=2)
        assert _collect(stream)[-1] == _bytes([*Y, *Y])
    with pytest.raises(ValueError, match="There is no text"):
        batches((each for each in [([], [])]), batch_size=2)


def test_errors_in_generators():
    """In the first batch at once, later when it is read."""
    wrong, error = [(A, Y), (["a", None], Y[:2])], "Example 1 of 'text' must be a string, got None"
    with pytest.raises(ValueError, match=error):
        batches((each for each in wrong[::-1]), batch_size=2)
    stream = batches((each for each in wrong), batch_size=2)

    def read():
        with as_value_errors():
            _collect(stream)

    with pytest.raises(ValueError, match=rf"^{error}"):
        read()


def test_generators_have_one_structure():
    two, three = ({"text": ["a"], "choices": [list(names)]} for names in ("xy", "xyz"))
    fields = Fields(("text", "choices"), ())
    stream = batches((each for each in [two, three]), batch_size=2, fields=fields)

    def read():
        with as_value_errors():
            list(stream)

    with pytest.raises(ValueError, match=r"the same shapes in each batch, got"):
        read()


@pytest.mark.parametrize(
    ("first", "later", "error"),
    [
        ([1, 2], [2.5], "got float64 after int64"),
        ([True], [2], "got int64 after bool"),
        ([0, 1], ["2"], "got string after int64"),
        (["0"], [1], "got int64 after string"),
        ([1.5], [2], None),
        (np.int32([1]), np.int64([2]), None),
        (["a"], ["long"], None),
        ([1], [], None),
    ],
)
def test_labels_of_generators_have_one_type(first, later, error):
    """TensorFlow converted 2.5 to 2."""
    given = [(["x"] * len(labels), labels) for labels in (first, later)]
    stream = batches(Batches(given), batch_size=2)

    def read():
        with as_value_errors():
            return _collect(stream)[1]

    if error is None:
        assert read() == [each.encode() if each is str(each) else each for each in (*first, *later)]
        return
    with pytest.raises(ValueError, match=f"^Labels of a generator must have .*{error}"):
        read()


@pytest.mark.parametrize("size", [0, -1, 2.5, "8"])
def test_a_batch_size_is_a_positive_integer(size):
    with pytest.raises(ValueError, match=f"batch_size must be .*, got {size!r}"):
        batches(["a"], batch_size=size)


def test_the_size_of_keras_is_the_default():
    sizes = [len(y) for _, y in batches(["a"] * 40, ["b"] * 40, batch_size=None)]
    assert sizes == [32, 8]


def test_sizes_of_batches():
    assert [len(x["text"]) for (x,) in batches(A, batch_size=2)] == [2, 1]
    assert [len(x["text"]) for (x,) in batches(slices(A), batch_size=2)] == [2, 1]
    assert [len(x["text"]) for (x,) in batches(slices(A).batch(1), batch_size=2)] == [1, 1, 1]


def test_shuffling_keeps_rows_together_and_changes():
    texts = [str(i) for i in range(100)]
    stream = batches(texts, list(range(100)), batch_size=100, shuffle=True)
    first, second = _collect(stream), _collect(stream)
    assert first != second
    for found, labels in (first, second):
        assert found == [b"%d" % label for label in labels]
        assert sorted(labels) == list(range(100))
    ordered = slices(texts)
    assert _collect(batches(ordered, batch_size=9, shuffle=True)) == [_bytes(texts)]


def test_hostile_texts_survive():
    texts = ["", "a\0", "\0", "\ud800", b"\xff\xfe", "é🙂", "x" * 1_000_000]
    (found,) = _collect(batches(texts, batch_size=3))
    assert found == [b"", b"a\0", b"\0", b"?", b"\xff\xfe", "é🙂".encode(), b"x" * 1_000_000]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a",), "got a single string"),
        ((b"a",), "got a single string"),
        ((3,), "tf.data.Dataset of those, got a int"),
        ((None,), "tf.data.Dataset of those, got a NoneType"),
        (((t for t in A),), "got a single string"),
        (((t for t in ()),), "There is no text"),
        (((t for t in [A]), Y), "must be None if x is a generator"),
        (((t for t in [(A, Y[:2])]),), r"differ in number: \[2, 3\]"),
        (([],), "There is no text"),
        (([], []), "There is no text"),
        ((slices(A).take(0),), "There is no text"),
        ((["a", 1],), "Example 1 of 'text' must be a string, got 1"),
        ((["a", None],), "Example 1 of 'text' must be a string, got None"),
        (([["a"], ["b"]],), r"Example 0 of 'text' must be a string, got \['a'\]"),
        ((np.array([1.0]),), "Example 0 of 'text'"),
        (((A, [1, 2, 3]),), "Example 0 of 'text_pair' must be a string, got 1"),
        ((A, None, W), "sample_weight was given without labels"),
        ((A, Y[:2]), r"differ in number: \[2, 3\]"),
        (((A, B[:1]), Y), r"differ in number: \[1, 3\]"),
        ((A, Y, W[:1]), r"differ in number: \[1, 3\]"),
        (({"texts": A},), r"Features must be 'text' and optionally 'text_pair', got \['texts'\]"),
        (({"text_pair": A},), "Features must be"),
        (({"text": A, "id": A},), "Features must be"),
        ((slices(A), Y), "must be None if x is a tf.data.Dataset"),
        ((slices({"text": A, "id": A}),), "^Features must be"),
        ((slices([1, 2]),), "^'text' of a data set must be strings, got int32"),
        ((slices(A).batch(1).batch(1),), "got rank 2"),
    ],
    ids=range(27),
)
def test_errors(arguments, error):
    with pytest.raises(ValueError, match=error):
        list(batches(*arguments, batch_size=2))


@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_index(shape):
    known = ["b", "a", "ä"]
    values = tf.fill(shape, "ä")
    found = index_of(values, known, "label")
    assert found.dtype == tf.int32
    assert found.numpy().tolist() == np.full(shape, 2).tolist()


@pytest.mark.parametrize("value", ["c", "", "grün.\n[x]", "a]b.", "\ud7ff'"])
def test_a_value_that_is_not_listed_is_named(value):
    function = tf.function(lambda v: index_of(v, ["b", "a.", "[ä]"], "label"))
    values = tf.constant(["b", value, "z"])
    with pytest.raises(ValueError, match="is not one of") as caught, as_value_errors():
        function(values)
    assert str(caught.value) == f"The label '{value}' is not one of: b, a., [ä]."


def test_other_errors_of_graphs_are_left_alone():
    with pytest.raises(tf.errors.InvalidArgumentError), as_value_errors():
        tf.debugging.Assert(False, ["something else."])

"""Checks of shapes and values inside a graph, tried as Serving runs it."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from bertfam_tf.export import guards
from bertfam_tf.export.guards import InputLimits, with_input_checks
from bertfam_tf.export.in_graph_batching import BatchingOptions, batch_requests
from bertfam_tf.export.runtime import Code, ServingError, load

TEXT = tf.TensorSpec([None], tf.string, "text")
OTHER = tf.TensorSpec([None], tf.string, "other")
CHOICES = tf.TensorSpec([None, 2], tf.string, "choices")
ANY = tf.TensorSpec([None, None], tf.string, "text")
IDS = tf.TensorSpec([None, None], tf.int32, "ids")
MASK = tf.TensorSpec([None, None], tf.int32, "mask")
LISTS = tf.TensorSpec([None, None, None], tf.int32, "lists")
CELL = tf.TensorSpec([None, 1], tf.string, "cell")
IN_BATCHES = BatchingOptions(batch_timeout_micros=0)


def _lengths(*texts):
    """Of any shapes, broadcast: only the guard refuses them."""
    return {"y": sum(tf.strings.length(text) for text in texts)}


def _sums(*ids):
    return {"y": sum(ids)}


def _written(directory, signatures):
    """A SavedModel of functions and their specs by name."""
    functions = {
        name: tf.function(f, list(specs), autograph=False).get_concrete_function()
        for name, (f, specs) in signatures.items()
    }
    tf.saved_model.save(tf.Module(), str(directory), signatures=functions)
    return directory


def _guarded(function, *specs, **limits):
    return with_input_checks(
        function, {spec.name: spec for spec in specs}, InputLimits(**limits)
    ), specs


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    signatures = {
        "text": _guarded(_lengths, TEXT),
        "pair": _guarded(_lengths, TEXT, OTHER),
        "choice": _guarded(lambda t, c: _lengths(t[:, tf.newaxis], c), TEXT, CHOICES),
        "columns": _guarded(_lengths, CELL, CHOICES),
        "batched": _guarded(batch_requests(_lengths, "lengths", IN_BATCHES), TEXT),
        "ids": _guarded(_sums, IDS, MASK, counts={"ids": 10, "mask": 2}, length=4),
        "full": _guarded(_sums, LISTS, allow_empty=False),
    }
    return load(_written(tmp_path_factory.mktemp("guarded"), signatures))


def _refused(served, signature, **inputs):
    with pytest.raises(ServingError) as error:
        served.run(signature, inputs)
    assert error.value.code is Code.INVALID_ARGUMENT
    return error.value.message


def _texts(*shape):
    return np.full(shape, b"abc", object)


@pytest.mark.parametrize("shape", [(), (1, 0), (0, 1), (1, 1), (2, 2), (1, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("signature", ["text", "batched"])
def test_texts_of_other_ranks(served, signature, shape):
    message = _refused(served, signature, text=_texts(*shape))
    assert "is not compatible with expected shape [?]" in message


def test_what_fits_is_answered(served):
    for rows in (0, 1, 3):
        assert served.run("text", {"text": _texts(rows)})["y"].tolist() == [3] * rows
        assert served.run("batched", {"text": _texts(rows)})["y"].tolist() == [3] * rows
        pair = {"text": _texts(rows), "other": _texts(rows)}
        assert served.run("pair", pair)["y"].tolist() == [6] * rows
        choice = {"text": _texts(rows), "choices": _texts(rows, 2)}
        assert served.run("choice", choice)["y"].tolist() == [[6, 6]] * rows
    ids = {"ids": np.array([[0, 9, 4, 4]], "int32"), "mask": np.array([[1, 0, 1, 1]], "int32")}
    assert served.run("ids", ids)["y"].tolist() == [[1, 9, 5, 5]]
    empty = dict.fromkeys(ids, np.zeros((2, 0), "int32"))
    assert served.run("ids", empty)["y"].shape == (2, 0)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3), (2, 0), (2, 2, 1), ()])
def test_another_number_of_choices(served, shape):
    message = _refused(served, "choice", text=_texts(2), choices=_texts(*shape))
    assert "is not compatible with expected shape [?,2]" in message


def test_inputs_of_different_numbers_of_rows(served):
    # All of these could be broadcast.
    message = _refused(served, "pair", text=_texts(3), other=_texts(1))
    assert "The number of rows must be equal in text, other; their shapes are] [3] [1]" in message
    _refused(served, "pair", text=_texts(1), other=_texts(0))
    _refused(served, "choice", text=_texts(1), choices=_texts(3, 2))
    ids = np.zeros((2, 3), "int32")
    message = _refused(served, "ids", ids=ids, mask=ids[:, :1])
    assert "The first 2 dimensions must be equal in ids, mask" in message
    _refused(served, "ids", ids=ids, mask=ids[:1])


def test_columns_of_different_widths(served):
    answer = served.run("columns", {"cell": _texts(3, 1), "choices": _texts(3, 2)})
    assert answer["y"].shape == (3, 2)
    _refused(served, "columns", cell=_texts(1, 1), choices=_texts(3, 2))


@pytest.mark.parametrize(
    ("name", "value", "largest"),
    [("ids", -1, 9), ("ids", 10, 9), ("ids", -(2**31), 9), ("mask", 2, 1), ("mask", -1, 1)],
)
def test_values_out_of_range(served, name, value, largest):
    inputs = {"ids": np.ones((2, 3), "int32"), "mask": np.ones((2, 3), "int32")}
    inputs[name][1, 1] = value
    message = _refused(served, "ids", **inputs)
    assert f"{name} must be from 0 to {largest}; smallest and largest value:" in message
    assert f"[{value}]" in message


def test_rows_that_are_too_long(served):
    ids = np.ones((1, 5), "int32")
    assert "must have at most 4 values, not] [5]" in _refused(served, "ids", ids=ids, mask=ids)


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 0, 3), (0, 0, 0)])
def test_examples_that_must_not_be_empty(served, shape):
    message = _refused(served, "full", lists=np.zeros(shape, "int32"))
    assert "Dimensions of lists after the batch must be at least 1; its shape is" in message
    assert f"[{' '.join(map(str, shape))}]" in message


def test_a_batch_may_be_empty(served):
    assert served.run("full", {"lists": np.zeros((0, 2, 3), "int32")})["y"].shape == (0, 2, 3)


def test_every_hostile_request_is_hostile(served):
    """What an export is tried with does not fit, and covers each input."""
    signatures = {"text": [TEXT], "pair": [TEXT, OTHER], "choice": [TEXT, CHOICES]}
    for signature, specs in signatures.items():
        names = {spec.name: spec for spec in specs}

        def plain(rows, specs=specs):
            return {s.name: _texts(rows, *s.shape[1:]) for s in specs}

        found = list(guards.invalid_requests(names, InputLimits(), plain))
        assert len(found) > 10 * len(specs)
        for wrong, inputs in found:
            assert wrong
            assert _refused(served, signature, **inputs)
    limits = InputLimits({"ids": 10, "mask": 2}, 4)
    specs = {"ids": IDS, "mask": MASK}
    found = dict(
        guards.invalid_requests(
            specs, limits, lambda rows: dict.fromkeys(specs, np.ones((rows, 2), "i4"))
        )
    )
    assert {"ids of -1", "ids of 10", "mask of 2", "rows of 5 values"} <= found.keys()
    for inputs in found.values():
        assert _refused(served, "ids", **inputs)
    lists = {"lists": LISTS}
    full = InputLimits(allow_empty=False)
    found = dict(
        guards.invalid_requests(lists, full, lambda rows: {"lists": np.ones((rows, 2, 3), "i4")})
    )
    assert {"dimension 1 of 0", "dimension 2 of 0"} <= found.keys()
    for inputs in found.values():
        assert _refused(served, "full", **inputs)


def _unguarded(directory):
    content = (directory / "saved_model.pb").read_bytes()
    meta_graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]
    return sorted(guards.unchecked_inputs(meta_graph))


def test_guards_are_found_in_a_written_graph(tmp_path):
    inner = tf.function(_guarded(_lengths, TEXT)[0], [TEXT], autograph=False)
    half = _guarded(_lengths, TEXT)[0]
    signatures = {
        "guarded": _guarded(_lengths, TEXT, OTHER),
        "in_a_function": (lambda text: inner(text), [TEXT]),
        "columns": _guarded(_lengths, CELL, CHOICES),
        "batched": _guarded(batch_requests(_lengths, "lengths", IN_BATCHES), TEXT),
        "none": (_lengths, [TEXT]),
        "of_one": (lambda text, x: {**half(text), "z": tf.strings.length(x)}, [TEXT, OTHER]),
        "too_late": (lambda text: half(tf.strings.lower(text)), [TEXT]),
        "beside_it": (lambda text: {**half(text), "z": tf.strings.length(text)}, [TEXT]),
        "of_another_shape": (lambda x: _lengths(tf.ensure_shape(x, [None, 2])), [ANY]),
        "asserted": (_asserted, [TEXT]),
        "in_a_batch": (batch_requests(half, "lengths", IN_BATCHES), [TEXT]),
    }  # fmt: skip
    found = _unguarded(_written(tmp_path, signatures))
    missing = ("none", "too_late", "beside_it", "of_another_shape", "asserted", "in_a_batch")
    assert found == sorted([*((name, "text") for name in missing), ("of_one", "other")])


def _asserted(text):
    with tf.control_dependencies([tf.debugging.Assert(tf.rank(text) == 1, ["rank"])]):
        return _lengths(tf.identity(text))

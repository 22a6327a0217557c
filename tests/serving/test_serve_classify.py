"""Classify and Regress over REST: bodies, answers and their layout, refusals."""

import base64

import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, regression_pb2

from bertfam_serve.json_examples import decode_examples, encode_classes, encode_values
from bertfam_tf.export.runtime import Code, ServingError
from tests.serving.half_plus import example, regress_request


def body(*rows, signature="", **more):
    given = {"signature_name": signature} if signature else {}
    return {**given, **more, "examples": list(rows)}


@pytest.mark.parametrize(("x", "y"), [(20, 12.0), (10, 7.0), (2, 3.0), (1.5, 2.75)])
def test_classify(post, x, y):
    response = post("classify", body({"x": float(x)}, signature="classify_x_to_y"))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"results": [[["", y]]]}


@pytest.mark.parametrize(("x", "y"), [(80.0, 42.0), (2.0, 3.0)])
def test_regress(post, x, y):
    response = post("regress", body({"x": x}, signature="regress_x_to_y"))
    assert (response.status_code, response.json()) == (200, {"results": [y]})


def test_the_layout_of_classes(post):
    response = post("classify", body({"x": 2.0}, {"x": [1.0]}, signature="labelled"))
    assert response.text == (
        '{\n    "results": [[["low", 3.0], ["high", -3.0]], [["low", 2.5], ["high", -2.5]]\n'
        "    ]\n}"
    )


def test_the_layout_of_values(post):
    response = post("regress", body({"x": 2.0}, {"x": 0.1}, signature="regress_x_to_y"))
    assert response.text == '{\n    "results": [3.0, 2.05]\n}'


@pytest.mark.parametrize("context", [{"x": 80.0}, {"x": [80.0], "other": "text"}])
def test_context(post, context):
    given = body({}, {"x": 2.0}, signature="regress_x_to_y", context=context)
    assert post("regress", given).json() == {"results": [42.0, 3.0]}


@pytest.mark.parametrize("path", ["/v1/models/m/versions/5", "/V1/models/m", "/v1/models/%6d"])
def test_paths(post, half, path):
    given = body({"x": 2.0}, signature="regress_x_to_y")
    response = httpx.post(f"{half.url}{path}:regress", json=given, timeout=60)
    assert response.json() == {"results": [3.0]}


FEATURES = [
    (b'{"a": 1}', dict(a=[1])),
    (b'{"a": [1, -2]}', dict(a=[1, -2])),
    (b'{"a": 1.5}', dict(a=[1.5])),
    (b'{"a": [1.0, 2e3]}', dict(a=[1.0, 2000.0])),
    (b'{"a": [NaN, Infinity, -Infinity, 1e300]}',
     dict(a=[float("nan"), float("inf"), float("-inf"), float("inf")])),
    (b'{"a": true, "b": [false, true, 3]}', dict(a=[1], b=[0, 1, 3])),
    (b'{"a": "text", "b": ["", "\\u00e9"]}', dict(a=[b"text"], b=[b"", "é".encode()])),
    (b'{"a": {"b64": "aGVsbG8="}}', dict(a=[b"hello"])),
    (b'{"a": ["x", {"b64": "/w"}]}', dict(a=[b"x", b"\xff"])),
    (b'{"a": "\xff"}', dict(a=[b"\xff"])),
    (b'{"a": 9223372036854775807, "b": -9223372036854775808}', dict(a=[2**63 - 1], b=[-(2**63)])),
    (b'{"a": 18446744073709551616}', dict(a=[float(2**64)])),
    (b'{"a": -9223372036854775809}', dict(a=[-float(2**63)])),
    (b'{"a": 1, "a": 2.5}', dict(a=[2.5])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "features"), FEATURES)
def test_json_becomes_features(text, features):
    request = regression_pb2.RegressionRequest()
    decode_examples(b'{"examples": [' + text + b"]}", request)
    (made,) = request.input.example_list.examples
    assert made.SerializeToString(deterministic=True) == example(**features).SerializeToString(
        deterministic=True
    )


def test_a_feature_without_values_is_there():
    request = regression_pb2.RegressionRequest()
    decode_examples(b'{"examples": [{"a": []}, {}]}', request)
    first, second = request.input.example_list.examples
    assert (set(first.features.feature), set(second.features.feature)) == ({"a"}, set())
    assert first.features.feature["a"].WhichOneof("kind") is None


@pytest.mark.parametrize("text", [b"{}", b'{"a": 1}'])
def test_context_is_read(text):
    request = classification_pb2.ClassificationRequest()
    decode_examples(b'{"context": ' + text + b', "examples": [{}, {"b": 2}]}', request)
    assert request.input.WhichOneof("kind") == "example_list_with_context"
    assert len(request.input.example_list_with_context.examples) == 2


BIG = b"9" * 400

REFUSED = [
    (b"", "not JSON: Expecting value (byte 0)"),
    (b"{", "(byte 1)"),
    (b"[]", "must be a JSON object, got an empty array"),
    (b'{"signature_name": 3, "examples": [{}]}', "'signature_name' must be a string, got 3"),
    (b"{}", "'examples' must be a non-empty array, got none"),
    (b'{"examples": {}}', "'examples' must be a non-empty array, got an object"),
    (b'{"examples": []}', "'examples' must be a non-empty array, got an empty array"),
    (b'{"examples": [1]}', "examples[0] is 1, expected an object"),
    (b'{"examples": [{}, "a"]}', 'examples[1] is "a", expected an object'),
    (b'{"context": [], "examples": [{}]}', "context is an empty array, expected an object"),
    (b'{"context": null, "examples": [{}]}', "context is null, expected an object"),
    (b'{"examples": [{"a": null}]}', 'examples[0]["a"]: null'),
    (b'{"examples": [{}, {"a": [[1]]}]}', 'examples[1]["a"]: an array of 1'),
    (b'{"examples": [{"a": {"x": 1}}]}', 'examples[0]["a"]: an object'),
    (b'{"examples": [{"a": [1, 1.5]}]}', "of type int64, a later one of type float"),
    (b'{"examples": [{"a": [1.5, 1]}]}', "of type float, a later one of type int64"),
    (b'{"examples": [{"a": ["x", true]}]}', "of type bytes, a later one of type int64"),
    (b'{"examples": [{"a": [1, {"b64": ""}]}]}', "of type int64, a later one of type bytes"),
    (b'{"examples": [{"a": {"b64": "="}}]}', "is not base64"),
    (b'{"examples": [{"a": 9223372036854775808}]}', "9223372036854775808 is too large"),
    (b'{"examples": [{"a": ' + BIG + b"}]}", "a number that is too large"),
    (b'{"examples": [{"\\ud800": 1}]}', "examples[0]: the name of a feature is not valid UTF-8"),
    (b'{"signature_name": "\\ud800", "examples": [{}]}', "'signature_name' is not valid UTF-8"),
]


@pytest.mark.parametrize("verb", ["classify", "regress"])
@pytest.mark.parametrize(("content", "error"), REFUSED)
def test_refused_bodies(post, verb, content, error):
    response = post(verb, content)
    assert response.status_code == 400
    assert error in response.json()["error"]


@pytest.mark.parametrize(
    ("verb", "signature", "error"),
    [
        ("classify", "x", "No signature was found with the name: x"),
        ("regress", "x", "No signature was found with the name: x"),
        ("classify", "pair", "Expected one input Tensor."),
        ("regress", "labelled", "Expected one output Tensor."),
        ("regress", "wide", "Expected output Tensor shape to be either [batch_size] or "
         "[batch_size, 1] but got [1,2]"),
    ],
)  # fmt: skip
def test_refused_signatures(post, verb, signature, error):
    response = post(verb, body({"x": 2.0}, signature=signature))
    assert (response.status_code, response.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("x", 404, "Servable not found for request: Latest(x)"),
        ("m/versions/9", 404, "Servable not found for request: Specific(m, 9)"),
        ("m/labels/new", 400, "Unrecognized servable version label: new"),
    ],
)
@pytest.mark.parametrize("verb", ["classify", "regress"])
def test_unknown_models(half, verb, path, status, error):
    response = httpx.post(f"{half.url}/v1/models/{path}:{verb}", json=body({}), timeout=60)
    assert (response.status_code, response.json()) == (status, {"error": error})
    # What is wrong with the body comes first.
    response = httpx.post(f"{half.url}/v1/models/{path}:{verb}", content=b"{", timeout=60)
    assert "not JSON" in response.json()["error"]


def test_numbers_follow_the_rule():
    values = np.array([9000000, 999999, 0.5, 0.0003, 0.00003, 555557.5, 1 / 3], np.float32)
    result = regression_pb2.RegressionResult()
    for value in [*values.tolist(), float("nan"), float("inf"), float("-inf")]:
        result.regressions.add(value=value)
    assert encode_values(result).decode() == (
        '{\n    "results": [9e+06, 999999.0, 0.5, 0.0003, 3e-05, 555557.5, 0.333333343, NaN, '
        "Infinity, -Infinity]\n}"
    )


@pytest.mark.parametrize(
    ("encode", "result"),
    [
        (encode_classes, classification_pb2.ClassificationResult()),
        (encode_values, regression_pb2.RegressionResult()),
    ],
)
def test_no_results(encode, result):
    with pytest.raises(ServingError) as caught:
        encode(result)
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert caught.value.message.startswith("The model returned no ")


def test_labels_are_quoted():
    result = classification_pb2.ClassificationResult()
    result.classifications.add().classes.add(label='"é\n', score=1)
    result.classifications.add()
    assert encode_classes(result).decode() == (
        '{\n    "results": [[["\\"é\\n", 1.0]], []\n    ]\n}'
    )


def test_deep_nesting_is_refused(post):
    content = b'{"examples": [' + b'{"a": ' + b"[" * 100_000
    response = post("regress", content)
    assert response.status_code == 400
    assert "nested too deeply" in response.json()["error"]


def test_rest_and_protos_agree(post, stubs):
    """The same tf.Examples by JSON and by proto, one column of bytes among them."""
    xs = np.random.default_rng(0).normal(size=20).astype(np.float32)
    rows = [{"x": float(x), "t": {"b64": base64.b64encode(b"\xff").decode()}} for x in xs]
    over_rest = post("regress", body(*rows, signature="regress_x_to_y")).json()["results"]
    result = stubs.prediction.Regress(regress_request(*xs)).result
    np.testing.assert_array_equal(
        np.array(over_rest, np.float32), np.array([r.value for r in result.regressions], np.float32)
    )
    np.testing.assert_allclose(over_rest, tf.constant(0.5) * xs + 2, rtol=1e-6)

"""Malformed requests to a local server, for `tools.fuzz_server` and its tests.

They are for the model that `tools.fuzz_server.write_model` writes, and for exports.
"""

import base64
import copy
import functools
import gzip
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.fuzz_exports import Exports, Request

# The share of the requests, where there are exports.
_TO_EXPORTS = 0.7
_GRPC = "/tensorflow.serving.PredictionService/"

_BODIES: list[Any] = [
    {"instances": [1.0, 2, 5]},
    {"inputs": [[1, 2], [3, 4]]},
    {"signature_name": "words", "instances": ["a b c", "größe 🙂"]},
    {"signature_name": "words", "inputs": {"text": ["a", {"b64": "aGVsbG8="}]}},
    {"signature_name": "pair", "instances": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]},
    {"signature_name": "pair", "inputs": {"a": [1.5], "b": ["x"]}},
    {"signature_name": "examples", "examples": [{"text": "a"}, {"text": ["b"], "n": 1}]},
    {"signature_name": "examples", "context": {"k": 1}, "examples": [{"text": "a"}]},
]
_VERBS = ("predict", "predict", "predict", "classify", "regress")
_SCALARS: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e308, -1e-308, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400),
    *("", "x", "\u0000", "\ud800", "🙂" * 50, "a" * 5000, {"b64": "!!"}, {"b64": 1}, {"b64": "YQ"}),
    *([], {}, [[]], [[1], [1, 2]], {"": {}}, {"b64": "YQ==", "x": 1}, [None], [[[[[[1]]]]]]),
]
_TEXTS = (b"NaN", b"-Infinity", b"1e999999", b"0x10", b"01", b"+1", b".5", b"1.", b"'x'", b"//")


class Case(NamedTuple):
    """A request over HTTP, or the bytes of a gRPC message to a method where `grpc`.

    One to an export has what that must answer.
    """

    kind: str
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    grpc: bool = False
    request: Request | None = None


def case(seed: int, number: int, grpc: bool = False, exports: Exports | None = None) -> Case:
    """The case with this number; the same whenever it is made."""
    generator = random.Random(f"{seed}/{number}")
    if exports is not None and generator.random() < _TO_EXPORTS:
        sent = exports.request(generator)
        method = "gRPC" if sent.grpc else "POST"
        return Case(sent.kind, method, sent.path, sent.body, (), sent.grpc, sent)
    kinds = _KINDS + (_GRPC_KINDS if grpc else [])
    return generator.choice(kinds)(generator)


def _predict_path(generator: random.Random) -> str:
    version = generator.choice(("", "", "", "/versions/1", "/versions/9", "/labels/x"))
    return f"/v1/models/m{version}:{generator.choice(_VERBS)}"


def _post(kind: str, generator: random.Random, body: bytes, **headers: str) -> Case:
    sent = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Case(kind, "POST", _predict_path(generator), body, sent)


def _changed_json(generator: random.Random) -> Case:
    body = json.loads(json.dumps(generator.choice(_BODIES)))
    for _ in range(generator.randint(1, 4)):
        _change(body, generator)
    return _post("changed JSON", generator, json.dumps(body).encode())


def _change(value: Any, generator: random.Random) -> None:
    """Changes a container in place, somewhere within."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if keys and generator.random() < 0.7:
        key = generator.choice(keys)
        if isinstance(value[key], dict | list) and generator.random() < 0.7:
            _change(value[key], generator)
        elif generator.random() < 0.2:
            del value[key]
        else:
            value[key] = copy.deepcopy(generator.choice(_SCALARS))
    elif isinstance(value, dict):
        name = generator.choice(("instances", "inputs", "signature_name", "a", "text", "", "b64"))
        value[name] = copy.deepcopy(generator.choice(_SCALARS))
    else:
        value.insert(generator.randint(0, len(value)), copy.deepcopy(generator.choice(_SCALARS)))


def _changed_text(generator: random.Random) -> Case:
    body = bytearray(json.dumps(generator.choice(_BODIES), ensure_ascii=False).encode())
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(body) + 1)
        what = generator.random()
        if what < 0.3:
            del body[at : at + generator.randint(1, 8)]
        elif what < 0.5:
            body[at:at] = generator.choice(_TEXTS)
        elif what < 0.7:
            body[at:at] = bytes([generator.choice(b'{}[]",:\\ue+-')])
        else:
            body[at:at] = generator.randbytes(generator.randint(1, 4))
    return _post("changed text", generator, bytes(body))


def _bytes(generator: random.Random) -> Case:
    return _post("random bytes", generator, generator.randbytes(generator.randint(0, 300)))


def _deep(generator: random.Random) -> Case:
    depth = generator.choice((10, 70, 300, 1500, 20_000, 300_000))
    key = generator.choice(("instances", "inputs", "examples", "x"))
    opened, closed = generator.choice(
        (("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ("[[1],", "]"))
    )
    inside = generator.choice(("", "1", '"x"', '{"b64": "YQ=="}'))
    ends = closed * depth if generator.random() < 0.7 else ""
    return _post("deep", generator, f'{{"{key}": {opened * depth}{inside}{ends}}}'.encode())


def _number(generator: random.Random) -> Case:
    digits = "".join(
        generator.choices("0123456789", k=generator.choice((1, 20, 400, 5000, 50_000)))
    )
    forms = (digits, f"-{digits}", f"{digits}e{digits[:6]}", f"1e-{digits[:9]}", f"0.{digits}")
    number = generator.choice((*forms, f"{digits}.0"))
    return _post("huge number", generator, f'{{"instances": [{number}]}}'.encode())


def _shape(generator: random.Random) -> Case:
    def nested(depth: int) -> Any:
        if depth == 0:
            return generator.choice((1, 1, 1, 0.5, "x", *_SCALARS))
        return [nested(depth - 1) for _ in range(generator.randint(0, 3))]

    name = generator.choice(("serving_default", "words", "pair", "examples", "none", ""))
    key = generator.choice(("instances", "inputs", "examples"))
    body = {"signature_name": name, key: nested(generator.randint(0, 4))}
    return _post("shape or type", generator, json.dumps(body).encode())


def _base64(generator: random.Random) -> Case:
    text = base64.b64encode(generator.randbytes(generator.randint(0, 40))).decode()
    at = generator.randint(0, len(text))
    text = text[:at] + generator.choice(("=", "==", "*", " ", "\n", "é", "-_", "")) + text[at:]
    value = generator.choice(({"b64": text}, {"b64": [text]}, {"b64": text, "c": 1}, {"B64": text}))
    body = {"signature_name": "words", generator.choice(("inputs", "instances")): [value]}
    return _post("base64", generator, json.dumps(body).encode())


_BLANKS = [b" " * size for size in (10**3, 10**6, 80 * 2**20)]  # the last is a bomb


def _gzip(generator: random.Random) -> Case:
    body = json.dumps(generator.choice(_BODIES)).encode()
    plain = generator.choice((body, generator.choice(_BLANKS), _compressed(_BLANKS[1]), b""))
    body = _compressed(plain)
    what = generator.random()
    if what < 0.3:
        body = body[: generator.randint(0, len(body))]
    elif what < 0.5:
        at = generator.randrange(len(body))
        body = body[:at] + generator.randbytes(2) + body[at + 2 :]
    elif what < 0.6:
        body = plain[:1000]
    elif what < 0.7:
        body += generator.randbytes(10)
    return _post(
        "gzip", generator, body, Content_Encoding=generator.choice(("gzip", "x-gzip, gzip"))
    )


@functools.cache
def _compressed(plain: bytes) -> bytes:
    return gzip.compress(plain, 1)


def _path(generator: random.Random) -> Case:
    parts = [
        *("/v1", "/v1/", "/V1/models", "/models", "/m", ":predict", ":classify", "/metadata", "/"),
        *("/versions/", "/versions/1", "/labels/", "/labels/a:b", "/versions/" + "9" * 30, "//"),
        *("/versions/" + "1" * 5000, "%00", "%ff", "%2F", "/%6d", "?a=b", "..", "/../..", "/%"),
        *("/monitoring/prometheus/metrics", "/ui", ":", ";", "a" * 3000),
    ]
    path = "".join(generator.choices(parts, k=generator.randint(1, 7)))
    if generator.random() < 0.7:
        path = "/v1/models/m" + path
    method = generator.choice(
        ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO")
    )
    headers = (("Origin", generator.choice(("http://a", "x", ""))),) if method == "OPTIONS" else ()
    body = json.dumps(generator.choice(_BODIES)).encode() if generator.random() < 0.4 else b""
    return Case("path or method", method, path if path[0] == "/" else "/" + path, body, headers)


def _header(generator: random.Random) -> Case:
    names = "Content-Type Content-Encoding Accept Authorization X-Api-Key Range Expect"
    name = generator.choice(names.split())
    value = generator.choice(
        ("", "gzip", "deflate", "application/grpc", "a" * 5000, "\xff", "*/*", "0")
    )
    return _post(
        "header", generator, json.dumps(generator.choice(_BODIES)).encode(), **{name: value}
    )


@functools.cache
def _protos() -> list[tuple[str, bytes]]:
    """Good requests to each method, as bytes."""
    import tensorflow as tf
    from tensorflow_serving.apis import get_model_metadata_pb2

    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"a b")
    found = []
    for signature, name, values in (("words", "text", ["a b", "c"]), ("", "x", [1.0, 2.0])):
        predict = _request("Predict")
        predict.model_spec.name, predict.model_spec.signature_name = "m", signature
        predict.inputs[name].CopyFrom(tf.make_tensor_proto(values))
        found.append(("Predict", predict))
    for method in ("Classify", "Regress", "MultiInference"):
        request = _request(method)
        request.input.example_list.examples.append(example)
        if method == "MultiInference":
            task = request.tasks.add(method_name="tensorflow/serving/classify")
            task.model_spec.name = "m"
        else:
            request.model_spec.name, request.model_spec.signature_name = "m", "examples"
        found.append((method, request))
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    found.append(("GetModelMetadata", metadata))
    return [(method, request.SerializeToString()) for method, request in found]


def _request(method: str) -> Any:
    from tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2
    from tensorflow_serving.apis import regression_pb2 as regress_pb2

    return {
        "Predict": predict_pb2.PredictRequest,
        "Classify": classification_pb2.ClassificationRequest,
        "Regress": regress_pb2.RegressionRequest,
        "MultiInference": inference_pb2.MultiInferenceRequest,
    }[method]()


def _proto(generator: random.Random) -> Case:
    method, good = generator.choice(_protos())
    message = bytearray(good)
    kind = "changed proto"
    if generator.random() < 0.3:
        message = message[: generator.randrange(len(message))]
        kind = "cut proto"
    else:
        for _ in range(generator.randint(1, 5)):
            at = generator.randrange(len(message))
            message[at] = generator.randrange(256)
    if generator.random() < 0.1:
        method = generator.choice(("Predict", "Classify", "None", "SessionRun"))
    return Case(kind, "gRPC", _GRPC + method, bytes(message), grpc=True)


# Either small or more than any machine has: what is between would be allocated.
_DIMENSIONS = (-2, -1, 0, 1, 2, 3, 7, 1000, 2**40, 2**62, 2**63 - 1)
_INPUTS = {"words": ("text",), "pair": ("a", "b"), "examples": ("inputs",)}
_NAMES = ("", "m", "x", "words", "pair", "examples", "text", "y", "\U0001f642", "a" * 3000)


def _odd_proto(generator: random.Random) -> Case:
    """A message that can be read, of fields that do not go together."""
    method = generator.choice(("Predict", "Predict", "Classify", "Regress", "MultiInference"))
    if method == "Predict":
        predict = _request(method)
        _name_model(predict.model_spec, generator)
        names = _INPUTS.get(predict.model_spec.signature_name, ("x",))
        if generator.random() < 0.2:
            names = generator.choices(_NAMES, k=generator.randint(0, 3))
        for name in names:
            _fill_tensor(predict.inputs[name], generator)
        predict.output_filter.extend(
            generator.choices(("y", "count", *_NAMES), k=generator.choice((0,) * 8 + (1, 2)))
        )
        return Case("odd proto", "gRPC", _GRPC + method, predict.SerializeToString(), grpc=True)
    request = _request(method)
    if method == "MultiInference":
        for _ in range(generator.randint(0, 3)):
            task = request.tasks.add()
            task.method_name = "tensorflow/serving/" + generator.choice(
                ("classify", "regress", "x")
            )
            _name_model(task.model_spec, generator)
    else:
        _name_model(request.model_spec, generator)
    context = generator.random() < 0.3
    examples = request.input.example_list_with_context if context else request.input.example_list
    for _ in range(generator.randint(0, 3)):
        _fill_example(examples.examples.add(), generator)
    if context:
        _fill_example(request.input.example_list_with_context.context, generator)
    return Case("odd proto", "gRPC", _GRPC + method, request.SerializeToString(), grpc=True)


def _name_model(spec: Any, generator: random.Random) -> None:
    spec.name = "m" if generator.random() < 0.9 else generator.choice(_NAMES)
    good = ("", "words", "pair", "examples", "examples")
    spec.signature_name = generator.choice(good if generator.random() < 0.9 else _NAMES)
    if generator.random() < 0.1:
        spec.version.value = generator.choice((0, 1, -1, 2**63 - 1))
    elif generator.random() < 0.1:
        spec.version_label = generator.choice(_NAMES)


def _fill_tensor(tensor: Any, generator: random.Random) -> None:
    text = generator.random() < 0.5
    tensor.dtype = 7 if text else 1  # strings and floats
    if generator.random() < 0.3:
        tensor.dtype = generator.choice((0, 2, 3, 9, 14, 19, 20, 21, 22, 101))
    for _ in range(generator.choice((0, 1, 1, 1, 2, 3, 300))):
        small = generator.random() < 0.6
        tensor.tensor_shape.dim.add(size=generator.choice((1, 2, 3) if small else _DIMENSIONS))
    tensor.tensor_shape.unknown_rank = generator.random() < 0.05
    tensor.float_val.extend([1.0] * generator.choice((0, 1, 1, 1, 2, 3, 7)))
    tensor.string_val.extend([b"a\xff"] * generator.choice((0, 1, 1, 1, 2, 3, 7)))
    if generator.random() < 0.1:
        tensor.tensor_content = generator.randbytes(generator.choice((1, 4, 8, 12, 28)))


def _fill_example(example: Any, generator: random.Random) -> None:
    for name in generator.choices(("text", "text", *_NAMES), k=generator.randint(0, 3)):
        feature = example.features.feature[name]
        kind = generator.choice(("bytes", "bytes", "int64", "float", "none"))
        count = generator.choice((0, 1, 1, 2))
        if kind == "bytes":
            feature.bytes_list.value.extend([generator.randbytes(5)] * count)
        elif kind == "int64":
            feature.int64_list.value.extend([-(2**63)] * count)
        elif kind == "float":
            feature.float_list.value.extend([float("nan")] * count)


_Maker = Callable[[random.Random], Case]
_KINDS: list[_Maker] = [
    *(_changed_json, _changed_json, _changed_text, _changed_text, _bytes, _deep, _number),
    *(_shape, _shape, _base64, _gzip, _path, _path, _header),
]
_GRPC_KINDS: list[_Maker] = [_proto] * 4 + [_odd_proto] * 8

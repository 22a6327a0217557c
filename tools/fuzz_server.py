"""Sends malformed requests to a local server, and counts the answers.

    python -m tools.fuzz_server --cases 20000 --seed 0

The server is a process of its own over a small model and over exports with each tokenizer
(`tests.support.fuzz_exports`), which have to answer what fits their signatures with the right rows
and to refuse all else. Every answer has to be of the contract: no
status of 5xx but 501 and 504 (what JSON or Serving cannot do, and time that ran out), a body that
is JSON, a connection that is not dropped. In between and at the end good requests must get the
right answers. What breaks that is printed with its case, which `--seed` and `--only` repeat. Exit
status: 1 if there was any.
"""

import argparse
import base64
import collections
import contextlib
import copy
import functools
import gzip
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from tests.support.fuzz_exports import EXPORTS, Exports, Request, write
from tools.checkout import serve

# Codes for requests that cannot be served, and for deadlines.
ALLOWED_5XX = {501, 504}
GOOD = b'{"signature_name": "words", "instances": ["two words", ""]}'
GOOD_ANSWER = {"predictions": [{"count": 2, "text": "two words"}, {"count": 0, "text": ""}]}
_TIMEOUT_S = 60
_GOOD_EVERY = 200
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


# ------------------------------------------------------------------------------- what is sent


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


# ----------------------------------------------------------------------------- the server, asked


def write_model(directory: Path) -> None:
    """A SavedModel with signatures for numbers, texts, both, and tf.Examples."""
    import tensorflow as tf

    vector = functools.partial(tf.TensorSpec, [None])

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def halves(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x / 2}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def words(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"count": tf.strings.split(text).row_lengths(), "text": text}

        @tf.function(input_signature=[vector(tf.float32, "a"), vector(tf.string, "b")])
        def pair(self, a: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": a + tf.cast(tf.strings.length(b), tf.float32)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
        def examples(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            features = {"text": tf.io.FixedLenFeature([], tf.string)}
            length = tf.strings.length(tf.io.parse_example(inputs, features)["text"])
            scores = tf.cast(length, tf.float32)[:, tf.newaxis]
            return {"classes": tf.fill(tf.shape(scores), "long"), "scores": scores}

    model = Model()
    signatures = {"serving_default": model.halves}
    signatures |= {name: getattr(model, name) for name in ("words", "pair", "examples")}
    found = {name: function.get_concrete_function() for name, function in signatures.items()}
    tf.saved_model.save(model, str(directory / "1"), signatures=found)


class Server(NamedTuple):
    """A running server and its ports."""

    process: subprocess.Popen[str]
    port: int
    grpc_port: int
    exports: Exports | None = None

    def resident_mib(self) -> float:
        """Its memory, on Linux; 0 once it has ended."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+) kB", status)
        return int(found[1]) / 1024 if found else 0.0


@contextlib.contextmanager
def server(*flags: str, exports: Sequence[str] = (), keep: Path | None = None) -> Iterator[Server]:
    """A server in a process of its own, over `write_model`.

    Args:
        *flags: its further arguments.
        exports: names in `EXPORTS` that it serves too.
        keep: a directory in which models are written, or found from an earlier time.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "m").exists():
            write_model(folder / "m")
        for name in tqdm(exports, desc="exports", disable=not exports):
            if not (folder / name / "1").exists():
                write(folder / name, name)
        models = "".join(
            f'config {{ name: "{name}" base_path: "{folder}/{name}" '
            'model_platform: "tensorflow" } '
            for name in ("m", *exports)
        )
        config = folder / "models.config"
        config.write_text(f"model_config_list {{ {models} }}")
        arguments = ("--model-config-file", str(config), *flags)
        log = stack.enter_context(open(folder / "log", "w"))
        running = stack.enter_context(serve(*arguments, stderr=log))
        yield Server(*running, Exports(folder, list(exports)) if exports else None)


def send(case: Case, server: Server) -> tuple[str, bytes]:
    """The status (a gRPC code by its name) and the body; or what broke."""
    if case.grpc:
        return _call(case, server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)
    try:
        connection.putrequest(case.method, case.path, skip_accept_encoding=True)
        for name, value in case.headers:
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(case.body)))
        connection.endheaders(case.body)
        response = connection.getresponse()
        return str(response.status), response.read()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__, b""
    finally:
        connection.close()


_CHANNELS: dict[int, Any] = {}


def _call(case: Case, server: Server) -> tuple[str, bytes]:
    import grpc

    port = server.grpc_port
    if port not in _CHANNELS:
        _CHANNELS[port] = grpc.insecure_channel(f"127.0.0.1:{port}")
    try:
        return "OK", _CHANNELS[port].unary_unary(case.path)(case.body, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code().name, error.details().encode()


def fault(case: Case, status: str, body: bytes) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if case.grpc:
        # grpc's own: a message that is no proto is INTERNAL, an unknown method UNIMPLEMENTED.
        text = body.decode("utf-8", "replace")
        own = status == "INTERNAL" and "deserializing request" in text
        broken = status in ("UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS") and not own
        return f"{status}: {text}" if broken else ""
    if not status.isdecimal():
        return f"no answer: {status}"
    if int(status) >= 500 and int(status) not in ALLOWED_5XX:
        return f"{status}: {body[:200]!r}"
    api = case.path.lower().startswith("/v1/") and case.method != "HEAD"
    if api and body and not _is_json(body):
        return f"{status}, not JSON: {body[:200]!r}"
    return ""


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body.decode("utf-8", "replace"))
    except ValueError:
        return False
    return True


def check_good(server: Server) -> str:
    """What is wrong with the answer to a good request; empty if nothing."""
    good = Case("good", "POST", "/v1/models/m:predict", GOOD)
    status, body = send(good, server)
    if status != "200" or json.loads(body) != GOOD_ANSWER:
        return f"a good request got {status}: {body[:200]!r}"
    return "" if server.process.poll() is None else f"it ended: {server.process.returncode}"


# Requests between two looks at the server's memory.
_PART = 2_000


class Report(NamedTuple):
    """What came back.

    Fields:
        counts: answers by kind of case and status.
        faults: what was wrong, with the number of its case.
        fitting: of requests to exports, how many rows were compared, and how many requests had to
            be refused.
    """

    counts: collections.Counter[tuple[str, str]]
    faults: list[tuple[int, Case, str]]
    fitting: collections.Counter[str]


def fuzz(
    server: Server, seed: int, numbers: list[int], *, threads: int = 4, quiet: bool = False
) -> Report:
    """Sends the cases with these numbers, several at a time."""
    report = Report(collections.Counter(), [], collections.Counter())

    def one(number: int) -> tuple[int, Case, str, str]:
        sent = case(seed, number, True, server.exports)
        status, body = send(sent, server)
        wrong = fault(sent, status, body)
        if not wrong and sent.request is not None and server.exports is not None:
            wrong = server.exports.fault(sent.request, status, body)
        if not wrong and number % _GOOD_EVERY == 0:
            wrong = check_good(server)
        return number, sent, status, wrong

    with ThreadPoolExecutor(threads) as pool:
        for number, sent, status, wrong in tqdm(
            pool.map(one, numbers), total=len(numbers), disable=quiet, unit=" requests"
        ):
            report.counts[sent.kind, status] += 1
            if sent.request is not None and sent.request.expected:
                report.fitting["rows compared"] += sent.request.expected[0][1][0]
            elif sent.request is not None and sent.request.expected == ():
                report.fitting["requests refused"] += 1
            if wrong:
                report.faults.append((number, sent, wrong))
    wrong = check_good(server)
    if wrong:
        report.faults.append((-1, Case("good", "POST", "/v1/models/m:predict"), wrong))
    return report


def table(report: Report) -> str:
    """Kinds down, statuses across."""
    statuses = sorted({status for _, status in report.counts})
    kinds = sorted({kind for kind, _ in report.counts})
    widths = [max(6, len(status)) for status in statuses]
    heads = [f"{s:>{w}}" for s, w in zip(statuses, widths, strict=True)]
    lines = [f"| {'kind':16} | {' | '.join(heads)} |    all |"]
    lines.append(f"|:{'-' * 17}|{''.join('-' * (w + 1) + ':|' for w in widths)}-------:|")
    for kind in [*kinds, "all"]:
        counts = [
            sum(n for (k, s), n in report.counts.items() if s == status and kind in (k, "all"))
            for status in statuses
        ]
        cells = [f"{n or '':>{w}}" for n, w in zip(counts, widths, strict=True)]
        lines.append(f"| {kind:16} | {' | '.join(cells)} | {sum(counts):>6} |")
    return "\n".join(lines)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_server", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--only", type=int, help="the number of one case, to see it again")
    parser.add_argument("--threads", type=int, default=4, help="at a time (%(default)s)")
    parser.add_argument(
        "--exports", nargs="*", default=list(EXPORTS), choices=list(EXPORTS), help="(all)"
    )
    parser.add_argument("--keep", type=Path, help="where exports are written, and found again")
    parser.add_argument("flags", nargs="*", help="further arguments of the server, after --")
    options = parser.parse_args()
    numbers = list(range(options.cases)) if options.only is None else [options.only]
    with server(*options.flags, exports=options.exports, keep=options.keep) as running:
        report = Report(collections.Counter(), [], collections.Counter())
        resident = [running.resident_mib()]
        for start in range(0, len(numbers), _PART):
            part = numbers[start : start + _PART]
            found = fuzz(running, options.seed, part, threads=options.threads)
            report.counts.update(found.counts)
            report.faults.extend(found.faults)
            report.fitting.update(found.fitting)
            resident.append(running.resident_mib())
    print(table(report))
    print(f"of those to exports: {dict(report.fitting)}")
    sizes = ", ".join(f"{size:.0f}" for size in resident)
    print(f"resident memory of the server before, and after each {_PART} requests, MiB: {sizes}")
    print(f"{len(report.faults)} of {len(numbers)} broke the contract (seed {options.seed})")
    for number, sent, wrong in report.faults[:50]:
        print(f"--only {number}: {sent.kind}, {sent.method} {sent.path[:100]}: {wrong}")
        print(f"    {sent.body[:200]!r}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Requests of all ranks, types and nestings to exports, and the expected answers.

Uses small exports with each tokenizer, most tasks and in-graph batching. A request that matches its
signature must give the same results as each of its examples alone, computed in this process; all
others must be rejected as client errors.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Tolerance: JSON rounds answers, and the order of summation depends on the batch size.
_TOLERANCE = 1e-3
_STRING, _INT32 = 7, 3
_NO_EXAMPLE = b"x"  # a text that is not a serialized tf.Example
_ONLY = ""  # JSON does not name a single output
_TEXTS = [
    "TensorFlow Serving answers.",
    "",
    "raw text in , answers out",
    "the model " * 30,
    "Größe 日本語 🙂 [MASK] <mask> </s>",
    "a\0b",
    " ",
    "Export, serve and ask: it works!",
]


class Request(NamedTuple):
    """A request and the expected answers.

    Fields:
        kind: the kind of request, for the tables.
        path: the path of the URL, or of the gRPC method.
        body: JSON, or a message.
        grpc: whether it is sent over gRPC.
        expected: the inputs as (name, shape, values), if answers are expected; `()` if an error is
            expected; None if both are allowed, for example without examples.
        target: the model and the signature.
    """

    kind: str
    path: str
    body: bytes
    grpc: bool
    expected: tuple[tuple[str, tuple[int, ...], tuple[Any, ...]], ...] | None
    target: tuple[str, str]


class _Spec(NamedTuple):
    """An input. Fields: its name, dimensions (None if variable), number of its dtype."""

    name: str
    shape: tuple[int | None, ...]
    dtype: int


class Exports:
    """The exports `directory/<name>/1`, requests to them, and the expected answers."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        from bertfam_tf.export.runtime import load

        self._servables = {name: load(directory / name / "1") for name in names}
        self._targets = [
            (name, signature)
            for name, servable in self._servables.items()
            for signature in sorted(servable.signatures)
            if not signature.startswith("__")
        ]
        self._known: dict[Any, dict[str, np.ndarray]] = {}

    # Requests -----------------------------------------------------------------------------------

    def request(self, generator: random.Random) -> Request:
        """A request with any shape and type to one of the signatures."""
        target = generator.choice(self._targets)
        signature = self._servables[target[0]].signatures[target[1]]
        if target[1] in ("classify", "regress") and generator.random() < 0.7:
            return self._examples(generator, target)
        specs = [
            _Spec(name, tuple(d.size if d.size >= 0 else None for d in i.tensor_shape.dim), i.dtype)
            for name, i in sorted(signature.inputs.items())
        ]
        if generator.random() < 0.6:
            # Matching inputs, except for one input in some cases.
            sizes = [generator.choice((0, 1, 1, 2, 3)) for _ in range(3)]
            values = {s.name: self._value(generator, target, s, _fitting(s, sizes)) for s in specs}
            if generator.random() < 0.4:
                spec = generator.choice(specs)
                values[spec.name] = self._value(generator, target, spec, _any_shape(generator))
        else:
            shape = _any_shape(generator)
            values = {spec.name: self._value(generator, target, spec, shape) for spec in specs}
        make = generator.choice((_of_message, _of_rows, _of_columns))
        return make(generator, target, specs, values)

    def _value(
        self, generator: random.Random, target: tuple[str, str], spec: _Spec, shape: tuple[int, ...]
    ) -> Any:
        """Nested lists with that shape."""
        if not shape:
            return self._leaf(generator, target, spec)
        return [self._value(generator, target, spec, shape[1:]) for _ in range(shape[0])]

    def _leaf(self, generator: random.Random, target: tuple[str, str], spec: _Spec) -> Any:
        if spec.dtype == _INT32:
            largest = 50 if spec.name == "token_ids" else 1
            return generator.randint(0, largest)
        if spec.name == "inputs":
            return self._example(generator, target[0]).SerializeToString()
        return generator.choice(_TEXTS).encode()

    def _example(self, generator: random.Random, model: str) -> Any:
        import tensorflow as tf

        example = tf.train.Example()
        for name in self._servables[model].signatures["serving_default"].inputs:
            text = generator.choice(_TEXTS).encode()
            example.features.feature[name].bytes_list.value.append(text)
        return example

    def _examples(self, generator: random.Random, target: tuple[str, str]) -> Request:
        """A request to Classify or Regress, which determine the signature."""
        from tensorflow_serving.apis import classification_pb2, regression_pb2

        kinds = {
            "classify": classification_pb2.ClassificationRequest,
            "regress": regression_pb2.RegressionRequest,
        }
        method = target[1]
        message = kinds[method]()
        message.model_spec.name, message.model_spec.signature_name = target
        examples = [self._example(generator, target[0]) for _ in range(generator.randint(0, 3))]
        rows = tuple(example.SerializeToString() for example in examples)
        expected: Any = (("inputs", (len(rows),), rows),) if rows else ()
        if examples and generator.random() < 0.5:
            _break(generator, generator.choice(examples))
            expected = ()
        if generator.random() < 0.5:
            message.input.example_list.examples.extend(examples)
            path = "/tensorflow.serving.PredictionService/" + method.capitalize()
            return Request(
                f"{method} gRPC", path, message.SerializeToString(), True, expected, target
            )
        found = [
            {
                name: _json([v for kind in _lists(feature) for v in kind.value], generator)
                for name, feature in example.features.feature.items()
            }
            for example in examples
        ]
        body = json.dumps({"signature_name": target[1], "examples": found}).encode()
        path = f"/v1/models/{target[0]}:{method}"
        return Request(f"{method} REST", path, body, False, expected, target)

    # Answers ------------------------------------------------------------------------------------

    def fault(self, request: Request, status: str, body: bytes) -> str:
        """The error in an answer, empty if there is none."""
        good = status == ("OK" if request.grpc else "200")
        if not good:
            refusals = ("INVALID_ARGUMENT", "FAILED_PRECONDITION") if request.grpc else ("400",)
            if status not in refusals:
                return f"{status}: {body[:300]!r}"
            return f"refused: {body[:300]!r}" if request.expected else ""
        if request.expected is None:
            return ""
        if not request.expected:
            return f"answered: {body[:300]!r}"
        return self._compared(request, _answers(request, body))

    def _compared(self, request: Request, found: dict[str, Any]) -> str:
        assert request.expected
        rows = self._alone(request)
        if found.keys() == {_ONLY}:
            found = {next(iter(rows[0])): found[_ONLY]}
        for name, values in found.items():
            if len(values) != len(rows):
                return f"{len(values)} rows of {name}, expected {len(rows)}"
            for row, value in zip(rows, values, strict=True):
                # Ties: either choice is correct.
                tied = "choice" in row and np.ptp(row["scores"]) < _TOLERANCE
                if not _same(value, row[name]) and not (tied and name in ("choice", "text")):
                    return f"wrong {name}: {value}, expected {row[name]!r}"
        if not found.keys() >= rows[0].keys():
            return f"answers {sorted(found)}, expected {sorted(rows[0])}"
        return ""

    def _alone(self, request: Request) -> list[dict[str, np.ndarray]]:
        """The answers to each example of a request, computed separately."""
        assert request.expected
        model, signature = request.target
        inputs = {}
        for name, shape, values in request.expected:
            text = bool(values) and isinstance(values[0], bytes)
            inputs[name] = np.array([*values, None], object if text else None)[:-1].reshape(shape)
            if not text:
                inputs[name] = inputs[name].astype("int32")
        rows = []
        for i in range(len(next(iter(inputs.values())))):
            row = {name: values[i : i + 1] for name, values in inputs.items()}
            key = (request.target, *(str(value.tolist()) for value in row.values()))
            if key not in self._known:
                answers = self._servables[model].run(signature, row)
                self._known[key] = {name: value[0] for name, value in answers.items()}
            rows.append(self._known[key])
        return rows


def _fitting(spec: _Spec, sizes: list[int]) -> tuple[int, ...]:
    free = iter((sizes[0], 1 + sizes[1]))
    return tuple(next(free) if size is None else size for size in spec.shape)


def _any_shape(generator: random.Random) -> tuple[int, ...]:
    return tuple(generator.choice((0, 1, 1, 2, 3)) for _ in range(generator.randint(0, 4)))


def _lists(feature: Any) -> list[Any]:
    return [feature.bytes_list, feature.int64_list, feature.float_list]


def _break(generator: random.Random, example: Any) -> None:
    """Makes an Example invalid for the signature."""
    name = generator.choice(sorted(example.features.feature))
    feature = example.features.feature[name]
    match generator.randint(0, 3):
        case 0:
            del example.features.feature[name]
            example.features.feature["other"].bytes_list.value.append(b"x")
        case 1:
            feature.bytes_list.value.append(b"x")
        case 2:
            feature.int64_list.value.append(3)
        case _:
            feature.float_list.value.append(1.5)


# Nested values to messages and JSON, with mistakes -----------------------------------------------


def _array(value: Any, dtype: int) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Shape and leaves of nested lists; None if they have no shape or another type."""
    if not isinstance(value, list):
        kind = bytes if dtype == _STRING else int
        return ((), (value,)) if type(value) is kind else None
    parts = [_array(part, dtype) for part in value]
    if not parts:
        return (0,), ()
    first = parts[0]
    if first is None or any(part is None or part[0] != first[0] for part in parts):
        return None
    return (len(parts), *first[0]), tuple(leaf for part in parts if part for leaf in part[1])


def _expected(target: tuple[str, str], specs: list[_Spec], values: dict[str, Any]) -> Any:
    """The value of `Request.expected`."""
    if values.keys() != {spec.name for spec in specs}:
        return ()
    arrays = {spec.name: _array(values[spec.name], spec.dtype) for spec in specs}
    found = []
    for spec in specs:
        array = arrays[spec.name]
        if array is None or len(array[0]) != len(spec.shape):
            return ()
        if any(size not in (None, given) for size, given in zip(spec.shape, array[0], strict=True)):
            return ()
        if spec.dtype == _INT32 and not all(map(_in_range(target, spec), array[1])):
            return ()
        if spec.name == "inputs" and _NO_EXAMPLE in array[1]:
            return ()
        found.append((spec.name, *array))
    common = min(len(spec.shape) for spec in specs)
    if len({shape[:common] for _, shape, _ in found}) > 1:
        return ()
    return None if any(0 in shape for _, shape, _ in found) else tuple(found)


def _in_range(target: tuple[str, str], spec: _Spec) -> Callable[[int], bool]:
    # The ids of relative segments do not matter.
    if target[0] == "language_model" and spec.name == "segment_ids":
        return lambda value: -(2**31) <= value < 2**31
    return lambda value: 0 <= value <= (50 if spec.name == "token_ids" else 1)


def _changed(generator: random.Random, values: dict[str, Any], specs: list[_Spec]) -> None:
    """Changes one input in place, or none."""
    if generator.random() < 0.6:
        return
    spec, text = generator.choice(specs), _NO_EXAMPLE
    if generator.random() < 0.1:
        del values[spec.name]
        return
    if generator.random() < 0.1:
        values[generator.choice(("", "x", "others", "texts"))] = [text]
        return
    wrong: tuple[Any, ...] = (None, True, 1.5, 3, text, [], [text], [[]], {}, {"text": text})
    if spec.dtype == _INT32:
        wrong += (-1, 10**6, -(2**31), 2**31 - 1, 2**31, 2**70)
    holder, key = values, spec.name
    while isinstance(holder[key], list) and holder[key] and generator.random() < 0.8:
        holder, key = holder[key], generator.randrange(len(holder[key]))
    if isinstance(holder, list) and generator.random() < 0.2:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(generator.choice(wrong))


def _json(value: Any, generator: random.Random) -> Any:
    """Converts a value to JSON: bytes become a string or base64."""
    if isinstance(value, list):
        return [_json(part, generator) for part in value]
    if isinstance(value, dict):
        return {name: _json(part, generator) for name, part in value.items()}
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if text.encode() == value and generator.random() < 0.8:
        return text
    return {"b64": base64.b64encode(value).decode()}


def _of_columns(
    generator: random.Random, target: tuple[str, str], specs: list[_Spec], values: dict[str, Any]
) -> Request:
    _changed(generator, values, specs)
    # Unknown names are ignored.
    known = {spec.name: values[spec.name] for spec in specs if spec.name in values}
    expected = _expected(target, specs, known)
    inputs = _json(values, generator)
    if len(specs) == 1 and inputs.keys() == {specs[0].name} and generator.random() < 0.5:
        inputs = inputs[specs[0].name]
        # An object has columns by name.
        expected = None if isinstance(inputs, dict) else expected
    return _rest("inputs", target, inputs, expected)


def _of_rows(
    generator: random.Random, target: tuple[str, str], specs: list[_Spec], values: dict[str, Any]
) -> Request:
    _changed(generator, values, specs)
    expected = _expected(target, specs, values)
    if not all(isinstance(value, list) for value in values.values()):
        instances = _json(next(iter(values.values()), None), generator)
        return _rest("instances", target, instances, None if isinstance(instances, list) else ())
    if len(specs) == 1 and values.keys() == {specs[0].name} and generator.random() < 0.5:
        instances = _json(values[specs[0].name], generator)
        # Objects have inputs by name, or base64.
        named = any(isinstance(row, dict) and row.keys() != {"b64"} for row in instances)
        return _rest("instances", target, instances, None if named else expected)
    count = max(map(len, values.values()), default=0)
    rows = [{n: v[i] for n, v in values.items() if i < len(v)} for i in range(count)]
    # Names of empty inputs are not visible.
    unseen = not rows or any(not value for value in values.values())
    return _rest("instances", target, _json(rows, generator), None if unseen else expected)


def _rest(key: str, target: tuple[str, str], value: Any, expected: Any) -> Request:
    body = json.dumps({"signature_name": target[1], key: value}).encode()
    return Request(f"{key} REST", f"/v1/models/{target[0]}:predict", body, False, expected, target)


def _of_message(
    generator: random.Random, target: tuple[str, str], specs: list[_Spec], values: dict[str, Any]
) -> Request:
    from tensorflow_serving.apis import predict_pb2

    expected = _expected(target, specs, values)
    message = predict_pb2.PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = target
    for spec in specs:
        found = _array(values[spec.name], spec.dtype)
        assert found is not None
        tensor = message.inputs[spec.name]
        tensor.dtype = spec.dtype
        for size in found[0]:
            tensor.tensor_shape.dim.add(size=size)
        if spec.dtype == _STRING:
            tensor.string_val.extend(found[1])
        else:
            leaves = list(found[1])
            if leaves and generator.random() < 0.2:
                leaves[generator.randrange(len(leaves))] = generator.choice((-1, 2**31 - 1, -99))
                free = _in_range(target, spec)(-1)
                expected = None if free or expected is None else ()
            tensor.int_val.extend(leaves)
    if generator.random() < 0.3:
        spec = generator.choice(specs)
        tensor = message.inputs[spec.name]
        _change_tensor(generator, tensor)
        # As in TensorFlow Serving, tensors with too few values are filled with the last one.
        filled = tensor.dtype == spec.dtype and len(tensor.tensor_shape.dim) == len(spec.shape)
        expected = None if filled else ()
    if generator.random() < 0.1:
        name = generator.choice(specs).name
        message.inputs["x"].CopyFrom(message.inputs[name])
        expected = ()
        if generator.random() < 0.5:
            del message.inputs[name]
    path = "/tensorflow.serving.PredictionService/Predict"
    return Request("predict gRPC", path, message.SerializeToString(), True, expected, target)


def _change_tensor(generator: random.Random, tensor: Any) -> None:
    """Changes the type or adds dimensions."""
    if generator.random() < 0.6:
        types = [*range(24), 101, 102, 107, 10**6]
        tensor.dtype = generator.choice([t for t in types if t != tensor.dtype])
        return
    for _ in range(generator.randint(1, 3) + (0 if tensor.tensor_shape.dim else 3)):
        tensor.tensor_shape.dim.add(size=generator.choice((-1, 0, 1, 2, 2**40, 2**62)))


# Parsing answers ----------------------------------------------------------------------------------


def _answers(request: Request, body: bytes) -> dict[str, Any]:
    """The values of each output, (examples, …)."""
    method = request.path.rpartition("/")[2] if request.grpc else request.path.rpartition(":")[2]
    found = {"predict": _predicted, "classify": _classified, "regress": _regressed}
    return found[method.lower()](request, body)


def _predicted(request: Request, body: bytes) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    if request.grpc:
        outputs = predict_pb2.PredictResponse.FromString(body).outputs
        return {name: tf.make_ndarray(tensor) for name, tensor in outputs.items()}
    answer = json.loads(body)
    if "outputs" in answer:
        outputs = answer["outputs"]
        return outputs if isinstance(outputs, dict) else {_ONLY: outputs}
    rows = answer["predictions"]
    if not isinstance(rows[0], dict):
        return {_ONLY: rows}
    return {name: [row[name] for row in rows] for name in rows[0]}


def _classified(request: Request, body: bytes) -> dict[str, Any]:
    from tensorflow_serving.apis import classification_pb2

    if request.grpc:
        result = classification_pb2.ClassificationResponse.FromString(body).result
        rows = [[(c.label, c.score) for c in row.classes] for row in result.classifications]
    else:
        rows = json.loads(body)["results"]
    classes, scores = ([[pair[i] for pair in row] for row in rows] for i in range(2))
    return {"classes": classes, "scores": scores}


def _regressed(request: Request, body: bytes) -> dict[str, Any]:
    from tensorflow_serving.apis import regression_pb2

    if request.grpc:
        result = regression_pb2.RegressionResponse.FromString(body).result
        return {"outputs": [row.value for row in result.regressions]}
    return {"outputs": json.loads(body)["results"]}


def _same(found: Any, expected: np.ndarray) -> bool:
    one = np.array(found, object)  # numpy strings lose trailing NULs
    if one.shape != np.shape(expected):
        return False
    right = np.array(expected, object)
    if not all(isinstance(value, bytes) for value in right.flat):
        return bool(np.allclose(one.astype(float), right.astype(float), _TOLERANCE, _TOLERANCE))
    return list(map(_text, one.flat)) == list(map(_text, right.flat))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

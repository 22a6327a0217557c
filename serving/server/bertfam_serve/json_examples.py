"""The JSON of Classify and Regress: requests to tf.Examples, results to JSON."""

from typing import Any

import numpy as np
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import classification_pb2, regression_pb2

from bertfam_serve.json_numbers import format_floats
from bertfam_serve.json_tensor import decode_base64, encode_text, is_base64
from bertfam_serve.json_text import (
    TOO_LARGE,
    describe,
    non_empty_array,
    parse,
    quote,
    signature_name,
)
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime.status import ServingError, invalid


def decode_examples(body: bytes, request: Any, limits: RequestLimits | None = None) -> None:
    """Parses a Classify or Regress body into the signature name and the input of a request.

    Args:
        body: {"signature_name"?: …, "context"?: {…}, "examples": [{feature: value or list}]}.
            Integers and booleans become an int64_list, floats a float_list, strings and
            {"b64": …} a bytes_list.
        request: a ClassificationRequest or RegressionRequest to write to.
        limits: the limits for JSON values and rows; None for no limits.

    Raises:
        ServingError: INVALID_ARGUMENT for a malformed body.
    """
    if limits is not None:
        limits.check_json(body)
    document = parse(body)
    try:
        request.model_spec.signature_name = signature_name(document)
    except UnicodeEncodeError:
        raise invalid("'signature_name' is not valid UTF-8.") from None
    examples_input = request.input
    target = examples_input.example_list
    if "context" in document:
        target = examples_input.example_list_with_context
        _fill(document["context"], "context", target.context)
    examples = non_empty_array(document, "examples")
    if limits is not None:
        limits.check_rows(len(examples), "the request")
    for i, example in enumerate(examples):
        _fill(example, f"examples[{i}]", target.examples.add())


def _fill(value: Any, where: str, example: example_pb2.Example) -> None:
    if not isinstance(value, dict):
        raise invalid(f"{where} is {describe(value)}, expected an object.")
    example.SetInParent()  # also for an empty context
    for name, content in value.items():
        try:
            feature = example.features.feature[name]
        except UnicodeEncodeError:
            raise invalid(f"{where}: the name of a feature is not valid UTF-8.") from None
        for item in content if isinstance(content, list) else [content]:
            try:
                _add(item, feature)
            except ServingError as error:
                raise invalid(f"{where}[{quote(name[:100])}]: {error.message}") from None


def _add(item: Any, feature: feature_pb2.Feature) -> None:
    if isinstance(item, str):
        _values(feature, "bytes").append(encode_text(item))
    elif is_base64(item):
        _values(feature, "bytes").append(decode_base64(item))
    elif isinstance(item, bool):
        _values(feature, "int64").append(int(item))
    elif isinstance(item, float) or (isinstance(item, int) and not -(2**63) <= item < 2**64):
        # Serving reads integers of more than 64 bits as floats.
        _values(feature, "float").append(_float32(item))
    elif isinstance(item, int):
        values = _values(feature, "int64")
        if item >= 2**63:
            raise invalid(f"{item} is too large for an int64.")
        values.append(item)
    else:
        raise invalid(f"{describe(item)} cannot be a value of a feature.")


def _float32(number: float) -> float:
    try:
        with np.errstate(over="ignore"):  # overflow silently becomes infinity
            return float(np.float32(number))
    except OverflowError:
        raise invalid(f"The feature has {TOO_LARGE}.") from None


def _values(feature: feature_pb2.Feature, kind: str) -> Any:
    """The feature's list of this kind; a feature has values of a single kind."""
    chosen = feature.WhichOneof("kind")
    if chosen not in (None, f"{kind}_list"):
        first = chosen.removesuffix("_list")
        raise invalid(f"The first value is of type {first}, a later one of type {kind}.")
    return getattr(feature, f"{kind}_list").value


def encode_classes(result: classification_pb2.ClassificationResult) -> bytes:
    """Formats {"results": [[[label, score], …], …]}, a list for each example.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no results.
    """
    if not result.classifications:
        raise invalid("The model returned no classifications.")
    rows = []
    for row in result.classifications:
        scores = format_floats(np.array([c.score for c in row.classes], np.float32))
        pairs = zip(row.classes, scores, strict=True)
        rows.append(f"[{', '.join(f'[{quote(c.label)}, {score}]' for c, score in pairs)}]")
    return f'{{\n    "results": [{", ".join(rows)}\n    ]\n}}'.encode()


def encode_values(result: regression_pb2.RegressionResult) -> bytes:
    """Formats {"results": [value, …]}, a value for each example.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no results.
    """
    if not result.regressions:
        raise invalid("The model returned no values.")
    values = format_floats(np.array([r.value for r in result.regressions], np.float32))
    return f'{{\n    "results": [{", ".join(values)}]\n}}'.encode()

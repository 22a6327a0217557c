"""Finds the model of an inference request, runs the request and reports it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    inference_pb2,
    model_pb2,
    predict_pb2,
)

from bertfam_serve.models import Models
from bertfam_serve.request_limits import RequestLimits
from bertfam_tf.export.runtime import requests
from bertfam_tf.export.runtime.servable import ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

Observer = Callable[[str, str, str, Code, float], None]
"""Called once per request, from any thread, when it is answered. Arguments: the model's name in the
request; the API as Serving names it ("predict", "classify", "regress"; over gRPC "Predict",
"Classify", "Regress", "MultiInference"); the entrypoint ("REST" or "GRPC"); the status; the
duration in seconds."""


@contextlib.contextmanager
def observed(observe: Observer | None, model: str, api: str, entrypoint: str) -> Iterator[None]:
    """Reports the status and duration of the request in a context to an observer."""
    start = time.perf_counter()
    code = Code.INTERNAL
    try:
        yield
        code = Code.OK
    except ServingError as error:
        code = error.code
        raise
    finally:
        if observe is not None:
            observe(model, api, entrypoint, code, time.perf_counter() - start)


def model_spec(request: Any) -> model_pb2.ModelSpec:
    """Returns the ModelSpec of an inference request.

    Raises:
        ServingError: INVALID_ARGUMENT if there is none.
    """
    if isinstance(request, inference_pb2.MultiInferenceRequest):
        return request.tasks[0].model_spec if request.tasks else model_pb2.ModelSpec()
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    return request.model_spec


def model_name(request: Any) -> str:
    """Returns the model's name in an inference request; empty if there is none."""
    try:
        name: str = model_spec(request).name
    except ServingError:
        return ""
    return name


def signature_map(servable: ServableLike) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the signatures of a servable, as GetModelMetadata returns them."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in servable.signatures.items():
        signatures.signature_def[name].CopyFrom(signature)
    return signatures


def answer(
    models: Models,
    request: Any,
    *,
    limits: RequestLimits | None = None,
    timeout_ms: int = 0,
    as_content: bool = False,
) -> Any:
    """Looks up the model of an inference request and runs the request.

    Args:
        models: looks up models.
        request: PredictRequest, ClassificationRequest, RegressionRequest or
            MultiInferenceRequest.
        limits: limits of the request; None for no limits.
        timeout_ms: the same as in ``requests.run``.
        as_content: the same as in ``requests.run``.

    Returns:
        The corresponding response.

    Raises:
        ServingError: with Serving's code and text.
    """
    version, servable = models.find_spec(model_spec(request))
    if limits is not None:
        if isinstance(request, predict_pb2.PredictRequest):
            limits.check_inputs(request.inputs)
        else:
            limits.check_examples(request.input)
    return requests.run(servable, request, version, timeout_ms=timeout_ms, as_content=as_content)

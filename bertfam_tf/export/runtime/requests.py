"""Runs Predict, Classify, Regress and MultiInference requests, with Serving's codes and errors.

Warm-up requests and a server's REST and gRPC requests share this code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, ServableLike
from bertfam_tf.export.runtime.status import invalid, unimplemented
from bertfam_tf.export.runtime.tensor_protos import dtype_of, write

CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
_NO_SIGNATURE = "No signature was found with the name:"


def run(
    servable: ServableLike,
    request: Any,
    version: int | None = None,
    *,
    timeout_ms: int = 0,
    as_content: bool = False,
) -> Any:
    """Runs an inference request on a servable.

    Args:
        servable: the model; its name is not compared with the name in the request.
        request: a PredictRequest, ClassificationRequest, RegressionRequest or
            MultiInferenceRequest.
        version: the servable's version, for the response.
        timeout_ms: the run is cancelled after this time; 0 means no limit.
        as_content: whether tensors of a PredictResponse are written as bytes (``tensor_content``)
            instead of in the field of their dtype (``float_val``, ``string_val``, …).

    Returns:
        The corresponding response.

    Raises:
        ServingError: with Serving's code and text.
    """
    if isinstance(request, predict_pb2.PredictRequest):
        return _predict(servable, request, version, timeout_ms, as_content)
    if isinstance(request, classification_pb2.ClassificationRequest):
        method = _METHODS[CLASSIFY_METHOD]
        return _classify_or_regress(servable, request, version, timeout_ms, method)
    if isinstance(request, regression_pb2.RegressionRequest):
        method = _METHODS[REGRESS_METHOD]
        return _classify_or_regress(servable, request, version, timeout_ms, method)
    return _multi_inference(servable, request, version, timeout_ms)


def _predict(
    servable: ServableLike,
    request: predict_pb2.PredictRequest,
    version: int | None,
    timeout_ms: int,
    as_content: bool,
) -> predict_pb2.PredictResponse:
    arrays = servable.run(
        request.model_spec.signature_name,
        request.inputs,
        outputs=list(request.output_filter),
        timeout_ms=timeout_ms,
    )
    response = predict_pb2.PredictResponse(model_spec=_response_spec(request.model_spec, version))
    for name, array in arrays.items():
        write(array, response.outputs[name], as_content=as_content)
    return response


def _classify_or_regress(
    servable: ServableLike,
    request: classification_pb2.ClassificationRequest | regression_pb2.RegressionRequest,
    version: int | None,
    timeout_ms: int,
    method: _Method,
) -> Any:
    name, signature = _signature(servable, request.model_spec, _NO_SIGNATURE)
    outputs = method.outputs(signature)
    examples = serialized_examples(request.input)
    arrays = servable.run(name, {"inputs": examples}, outputs=outputs, timeout_ms=timeout_ms)
    response = method.response(model_spec=_response_spec(request.model_spec, version))
    method.write(arrays, len(examples), response.result)
    return response


def _multi_inference(
    servable: ServableLike,
    request: inference_pb2.MultiInferenceRequest,
    version: int | None,
    timeout_ms: int,
) -> inference_pb2.MultiInferenceResponse:
    names: list[str] = []
    for task in request.tasks:
        if not task.model_spec.name:
            raise invalid("Found ModelSpec with an empty model name.")
        if task.model_spec.name != request.tasks[0].model_spec.name:
            raise invalid(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name."
            )
        name = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if name in names:
            raise invalid(f"Duplicate evaluation of signature: {name}")
        _, signature = _signature(
            servable, task.model_spec, "Requested signature not found in model graph:"
        )
        if task.method_name not in _METHODS:
            raise unimplemented(f"Unsupported signature method_name: {task.method_name}")
        _METHODS[task.method_name].outputs(signature)
        names.append(name)
    examples = serialized_examples(request.input)
    answers = servable.run_together(names, {"inputs": examples}, timeout_ms=timeout_ms)
    response = inference_pb2.MultiInferenceResponse()
    for task, arrays in zip(request.tasks, answers, strict=True):
        result = response.results.add(model_spec=_response_spec(task.model_spec, version))
        method = _METHODS[task.method_name]
        method.write(arrays, len(examples), getattr(result, method.result))
    return response


# ------------------------------------------------------------------------------ signatures


def _signature(
    servable: ServableLike, spec: model_pb2.ModelSpec, missing: str
) -> tuple[str, meta_graph_pb2.SignatureDef]:
    name = spec.signature_name or DEFAULT_SIGNATURE
    if name not in servable.signatures:
        raise invalid(f"{missing} {name}")
    return name, servable.signatures[name]


def _classify_outputs(signature: meta_graph_pb2.SignatureDef) -> list[str]:
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if len(signature.outputs) not in (1, 2):
        raise invalid(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    if "inputs" not in signature.inputs:
        raise invalid(f"No classification inputs found in SignatureDef: {signature}")
    outputs = [name for name in ("classes", "scores") if name in signature.outputs]
    if not outputs:
        raise invalid(
            "Expected classification signature outputs to contain at least one of "
            f'"classes" or "scores". Signature was: {signature}'
        )
    return outputs


def _regress_outputs(signature: meta_graph_pb2.SignatureDef) -> list[str]:
    if len(signature.inputs) != 1:
        raise invalid("Expected one input Tensor.")
    if len(signature.outputs) != 1:
        raise invalid("Expected one output Tensor.")
    if "inputs" not in signature.inputs:
        raise invalid(f"No regression inputs found in SignatureDef: {signature}")
    if "outputs" not in signature.outputs:
        raise invalid(f"No regression outputs found in SignatureDef: {signature}")
    return ["outputs"]


def _response_spec(spec: model_pb2.ModelSpec, version: int | None) -> model_pb2.ModelSpec:
    """The ModelSpec of a response, with the signature and version that ran."""
    response_spec = model_pb2.ModelSpec(
        name=spec.name, signature_name=spec.signature_name or DEFAULT_SIGNATURE
    )
    if version is not None:
        response_spec.version.value = version
    return response_spec


# ---------------------------------------------------------------------------------- inputs


def serialized_examples(request_input: input_pb2.Input) -> np.ndarray:
    """Returns the serialized tf.Examples of an Input, as an object array of bytes, (examples,).

    The context is prepended to each example: concatenated serialized protos are merged when they
    are parsed, and features of the example override features of the context.

    Raises:
        ServingError: INVALID_ARGUMENT if there are no examples.
    """
    context = b""
    if request_input.WhichOneof("kind") == "example_list_with_context":
        examples = request_input.example_list_with_context.examples
        context = request_input.example_list_with_context.context.SerializeToString()
    else:
        examples = request_input.example_list.examples
    if not examples:
        raise invalid("Input is empty.")
    serialized = np.empty(len(examples), object)
    serialized[:] = [context + example.SerializeToString() for example in examples]
    return serialized


# --------------------------------------------------------------------------------- outputs


def _write_classes(
    arrays: Mapping[str, np.ndarray], number: int, result: classification_pb2.ClassificationResult
) -> None:
    classes, scores = arrays.get("classes"), arrays.get("scores")
    for name, array, dtype in (("classes", classes, "STRING"), ("scores", scores, "FLOAT")):
        if array is None:
            continue
        if array.ndim != 2:
            raise invalid(
                f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}"
            )
        if _dtype_name(array) != f"DT_{dtype}":
            raise invalid(f"Expected {name} Tensor of DT_{dtype}. Got: {_dtype_name(array)}")
        if len(array) != number:
            raise invalid(f"Expected {name} output batch size of {number}. Got: {len(array)}")
    if classes is not None and scores is not None and classes.shape != scores.shape:
        raise invalid(
            "Tensors class and score should match in dim_size(1). Got "
            f"{classes.shape[1]} vs. {scores.shape[1]}"
        )
    for row in range(number):
        classifications = result.classifications.add()
        labels = None if classes is None else classes[row].tolist()
        values = None if scores is None else scores[row].tolist()
        for column in range(len(labels if labels is not None else values or ())):
            added = classifications.classes.add()
            if labels is not None:
                # Fields of type string must be UTF-8.
                added.label = labels[column].decode("utf-8", "replace")
            if values is not None:
                added.score = values[column]


def _write_values(
    arrays: Mapping[str, np.ndarray], number: int, result: regression_pb2.RegressionResult
) -> None:
    array = arrays["outputs"]
    if not (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        raise invalid(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            f"{_shape(array)}"
        )
    if len(array) != number:
        raise invalid(
            f"Input batch size did not match output batch size: {number} vs. {len(array)}"
        )
    if _dtype_name(array) != "DT_FLOAT":
        raise invalid(f"Expected output Tensor of DT_FLOAT.  Got: {_dtype_name(array)}")
    for value in array.ravel().tolist():
        result.regressions.add(value=value)


def _dtype_name(array: np.ndarray) -> str:
    dtype = dtype_of(array)
    assert dtype is not None  # sessions return TensorFlow dtypes only
    name: str = types_pb2.DataType.Name(dtype.as_datatype_enum)
    return name


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape))}]"


# --------------------------------------------------------------------------------- methods


class _Method(NamedTuple):
    """How a method of signatures is answered.

    Fields:
        response: the class of its response.
        outputs: returns the outputs to run; raises ``ServingError`` for other signatures.
        write: writes arrays of that many examples into a result.
        result: the result's field in a MultiInferenceResponse.
    """

    response: type
    outputs: Callable[[meta_graph_pb2.SignatureDef], list[str]]
    write: Callable[[Mapping[str, np.ndarray], int, Any], None]
    result: str


_METHODS = {
    CLASSIFY_METHOD: _Method(
        classification_pb2.ClassificationResponse,
        _classify_outputs,
        _write_classes,
        "classification_result",
    ),
    REGRESS_METHOD: _Method(
        regression_pb2.RegressionResponse, _regress_outputs, _write_values, "regression_result"
    ),
}

"""Loads one version of a SavedModel and runs its signatures, as TensorFlow Serving does."""

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.serve import capi
from bertfam_tf.serve.status import Code, ServingError, invalid

DEFAULT_SIGNATURE = "serving_default"
_TAGS = ("serve",)
_WARMUP = os.path.join("assets.extra", "tf_serving_warmup_requests")
_MAX_WARMUP_RECORDS = 1000


class Servable:
    """A loaded SavedModel. Safe to use from several threads; unloads with its last reference.

    Attributes:
        signatures: name to SignatureDef, including `__saved_model_init_op` where there is one.
    """

    def __init__(self, session: capi.Session) -> None:
        meta_graph = meta_graph_pb2.MetaGraphDef.FromString(session.meta_graph)
        self.signatures = dict(meta_graph.signature_def)
        self._session = session

    def run(
        self,
        signature: str,
        inputs: Mapping[str, np.ndarray | tensor_pb2.TensorProto],
        *,
        timeout_ms: int = 0,
    ) -> dict[str, np.ndarray]:
        """Runs a signature and returns all of its outputs.

        Args:
            signature: the key; empty means `serving_default`.
            inputs: input name to value. Shapes are free: only what the graph's ops demand.
            timeout_ms: the run is cancelled after so long; 0 is never.

        Returns:
            Output name to array; strings are object arrays of bytes.

        Raises:
            ServingError: with Serving's code and text, e.g. FAILED_PRECONDITION for an unknown
                signature, INVALID_ARGUMENT for missing, surplus or wrongly typed inputs.
        """
        signature = signature or DEFAULT_SIGNATURE
        if signature not in self.signatures:
            raise ServingError(
                Code.FAILED_PRECONDITION, f'Serving signature key "{signature}" not found.'
            )
        definition = self.signatures[signature]
        feeds = _feeds(definition, inputs)
        names = list(definition.outputs)
        fetches = [definition.outputs[name].name for name in names]
        arrays = self._session.run(feeds, fetches, timeout_ms)
        return dict(zip(names, arrays, strict=True))


def load(version_dir: str | os.PathLike[str]) -> Servable:
    """Loads the SavedModel in one version directory and runs its warm-up records.

    Raises:
        ServingError: NOT_FOUND without a SavedModel tagged "serve", DATA_LOSS for a damaged
            warm-up file, UNIMPLEMENTED for a warm-up record that is none of Predict, Classify and
            Regress, and whatever code a failing warm-up record has.
    """
    directory = os.fspath(version_dir)
    servable = Servable(capi.Session(directory, _TAGS))
    _warm_up(servable, os.path.join(directory, _WARMUP))
    return servable


def _feeds(
    signature: meta_graph_pb2.SignatureDef,
    inputs: Mapping[str, np.ndarray | tensor_pb2.TensorProto],
) -> list[capi.Feed]:
    given, wanted, defaults = set(inputs), set(signature.inputs), signature.defaults
    if len(given) > len(wanted) or (len(given) < len(wanted) and not defaults):
        raise invalid(
            f"input size does not match signature: {len(given)}!={len(wanted)} "
            f"len({{{_join(given)}}}) != len({{{_join(wanted)}}}). "
            f"Sent extra: {{{_join(given - wanted)}}}. "
            f"Missing but required: {{{_join(wanted - given)}}}."
        )
    feeds = []
    for name, info in sorted(signature.inputs.items()):
        if name not in inputs and name not in defaults:
            raise invalid(
                f"Signature input alias: {name}(feed name: {info.name}) not found in request and "
                f"no default value provided. Inputs expected to be in the request "
                f"{{{_join(given)}}}, or default input alias set: {_join(set(defaults))}"
            )
        value = inputs[name] if name in inputs else defaults[name]
        proto = value if isinstance(value, tensor_pb2.TensorProto) else _proto(value)
        feeds.append(capi.Feed(name, info.name, proto))
    if not given <= wanted:
        raise invalid(
            f"Inputs contains invalid name. Used request inputs: {_join(given & wanted)}, "
            f"request input: {_join(given)}"
        )
    return feeds


def _proto(array: np.ndarray) -> tensor_pb2.TensorProto:
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype == tf.string:
        proto.string_val.extend(array.ravel().tolist())
    else:
        proto.tensor_content = array.tobytes()
    return proto


def _join(names: set[str]) -> str:
    return ",".join(sorted(names))


def _warm_up(servable: Servable, path: str) -> None:
    if not os.path.exists(path):
        return
    try:
        for count, record in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator(), 1):
            try:
                log = prediction_log_pb2.PredictionLog.FromString(record)
            except message.DecodeError as error:
                raise invalid(f"Failed to parse warmup record from {path}") from error
            kind = log.WhichOneof("log_type")
            if kind == "predict_log":
                request = log.predict_log.request
                servable.run(request.model_spec.signature_name, request.inputs)
            elif kind in ("classify_log", "regress_log"):
                request = getattr(log, kind).request
                given = request.input.example_list.examples
                examples = np.array([example.SerializeToString() for example in given], object)
                servable.run(request.model_spec.signature_name, {"inputs": examples})
            elif kind is not None:
                raise ServingError(
                    Code.UNIMPLEMENTED, f"Unsupported log_type for warmup: {kind} in {path}"
                )
            if count > _MAX_WARMUP_RECORDS:
                raise invalid(
                    "Number of warmup records exceeds the maximum "
                    f"({_MAX_WARMUP_RECORDS}) at {path}"
                )
    except tf.errors.DataLossError as error:
        raise ServingError(
            Code.DATA_LOSS,
            f"{error.message}. Please verify your warmup data is in TFRecord format.",
        ) from error

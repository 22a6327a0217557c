"""Replays warm-up requests as TensorFlow Serving does when it loads a model."""

from collections.abc import Iterator

import tensorflow as tf
from google.protobuf import message
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.export.runtime import requests
from bertfam_tf.export.runtime.servable import ServableLike
from bertfam_tf.export.runtime.status import Code, ServingError, invalid

# TensorFlow Serving's limit.
MAX_RECORDS = 1000
_REPLAYED = ("predict_log", "classify_log", "regress_log", "multi_inference_log")


def replay(servable: ServableLike, path: str) -> None:
    """Runs warm-up requests.

    Args:
        servable: the model.
        path: TFRecords of PredictionLogs.

    Raises:
        ServingError: DATA_LOSS for a damaged file, INVALID_ARGUMENT for a damaged record or too
            many of them, UNIMPLEMENTED for a type of log that Serving does not replay, and any
            error of a request.
    """
    for number, log in enumerate(_records(path), 1):
        kind = log.WhichOneof("log_type")
        if kind in _REPLAYED:
            try:
                requests.run(servable, getattr(log, kind).request)
            except ServingError as error:
                where = f"(warm-up request {number} in {path})"
                raise ServingError(error.code, f"{error.message} {where}") from error
        elif kind is not None:
            raise ServingError(
                Code.UNIMPLEMENTED, f"Unsupported log_type for warmup: {kind} in {path}"
            )


def _records(path: str) -> Iterator[prediction_log_pb2.PredictionLog]:
    records = tf.data.TFRecordDataset(path).as_numpy_iterator()
    try:
        for count, record in enumerate(records, 1):
            try:
                yield prediction_log_pb2.PredictionLog.FromString(record)
            except message.DecodeError as error:
                raise invalid(f"Failed to parse warmup record from {path}") from error
            if count > MAX_RECORDS:
                raise invalid(
                    f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}"
                )
    except tf.errors.DataLossError as error:
        raise ServingError(
            Code.DATA_LOSS,
            f"{error.message}. Please verify your warmup data is in TFRecord format.",
        ) from error

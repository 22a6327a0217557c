"""Loads one version of a SavedModel, as TensorFlow Serving does."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import tensorflow as tf
from google.protobuf import message
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.serve import capi, inference
from bertfam_tf.serve.servable import Servable, ServableLike
from bertfam_tf.serve.status import Code, ServingError, invalid

Wrap = Callable[[Servable], ServableLike]
AroundWarmUp = Callable[[str | os.PathLike[str]], AbstractContextManager[None]]

_TAGS = ("serve",)
_WARMUP = os.path.join("assets.extra", "tf_serving_warmup_requests")
_MAX_WARMUP_RECORDS = 1000
# Exports of bertfam have it, and promise that no answer depends on other rows.
_CARD = os.path.join("assets.extra", "bertfam.json")
_REPLAYED = ("predict_log", "classify_log", "regress_log", "multi_inference_log")


def load(version_dir: str | os.PathLike[str]) -> Servable:
    """Loads the SavedModel in one version directory and runs its warm-up records.

    Raises:
        ServingError: NOT_FOUND without a SavedModel tagged "serve", DATA_LOSS for a damaged
            warm-up file, UNIMPLEMENTED for a warm-up record of a kind that Serving does not
            replay, and whatever code a failing warm-up record has.
    """
    servable = Servable(capi.Session(os.fspath(version_dir), _TAGS))
    _warm_up(servable, version_dir, None)
    return servable


def load_for(
    model: str,
    version_dir: str | os.PathLike[str],
    *,
    wrap: Wrap | None = None,
    around_warm_up: AroundWarmUp | None = None,
    rows_per_run: int = 0,
) -> ServableLike:
    """As `load`, for a server.

    Args:
        model: the name under which it is served.
        version_dir: as in `load`.
        wrap: makes of the servable what is returned; warm-up records run in that.
        around_warm_up: a context in which the warm-up records run, if there are any.
        rows_per_run: requests of more rows run in pieces of so many, where the model is an export
            of bertfam; 0, and other models, whose answers may depend on all rows, run them whole.
    """
    session = capi.Session(os.fspath(version_dir), _TAGS)
    by_row = os.path.exists(os.path.join(os.fspath(version_dir), _CARD))
    servable = Servable(session, model, rows_per_run=rows_per_run if by_row else 0)
    wrapped: ServableLike = servable if wrap is None else wrap(servable)
    _warm_up(wrapped, version_dir, around_warm_up)
    return wrapped


def _warm_up(
    servable: ServableLike, version_dir: str | os.PathLike[str], around: AroundWarmUp | None
) -> None:
    path = os.path.join(os.fspath(version_dir), _WARMUP)
    if not os.path.exists(path):
        return
    with contextlib.nullcontext() if around is None else around(version_dir):
        for log in _records(path):
            kind = log.WhichOneof("log_type")
            if kind in _REPLAYED:
                inference.run(servable, getattr(log, kind).request)
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

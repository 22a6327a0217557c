"""Loads a version of a SavedModel and replays its warm-up requests, as TensorFlow Serving does."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import config_pb2
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_serve import capi, inference
from bertfam_serve.servable import Servable, ServableLike
from bertfam_serve.status import Code, ServingError, invalid
from bertfam_tf import parsing

Wrap = Callable[[Servable], ServableLike]
AroundWarmUp = Callable[[str | os.PathLike[str]], AbstractContextManager[None]]

_TAGS = ("serve",)
_WARMUP = os.path.join("assets.extra", "tf_serving_warmup_requests")
_MAX_WARMUP_RECORDS = 1000
# The model card of bertfam's exports, whose outputs for a row do not depend on other rows.
_CARD = os.path.join("assets.extra", "bertfam.json")
_REPLAYED = ("predict_log", "classify_log", "regress_log", "multi_inference_log")


def load(version_dir: str | os.PathLike[str]) -> Servable:
    """Loads the SavedModel in a version directory and replays its warm-up requests.

    Raises:
        ServingError: NOT_FOUND if there is no SavedModel tagged "serve", UNIMPLEMENTED if this
            TensorFlow lacks a kernel that the model card names, DATA_LOSS for a damaged
            warm-up file, UNIMPLEMENTED for a type of log that Serving does not replay, and any
            error of a warm-up request.
    """
    _check_kernels(version_dir)
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
    session_config: config_pb2.ConfigProto | None = None,
) -> ServableLike:
    """As `load`, with the options of a server.

    Args:
        model: the name under which the model is served.
        version_dir: as in `load`.
        wrap: wraps the servable; warm-up requests run in the wrapper, which is returned.
        around_warm_up: makes a context manager in which the warm-up requests run, if there are
            any.
        rows_per_run: larger requests run in chunks of this number of rows if the model is an
            export of bertfam; the outputs of other models may depend on all rows. 0 disables it.
        session_config: as in `capi.Session`.

    Raises:
        ServingError: as `load`.
    """
    _check_kernels(version_dir)
    session = capi.Session(os.fspath(version_dir), _TAGS, session_config)
    is_ours = os.path.exists(os.path.join(os.fspath(version_dir), _CARD))
    servable = Servable(session, model, rows_per_run=rows_per_run if is_ours else 0)
    wrapped: ServableLike = servable if wrap is None else wrap(servable)
    _warm_up(wrapped, version_dir, around_warm_up)
    return wrapped


def _check_kernels(version_dir: str | os.PathLike[str]) -> None:
    """Refuses an export that this build of TensorFlow cannot run, with a remedy.

    TensorFlow's own error ("Op type not registered") has none.
    """
    try:
        card = parsing.read_json(Path(version_dir) / _CARD)
    except (FileNotFoundError, ValueError):
        return
    if not isinstance(card, dict) or not isinstance(kernels := card.get("kernels"), list):
        return
    missing = [name for name in kernels if isinstance(name, str) and not capi.has_kernel(name)]
    if not missing:
        return
    int8 = card.get("int8")
    fallback = int8.get("fallback") if isinstance(int8, dict) else None
    remedy = (
        f"the same version in the model directory {fallback!r} computes in float32"
        if isinstance(fallback, str)
        else "export it with fallback=True (--fallback) for a version in float32"
    )
    raise ServingError(
        Code.UNIMPLEMENTED,
        f"{os.fspath(version_dir)} computes in {card.get('dtype')}, for which this build of "
        f"TensorFlow has no kernel ({', '.join(missing)}; builds for x86 CPUs have it): {remedy}.",
    )


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

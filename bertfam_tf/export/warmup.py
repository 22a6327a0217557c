"""Requests that a server runs when it loads a model, before anyone waits for an answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.export.endpoints import EXAMPLES, Endpoint, Questions

FILE = "tf_serving_warmup_requests"


def write_warmup(
    directory: Path, endpoints: dict[str, Endpoint], questions: Questions, sizes: Iterable[int]
) -> None:
    """Writes a log of each signature and batch size, of the kind that its method asks for."""
    with os_errors(directory / FILE), tf.io.TFRecordWriter(str(directory / FILE)) as writer:
        for name, endpoint in endpoints.items():
            for rows in sizes:
                log = record(name, endpoint, questions.plain(endpoint, rows))
                writer.write(log.SerializeToString())


@contextmanager
def os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises an OSError that names ``path`` where TensorFlow fails to write it."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:  # also of quotas
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from error
    except tf.errors.OpError as error:
        text = f"TensorFlow cannot write: {error.message}"
        raise OSError(errno.EIO, text, os.fspath(path)) from error


def record(
    name: str, endpoint: Endpoint, inputs: dict[str, np.ndarray]
) -> prediction_log_pb2.PredictionLog:
    """The log of one request."""
    log = prediction_log_pb2.PredictionLog()
    method = endpoint.signature.method
    request = getattr(log, f"{method}_log").request
    request.model_spec.signature_name = name
    if method == "predict":
        for key, values in inputs.items():
            request.inputs[key].CopyFrom(tf.make_tensor_proto(values, endpoint.inputs[key].dtype))
    else:
        for example in inputs[EXAMPLES]:
            request.input.example_list.examples.append(tf.train.Example.FromString(example))
    return log

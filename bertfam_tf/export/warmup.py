"""Warm-up requests, which a server runs when it loads a model, before it accepts clients' requests.

The format is TensorFlow Serving's: TFRecords of PredictionLogs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.data.errors import os_errors
from bertfam_tf.export.endpoints import EXAMPLES, Endpoint
from bertfam_tf.export.runtime.loader import WARMUP
from bertfam_tf.export.runtime.warm_up import MAX_RECORDS


def check_count(signatures: int, sizes: int) -> None:
    """Raises ``ValueError`` for more requests than a server replays.

    Args:
        signatures: the number of signatures.
        sizes: the number of batch sizes, one request for each.
    """
    if signatures * sizes > MAX_RECORDS:
        raise ValueError(
            f"allowed_batch_sizes must be at most {MAX_RECORDS // signatures} for {signatures} "
            f"signatures, because TensorFlow Serving takes {MAX_RECORDS:,} warm-up requests, got "
            f"{sizes}."
        )


def write_warmup(directory: Path, endpoints: dict[str, Endpoint], sizes: Iterable[int]) -> None:
    """Writes one PredictionLog for each signature and batch size.

    Args:
        directory: the version's ``assets.extra``.
        endpoints: the endpoints by the name of the signature.
        sizes: the numbers of rows, one request for each.

    Raises:
        OSError: when the file cannot be written.
    """
    with os_errors(directory / WARMUP), tf.io.TFRecordWriter(str(directory / WARMUP)) as writer:
        for name, endpoint in endpoints.items():
            for rows in sizes:
                log = record(name, endpoint, endpoint.identical_rows(rows))
                writer.write(log.SerializeToString())


def record(
    name: str, endpoint: Endpoint, inputs: dict[str, np.ndarray]
) -> prediction_log_pb2.PredictionLog:
    """Returns the PredictionLog of one request.

    Args:
        name: the name of the signature.
        endpoint: the signature; its method decides between predict, classify and regress logs.
        inputs: input name to array, (rows, …); strings are object arrays of bytes.
    """
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

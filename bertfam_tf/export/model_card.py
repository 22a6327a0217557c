"""The model card of an export, as JSON."""

from __future__ import annotations

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import bertfam_tf
from bertfam_tf.export.endpoints import Endpoint
from bertfam_tf.export.in_graph_batching import BatchingOptions
from bertfam_tf.export.int8_product import KERNEL
from bertfam_tf.export.runtime.loader import CARD, EXTRA
from bertfam_tf.export.text_model import TextModel
from bertfam_tf.sources import sha256
from bertfam_tf.tasks import MultiTask, Task

_LIBRARIES = ("tensorflow", "tensorflow-text", "keras")


def write_card(
    directory: Path,
    task: Task | MultiTask | TextModel,
    endpoints: dict[str, Endpoint],
    *,
    dtype: str,
    batching: BatchingOptions | None,
    metrics: dict[str, Any] | None,
    int8: dict[str, Any] | None = None,
    bfloat16: dict[str, Any] | None = None,
) -> None:
    """Writes the model card of an export.

    Its keys are the same as in ``Task.describe`` (task, family, the backbone's config, options;
    with several tasks, ``tasks`` by name) and ``labels``, by task if there are several;
    ``signatures``, with the method and the dtypes and shapes (-1: any) of inputs and outputs;
    ``dtype`` of stored matrices; ``kernels``, the names of operations that only some builds of
    TensorFlow have; ``int8`` and ``bfloat16``, null or how dense layers compute in them;
    ``batching``; ``metrics``; ``versions`` of libraries; and ``sha256`` of every file.

    Args:
        directory: the export, in which all other files have been written.
        task: the exported task.
        endpoints: the endpoints by the name of the signature.
        dtype: the dtype of stored matrices.
        batching: the graph's own batching, if any.
        metrics: the scores of the training run; NaN and infinity become null.
        int8: the layers in int8 and in float32 (``Int8Layers.describe``), the ``agreement`` of
            answers with float32, and ``fallback``, the name of the model directory with the same
            version in float32, if there is one.
        bfloat16: the layers in bfloat16 and in float32, and the CPUs on which they are faster
            (``Bfloat16Layers.describe``), and ``fallback``, as in ``int8``.

    Raises:
        OSError: when the card cannot be written.
    """
    labels = {name: member.class_names for name, member in task.served_tasks().items()}
    card = {
        **task.describe(),
        "labels": labels.get("", labels),
        "signatures": {name: _described(endpoint) for name, endpoint in endpoints.items()},
        "dtype": dtype,
        "kernels": [] if int8 is None else [KERNEL],
        "int8": int8,
        "bfloat16": bfloat16,
        "batching": None if batching is None else dataclasses.asdict(batching),
        "metrics": metrics,
        "versions": {
            "bertfam_tf": bertfam_tf.__version__,
            **{name: metadata.version(name) for name in _LIBRARIES},
        },
        "sha256": {
            str(path.relative_to(directory)): sha256(path)
            for path in sorted(directory.rglob("*"))
            if path.is_file()
        },
    }
    # Scores may be numpy's or TensorFlow's.
    text = json.dumps(card, default=lambda x: np.asarray(x).tolist())
    # JSON has no NaN and no infinity.
    plain = json.loads(text, parse_constant=lambda name: None)
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    (directory / EXTRA / CARD).write_text(text + "\n", "utf-8")


def _described(endpoint: Endpoint) -> dict[str, Any]:
    def described(specs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {
                "dtype": spec.dtype.name,
                "shape": [-1 if size is None else size for size in spec.shape],
            }
            for name, spec in specs.items()
        }

    return {
        "method": endpoint.signature.method,
        "inputs": described(endpoint.inputs),
        "outputs": described(endpoint.outputs),
    }

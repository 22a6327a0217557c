"""SavedModels for TensorFlow Serving."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from bertfam_tf.serve.loader import DEFAULT_SIGNATURE, Servable, load
from bertfam_tf.serve.status import ServingError
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.base import Signature

_EXTRA = "assets.extra"
_WARMUP = "tf_serving_warmup_requests"
_DESCRIPTION = "bertfam.json"

# What the reloaded export is compared on: plain, empty, long beyond any model, other scripts,
# special tokens, bytes that are not UTF-8.
_SAMPLES = [
    b"It arrived on time and works well.",
    b"",
    b"word " * 600,
    "Größe, naïve, 日本語, العربية, हिन्दी 🙂".encode(),
    b"[CLS] and [SEP], a [MASK] and a <mask>",
    b"\xff\xfe broken \xc3",
]
# Serving runs each record when it loads the model: one row, and a batch.
_WARMUP_BATCHES = (1, 8)
_TOLERANCE = 1e-5


class ExportError(RuntimeError):
    """The export does not answer as the task does; nothing was put into the export directory."""


def export_saved_model(
    task: Task, directory: str | os.PathLike[str], *, version: int | None = None, **options: Any
) -> Path:
    """Writes ``directory/<version>``, which TensorFlow Serving loads as it is.

    The signature ``serving_default`` takes the task's texts, such as ``text`` (and
    ``text_pair`` of a pair model), as ``task.feature_specs`` has them, and returns its answers;
    further ones are those of ``task.signatures``. Warm-up records and the task's description lie
    under ``assets.extra``. What was written is loaded again, by the C++ loader that Serving
    uses, and compared with the task before the version appears.

    Args:
        task: a task; a classifier that has seen no data yet and was not told is taken to classify
            single texts.
        directory: the model's base path; made when missing.
        version: a number; None takes the next one.
        **options: of ``task.signatures``, such as how a language model generates.

    Returns:
        The version's directory.

    Raises:
        FileExistsError: when the version exists.
        ValueError: when the version is below 0, which Serving would pass over.
        ExportError: when the export's graph would not run in Serving, or answers differently.
    """
    base = Path(directory)
    if version is not None and version < 0:
        raise ValueError(f"A version is 0 or more, not {version}.")
    base.mkdir(parents=True, exist_ok=True)
    versions = [int(child.name) for child in base.iterdir() if child.name.isdecimal()]
    if version is None:
        version = max(versions, default=0) + 1
    if version in versions:
        raise FileExistsError(f"{base} has a version {version} already.")
    # Serving takes every child with a number for a name as a version, whole or not.
    temporary = base / f".export-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write(task, temporary, **options)
        _check_compilation(temporary)
        try:
            _compare(task, load(temporary), **options)
        except ServingError as error:
            raise ExportError(f"The export does not run in Serving: {error}") from error
        return temporary.rename(base / str(version))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _signatures(task: Task, **options: Any) -> dict[str, Signature]:
    return {DEFAULT_SIGNATURE: Signature(task.answer)} | task.signatures(**options)


def _write(task: Task, directory: Path, **options: Any) -> None:
    shapes = task.feature_specs
    names = tuple(shapes)
    signatures = _signatures(task, **options)
    archive = keras.export.ExportArchive()
    # The endpoint brings the variables that it reads; tracking the task as well would write each
    # of them a second time.
    archive.track(task.tokenizer)
    for signature_name, signature in signatures.items():
        function = _of_texts(signature, names)
        archive.add_endpoint(signature_name, function, input_signature=list(shapes.values()))
    archive.write_out(str(directory), verbose=False)
    extra = directory / _EXTRA
    extra.mkdir()
    (extra / _DESCRIPTION).write_text(json.dumps(task.describe(), indent=2) + "\n", "utf-8")
    with tf.io.TFRecordWriter(str(extra / _WARMUP)) as writer:
        for signature_name in signatures:
            for rows in _WARMUP_BATCHES:
                record = _warmup_record(shapes, rows, signature_name)
                writer.write(record.SerializeToString())


def _of_texts(signature: Signature, names: tuple[str, ...]) -> Any:
    def answer(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        return signature.function(dict(zip(names, texts, strict=True)))

    return answer


def _warmup_record(
    shapes: dict[str, tf.TensorSpec], rows: int, signature: str = DEFAULT_SIGNATURE
) -> prediction_log_pb2.PredictionLog:
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = signature
    for name, spec in shapes.items():
        text = np.full((rows, *spec.shape[1:]), _SAMPLES[0], object)
        request.inputs[name].CopyFrom(tf.make_tensor_proto(text, tf.string))
    return log


def _check_compilation(directory: Path) -> None:
    model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    for meta_graph in model.meta_graphs:
        for function in _must_compile(meta_graph.graph_def):
            raise ExportError(
                f"The function {function} is compiled by XLA (jit_compile=True), which Serving has "
                "switched off: every request would fail."
            )


def _must_compile(graph: graph_pb2.GraphDef) -> Iterator[str]:
    key = "_XlaMustCompile"
    for function in graph.library.function:
        if function.attr[key].b or any(node.attr[key].b for node in function.node_def):
            yield function.signature.name
    for node in graph.node:
        if node.attr[key].b:
            yield node.name


def _compare(task: Task, servable: Servable, **options: Any) -> None:
    features = {
        name: _samples(int(np.prod(spec.shape[1:])), turned=i).reshape(-1, *spec.shape[1:])
        for i, (name, spec) in enumerate(task.feature_specs.items())
    }
    for name, signature in _signatures(task, **options).items():
        # As a graph, like predict: in half precision fused operations round otherwise than eager
        # ones.
        answer = tf.function(signature.function, autograph=False)
        given = {k: tf.constant(v) for k, v in features.items()}
        expected = {output: value.numpy() for output, value in answer(given).items()}
        found = servable.run(name, features)
        _compare_answers(found, expected, signature.repeatable)


def _samples(count: int, turned: int) -> np.ndarray:
    """The samples in other orders, ``count`` for each row."""
    columns = [np.roll(np.array(_SAMPLES, object), turned + i) for i in range(count)]
    return np.stack(columns, axis=1)


def _compare_answers(found: dict[str, Any], expected: dict[str, Any], repeatable: bool) -> None:
    if found.keys() != expected.keys():
        raise ExportError(f"The export answers {sorted(found)}, the task {sorted(expected)}.")
    for name, value in expected.items():
        if found[name].shape != value.shape:
            raise ExportError(
                f"The export's {name!r} is {found[name].shape}, the task's {value.shape}."
            )
        if value.dtype == object:
            same = bool((found[name] == value).all())
        else:
            same = np.allclose(found[name], value, rtol=0, atol=_TOLERANCE)
        if repeatable and not same:
            raise ExportError(f"The export's {name!r} differs from the task's.")

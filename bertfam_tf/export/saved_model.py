"""SavedModels for TensorFlow Serving."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from bertfam_tf import files
from bertfam_tf.export import guards
from bertfam_tf.export.batching import BatchingOptions
from bertfam_tf.export.card import write_card
from bertfam_tf.export.endpoints import Endpoint, Questions, endpoints
from bertfam_tf.export.warmup import os_errors, write_warmup
from bertfam_tf.export.weights import Precision, Weights
from bertfam_tf.serve.loader import load
from bertfam_tf.serve.servable import Servable
from bertfam_tf.serve.status import Code, ServingError
from bertfam_tf.tasks import Task
from bertfam_tf.text import Tokenizer

_EXTRA = "assets.extra"
_CARD = "bertfam.json"
_LABELS = "labels.txt"
# Serving runs each record when it loads the model: one row, and a batch.
_WARMUP_BATCHES = (1, 8)
_TOLERANCE = 1e-5
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class ExportError(RuntimeError):
    """The export does not answer as the task does; nothing was put into the export directory."""


def export_saved_model(
    task: Task,
    directory: str | os.PathLike[str],
    *,
    version: int | None = None,
    dtype: Precision = "float32",
    batching: BatchingOptions | None = None,
    metrics: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Writes ``directory/<version>``, which TensorFlow Serving loads as it is.

    The signature ``serving_default`` takes the task's texts, such as ``text`` (and
    ``text_pair`` of a pair model), as ``task.feature_specs`` has them, and returns its answers;
    ``ids`` takes packed rows, ``task.packed_specs``; classifiers have ``classify`` and regressors
    ``regress``, which take tf.Examples, for Serving's calls of these names; further ones are those
    of ``task.signatures``. Dim 0 of each answer is the batch, and no answer depends on what else is
    in it.

    Labels and the tokenizer's files are assets. Warm-up records of each signature and the model
    card ``bertfam.json`` (see ``card.write_card``) lie under ``assets.extra``. What was written is
    loaded again, by the C++ loader that Serving uses, and all signatures are compared with the task
    before the version appears.

    The graph itself refuses, with INVALID_ARGUMENT, inputs of other shapes than a signature
    declares, inputs of different numbers of rows, and values of ``ids`` that the model does not
    have: Serving does not compare what it is sent with the signature. What was written has to
    refuse such requests too.

    Args:
        task: a task; a classifier that has seen no data yet and was not told is taken to classify
            single texts.
        directory: the model's base path; made when missing.
        version: a number; None takes the next one.
        dtype: what matrices are stored as: ``"float32"``; ``"bfloat16"``, half the bytes; or
            ``"int8"``, a quarter (see ``weights.Weights``). Answers are float32, and answers of
            what is stored are what is compared.
        batching: whether the graph itself answers several requests for texts at a time; None
            leaves it to the server.
        metrics: for the card, how well the task did.
        **options: of ``task.signatures``, such as how a language model generates, or how wide a
            tagger's answers are.

    Returns:
        The version's directory.

    Raises:
        FileExistsError: when the version exists.
        ValueError: when the version is below 0, which Serving would pass over, or an option is
            not one of the task's.
        ExportError: when the export's graph would not run in Serving, answers differently, or
            answers requests that do not fit its signatures.
        OSError: when writing fails, on a full disk say; no version is there then.
    """
    base = Path(directory)
    if version is not None and version < 0:
        raise ValueError(f"A version is 0 or more, not {version}.")
    if version in _versions(base):
        raise FileExistsError(f"{base} has a version {version} already.")
    # Serving takes every child with a number for a name as a version, whole or not.
    with files.scratch(base, inside=True) as scratch:
        temporary = scratch / "version"
        # Graphs do not keep the variables that they read.
        weights = Weights(task, dtype)
        traced = endpoints(task, weights, batching, **options)
        questions = Questions(task)
        _write(task, temporary, traced)
        _check_graph(temporary)
        extra = temporary / _EXTRA
        extra.mkdir()
        sizes = _WARMUP_BATCHES if batching is None else batching.allowed_batch_sizes
        write_warmup(extra, traced, questions, sizes)
        write_card(
            extra / _CARD, temporary, task, traced, dtype=dtype, batching=batching, metrics=metrics
        )
        try:
            _compare(traced, load(temporary), questions)
        except ServingError as error:
            raise ExportError(f"The export does not run in Serving: {error}") from error
        while True:
            target = base / str(_next(base) if version is None else version)
            try:
                files.put(temporary, target, replace=False)
            except FileExistsError:  # of another process
                if version is not None:
                    raise
            else:
                return target


def _versions(base: Path) -> list[int]:
    children = base.iterdir() if base.is_dir() else ()
    return [int(child.name) for child in children if child.name.isdecimal()]


def _next(base: Path) -> int:
    return max(_versions(base), default=0) + 1


def _write(task: Task, directory: Path, traced: dict[str, Endpoint]) -> None:
    functions = {name: endpoint.function for name, endpoint in traced.items()}
    assets = directory.with_name("assets")
    task.tokenizer.save(assets)
    if task.class_names:
        # One a line, whatever stands in them.
        lines = [" ".join(name.splitlines()) + "\n" for name in task.class_names]
        (assets / _LABELS).write_text("".join(lines), "utf-8")
    write_functions(functions, task.tokenizer, directory, sorted(assets.iterdir()))


def write_functions(
    functions: dict[str, Any],
    tokenizer: Tokenizer,
    directory: str | os.PathLike[str],
    assets: Iterable[Path] = (),
) -> None:
    """Writes a SavedModel.

    Args:
        functions: concrete ones, by the names of their signatures.
        tokenizer: which holds the tables that they read.
        directory: where to.
        assets: files to put beside them.

    Raises:
        OSError: when writing fails.
    """
    captured = {id(tensor) for f in functions.values() for tensor in f.captured_inputs}
    module = tf.Module()
    # What the signatures read and nothing else: what is tracked is written.
    module.weights = list(
        {id(v): v for function in functions.values() for v in function.variables}.values()
    )
    module.resources = [
        found
        for found in tf.train.TrackableView(tokenizer).descendants()
        if id(getattr(found, "_resource_handle", None)) in captured
    ]
    module.assets = [tf.saved_model.Asset(str(file)) for file in assets]
    with os_errors(directory):
        tf.saved_model.save(module, os.fspath(directory), signatures=functions)


def _check_graph(directory: Path) -> None:
    model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    for meta_graph in model.meta_graphs:
        for function in _must_compile(meta_graph.graph_def):
            raise ExportError(
                f"The function {function} is compiled by XLA (jit_compile=True), which Serving has "
                "switched off: every request would fail."
            )
        for node in _nodes(meta_graph.graph_def):
            if node.op in _PYTHON:
                raise ExportError(f"{node.name} calls Python ({node.op}), which Serving has not.")
        # Before anything runs: kernels that read strings of another rank end this process.
        for signature, name in guards.unguarded(meta_graph):
            raise ExportError(
                f"The input {name!r} of the export's {signature} is read without a check of its "
                "shape: one request of another rank could stop the server."
            )


def _nodes(graph: graph_pb2.GraphDef) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _must_compile(graph: graph_pb2.GraphDef) -> Iterator[str]:
    key = "_XlaMustCompile"
    for function in graph.library.function:
        if function.attr[key].b or any(node.attr[key].b for node in function.node_def):
            yield function.signature.name
    for node in graph.node:
        if node.attr[key].b:
            yield node.name


def _compare(traced: dict[str, Endpoint], servable: Servable, questions: Questions) -> None:
    for name, endpoint in traced.items():
        asked = questions.hard(endpoint)
        found = servable.run(name, asked)
        compare_answers(name, found, endpoint.run(asked), endpoint.signature.repeatable)
        _compare_refusals(name, endpoint, servable, questions)


def _compare_refusals(
    name: str, endpoint: Endpoint, servable: Servable, questions: Questions
) -> None:
    plain = partial(questions.plain, endpoint)
    for wrong, asked in guards.hostile(endpoint.inputs, endpoint.limits, plain):
        try:
            servable.run(name, asked)
        except ServingError as error:
            if error.code is not Code.INVALID_ARGUMENT:
                raise
        else:
            raise ExportError(
                f"The export's {name} answers a request that it must refuse: {wrong}."
            )


def compare_answers(
    signature: str, found: dict[str, Any], expected: dict[str, Any], repeatable: bool
) -> None:
    """Raises ExportError where answers by name are not those of the task.

    Args:
        signature: how to call it in errors.
        found: the export's.
        expected: the task's.
        repeatable: whether values are compared, and not only names and shapes.
    """
    if found.keys() != expected.keys():
        raise ExportError(
            f"The export's {signature} answers {sorted(found)}, the task {sorted(expected)}."
        )
    for name, value in expected.items():
        if found[name].shape != value.shape:
            raise ExportError(
                f"The {name!r} of the export's {signature} is {found[name].shape}, the task's "
                f"{value.shape}."
            )
        if value.dtype == object:
            same = bool((found[name] == value).all())
        else:
            # Logits are of any size, and sums of terms of that size are rounded alike; the median,
            # because those of padding are -1e9.
            size = max(1.0, float(np.median(np.abs(value)))) if value.size else 1.0
            same = np.allclose(found[name], value, rtol=_TOLERANCE, atol=size * _TOLERANCE)
        if repeatable and not same:
            raise ExportError(f"The {name!r} of the export's {signature} differs from the task's.")

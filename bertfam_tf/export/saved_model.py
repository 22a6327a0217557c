"""Exports SavedModels for TensorFlow Serving."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from bertfam_tf import files
from bertfam_tf.data.errors import os_errors
from bertfam_tf.export import guards
from bertfam_tf.export.calibration import calibration_examples
from bertfam_tf.export.endpoints import Endpoint, endpoints
from bertfam_tf.export.in_graph_batching import BatchingOptions
from bertfam_tf.export.int8 import Int8Layers
from bertfam_tf.export.model_card import write_card
from bertfam_tf.export.runtime.loader import EXTRA, load
from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, Servable
from bertfam_tf.export.runtime.status import Code, ServingError
from bertfam_tf.export.signatures import signatures
from bertfam_tf.export.text_model import TextModel
from bertfam_tf.export.warmup import check_count, write_warmup
from bertfam_tf.export.weights import Precision, StoredWeights, check_precision
from bertfam_tf.tasks import MultiTask, Task
from bertfam_tf.tasks.text_learner import refuse
from bertfam_tf.validation import in_range

_LABELS = "labels"
# Rows of the warm-up requests: a single text, and a batch of more than a hundred tokens. Products
# with weights that oneDNN packs keep the order for the size of their first call; after a smaller
# batch, most sizes would pack again in each call.
_WARMUP_BATCHES = (1, 16)
_MOST_TEXTS = 512
_CALIBRATION_ROWS = _COMPARED_ROWS = 32
_TOLERANCE = 1e-5
# Serving's versions are int64.
_LARGEST_VERSION = 2**63 - 1
# Relative root mean square.
_SIMILAR = 0.1
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class ExportError(RuntimeError):
    """The export's outputs differ from the task's; the export directory is unchanged."""


def export_saved_model(
    task: Task | MultiTask | keras.Model,
    directory: str | os.PathLike[str],
    *,
    version: int | None = None,
    dtype: Precision = "float32",
    batching: BatchingOptions | None = None,
    metrics: dict[str, Any] | None = None,
    calibration: Iterable[Any] | None = None,
    fallback: bool = False,
    **options: Any,
) -> Path:
    """Writes the SavedModel ``directory/<version>`` for TensorFlow Serving.

    Signatures, of several tasks as ``MultiTask.export`` says: ``serving_default`` takes the task's
    texts (``task.feature_specs``: ``text``, and ``text_pair`` for pairs) and returns its outputs;
    ``ids`` takes packed ids (``task.packed_specs``). Classifiers also have ``classify`` and
    regressors ``regress``, which take tf.Examples for Serving's APIs of these names; tasks on a
    backbone with languages ``in_language``, which takes the texts and ``language``;
    ``task.signatures`` may define more. Dim 0 of every output is the batch, and the outputs for a
    row do not depend on other rows.

    The labels and the tokenizer's files are assets; warm-up requests for each signature and the
    model card ``bertfam.json`` (see ``model_card.write_card``) are in ``assets.extra``. Before the
    version appears in the directory, it is loaded with the C++ loader that Serving uses, and the
    outputs of all signatures are compared with the task's.

    Serving does not validate requests against the signature, so the graph does: it rejects inputs
    of undeclared shapes, inputs with different numbers of rows, examples without tokens or labels,
    and ids out of range, with INVALID_ARGUMENT. The export is checked with such requests too.

    A Keras model of raw text, whose first layer is a ``TextPreprocessor``, has ``serving_default``
    alone: its inputs have their names in the model, a single one without a name is ``text``; its
    outputs are float32 and have the names of the model's dict, or are ``output_0``, ….

    Args:
        task: a task, or several, or a Keras model of raw text. A classifier that is not configured
            for pairs and has seen no data yet is exported for single texts.
        directory: the model's base path; it is created if missing.
        version: the version number; None takes the next one.
        dtype: the dtype of stored matrices: ``"float32"``, ``"bfloat16"``, ``"bfloat16-weights"``,
            ``"int8-weights"`` or ``"int8"`` (see ``weights.StoredWeights``). ``"…-weights"`` are
            converted and computed in float32. With ``"bfloat16"`` dense layers compute in bfloat16,
            faster on CPUs with AVX512-BF16 or AMX, and slower than in float32 on others. With
            ``"int8"`` dense layers compute in int8, with an oneDNN kernel that TensorFlow and
            TensorFlow Serving have on x86 CPUs only, with or without VNNI. Outputs are float32; the
            export compares them with the outputs of the task with the stored weights.
        batching: batches concurrent requests inside the graph; None leaves batching to the server.
        metrics: evaluation scores for the model card.
        calibration: a few hundred typical texts (tuples for tasks with several texts per example),
            for ``"int8"``; the first 512 are read. They give the scales of activations, and the
            card reports on them how answers differ from those in float32.
        fallback: for ``"int8"`` and ``"bfloat16"``, whether to write the same version in float32
            too, for servers without the kernel, or on other CPUs: in the model directory
            ``<directory>-float32``.
        **options: arguments of ``task.signatures``, such as how a language model generates or the
            output width of a tagger.

    Returns:
        The version's directory.

    Raises:
        FileExistsError: if the version exists.
        ValueError: if the version is not an integer from 0 to 2**63 - 1 (Serving ignores others),
            or the task has no such option or is in another precision than float32 and ``dtype``
            is not ``"float32"``; or, for ``"int8"``, there are several tasks, calibration texts are
            missing, this TensorFlow lacks the kernel, or the task has no dense layer that keeps its
            accuracy.
        ExportError: if the graph would not run in Serving, its outputs differ from the task's, or
            it accepts requests that do not match its signatures.
        OSError: if writing fails, for example because the disk is full; no version was added.
    """
    if isinstance(task, keras.Model) and not isinstance(task, Task | MultiTask):
        task = TextModel(task)
    if isinstance(task, MultiTask):
        parameters = inspect.signature(export_saved_model).parameters.values()
        refuse("export", options, [x.name for x in parameters if x.kind is x.KEYWORD_ONLY])
    base = Path(directory)
    if version is not None:
        in_range("version", version, at_least=0, at_most=_LARGEST_VERSION, integer=True)
    _check_precision(task, dtype, calibration)
    if dtype not in ("int8", "bfloat16") and fallback:
        raise ValueError(
            f"fallback is only for dtype='int8' and dtype='bfloat16', got dtype={dtype!r}."
        )
    if dtype == "int8" and not isinstance(task, Task):
        raise ValueError(
            "dtype='int8' is for one task, whose texts it is calibrated with; several, and other "
            "models, have 'float32', 'bfloat16', 'bfloat16-weights' or 'int8-weights'."
        )
    # Together, a server of either directory has the same versions.
    bases = [base, *([fallback_directory(base)] if fallback else [])]
    for model_directory in bases:
        # even if the killed run had finished it
        files.remove_leftovers(model_directory, inside=True)
        if version in _versions(model_directory):
            raise FileExistsError(f"{model_directory} already has a version {version}.")
    with contextlib.ExitStack() as stack:
        layers = None
        if dtype == "int8":
            assert isinstance(task, Task)
            layers = _calibrated(task, calibration, batching, options)
        # Serving loads every child whose name is a number, even one that is being written.
        scratch = [
            stack.enter_context(files.scratch(model_directory, inside=True))
            for model_directory in bases
        ]
        versions = [directory / "version" for directory in scratch]
        shared: dict[str, Any] = dict(batching=batching, metrics=metrics)
        fallback_name = bases[-1].name if fallback else None
        _make(task, versions[0], dtype, layers, options, fallback=fallback_name, **shared)
        for directory in versions[1:]:
            _make(task, directory, "float32", None, options, **shared)
        while True:
            number = _next(bases) if version is None else version
            try:
                _move(versions, [model_directory / str(number) for model_directory in bases])
            except FileExistsError:  # another process has taken the number
                if version is not None:
                    raise
            else:
                return base / str(number)


def fallback_directory(base: Path) -> Path:
    """Returns the model directory of the float32 exports next to int8 exports in ``base``."""
    if base.name in ("", ".."):  # as in "." and "a/..", it has no name of its own
        base = base.resolve()
    return base.with_name(f"{base.name}-float32")


def _check_precision(
    task: Task | MultiTask | TextModel, dtype: str, calibration: Iterable[Any] | None
) -> None:
    check_precision(task, dtype)
    if dtype != "int8" and calibration is not None:
        raise ValueError(f"calibration is only for dtype='int8', got dtype={dtype!r}.")


@contextlib.contextmanager
def computing_in(
    task: Task, dtype: Precision, calibration: Iterable[Any] | None = None
) -> Iterator[None]:
    """Returns a context in which a task computes outputs as its export in ``dtype``, to score it.

    Functions that are already traced keep their dtype.

    Args:
        task: a task that has not answered yet.
        dtype, calibration: the same as for ``export_saved_model``.

    Raises:
        ValueError: as ``export_saved_model``.
    """
    _check_precision(task, dtype, calibration)
    layers = _calibrated(task, calibration, None, {}) if dtype == "int8" else None
    weights, call = StoredWeights(task, dtype, layers), task.call

    def substituted(*args: Any, **kwargs: Any) -> Any:
        with weights.substituted():
            return call(*args, **kwargs)

    # Not around all of an evaluation, in which Keras makes variables.
    task.__dict__["call"] = substituted
    try:
        yield
    finally:
        del task.__dict__["call"]


def _calibrated(
    task: Task,
    texts: Iterable[Any] | None,
    batching: BatchingOptions | None,
    options: dict[str, Any],
) -> Int8Layers:
    examples = list(calibration_examples(task, texts, "dtype='int8'", _MOST_TEXTS))
    rows = _CALIBRATION_ROWS
    if batching is not None:
        rows = min(rows, batching.max_batch_size)
    batches = [
        {
            name: np.concatenate([example[name] for example in examples[start : start + rows]])
            for name in examples[0]
        }
        for start in range(0, len(examples), rows)
    ]
    answer = signatures(task, **options)[DEFAULT_SIGNATURE].function
    if task.components.forward is None:
        return Int8Layers(task, answer, batches)
    # Answers read the head at some positions, such as masks, and ``ids`` at all.
    return Int8Layers(task, answer, batches, lambda texts: task.answer_ids(task.encode(texts)))


def _make(
    task: Task | MultiTask | TextModel,
    directory: Path,
    dtype: Precision,
    layers: Int8Layers | None,
    options: dict[str, Any],
    *,
    batching: BatchingOptions | None,
    metrics: dict[str, Any] | None,
    fallback: str | None = None,
) -> None:
    # A reference that keeps the stored variables alive: graphs hold none.
    weights = StoredWeights(task, dtype, layers)
    traced = endpoints(task, weights, batching, **options)
    sizes = _WARMUP_BATCHES if batching is None else batching.allowed_batch_sizes
    check_count(len(traced), len(sizes))
    _write(task, directory, traced)
    _check_graph(directory)
    extra = directory / EXTRA
    extra.mkdir()
    write_warmup(extra, traced, sizes)
    int8 = None
    if layers is not None:
        agreement = layers.agreement(traced[DEFAULT_SIGNATURE].run)
        int8 = {**layers.describe(), "agreement": agreement, "fallback": fallback}
    bfloat16 = weights.describe_bfloat16()
    write_card(
        *(directory, task, traced),
        dtype=dtype,
        batching=batching,
        metrics=metrics,
        int8=int8,
        bfloat16=None if bfloat16 is None else {**bfloat16, "fallback": fallback},
    )
    try:
        same = _equal if int8 is bfloat16 is None else _similar
        max_rows = _COMPARED_ROWS if batching is None else batching.max_batch_size
        _compare(traced, load(directory), same, max_rows)
    except ServingError as error:
        raise ExportError(f"The export does not run in Serving: {error}") from error


def _move(scratch: list[Path], targets: list[Path]) -> None:
    """Moves all of the directories into place, or none."""
    moved: list[tuple[Path, Path]] = []
    try:
        # The last first: a server that sees the int8 version may rely on the one in float32.
        for source, target in reversed(list(zip(scratch, targets, strict=True))):
            files.move_into_place(source, target, replace=False)
            moved.append((source, target))
    except BaseException:
        for source, target in moved:
            target.rename(source)
        raise


def _versions(base: Path) -> list[int]:
    children = base.iterdir() if base.is_dir() else ()
    return [int(child.name) for child in children if child.name.isdecimal()]


def _next(bases: list[Path]) -> int:
    return max((number for base in bases for number in _versions(base)), default=0) + 1


def _write(
    task: Task | MultiTask | TextModel, directory: Path, traced: dict[str, Endpoint]
) -> None:
    functions = {name: endpoint.function for name, endpoint in traced.items()}
    assets = directory.with_name("assets")
    task.tokenizer.save(assets)
    for name, member in task.served_tasks().items():
        if member.class_names:
            # One label per line: line breaks within labels become spaces.
            lines = [" ".join(label.splitlines()) + "\n" for label in member.class_names]
            file = f"{_LABELS}_{name}.txt" if name else f"{_LABELS}.txt"
            (assets / file).write_text("".join(lines), "utf-8")
    resources = tf.Module()
    # Tasks of one model have equal tokenizers, which may be several objects.
    resources.owners = [getattr(x, "resources", x.tokenizer) for x in task.served_tasks().values()]
    write_functions(functions, resources, directory, sorted(assets.iterdir()))


def write_functions(
    functions: dict[str, Any],
    resources: tf.Module,
    directory: str | os.PathLike[str],
    assets: Iterable[Path] = (),
) -> None:
    """Writes a SavedModel.

    Args:
        functions: signature name to concrete function.
        resources: the owners of the functions' lookup tables, such as a tokenizer.
        directory: the target.
        assets: the files to include as assets.

    Raises:
        OSError: if writing fails.
    """
    captured = {id(tensor) for f in functions.values() for tensor in f.captured_inputs}
    module = tf.Module()
    # All tracked objects are written, so only those that the signatures read are tracked.
    module.weights = list(
        {id(v): v for function in functions.values() for v in function.variables}.values()
    )
    module.resources = [
        trackable
        for trackable in tf.train.TrackableView(resources).descendants()
        if id(getattr(trackable, "_resource_handle", None)) in captured
    ]
    module.assets = [tf.saved_model.Asset(str(file)) for file in assets]
    with os_errors(directory):
        tf.saved_model.save(module, os.fspath(directory), signatures=functions)


def _check_graph(directory: Path) -> None:
    model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    for meta_graph in model.meta_graphs:
        for function in _must_compile(meta_graph.graph_def):
            raise ExportError(
                f"The function {function} is compiled by XLA (jit_compile=True), which Serving "
                "disables: every request would fail."
            )
        for node in _nodes(meta_graph.graph_def):
            if node.op in _PYTHON:
                raise ExportError(
                    f"{node.name} calls Python ({node.op}), which Serving cannot run."
                )
        # Before the graph runs: kernels that read strings of another rank crash this process.
        for signature, name in guards.unchecked_inputs(meta_graph):
            raise ExportError(
                f"The signature {signature!r} reads its input {name!r} without a check of its "
                "shape: one request of another rank could crash the server."
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


def _compare(
    traced: dict[str, Endpoint],
    servable: Servable,
    same: Callable[[np.ndarray, np.ndarray], bool],
    max_rows: int,
) -> None:
    of_texts: list[dict[str, np.ndarray]] = []
    for name, endpoint in traced.items():
        task, requests = endpoint.task, endpoint.edge_cases(max_rows)
        function = endpoint.signature.answer or endpoint.signature.function
        # The first run of a graph takes longer than anything else here.
        if endpoint.signature.method != "predict":
            expected = [_viewed(endpoint.signature.function, answers) for answers in of_texts]
        elif task.answers_from_ids and function == task.answer_ids:
            expected = of_texts
        else:
            expected = list(map(endpoint.run, requests))
        if function == task.answer:
            of_texts = expected
        for inputs, answers in zip(requests, expected, strict=True):
            actual = servable.run(name, inputs)
            compare_answers(name, actual, answers, endpoint.signature.repeatable, same)
        _check_refusals(name, endpoint, servable)


def _viewed(view: Callable, answers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    viewed = view({name: tf.constant(x) for name, x in answers.items()})
    return {name: x.numpy() for name, x in viewed.items()}


def _check_refusals(name: str, endpoint: Endpoint, servable: Servable) -> None:
    requests = guards.invalid_requests(endpoint.inputs, endpoint.limits, endpoint.identical_rows)
    for mistake, inputs in requests:
        try:
            servable.run(name, inputs)
        except ServingError as error:
            if error.code is not Code.INVALID_ARGUMENT:
                raise
        else:
            raise ExportError(
                f"The signature {name!r} accepts a request that it must reject: {mistake}."
            )


def _equal(actual: np.ndarray, expected: np.ndarray) -> bool:
    if expected.dtype == object:
        return bool((actual == expected).all())
    # Rounding errors grow with the size of logits. The median ignores the -1e9 of padding.
    scale = max(1.0, float(np.median(np.abs(expected)))) if expected.size else 1.0
    return np.allclose(actual, expected, rtol=_TOLERANCE, atol=scale * _TOLERANCE)


def _similar(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Returns whether both are equal up to the error of int8 or bfloat16.

    The two graphs may run with different numbers of threads. Differences of 1e-7 in float32, from
    sums in another order, become a step of 1/127 where a value is between two integers.
    """
    if not expected.size:
        return True
    if expected.dtype.kind != "f":
        return bool((actual == expected).mean() > 0.5)
    not_padding = expected > -1e8
    error = np.square(actual - expected)[not_padding].sum()
    return bool(error <= _SIMILAR**2 * np.square(expected)[not_padding].sum())


def compare_answers(
    signature: str,
    exported: dict[str, Any],
    expected: dict[str, Any],
    repeatable: bool,
    same: Callable[[np.ndarray, np.ndarray], bool] = _equal,
) -> None:
    """Compares the outputs of an export with the task's.

    Args:
        signature: its name, for errors.
        exported: the export's outputs by name.
        expected: the task's outputs by name.
        repeatable: whether values are compared too; otherwise only names and shapes are.
        same: whether two arrays of one shape are equal.

    Raises:
        ExportError: if they differ.
    """
    if exported.keys() != expected.keys():
        raise ExportError(
            f"The signature {signature!r} returns {sorted(exported)}, the task {sorted(expected)}."
        )
    for name, value in expected.items():
        if exported[name].shape != value.shape:
            raise ExportError(
                f"The output {name!r} of {signature!r} has the shape {exported[name].shape}, "
                f"expected the task's {value.shape}."
            )
        if repeatable and not same(exported[name], value):
            raise ExportError(f"The output {name!r} of {signature!r} differs from the task's.")

"""Exports ``.onnx`` files that take token ids, for ONNX Runtime."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import bertfam_tf
from bertfam_tf import files
from bertfam_tf.data.errors import os_errors
from bertfam_tf.export.endpoints import edge_case_texts
from bertfam_tf.export.saved_model import ExportError, compare_answers
from bertfam_tf.models import unpadding
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.publish import INPUTS
from bertfam_tf.validation import in_range

_INSTALL = "pip install 'bertfam_tf[onnx]'"
# The first with LayerNormalization, and read by ONNX Runtime since version 1.12.
_OPSET, _LAST_OPSET = 17, 18
# A protocol buffer has at most 2 GiB.
_MOST_BYTES = 2**31 - 2**20


def export_onnx(task: Task, file: str | os.PathLike[str], *, opset: int = _OPSET) -> Path:
    """Writes an ``.onnx`` file that takes token ids and returns the task's numbers.

    The inputs have the names that transformers' tokenizers return: ``input_ids``,
    ``attention_mask`` (1 for tokens, 0 for padding) and, if the model reads them,
    ``token_type_ids``, int64 (batch, sequence) of any size. ``task.save_pretrained`` writes a
    tokenizer that returns them. The outputs are the numeric outputs of ``task.answer_ids``:
    classifiers ``scores``, float32 (batch, labels); taggers ``logits``, float32 (batch, sequence,
    tags); span QA ``start_logits`` and ``end_logits``; embedders ``embedding``. Labels, the task
    and ``max_length`` are in the file's metadata, as JSON.

    Before the file appears, ONNX Runtime runs it on the CPU, and its outputs are compared with the
    task's, with a tolerance of 1e-5.

    Args:
        task: a task. A classifier that is not configured for pairs and has seen no data yet is
            exported for single texts.
        file: a path that ends in ``.onnx``; an existing model is replaced.
        opset: the version of ONNX's operations, 17 or 18.

    Returns:
        The file.

    Raises:
        ValueError: if tf2onnx or onnxruntime is missing, an argument has an unsupported value, or
            the weights exceed the 2 GiB of a file in this format.
        ExportError: if ONNX lacks an operation, or the outputs differ from the task's.
        FileExistsError: if the file exists and is not a model in ONNX's format.
        OSError: if writing fails, for example because the disk is full; an existing file is kept.
    """
    target = Path(file)
    if target.suffix != ".onnx":
        raise ValueError(f"{target} does not end in .onnx.")
    in_range("opset", opset, at_least=_OPSET, at_most=_LAST_OPSET, integer=True)
    files.check_kind(target, "an ONNX model", b"\x08")
    tf2onnx, runtime = _packages()
    size = sum(weight.shape.num_elements() * 4 for weight in task.weights)
    if size > _MOST_BYTES:
        raise ValueError(
            f"The weights take {size / 2**30:.1f} GiB, and an ONNX file at most 2 GiB; export a "
            "SavedModel."
        )
    names = {name: INPUTS.get(name, name) for name in task.packed_specs}
    model = _converted(task, names, opset, tf2onnx)
    _describe(model, task)
    content = model.SerializeToString()
    _compare(content, task, names, runtime)
    with files.atomic(target) as path, os_errors(target):
        path.write_bytes(content)
    return target


def _packages() -> tuple[Any, Any]:
    try:
        # Only this function needs them.
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ValueError(
            f"ONNX exports need tf2onnx and onnxruntime ({error}): {_INSTALL}."
        ) from error
    return tf2onnx, onnxruntime


def _numbers(task: Task, packed: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    # ONNX has no operations that remove padding, whose outputs would be 0.
    with unpadding(False):
        outputs = task.answer_ids(packed)
    return {name: value for name, value in outputs.items() if value.dtype != tf.string}


def _converted(task: Task, names: dict[str, str], opset: int, tf2onnx: Any) -> Any:
    specs = [
        tf.TensorSpec(spec.shape, tf.int64, names[name]) for name, spec in task.packed_specs.items()
    ]

    def answer(*ids: tf.Tensor) -> dict[str, tf.Tensor]:
        pairs = zip(task.packed_specs.items(), ids, strict=True)
        return _numbers(task, {name: tf.cast(x, spec.dtype) for (name, spec), x in pairs})

    function = tf.function(answer, input_signature=specs, autograph=False)
    with _quiet():
        handlers: dict[str, Any] = {"Erfc": (_erfc, []), "Log1p": (_log1p, [])}
        model, _ = tf2onnx.convert.from_function(
            function, specs, opset=opset, custom_op_handlers=handlers
        )
    _embed_constants(model, function.get_concrete_function(), {spec.name for spec in specs})
    _check_operations(model, type(task).__name__)
    return model


def _embed_constants(model: Any, function: Any, inputs: set[str]) -> None:
    """Stores constants that the function captured, which tf2onnx makes inputs."""
    from onnx import numpy_helper

    captured = {
        placeholder.name: value
        for value, placeholder in function.graph.captures
        if value.dtype != tf.resource
    }
    for value in [tensor for tensor in model.graph.input if tensor.name not in inputs]:
        constant = captured[value.name].numpy()
        model.graph.initializer.append(numpy_helper.from_array(constant, value.name))
        model.graph.input.remove(value)


def _erfc(context: Any, node: Any, name: str, _: Any) -> Any:
    """Replaces TensorFlow's ``Erfc`` by 1 - erf, which ONNX has."""
    [values], [shape], [dtype] = node.input, node.output_shapes, node.output_dtypes
    context.remove_node(node.name)
    one = context.make_const(f"{name}_one", np.ones((), np.float32))
    erf = context.make_node("Erf", [values], shapes=[shape], dtypes=[dtype])
    return context.make_node(
        "Sub", [one.output[0], erf.output[0]], name=name, outputs=node.output,
        shapes=[shape], dtypes=[dtype],
    )  # fmt: skip


def _log1p(context: Any, node: Any, name: str, _: Any) -> Any:
    """Replaces TensorFlow's ``Log1p`` by the logarithm of 1 + x."""
    [values], [shape], [dtype] = node.input, node.output_shapes, node.output_dtypes
    context.remove_node(node.name)
    one = context.make_const(f"{name}_one", np.ones((), np.float32))
    total = context.make_node("Add", [one.output[0], values], shapes=[shape], dtypes=[dtype])
    return context.make_node(
        "Log", [total.output[0]], name=name, outputs=node.output, shapes=[shape], dtypes=[dtype]
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences tf2onnx, whose errors about operations are raised as one error."""
    logger = logging.getLogger("tf2onnx")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _check_operations(model: Any, task: str) -> None:
    import onnx

    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    missing = sorted({node.op_type for node in _nodes(model.graph)} - known)
    if missing:
        raise ExportError(f"ONNX has no {', '.join(missing)}, which this {task} needs.")


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _describe(model: Any, task: Task) -> None:
    """Names the dimensions of inputs and outputs, and adds metadata."""
    for value, names in [
        *((tensor, ("batch", "sequence")) for tensor in model.graph.input),
        *((tensor, ("batch",)) for tensor in model.graph.output),
    ]:
        dims = value.type.tensor_type.shape.dim
        for dim, name in zip(dims, names, strict=False):
            if not dim.HasField("dim_value"):
                dim.dim_param = name
    described = {
        "task": type(task).__name__,
        "family": task.backbone.family,
        "labels": list(task.class_names) if task.class_names else None,
        "max_length": task.max_length,
        "bertfam_tf": bertfam_tf.__version__,
    }
    for key, described_value in described.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(described_value, ensure_ascii=False)


def _compare(content: bytes, task: Task, names: dict[str, str], runtime: Any) -> None:
    """Compares the answers of ONNX Runtime with the task's: for a batch, and for single texts."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of types that are not public
        raise ExportError(f"ONNX Runtime does not load the export: {error}") from error
    inputs, outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
    texts = edge_case_texts(task)
    rows = len(next(iter(texts.values())))
    for chosen in (slice(None), *(slice(row, row + 1) for row in range(rows))):
        packed = task.encode({name: tf.constant(values[chosen]) for name, values in texts.items()})
        packed = {name: packed[name] for name in names}
        expected = {name: value.numpy() for name, value in _numbers(task, packed).items()}
        feed = {names[name]: np.asarray(value, np.int64) for name, value in packed.items()}
        try:
            # An input that no operation reads is not in the graph.
            answers = session.run(outputs, {tensor.name: feed[tensor.name] for tensor in inputs})
        except Exception as error:  # of types that are not public
            raise ExportError(f"ONNX Runtime does not run the export: {error}") from error
        compare_answers("ids", dict(zip(outputs, answers, strict=True)), expected, True)

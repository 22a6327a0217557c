"""``.tflite`` files for phones, of the built-in operations alone and tensorflow-text's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from bertfam_tf import files
from bertfam_tf.export.endpoints import hard_texts
from bertfam_tf.export.mobile_apis import describe
from bertfam_tf.export.saved_model import ExportError, compare_answers, write_functions
from bertfam_tf.tasks import Task
from bertfam_tf.text import Packer, Tokenizer

Inputs = Literal["text", "ids"]
Quantization = Literal["fp16", "int8", "int8-full"]
Texts: TypeAlias = dict[str, np.ndarray]

# What mobile APIs call the packed rows.
ROWS = {"ids": "token_ids", "mask": "padding_mask", "segment_ids": "segment_ids"}
# Of tensorflow-text's TFLite kernels, those that tokenizers here run.
_KERNELS = {
    "FastBertNormalize",
    "FastWordpieceTokenizeWithOffsets",
    "TFText>ByteSplitWithOffsets",
    "TFText>ByteSplitByOffsets",
    "TFText>FastSentencepieceTokenize",
}
# What "int8-full" quantizes. With one scale for all of an activation, which masked scores of -1e9
# and the few large values of residuals stretch, other operations lose too much (arXiv 2109.12948).
_IN_INT8 = {"FULLY_CONNECTED", "GATHER"}
_BUILTIN = {n: name for name, n in vars(schema.BuiltinOperator).items() if name.isupper()}


def export_tflite(
    task: Task,
    file: str | os.PathLike[str],
    *,
    inputs: Inputs = "text",
    quantize: Quantization | None = None,
    length: int | None = None,
    calibration: Iterable[Any] | None = None,
) -> Path:
    """Writes a ``.tflite`` file for LiteRT, without operations of TensorFlow (Flex).

    With ``inputs="text"`` the tokenizer is inside. The signature takes the task's texts, string
    (batch,), and answers as the SavedModel does; a row is as long as its text. The runtime needs
    tensorflow-text's kernels for TFLite (in Python, its ``tflite_registrar``). White space before
    a special token that stands in a text stays, where the tokenizer would take it away.

    With ``inputs="ids"`` it takes ``ids``, ``mask`` (1 at tokens, 0 at padding) and
    ``segment_ids``, int32 (1, length), of models without segments too, as MediaPipe and the Task
    Library have it, and answers with the numbers of ``task.answer_ids``: classifiers with
    ``probability``, float32 (1, labels), taggers with ``logits``, float32 (1, length, tags), span
    QA with ``start_logits`` and ``end_logits``, float32 (1, length). Only built-in operations are
    used. Metadata name tensors and labels, and bring the tokenizer where those APIs' own reads
    texts as the task does (``mobile_apis.obstacle``); where not, a warning says why.

    What was written is run again by LiteRT and compared with the task, within 1e-5 where nothing
    is quantized, before the file appears.

    Args:
        task: a task; a classifier that has seen no data yet and was not told is taken to classify
            single texts.
        file: ends in ``.tflite``; one that exists is replaced.
        inputs: what it takes.
        quantize: ``"fp16"`` stores weights in half the bytes; ``"int8"`` stores matrices in a
            quarter and multiplies in int8, with scales for the other side that it takes from each
            input (dynamic range); ``"int8-full"`` takes these scales from ``calibration``. Span QA
            has no such file: its logits of -1e9 at padding come into the scales.
        length: most tokens of a row; None for the task's ``max_length``. Of ids every row has so
            many, and takes the time of so many.
        calibration: some hundred texts as the task will see them (or tuples, of tasks with several
            in a row), for ``"int8-full"``.

    Returns:
        The file.

    Raises:
        ValueError: for another value of an argument, and with ``"text"`` for a tokenizer without
            TFLite kernels, or a task whose answers are made of the text's words.
        ExportError: when it needs an operation that LiteRT has not, or answers differently.
        OSError: when writing fails, on a full disk say; a file that exists is unchanged then.
    """
    target = Path(file)
    length = task.max_length if length is None else length
    _check(task, target, inputs, quantize, length)
    graph = _of_text(task, length) if inputs == "text" else _of_ids(task, length)
    samples = [graph.feed(row) for row in _calibration(task, quantize, inputs, calibration)]
    with files.whole(target) as path:
        content = _converted(graph, task, quantize, samples, path.with_name("saved_model"))
        if inputs == "ids":
            content = describe(content, task, length=length)
        _check_operations(content, _KERNELS if inputs == "text" else set())
        _compare(content, graph, hard_texts(task), quantize)
        path.write_bytes(content)
    return target


def interpreter(content: bytes, num_threads: int = 1) -> Any:
    """LiteRT's interpreter with tensorflow-text's kernels beside its own.

    Args:
        content: of a ``.tflite`` file.
        num_threads: of its kernels.
    """
    # Both take their time to be imported, which other exports need not wait for.
    import tensorflow_text
    from ai_edge_litert.interpreter import InterpreterWithCustomOps

    return InterpreterWithCustomOps(
        model_content=content,
        num_threads=num_threads,
        custom_op_registerers=tensorflow_text.tflite_registrar.SELECT_TFTEXT_OPS,
    )


class IdPacker:
    """Texts as the rows of ids that a file with ``inputs="ids"`` takes.

    Args:
        tokenizer: of the task.
        length: of the file's rows.
    """

    def __init__(self, tokenizer: Tokenizer, length: int):
        self.tokenizer = tokenizer
        self.length = length
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def __call__(self, *texts: Any) -> dict[str, np.ndarray]:
        """Packs one column of strings (rows,) or two: ``ids``, ``mask`` and ``segment_ids``, int32
        (rows, length)."""
        return self.pad(self._packer([self.tokenizer.tokenize(tf.constant(x)) for x in texts]))

    def pad(self, packed: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """The same of rows (rows, longest) that a ``Packer``, or a task, has packed."""
        frame = self._packer.frame
        missing = self.length - packed["token_ids"].shape[1]
        sides = [[0, 0], [missing, 0] if frame.layout.pad_left else [0, missing]]
        return {
            name: np.pad(packed[of], sides, constant_values=frame.padding[of])
            for name, of in ROWS.items()
        }


class _Graph(NamedTuple):
    """What is converted.

    Fields:
        function: a concrete function of tensors by name.
        feed: from texts of some rows, by name, to what the file takes.
    """

    function: Any
    feed: Callable[[Texts], Texts]


def _of_text(task: Task, length: int) -> _Graph:
    tokenizer = _with_kernels(task.tokenizer)
    packer = Packer(tokenizer.layout, tokenizer.special_ids, length)
    specs = task.feature_specs

    def answer(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        return task.answer_ids(packer([tokenizer.tokenize(text) for text in texts]))

    return _Graph(_traced(answer, specs.values()), lambda texts: texts)


def _of_ids(task: Task, length: int) -> _Graph:
    packer = IdPacker(task.tokenizer, length)
    taken = task.packed_specs

    def answer(ids: tf.Tensor, mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        # Mobile APIs have three inputs; one that is never read would go.
        ids = tf.maximum(ids, tf.minimum(segment_ids, 0))
        rows = dict(zip(ROWS.values(), (ids, mask, segment_ids), strict=True))
        found = task.answer_ids({name: rows[name] for name in taken})
        return {
            "probability" if name == "scores" else name: value
            for name, value in found.items()
            if value.dtype != tf.string
        }

    specs = [tf.TensorSpec([1, length], tf.int32, name) for name in ROWS]
    return _Graph(_traced(answer, specs), lambda texts: packer(*texts.values()))


def _traced(function: Callable, specs: Iterable[tf.TensorSpec]) -> Any:
    return tf.function(function, list(specs), autograph=False).get_concrete_function()


def _with_kernels(tokenizer: Tokenizer) -> Tokenizer:
    # To find white space before a special token takes a regular expression.
    config = tokenizer.get_config()
    if not config.get("lstrip_tokens"):
        return tokenizer
    return tokenizer.from_config({**config, "lstrip_tokens": ()})


def _check(task: Task, target: Path, inputs: str, quantize: str | None, length: int) -> None:
    choices = [("inputs", inputs, get_args(Inputs))]
    choices += [("quantize", quantize, get_args(Quantization))] if quantize is not None else []
    for name, value, known in choices:
        if value not in known:
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}.")
    if target.suffix != ".tflite":
        raise ValueError(f"{target} does not end in .tflite, which mobile APIs expect.")
    if not 1 <= length <= task.max_length:
        raise ValueError(f"length is {length}, expected 1 to the task's {task.max_length}.")
    if any(spec.shape.rank != 1 for spec in task.feature_specs.values()):
        raise ValueError(
            f"{type(task).__name__} has several texts of a kind in a row; a .tflite has one."
        )
    if inputs == "ids":
        return
    if not task.tokenizer.has_tflite_kernels:
        raise ValueError(
            f"There are no TFLite kernels for {type(task.tokenizer).__name__}; inputs='ids' leaves "
            "it to the app."
        )
    if type(task).answer is not Task.answer:
        raise ValueError(
            f"Answers of {type(task).__name__} are made of the text's words, for which TFLite has "
            "no kernels; inputs='ids' gives the numbers that they are made from."
        )


def _calibration(
    task: Task, quantize: str | None, inputs: str, texts: Iterable[Any] | None
) -> Iterator[Texts]:
    if quantize != "int8-full":
        if texts is not None:
            raise ValueError(f"calibration is for quantize='int8-full', not {quantize!r}.")
        return
    if inputs != "ids":
        raise ValueError(
            "TFLite's calibration runs without tensorflow-text's kernels; quantize='int8-full' "
            "needs inputs='ids'."
        )
    rows = list(texts or ())
    if not rows:
        raise ValueError("quantize='int8-full' needs calibration, some hundred typical texts.")
    names = task.feature_names
    for row in rows:
        parts = row if isinstance(row, tuple) else (row,)
        if len(parts) != len(names):
            raise ValueError(f"A row of calibration has {len(parts)} texts, expected {names}.")
        yield {name: np.array([part]) for name, part in zip(names, parts, strict=True)}


def _converted(
    graph: _Graph, task: Task, quantize: str | None, samples: Sequence[Texts], directory: Path
) -> bytes:
    write_functions({"serving_default": graph.function}, task.tokenizer, directory)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(directory))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = True
    if quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "fp16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize != "int8-full":
        return converter.convert()
    converter.representative_dataset = lambda: iter(samples)
    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=sorted(set(_BUILTIN.values()) - _IN_INT8)
    )
    return tf.lite.experimental.QuantizationDebugger(
        converter=converter, debug_dataset=lambda: iter(samples), debug_options=options
    ).get_nondebug_quantized_model()


def operations(content: bytes) -> tuple[set[str], set[str]]:
    """Names of the built-in operations of a ``.tflite`` file, and of others."""
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    # Numbers that need more than a byte stand in the later of the two fields.
    builtin = {_BUILTIN[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes}
    custom = {code.CustomCode().decode() for code in codes if code.CustomCode() is not None}
    return builtin - {"CUSTOM"}, custom


def _check_operations(content: bytes, allowed: set[str]) -> None:
    unknown = operations(content)[1] - allowed
    if unknown:
        raise ExportError(
            f"LiteRT has no kernels for {', '.join(sorted(unknown))}, which this task would need."
        )


def _compare(content: bytes, graph: _Graph, texts: Texts, quantize: str | None) -> None:
    run = interpreter(content).get_signature_runner()
    for row in range(len(next(iter(texts.values())))):
        asked = graph.feed({name: values[row : row + 1] for name, values in texts.items()})
        expected = graph.function(**{name: tf.constant(value) for name, value in asked.items()})
        expected = {name: value.numpy() for name, value in expected.items()}
        found = run(**asked)
        compare_answers("serving_default", found, expected, repeatable=quantize is None)
        for name, value in expected.items():
            if quantize and value.dtype == np.float32 and not _near(found[name], value):
                raise ExportError(
                    f"With quantize={quantize!r} the {name!r} of the export has nothing to do with "
                    "the task's."
                )


def _near(found: np.ndarray, expected: np.ndarray) -> bool:
    # Logits of padding are -1e9.
    real = expected > -1e8
    size = np.abs(expected[real]).max(initial=1e-3)
    return bool((np.abs(found[real] - expected[real]) < size).all())

"""Exports ``.tflite`` files that use built-in operations and tensorflow-text's kernels only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

from bertfam_tf import files
from bertfam_tf.export.calibration import calibration_examples
from bertfam_tf.export.endpoints import edge_case_texts
from bertfam_tf.export.mobile_apis import add_metadata
from bertfam_tf.export.native_logs import known_messages_hidden
from bertfam_tf.export.saved_model import ExportError, compare_answers, write_functions
from bertfam_tf.models import unpadding
from bertfam_tf.tasks import Task
from bertfam_tf.text import Packer, Tokenizer
from bertfam_tf.validation import one_of

Inputs = Literal["text", "ids"]
Quantization = Literal["fp16", "int8", "int8-full"]
Texts: TypeAlias = dict[str, np.ndarray]

# Inputs of the mobile APIs, and the packed input that each of them is.
MOBILE_INPUTS = {"ids": "token_ids", "mask": "padding_mask", "segment_ids": "segment_ids"}
# tensorflow-text's TFLite kernels that the tokenizers use.
_KERNELS = {
    "FastBertNormalize",
    "FastWordpieceTokenizeWithOffsets",
    "TFText>ByteSplitWithOffsets",
    "TFText>ByteSplitByOffsets",
    "TFText>FastSentencepieceTokenize",
}
# Operations that "int8-full" quantizes. Each activation has a single scale, which masked scores of
# -1e9 and outliers in residuals stretch; other operations lose too much (arXiv 2109.12948).
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
    """Writes a ``.tflite`` file for LiteRT, without TensorFlow (Flex) operations.

    With ``inputs="text"`` the file contains the tokenizer. The signature takes the task's texts,
    string (batch,), and returns the SavedModel's outputs; sequences are as long as the longest
    text. The runtime needs tensorflow-text's TFLite kernels (in Python, its ``tflite_registrar``).
    White space before a special token in the text is kept, even if the tokenizer would strip it.

    With ``inputs="ids"`` the file takes ``ids``, ``mask`` (1 for tokens, 0 for padding) and
    ``segment_ids``, int32 (1, length), because MediaPipe and the Task Library pass all three to
    every model. It returns the numeric outputs of ``task.answer_ids``: classifiers ``probability``,
    float32 (1, labels), also for several labels per text, without the labels chosen by the
    threshold; taggers ``logits``, float32 (1, length, tags); span QA ``start_logits`` and
    ``end_logits``, float32 (1, length). It uses built-in operations only. Its metadata name the
    tensors and labels, and include the tokenizer if the APIs tokenize as the task does
    (``mobile_apis.incompatibility``); otherwise a warning gives the reason.

    Before the file appears, LiteRT runs it, and its outputs are compared with the task's, with a
    tolerance of 1e-5 unless it is quantized.

    Args:
        task: a task. A classifier that is not configured for pairs and has seen no data yet is
            exported for single texts.
        file: a path that ends in ``.tflite``; an existing model is replaced.
        inputs: ``"text"`` or ``"ids"``.
        quantize: ``"fp16"`` stores weights as float16. ``"int8"`` (dynamic range) stores matrices
            as int8 and multiplies in int8, with activation scales computed for each input.
            ``"int8-full"`` takes activation scales from ``calibration``; span QA does not support
            it, because its logits of -1e9 at padding would dominate the scales, and neither do
            recurrent layers.
        length: the longest sequence in tokens; None for the task's ``max_length``. With
            ``inputs="ids"`` all sequences have this length and take the time of it.
        calibration: a few hundred typical texts (tuples for tasks with several texts per example),
            for ``"int8-full"``.

    Returns:
        The file.

    Raises:
        ValueError: if an argument has an unsupported value, or the task does not compute in
            float32; or, with ``"text"``, the tokenizer has no TFLite kernels or the task's outputs
            contain words of the text.
        ExportError: if LiteRT lacks an operation, or the outputs differ from the task's.
        FileExistsError: if the file exists and is not a model in TFLite's format.
        OSError: if writing fails, for example because the disk is full; an existing file is kept.
    """
    target = Path(file)
    files.check_kind(target, "a TFLite model", b"TFL3", start=4)
    length = task.max_length if length is None else length
    _check(task, target, inputs, quantize, length)
    graph = _text_graph(task, length) if inputs == "text" else _ids_graph(task, length)
    if quantize == "int8-full" and _has_loops(graph.function):
        raise ValueError(
            f"TFLite's calibration cannot run the loops of {task.backbone.family}'s recurrent "
            "layers; quantize='int8' needs no calibration."
        )
    examples = _calibration_examples(task, quantize, inputs, calibration)
    samples = [graph.feed(example) for example in examples]
    with files.atomic(target) as path:
        content = _convert(graph, task, quantize, samples, path.with_name("saved_model"))
        if inputs == "ids":
            content = add_metadata(content, task, length=length)
        _check_operations(content, _KERNELS if inputs == "text" else set())
        _compare(content, graph, edge_case_texts(task), quantize)
        path.write_bytes(content)
    return target


def interpreter(content: bytes, num_threads: int = 1) -> Any:
    """Returns LiteRT's interpreter with its own and tensorflow-text's kernels.

    Args:
        content: the content of a ``.tflite`` file.
        num_threads: the number of threads of the kernels.
    """
    # Both imports are slow, and only this function needs them.
    import tensorflow_text
    from ai_edge_litert.interpreter import InterpreterWithCustomOps

    with known_messages_hidden():
        created = InterpreterWithCustomOps(
            model_content=content,
            num_threads=num_threads,
            custom_op_registerers=tensorflow_text.tflite_registrar.SELECT_TFTEXT_OPS,
        )
        created.allocate_tensors()  # creates the delegate, which is a message
    return created


class IdPacker:
    """Tokenizes and packs texts as a file with ``inputs="ids"`` takes them.

    It adds the tokenizer's special tokens. A ``CausalLM`` reads texts without them: use ``pad`` on
    the result of ``task.encode``.

    Args:
        tokenizer: the task's tokenizer.
        length: the sequence length of the file.
    """

    def __init__(self, tokenizer: Tokenizer, length: int):
        self.tokenizer = tokenizer
        self.length = length
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def __call__(self, *texts: Any) -> dict[str, np.ndarray]:
        """Packs texts, or texts and text pairs, each string (batch,).

        Returns:
            ``ids``, ``mask`` and ``segment_ids``, int32 (batch, length); ``ids`` with a last axis
            of characters where the tokenizer has one.
        """
        return self.pad(self._packer([self.tokenizer.tokenize(tf.constant(x)) for x in texts]))

    def pad(self, packed: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Pads the output of a ``Packer`` or a task, (batch, longest), to (batch, length)."""
        frame = self._packer.frame
        missing = self.length - packed["token_ids"].shape[1]
        side = [missing, 0] if frame.layout.pad_left else [0, missing]
        return {
            name: _padded(np.asarray(packed[packed_name]), side, frame.padding[packed_name])
            for name, packed_name in MOBILE_INPUTS.items()
        }


def _padded(rows: np.ndarray, side: list[int], value: Any) -> np.ndarray:
    """Pads (batch, length, …) with a value, or with a row for its last axis."""
    filler = np.full((len(rows), sum(side), *rows.shape[2:]), value, rows.dtype)
    return np.concatenate([filler, rows] if side[0] else [rows, filler], axis=1)


class _Graph(NamedTuple):
    """The graph to convert.

    Fields:
        function: a concrete function that takes tensors by name.
        feed: converts texts by name, (batch,), to the inputs of the function.
    """

    function: Any
    feed: Callable[[Texts], Texts]


def _text_graph(task: Task, length: int) -> _Graph:
    tokenizer = _without_lstrip(task.tokenizer)
    packer = Packer(tokenizer.layout, tokenizer.special_ids, length)
    specs = task.feature_specs

    def answer(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        return task.answer_ids(packer([tokenizer.tokenize(text) for text in texts]))

    return _Graph(_traced(answer, specs.values()), lambda texts: texts)


def _ids_graph(task: Task, length: int) -> _Graph:
    packer = IdPacker(task.tokenizer, length)
    used, shape = task.packed_specs, task.tokenizer.token_shape

    def answer(ids: tf.Tensor, mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        # Mobile APIs need three inputs; the converter would remove one that nothing reads.
        unread = tf.reshape(segment_ids, [1, length, *[1] * len(shape)])
        ids = tf.maximum(ids, tf.minimum(unread, 0))
        rows = dict(zip(MOBILE_INPUTS.values(), (ids, mask, segment_ids), strict=True))
        outputs = task.answer_ids({name: rows[name] for name in used})
        # Labels chosen by a threshold are left out too: the APIs read one tensor of scores.
        return {
            "probability" if name == "scores" else name: value
            for name, value in outputs.items()
            if value.dtype not in (tf.string, tf.bool)
        }

    specs = [
        tf.TensorSpec([1, length, *(shape if name == "ids" else ())], tf.int32, name)
        for name in MOBILE_INPUTS
    ]
    return _Graph(_traced(answer, specs), lambda texts: packer(*texts.values()))


def _traced(function: Callable, specs: Iterable[tf.TensorSpec]) -> Any:
    # Phones have kernels for fixed shapes.
    with unpadding(False):
        return tf.function(function, list(specs), autograph=False).get_concrete_function()


def _has_loops(function: Any) -> bool:
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
    return any(node.op in ("While", "StatelessWhile") for node in nodes)


def _without_lstrip(tokenizer: Tokenizer) -> Tokenizer:
    # Stripping white space before special tokens needs regular expressions; TFLite has none.
    # Special tokens in normalized text are found only as they are written.
    config = tokenizer.get_config()
    without = {name: () for name in ("lstrip_tokens", "normalized_tokens") if config.get(name)}
    return tokenizer.from_config({**config, **without}) if without else tokenizer


def _check(task: Task, target: Path, inputs: str, quantize: str | None, length: int) -> None:
    one_of("inputs", inputs, get_args(Inputs))
    if quantize is not None:
        one_of("quantize", quantize, get_args(Quantization))
    if target.suffix != ".tflite":
        raise ValueError(f"{target} does not end in .tflite, which mobile APIs expect.")
    own = task.backbone.compute_dtype
    if own != "float32":
        raise ValueError(
            f"A .tflite computes in float32, this task in {own}: save it, and load it with Keras' "
            "dtype policy float32."
        )
    if not 1 <= length <= task.max_length:
        raise ValueError(f"length must be from 1 to the task's {task.max_length}, got {length}.")
    specs = [*task.feature_specs.values(), task.packed_specs["padding_mask"]]
    if any(spec.shape.rank != (1 if spec.dtype == tf.string else 2) for spec in specs):
        raise ValueError(
            f"{type(task).__name__} takes a list of texts per example; a .tflite takes one text."
        )
    if not task.packed_specs.keys() <= set(MOBILE_INPUTS.values()):
        raise ValueError("Mobile APIs pass no pooling mask; include_prompt must be true.")
    if inputs == "ids":
        return
    if getattr(task.components.preprocessor, "prompt", ""):
        raise ValueError(
            "TFLite has no kernel that puts a prompt before a text; default_prompt must be ''."
        )
    if not task.tokenizer.has_tflite_kernels:
        raise ValueError(
            f"There are no TFLite kernels for {type(task.tokenizer).__name__}; with inputs='ids' "
            "the app tokenizes."
        )
    if not task.answers_from_ids:
        raise ValueError(
            f"The outputs of {type(task).__name__} contain words of the text, for which TFLite has "
            "no kernels; with inputs='ids' the outputs are numbers."
        )


def _calibration_examples(
    task: Task, quantize: str | None, inputs: str, texts: Iterable[Any] | None
) -> Iterator[Texts]:
    if quantize != "int8-full":
        if texts is not None:
            raise ValueError(
                f"calibration is only for quantize='int8-full', got quantize={quantize!r}."
            )
        return
    if inputs != "ids":
        raise ValueError(
            "TFLite's calibration runs without tensorflow-text's kernels; quantize='int8-full' "
            "needs inputs='ids'."
        )
    yield from calibration_examples(task, texts, "quantize='int8-full'")


def _convert(
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
        with known_messages_hidden():
            return converter.convert()
    converter.representative_dataset = lambda: iter(samples)
    options = tf.lite.experimental.QuantizationDebugOptions(
        denylisted_ops=sorted(set(_BUILTIN.values()) - _IN_INT8)
    )
    with known_messages_hidden():
        return tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=lambda: iter(samples), debug_options=options
        ).get_nondebug_quantized_model()


def operations(content: bytes) -> tuple[set[str], set[str]]:
    """Returns the names of the built-in and of the custom operations of a ``.tflite`` file."""
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    # Codes above 127 are in the newer of the two fields only.
    builtin = {_BUILTIN[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())] for code in codes}
    custom = {code.CustomCode().decode() for code in codes if code.CustomCode() is not None}
    return builtin - {"CUSTOM"}, custom


def _check_operations(content: bytes, allowed: set[str]) -> None:
    unknown = operations(content)[1] - allowed
    if unknown:
        raise ExportError(
            f"LiteRT has no kernels for {', '.join(sorted(unknown))}, which this task needs."
        )


def _compare(content: bytes, graph: _Graph, texts: Texts, quantize: str | None) -> None:
    run = interpreter(content).get_signature_runner()
    for row in range(len(next(iter(texts.values())))):
        inputs = graph.feed({name: values[row : row + 1] for name, values in texts.items()})
        expected = graph.function(**{name: tf.constant(value) for name, value in inputs.items()})
        expected = {name: value.numpy() for name, value in expected.items()}
        actual = run(**inputs)
        compare_answers("serving_default", actual, expected, repeatable=quantize is None)
        for name, value in expected.items():
            if quantize and value.dtype == np.float32 and not _roughly_equal(actual[name], value):
                raise ExportError(
                    f"With quantize={quantize!r} the output {name!r} is unrelated to the task's."
                )


def _roughly_equal(actual: np.ndarray, expected: np.ndarray) -> bool:
    not_padding = expected > -1e8  # logits of padding are -1e9
    scale = np.abs(expected[not_padding]).max(initial=1e-3)
    return bool((np.abs(actual[not_padding] - expected[not_padding]) < scale).all())

"""Converts the outputs of any exported task into answers that the web page can show.

The names of the outputs identify the task: an answer in its context, spans with types, words with
tags, scores of labels, a single score. Other outputs are shown as names and values.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, ServableLike
from bertfam_tf.export.runtime.status import ServingError, invalid

_ENTITIES, _CLASSIFY, _ATTENTION = "entities", "classify", "attention"
_PREDICT = "tensorflow/serving/predict"
_NO_TAG = "O"
_MAX_CELLS = 20


class TextPart(NamedTuple):
    """A part of a text; it is highlighted if it has a label."""

    text: str
    label: str = ""
    score: float = 0.0


class MarkedText(NamedTuple):
    """A text with highlighted parts; the parts concatenated are the text."""

    parts: list[TextPart]


class Scores(NamedTuple):
    """Names with scores from 0 to 1, in descending order."""

    title: str
    items: list[tuple[str, float]]


class NamedValue(NamedTuple):
    """A name and its value."""

    name: str
    value: str


Answer = list[MarkedText | Scores | NamedValue]


class Field(NamedTuple):
    """An input: a text, or a list with a text on each line if ``lines`` is true."""

    name: str
    lines: bool


def questions(servable: ServableLike) -> list[str]:
    """Returns the signatures that the page offers: ``serving_default``, or one per task.

    Raises:
        ServingError: INVALID_ARGUMENT for a model without a signature that takes texts alone.
    """
    if DEFAULT_SIGNATURE in servable.signatures:
        return [DEFAULT_SIGNATURE]
    names = []
    for name, definition in sorted(servable.signatures.items()):
        base, _, kind = name.rpartition("_")
        views = kind in (_ENTITIES, _ATTENTION) and base in servable.signatures
        texts = all(info.dtype == tf.string.as_datatype_enum for info in definition.inputs.values())
        if texts and definition.method_name == _PREDICT and not views:
            names.append(name)
    if not names:
        raise invalid("The model has no signature that takes texts.")
    return names


def input_fields(servable: ServableLike, question: str = DEFAULT_SIGNATURE) -> list[Field]:
    """Returns the inputs of a signature, in reading order.

    Raises:
        ServingError: INVALID_ARGUMENT for a model with inputs that are not texts.
    """
    definition = servable.signatures.get(question)
    if definition is None:
        raise invalid(f"The model has no signature {question}.")
    fields = []
    for name in sorted(definition.inputs, key=_reading_order):
        info = definition.inputs[name]
        rank = len(info.tensor_shape.dim)
        if info.dtype != tf.string.as_datatype_enum or rank not in (1, 2):
            raise invalid(f"The input {name} is not a text: this page supports texts only.")
        fields.append(Field(name, lines=rank == 2))
    return fields


def run_example(
    servable: ServableLike,
    texts: Mapping[str, str],
    question: str = DEFAULT_SIGNATURE,
    *,
    timeout_ms: int = 0,
) -> Answer:
    """Runs the model on one example and returns its answer.

    Args:
        servable: the model.
        texts: a text for each field of ``input_fields``.
        question: one of ``questions``.
        timeout_ms: the same as for ``Servable.run``.

    Raises:
        ServingError: as ``input_fields`` and ``Servable.run``.
    """
    inputs = _inputs(servable, texts, question)
    entities = _view(question, _ENTITIES)
    name = entities if _has_inputs(servable, entities, inputs) else question
    outputs = {
        key: value[0]
        for key, value in servable.run(name, inputs, timeout_ms=timeout_ms).items()
        if value.ndim and len(value)
    }
    for needed, read in _READERS:
        if needed <= outputs.keys():
            return read(outputs, texts, _Labels(servable, texts, timeout_ms))
    return [NamedValue(key, _shown(value)) for key, value in sorted(outputs.items())]


def run_attention(
    servable: ServableLike,
    texts: Mapping[str, str],
    question: str = DEFAULT_SIGNATURE,
    *,
    timeout_ms: int = 0,
) -> tuple[list[str], list[np.ndarray]] | None:
    """Returns the tokens of one example and the attention of each layer (heads, queries, keys).

    Returns None for a model without the signature ``attention`` for these texts.

    Args:
        servable: the model.
        texts: a text for each field of ``input_fields``.
        question: one of ``questions``.
        timeout_ms: the same as for ``Servable.run``.

    Raises:
        ServingError: as ``input_fields`` and ``Servable.run``.
    """
    inputs, name = _inputs(servable, texts, question), _view(question, _ATTENTION)
    if not _has_inputs(servable, name, inputs):
        return None
    outputs = servable.run(name, inputs, timeout_ms=timeout_ms)
    if not {"tokens", "count", "attention"} <= outputs.keys():
        return None
    count = int(outputs["count"][0])
    layers = outputs["attention"][0][:, :, :count, :count]
    # Layers with fewer heads than others are padded with zeros.
    return (
        [_text(token) for token in outputs["tokens"][0][:count]],
        [layer[layer.any(axis=(1, 2))] for layer in layers],
    )


def _inputs(servable: ServableLike, texts: Mapping[str, str], question: str) -> dict[str, Any]:
    fields = input_fields(servable, question)
    return {field.name: _array(texts[field.name], field.lines) for field in fields}


def _view(question: str, kind: str) -> str:
    """The name of the signature with another view of a signature's answers."""
    return kind if question == DEFAULT_SIGNATURE else f"{question}_{kind}"


class _Labels(NamedTuple):
    """Looks up label names: only the signature for tf.Examples returns them with the scores."""

    servable: ServableLike
    texts: Mapping[str, str]
    timeout_ms: int

    def __call__(self, count: int) -> list[str]:
        plain = [f"label {i}" for i in range(count)]
        definition = self.servable.signatures.get(_CLASSIFY)
        if definition is None or set(definition.inputs) != {"inputs"}:
            return plain
        example = tf.train.Example()
        for name, text in self.texts.items():
            example.features.feature[name].bytes_list.value.append(_encode(text))
        try:
            classes = self.servable.run(
                _CLASSIFY,
                {"inputs": _strings([example.SerializeToString()])},
                timeout_ms=self.timeout_ms,
            ).get("classes")
        except ServingError:
            return plain
        if classes is None or classes.shape != (1, count):
            return plain
        return [_text(name) for name in classes[0]]


Outputs = dict[str, np.ndarray]
Reader = Callable[[Outputs, Mapping[str, str], _Labels], Answer]


def _read_answer(outputs: Outputs, texts: Mapping[str, str], _: _Labels) -> Answer:
    start, end, score = int(outputs["start"]), int(outputs["end"]), float(outputs["score"])
    answer: Answer = [
        NamedValue("answer", _text(outputs["answer"]) or "There is none in the context.")
    ]
    answer.append(_marked(texts["context"], [(start, end, "answer", score)]))
    if "n_best_answers" in outputs:
        candidates = zip(outputs["n_best_answers"], outputs["n_best_scores"], strict=True)
        items = [(_text(text), float(score)) for text, score in candidates if text]
        answer.append(Scores("Best answers", items))
    return answer


def _read_spans(outputs: Outputs, texts: Mapping[str, str], _: _Labels) -> Answer:
    return _spans(texts, *(outputs[name] for name in ("start", "end", "type", "score")))


def _read_words(outputs: Outputs, texts: Mapping[str, str], _: _Labels) -> Answer:
    return _spans(texts, *outputs["offsets"].T, outputs["tags"], outputs["scores"])


def _spans(texts: Mapping[str, str], *columns: np.ndarray) -> Answer:
    """The text with highlighted spans; the columns are starts, ends, labels and scores."""
    spans = [
        (int(start), int(end), _text(label), float(score))
        for start, end, label, score in zip(*columns, strict=True)
        if start >= 0 and _text(label) != _NO_TAG
    ]
    return [_marked(texts["text"], spans)]


def _read_choice(outputs: Outputs, texts: Mapping[str, str], _: _Labels) -> Answer:
    names = _lines(texts["choices"])
    return [
        NamedValue("choice", _text(outputs["text"])),
        _scores("Choices", names, outputs["scores"]),
    ]


def _read_label(outputs: Outputs, _: Mapping[str, str], labels: _Labels) -> Answer:
    label, scores = _text(outputs["label"]), outputs["scores"]
    names = labels(len(scores))
    names[int(np.argmax(scores))] = label
    return [NamedValue("label", label), _scores("Scores", names, scores)]


def _read_labels(outputs: Outputs, _: Mapping[str, str], labels: _Labels) -> Answer:
    scores, chosen = outputs["scores"], outputs["chosen"]
    names = labels(len(scores))
    picked = ", ".join(itertools.compress(names, chosen.tolist()))
    return [NamedValue("labels", picked or "none"), _scores("Scores", names, scores)]


def _read_score(outputs: Outputs, _: Mapping[str, str], __: _Labels) -> Answer:
    return [NamedValue("score", f"{float(outputs['score']):.4g}")]


# The first entry whose outputs all exist is used, so special tasks come before general ones.
_READERS: list[tuple[set[str], Reader]] = [
    ({"answer", "start", "end", "score"}, _read_answer),
    ({"type", "start", "end", "score"}, _read_spans),
    ({"tokens", "tags", "offsets", "scores"}, _read_words),
    ({"choice", "text", "scores"}, _read_choice),
    ({"label", "scores"}, _read_label),
    ({"chosen", "scores"}, _read_labels),
    ({"score"}, _read_score),
]


def _marked(text: str, spans: list[tuple[int, int, str, float]]) -> MarkedText:
    """Splits a text into parts; of overlapping spans, the first is highlighted."""
    text = _encode(text).decode()
    parts, at = [], 0
    for start, end, label, score in sorted(spans):
        if at <= start < end <= len(text):
            parts += [TextPart(text[at:start]), TextPart(text[start:end], label, score)]
            at = end
    return MarkedText([part for part in [*parts, TextPart(text[at:])] if part.text])


def _scores(title: str, names: list[str], scores: np.ndarray) -> Scores:
    items = zip(names, scores.astype(float).tolist(), strict=True)
    return Scores(title, sorted(items, key=lambda item: -item[1]))


def _has_inputs(servable: ServableLike, signature: str, inputs: Mapping[str, Any]) -> bool:
    definition: meta_graph_pb2.SignatureDef | None = servable.signatures.get(signature)
    return definition is not None and set(definition.inputs) == set(inputs)


def _reading_order(name: str) -> tuple[int, str]:
    first = ("question", "context", "query", "document", "text", "text_pair")
    return (first.index(name), "") if name in first else (len(first), name)


def _array(text: str, lines: bool) -> np.ndarray:
    if not lines:
        return _strings([_encode(text)])
    return _strings([_encode(line) for line in _lines(text)]).reshape(1, -1)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _strings(items: list[bytes]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _shown(value: Any) -> str:
    items = [value] if isinstance(value, bytes) else value.ravel().tolist()
    cells = [_cell(item) for item in items[:_MAX_CELLS]]
    rest = len(items) - len(cells)
    return ", ".join(cells) + (f", … and {rest} more" if rest else "")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)

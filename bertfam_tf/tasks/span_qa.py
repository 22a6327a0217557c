"""Answers that are parts of a document, as in SQuAD."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bertfam_tf import heads
from bertfam_tf.data.batching import Fields, batches, examples
from bertfam_tf.data.errors import MARK
from bertfam_tf.metrics import exact_match, f1
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import as_text
from bertfam_tf.tasks.pretrained import open_task
from bertfam_tf.tasks.windowed import WindowedTask
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.characters import Characters

_HEAD = "span"
_QUESTION, _CONTEXT = "question", "context"
_ANSWER, _START, _GOLD = "answer", "answer_start", "answers"
_MAX_LENGTH, _STRIDE, _MAX_QUESTION = 384, 128, 64
# Logits where no answer can be: far below any other, and no infinity, of which sums may be NaN.
_NOWHERE = -1e9
_SPACES = r"[\s\x{0B}\x{85}\pZ]+"


class SpanLoss(keras.losses.Loss):
    """Cross-entropy over the places of a window, the mean of an answer's start and its end.

    Padding is no place; the loss of transformers counts it, so that it depends on what else stands
    in a batch.

    Call:
        y_true: int32 (windows, 2), the places of the first piece and of the last.
        y_pred: logits (windows, length, 2).
    """

    def __init__(self, name: str = "span_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        by_place = keras.ops.transpose(y_pred, (0, 2, 1))
        losses = keras.ops.sparse_categorical_crossentropy(y_true, by_place, from_logits=True)
        return keras.ops.mean(losses, axis=-1)


def _both_right(y_true: Any, y_pred: Any) -> Any:
    right = keras.ops.equal(keras.ops.argmax(y_pred, axis=1), keras.ops.cast(y_true, "int64"))
    return keras.ops.cast(keras.ops.all(right, axis=-1), "float32")


class SpanQA(WindowedTask):
    """The part of a context that answers a question (BERT on SQuAD, arXiv 1810.04805).

    A context of any length is read in overlapping windows, and the answer is the best span of all
    of them: the sum of its start's and its end's logits is the highest, over every start in the
    window where that piece has most context, and every length up to ``max_answer``.

    Labels are a dict: ``"answer"``, strings, parts of the context, and ``"answer_start"``, their
    offsets in characters (code points), as in SQuAD's files; white space around an answer does not
    count. "" (and -1) is for questions without an answer. A window without the whole answer is
    trained to the place of the cls token, or to the first where the tokenizer's layout has none.
    ``evaluate`` reads ``"answers"`` too: all gold answers of each question, strings
    (rows, answers) padded with "", or a list of lists.

    With a ``null_threshold`` the answer is "" where a question seems to have none (SQuAD 2.0, arXiv
    1806.03822): where the lowest of the windows' scores for the cls token is more than that above
    the best span's. ``no_answer_score`` is that difference, ``metrics.best_threshold`` finds a
    good threshold, and ``null_threshold`` may be set at any time.

    Args:
        backbone: an encoder.
        tokenizer: its tokenizer.
        max_length: most tokens of a window; None for 384, or all positions if they are fewer.
        stride: by how many pieces windows overlap; None for 128, or a third of ``max_length`` if
            that is less.
        max_question: most pieces of a question, longer ones are cut; None for 64, or a sixth of
            ``max_length`` if that is less.
        max_answer: most pieces of an answer.
        n_best: how many answers to give for a question.
        null_threshold: None where every question has an answer.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    Raises:
        ValueError: for a ``max_answer`` or ``n_best`` below 1, a ``null_threshold`` that is NaN, a
            ``max_length`` that leaves no room for a context; and as ``Task`` raises it.
    """

    fields = Fields((_QUESTION, _CONTEXT), ())

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        stride: int | None = None,
        max_question: int | None = None,
        max_answer: int = 30,
        n_best: int = 5,
        null_threshold: float | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        for name, number in (("max_answer", max_answer), ("n_best", n_best)):
            if number < 1:
                raise ValueError(f"{name} is {number}, expected 1 or more.")
        if max_length is None:
            max_length = min(_MAX_LENGTH, backbone.max_length or _MAX_LENGTH)
        head = heads.build(backbone, _HEAD)
        inputs = backbone.row_inputs
        logits = head(backbone(inputs))
        here = keras.ops.expand_dims(inputs["padding_mask"] > 0, -1)
        super().__init__(
            inputs,
            keras.ops.where(here, logits, keras.ops.cast(_NOWHERE, logits.dtype)),
            backbone=backbone,
            reads=head.source,
            tokenizer=tokenizer,
            max_length=max_length,
            stride=min(_STRIDE, max_length // 3) if stride is None else stride,
            max_question=(
                min(_MAX_QUESTION, max_length // 6) if max_question is None else max_question
            ),
            language_id=language_id,
            **kwargs,
        )
        self.head = head
        self.max_answer = max_answer
        self.n_best = n_best
        self.null_threshold = null_threshold

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        max_length: int | None = None,
        stride: int | None = None,
        max_question: int | None = None,
        max_answer: int = 30,
        n_best: int = 5,
        null_threshold: float | None = None,
        language: str | int | None = None,
        **overrides: Any,
    ) -> SpanQA:
        """The task on a published checkpoint, ready to ``fit`` (or to ``predict``).

        Args:
            path: a directory, ``package:NAME``, or a hub id.
            max_length, stride, max_question, max_answer, n_best, null_threshold: as for the class.
            language: code of the texts' language, such as ``"de"``, for checkpoints of XLM, or its
                number where they name none; None for their tokenizer's.
            **overrides: config fields of the backbone, such as ``dropout=0.0``.

        The checkpoint's own head is used when it has one; otherwise the head starts at random, and
        a log line says so.

        Raises:
            CheckpointError: as ``bertfam_tf.load_backbone`` raises it.
            ValueError: as the class does, or when the tokenizer's files are not valid.
        """
        return open_task(
            cls,
            _HEAD,
            path,
            language=language,
            overrides=overrides,
            max_length=max_length,
            stride=stride,
            max_question=max_question,
            max_answer=max_answer,
            n_best=n_best,
            null_threshold=null_threshold,
        )

    @property
    def null_threshold(self) -> float | None:
        """How far above the best span no answer has to be; None where it never is the answer."""
        return self._null_threshold

    @null_threshold.setter
    def null_threshold(self, threshold: float | None) -> None:
        if threshold is not None and np.isnan(threshold):
            raise ValueError("null_threshold is NaN, expected a number or None.")
        self._null_threshold = None if threshold is None else float(threshold)
        self._forget_graphs()

    # From text to answers, as graphs ---------------------------------------------------------

    def read(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """As ``WindowedTask.read``, and ``null``, int32 (windows,), the place for no answer.

        Raises:
            ValueError: for a row with several questions or contexts.
        """
        for name in self.feature_names:
            if features[name].shape.rank != 1:
                raise ValueError(f"{name!r} has shape {features[name].shape}, expected one a row.")
        windows = super().read(features)
        return {**windows, "null": self._null_place(windows)}

    def _null_place(self, windows: dict[str, tf.Tensor]) -> tf.Tensor:
        """The cls token's place; a question may have its text in it too, so ids do not tell."""
        entries = self.tokenizer.layout.pair
        places = (windows["padding_mask"] > 0) & (windows["piece"] < 0)
        if "cls" not in entries:
            return _first(windows["padding_mask"] > 0)
        places &= windows["token_ids"] == self.tokenizer.special_ids["cls"]
        return _first(places) if entries.index("cls") < entries.index("a") else _last(places)

    def answer(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """String tensors (batch,) to answers: the whole way, as it is exported.

        Returns:
            ``answer`` string, ``start`` and ``end`` int32, its offsets in the context in
            characters, ``score`` float32, its probability among the best ones and, with a
            ``null_threshold``, no answer; ``no_answer_score`` float32, by how much the logits of no
            answer are above the best span's; all (batch,). ``n_best_answers``, ``n_best_starts``,
            ``n_best_ends`` and ``n_best_scores`` are the same of spans, best first, (batch,
            n_best), padded with "", -1, -1 and 0, and ``n_best_count``, int32 (batch,), how many
            there are. No answer is "", -1, -1; a context without pieces has no other, and a
            ``no_answer_score`` of 1e9.
        """
        return super().answer(_readable(features))

    def postprocess(self, outputs: Any, windows: Any = None, features: Any = None) -> Any:
        logits = tf.cast(outputs, tf.float32)
        context = features[_CONTEXT]
        best, first, behind = self._best_spans(logits, windows, tf.size(context))
        found = best > _NOWHERE / 2
        null = tf.reduce_sum(tf.gather(logits, windows["null"], axis=1, batch_dims=1), axis=-1)
        null = tf.math.unsorted_segment_min(null, windows["document"], tf.size(context))
        no_answer_score = tf.where(found[:, 0], null - best[:, 0], -_NOWHERE)

        chances = tf.where(found, best, _NOWHERE)
        if self.null_threshold is None:
            scores = tf.nn.softmax(chances)
            withheld = tf.zeros_like(found[:, 0])
        else:
            chances = tf.concat([chances, tf.expand_dims(null, 1)], 1)
            scores = tf.nn.softmax(chances)
            withheld = no_answer_score > self.null_threshold
        score = tf.where(withheld, scores[:, -1], scores[:, 0])
        scores = tf.where(found, scores[:, : self.n_best], 0.0)

        texts, starts, ends = _cut(context, first, behind, found)
        return {
            "answer": tf.where(withheld, "", texts[:, 0]),
            "start": tf.where(withheld, -1, starts[:, 0]),
            "end": tf.where(withheld, -1, ends[:, 0]),
            "score": tf.where(withheld | found[:, 0], score, 0.0),
            "no_answer_score": no_answer_score,
            "n_best_answers": texts,
            "n_best_starts": starts,
            "n_best_ends": ends,
            "n_best_scores": scores,
            "n_best_count": tf.reduce_sum(tf.cast(found, tf.int32), axis=1),
        }

    def answer_ids(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Packed rows to ``start_logits`` and ``end_logits``, float32 (batch, length)."""
        logits = tf.cast(self(self._model_inputs(inputs), training=False), tf.float32)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def _best_spans(
        self, logits: tf.Tensor, windows: dict[str, tf.Tensor], documents: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The documents' best spans.

        Returns:
            float32 (documents, n_best), sums of logits; and int32, first bytes and the bytes
            behind. ``_NOWHERE`` or less where there are not so many.
        """
        length = tf.shape(logits)[1]
        start = tf.where(windows["max_context"], logits[..., 0], _NOWHERE)
        end = tf.where(windows["piece"] >= 0, logits[..., 1], _NOWHERE)
        end = tf.pad(end, [[0, 0], [0, self.max_answer - 1]], constant_values=_NOWHERE)
        ends = tf.expand_dims(tf.range(length), 1) + tf.range(self.max_answer)
        sums = tf.expand_dims(start, 2) + tf.gather(end, ends, axis=1)
        sums = tf.reshape(sums, [tf.shape(sums)[0], length * self.max_answer])
        sums = tf.pad(sums, [[0, 0], [0, self.n_best]], constant_values=2 * _NOWHERE)
        best, place = tf.math.top_k(sums, self.n_best)
        place = tf.where(best > _NOWHERE / 2, place, 0)
        first = place // self.max_answer
        last = tf.minimum(first + place % self.max_answer, length - 1)

        def of_documents(values: tf.Tensor, default: Any) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_value_rowids(
                values, windows["document"], tf.cast(documents, tf.int32), validate=False
            )
            rows = ragged.to_tensor(default)
            most = tf.shape(rows)[1] * self.n_best
            return tf.reshape(rows, [documents, most])

        sums = of_documents(best, 2 * _NOWHERE)
        # A batch without documents has no windows to choose from.
        sums = tf.pad(sums, [[0, 0], [0, self.n_best]], constant_values=2 * _NOWHERE)
        best, place = tf.math.top_k(sums, self.n_best)

        def chosen(bytes_: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
            values = of_documents(tf.gather(bytes_, at, axis=1, batch_dims=1), 0)
            values = tf.pad(values, [[0, 0], [0, self.n_best]])
            return tf.gather(values, place, axis=1, batch_dims=1)

        return best, chosen(windows["start"], first), chosen(windows["end"], last)

    # Keras' verbs ----------------------------------------------------------------------------

    def predict(self, x: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """For each question ``{"answer", "start", "end", "score", "no_answer_score", "n_best"}``.

        ``answer`` is ``context[start:end]``, a str; bytes of a context that are not UTF-8 count as
        ``bytes.decode("utf-8", "replace")`` reads them. ``n_best`` is a list of ``{"answer",
        "start", "end", "score"}``, best first, as many as there are. What they are, ``answer``
        says. Arguments and errors as for ``Task.predict``.
        """
        return super().predict(x, **kwargs)

    def _answers(self, outputs: dict[str, tf.Tensor]) -> list[dict[str, Any]]:
        columns = {
            name: as_text(value) if value.dtype == tf.string else value.numpy().tolist()
            for name, value in outputs.items()
            if not name.startswith("n_best")
        }
        best = {
            name: outputs[f"n_best_{name}s"].numpy() for name in ("answer", "start", "end", "score")
        }
        rows = []
        for i in range(len(columns[_ANSWER])):
            parts = {name: values[i].tolist() for name, values in best.items()}
            parts["answer"] = as_text(parts["answer"])
            count = sum(start >= 0 for start in parts["start"])
            n_best = [{name: parts[name][j] for name in parts} for j in range(count)]
            rows.append({**{name: columns[name][i] for name in columns}, "n_best": n_best})
        return rows

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        verbose: Any = 0,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Exact match and F1 of SQuAD, in percent, on the best of each question's gold answers.

        Args:
            x, y: as for ``fit``; gold answers are ``y["answers"]`` where it is there, else
                ``y["answer"]``.
            batch_size: rows of a batch.
            verbose: 1 for a progress bar.
            return_dict: whether to return ``{"exact_match": …, "f1": …}`` instead of a list.
            **kwargs: none that a caller gives; Keras has some of its own.

        Raises:
            ValueError: for no data, or data in a shape that is not known.
        """
        # Keras' fit() comes back here with the data set that fit() made: its loss is asked for.
        if kwargs.get("_use_cached_eval_dataset"):
            kwargs.update(batch_size=batch_size, verbose=verbose, return_dict=return_dict)
            return super().evaluate(x, y, **kwargs)
        if kwargs:
            raise TypeError(f"evaluate() got an unexpected keyword argument {min(kwargs)!r}")
        x, y, _ = examples(x, y, None, self.fields)
        if y is not None:
            y = _arrays(y)
        stream = batches(x, y, batch_size=batch_size, fields=self.fields)
        if len(stream.element_spec) == 1:
            self._check_labels(None)
        scores: dict[str, list[float]] = {"exact_match": [], "f1": []}
        for outputs, (_, labels, *_) in self._run(self._compiled_answer, stream, verbose):
            for row, gold in zip(self._answers(outputs), _gold(labels), strict=True):
                scores["exact_match"].append(exact_match(row[_ANSWER], gold))
                scores["f1"].append(f1(row[_ANSWER], gold))
        result = {name: 100 * float(np.mean(values)) for name, values in scores.items()}
        return result if return_dict else list(result.values())

    def _compile_defaults(self) -> dict[str, Any]:
        return {
            "loss": SpanLoss(),
            "metrics": [keras.metrics.MeanMetricWrapper(_both_right, name="accuracy")],
        }

    def _options(self) -> dict[str, Any]:
        return {
            **super()._options(),
            "max_question": self.max_question,
            "max_answer": self.max_answer,
            "n_best": self.n_best,
            "null_threshold": self.null_threshold,
        }

    # Labels ----------------------------------------------------------------------------------

    def _encoded(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
        if y is not None:
            # Training takes the first gold answer alone.
            y = {name: values for name, values in _arrays(y).items() if name != _GOLD}
        return super()._encoded(x, y, *args, **kwargs)

    def _check_labels(self, y: Any) -> None:
        if y is None:
            raise ValueError("There are no answers beside the questions.")
        _check_names(y, _ANSWER, _START)

    def _encode(self, features: dict[str, tf.Tensor], *rest: Any) -> tuple:
        return super()._encode(_readable(features), *rest)

    def _targets(self, windows: dict[str, tf.Tensor], features: Any, labels: Any) -> tf.Tensor:
        """Places of the first piece of the answer and of its last, int32 (windows, 2)."""
        _check_names(labels, _ANSWER, _START)
        answer, start = labels[_ANSWER], labels[_START]
        if answer.dtype != tf.string or not start.dtype.is_integer:
            raise ValueError(
                f"{_ANSWER!r} and {_START!r} are {answer.dtype.name} and {start.dtype.name}, "
                "expected strings and integers."
            )
        if not answer.shape.rank == start.shape.rank == 1:
            raise ValueError(
                f"{_ANSWER!r} and {_START!r} have shapes {answer.shape} and {start.shape}, "
                "expected one answer a row."
            )
        begin, behind = _bytes_of_answer(features, answer, tf.cast(start, tf.int32))
        begin, behind = (
            tf.expand_dims(tf.gather(at, windows["document"]), 1) for at in (begin, behind)
        )
        covers = (windows["piece"] >= 0) & (windows["end"] > begin) & (windows["start"] < behind)
        # Of all places of a piece one has most context, so these count the answer's pieces.
        once = tf.reduce_sum(tf.cast(covers & windows["max_context"], tf.int32), axis=1)
        all_pieces = tf.math.unsorted_segment_sum(once, windows["document"], tf.size(answer))
        here = tf.reduce_sum(tf.cast(covers, tf.int32), axis=1)
        whole = (here > 0) & (here == tf.gather(all_pieces, windows["document"]))
        places = tf.stack([_first(covers), _last(covers)], axis=1)
        null = tf.expand_dims(windows["null"], 1)
        return tf.where(tf.expand_dims(whole, 1), places, null)


def _first(places: tf.Tensor) -> tf.Tensor:
    """The first true place of each row, int32 (rows,); 0 where there is none."""
    return tf.argmax(places, axis=1, output_type=tf.int32)


def _last(places: tf.Tensor) -> tf.Tensor:
    """The last true place of each row, int32 (rows,)."""
    return tf.shape(places)[1] - 1 - _first(tf.reverse(places, [1]))


def _readable(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Broken bytes become U+FFFD, so that offsets count what Python counts, and answers are UTF-8.

    The tokenizers read them so already.
    """
    context = tf.strings.unicode_transcode(features[_CONTEXT], "UTF-8", "UTF-8")
    return {**features, _CONTEXT: context}


def _cut(
    context: tf.Tensor, first: tf.Tensor, behind: tf.Tensor, found: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Bytes of contexts to texts without white space around them.

    Args:
        context: string (batch,).
        first, behind: int32 (batch, n).
        found: bool (batch, n), whether there is anything to cut.

    Returns:
        (batch, n): strings, and int32 where they begin and end, in characters; "", -1 and -1 where
        there is nothing.
    """
    first, behind = tf.where(found, first, 0), tf.where(found, behind, 0)
    rows = tf.expand_dims(context, 1)
    given = tf.strings.substr(tf.tile(rows, [1, tf.shape(first)[1]]), first, behind - first)
    text = tf.strings.regex_replace(given, f"^{_SPACES}", "")
    first += tf.strings.length(given) - tf.strings.length(text)
    text = tf.strings.regex_replace(text, f"{_SPACES}$", "")
    behind = first + tf.strings.length(text)
    characters = Characters(context)
    start, end = (
        tf.where(found, characters.from_bytes(offsets), -1) for offsets in (first, behind)
    )
    return text, start, end


def _bytes_of_answer(
    features: dict[str, tf.Tensor], answer: tf.Tensor, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The bytes of the context that the answers cover.

    Args:
        features: string tensors (batch,).
        answer: string (batch,).
        start: int32 (batch,), in characters.

    Returns:
        int32 (batch,), the first bytes and the bytes behind; 0 and 0 for no answer.

    Raises:
        InvalidArgumentError: at run time, with ``MARK``, for the first answer that is not there.
    """
    context = features[_CONTEXT]
    bare = tf.strings.regex_replace(answer, f"^{_SPACES}|{_SPACES}$", "")
    length = tf.strings.length(bare)
    at = Characters(context).to_bytes(tf.expand_dims(start, 1))[:, 0]
    rest = tf.strings.substr(context, at, tf.strings.length(context) - at)
    from_word = tf.strings.regex_replace(rest, f"^{_SPACES}", "")
    at += tf.strings.length(rest) - tf.strings.length(from_word)
    there = tf.strings.substr(from_word, tf.zeros_like(length), length)
    none = length == 0
    right = none | ((there == bare) & (start >= 0))
    wrong = tf.where(~right)[:1, 0]

    def of_wrong(values: tf.Tensor) -> tf.Tensor:
        return tf.strings.reduce_join(tf.gather(values, wrong))

    message = tf.strings.join(
        [
            MARK + "The answer '",
            of_wrong(answer),
            "' to '",
            of_wrong(features[_QUESTION]),
            "' does not stand at character ",
            of_wrong(tf.strings.as_string(start)),
            " of its context, where '",
            of_wrong(there),
            "' was found.",
        ]
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(right), [message])]):
        begin = tf.where(none, 0, at)
    return begin, tf.where(none, 0, begin + length)


def _check_names(labels: Any, *expected: str) -> None:
    if not isinstance(labels, Mapping):
        raise ValueError(
            f"Labels are a dict with {_ANSWER!r} and {_START!r}, not a {type(labels).__name__}."
        )
    if not {*expected} <= {*labels}:
        wanted = " and ".join(map(repr, expected))
        raise ValueError(f"Labels have {wanted}, not {sorted(labels)}.")


def _arrays(labels: Any) -> dict[str, np.ndarray]:
    """Labels in lists as arrays: strings as bytes, gold answers padded with ""."""
    _check_names(labels)
    arrays = {}
    for name, values in labels.items():
        if name == _GOLD:
            most = max([len(row) for row in values], default=0)
            rows = [[*row, *[""] * (most - len(row))] for row in values]
            arrays[name] = np.array(
                [[_encoded(text, i, name) for text in row] for i, row in enumerate(rows)], object
            ).reshape(len(rows), most)
        elif name == _ANSWER:
            encoded = [_encoded(text, i, name) for i, text in enumerate(values)]
            arrays[name] = np.array(encoded, object)
        else:
            arrays[name] = np.asarray(values)
    return arrays


def _encoded(text: Any, row: int, name: str) -> bytes:
    if not isinstance(text, str | bytes):
        raise ValueError(f"Row {row} of {name!r} is {text!r}, not a string.")
    return text.encode("utf-8", "replace") if isinstance(text, str) else text


def _gold(labels: Any) -> list[list[str]]:
    """The gold answers of each row of a batch."""
    if not isinstance(labels, Mapping) or not {_ANSWER, _GOLD} & {*labels}:
        raise ValueError(f"Gold answers are {_GOLD!r} or {_ANSWER!r} in a dict of labels.")
    values = labels[_GOLD if _GOLD in labels else _ANSWER]
    if isinstance(values, tf.RaggedTensor):
        values = values.to_tensor()
    if values.shape.rank != (2 if _GOLD in labels else 1):
        raise ValueError(f"Gold answers have shape {values.shape}, expected (rows, answers).")
    return [as_text(row) for row in values.numpy().reshape(len(values), -1)]

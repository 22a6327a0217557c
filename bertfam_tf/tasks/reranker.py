"""Rerankers: cross-encoders that score documents for a query (arXiv 1901.04085)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Unpack, get_args

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bertfam_tf import heads
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import LABEL, Fields, texts_of
from bertfam_tf.data.labels import floats_of, numbers_of, within
from bertfam_tf.data.tables import Columns
from bertfam_tf.metrics import MRR, NDCG
from bertfam_tf.metrics.compatible import RELEVANCE
from bertfam_tf.models import Backbone
from bertfam_tf.names import NO_TEXT
from bertfam_tf.objectives.objective import SumAndCount
from bertfam_tf.tasks.components import (
    NO_LABELS,
    Signature,
    Targets,
    TaskComponents,
    Tensors,
    labels_apart,
    without_names,
)
from bertfam_tf.tasks.options import LoadingArguments, OptionArguments, Options, option
from bertfam_tf.tasks.preprocessing import MultiRow, SingleRow, rows_of, run_rows
from bertfam_tf.tasks.sentence_transformers import CrossEncoder
from bertfam_tf.tasks.task import Task
from bertfam_tf.tasks.text_classifier import regress_signature
from bertfam_tf.tasks.text_learner import arguments, refuse
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.learner import mean_loss
from bertfam_tf.validation import in_range

_QUERY, _DOCUMENT, _DOCUMENTS = "query", "document", "documents"

Ranking = Literal["binary", "listwise", "mse", "margin_mse"]
# Losses that compare the documents of a query.
_OF_LISTS = ("listwise", "margin_mse")


@dataclass(frozen=True, kw_only=True)
class RerankerOptions(Options):
    """Options of ``Reranker``."""

    activation: Literal["sigmoid"] | None = option(
        "sigmoid", settable=True, choices=("sigmoid", None)
    )
    objective: Ranking = option("binary", choices=get_args(Ranking))


class RerankerArguments(OptionArguments, total=False):
    """``RerankerOptions`` as keyword arguments."""

    activation: Literal["sigmoid"] | None
    objective: Ranking


class PretrainedRerankerArguments(RerankerArguments, LoadingArguments, total=False):
    """Keyword arguments of ``Reranker.from_pretrained``."""


class Reranker(Task):
    """Scores documents for a query with a cross-encoder, which reads both together.

    An example is a ``query`` and a ``document``, or a query and a list of documents. ``predict``
    takes ``{"query": …, "document": …}`` or a tuple in that order. It returns the scores, float32
    (examples,); for lists, which may differ in length, an array (documents,) for each query.
    ``rank`` orders the documents of one query.

    Labels are relevance scores in the same shape, 0 for irrelevant documents. In a
    ``tf.data.Dataset``, all lists have the same length; the label is NaN where there is no
    document. ``evaluate`` returns the loss, and nDCG@10 and MRR@10, which are meaningful for lists
    only.

    ``from_pretrained`` and ``save_pretrained`` read and write the files of sentence-transformers'
    ``CrossEncoder`` with one label. An export has the signature ``rank``: ``query``, string
    (batch,), and ``documents``, string (batch, documents), of any number, to ``index``, int32, and
    ``score``, float32, both (batch, documents), the best document first.

    The Keras model takes int32 (batch, documents, length) and returns logits (batch, documents).

    Args:
        backbone: an encoder; with a pooler if its family classifies with it.
        tokenizer: its tokenizer.
        activation: ``'sigmoid'`` for scores from 0 to 1; None for logits.
        objective: the loss of ``fit``: ``'binary'``, binary cross-entropy, for labels from 0 to 1;
            ``'listwise'``, softmax cross-entropy over a query's documents, with labels divided by
            their sum (arXiv 2101.08751); ``'mse'``, the squared error of logits, for a teacher's
            scores; ``'margin_mse'``, the squared error of the margin between the first document's
            logit and each other one (arXiv 2010.02666).
        max_length, padding, language_id, languages: the same as for ``Task``.

    Raises:
        ValueError: for an unknown activation or objective, or a backbone without the pooler that
            its family classifies with; and as ``Task`` raises it.
        CheckpointError: from ``from_pretrained``, for stored modules that are not supported.
    """

    options_type = RerankerOptions
    pipeline_tag = "text-ranking"
    fields = Fields((_QUERY, _DOCUMENT), ())
    head_name = "sequence"
    answer_name = "score"
    labels_type = targets.Number
    published_type = CrossEncoder

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        *,
        language_id: int | None = None,
        name: str | None = None,
        **options: Unpack[RerankerArguments],
    ):
        super().__init__(backbone, tokenizer, language_id=language_id, name=name, **options)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, **options: Unpack[PretrainedRerankerArguments]
    ) -> Self:
        return super().from_pretrained(path, **options)

    def parts(self, backbone: Backbone, tokenizer: Tokenizer, options: Any) -> TaskComponents:
        head = heads.build(backbone, self.head_name, 1)
        inputs, logits = rows_of(
            backbone.token_inputs, lambda rows: head(backbone(rows, outputs=head.reads))
        )

        def answer(logits: tf.Tensor, encoded: dict[str, Any]) -> Tensors:
            scores = self._scored(logits)
            return {"score": scores if encoded["padding_mask"].shape.rank == 3 else scores[:, 0]}

        def to_python(answers: Tensors, _: Tensors) -> Any:
            scores = answers["score"].numpy()
            return scores if scores.ndim == 1 else list(scores)

        return TaskComponents(
            inputs=inputs,
            outputs=ops.squeeze(logits, -1),  # (batch, documents)
            head=head,
            source=head.reads,
            preprocessor=_PackedDocuments(backbone, tokenizer, options, self.fields),
            postprocess=answer,
            answer_ids=lambda logits, _: {"score": self._scored(logits)[:, 0]},
            to_python=to_python,
            targets=_Relevance(options.objective),
            loss=_LOSSES[options.objective],
            metrics=lambda: [NDCG(), MRR()],
            signatures=lambda: {
                **regress_signature(),
                "rank": Signature(self.ranked, _RANK, of_texts=_lists),
            },
        )

    def text_batches(
        self, *data: Any, training: bool = False, extend: Any = None, **options: Any
    ) -> tf.data.Dataset:
        # Only of training: nDCG takes any relevance.
        if not training or self.objective != "binary":
            return super().text_batches(*data, training=training, extend=extend, **options)

        def checked(features: Tensors, encoded: dict[str, Any], batch: tuple) -> tuple:
            inputs, *rest = batch
            if rest:
                flat = tf.reshape(rest[0], [-1])
                known = tf.boolean_mask(flat, ~tf.math.is_nan(flat))
                with tf.control_dependencies([within(known, 0, 1, "objective 'binary'")]):
                    rest[0] = tf.identity(rest[0])
            batch = (inputs, *rest)
            return batch if extend is None else extend(features, encoded, batch)

        return super().text_batches(*data, training=True, extend=checked, **options)

    def _scored(self, logits: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(logits, tf.float32)
        return logits if self.activation is None else tf.sigmoid(logits)

    @property
    def packed_specs(self) -> dict[str, tf.TensorSpec]:
        """The inputs of ``answer_ids``, packed token ids of one document: int32 (batch, length)."""
        specs = super().packed_specs.items()
        # Without the axis of documents.
        return {name: tf.TensorSpec([None, *x.shape[2:]], tf.int32, name) for name, x in specs}

    @property
    def answers_from_ids(self) -> bool:
        return True

    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 32,
        verbose: Any = 0,
        steps: int | None = None,
        callbacks: Any = None,
        language: str | int | None = None,
        columns: Columns | None = None,
        **others: Any,
    ) -> Any:
        """Returns the scores of documents; labels in a data set are ignored.

        Args:
            x: queries and documents, in one of the structures of ``Task.predict``; a single query
                may have a list of documents.
            batch_size: documents in a batch; of a data set, examples.
            verbose, steps, callbacks, language, columns: the same as for ``Task.predict``.

        Returns:
            float32 (examples,); for lists of documents, a list of float32 (documents,), with
            ``steps`` only for the first queries, those with scores of all their documents.

        Raises:
            ValueError, TypeError: as ``Task.predict`` raises them.
        """
        refuse("predict", others, arguments(Reranker.predict))
        loop: dict[str, Any] = dict(
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
            language=language,
        )
        x = texts_of(x, self.fields, columns=columns, pair=self.pair)
        lists = _named(x)
        if lists is None:
            return super().predict(x, **loop)
        documents = lists[_DOCUMENT]
        _check_lists(lists[_QUERY], documents)
        counts = [len(row) for row in documents]
        pairs = {
            name: [value for value, n in zip(lists[name], counts, strict=True) for _ in range(n)]
            for name in (_QUERY, *self.fields.described)
            if name in lists
        }
        pairs[_DOCUMENT] = [document for row in documents for document in row]
        scores = super().predict(pairs, **loop)
        ends = np.cumsum(counts)
        ends = ends[ends <= len(scores)]  # of whole lists; `steps` may end within one
        return np.split(scores, ends)[: len(ends)]

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        batch_size: int = 32,
    ) -> list[dict[str, Any]]:
        """Orders the documents of a query.

        Args:
            query: the query.
            documents: texts, at least one.
            top_k: the number of documents to return; None for all.
            batch_size: documents in a batch.

        Returns:
            ``{"index": int, "score": float, "text": str}`` for each document, the best first;
            ``index`` is the position in ``documents``. Ties keep the order of ``documents``.

        Raises:
            ValueError: if there are no documents, or one is not a string; or for a ``top_k`` below
                1.
        """
        documents = list(documents)
        if not documents:
            raise ValueError(NO_TEXT)
        if top_k is not None:
            in_range("top_k", top_k, at_least=1, integer=True)
        scores = self.predict(([query] * len(documents), documents), batch_size=batch_size)
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [{"index": i, "score": float(scores[i]), "text": documents[i]} for i in order]

    def ranked(self, features: Tensors) -> Tensors:
        """Orders the documents of each query, in a graph.

        Args:
            features: ``query``, string (batch,), and ``documents``, string (batch, documents).

        Returns:
            ``index``, int32, and ``score``, float32, both (batch, documents), the best first.
        """
        scores = self.answer({_QUERY: features[_QUERY], _DOCUMENT: features[_DOCUMENTS]})["score"]
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        return {"index": order, "score": tf.gather(scores, order, batch_dims=1)}


_RANK = {
    _QUERY: tf.TensorSpec([None], tf.string, _QUERY),
    _DOCUMENTS: tf.TensorSpec([None, None], tf.string, _DOCUMENTS),
}


def _lists(texts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of ``rank``: two documents for each query."""
    documents = texts[_DOCUMENT]
    return {
        _QUERY: texts[_QUERY],
        _DOCUMENTS: np.stack([documents, np.roll(documents, 1)], axis=1),
    }


class _PackedDocuments(MultiRow):
    """A row of token ids for each document.

    Call:
        features: string tensors: the query (batch,), the document (batch,) or (batch, documents).

    Returns:
        as ``SingleRow``, int32 (batch, longest) or (batch, documents, longest).
    """

    def __call__(self, features: dict[str, tf.Tensor]) -> dict[str, Any]:
        rank = features[_DOCUMENT].shape.rank
        if rank not in (1, 2):
            raise ValueError(
                "Documents must have the shape (examples,) or (examples, documents), got rank "
                f"{rank}."
            )
        return super().__call__(features) if rank == 2 else SingleRow.__call__(self, features)

    def inputs(self, encoded: dict[str, Any]) -> dict[str, tf.Tensor]:
        if encoded["padding_mask"].shape.rank == 3:
            return super().inputs(encoded)
        return {n: tf.expand_dims(x, 1) for n, x in SingleRow.inputs(self, encoded).items()}

    def run(self, model: keras.Model, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        if inputs["padding_mask"].shape[1] == 1:
            return model(inputs, training=False)
        return run_rows(model, inputs)


class _Relevance(Targets):
    """Numbers, as float32 (batch, documents); NaN where there is no document.

    Args:
        objective: the task's objective.
    """

    compatible = RELEVANCE

    def __init__(self, objective: Ranking):
        self.objective = objective

    def prepared(self, x: Any, y: Any) -> tuple[Any, Any]:
        lists = _named(x)
        if lists is None:
            x, y = labels_apart(x, y)
            return x, floats_of(y)
        if y is None:
            y = lists.pop(LABEL, None)
        documents = [list(row) for row in lists[_DOCUMENT]]
        _check_lists(lists[_QUERY], documents)
        longest = max((len(row) for row in documents), default=0)
        if y is not None:
            labels = np.full((len(documents), longest), np.nan, "float32")
            lengths = [len(row) if np.ndim(row) == 1 else None for row in y]
            if lengths != [len(row) for row in documents]:
                raise ValueError(
                    "There must be a list of labels for each list of documents, of the same length."
                )
            for row, values in enumerate(y):
                labels[row, : len(values)] = values
            y = labels
        padded = [row + [""] * (longest - len(row)) for row in documents]
        return {**lists, _DOCUMENT: padded}, y

    def check(self, y: Any) -> None:
        if y is None:
            raise ValueError(NO_LABELS)
        values = np.asarray(without_names(y))
        if values.ndim not in (1, 2):
            raise ValueError(
                "labels must be a number for each document, (examples,) or (examples, documents), "
                f"got shape {values.shape}."
            )
        if values.dtype.kind in "iuf" and np.isinf(values).any():
            raise ValueError("A label is infinite.")

    def weights(self, weights: tf.Tensor) -> tf.Tensor:
        by_document = weights.shape.rank == 2 and self.objective not in _OF_LISTS
        return weights if by_document else super().weights(weights)

    def encode(self, labels: tf.Tensor, encoded: dict[str, Any]) -> tf.Tensor:
        rank = encoded["padding_mask"].shape.rank - 1
        if without_names(labels).shape.rank != rank:
            expected = "a vector" if rank == 1 else "(examples, documents)"
            raise ValueError(
                f"labels must be {expected} in each batch, as the documents are, got shape "
                f"{labels.shape}."
            )
        if rank == 2:
            return tf.cast(labels, tf.float32)
        if self.objective in _OF_LISTS:
            raise ValueError(
                f"The objective {self.objective!r} compares documents: each query needs a list of "
                "them."
            )
        return tf.expand_dims(numbers_of(labels, "label"), 1)


def _named(x: Any) -> dict[str, Any] | None:
    """The columns of examples with lists of documents; None for examples of other structures."""
    if isinstance(x, Mapping):
        by_name = dict(x)
    elif isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], str | bytes):
        by_name = dict(zip((_QUERY, _DOCUMENT), x, strict=True))
    else:
        return None
    documents = by_name.get(_DOCUMENT)
    if _QUERY not in by_name or documents is None or isinstance(documents, str | bytes):
        return None
    lists = len(documents) and isinstance(documents[0], list | tuple | np.ndarray | tf.Tensor)
    return by_name if lists else None


def _check_lists(queries: Any, documents: Sequence[Any]) -> None:
    if len(queries) != len(documents):
        raise ValueError(f"There are {len(queries)} queries and {len(documents)} lists.")
    for row, listed in enumerate(documents):
        if isinstance(listed, str | bytes) or not hasattr(listed, "__len__"):
            raise ValueError(f"Example {row} of 'document' must be a list, got {listed!r}.")


def _known(targets: Any) -> tuple[Any, Any]:
    """Returns labels with 0 for NaN, and whether each is known; both (batch, documents)."""
    known = ops.logical_not(ops.isnan(targets))
    return ops.where(known, targets, 0.0), known


def _binary(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    true, known = _known(targets)
    losses = ops.binary_crossentropy(true, ops.cast(logits, "float32"), from_logits=True)
    return mean_loss(losses, weights, known)


def _listwise(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    true, known = _known(targets)
    x = ops.where(known, ops.cast(logits, "float32"), -1e9)
    total = ops.sum(true, axis=-1)
    losses = -ops.sum(true * ops.log_softmax(x, axis=-1), axis=-1)
    relevant = total > 0  # other queries have no relevant document, so no order
    return mean_loss(losses / ops.where(relevant, total, 1.0), weights, relevant)


def _squared(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    true, known = _known(targets)
    return mean_loss(ops.square(ops.cast(logits, "float32") - true), weights, known)


def _margin(targets: Any, logits: Any, weights: Any) -> SumAndCount:
    true, known = _known(targets)
    error = ops.cast(logits, "float32") - true
    pairs = ops.logical_and(known[:, :1], known[:, 1:])
    return mean_loss(ops.square(error[:, :1] - error[:, 1:]), weights, pairs)


_LOSSES: dict[str, Callable[[Any, Any, Any], SumAndCount]] = {
    "binary": _binary,
    "listwise": _listwise,
    "mse": _squared,
    "margin_mse": _margin,
}

"""The functions that an export of a task has."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from bertfam_tf.data.inputs import LANGUAGE
from bertfam_tf.export.attention_signature import attention_signature
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.components import Signature, Tensors
from bertfam_tf.tasks.preprocessing import POOLED
from bertfam_tf.tasks.text_learner import refuse

# The signature of exports that takes the language of each text.
_IN_LANGUAGE = "in_language"


def signatures(
    task: Task, *, attention: int | None = None, label_names: bool = False, **options: Any
) -> dict[str, Signature]:
    """Returns the signatures of an export: ``serving_default`` takes texts, ``ids`` token ids.

    If the backbone has languages, both answer in the task's language, and ``in_language`` takes
    texts and ``language``, string (batch,), the code of each text's language.

    Args:
        task: the task to export.
        attention: adds a signature ``attention``, which takes texts, with maps of this number
            of tokens: ``attention_signature``.
        label_names: whether ``serving_default`` and ``ids`` of a classifier also return ``labels``,
            string (batch, labels), the names of ``scores`` in their order.
        **options: options of this task's export, which the class documents.

    Raises:
        TypeError: for an option that does not exist.
        ValueError: for the reasons of ``attention_signature``; or for ``label_names`` of a task
            without a score for each label.
    """
    components = task.components
    known = inspect.signature(components.signatures).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        refuse("export", options.keys() - known.keys(), known)
    more = {} if attention is None else {"attention": attention_signature(task, attention)}
    usual = {
        "serving_default": Signature(task.answer),
        "ids": Signature(task.answer_ids, task.packed_specs),
    }
    if label_names:
        if not task.ranked_scores:
            raise ValueError(
                "label_names is for classifiers with the same labels for all texts, such as "
                f"TextClassifier, got a {type(task).__name__}."
            )
        usual = {
            name: _with_labels(signature, task.class_names) for name, signature in usual.items()
        }
    by_name = {
        **usual,
        **components.signatures(**options),
        **more,
    }
    if components.preprocessor.languages.count:
        by_name[_IN_LANGUAGE] = _in_language(task, by_name["serving_default"])
    return by_name


def _with_labels(signature: Signature, labels: list[str]) -> Signature:
    @tf.autograph.experimental.do_not_convert
    def named(inputs: Tensors) -> Tensors:
        outputs = signature.function(inputs)
        return {**outputs, "labels": tf.broadcast_to(labels, tf.shape(outputs["scores"]))}

    return signature._replace(function=named, answer=signature.function)


def packed_value_counts(task: Task) -> dict[str, int]:
    """The number of valid values, from 0, of inputs in ``packed_specs``, if limited."""
    config = task.backbone.config
    counts = {
        "token_ids": config.vocab_size,
        "padding_mask": 2,
        "segment_ids": getattr(config, "num_segments", None),
        POOLED: 2,
    }
    return {name: counts[name] for name in task.packed_specs if counts[name]}


def _in_language(task: Task, default: Signature) -> Signature:
    """A signature that takes the code of each text's language too."""
    ids = task.components.preprocessor.languages.ids
    codes = np.array([code.encode() for code in ids], object)

    def with_codes(texts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(next(iter(texts.values())))
        return {**texts, LANGUAGE: np.resize(codes, rows)}

    specs = {**task.feature_specs, LANGUAGE: tf.TensorSpec([None], tf.string, LANGUAGE)}
    return default._replace(inputs=specs, of_texts=with_codes)

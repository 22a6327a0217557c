"""What MediaPipe's and the TFLite Task Library's text APIs need of a task.

They take a `.tflite` with three inputs of ids and make the ids themselves, with a tokenizer in C++
that the file's metadata choose. MediaPipe's TextClassifier and TextEmbedder and the Task Library's
BertNLClassifier take single texts, its BertQuestionAnswerer takes questions and contexts. Read in
their sources: mediapipe's bert_preprocessor_calculator.cc and tokenizers/bert_tokenizer.h,
tflite-support's bert_preprocessor.cc and bert_question_answerer.cc.
"""

from __future__ import annotations

import logging
from typing import Any

from bertfam_tf.export.tflite_metadata import with_metadata
from bertfam_tf.tasks import MultiLabelClassifier, SpanQA, Task, TextClassifier, TextEmbedder
from bertfam_tf.text import SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from bertfam_tf.text.packing import CLS_A_SEP

_LOG = logging.getLogger(__name__)
_OF_SINGLE_TEXTS = (TextClassifier, MultiLabelClassifier, TextEmbedder)
_QA_LENGTH = 384


def describe(model: bytes, task: Task, *, length: int) -> bytes:
    """The task's `.tflite` of ids with metadata for the APIs.

    The tokenizer's files go into it only if those APIs read a text as the task does (see
    ``obstacle``). Else they refuse the file and apps make the ids; a warning says why, of tasks
    that there is an API for.

    Args:
        model: the file, whose signature takes ``ids``, ``mask`` and ``segment_ids``.
        task: what it is made of.
        length: of its inputs, in tokens.

    Raises:
        ValueError: as ``with_metadata`` raises it.
    """
    why_not = obstacle(task, length)
    if why_not and isinstance(task, (*_OF_SINGLE_TEXTS, SpanQA)):
        _LOG.warning("MediaPipe and the TFLite Task Library will not load this file: %s", why_not)
    kind = type(task).__name__
    return with_metadata(
        model,
        name=kind,
        description=f"{kind} of the family {task.backbone.family}; texts of up to {length} tokens.",
        vocabulary=None if why_not else _vocabulary(task.tokenizer),
        labels=task.class_names,
    )


def obstacle(task: Task, length: int) -> str:
    """Why the APIs would not read texts as the task does, or would not run at all; "" if nothing.

    Their tokenizers write ASCII letters small, whatever the vocabulary, and put ``[CLS]`` and
    ``[SEP]`` around one text with segment ids of 0; question and context are a pair as BERT's, of
    384 tokens. Accents and other scripts' capitals stay as they are, so that words with them may
    become ``[UNK]`` where the task's tokenizer drops the accents: that is no obstacle here, and
    ``tools/results/mobile_apis.md`` says how many texts it concerns.
    """
    if isinstance(task, SpanQA):
        if length != _QA_LENGTH:
            return f"BertQuestionAnswerer takes {_QA_LENGTH} tokens, this file {length}."
    elif not isinstance(task, _OF_SINGLE_TEXTS):
        return f"they have no API for {type(task).__name__}."
    elif task.pair:
        return "they take single texts, and this task takes pairs."
    return tokenizer_obstacle(task.tokenizer)


def tokenizer_obstacle(tokenizer: Tokenizer) -> str:
    """As ``obstacle``, for the tokenizer alone."""
    options = tokenizer.get_config()
    kind = type(tokenizer).__name__
    if isinstance(tokenizer, SentencePieceTokenizer):
        if options["fairseq_ids"]:
            return "their SentencePiece has the model's own ids, this tokenizer fairseq's."
    elif not isinstance(tokenizer, WordPieceTokenizer):
        return f"they have WordPiece and SentencePiece, not {kind}."
    elif not options["split_chinese"]:
        return "their tokenizer makes a word of each Chinese character, this one does not."
    if not options["lower_case"]:
        return "their tokenizer lower-cases, and this vocabulary is cased."
    expected = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    if isinstance(tokenizer, WordPieceTokenizer):
        expected["unk_token"] = "[UNK]"
    for role, token in expected.items():
        if options[role] != token:
            return f"they look up {token}, the {role} of this tokenizer is {options[role]!r}."
    if tokenizer.layout != CLS_A_SEP:
        return "they put [CLS] before a text and [SEP] behind, this tokenizer does otherwise."
    return ""


def _vocabulary(tokenizer: Any) -> list[str] | bytes:
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer.vocabulary
    return tokenizer.get_config()["model"]

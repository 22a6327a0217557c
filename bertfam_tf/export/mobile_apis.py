"""Requirements of MediaPipe's and the TFLite Task Library's text APIs.

These APIs take a `.tflite` file with three inputs of ids and tokenize with their own C++ tokenizer,
which the file's metadata select. MediaPipe's TextClassifier and TextEmbedder and the Task Library's
BertNLClassifier take single texts; BertQuestionAnswerer takes questions and contexts. Sources:
mediapipe's bert_preprocessor_calculator.cc and tokenizers/bert_tokenizer.h, tflite-support's
bert_preprocessor.cc and bert_question_answerer.cc.
"""

from __future__ import annotations

import logging
from typing import Any

from bertfam_tf.export.tflite_metadata import with_metadata
from bertfam_tf.tasks import MultiLabelClassifier, SpanQA, Task, TextClassifier, TextEmbedder
from bertfam_tf.text import SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from bertfam_tf.text.special_tokens import CLS_A_SEP

_LOG = logging.getLogger(__name__)
_SINGLE_TEXT_TASKS = (TextClassifier, MultiLabelClassifier, TextEmbedder)
_QA_LENGTH = 384


def add_metadata(model: bytes, task: Task, *, length: int) -> bytes:
    """Adds metadata for the mobile APIs to a `.tflite` file that takes ids.

    The tokenizer's files are included only if the APIs tokenize as the task does (see
    ``incompatibility``). Otherwise they reject the file and the app has to compute the ids; if
    there is an API for the task, a warning gives the reason.

    Args:
        model: the file's content; its signature takes ``ids``, ``mask`` and ``segment_ids``.
        task: the exported task.
        length: the length of the inputs, in tokens.

    Raises:
        ValueError: as ``with_metadata``.
    """
    why_not = incompatibility(task, length)
    if why_not and isinstance(task, (*_SINGLE_TEXT_TASKS, SpanQA)):
        _LOG.warning("MediaPipe and the TFLite Task Library will not load this file: %s", why_not)
    kind = type(task).__name__
    return with_metadata(
        model,
        name=kind,
        description=f"{kind} of the family {task.backbone.family}; texts of up to {length} tokens.",
        vocabulary=None if why_not else _vocabulary(task.tokenizer),
        labels=task.class_names,
    )


def incompatibility(task: Task, length: int) -> str:
    """Explains why the APIs cannot run the task or tokenize differently; returns "" if they can.

    Their tokenizers always lower-case ASCII letters and put ``[CLS]`` and ``[SEP]`` around a text
    with segment ids of 0; a question and its context are packed as BERT's pairs, with 384 tokens.
    They keep accents and other scripts' capitals, so words with accents may become ``[UNK]`` where
    the task's tokenizer strips them. This difference is accepted;
    ``tools/results/mobile_apis.md`` gives the share of affected texts.
    """
    if isinstance(task, SpanQA):
        if length != _QA_LENGTH:
            return f"BertQuestionAnswerer takes {_QA_LENGTH} tokens, this file takes {length}."
    elif not isinstance(task, _SINGLE_TEXT_TASKS):
        return f"they have no API for {type(task).__name__}."
    elif task.pair:
        return "they take single texts, and this task takes pairs."
    return tokenizer_incompatibility(task.tokenizer)


def tokenizer_incompatibility(tokenizer: Tokenizer) -> str:
    """Does the same as ``incompatibility``, for the tokenizer only."""
    options = tokenizer.get_config()
    kind = type(tokenizer).__name__
    if isinstance(tokenizer, SentencePieceTokenizer):
        if options["fairseq_ids"]:
            return "their SentencePiece uses the model's own ids, this tokenizer uses fairseq's."
    elif not isinstance(tokenizer, WordPieceTokenizer):
        return f"they support WordPiece and SentencePiece, not {kind}."
    elif not options["split_chinese"]:
        return "their tokenizer splits Chinese text into characters, this one does not."
    if not options["lower_case"]:
        return "their tokenizer lower-cases, and this vocabulary is cased."
    expected = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    if isinstance(tokenizer, WordPieceTokenizer):
        expected["unk_token"] = "[UNK]"
    for role, token in expected.items():
        if options[role] != token:
            return f"they look up {token}, the {role} of this tokenizer is {options[role]!r}."
    if tokenizer.layout != CLS_A_SEP:
        return "they put [CLS] before and [SEP] after a text, this tokenizer does not."
    return ""


def _vocabulary(tokenizer: Any) -> list[str] | bytes:
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer.vocabulary
    return tokenizer.get_config()["model"]

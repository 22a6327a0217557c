"""Digests of models, for files that are valid only for the model that wrote them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from bertfam_tf.corpora.shards import tokenizer_digest
from bertfam_tf.models import Backbone
from bertfam_tf.models.base import plain_weights
from bertfam_tf.tasks.task import Task


def fingerprint(model: Task | Backbone) -> str:
    """Returns the sha256 digest of a model; copies and other processes have the same.

    It covers the family, config, task, options, tokenizer, and the weights that outputs depend on.
    A pooler that a checkpoint lacks is initialized at random, so it is left out if no output uses
    it.
    """
    backbone = model if isinstance(model, Backbone) else model.backbone
    described: dict[str, Any] = {"family": backbone.family, "config": backbone.config.to_dict()}
    unread = set()
    if isinstance(model, Task):
        options, tokenizer = model.options.stored(), model.tokenizer
        languages = model.components.preprocessor.languages
        if languages.count:
            # Queries may be in another language than the documents of an index.
            options.pop("language_id", None)
            tokenizer = tokenizer.in_language(min(languages.ids)) if languages.ids else tokenizer
        described |= {"task": type(model).__name__, "options": options}
        described["tokenizer"] = tokenizer_digest(tokenizer)
        unread = {weight.path for weight in backbone.weights}
        unread -= {weight.path for weight in backbone.weights_of(model.components.source)}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for path, array in plain_weights(model).items():
        if path not in unread:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

"""What tasks share that give scores to a text, or to a pair of texts."""

from __future__ import annotations

from typing import Any

from bertfam_tf import heads
from bertfam_tf.models import Backbone
from bertfam_tf.tasks.base import Task
from bertfam_tf.text import Tokenizer

HEAD = "sequence"


class SequenceTask(Task):
    """A backbone with its family's head for whole texts.

    Args:
        backbone: an encoder; with a pooler where its family classifies with that.
        tokenizer: its tokenizer.
        scores: how many the head gives.
        pair: whether an input is two texts; None decides at the first data seen.
        max_length: most tokens of an input; longer ones are cut. None for all positions.
        language_id: the language of the texts, where the backbone has embeddings of languages.

    Raises:
        ValueError: for a backbone without the pooler that its family classifies with; and as
            ``Task`` raises it.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        scores: int,
        *,
        pair: bool | None = None,
        max_length: int | None = None,
        language_id: int | None = None,
        **kwargs: Any,
    ):
        head = heads.build(backbone, HEAD, scores)
        inputs = backbone.row_inputs
        super().__init__(
            inputs,
            head(backbone(inputs)),
            backbone=backbone,
            reads=head.source,
            tokenizer=tokenizer,
            pair=pair,
            max_length=max_length,
            language_id=language_id,
            **kwargs,
        )
        self.head = head

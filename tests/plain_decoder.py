"""Generation without a cache, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class PlainDecoder:
    """A ``generation.Step`` without a cache, which processes all tokens again in each call.

    Args:
        backbone: has the output ``last_token``.
        head: as for ``generation.CachedDecoder``.
    """

    def __init__(self, backbone: Any, head: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.backbone = backbone
        self.head = head

    def __call__(
        self, token_ids: tf.Tensor, padding_mask: tf.Tensor, state: Any
    ) -> tuple[tf.Tensor, Any]:
        tokens = token_ids if state is None else tf.concat([state, token_ids], axis=1)
        given = {"token_ids": tokens, "padding_mask": padding_mask}
        outputs = self.backbone(given, training=False)
        return tf.cast(self.head(outputs["last_token"]), tf.float32), tokens

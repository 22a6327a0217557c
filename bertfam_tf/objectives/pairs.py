"""Classification of segment pairs: next sentence prediction, sentence order prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from bertfam_tf.heads import Head
from bertfam_tf.objectives.objective import Batch, SumAndCount, mean


class PairLabels:
    """Cross-entropy of the label of each pair of segments: the loss ``pair``.

    It trains next sentence prediction (arXiv 1810.04805, section 3.1) and sentence order prediction
    (arXiv 1909.11942, section 3.1), which only differ in their pairs; see ``segment_pairs``.

    A batch has as target ``pair``, int32 (batch,): 0 if the second segment follows the first, 1 if
    not, -1 in examples without a label. The loss is the mean over the labels, and so is the metric
    ``pair_accuracy``.

    Args:
        head: a head for two labels, such as ``heads.build(backbone, "pair")``.
        weight: the weight of the loss in the total.
    """

    def __init__(self, head: Head, weight: float = 1.0):
        self.heads: Mapping[str, Head] = {"pair": head}
        self.weights: Mapping[str, float] = {"pair": weight}
        self.metrics: Mapping[str, Any] = {"pair_accuracy": mean}

    def loss(self, outputs: Any, heads: Mapping[str, Any], batch: Batch) -> dict[str, SumAndCount]:
        logits = ops.cast(heads["pair"](outputs), "float32")
        labels = batch.targets["pair"]
        valid = ops.cast(labels >= 0, "float32")
        labels = ops.maximum(labels, 0)
        losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        hits = ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")
        count = ops.sum(valid)
        return {
            "pair": (ops.sum(losses * valid), count),
            "pair_accuracy": (ops.sum(hits * valid), count),
        }

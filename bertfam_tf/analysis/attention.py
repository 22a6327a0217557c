"""Attention probabilities of each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from bertfam_tf.analysis.tokens import Example, packed_example, texts_of_example
from bertfam_tf.tasks import Task


@dataclass(frozen=True)
class AttentionMaps:
    """The attention probabilities of one example.

    Attributes:
        example: the example, with its tokens and words.
        layers: float32 (heads, queries, keys) for each layer: each query's probabilities, whose sum
            is 1. Layers may have different numbers of heads.
    """

    example: Example
    layers: list[np.ndarray]

    @property
    def tokens(self) -> list[str]:
        return self.example.names

    def to_special(self) -> list[np.ndarray]:
        """Returns the mean attention of words' tokens to each special token.

        Kovaleva et al. 2019, arXiv 1908.08593. float32 (heads, special tokens) for each layer.
        """
        special = self.example.special
        return [x[:, ~special][:, :, special].mean(axis=1) for x in self.layers]

    def between(self, first: tuple[int, ...], second: tuple[int, ...]) -> list[np.ndarray]:
        """Returns the mean attention of one word's tokens to another word's.

        For example, of a verb to its subject; float32 (heads,) for each layer.

        Args:
            first, second: ``Word.tokens``.
        """
        return [x[:, list(first)][:, :, list(second)].sum(-1).mean(-1) for x in self.layers]

    def rollout(self) -> np.ndarray:
        """Computes the rollout of attention through all layers, float32 (queries, keys).

        Abnar and Zuidema 2020, arXiv 2005.00928: the product over layers of the mean over heads,
        each averaged with the identity.
        """
        product = np.eye(len(self.tokens), dtype="float32")
        for probabilities in self.layers:
            product = (
                (probabilities.mean(axis=0) + np.eye(len(product), dtype="float32")) / 2 @ product
            )
        return product


def attention_maps(task: Task, x: Any) -> AttentionMaps:
    """Returns the attention of a task's backbone on one example.

    Args:
        task: a task whose backbone has attention, and whose examples are one row of tokens.
        x: a text; a tuple or a dict of texts for tasks with several.

    Raises:
        ValueError: if the backbone has no attention, the task's examples are several rows, or the
            texts do not fit the task.
    """
    backbone = task.backbone
    if "attention_scores" not in backbone.output:
        raise ValueError(f"The {backbone.family} backbone has no attention.")
    example = packed_example(task, texts_of_example(task, x))
    name = "attention_probabilities"
    inputs = {n: x for n, x in example.inputs.items() if n in backbone.token_inputs}
    layers = backbone(inputs, training=False, outputs=name)[name]
    return AttentionMaps(example, [keras.ops.convert_to_numpy(layer)[0] for layer in layers])

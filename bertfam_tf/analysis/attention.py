"""What each head attends to."""

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
        example: its tokens and words.
        layers: of each layer float32 (heads, queries, keys): each query's probabilities, whose sum
            is 1. Layers may have different numbers of heads.
    """

    example: Example
    layers: list[np.ndarray]

    @property
    def tokens(self) -> list[str]:
        return self.example.names

    def to_special(self) -> list[np.ndarray]:
        """Of each layer float32 (heads, special tokens): the mean probability that tokens of words
        give to each special token (Kovaleva et al. 2019, arXiv 1908.08593)."""
        special = self.example.special
        return [x[:, ~special][:, :, special].mean(axis=1) for x in self.layers]

    def between(self, first: tuple[int, ...], second: tuple[int, ...]) -> list[np.ndarray]:
        """Of each layer float32 (heads,): the mean probability that tokens of one word give to
        those of another, such as of a verb to those of its subject.

        Args:
            first, second: ``Word.tokens``.
        """
        return [x[:, list(first)][:, :, list(second)].sum(-1).mean(-1) for x in self.layers]

    def rollout(self) -> np.ndarray:
        """Attention through all layers, float32 (queries, keys), with residual connections.

        Abnar and Zuidema 2020, arXiv 2005.00928: the product over layers of the mean over heads,
        each averaged with the identity.
        """
        found = np.eye(len(self.tokens), dtype="float32")
        for each in self.layers:
            found = (each.mean(axis=0) + np.eye(len(found), dtype="float32")) / 2 @ found
        return found


def attention_maps(task: Task, x: Any) -> AttentionMaps:
    """The attention of a task's backbone on one example.

    Args:
        task: a task whose backbone has attention, and whose examples are one row of tokens.
        x: a text; a tuple or a dict of texts for tasks with several.

    Raises:
        ValueError: for a backbone without attention, for a task whose examples are several rows,
            or for other texts than the task takes.
    """
    backbone = task.backbone
    if "attention_scores" not in backbone.output:
        raise ValueError(f"The {backbone.family} backbone has no attention.")
    example = packed_example(task, texts_of_example(task, x))
    name = "attention_probabilities"
    kept = {n: x for n, x in example.inputs.items() if n in backbone.token_inputs}
    found = backbone(kept, training=False, outputs=name)[name]
    return AttentionMaps(example, [keras.ops.convert_to_numpy(each)[0] for each in found])

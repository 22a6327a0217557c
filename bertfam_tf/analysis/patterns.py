"""The five patterns of attention of Kovaleva et al. 2019 (arXiv 1908.08593, figure 1)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import numpy as np

from bertfam_tf.analysis.attention import AttentionMaps
from bertfam_tf.analysis.tokens import PROMPT

# Tokens on either side that are near.
_NEAR = 2
# Found on the heads of MiniLM-L6 for one pair of sentences, which were labelled by eye;
# tests/analysis/test_patterns.py has those labels, and others for which they were not chosen.
_TO_SPECIAL, _LOCAL, _WITHIN = 0.2, 0.27, 0.6


class Pattern(enum.StrEnum):
    """Patterns of a head: the kind of tokens that the tokens of words attend to.

    Members:
        VERTICAL: special tokens, such as [CLS] and [SEP].
        DIAGONAL: tokens near to them.
        VERTICAL_DIAGONAL: both.
        BLOCK: tokens of their own text, of the two of a pair.
        HETEROGENEOUS: anything else.
    """

    VERTICAL = "vertical"
    DIAGONAL = "diagonal"
    VERTICAL_DIAGONAL = "vertical + diagonal"
    BLOCK = "block"
    HETEROGENEOUS = "heterogeneous"


def patterns(maps: AttentionMaps) -> list[list[Pattern]]:
    """Classifies the pattern of each head for one example, by layer.

    The paper trained a network on 400 labelled maps. Here three shares decide, each a mean over the
    tokens of words: the attention to special tokens; and of the rest, the attention to tokens at
    most two positions away, and the attention within the same text of a pair. Each share is
    rescaled so that uniform attention is 0 and all attention is 1: 0.2 is vertical, 0.27 diagonal
    and 0.6 block, unless special tokens have half of all attention.

    Args:
        maps: the output of ``attention_maps``.

    Raises:
        ValueError: if the example has no words.
    """
    words = ~maps.example.special
    if not words.any():
        raise ValueError("patterns() needs an example with words, got only special tokens.")
    places = np.arange(len(words))
    near = np.abs(places[:, np.newaxis] - places) <= _NEAR
    texts = np.full(len(words), -1)
    features = [word.feature for word in maps.example.words]
    names = list(dict.fromkeys(name for name in features if name != PROMPT))
    for name, word in zip(features, maps.example.words, strict=True):
        texts[list(word.tokens)] = 0 if name == PROMPT else names.index(name)
    within = texts[:, np.newaxis] == texts if len(names) > 1 else np.zeros_like(near)
    near, within = (mask[words][:, words] for mask in (near, within))
    special = _excess(maps.example.special.mean())
    local, own = _excess(near.mean()), _excess(within.mean())

    def pattern(head: np.ndarray) -> Pattern:
        """Classifies probabilities (words, words), in rows without special tokens."""
        total = float(head.sum(axis=1).mean())
        parts = (float((head * x).sum(axis=1).mean()) / max(total, 1e-9) for x in (near, within))
        to_near, to_own = parts
        vertical = special(1 - total) >= _TO_SPECIAL
        if local(to_near) >= _LOCAL:
            return Pattern.VERTICAL_DIAGONAL if vertical else Pattern.DIAGONAL
        if own(to_own) >= _WITHIN and total > 0.5:
            return Pattern.BLOCK
        return Pattern.VERTICAL if vertical else Pattern.HETEROGENEOUS

    return [[pattern(head[words][:, words]) for head in layer] for layer in maps.layers]


def _excess(expected: float) -> Callable[[float], float]:
    """Maps a share to how far it is from an expected one on the way to 1."""
    return lambda share: (share - expected) / max(1 - expected, 1e-9)


def pattern_shares(maps_of_examples: Sequence[AttentionMaps]) -> np.ndarray:
    """Computes how often the heads of each layer have each pattern.

    Args:
        maps_of_examples: maps of several examples of one model.

    Returns:
        float64 (layers, patterns), in the order of ``Pattern``; rows sum to 1.
    """
    counts = np.zeros((len(maps_of_examples[0].layers), len(Pattern)))
    order = list(Pattern)
    for maps in maps_of_examples:
        for i, layer in enumerate(patterns(maps)):
            for pattern in layer:
                counts[i, order.index(pattern)] += 1
    return counts / counts.sum(axis=1, keepdims=True)

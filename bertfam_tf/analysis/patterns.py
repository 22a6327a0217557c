"""The five patterns of attention of Kovaleva et al. 2019 (arXiv 1908.08593, figure 1)."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from bertfam_tf.analysis.attention import AttentionMaps

# Tokens on either side that are near.
_NEAR = 2
# Found on the heads of MiniLM-L6 for one pair of sentences, which were labelled by eye;
# tests/analysis/test_patterns.py has those labels, and others for which they were not chosen.
_TO_SPECIAL, _LOCAL, _WITHIN = 0.25, 0.35, 0.8


class Pattern(enum.StrEnum):
    """What the tokens of words attend to in a head.

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
    """The pattern of each head for one example, by layer.

    The paper trained a network on 400 labelled maps. Here three shares decide, each a mean over the
    tokens of words: the attention to special tokens (a quarter is vertical); and of the rest, that
    to tokens at most two positions away (35 % is diagonal), and that within the same text of a
    pair (80 % is block, unless special tokens have half of all attention).

    Args:
        maps: from ``attention_maps``.

    Raises:
        ValueError: for an example without words.
    """
    words = ~maps.example.special
    if not words.any():
        raise ValueError("patterns() needs an example with words, got only special tokens.")
    places = np.arange(len(words))
    near = np.abs(places[:, np.newaxis] - places) <= _NEAR
    texts = np.full(len(words), -1)
    names = list(dict.fromkeys(word.feature for word in maps.example.words))
    for word in maps.example.words:
        texts[list(word.tokens)] = names.index(word.feature)
    within = texts[:, np.newaxis] == texts if len(names) > 1 else np.zeros_like(near)
    return [[_pattern(head[words][:, words], *(x[words][:, words] for x in (near, within)))
             for head in layer] for layer in maps.layers]  # fmt: skip


def _pattern(head: np.ndarray, near: np.ndarray, within: np.ndarray) -> Pattern:
    """Of probabilities (words, words), whose rows lack what special tokens have."""
    to_words = float(head.sum(axis=1).mean())
    local, own = (
        float((head * x).sum(axis=1).mean()) / max(to_words, 1e-9) for x in (near, within)
    )
    vertical = 1 - to_words >= _TO_SPECIAL
    if local >= _LOCAL:
        return Pattern.VERTICAL_DIAGONAL if vertical else Pattern.DIAGONAL
    if own >= _WITHIN and to_words > 0.5:
        return Pattern.BLOCK
    return Pattern.VERTICAL if vertical else Pattern.HETEROGENEOUS


def pattern_shares(found: Sequence[AttentionMaps]) -> np.ndarray:
    """How often the heads of each layer have each pattern.

    Args:
        found: maps of several examples of one model.

    Returns:
        float64 (layers, patterns), in the order of ``Pattern``; rows sum to 1.
    """
    counts = np.zeros((len(found[0].layers), len(Pattern)))
    order = list(Pattern)
    for maps in found:
        for i, layer in enumerate(patterns(maps)):
            for pattern in layer:
                counts[i, order.index(pattern)] += 1
    return counts / counts.sum(axis=1, keepdims=True)

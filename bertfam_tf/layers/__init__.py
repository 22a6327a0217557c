"""Bricks with weights. Keras operations alone, so that they run on each of Keras' backends."""

from bertfam_tf.layers.activations import activation
from bertfam_tf.layers.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from bertfam_tf.layers.attention import CachedSelfAttention, SelfAttention
from bertfam_tf.layers.block import TransformerBlock
from bertfam_tf.layers.embeddings import MaskEmbedding, PositionEmbedding, SinusoidalEmbedding
from bertfam_tf.layers.feed_forward import FeedForward
from bertfam_tf.layers.initializers import normal
from bertfam_tf.layers.masks import (
    DecoderMask,
    KeysWithMemory,
    LeftToRight,
    causal,
    keys_from_padding,
    nothing_behind,
    other_segment,
    real_positions,
    zero_padding,
)
from bertfam_tf.layers.memory import remembered, with_memory
from bertfam_tf.layers.pooling import FirstTokenPooler, LastTokenPooling, MeanPooling
from bertfam_tf.layers.relative import (
    Distances,
    QueryBias,
    RelativeAttention,
    RelativePositions,
    SegmentScores,
)

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "CachedSelfAttention",
    "DecoderMask",
    "Distances",
    "FeedForward",
    "FirstTokenPooler",
    "KeysWithMemory",
    "LastTokenPooling",
    "LeftToRight",
    "MaskEmbedding",
    "MeanPooling",
    "PositionEmbedding",
    "QueryBias",
    "RelativeAttention",
    "RelativePositions",
    "SegmentScores",
    "SelfAttention",
    "SinusoidalEmbedding",
    "TransformerBlock",
    "activation",
    "causal",
    "keys_from_padding",
    "normal",
    "nothing_behind",
    "other_segment",
    "real_positions",
    "remembered",
    "with_memory",
    "zero_padding",
]

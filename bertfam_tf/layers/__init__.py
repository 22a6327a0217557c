"""Bricks with weights. Keras operations alone, so that they run on each of Keras' backends."""

from bertfam_tf.layers.activations import activation
from bertfam_tf.layers.attention import CachedSelfAttention, SelfAttention
from bertfam_tf.layers.block import TransformerBlock
from bertfam_tf.layers.embeddings import PositionEmbedding, SinusoidalEmbedding
from bertfam_tf.layers.feed_forward import FeedForward
from bertfam_tf.layers.initializers import normal
from bertfam_tf.layers.masks import (
    DecoderMask,
    causal,
    keys_from_padding,
    real_positions,
    zero_padding,
)
from bertfam_tf.layers.pooling import FirstTokenPooler, LastTokenPooling, MeanPooling

__all__ = [
    "CachedSelfAttention",
    "DecoderMask",
    "FeedForward",
    "FirstTokenPooler",
    "LastTokenPooling",
    "MeanPooling",
    "PositionEmbedding",
    "SelfAttention",
    "SinusoidalEmbedding",
    "TransformerBlock",
    "activation",
    "causal",
    "keys_from_padding",
    "normal",
    "real_positions",
    "zero_padding",
]

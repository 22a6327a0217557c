"""The layers of models. They use only Keras operations, so they run on all backends."""

from bertfam_tf.layers.activations import activation
from bertfam_tf.layers.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from bertfam_tf.layers.attention import (
    CachedSelfAttention,
    HeadGate,
    Projections,
    SelfAttention,
    attention_probabilities,
)
from bertfam_tf.layers.block import TransformerBlock
from bertfam_tf.layers.bottleneck import BottleneckBlock, NoNorm, Trigrams
from bertfam_tf.layers.characters import CharacterCNN, Highway
from bertfam_tf.layers.embeddings import (
    Embedding,
    MaskEmbedding,
    PositionEmbedding,
    SinusoidalEmbedding,
)
from bertfam_tf.layers.feed_forward import FeedForward, GatedFeedForward
from bertfam_tf.layers.fused import Dense, Dropout, LayerNormalization
from bertfam_tf.layers.initializers import filled_later, normal
from bertfam_tf.layers.masks import (
    CausalPermutation,
    DecoderMask,
    Distances,
    MemoryMask,
    attention_mask_from_padding,
    causal_mask,
    causal_padding_mask,
    local_mask,
    other_segment,
    position_ids_from_padding,
    zero_padding,
)
from bertfam_tf.layers.memory import prepend_memory, updated_memory
from bertfam_tf.layers.mixing import LayerCombination, ScalarMix
from bertfam_tf.layers.pooling import (
    FirstTokenPooler,
    LastTokenPooling,
    TokenPooling,
    UnitNormalization,
)
from bertfam_tf.layers.positions import (
    DisentangledScores,
    DistanceEmbedding,
    RelativeBias,
    RotaryAngles,
    add_bias,
    log_buckets,
    rotate,
    symmetric_buckets,
)
from bertfam_tf.layers.recurrent import BidirectionalLSTM, ProjectedBidirectionalLSTM
from bertfam_tf.layers.relative import (
    QueryBias,
    RelativeAttention,
    RelativePositions,
    SegmentScores,
)
from bertfam_tf.layers.rows import MergeRows, SplitRows
from bertfam_tf.layers.tracing import recomputation
from bertfam_tf.layers.unpadding import (
    AttentionGroups,
    RealTokens,
    SingleExample,
    TokenLayout,
    first_tokens,
    pad,
    unpad,
)

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "AttentionGroups",
    "BidirectionalLSTM",
    "BottleneckBlock",
    "CachedSelfAttention",
    "CausalPermutation",
    "CharacterCNN",
    "DecoderMask",
    "Dense",
    "DisentangledScores",
    "DistanceEmbedding",
    "Distances",
    "Dropout",
    "Embedding",
    "FeedForward",
    "FirstTokenPooler",
    "GatedFeedForward",
    "HeadGate",
    "Highway",
    "LastTokenPooling",
    "LayerCombination",
    "LayerNormalization",
    "MaskEmbedding",
    "MemoryMask",
    "MergeRows",
    "NoNorm",
    "PositionEmbedding",
    "ProjectedBidirectionalLSTM",
    "Projections",
    "QueryBias",
    "RealTokens",
    "RelativeAttention",
    "RelativeBias",
    "RelativePositions",
    "RotaryAngles",
    "ScalarMix",
    "SegmentScores",
    "SelfAttention",
    "SingleExample",
    "SinusoidalEmbedding",
    "SplitRows",
    "TokenLayout",
    "TokenPooling",
    "TransformerBlock",
    "Trigrams",
    "UnitNormalization",
    "activation",
    "add_bias",
    "attention_mask_from_padding",
    "attention_probabilities",
    "causal_mask",
    "causal_padding_mask",
    "filled_later",
    "first_tokens",
    "local_mask",
    "log_buckets",
    "normal",
    "other_segment",
    "pad",
    "position_ids_from_padding",
    "prepend_memory",
    "recomputation",
    "rotate",
    "symmetric_buckets",
    "unpad",
    "updated_memory",
    "zero_padding",
]

"""Analysis of attention, of heads, and of the words on which an answer depends."""

from bertfam_tf.analysis.attention import AttentionMaps, attention_maps
from bertfam_tf.analysis.attribution import Attribution, explain
from bertfam_tf.analysis.heads import (
    Ablation,
    Importance,
    ablation,
    importance,
    pair_ablation,
    without_heads,
)
from bertfam_tf.analysis.page import write_page
from bertfam_tf.analysis.patterns import Pattern, pattern_shares, patterns
from bertfam_tf.analysis.pictures import (
    draw_ablation,
    draw_attention,
    draw_heads,
    draw_pairs,
    draw_patterns,
    draw_projection,
    draw_similarity,
    draw_words,
)
from bertfam_tf.analysis.pruning import least_important, prune
from bertfam_tf.analysis.report import Report, report
from bertfam_tf.analysis.similarity import layer_similarity, mean_vectors, project

__all__ = [
    "Ablation",
    "AttentionMaps",
    "Attribution",
    "Importance",
    "Pattern",
    "Report",
    "ablation",
    "attention_maps",
    "draw_ablation",
    "draw_attention",
    "draw_heads",
    "draw_pairs",
    "draw_patterns",
    "draw_projection",
    "draw_similarity",
    "draw_words",
    "explain",
    "importance",
    "layer_similarity",
    "least_important",
    "mean_vectors",
    "pair_ablation",
    "pattern_shares",
    "patterns",
    "project",
    "prune",
    "report",
    "without_heads",
    "write_page",
]

"""Scores of answers against gold ones, as the official scripts of the benchmarks count them."""

from bertfam_tf.metrics.squad import best_threshold, exact_match, f1, squad_scores

__all__ = ["best_threshold", "exact_match", "f1", "squad_scores"]

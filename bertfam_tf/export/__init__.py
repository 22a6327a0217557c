"""Exports whose graph takes raw text and returns answers: SavedModels and ``.tflite`` files."""

from bertfam_tf.export.in_graph_batching import BatchingOptions
from bertfam_tf.export.saved_model import ExportError, export_saved_model
from bertfam_tf.export.tflite import export_tflite

__all__ = ["BatchingOptions", "ExportError", "export_saved_model", "export_tflite"]

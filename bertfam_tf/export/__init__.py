"""Exports: SavedModels and ``.tflite`` files that take raw text, and ``.onnx`` files."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bertfam_tf.lazy import lazy

if TYPE_CHECKING:
    from bertfam_tf.export.in_graph_batching import BatchingOptions
    from bertfam_tf.export.onnx import export_onnx
    from bertfam_tf.export.saved_model import ExportError, export_saved_model
    from bertfam_tf.export.tflite import export_tflite

# Lazy, because programs that only run exports (``export.runtime``) need no Keras.
_HOME = {
    "BatchingOptions": "in_graph_batching",
    "ExportError": "saved_model",
    "export_onnx": "onnx",
    "export_saved_model": "saved_model",
    "export_tflite": "tflite",
}

__all__ = [
    "BatchingOptions",
    "ExportError",
    "export_onnx",
    "export_saved_model",
    "export_tflite",
]

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)


class _Export(ModuleType):
    """Lets ``bertfam_tf.export(model, directory)`` be called, as ``export_saved_model``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.export_saved_model(*args, **kwargs)


sys.modules[__name__].__class__ = _Export

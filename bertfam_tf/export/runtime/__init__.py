"""Loads an export and runs its signatures in this process.

The graph runs in the C++ SavedModel loader of TensorFlow Serving, without batching, and errors have
Serving's codes and texts. Neither Keras nor the code that created the model is needed. Exports are
compared with their tasks this way, and the local server (``bertfam_serve``) runs them.

    servable = load("exports/sentiment/1")
    servable.run("serving_default", {"text": np.array([b"a fine film"], object)})
"""

from typing import TYPE_CHECKING

from bertfam_tf.lazy import lazy

if TYPE_CHECKING:
    from bertfam_tf.export.runtime.loader import load
    from bertfam_tf.export.runtime.servable import DEFAULT_SIGNATURE, Servable, ServableLike
    from bertfam_tf.export.runtime.status import Code, ServingError

# Lazy, because importing TensorFlow takes seconds, and a command's `--help` should not wait for it.
_HOME = {
    "Code": "status",
    "DEFAULT_SIGNATURE": "servable",
    "Servable": "servable",
    "ServableLike": "servable",
    "ServingError": "status",
    "load": "loader",
}

__all__ = ["DEFAULT_SIGNATURE", "Code", "Servable", "ServableLike", "ServingError", "load"]

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)

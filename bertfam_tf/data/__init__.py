"""Readers of data files, and batches of raw text."""

from bertfam_tf.lazy import lazy

_HOME = {
    "Row": "rows",
    "Rows": "rows",
    "TokenBatches": "batching",
    "as_value_errors": "errors",
    "batches": "inputs",
    "format_of": "reading",
    "index_of": "labels",
    "read_rows": "reading",
    "shuffled_batches": "batching",
}
_MOVED = {"bertfam_tf.corpora": "read_lines segments token_stream"}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__, _MOVED)

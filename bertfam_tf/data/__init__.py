"""Readers of data files, and batches of raw text."""

from bertfam_tf.data.batching import TokenBatches, shuffled_batches
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.inputs import batches
from bertfam_tf.data.labels import index_of
from bertfam_tf.data.reading import format_of, read_rows
from bertfam_tf.data.rows import Row, Rows
from bertfam_tf.data.token_streams import read_lines, segments, token_stream

__all__ = [
    "Row",
    "Rows",
    "TokenBatches",
    "as_value_errors",
    "batches",
    "format_of",
    "index_of",
    "read_lines",
    "read_rows",
    "segments",
    "shuffled_batches",
    "token_stream",
]

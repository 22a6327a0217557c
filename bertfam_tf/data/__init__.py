"""Data sets: files of text, and batches of it."""

from bertfam_tf.data.batching import batches
from bertfam_tf.data.errors import as_value_errors
from bertfam_tf.data.grouping import shuffled_batches
from bertfam_tf.data.labels import index_of
from bertfam_tf.data.reading import format_of, read_rows
from bertfam_tf.data.rows import Row, Rows
from bertfam_tf.data.streams import read_lines, segments, token_stream
from bertfam_tf.data.tsv import read_tsv

__all__ = [
    "Row",
    "Rows",
    "as_value_errors",
    "batches",
    "format_of",
    "index_of",
    "read_lines",
    "read_rows",
    "read_tsv",
    "segments",
    "shuffled_batches",
    "token_stream",
]

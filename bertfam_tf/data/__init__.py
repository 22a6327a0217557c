"""Data sets: files of text, and batches of it."""

from bertfam_tf.data.batching import batches
from bertfam_tf.data.labels import index_of
from bertfam_tf.data.tsv import read_tsv

__all__ = ["batches", "index_of", "read_tsv"]

"""Exact in-memory search in the texts of a file by their embeddings; not a vector database."""

from bertfam_tf.search.build import build, embedder
from bertfam_tf.search.index import Hit, Index
from bertfam_tf.tasks.fingerprint import fingerprint

__all__ = ["Hit", "Index", "build", "embedder", "fingerprint"]

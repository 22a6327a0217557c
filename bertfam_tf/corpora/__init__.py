"""Pretraining examples as ``tf.data``: formats, masks, permutations, shards, languages, streams."""

from bertfam_tf.lazy import lazy

_HOME = {
    "Corpus": "corpus",
    "Format": "examples",
    "Masked": "masking",
    "Masking": "masking",
    "Permutation": "permutation",
    "Permuted": "permutation",
    "Segments": "formats",
    "SentenceWords": "words",
    "Shards": "shards",
    "TranslationPairs": "translation",
    "doc_sentences": "formats",
    "find_files": "documents",
    "full_sentences": "formats",
    "geometric": "masking",
    "ngrams": "masking",
    "read_documents": "documents",
    "read_lines": "token_streams",
    "segment_pairs": "formats",
    "segments": "token_streams",
    "sentence_pairs": "formats",
    "spans_at": "masking",
    "token_stream": "token_streams",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)

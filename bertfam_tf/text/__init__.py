"""In-graph text: tokenizers with offsets, packing into a model's inputs, windows, words."""

from importlib import import_module
from typing import Any

from bertfam_tf.text.formats import load_tokenizer
from bertfam_tf.text.packing import Layout, Packer
from bertfam_tf.text.tokenizer import Tokenizer
from bertfam_tf.text.wordpiece import WordPieceTokenizer

# Imported when first used: most programs need one of them.
_HOME = {
    "BPETokenizer": "bpe",
    "ByteBPETokenizer": "byte_bpe",
    "SentencePieceTokenizer": "sentencepiece",
    "Windows": "windows",
    "WordSplitter": "splitting",
    "WordTokenizer": "words",
    "pack_words": "alignment",
    "reading_words": "alignment",
    "spans_of": "windows",
    "tokenize_words": "alignment",
}

__all__ = ["Layout", "Packer", "Tokenizer", "WordPieceTokenizer", "load_tokenizer", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Text in the graph: tokenizers with offsets, packing into model inputs, windows, words.

``kernels`` is below ``tokenizers``, and both are below packing and windows.
"""

from bertfam_tf.lazy import lazy
from bertfam_tf.text.loading import load_tokenizer
from bertfam_tf.text.packing import Packer
from bertfam_tf.text.special_tokens import Layout, SpecialTokens
from bertfam_tf.text.tokenizers.base import Tokenizer
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

# Imported on first use: most programs need only one of the tokenizers.
_HOME = {
    "BPETokenizer": "tokenizers.bpe",
    "ByteBPETokenizer": "tokenizers.byte_bpe",
    "CharacterTokenizer": "tokenizers.characters",
    "SentencePieceTokenizer": "tokenizers.sentencepiece",
    "TextPreprocessor": "preprocessor",
    "UnigramTokenizer": "tokenizers.unigram",
    "Windows": "windows",
    "WordSplitter": "splitting",
    "WordTokenizer": "tokenizers.words",
    "with_prefix_space": "pretokenized",
    "spans_of": "windows",
    "tokenize_words": "pretokenized",
}

__all__ = [
    "Layout",
    "Packer",
    "SpecialTokens",
    "Tokenizer",
    "WordPieceTokenizer",
    "load_tokenizer",
    *_HOME,
]

__getattr__, __dir__ = lazy(__name__, _HOME, __all__)

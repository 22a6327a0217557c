"""tensorflow-text's SentencePiece, made to last."""

import hashlib

import tensorflow_text as tf_text
from tensorflow_text.python.ops import sentencepiece_tokenizer as library


class _SharedModel(library._SentencepieceModelResource):
    """A model that lives as long as the process.

    Without a name of its own it belongs to the kernel that made it, and goes with TensorFlow's
    cache of kernels, which ``keras.utils.set_random_seed`` empties. Named by content, equal models
    are one.
    """

    def _create_resource(self):
        name = hashlib.sha256(self._model).hexdigest()
        return library.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=f"sentencepiece_{name}"
        )


def sentencepiece(model: bytes) -> tf_text.SentencepieceTokenizer:
    """The kernel for a serialized model."""
    kernel = tf_text.SentencepieceTokenizer(model)
    kernel._model_resource = _SharedModel(model, kernel._model_resource._name)
    return kernel

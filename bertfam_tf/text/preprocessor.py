"""A Keras layer from raw text to the inputs of a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from bertfam_tf.text.loading import load_tokenizer
from bertfam_tf.text.packing import Packer, Padding, Truncation
from bertfam_tf.text.serialization import tokenizer_files, tokenizer_from_files
from bertfam_tf.text.tokenizers.base import Tokenizer

_TEXTS = ("text", "text_pair")


@keras.saving.register_keras_serializable(package="bertfam_tf")
class TextPreprocessor(keras.layers.Layer):
    """Tokenizes and packs texts in the graph, as the first layer of a model of raw text.

    The layer is saved with its tokenizer, and so is the model: ``model.save("NAME.keras")``;
    ``bertfam_tf.export(model, directory)`` writes a SavedModel of raw text. Models with it run on
    TensorFlow, without XLA.

    Args:
        tokenizer: a tokenizer; or a checkpoint, as ``bertfam_tf.load_tokenizer`` takes it.
        max_length: the maximum number of tokens, special tokens included; longer texts are
            truncated.
        padding: ``"longest"``, to the longest text of each batch; ``"max_length"``; or widths, of
            which the smallest that is enough is taken.
        truncation: which text of a pair is truncated, as ``text.Packer`` takes it.

    Call:
        texts: string (batch,) or (batch, 1); or two of these, for pairs, as a tuple or as a dict
            of ``text`` and ``text_pair``.

    Returns:
        Dict of int32 (batch, length): ``token_ids`` (with characters, (batch, length, characters)),
        ``padding_mask`` and ``segment_ids``; backbones ignore the inputs that they do not have.

    Raises:
        ValueError: for a ``max_length`` that leaves no room for a pair, another dtype than
            ``"string"``, or another structure of texts; and as ``load_tokenizer`` raises it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | Any,
        max_length: int = 512,
        *,
        padding: Padding = "longest",
        truncation: Truncation = "longest_first",
        **kwargs: Any,
    ):
        dtype = kwargs.pop("dtype", None)
        if dtype is not None and keras.dtype_policies.get(dtype).name != "string":
            raise ValueError(f"dtype must be 'string', as texts are, got {dtype!r}; ids are int32.")
        # The dtype of the input that a Sequential model adds before its first layer.
        super().__init__(dtype="string", **kwargs)
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = load_tokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.padding = padding if isinstance(padding, str) else list(padding)
        self.truncation = truncation
        self.packer = Packer(
            tokenizer.layout, tokenizer.special_ids, max_length, truncation, padding
        )
        self.built = True
        # XLA has no strings.
        self.supports_jit = False
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    @tf.autograph.experimental.do_not_convert
    def call(self, texts):
        packed = self.packer(
            [self.tokenizer.tokenize(_vector(column)) for column in _listed(texts)]
        )
        # TensorFlow warns about operations whose rank it cannot infer from the ragged tokens.
        return {name: tf.ensure_shape(x, [None] * x.shape.rank) for name, x in packed.items()}

    def compute_output_spec(self, texts):
        batch = _listed(texts)[0].shape[0]
        length = self.max_length if self.padding == "max_length" else None
        spec = {
            name: keras.KerasTensor((batch, length), "int32", name=name)
            for name in ("token_ids", "padding_mask", "segment_ids")
        }
        token_shape = (batch, length, *self.tokenizer.token_shape)
        return {**spec, "token_ids": keras.KerasTensor(token_shape, "int32", name="token_ids")}

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "tokenizer": tokenizer_files(self.tokenizer),
            "max_length": self.max_length,
            "padding": self.padding,
            "truncation": self.truncation,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**{**config, "tokenizer": tokenizer_from_files(config["tokenizer"])})


def _listed(texts: Any) -> list[Any]:
    """Returns one or two tensors of texts."""
    if isinstance(texts, Mapping):
        if "text" not in texts or texts.keys() - set(_TEXTS):
            raise ValueError(f"Texts must be 'text' and optionally 'text_pair', got {[*texts]}.")
        return [texts[name] for name in _TEXTS if name in texts]
    strings = isinstance(texts, list) and all(isinstance(text, str | bytes) for text in texts)
    if not isinstance(texts, list | tuple) or strings:
        return [texts]
    if len(texts) not in (1, 2):
        raise ValueError(f"Texts must be one tensor or two, got {len(texts)}.")
    return list(texts)


def _vector(texts: Any) -> tf.Tensor:
    texts = tf.convert_to_tensor(texts, tf.string)
    return tf.squeeze(texts, -1) if texts.shape.rank == 2 else texts

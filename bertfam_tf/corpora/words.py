"""Examples for language models that read characters and predict words."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bertfam_tf.text import CharacterTokenizer, Packer, WordSplitter
from bertfam_tf.text.special_tokens import ROLES


class SentenceWords:
    """Packs sentences, and the ids of their words at the same positions, in the graph.

    Args:
        tokenizer: splits sentences into words.
        vocabulary: the predicted words in the order of their ids. The first three are the names of
            the tokenizer's start and end of a sentence and of unknown words, such as ``"<S>"``,
            ``"</S>"`` and ``"<UNK>"``.
        max_length: the maximum number of tokens, start and end included.

    Call:
        texts: string (batch,).

    Returns:
        ``(inputs, words)``: the inputs of a backbone, and int32 (batch, length), for
        ``BidirectionalTokens``.

    Raises:
        ValueError: if the vocabulary starts differently or repeats a word.
    """

    def __init__(self, tokenizer: CharacterTokenizer, vocabulary: Sequence[str], max_length: int):
        words = list(vocabulary)
        special = tokenizer.special_tokens
        expected = [special.bos_token, special.eos_token]
        if words[:2] != expected or len(words) < 3:
            raise ValueError(
                f"vocabulary must start with {expected[0]!r}, {expected[1]!r} and a word for all "
                f"others, got {words[:3]}."
            )
        if len(set(words)) < len(words):
            raise ValueError("vocabulary must not repeat a word.")
        self.tokenizer = tokenizer
        self._split = WordSplitter(tokenizer.get_config()["split"])
        ids = dict.fromkeys(ROLES, 0) | {"eos": 1}
        self._rows = Packer(tokenizer.layout, tokenizer.special_ids, max_length)
        self._words = Packer(tokenizer.layout, ids, max_length)
        with tf.init_scope():
            known = tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words)))
            self._ids = tf.lookup.StaticHashTable(known, 2)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, texts: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        packed = self._rows([self.tokenizer.tokenize(texts)])
        words = self._split(texts).text
        ids = words.with_values(self._ids.lookup(words.values))
        inputs = {name: packed[name] for name in ("token_ids", "padding_mask")}
        return inputs, self._words([ids])["token_ids"]

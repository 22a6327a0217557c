"""Texts that are split into words, compared with Hugging Face's `is_pretokenized`."""

import os
from pathlib import Path

import pytest
import tensorflow as tf

from bertfam_tf.text import (
    ByteBPETokenizer,
    SpecialTokens,
    WordPieceTokenizer,
    tokenize_words,
    with_prefix_space,
)

tokenizers = pytest.importorskip("tokenizers")

DATA = Path(os.environ.get("BERTFAM_DATA", Path(__file__).parents[3] / "shared" / "data"))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
          "the", "un", "##able", "##s", "a", "##a", "!", "'", "don", "t"]  # fmt: skip
WORDS = [
    ["the", "unable", "a", "don't", "!"],
    [],
    ["\x00", "unables", "", "aaaa", "[MASK]", "\u200b\u00ad", "the the", "?"],
    ["", " "],
    ["aaaaaaaaaaaaaaaaaaaa", "a"],
]


def _check(tokenizer, reference, words):
    found = tokenize_words(tokenizer, words).to_list()
    rows = reference.encode_batch(words, is_pretokenized=True, add_special_tokens=False)
    for texts, pieces, row in zip(words, found, rows, strict=True):
        pairs = list(zip(row.word_ids, row.ids, strict=True))
        assert pieces == [[i for word, i in pairs if word == k] for k in range(len(texts))]


@pytest.mark.extended
def test_words_equal_the_reference():
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    reference = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=True)
    reference.add_special_tokens(PIECES[:5])
    _check(WordPieceTokenizer(PIECES), reference, WORDS)


@pytest.mark.full
@pytest.mark.parametrize("words", [[], [[]], [["\x00"]]])
def test_no_words(words):
    found = tokenize_words(WordPieceTokenizer(PIECES), words)
    assert found.to_list() == [[[] for _ in row] for row in words]


def test_words_of_another_rank():
    with pytest.raises(ValueError, match="words must have the shape"):
        tokenize_words(WordPieceTokenizer(PIECES), tf.constant(["the"]))


@pytest.mark.full
@pytest.mark.skipif(
    not (DATA / "vocab/roberta-base").exists(), reason="no roberta-base in the data folder"
)
def test_words_of_byte_level_bpe_equal_the_reference():
    files = [str(DATA / "vocab/roberta-base" / name) for name in ("vocab.json", "merges.txt")]
    special = SpecialTokens(
        cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>"
    )
    bare = ByteBPETokenizer(*files, special_tokens=special)
    reference = tokenizers.ByteLevelBPETokenizer(*files, add_prefix_space=True)
    reference.add_special_tokens(list(special))
    words = [["The", "quick", " brown", "fox's", "", "<mask>", "日本", "é\n", "\t x"], [], ["a"]]
    _check(with_prefix_space(bare), reference, words)
    with pytest.raises(ValueError, match="tokenizer must have add_prefix_space=True"):
        tokenize_words(bare, words)

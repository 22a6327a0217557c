"""CharacterTokenizer: rows of bytes and offsets as Python computes them; files, graphs."""

import copy
import random

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import (
    CharacterTokenizer,
    Packer,
    SpecialTokens,
    WordSplitter,
    load_tokenizer,
    with_prefix_space,
)
from tests.selection import in_full
from tests.text.graphs import assert_the_same_in_a_dataset, assert_the_same_in_a_saved_model

TEXTS = [
    "",
    " \t ",
    "The dog, a U.S. dog.",
    "x" * 47 + " " + "x" * 48 + " " + "x" * 49 + " " + "x" * 5000,
    "é" * 24 + " " + "é" * 25 + " x" + "é" * 24,
    "日本語 🙂\u200d naïve\u0301",
    "a\0b \x01 \x7f",
    b"\xff bad \xc3( \xe2\x82 end\xf0\x9f",
    "<S> </S> <PAD> [CLS]",
]


def row_of(word, width=50):
    """As AllenNLP's ELMoCharacterMapper makes it."""
    values = [258, *word.encode()[: width - 2], 259]
    return [value + 1 for value in values + [260] * (width - len(values))]


def expected(texts, split, width=50):
    words = WordSplitter(split)(tf.constant(texts))
    text = [[word.decode("utf-8", "replace") for word in row] for row in words.text.to_list()]
    rows = [[row_of(word, width) for word in row] for row in text]
    return rows, words.first_byte.to_list(), words.end_byte.to_list()


@pytest.mark.parametrize("split", ["punctuation", "spaces"])
@pytest.mark.parametrize("width", in_full([50, 3, 8], [8]))
def test_rows_and_offsets(split, width):
    tokenizer = CharacterTokenizer(split=split, max_characters=width)
    found = [part.to_list() for part in tokenizer.tokenize_with_offsets(TEXTS)]
    for ours, theirs in zip(found, expected(TEXTS, split, width), strict=True):
        assert ours == theirs
    assert tokenizer.tokenize(TEXTS).to_list() == found[0]


@pytest.mark.full
def test_random_bytes():
    rng = random.Random(0)
    texts = [bytes(rng.choices(range(256), k=rng.randint(0, 40))) for _ in range(500)]
    tokenizer = CharacterTokenizer()
    assert tokenizer.tokenize(texts).to_list() == expected(texts, "punctuation")[0]


def test_shapes():
    tokenizer = CharacterTokenizer()
    assert tokenizer.token_shape == (50,)
    assert tokenizer.vocab_size == len(set(tokenizer.vocabulary)) == 262
    assert tokenizer.tokenize("a b").shape == (2, 50)
    assert tokenizer.tokenize([]).shape.as_list() == [0, None, 50]
    assert tokenizer.tokenize([["a"], ["b", "c d"]]).bounding_shape().numpy().tolist() == [
        2,
        2,
        2,
        50,
    ]


def test_sentences_are_packed_between_their_begin_and_end():
    tokenizer = CharacterTokenizer(max_characters=6)
    packer = Packer(tokenizer.layout, tokenizer.special_ids, 7)
    words = [tokenizer.tokenize(texts) for texts in (["a b c d e f", ""], ["a", "b c"])]
    packed = {name: value.numpy() for name, value in packer(words).items()}
    begin, end = [259, 257, 260, 261, 261, 261], [259, 258, 260, 261, 261, 261]
    a, b, c = (row_of(word, 6) for word in "abc")
    assert packed["token_ids"].tolist() == [
        [begin, a, b, end, begin, a, end],
        [begin, end, begin, b, c, end, [0] * 6],
    ]
    assert packed["padding_mask"].tolist() == [[1] * 7, [1] * 6 + [0]]
    empty = packer([tokenizer.tokenize(tf.constant([], tf.string))])
    assert empty["token_ids"].shape == (0, 2, 6) or empty["token_ids"].shape == (0, 1, 6)


def test_words_of_rows():
    tokenizer = CharacterTokenizer()
    rows = tokenizer.tokenize(["The dog, naïve"])
    assert tokenizer.detokenize(rows).numpy().tolist() == ["The dog , naïve".encode()]
    assert tokenizer.detokenize(rows.to_list()).numpy().tolist() == ["The dog , naïve".encode()]
    assert tokenizer.id_to_token(rows[0].numpy().tolist()[0]) == "The"
    assert tokenizer.id_to_token(list(tokenizer.special_ids["bos"])) == "<S>"
    assert tokenizer.id_to_token(list(tokenizer.special_ids["pad"])) == ""
    assert tokenizer.id_to_token(98) == "0x61"


def test_words_that_are_split_already_stay_whole():
    plain = CharacterTokenizer()
    whole = with_prefix_space(plain)
    assert whole.get_config() == {**plain.get_config(), "split": "spaces"}
    assert with_prefix_space(whole) is whole


def test_files(tmp_path):
    made = CharacterTokenizer(split="spaces", max_characters=20)
    made.save(tmp_path / "own")
    for again in (load_tokenizer(tmp_path / "own"), copy.deepcopy(made)):
        assert again.get_config() == made.get_config()
    (tmp_path / "elmo_options.json").write_text('{"char_cnn": {"max_characters_per_token": 30}}')
    assert load_tokenizer(tmp_path).max_characters == 30
    (tmp_path / "elmo_options.json").write_text('{"char_cnn": 1}')
    with pytest.raises(CheckpointError, match=r"found no char_cnn\.max_characters_per_token"):
        load_tokenizer(tmp_path)
    (tmp_path / "elmo_options.json").write_text('{"char_cnn": {"max_characters_per_token": 1e9}}')
    with pytest.raises(CheckpointError, match="max_characters must be an integer from 3 to 256"):
        load_tokenizer(tmp_path)
    (tmp_path / "options.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"one \*options\.json, found 2"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_characters": 2}, "max_characters must be an integer from 3 to 256, got 2"),
        ({"max_characters": True}, "max_characters must be an integer from 3 to 256, got True"),
        ({"split": "words"}, "split must be spaces or punctuation, got 'words'"),
        ({"special_tokens": SpecialTokens(bos_token="<S>")}, "special_tokens_in_text=False"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer(**arguments)


@pytest.mark.full
def test_the_same_in_graphs(tmp_path):
    tokenizer = CharacterTokenizer()
    texts = [text.encode() if isinstance(text, str) else text for text in TEXTS]
    assert_the_same_in_a_dataset(tokenizer, texts)
    assert_the_same_in_a_saved_model(tokenizer, [texts, texts[:1], []], tmp_path)
    assert np.asarray(tokenizer.special_ids["pad"]).sum() == 0

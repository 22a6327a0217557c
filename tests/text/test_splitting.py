"""Words and their offsets: compared with Python's str.split, and with punctuation."""

import random
import string
import unicodedata

import pytest
import tensorflow as tf

from bertfam_tf.text import ByteBPETokenizer, WordPieceTokenizer, WordSplitter, with_prefix_space
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters

SPACES = [chr(point) for point in range(0x110000) if chr(point).isspace()]
TEXTS = [
    b"",
    b" ",
    b"a",
    "".join(SPACES).encode(),
    "  the\u3000dog\n, «it's» $5 a_b…\x01 \0x".encode(),
    b"\xff.\xe2\x80 a\xe1\xc2\x85b \xc3",
    *(f"{space}é{space}{space}🙂.{space}".encode() for space in SPACES),
    ("z" * 10_000 + " the " + "中" * 10_000).encode(),
]
_MIX = "the a\x85\u2003é\u3000\u1680😀\x1c!.\x01\0\x02$…".encode() + b"\xff\xe2\x80"


def expected(text, punctuation):
    """Words and their first and last characters, found character by character."""
    words, begin = [], None
    for place, char in enumerate(text + " "):
        mark = punctuation and (
            char in string.punctuation or unicodedata.category(char).startswith("P")
        )
        if (mark or char.isspace()) and begin is not None:
            words.append((text[begin:place], begin, place))
            begin = None
        if mark:
            words.append((char, place, place + 1))
        elif not char.isspace() and begin is None:
            begin = place
    return words


@pytest.fixture(scope="module", params=["spaces", "punctuation"])
def splitter(request):
    return WordSplitter(request.param)


def _assert_right(splitter, texts):
    found = splitter(tf.constant(texts, tf.string))
    rows = zip(*(part.to_list() for part in found), strict=True)
    for text, (words, starts, ends, first_bytes, end_bytes) in zip(texts, rows, strict=True):
        assert [text[a:b] for a, b in zip(first_bytes, end_bytes, strict=True)] == words
        words = [word.decode("utf-8", "replace") for word in words]
        wanted = expected(text.decode("utf-8", "replace"), splitter.split == "punctuation")
        assert list(zip(words, starts, ends, strict=True)) == wanted


def test_words_and_offsets(splitter):
    _assert_right(splitter, TEXTS)
    for text in TEXTS:
        _assert_right(splitter, [text])


def test_random_bytes(splitter):
    rng = random.Random(0)
    _assert_right(splitter, [bytes(rng.choices(_MIX, k=rng.randint(0, 20))) for _ in range(2000)])


def test_without_punctuation_words_are_those_of_str_split():
    found = WordSplitter()(tf.constant(TEXTS)).text.to_list()
    for text, words in zip(TEXTS, found, strict=True):
        text = text.decode("utf-8", "replace")
        assert [word.decode("utf-8", "replace") for word in words] == text.split()


def test_an_empty_batch(splitter):
    for part in splitter(tf.zeros([0], tf.string)):
        assert part.to_list() == []


def test_an_unknown_split():
    with pytest.raises(ValueError, match="split must be spaces or punctuation, got 'words'"):
        WordSplitter("words")


@pytest.mark.extended
def test_tokenizers_read_words_with_a_space_before_them():
    pieces = [*byte_characters(), "Ġa"]
    a, b, space, spaced_a = (pieces.index(piece) for piece in ("a", "b", "Ġ", "Ġa"))
    plain = ByteBPETokenizer(pieces, [("Ġ", "a")])
    spaced = with_prefix_space(plain)
    assert plain.tokenize(["a", " a"]).to_list() == [[a], [spaced_a]]
    assert spaced.tokenize(["a", "b"]).to_list() == [[spaced_a], [space, b]]
    assert with_prefix_space(spaced) is spaced
    other = WordPieceTokenizer(["[UNK]", "a"])
    assert with_prefix_space(other) is other

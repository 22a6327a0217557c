"""Word vectors from text files in the rows of a token embedding."""

import numpy as np
import pytest

import bertfam_tf as bf
from bertfam_tf.distill.word_vectors import load_word_vectors
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film", "##s", "é", "at"]
GLOVE = """a 0.25 -1 2e-2
films 9 9 9
é 1 2 3
at x@y 7 7 7
film .5 0 0
a 8 8 8
"""


@pytest.fixture
def tokenizer(tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n", "utf-8")
    return WordPieceTokenizer(file)


@pytest.fixture
def backbone():
    return bf.build("bilstm", "tiny", vocab_size=len(PIECES) + 2, embedding_size=3, hidden_size=4)


def _table(backbone):
    return np.array(backbone.parts["token_embedding"].embeddings)


@pytest.mark.parametrize("header", ["", "6 3\n"], ids=["glove", "word2vec"])
@pytest.mark.parametrize("end", ["\n", " \r\n"])
def test_rows_of_words_are_set(backbone, tokenizer, tmp_path, header, end):
    before = _table(backbone)
    file = tmp_path / "vectors.txt"
    file.write_bytes((header + GLOVE).replace("\n", end).encode())
    assert load_word_vectors(backbone, tokenizer, file) == pytest.approx(3 / 12)
    expected = before.copy()
    expected[5], expected[6], expected[8] = [0.25, -1, 0.02], [0.5, 0, 0], [1, 2, 3]
    np.testing.assert_array_equal(_table(backbone), expected.astype("float32"))
    assert backbone.parts["token_embedding"].embeddings.trainable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\n", "line 1: expected a word and 3 numbers, .*, got 'a 1 2' with 2"),
        (b"a 1 2 3 4\n", "line 1: expected a word and 3 numbers, .* with 4"),
        (b"2 4\na 1 2 3 4\n", "line 1: expected a word and 3 numbers, .*, got '2 4' with 1"),
        (b"film 1 2 3\na 1 2\n", "line 2: expected a word and 3 numbers"),
        (b"film 1 2 3\na 1 x 3\n", "line 2: expected 3 finite numbers after the word"),
        (b"film 1 2 3\na 1 nan 3\n", "line 2: expected 3 finite numbers after the word"),
        (b"film 1 2 3\na 1  3\n", "line 2: expected 3 finite numbers after the word"),
        (b"\x00\xff" * 9000, "line 1: expected a word and 3 numbers"),
        (b"", "is empty, expected a word and 3 numbers in each line"),
    ],
)
def test_other_files_change_nothing(backbone, tokenizer, tmp_path, content, message):
    before = _table(backbone)
    file = tmp_path / "vectors.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_word_vectors(backbone, tokenizer, file)
    assert str(file) in str(error.value)
    assert len(str(error.value)) < 400
    np.testing.assert_array_equal(_table(backbone), before)


def test_arguments_that_do_not_belong_together(backbone, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"There is no file .*absent"):
        load_word_vectors(backbone, tokenizer, tmp_path / "absent")
    small = bf.build("bilstm", "tiny", vocab_size=4, embedding_size=3, hidden_size=4)
    with pytest.raises(ValueError, match="tokenizer has 10 tokens, the embedding 4 rows"):
        load_word_vectors(small, tokenizer, tmp_path / "absent")


def test_lines_are_read_one_by_one(backbone, tokenizer, tmp_path):
    """A damaged file without line ends is not read as a whole."""
    file = tmp_path / "vectors.txt"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # sparse
    with pytest.raises(ValueError, match="line 1: expected a word"):
        load_word_vectors(backbone, tokenizer, file)

"""Streams of tokens, and the segments that they are cut into."""

import numpy as np
import pytest

from bertfam_tf.corpora import read_lines, segments, token_stream
from bertfam_tf.text import ByteBPETokenizer, WordTokenizer
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])


def test_lines_of_files(tmp_path):
    (tmp_path / "one").write_bytes(b"a b\r\n\nc")
    (tmp_path / "two").write_bytes(b"b\n")
    found = list(read_lines([tmp_path / "one", tmp_path / "two"]))
    assert found == [b"a b", b"", b"c", b"b"]
    with pytest.raises(FileNotFoundError):
        list(read_lines([tmp_path / "three"]))


def test_tokens_and_ends():
    texts = ["a b", "", "c d"]
    assert token_stream(texts, WORDS, "<eos>").tolist() == [2, 3, 1, 1, 4, 0, 1]
    assert token_stream(texts, WORDS, None).tolist() == [2, 3, 4, 0]
    # More than are tokenized at once.
    assert len(token_stream(["a"] * 3000, WORDS, "<eos>")) == 6000
    with pytest.raises(ValueError, match="no token '</s>' to append to each text"):
        token_stream(texts, WORDS, "</s>")
    for nothing in ([], [""]):
        with pytest.raises(ValueError, match="have no tokens"):
            token_stream(nothing, WORDS, None)


def test_lines_of_byte_bpe_do_not_join_words():
    tokenizer = ByteBPETokenizer(byte_characters(), [])
    ids = token_stream(["a b.", "c"], tokenizer, None)
    assert tokenizer.detokenize([ids.tolist()]).numpy().tolist() == [b"a b.\nc\n"]
    # Where a space is added to each text, it is between them already.
    spaced = ByteBPETokenizer(byte_characters(), [], add_prefix_space=True)
    ids = token_stream(["a b.", "c"], spaced, None)
    assert spaced.detokenize([ids.tolist()]).numpy().tolist()[0].strip() == b"a b. c"


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("length", [1, 4, 7, 100])
def test_every_token_but_the_first_is_a_target_once(batch_size, length):
    ids = np.arange(100, 124)
    rows = [[] for _ in range(batch_size)]
    data = segments(ids, batch_size, length)
    assert data.options().autotune.enabled is False
    for i, (inputs, targets, weights) in enumerate(data):
        assert inputs["begins"].numpy().tolist() == [int(i == 0)] * batch_size
        assert inputs["token_ids"].shape[1] <= length
        kept = weights.numpy() > 0
        np.testing.assert_array_equal(targets.numpy()[kept], inputs["token_ids"].numpy()[kept] + 1)
        for row, found, real in zip(rows, targets.numpy(), kept, strict=True):
            row += found[real].tolist()
    assert [token for row in rows for token in row] == ids[1:].tolist()


def test_what_cannot_be_cut():
    for arguments in (([1], 1, 1), ([1, 2], 0, 1), ([1, 2], 1, 0)):
        with pytest.raises(
            ValueError, match="at least 2 tokens, and batch_size and length must be"
        ):
            segments(*arguments)

"""Packer: every pair of lengths against Hugging Face's `tokenizers`, and what stays fixed."""

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.text import Packer

tokenizers = pytest.importorskip("tokenizers")

CLS, SEP, PAD = 101, 102, 7
LONGEST = 12
LENGTHS = [(a, b) for a in range(LONGEST + 1) for b in range(LONGEST + 1)]


def _ids(length: int, first: int) -> list[int]:
    return list(range(first, first + length))


def _ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


@pytest.fixture(scope="module")
def reference():
    vocabulary = {str(i): i for i in range(200)} | {"[CLS]": CLS, "[SEP]": SEP}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "0"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )

    def encode(max_length, *segments):
        tokenizer.enable_truncation(max_length, strategy="longest_first")
        return tokenizer.encode(*([str(i) for i in s] for s in segments), is_pretokenized=True)

    return encode


@pytest.mark.parametrize("max_length", [5, 6, 7, 8, 11, 15, 16, 27, 40])
@pytest.mark.parametrize("segments", [1, 2])
def test_rows_equal_the_reference(reference, segments, max_length):
    lengths = LENGTHS if segments == 2 else [(a,) for a in range(LONGEST + 1)]
    rows = [[_ids(n, 10 + 40 * i) for i, n in enumerate(pair)] for pair in lengths]
    packed = Packer(CLS, SEP, PAD, max_length)([_ragged(list(s)) for s in zip(*rows, strict=True)])
    packed = {name: value.numpy() for name, value in packed.items()}
    assert {value.dtype.name for value in packed.values()} == {"int32"}
    assert packed["token_ids"].shape[1] == min(max_length, 1 + segments + segments * LONGEST)
    for i, row in enumerate(rows):
        expected = reference(max_length, *row)
        real = len(expected.ids)
        assert packed["token_ids"][i, :real].tolist() == expected.ids, lengths[i]
        assert packed["segment_ids"][i, :real].tolist() == expected.type_ids, lengths[i]
        assert packed["padding_mask"][i].sum() == packed["padding_mask"][i, :real].sum() == real
        assert set(packed["token_ids"][i, real:]) <= {PAD}
        assert not packed["segment_ids"][i, real:].any()


def test_empty_texts_keep_their_separators():
    packed = Packer(CLS, SEP, PAD, 8)([_ragged([[], [1]]), _ragged([[], []])])
    assert packed["token_ids"].numpy().tolist() == [[CLS, SEP, SEP, PAD], [CLS, 1, SEP, SEP]]
    assert packed["segment_ids"].numpy().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("segments", [1, 2])
def test_a_batch_without_rows_is_one_wide(segments):
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros([0], tf.int64))
    packed = Packer(CLS, SEP, PAD, 8)([empty] * segments)
    assert {tuple(value.shape) for value in packed.values()} == {(0, 1)}


@pytest.mark.parametrize("how", ["dataset", "function"])
def test_the_same_in_graphs(how):
    packer = Packer(CLS, SEP, PAD, 7)
    a, b = _ragged([[1] * 9, [], [2]]), _ragged([[3] * 4, [4], []])
    expected = {name: value.numpy() for name, value in packer([a, b]).items()}
    if how == "dataset":
        dataset = tf.data.Dataset.from_tensors((a, b)).map(lambda a, b: packer([a, b]))
        (found,) = dataset.as_numpy_iterator()
    else:
        spec = tf.RaggedTensorSpec([None, None], tf.int32)
        found = tf.function(lambda a, b: packer([a, b]), [spec, spec])(a, b)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_too_short_a_length_is_refused():
    with pytest.raises(ValueError, match="max_length 4 is too small"):
        Packer(CLS, SEP, PAD, 4)

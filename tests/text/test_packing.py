"""Packer: all pairs of lengths compared with Hugging Face's `tokenizers`; edge cases."""

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.text import Packer
from bertfam_tf.text.special_tokens import A_THEN_B, CLS_A_SEP, CLS_A_SEP_SEP, Layout
from tests.selection import in_full

tokenizers = pytest.importorskip("tokenizers")

CLS, SEP, PAD, BOS = 101, 102, 7, 103
IDS = {"cls": CLS, "sep": SEP, "pad": PAD, "bos": BOS}
TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "bos": "[BOS]", "a": "$A", "b": "$B"}
LAYOUTS = {
    "bert": CLS_A_SEP,
    "roberta": CLS_A_SEP_SEP,
    "gpt": A_THEN_B,
    "xlm": Layout(("bos", "a", "sep"), ("bos", "a", "sep", "b", "sep")),
    "xlnet": Layout(
        ("a", "sep", "cls"), ("a", "sep", "b", "sep", "cls"), (0, 0, 2), (0, 0, 1, 1, 2),
        pad_left=True, pad_segment=3,
    ),
    "left": Layout(truncate_left=True),
}  # fmt: skip
LONGEST = 12
LENGTHS = [(a, b) for a in range(LONGEST + 1) for b in range(LONGEST + 1)]


def _ids(length: int, first: int) -> list[int]:
    return list(range(first, first + length))


def _ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def _template(entries, segments):
    return [f"{TOKENS[entry]}:{segment}" for entry, segment in zip(entries, segments, strict=True)]


def _reference(layout, max_length, strategy="longest_first"):
    vocabulary = {str(i): i for i in range(200)} | {"[CLS]": CLS, "[SEP]": SEP, "[BOS]": BOS}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "0"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=_template(layout.single, layout.single_segments),
        pair=_template(layout.pair, layout.pair_segments),
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP), ("[BOS]", BOS)],
    )
    side = "left" if layout.truncate_left else "right"
    tokenizer.enable_truncation(max_length, strategy=strategy, direction=side)
    tokenizer.enable_padding(
        direction="left" if layout.pad_left else "right",
        pad_id=PAD,
        pad_type_id=layout.pad_segment,
    )
    return lambda rows: tokenizer.encode_batch(
        [[list(map(str, text)) for text in row][0 if len(row) == 1 else slice(None)]
         for row in rows],
        is_pretokenized=True,
    )  # fmt: skip


def _check(layout, rows, max_length, truncation):
    texts = [_ragged(list(text)) for text in zip(*rows, strict=True)]
    packed = Packer(layout, IDS, max_length, truncation)(texts)
    expected = _reference(layout, max_length, truncation)(rows)
    assert {value.dtype.name for value in packed.values()} == {"int32"}
    assert packed["token_ids"].numpy().tolist() == [row.ids for row in expected]
    assert packed["segment_ids"].numpy().tolist() == [row.type_ids for row in expected]
    assert packed["padding_mask"].numpy().tolist() == [row.attention_mask for row in expected]


@pytest.mark.parametrize("max_length", in_full([6, 7, 8, 11, 15, 16, 27, 40], [7, 15]))
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_equal_the_reference(name, texts, max_length):
    lengths = LENGTHS if texts == 2 else [(a,) for a in range(LONGEST + 1)]
    rows = [[_ids(n, 10 + 40 * i) for i, n in enumerate(each)] for each in lengths]
    _check(LAYOUTS[name], rows, max_length, "longest_first")


@pytest.mark.parametrize("max_length", [6, 11, 16, 40])
@pytest.mark.parametrize("truncation", ["only_first", "only_second"])
@pytest.mark.parametrize("name", ["bert", "xlnet", "left"])
def test_truncation_of_one_text(name, truncation, max_length):
    layout = LAYOUTS[name]
    room = max_length - layout.special_count(2)
    other = 0 if truncation == "only_second" else 1
    # The reference raises if nothing would be left of the text to truncate.
    lengths = [each for each in LENGTHS if each[other] < room]
    rows = [[_ids(n, 10 + 40 * i) for i, n in enumerate(each)] for each in lengths]
    _check(layout, rows, max_length, truncation)


def test_truncation_if_a_single_text_is_too_long():
    a, b = _ragged([[1, 2, 3, 4, 5]]), _ragged([[11, 12, 13, 14, 15]])
    packed = Packer(CLS_A_SEP, IDS, 6, "only_second")([a, b])
    assert packed["token_ids"].numpy().tolist() == [[CLS, 1, 2, 3, SEP, SEP]]
    packed = Packer(CLS_A_SEP, IDS, 6, "only_first")([a, b])
    assert packed["token_ids"].numpy().tolist() == [[CLS, SEP, 11, 12, 13, SEP]]


def test_pieces_of_texts_without_their_beginnings():
    a, b = _ragged([[1, 2, 3, 4, 5], [6]]), _ragged([[11, 12], [13]])
    filled = Packer(LAYOUTS["left"], IDS, 7).fill([a, b])
    assert filled.pieces(0).numpy().tolist() == [[-1, 3, 4, -1, -1, -1, -1], [-1, 0, *[-1] * 5]]
    assert filled.pieces(1).numpy().tolist() == [[*[-1] * 4, 0, 1, -1], [*[-1] * 3, 0, *[-1] * 3]]


def test_empty_texts_keep_their_separators():
    packed = Packer(CLS_A_SEP, IDS, 8)([_ragged([[], [1]]), _ragged([[], []])])
    assert packed["token_ids"].numpy().tolist() == [[CLS, SEP, SEP, PAD], [CLS, 1, SEP, SEP]]
    assert packed["segment_ids"].numpy().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]


def test_no_special_tokens_and_no_pieces():
    packed = Packer(A_THEN_B, {}, 8)([_ragged([[], []])])
    assert packed["token_ids"].numpy().tolist() == [[0], [0]]
    assert packed["padding_mask"].numpy().tolist() == [[0], [0]]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("texts", [1, 2])
def test_an_empty_batch_has_length_1(name, texts):
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros([0], tf.int64))
    packed = Packer(LAYOUTS[name], IDS, 8)([empty] * texts)
    assert {tuple(value.shape) for value in packed.values()} == {(0, 1)}


@pytest.mark.parametrize("how", ["dataset", "function"])
def test_the_same_in_graphs(how):
    packer = Packer(LAYOUTS["xlnet"], IDS, 7)
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"single": ("cls", "a", "end")}, "entries of layout.single must be 'a', 'b' or one of"),
        ({"single": ("cls", "sep")}, "must contain 'a' once"),
        ({"single": ("a", "b"), "single_segments": (0, 0)}, "must contain 'a' once"),
        (
            {"pair": ("a", "sep", "a"), "pair_segments": (0, 0, 0)},
            "must contain 'a' and then 'b' once",
        ),
        ({"pair": ("b", "a"), "pair_segments": (0, 0)}, "must contain 'a' and then 'b' once"),
        (
            {"pair_segments": (0, 1)},
            "layout.pair_segments must have . entries like layout.pair",
        ),
    ],
)
def test_invalid_layouts(changes, message):
    with pytest.raises(ValueError, match=message):
        Layout(**changes)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
@pytest.mark.parametrize(
    ("padding", "widths"),
    [
        ("longest", {1: 3, 3: 5, 6: 8, 9: 9}),
        ("max_length", {1: 9, 3: 9, 6: 9, 9: 9}),
        ((4, 6), {1: 4, 3: 6, 6: 9, 9: 9}),
        ([6, 20], {1: 6, 3: 6, 6: 9, 9: 9}),
    ],
)
def test_widths(name, padding, widths):
    """Rows are the same as at the longest row's width, with more padding."""
    for pieces, width in widths.items():
        rows = [_ragged([[1] * pieces, [2]])]
        found = Packer(LAYOUTS[name], IDS, 9, padding=padding)(rows)
        expected = Packer(LAYOUTS[name], IDS, 9)(rows)
        assert {tuple(value.shape) for value in found.values()} == {(2, width)}
        values = Packer(LAYOUTS[name], IDS, 9).frame.padding
        for key, value in expected.items():
            more = [(0, 0), (width - value.shape[1], 0)[:: 1 if LAYOUTS[name].pad_left else -1]]
            padded = np.pad(value, more, constant_values=values[key])
            np.testing.assert_array_equal(found[key], padded)


def test_one_width_is_known_to_a_graph():
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    for padding, width in (("max_length", 9), ("longest", None), ((4, 6), None)):
        packer = Packer(CLS_A_SEP, IDS, 9, padding=padding)
        traced = tf.function(lambda a, packer=packer: packer([a]), [spec])
        outputs = traced.get_concrete_function().structured_outputs
        assert {tuple(value.shape) for value in outputs.values()} == {(None, width)}


def test_invalid_arguments():
    for padding in ("short", (0, 4), (2.5,)):
        with pytest.raises(ValueError, match="must be 'longest', 'max_length' or widths"):
            Packer(CLS_A_SEP, IDS, 8, padding=padding)
    with pytest.raises(ValueError, match="max_length 4 is too small; a pair needs 5 tokens"):
        Packer(CLS_A_SEP, IDS, 4)
    with pytest.raises(ValueError, match="truncation must be one of longest_first"):
        Packer(CLS_A_SEP, IDS, 8, "both")
    with pytest.raises(ValueError, match="a 'cls' token, which the tokenizer does not have; it"):
        Packer(CLS_A_SEP, {"sep": 1}, 8)
    with pytest.raises(ValueError, match="texts must be one or two, got 3"):
        Packer(CLS_A_SEP, IDS, 8)([_ragged([[]])] * 3)

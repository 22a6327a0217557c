"""Windows: all document lengths compared with Hugging Face's `tokenizers`, context with BERT's
rule, and offsets in the text."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.text import WordPieceTokenizer
from bertfam_tf.text.special_tokens import A_THEN_B, CLS_A_SEP, CLS_A_SEP_SEP, Layout
from bertfam_tf.text.windows import Windows, spans_of
from tests.selection import in_full

CLS, SEP, PAD = 101, 102, 7
IDS = {"cls": CLS, "sep": SEP, "pad": PAD}
XLNET = Layout(
    ("a", "sep", "cls"), ("a", "sep", "b", "sep", "cls"), (0, 0, 2), (0, 0, 1, 1, 2),
    pad_left=True, pad_segment=3,
)  # fmt: skip
LEFT = replace(CLS_A_SEP, truncate_left=True)
LAYOUTS = {
    "bert": CLS_A_SEP, "roberta": CLS_A_SEP_SEP, "gpt": A_THEN_B, "xlnet": XLNET, "left": LEFT,
}  # fmt: skip
TOKENS = {"cls": "[CLS]", "sep": "[SEP]", "a": "$A", "b": "$B"}
LENGTHS = range(60)


def _ragged(rows):
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def _document(length):
    return [1000 + i for i in range(length)]


def _reference(layout, max_length, stride, strategy):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {str(i): i for i in range(2000)} | {"[CLS]": CLS, "[SEP]": SEP}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "0"))
    templates = [
        [f"{TOKENS[entry]}:{segment}" for entry, segment in layout.entries(n)] for n in (1, 2)
    ]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        *templates, special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    side = "left" if layout.truncate_left else "right"
    tokenizer.enable_truncation(max_length, stride=stride, strategy=strategy, direction=side)

    def encode(*texts):
        first = tokenizer.encode(*(list(map(str, text)) for text in texts), is_pretokenized=True)
        windows = [first, *first.overflowing]
        return windows[::-1] if layout.truncate_left else windows

    return encode


@pytest.mark.parametrize(
    ("max_length", "stride"),
    in_full([(12, 0), (12, 1), (12, 4), (20, 9), (16, 10), (64, 20)], [(12, 4), (16, 10)]),
)
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("name", LAYOUTS)
def test_windows_equal_the_reference(name, texts, max_length, stride):
    layout = LAYOUTS[name]
    longest = max_length - layout.special_count(2) - stride - 1
    windows = Windows(layout, IDS, max_length, stride, max_question=longest)
    rows = [(list(range(length % (longest + 1))), _document(length)) for length in LENGTHS]
    rows = [row[-texts:] for row in rows]
    found = windows([_ragged(list(text)) for text in zip(*rows, strict=True)])
    found = {name: value.numpy() for name, value in found.items()}
    encode = _reference(layout, max_length, stride, "only_second" if texts == 2 else "only_first")
    index = 0
    for row, given in enumerate(rows):
        for expected in encode(*given):
            real = slice(-len(expected) or None, None) if layout.pad_left else slice(len(expected))
            assert found["document"][index] == row
            assert found["token_ids"][index, real].tolist() == expected.ids
            # The reference loses the template's segment ids after the first window.
            types = expected.type_ids if name in ("bert", "xlnet", "left") else [0] * len(expected)
            assert found["segment_ids"][index, real].tolist() == types
            assert found["padding_mask"][index].sum() == len(expected)
            of_document = [sequence == texts - 1 for sequence in expected.sequence_ids]
            piece = [w if d else -1 for w, d in zip(expected.word_ids, of_document, strict=True)]
            assert found["piece"][index, real].tolist() == piece
            assert (
                np.delete(found["piece"][index], np.r_[: found["piece"].shape[1]][real]) < 0
            ).all()
            if max(piece, default=-1) >= 0:
                assert found["first_piece"][index] == min(p for p in piece if p >= 0)
            index += 1
    assert index == len(found["document"])


def _best_window(piece, windows):
    """BERT's rule, as in its SQuAD code: the first window with the largest score."""
    scores = []
    for start, length in windows:
        inside = start <= piece < start + length
        context = min(piece - start, start + length - 1 - piece)
        # In hundredths: the float sums of that code make ties depend on rounding.
        scores.append(100 * context + length if inside else -1)
    return scores.index(max(scores))


@pytest.mark.parametrize(("max_length", "stride"), [(12, 0), (13, 5), (41, 30), (400, 200)])
@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_max_context_is_BERTs(name, max_length, stride):
    lengths = [0, 1, 9, 10, 11, 40, 101, 420]
    found = Windows(LAYOUTS[name], IDS, max_length, stride)(
        [_ragged(list(map(_document, lengths)))]
    )
    found = {name: value.numpy() for name, value in found.items()}
    for row, length in enumerate(lengths):
        mine = np.flatnonzero(found["document"] == row)
        piece, best = found["piece"][mine], found["max_context"][mine]
        windows = [(found["first_piece"][i], (found["piece"][i] >= 0).sum()) for i in mine]
        expected = [(_best_window(p, windows), p) for p in range(length)]
        assert sorted((w, piece[w, c]) for w, c in np.argwhere(best)) == sorted(expected)


@pytest.mark.extended
def test_offsets_in_the_text():
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "the", "cafe", "##s", "a", "!"]
    tokenizer = WordPieceTokenizer(pieces)
    texts = ["The cafés! a", "", "a " * 20 + "Cafés"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    questions = tokenizer.tokenize(["a cafe", "the", ""])
    windows = Windows(tokenizer.layout, tokenizer.special_ids, 11, 3)([questions, ids])
    start, end = (part.numpy() for part in spans_of(windows, starts, ends))
    assert start.shape == end.shape == windows["piece"].shape
    for w, c in np.ndindex(start.shape):
        piece, row = int(windows["piece"][w, c]), int(windows["document"][w])
        if piece < 0:
            assert (start[w, c], end[w, c]) == (-1, -1)
            continue
        assert windows["token_ids"][w, c] == ids[row, piece]
        assert (start[w, c], end[w, c]) == (starts[row, piece], ends[row, piece])
    assert texts[0].encode()[start[0, 5] : end[0, 5]].decode() == "café"


def test_a_long_question_is_truncated():
    windows = Windows(CLS_A_SEP, IDS, 13, 2)
    assert windows.max_question == 4
    found = windows([_ragged([_document(50)]), _ragged([list(range(20))])])
    assert found["token_ids"].shape == (5, 13)
    assert found["token_ids"][0, :6].numpy().tolist() == [CLS, 1000, 1001, 1002, 1003, SEP]
    assert found["first_piece"].numpy().tolist() == [0, 4, 8, 12, 16]
    left = Windows(LEFT, IDS, 13, 2)([_ragged([_document(50)]), _ragged([list(range(20))])])
    assert left["token_ids"][0, :6].numpy().tolist() == [CLS, 1046, 1047, 1048, 1049, SEP]


def test_no_documents():
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros([0], tf.int64))
    for texts in ([empty], [empty, empty]):
        found = Windows(CLS_A_SEP, IDS, 13, 2)(texts)
        assert {len(value) for value in found.values()} == {0}
        assert found["token_ids"].shape == (0, 1)


@pytest.mark.extended
def test_in_graphs(tmp_path):
    windows = Windows(XLNET, IDS, 20, 5)
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    rows = [_document(50), [], [3]]
    expected = windows([_ragged([[1], [2], []]), _ragged(rows)])
    function = tf.function(lambda q, d: windows([q, d]), [spec, spec], autograph=False)
    dataset = tf.data.Dataset.from_tensors((_ragged([[1], [2], []]), _ragged(rows)))
    (mapped,) = dataset.map(lambda q, d: windows([q, d])).as_numpy_iterator()

    class Endpoint(tf.Module):
        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)]
        )
        def serve(self, pieces, counts):
            return windows([tf.RaggedTensor.from_row_lengths(pieces, counts)])

    endpoint = Endpoint()
    tf.saved_model.save(endpoint, str(tmp_path), signatures=endpoint.serve)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    served = serve(pieces=tf.constant([*rows[0], 3]), counts=tf.constant([50, 0, 1], tf.int64))
    called = function(_ragged([[1], [2], []]), _ragged(rows))
    alone = windows([_ragged(rows)])
    for name, value in expected.items():
        np.testing.assert_array_equal(called[name], value)
        np.testing.assert_array_equal(mapped[name], value)
        np.testing.assert_array_equal(served[name], alone[name])


def test_a_long_document_in_one_call():
    found = Windows(CLS_A_SEP, IDS, 384, 128)(
        [_ragged([list(range(300))]), _ragged([_document(30_000)])]
    )
    best = found["piece"].numpy()[found["max_context"].numpy()]
    assert sorted(best) == list(range(30_000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((13, 10), "max_length must be above .* got max_length=13, stride=10, max_question=0"),
        ((13, 4, 6), "got max_length=13, stride=4, max_question=6"),
        ((13, -1), "stride must be at least 0, got -1"),
        ((13, "4"), "stride must be an integer, got '4'"),
    ],
)
def test_windows_that_cannot_advance(arguments, message):
    with pytest.raises(ValueError, match=message):
        Windows(CLS_A_SEP, IDS, *arguments)

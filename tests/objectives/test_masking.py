"""Masking: what is selected, what replaces it, and that nothing but the seed decides."""

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.objectives.masking import Masking, geometric, ngrams, word_edges
from bertfam_tf.text import BPETokenizer, ByteBPETokenizer, WordPieceTokenizer
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters

WORDS = "the cat sat on a mat and ran home again".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ing", "##ed"]
PAD, UNK, CLS, SEP, MASK = range(5)
CONTINUES = np.array([piece.startswith("##") for piece in PIECES])
MODES = {
    "piece": dict(),
    "word": dict(unit="word"),
    "ngram": dict(unit="word", lengths=ngrams()),
    "span": dict(unit="word", lengths=geometric(), together=True),
    "pieces in a row": dict(lengths=(0.5, 0.5)),
}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(PIECES)


def _rows(count=64, length=60, seed=0):
    """Random pieces with [CLS], [SEP] in the middle and at the end, and padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, len(PIECES), (count, length))
    lengths = rng.integers(4, length + 1, count)
    mask = np.arange(length) < lengths[:, None]
    ids[:, 0] = CLS
    ids[np.arange(count), lengths // 2] = SEP
    ids[np.arange(count), lengths - 1] = SEP
    ids[:, 1] = UNK
    return np.where(mask, ids, PAD).astype("int32"), mask.astype("int32")


def _seeds(count, seed=0):
    return np.stack([np.full(count, seed), np.arange(count)], axis=1).astype("int32")


def _selected(masked, shape):
    found = np.zeros(shape, bool)
    rows, _ = np.nonzero(masked.weights)
    found[rows, masked.positions.numpy()[masked.weights.numpy() > 0]] = True
    return found


@pytest.mark.parametrize("mode", MODES)
def test_selection(tokenizer, mode):
    ids, mask = _rows()
    masked = Masking(tokenizer, **MODES[mode])(ids, mask, _seeds(len(ids)))
    selected = _selected(masked, ids.shape)
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    assert not (selected & ~ordinary).any()
    np.testing.assert_array_equal(masked.token_ids.numpy()[~selected], ids[~selected])
    changed = masked.token_ids.numpy()[selected]
    assert (changed == MASK).any()
    assert not np.isin(changed, [CLS, SEP, PAD]).any()
    # Predictions are in the order of the text, with the tokens that stood there.
    there = masked.weights.numpy() > 0
    wanted = np.take_along_axis(ids, masked.positions.numpy(), axis=1)
    np.testing.assert_array_equal(masked.targets.numpy()[there], wanted[there])
    assert (there == (np.arange(there.shape[1]) < there.sum(1)[:, None])).all()
    assert there.any(0).all()
    for row, positions in enumerate(masked.positions.numpy()):
        assert (np.diff(positions[there[row]]) > 0).all()
        for start, end, position in zip(
            masked.starts.numpy()[row][there[row]],
            masked.ends.numpy()[row][there[row]],
            positions[there[row]],
            strict=True,
        ):
            assert start <= position <= end
            assert selected[row, start : end + 1].all()
            assert not selected[row, start - 1]
            assert not selected[row, end + 1 : end + 2].any()
    if "word" in MODES[mode].values():
        # After a special token a word starts, whatever the piece.
        first = ~(CONTINUES[ids] & ordinary & np.roll(ordinary, 1, axis=1))
        words = np.cumsum(first, axis=1) + 1000 * np.arange(len(ids))[:, None]
        assert not np.isin(words[selected], words[~selected & ordinary]).any()


@pytest.mark.parametrize("mode", MODES)
def test_share_and_replacements(tokenizer, mode):
    ids, mask = _rows(4000)
    masked = Masking(tokenizer, **MODES[mode])(ids, mask, _seeds(len(ids)))
    selected = _selected(masked, ids.shape)
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    assert selected.sum() / ordinary.sum() == pytest.approx(0.15, abs=0.003)
    after = masked.token_ids.numpy()[selected]
    assert (after == MASK).mean() == pytest.approx(0.8, abs=0.015)
    # A random token can be the one that was there.
    kept = 0.1 + 0.1 / (len(PIECES) - 4)
    assert (after == ids[selected]).mean() == pytest.approx(kept, abs=0.012)


def test_one_draw_for_a_run(tokenizer):
    ids, mask = _rows(500)
    masked = Masking(tokenizer, unit="word", lengths=geometric(), together=True, random=0.0)(
        ids, mask, _seeds(500)
    )
    ids_after, starts = masked.token_ids.numpy(), masked.starts.numpy()
    there = masked.weights.numpy() > 0
    is_mask = np.take_along_axis(ids_after, masked.positions.numpy(), 1) == MASK
    of_start = np.take_along_axis(ids_after, starts, 1) == MASK
    np.testing.assert_array_equal(is_mask[there], of_start[there])
    assert 0 < is_mask[there].mean() < 1


def test_given_spans(tokenizer):
    ids, mask = _rows(300)
    spans = np.zeros_like(ids)
    spans[:, 2:4], spans[:, 8:11] = 1, 2
    spans[np.isin(ids[:, 2:11], [SEP]).any(1)] = 0  # a span does not contain special tokens
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    masked = Masking(tokenizer, unit="given")(ids, mask, _seeds(300), spans)
    selected = _selected(masked, ids.shape)
    assert selected.any()
    assert not selected[spans == 0].any()
    for number in (1, 2):
        of_span = np.where((spans == number) & ordinary, selected, True).all(1)
        none = ~np.where((spans == number) & ordinary, selected, False).any(1)
        assert (of_span | none).all()


@pytest.mark.parametrize("mode", MODES)
def test_only_the_seed_decides(tokenizer, mode):
    ids, mask = _rows(28)
    masking, seeds = Masking(tokenizer, **MODES[mode]), _seeds(28)
    whole = masking(ids, mask, seeds)
    for size in (1, 5, 28):
        data = tf.data.Dataset.from_tensor_slices((ids, mask, seeds)).batch(size)
        for workers in (1, 7):
            parts = list(data.map(masking, num_parallel_calls=workers))
            found = np.concatenate([part.token_ids for part in parts])
            np.testing.assert_array_equal(found, whole.token_ids)
    # More padding changes nothing.
    wider = [np.pad(x, [[0, 0], [0, 9]]) for x in (ids, mask)]
    np.testing.assert_array_equal(masking(*wider, seeds).token_ids[:, :60], whole.token_ids)
    other = masking(ids, mask, _seeds(28, seed=1)).token_ids
    assert (other.numpy() != whole.token_ids.numpy()).any()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_mask(tokenizer, mode):
    masking = Masking(tokenizer, **MODES[mode])
    for ids in (
        np.zeros((0, 5), "int32"),
        np.zeros((2, 5), "int32"),
        np.array([[CLS, SEP, PAD]], "int32"),
        np.array([[CLS]], "int32"),
    ):
        masked = masking(ids, (ids != PAD).astype("int32"), _seeds(len(ids)))
        np.testing.assert_array_equal(masked.token_ids, ids)
        assert masked.positions.shape == (len(ids), 0)


def test_maximum(tokenizer):
    ids, mask = _rows(200)
    for mode in MODES.values():
        masked = Masking(tokenizer, rate=0.5, max_predictions=4, **mode)(ids, mask, _seeds(200))
        assert masked.weights.numpy().sum(1).max() == 4
    whole = Masking(tokenizer, rate=1.0)(ids, mask, _seeds(200))
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    np.testing.assert_array_equal(_selected(whole, ids.shape), ordinary)


def test_lengths():
    probabilities = np.array(geometric()) / sum(geometric())
    assert (probabilities * np.arange(1, 11)).sum() == pytest.approx(3.797, abs=1e-3)
    assert ngrams() == [1, 1 / 2, 1 / 3]


def test_words_of_other_tokenizers():
    pieces = [*byte_characters(), "Ġa"]
    starts, ends = word_edges(ByteBPETokenizer(pieces, [("Ġ", "a")]))
    assert [piece for piece, start in zip(pieces, starts, strict=True) if start] == ["Ġ", "Ġa"]
    assert not ends.any()
    starts, ends = word_edges(BPETokenizer(["<unk>", "a", "a</w>"], []))
    assert not starts.any()
    assert ends.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(unit="sentence"), "unit must be 'piece', 'word' or 'given', got 'sentence'"),
        (dict(rate=1.5), "rate must be from 0 to 1, got 1.5"),
        (dict(masked=0.95), "masked 0.95 and random 0.1 must add up to at most 1"),
        (dict(lengths=()), "lengths must be relative probabilities"),
        (dict(max_predictions=0), "max_predictions must be at least 1, got 0"),
    ],
)
def test_mistakes(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        Masking(tokenizer, **options)


def test_mistakes_in_calls(tokenizer):
    ids, mask = _rows(2)
    with pytest.raises(ValueError, match="spans must be given for the unit 'given' alone"):
        Masking(tokenizer)(ids, mask, _seeds(2), np.zeros_like(ids))
    with pytest.raises(ValueError, match="spans must be given for the unit 'given' alone"):
        Masking(tokenizer, unit="given")(ids, mask, _seeds(2))
    with pytest.raises(ValueError, match="must have a mask token"):
        Masking(ByteBPETokenizer(byte_characters(), []))

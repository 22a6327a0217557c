"""Masking: what is selected, what replaces it, and that nothing but the seed decides."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.corpora.masking import Masking, geometric, ngrams, spans_at, word_edges
from bertfam_tf.text import (
    BPETokenizer,
    ByteBPETokenizer,
    SentencePieceTokenizer,
    SpecialTokens,
    UnigramTokenizer,
    WordPieceTokenizer,
)
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters
from tests.selection import in_full, only_in
from tests.support.replay import replay

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


@only_in("full", "ngram")
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


@pytest.mark.parametrize("mode", in_full(MODES, ["piece", "ngram"]))
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


def _spans(ids):
    spans = np.zeros_like(ids)
    spans[:, 2:4], spans[:, 4:6], spans[:, 8:11] = 1, 2, 3
    return spans


def _units(ids, spans=None):
    """The unit of each token, one token after another."""
    spans = np.zeros_like(ids) if spans is None else spans
    units = np.zeros_like(ids)
    for row in range(len(ids)):
        for at in range(ids.shape[1]):
            same = at and not np.isin(ids[row, [at - 1, at]], [CLS, SEP, PAD, MASK]).any()
            same &= spans[row, at] == spans[row, at - 1]
            same &= CONTINUES[ids[row, at]] or spans[row, at] > 0
            units[row, at] = units[row, at - 1] + (not same) if at else 1
    return units


@pytest.mark.parametrize(
    "mode", in_full(["word", "ngram", "span", "given", "spans alone"], ["ngram", "given"])
)
def test_plain_python_selects_the_same(tokenizer, mode):
    ids, mask = _rows(40)
    spans = _spans(ids) if mode in ("given", "spans alone") else None
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    words = {"words": 0.0} if mode == "spans alone" else {}
    options = MODES.get(mode, {"unit": "given"}) | words
    masked = Masking(tokenizer, **options)(ids, mask, _seeds(40, 3), spans)
    units, wanted = _units(ids, spans), np.zeros_like(ordinary)
    for row in range(40):
        given = {} if spans is None else {"given": spans[row] > 0, **words}
        rest = {"lengths": options["lengths"]} if "lengths" in options else {}
        for draw in replay(units[row], ordinary[row], (3, row), **rest, **given):
            wanted[row, [at for word in draw.words for at in word]] = draw.accepted
    np.testing.assert_array_equal(_selected(masked, ids.shape), wanted)


def test_given_spans(tokenizer):
    ids, mask = _rows(300)
    spans = _spans(ids)
    ordinary = (mask > 0) & ~np.isin(ids, [CLS, SEP, PAD])
    masked = Masking(tokenizer, unit="given")(ids, mask, _seeds(300), spans)
    selected = _selected(masked, ids.shape)
    of_spans = ordinary & (spans > 0)
    assert selected.sum() / ordinary.sum() == pytest.approx(0.15, abs=0.02)
    assert selected[of_spans].mean() > 3 * selected[ordinary & ~of_spans].mean()
    units = _units(ids, spans) + 1000 * np.arange(300)[:, None]
    assert not np.isin(units[selected], units[~selected & ordinary]).any()
    # Without words, nothing but spans.
    alone = Masking(tokenizer, unit="given", words=0, rate=1.0)(ids, mask, _seeds(300), spans)
    np.testing.assert_array_equal(_selected(alone, ids.shape), of_spans)


def test_spans_from_offsets():
    # "[CLS] New York is big [SEP]", and an example without spans.
    starts = [[0, 0, 4, 9, 12, 0], [0, 0, 0, 0, 0, 0]]
    ends = [[0, 3, 8, 11, 15, 0], [0, 3, 0, 0, 0, 0]]
    spans = spans_at(starts, ends, [[0, 13], [0, 0]], [[8, 14], [0, 0]])
    np.testing.assert_array_equal(spans, [[0, 1, 1, 0, 2, 0], [0] * 6])
    none = np.zeros((2, 0), "int32")
    np.testing.assert_array_equal(spans_at(starts, ends, none, none), np.zeros((2, 6)))


def test_long_words_are_as_probable_as_short_ones(tokenizer):
    ids = np.tile(np.array([[5, 15, 15, 6, 7, 15, 8, 9]]), (400, 5)).astype("int32")
    masked = Masking(tokenizer, unit="word", rate=0.3)(ids, np.ones_like(ids), _seeds(400))
    selected = _selected(masked, ids.shape)
    size_three, size_one = selected[:, 0::8].mean(), selected[:, 6::8].mean()
    assert size_three == pytest.approx(size_one, abs=0.04)
    assert selected.mean() == pytest.approx(0.3, abs=0.01)


def test_additional_special_tokens():
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    special = SpecialTokens(**roles, additional_special_tokens=("[E1]",))
    tokenizer = WordPieceTokenizer([*PIECES[:5], "[E1]", "a"], special_tokens=special)
    ids = np.tile(np.array([[5, 6]], "int32"), (50, 4))
    masked = Masking(tokenizer, rate=1.0, random=1.0, masked=0.0)(
        ids, np.ones_like(ids), _seeds(50)
    )
    assert (masked.token_ids.numpy()[:, 0::2] == 5).all()
    assert not (masked.token_ids.numpy()[:, 1::2] == 5).any()
    # A token that is also the unknown one is special.
    shared = WordPieceTokenizer(
        PIECES, special_tokens=SpecialTokens(**roles | {"unk_token": "[SEP]"})
    )
    ends = np.full((1, 4), SEP, "int32")
    masked = Masking(shared, rate=1.0)(ends, np.ones_like(ends), _seeds(1))
    assert masked.positions.shape == (1, 0)
    # Ids beyond the vocabulary are not special, and words of their own.
    beyond = np.full((1, 4), 9, "int32")
    for unit in ("piece", "word"):
        masked = Masking(tokenizer, 1.0, unit, random=0.0)(beyond, np.ones_like(beyond), _seeds(1))
        np.testing.assert_array_equal(masked.targets, beyond)


@pytest.mark.extended
def test_exact_case(tokenizer):
    """Everything is selected: one run on each side of a special token."""
    ids = np.array([[CLS, 5, 15, SEP, 6, PAD], [CLS, SEP, PAD, PAD, PAD, PAD]], "int32")
    masking = Masking(tokenizer, 1.0, "word", masked=1.0, random=0.0)
    masked = tf.function(masking)(ids, ids != PAD, _seeds(2))
    np.testing.assert_array_equal(masked.token_ids[0], [CLS, MASK, MASK, SEP, MASK, PAD])
    np.testing.assert_array_equal(masked.token_ids[1], ids[1])
    np.testing.assert_array_equal(masked.positions, [[1, 2, 4], [0, 0, 0]])
    np.testing.assert_array_equal(masked.targets, [[5, 15, 6], [0, 0, 0]])
    np.testing.assert_array_equal(masked.weights, [[1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(masked.starts, [[1, 1, 4], [0, 0, 0]])
    np.testing.assert_array_equal(masked.ends, [[2, 2, 4], [0, 0, 0]])
    assert [x.dtype for x in masked] == [tf.int32] * 3 + [tf.float32] + [tf.int32] * 2


@pytest.mark.extended
@only_in("full", "ngram", "word", "span", "piece")
@pytest.mark.parametrize("mode", MODES)
def test_only_the_seed_decides(tokenizer, mode):
    ids, mask = _rows(28)
    masking, seeds = Masking(tokenizer, **MODES[mode]), _seeds(28)
    whole = masking(ids, mask, seeds)
    data = tf.data.Dataset.from_tensor_slices((ids, mask, seeds))
    for size, workers in ((1, 2), (5, 7)):
        parts = list(data.batch(size).map(masking, num_parallel_calls=workers))
        found = np.concatenate([part.token_ids for part in parts])
        np.testing.assert_array_equal(found, whole.token_ids)
    # More padding changes nothing.
    wider = [np.pad(x, [[0, 0], [0, 9]]) for x in (ids, mask)]
    np.testing.assert_array_equal(masking(*wider, seeds).token_ids[:, :60], whole.token_ids)
    wider = [np.pad(x, [[0, 0], [9, 0]]) for x in (ids, mask)]
    np.testing.assert_array_equal(masking(*wider, seeds).token_ids[:, 9:], whole.token_ids)
    other = masking(ids, mask, _seeds(28, seed=1)).token_ids
    assert (other.numpy() != whole.token_ids.numpy()).any()


@only_in("full", "ngram", "word")
@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_mask(tokenizer, mode):
    masking = Masking(tokenizer, **MODES[mode])
    for ids in (
        np.zeros((0, 5), "int32"),
        np.zeros((2, 5), "int32"),
        np.array([[CLS, SEP, PAD]], "int32"),
        np.array([[CLS]], "int32"),
        np.zeros((2, 0), "int32"),
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


def _edges(tokenizer):
    pieces = tokenizer.vocabulary
    return [
        [piece for piece, edge in zip(pieces, edges, strict=True) if edge]
        for edges in word_edges(tokenizer)
    ]


def test_words_of_other_tokenizers():
    characters = byte_characters()
    ideograph = "".join(characters[byte] for byte in "中".encode())
    pieces = [*characters, "Ġa", ideograph]
    merges = [("Ġ", "a"), (ideograph[:2], ideograph[2]), tuple(ideograph[:2])]
    starts, ends = _edges(ByteBPETokenizer([*pieces, ideograph[:2]], merges[::-1]))
    blanks = [characters[ord(blank)] for blank in "\t\n\v\f\r"]
    leads = [characters[byte] for byte in range(0xE4, 0xEA)]
    assert sorted(starts) == sorted([*blanks, "Ġ", "Ġa", *leads, ideograph, ideograph[:2]])
    assert sorted(ends) == sorted([*blanks, ideograph])
    assert _edges(BPETokenizer(["<unk>", "a", "a</w>"], [])) == [[], ["a</w>"]]


PIECES_OF_WORDS = ["▁the", "▁", "film", "s", "▁don", "'", "t", ",", "...", "▁(", "é", "7"]
CHINESE_PIECES = ["我", "们的", "。", "か", "ไ", "<0xE6>", "<0x88>", "▁我"]  # fmt: skip


@pytest.mark.parametrize("tokenizer", [SentencePieceTokenizer, UnigramTokenizer])
def test_words_of_sentencepiece(tokenizer):
    """As in ALBERT's and XLNet's code, and each token of a script without spaces."""
    pieces = ["<unk>", *PIECES_OF_WORDS, *CHINESE_PIECES]
    given = SimpleNamespace(vocabulary=pieces, kind=tokenizer.kind, special_ids={"unk": 0})
    starts, ends = _edges(given)
    words = {"<unk>", "▁the", "▁", "▁don", ",", "...", "▁(", "。", "▁我"}
    assert set(starts) == words | {"我", "们的", "か", "ไ", "<0xE6>"}
    assert set(ends) == {"我", "们的", "か", "ไ", "▁我"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(unit="sentence"), "unit must be one of piece, word, given, got 'sentence'"),
        (dict(words=-1), "words must be from 0 to 1, got -1"),
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
    with pytest.raises(ValueError, match="spans are required by unit 'given' and allowed only"):
        Masking(tokenizer)(ids, mask, _seeds(2), np.zeros_like(ids))
    with pytest.raises(ValueError, match="spans are required by unit 'given' and allowed only"):
        Masking(tokenizer, unit="given")(ids, mask, _seeds(2))
    with pytest.raises(ValueError, match="must have a mask token"):
        Masking(ByteBPETokenizer(byte_characters(), []))
    for name, ids_, mask_, seeds, message in (
        ("token_ids", ids / 2, mask, _seeds(2), "integers, got float64"),
        ("token_ids", ids[0], mask, _seeds(2), r"the shape \(None, None\), got \(60,\)"),
        ("padding_mask", ids, mask[:, 1:], _seeds(2), r"the shape \(2, 60\), got \(2, 59\)"),
        ("seeds", ids, mask, _seeds(2)[0], r"the shape \(2, 2\), got \(2,\)"),
        ("seeds", ids, mask, _seeds(3), r"the shape \(2, 2\), got \(3, 2\)"),
    ):
        with pytest.raises(ValueError, match=f"{name} must (be|have) {message}"):
            Masking(tokenizer)(ids_, mask_, seeds)
    with pytest.raises(ValueError, match=r"spans must have the shape \(2, 60\), got \(2, 9\)"):
        Masking(tokenizer, unit="given")(ids, mask, _seeds(2), np.zeros((2, 9), "int32"))

"""Properties of all tokenizers, packing and windows, tested with hypothesis."""

import functools
import io

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.text import Packer, tokenize_words, with_prefix_space
from bertfam_tf.text.special_tokens import (
    A_THEN_B,
    CLS_A_SEP,
    CLS_A_SEP_SEP,
    Layout,
    SpecialTokens,
)
from bertfam_tf.text.tokenizers.bpe import BPETokenizer
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters
from bertfam_tf.text.tokenizers.sentencepiece import SentencePieceTokenizer
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer
from bertfam_tf.text.tokenizers.words import WordTokenizer
from bertfam_tf.text.windows import Windows
from tests.selection import only_in

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _word_piece():
    pieces = "the cafe un ##able ##s a ##a ! , [ ] mask # ss i σ ##σ ä ß 中 国".split()
    return WordPieceTokenizer.from_config(
        {"vocabulary": [*SPECIAL, *pieces], "lstrip_tokens": ["[MASK]"]}
    )


def _byte_bpe(lstrip=(), **options):
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("Ġ", "a"),
        ("Ã", "¤"),
        ("a", "a"),
        ("aa", "aa"),
    ]
    pieces = [*byte_characters(), *("".join(pair) for pair in merges), "<s>", "<mask>"]
    special = SpecialTokens(cls_token="<s>", mask_token="<mask>", lstrip_tokens=lstrip)
    return ByteBPETokenizer(pieces, merges, special_tokens=special, **options)


def _bpe():
    merges = [("t", "h"), ("th", "e</w>"), ("a", "a"), ("aa", "aa</w>")]
    letters = [letter + end for letter in "theacfs!<>[]mk中国" for end in ("", "</w>")]
    pieces = ["<unk>", "<mask>", *letters, *("".join(pair) for pair in merges)]
    special = SpecialTokens("<unk>", mask_token="<mask>", lstrip_tokens=("<mask>",))
    return BPETokenizer(pieces, merges, special_tokens=special)


def _sentence_piece(lstrip=(), **options):
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cafés, a ﬁne the! 中国 7, 8"] * 3 + ["a aa the"]),
        model_writer=model, vocab_size=40, hard_vocab_limit=False, minloglevel=2,
        control_symbols=["[MASK]"],
    )  # fmt: skip
    special = SpecialTokens(mask_token="[MASK]", lstrip_tokens=lstrip)
    return SentencePieceTokenizer(
        model.getvalue(), special_tokens=special, layout=A_THEN_B, **options
    )


def _words(**options):
    return WordTokenizer(["<unk>", "<eos>", "the", "a", "[MASK]", "café", "中"], **options)


# All tokenizers in this dict are tested.
TOKENIZERS = {
    "word_piece": _word_piece,
    "byte_bpe": _byte_bpe,
    "byte_bpe_roberta": lambda: _byte_bpe(
        add_prefix_space=True, trim_offsets=True, lstrip=["<mask>"]
    ),
    "bpe": _bpe,
    "sentence_piece": lambda: _sentence_piece(lstrip=["[MASK]"]),
    "sentence_piece_albert": lambda: _sentence_piece(
        lower_case=True,
        strip_accents=True,
        unify_spaces=True,
        unify_quotes=True,
        split_digit_comma=True,
    ),
    "words": _words,
    "words_eos": lambda: _words(add_eos=True, lower_case=True),
}
LOSSLESS = ("byte_bpe",)
XLNET = Layout(
    ("a", "sep", "cls"), ("a", "sep", "b", "sep", "cls"), (0, 0, 2), (0, 0, 1, 1, 2),
    pad_left=True, pad_segment=3,
)  # fmt: skip
IDS = {"cls": -2, "sep": -3, "pad": -4}

tokenizers = pytest.mark.parametrize("name", TOKENIZERS)
layouts = st.sampled_from([CLS_A_SEP, CLS_A_SEP_SEP, A_THEN_B, XLNET])
counts = st.lists(st.integers(0, 40), min_size=1, max_size=8)
parts = st.one_of(
    st.text(max_size=8).map(str.encode),
    st.binary(max_size=4),
    st.sampled_from(["the", "a", " ", "\n", "[MASK]", "<mask>", "<s>", "[SEP", "<eos>", "cafés",
                     "中国", "\u0301", "\0", "İ", "ﬁ", "한", "a" * 120, "ä" * 40, "  "])
    .map(str.encode),
)  # fmt: skip
rows = st.lists(st.lists(parts, max_size=6).map(b"".join), min_size=1, max_size=12)


def examples(count):
    # Deterministic, so that tests do not fail at random.
    return hypothesis.settings(max_examples=count, deadline=None, derandomize=True, database=None)


@functools.cache
def _tokenizer(name):
    return TOKENIZERS[name]()


def _ragged(lengths, first):
    """Rows of consecutive numbers from `first`."""
    values = [first + i for length in lengths for i in range(length)]
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, tf.int32), lengths)


@pytest.mark.full
@tokenizers
@examples(20)
@hypothesis.given(rows)
def test_pieces_and_offsets(name, texts):
    tokenizer = _tokenizer(name)
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(texts))
    assert ids.nrows() == len(texts)
    assert ((ids.values >= 0) & (ids.values < tokenizer.vocab_size)).numpy().all()
    for text, begin, end in zip(texts, starts.to_list(), ends.to_list(), strict=True):
        assert all(0 <= b <= e <= len(text) for b, e in zip(begin, end, strict=True))
        assert begin == sorted(begin)
        assert end == sorted(end)
    assert tokenizer.tokenize(tf.constant(texts)).to_list() == ids.to_list()
    decoded = [text.decode("utf-8", errors="replace") for text in texts]
    assert tokenizer.tokenize(decoded).to_list() == ids.to_list()
    assert (
        tokenizer.tokenize(texts[-1].decode("utf-8", errors="replace")).numpy().tolist()
        == (ids.to_list()[-1])
    )


@pytest.mark.extended
@pytest.mark.parametrize("name", LOSSLESS)
@examples(40)
@hypothesis.given(rows)
def test_round_trip(name, texts):
    tokenizer = _tokenizer(name)
    clean = [text.decode("utf-8", errors="replace").encode() for text in texts]
    assert tokenizer.detokenize(tokenizer.tokenize(tf.constant(clean))).numpy().tolist() == clean


@only_in("full", "sentence_piece_albert", "byte_bpe", "bpe")
@only_in("extended", "byte_bpe_roberta", "word_piece", "sentence_piece")
@tokenizers
@examples(15)
@hypothesis.given(texts=rows, max_length=st.integers(6, 30))
def test_packed_text(name, texts, max_length):
    tokenizer = _tokenizer(name)
    packer = Packer(tokenizer.layout, tokenizer.special_ids, max_length)
    ids = tokenizer.tokenize(tf.constant(texts))
    packed = packer([ids, ids[::-1]])
    assert packed["token_ids"].shape[0] == len(texts)
    assert packed["token_ids"].shape[1] <= max_length


@pytest.mark.full
@tokenizers
@examples(15)
@hypothesis.given(texts=rows)
def test_words_are_split_alone(name, texts):
    tokenizer = with_prefix_space(_tokenizer(name))
    words = tf.RaggedTensor.from_row_lengths(tf.constant(texts), [len(texts) - 1, 1])
    pieces = tokenize_words(tokenizer, words)
    assert pieces.row_lengths().numpy().tolist() == [len(texts) - 1, 1]
    assert pieces.values.to_list() == tokenizer.tokenize(tf.constant(texts)).to_list()


@pytest.mark.extended
@examples(100)
@hypothesis.given(
    layout=layouts,
    lengths=counts,
    max_length=st.integers(6, 50),
    truncation=st.sampled_from(["longest_first", "only_first", "only_second"]),
    pair=st.booleans(),
)
def test_packing(layout, lengths, max_length, truncation, pair):
    given = [lengths, lengths[::-1]][: 1 + pair]
    packed = Packer(layout, IDS, max_length, truncation)(
        [_ragged(part, 100 * i) for i, part in enumerate(given)]
    )
    packed = {name: value.numpy() for name, value in packed.items()}
    special = layout.special_count(1 + pair)
    totals = [min(special + sum(each), max_length) for each in zip(*given, strict=True)]
    assert packed["token_ids"].shape == (len(lengths), max(*totals, 1))
    assert packed["padding_mask"].sum(1).tolist() == totals
    for row, total in enumerate(totals):
        real = packed["padding_mask"][row].astype(bool)
        assert real[-total:].all() if layout.pad_left else real[:total].all()
        tokens = packed["token_ids"][row][real]
        order = [entry for entry, _ in layout.entries(1 + pair) if entry not in "ab"]
        assert tokens[tokens < 0].tolist() == [IDS[role] for role in order]
        for text, part in enumerate(given):
            kept = tokens[(tokens >= 100 * text) & (tokens < 100 * (text + 1))]
            np.testing.assert_array_equal(kept, 100 * text + np.arange(len(kept)))
            assert len(kept) <= part[row]


@pytest.mark.full
@examples(100)
@hypothesis.given(data=st.data(), layout=layouts, lengths=counts, pair=st.booleans())
def test_windows(data, layout, lengths, pair):
    stride = data.draw(st.integers(0, 12))
    max_length = data.draw(st.integers(stride + 5, stride + 40))
    documents, questions = _ragged(lengths, 1000), _ragged(lengths[::-1], 0)
    windows = Windows(layout, IDS, max_length, stride)
    found = windows([questions, documents] if pair else [documents])
    found = {name: value.numpy() for name, value in found.items()}
    pieces, tokens = found["piece"], found["token_ids"]
    assert tokens.shape[1] <= max_length
    assert sorted(set(found["document"])) == list(range(len(lengths)))
    np.testing.assert_array_equal(tokens >= 1000, pieces >= 0)
    np.testing.assert_array_equal(tokens[pieces >= 0] - 1000, pieces[pieces >= 0])
    for row, length in enumerate(lengths):
        mine = np.flatnonzero(found["document"] == row)
        stretches = [pieces[i][pieces[i] >= 0] for i in mine]
        for stretch in stretches:
            np.testing.assert_array_equal(stretch, stretch[:1] + np.arange(len(stretch)))
        ends = [stretch[-1] + 1 for stretch in stretches if len(stretch)]
        assert found["first_piece"][mine].tolist() == [0, *(end - stride for end in ends[:-1])]
        assert ends[-1:] == ([length] if length else [])
        assert len({len(stretch) for stretch in stretches[:-1]}) <= 1
        best = pieces[mine][found["max_context"][mine]]
        assert sorted(best) == list(range(length))
    assert not found["max_context"][pieces < 0].any()

"""ByteBPETokenizer: compared with Hugging Face's `tokenizers` and brute force; files, graphs."""

import copy
import itertools
import json
import random

import pytest
import tensorflow as tf
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers

from bertfam_tf.text.kernels.merges import Merger, reachable_merges
from bertfam_tf.text.special_tokens import SpecialTokens
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters
from tests.selection import in_full
from tests.support.texts import hostile
from tests.text.graphs import assert_the_same_in_a_saved_model

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXT = """It's the 3 of us, isn't it? They'll say they've gone; I'd say we're here, I'm sure.
    Indented  text,\twith tabs\n\nand\u00a0spaces\u3000of every kind…  1234567890 ²½ Ⅷ
Ünïcödé “quoted” naïve café — 中文字符 русский язык עברית العربية हिन्दी 한국어 😀👩‍👩‍👧 e\u0301
"""
SNIPPETS = [
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'", "''", "'S", " ", "  ", "\n", "\t", "\r\n",
    "\u00a0", "\u3000", "\u1680", "\x85", "\x1c", "a", "s", "B", "7", "²", "Ⅷ", "!", "?!", "é",
    "中", "😀", "\u0301", "\u200b", "\x00", "’", "“", "the", "ing", *SPECIAL, " <mask>",
    "\u3000 <mask>", "<", "mask>",
]  # fmt: skip


def mixed_lines(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(SNIPPETS, k=rng.randint(0, 25))) for _ in range(count)]


def trained(trim_offsets=False, add_prefix_space=False):
    """A small reference tokenizer like RoBERTa's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator([TEXT, *mixed_lines(300, 5)], trainer)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=trim_offsets, add_prefix_space=add_prefix_space
    )
    for token in SPECIAL:
        strip = token == "<mask>"
        made.add_special_tokens([AddedToken(token, special=True, normalized=False, lstrip=strip)])
    return made


@pytest.fixture(scope="module")
def reference():
    return trained()


@pytest.fixture(scope="module")
def directory(reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe")
    reference.model.save(str(path))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return ByteBPETokenizer.load(directory, trim_offsets=False)


def expected(reference, data):
    """The reference's ids, and its offsets in bytes of `data`."""
    line, at, rest = "", [0], data
    while rest:
        # One invalid sequence at a time, as with errors="replace".
        try:
            good, bad = rest.decode("utf-8"), 0
        except UnicodeDecodeError as error:
            good, bad = rest[: error.start].decode("utf-8"), error.end - error.start
        for char in good:
            at.append(at[-1] + len(char.encode("utf-8")))
        line += good
        if bad:
            line += "\ufffd"
            at.append(at[-1] + bad)
        rest = data[at[-1] :]
    encoding = reference.encode(line, add_special_tokens=False)
    return encoding.ids, [at[a] for a, _ in encoding.offsets], [at[b] for _, b in encoding.offsets]


def assert_equal_to(reference, tokenizer, lines):
    lines = [line.encode("utf-8") if isinstance(line, str) else line for line in lines]
    rows = [part.to_list() for part in tokenizer.tokenize_with_offsets(lines)]
    plain = tokenizer.tokenize(lines).to_list()
    for line, ids, starts, ends, alone in zip(lines, *rows, plain, strict=True):
        assert (ids, starts, ends) == expected(reference, line), line
        assert alone == ids


@pytest.mark.extended
def test_equal_to_the_reference(reference, tokenizer):
    assert_equal_to(reference, tokenizer, [TEXT, *TEXT.split("\n"), *mixed_lines(1_500, 0)])


@pytest.mark.extended
def test_hostile_text(reference, tokenizer):
    assert_equal_to(reference, tokenizer, hostile()[:1_500])


@pytest.mark.extended
def test_every_byte_and_damaged_text(reference, tokenizer):
    every = bytes(range(256))
    cut = "a 中😀é".encode()
    lines = [
        every,
        every[::-1],
        *(cut[a:b] for a in range(12) for b in range(a, 13)),
        b"\xed\xa0\x80",
    ]
    assert_equal_to(reference, tokenizer, [*lines, b"<mask>\xff <mask>\xc3"])


@pytest.mark.full
def test_trimmed_offsets(directory):
    ours = ByteBPETokenizer.load(directory, trim_offsets=True)
    assert_equal_to(trained(trim_offsets=True), ours, mixed_lines(400, 2))


@pytest.mark.full
@pytest.mark.parametrize("trim_offsets", in_full([False, True], [True]))
def test_prefix_space(directory, trim_offsets):
    options = {"add_prefix_space": True, "trim_offsets": trim_offsets}
    reference, ours = trained(**options), ByteBPETokenizer.load(directory, **options)
    lines = ["", " ", " a", "\u3000a", "\na", *mixed_lines(400, 2)]
    wanted = [expected(reference, line.encode())[0] for line in lines]
    assert ours.tokenize(lines).to_list() == wanted
    assert ours.tokenize(lines[:5]).to_list() == wanted[:5]
    # In the reference, the added space covers the first character of the text, or with trimming
    # nothing in a text between special tokens.
    lines = [f" a{line}" for line in lines if "<" not in line]
    assert_equal_to(reference, ours, ["the", "the ing", *lines])


@pytest.mark.extended
def test_long_words(reference, tokenizer):
    assert_equal_to(reference, tokenizer, ["ab" * 5_000, "é" * 10_000, " " * 10_000, "!" * 3_000])


def test_lossless(tokenizer):
    lines = [TEXT, "", " ", *mixed_lines(300, 3)]
    # The white space that <mask> absorbs is lost.
    lines = [line.replace("<mask>", "<m>") for line in lines]
    assert [
        text.decode() for text in tokenizer.detokenize(tokenizer.tokenize(lines)).numpy()
    ] == lines


def test_added_tokens_are_lossless():
    """Also with letters that stand for bytes in other pieces."""
    pieces = [*byte_characters(), "café"]
    tokenizer = ByteBPETokenizer(pieces, [], special_tokens=SpecialTokens(added_tokens=["café"]))
    ids = tokenizer.tokenize("un café é")
    assert len(ids) == 3 + 1 + 3
    assert tokenizer.detokenize(ids).numpy().decode() == "un café é"


@pytest.mark.parametrize("alphabet", ["ab", "abc"])
def test_merges_by_brute_force(alphabet):
    rng = random.Random(len(alphabet))
    for _ in range(60):
        merges = []
        symbols = list(alphabet)
        for _ in range(rng.randint(1, 25)):
            pair = (rng.choice(symbols), rng.choice(symbols))
            if "".join(pair) not in symbols:
                merges.append(pair)
                symbols.append("".join(pair))
        ranks = {pair: rank for rank, pair in enumerate(merges)}

        def split(word, ranks=ranks):
            parts = list(word)
            while len(parts) > 1:
                pairs = enumerate(itertools.pairwise(parts))
                rank, at = min((ranks.get(pair, 999), at) for at, pair in pairs)
                if rank == 999:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            return parts

        made = reachable_merges(list(alphabet), merges)
        assert set(made) == {symbol for symbol in symbols if split(symbol) == [symbol]}
        words = ["".join(rng.choices(alphabet, k=rng.randint(1, 20))) for _ in range(100)]
        merger = Merger(made, {symbol: index for index, symbol in enumerate(symbols)}, 0)
        found = [[symbols[i] for i in row] for row in merger(tf.constant(words)).to_list()]
        assert found == [split(word) for word in words]


@pytest.mark.full
def test_batches_and_shapes(tokenizer):
    lines = mixed_lines(257, 4)
    rows = tokenizer.tokenize(lines).to_list()
    for size in (1, 64, 256):
        dataset = tf.data.Dataset.from_tensor_slices(lines).batch(size).map(tokenizer.tokenize)
        assert [row for batch in dataset for row in batch.to_list()] == rows
    assert tokenizer.tokenize([]).shape == [0, None]
    assert [
        part.to_list() for part in tokenizer.tokenize_with_offsets(tf.constant([], tf.string))
    ] == [[]] * 3
    assert tokenizer.tokenize(["", "", "a", ""]).row_lengths().numpy().tolist() == [0, 0, 1, 0]


@pytest.mark.extended
def test_files(directory, tokenizer, reference, tmp_path):
    tokenizer.save(tmp_path / "a")
    again = ByteBPETokenizer.load(tmp_path / "a")
    assert again.get_config() == tokenizer.get_config()
    reference.save(str(tmp_path / "tokenizer.json"))
    alone = ByteBPETokenizer.load(tmp_path)
    assert alone.get_config() == tokenizer.get_config()
    assert (
        copy.deepcopy(alone).tokenize("the").numpy().tolist()
        == tokenizer.tokenize("the").numpy().tolist()
    )
    assert [tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.mask_id] == [0, 1, 2, 4]
    assert tokenizer.layout.pair == ("cls", "a", "sep", "sep", "b", "sep")
    assert ByteBPETokenizer.load(directory).get_config()["trim_offsets"] is True


def _damage(tmp_path, vocabulary=None, merges="#version: 0.2\n"):
    pieces = byte_characters() if vocabulary is None else vocabulary
    (tmp_path / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text(merges)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"merges": "a b c\n"}, r"merges.txt: line 1 is 'a b c', expected two symbols"),
        ({"merges": "a b\n"}, r"merges make 'ab' .* the vocabulary lacks|lacks; expected"),
        ({"vocabulary": byte_characters()[:-2]}, r"no pieces for the bytes \[254, 255\]"),
        ({"vocabulary": [*byte_characters(), "abc", "ab"], "merges": "ab c\na b\n"},
         r"merge 1 uses 'ab', which only merge 2 makes"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        ByteBPETokenizer.load(_damage(tmp_path, **arguments))


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither vocab\.json with merges\.txt nor"):
        ByteBPETokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece"}}))
    with pytest.raises(ValueError, match="the model is 'WordPiece', expected 'BPE'"):
        ByteBPETokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 2}')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ValueError, match="the ids of 2 pieces are not 0 to 1"):
        ByteBPETokenizer.load(tmp_path)


@pytest.mark.full
def test_saved_model(tokenizer, tmp_path):
    lines = mixed_lines(300, 6)
    assert_the_same_in_a_saved_model(tokenizer, ([*lines, ""], lines[:1], []), tmp_path)

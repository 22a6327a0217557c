"""WordTokenizer: compared with Python's str.split; vocabularies from counts, files, graphs."""

import copy
import json
import os
import pickle
import random
from collections import Counter
from dataclasses import replace

import pytest
import tensorflow as tf

from bertfam_tf.text.tokenizers.words import SPECIAL_TOKENS, WordTokenizer, count_words
from tests.selection import only_in
from tests.text.graphs import assert_the_same_in_a_dataset, assert_the_same_in_a_saved_model

WORDS = ["<eos>", "<unk>", "the", "a", "dog", "é", "中国", "##s", "x\0y", "\ufffd", "it's", "The"]
ID = {word: index for index, word in enumerate(WORDS)}
SPACES = [chr(point) for point in range(0x110000) if chr(point).isspace()]
TEXTS = [
    "",
    " ",
    "".join(SPACES),
    "the dog",
    "  the\tdog\n ",
    "the dog, a dog.",
    "é 中国 中国é",
    "x\0y x \0",
    "The THE it's ##s <unk> <eos> a<unk>b",
    *(f"{space}the{space}{space}dog{space}é{space}" for space in SPACES),
    "the\u200bdog \u2060 \ufeffa",
    "z" * 10_000 + " the " + "中" * 10_000,
]


def expected(text, ids=ID, lower=False):
    """Ids and byte offsets with Python's splitting."""
    rows, place = [], 0
    for word in text.split():
        place = text.index(word, place)
        start = len(text[:place].encode())
        rows.append((ids.get(word, 1), start, start + len(word.encode())))
        place += len(word)
    return rows


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer(WORDS)


def together(tokenizer, texts):
    """Ids and offsets of each text."""
    parts = [part.to_list() for part in tokenizer.tokenize_with_offsets(texts)]
    return [list(zip(*row, strict=True)) for row in zip(*parts, strict=True)]


def test_words_are_those_of_str_split(tokenizer):
    assert together(tokenizer, TEXTS) == [expected(text) for text in TEXTS]
    assert tokenizer.tokenize(TEXTS).to_list() == [[i for i, _, _ in expected(t)] for t in TEXTS]


def test_single_texts_and_batches_give_the_same(tokenizer):
    rng = random.Random(0)
    alphabet = ["the", "dog", "é", "中国", "z", *rng.sample(SPACES, 6), " ", "\0"]
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 12))) for _ in range(256)]
    rows = together(tokenizer, texts)
    assert rows == [expected(text) for text in texts]
    assert rows == [together(tokenizer, [text])[0] for text in texts]


@pytest.mark.parametrize(
    ("data", "words", "offsets"),
    [
        (b"the\xff dog", ["<unk>", "dog"], [(0, 4), (5, 8)]),
        (b"\xe2\x80 the", ["\ufffd", "the"], [(0, 2), (3, 6)]),
        (b"the \xe2\x80", ["the", "\ufffd"], [(0, 3), (4, 6)]),
        (b"a\xe1\xc2\x85the", ["<unk>", "the"], [(0, 2), (4, 7)]),
        (b"\x85\xa0", ["<unk>"], [(0, 2)]),
    ],
)
def test_text_that_is_not_utf8(tokenizer, data, words, offsets):
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(data))
    assert [WORDS[i] for i in ids.numpy()] == words
    assert list(zip(starts.numpy(), ends.numpy(), strict=True)) == offsets


def test_random_bytes_read_as_python_reads_them(tokenizer):
    rng = random.Random(1)
    mix = b"the a\xc2\x85\xe2\x80\x83\xff\xe3\x80\x80\xe1\x9a\x80\xc3\xa9\xf0\x9f\x98\x80\x1c"
    rows = [bytes(rng.choices(mix, k=rng.randint(0, 20))) for _ in range(2000)]
    clean = [row.decode("utf-8", errors="replace") for row in rows]
    assert tokenizer.tokenize(tf.constant(rows)).to_list() == tokenizer.tokenize(clean).to_list()


def test_lower_case():
    small = WordTokenizer([word.lower() for word in WORDS[:-1]], lower_case=True)
    assert together(small, ["THE É İ Dog"]) == [[(2, 0, 3), (5, 4, 6), (1, 7, 9), (4, 10, 13)]]
    assert WordTokenizer(["<unk>", "i\u0307x"], lower_case=True).tokenize("İX").numpy() == [1]


def test_end_of_each_text():
    texts = ["the dog", "", "  ", "é "]
    ended = WordTokenizer(WORDS, add_eos=True)
    rows = [[*expected(text), (0, len(text.encode()), len(text.encode()))] for text in texts]
    assert together(ended, texts) == rows
    assert ended.tokenize("the").numpy().tolist() == [ID["the"], 0]
    assert ended.tokenize([]).to_list() == []
    with pytest.raises(ValueError, match="no '<eos>', which add_eos needs"):
        WordTokenizer(["<unk>"], add_eos=True)


def test_layouts():
    assert WordTokenizer(WORDS).layout.single == ("a", "eos")
    assert WordTokenizer(WORDS, add_eos=True).layout.single == ("a",)
    assert WordTokenizer(["<unk>", "a"]).layout.pair == ("a", "b")


IN_TEXT = replace(SPECIAL_TOKENS, special_tokens_in_text=True)


@pytest.mark.extended
def test_special_tokens_within_words():
    cutting = WordTokenizer(WORDS, special_tokens=IN_TEXT)
    assert together(cutting, ["the<unk>dog é"]) == [[(2, 0, 3), (1, 3, 8), (4, 8, 11), (5, 12, 14)]]
    ended = WordTokenizer(WORDS, special_tokens=IN_TEXT, add_eos=True)
    assert ended.tokenize(["the<unk>dog", "a"]).to_list() == [[2, 1, 4, 0], [3, 0]]


def test_shapes(tokenizer):
    assert tokenizer.tokenize([["the", "a dog"], ["x"]]).to_list() == [[[2], [3, 4]], [[1]]]
    empty = tokenizer.tokenize_with_offsets(tf.constant([], tf.string))
    assert [part.to_list() for part in empty] == [[], [], []]


def test_detokenize(tokenizer):
    rows = tokenizer.tokenize(["the  dog\tzz", ""])
    assert tokenizer.detokenize(rows).numpy().tolist() == [b"the dog <unk>", b""]


# Vocabularies from counts.

COUNTED = {"b": 2, "a": 2, "<unk>": 9, "c": 5, "d": 1}


def test_from_counts():
    made = WordTokenizer.from_counts(COUNTED)
    assert made.vocabulary == ["<eos>", "<unk>", "c", "b", "a", "d"]
    assert made.counts == (0, 9, 5, 2, 2, 1)
    small = WordTokenizer.from_counts(COUNTED, min_count=2, max_size=4, special=("<unk>",))
    assert small.vocabulary == ["<unk>", "c", "b", "a"]
    assert WordTokenizer.from_counts(COUNTED, min_count=3).vocabulary == ["<eos>", "<unk>", "c"]
    with pytest.raises(ValueError, match="max_size must be above the 2 special tokens, got 2"):
        WordTokenizer.from_counts(COUNTED, max_size=2)


def test_order_is_that_of_most_common():
    rng = random.Random(3)
    counts = count_words([" ".join(str(rng.randint(0, 400)) for _ in range(3000))])
    ranked = [word for word, _ in Counter(counts).most_common()]
    assert WordTokenizer.from_counts(counts).vocabulary == ["<eos>", "<unk>", *ranked]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": ["<eos>"]}, "no '<unk>'"),
        ({"vocabulary": ["<unk>", "a b"]}, "word 1 is 'a b', expected no white space"),
        ({"vocabulary": ["<unk>", ""]}, "line 2 is blank"),
        ({"vocabulary": ["<unk>", "a", "a"]}, "repeats 'a'"),
        ({"counts": [1]}, "found 1 counts for 12 words"),
        ({"cutoffs": [3, 3]}, r"cut-offs \[3, 3\], expected numbers that increase, from 1 to 11"),
        ({"cutoffs": [12]}, "cut-offs"),
        ({"cutoffs": [0]}, "cut-offs"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        WordTokenizer(**{"vocabulary": WORDS} | arguments)


# Files.


def test_save_and_load(tmp_path):
    odd = {
        "counts": range(12), "cutoffs": [2, 5], "add_eos": True, "lower_case": True,
        "special_tokens_in_text": True, "pad_token": "<eos>", "additional_special_tokens": ["##s"],
    }  # fmt: skip
    for number, options in enumerate(({}, {**odd, "special_tokens_in_text": False})):
        one = WordTokenizer.from_config({"vocabulary": WORDS, **options})
        one.save(tmp_path / str(number))
        two = WordTokenizer.load(tmp_path / str(number))
        assert two.get_config() == one.get_config()
        for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert other.get_config() == one.get_config()
    assert WordTokenizer.load(tmp_path / "1", lower_case=False).get_config()["lower_case"] is False
    assert (tmp_path / "0" / "vocab.txt").read_text().split("\n")[2] == "the"
    assert (tmp_path / "1" / "vocab.txt").read_text().split("\n")[2] == "the\t2"


def test_vocabulary_files(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("<unk> 7\nthe\t5\ndog 3\n")
    (tmp_path / "config.json").write_text('{"cutoffs": [1, 2]}')
    tokenizer = WordTokenizer.load(tmp_path)
    assert tokenizer.vocabulary == ["<unk>", "the", "dog"]
    assert (tokenizer.counts, tokenizer.cutoffs) == ((7, 5, 3), (1, 2))
    assert WordTokenizer(path).counts == (7, 5, 3)
    path.write_text("<unk>\nthe 5\n")
    assert WordTokenizer(path).counts is None
    for text, message in (
        ("<unk>\na b\n", "line 2 is 'a b', expected a word, or a word and its count"),
        ("<unk>\na 1 2\n", "line 2 is 'a 1 2'"),
        ("<unk>\n\na\n", "line 2 is blank"),
        ("a\n", "vocab.txt: found 1 pieces but no '<unk>'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            WordTokenizer(path)
    path.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"neither vocab\.txt nor tokenizer\.json nor vocab\.pkl"
    ):
        WordTokenizer.load(tmp_path)


class Exploding:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_published_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {
        "counter": Counter({"the": 3, "<formula>": 2}), "special": ["<eos>"], "lower_case": False,
        "delimiter": None, "idx2sym": ["<eos>", "the", "<unk>", "<formula>"],
        "moses": Exploding(),
    }  # fmt: skip
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(state))
    config = {"tokenizer_class": "TransfoXLTokenizer", "lower_case": False,
              "additional_special_tokens": ["<formula>", "<absent>"]}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = WordTokenizer.load(tmp_path)
    assert tokenizer.vocabulary == state["idx2sym"]
    assert tokenizer.counts == (0, 3, 0, 2)
    assert tokenizer.tokenize("the <formula> x").numpy().tolist() == [1, 3, 2]
    assert not (tmp_path / "exploded").exists()
    for content in (b"", b"junk", pickle.dumps({"idx2sym": [1]}), pickle.dumps([])):
        (tmp_path / "vocab.pkl").write_bytes(content)
        with pytest.raises(ValueError, match=r"vocab\.pkl: not the pickled vocabulary"):
            WordTokenizer.load(tmp_path)
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(state | {"delimiter": ","}))
    with pytest.raises(ValueError, match="split at ',', expected white space"):
        WordTokenizer.load(tmp_path)


# Graphs.


@pytest.mark.full
@pytest.mark.parametrize("add_eos", [False, True])
def test_saved_model(tmp_path, add_eos):
    batches = (TEXTS, TEXTS[3:4], TEXTS[3:] * 8, [])
    assert_the_same_in_a_saved_model(WordTokenizer(WORDS, add_eos=add_eos), batches, tmp_path)


def test_inside_a_dataset(tokenizer):
    assert_the_same_in_a_dataset(tokenizer, TEXTS)


# Real text.


@only_in("extended", "valid-217646")
@pytest.mark.parametrize(("split", "count"), [("valid", 217_646), ("test", 245_569)])
def test_wikitext(real_data, split, count):
    path = real_data(f"wikitext-2/{split}.txt")
    lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    tokenizer = WordTokenizer.from_counts(count_words(lines), add_eos=True)
    ids, starts, ends = tokenizer.tokenize_with_offsets(lines)
    assert ids.values.shape[0] == count
    words = tokenizer.vocabulary
    flat = [word for line in lines for word in [*line.split(), "<eos>"]]
    assert [words[i] for i in ids.values.numpy()] == flat
    words = tf.strings.substr(
        tf.gather(lines, ids.value_rowids()), starts.values, ends.values - starts.values
    )
    assert words.numpy().tolist() == [b"" if word == "<eos>" else word.encode() for word in flat]


@pytest.mark.full
def test_a_vocabulary_as_large_as_that_of_wikitext_103(tmp_path):
    size = 267_735
    words = ["<eos>", "<unk>", *(f"w{index}" for index in range(size - 2))]
    WordTokenizer(words, counts=range(size), cutoffs=(20_000, 40_000, 200_000)).save(tmp_path)
    tokenizer = WordTokenizer.load(tmp_path)
    assert tokenizer.vocab_size == size
    assert tokenizer.tokenize(f"w0 w{size - 3} w{size}").numpy().tolist() == [2, size - 1, 1]

"""train_vocabulary: loading and tokenizing, sizes, special tokens, errors."""

import random
import sys
from collections import Counter

import pytest

from bertfam_tf.text import load_tokenizer
from bertfam_tf.text.kernels.unicode import Rules
from bertfam_tf.text.training import KINDS, _bert_words, _search, train_vocabulary
from tests.selection import only_in

STEMS = "walk talk jump play look call work help paint clean".split()
ENDS = ["", "s", "ed", "ing", "er", "ers"]
SIZES = {"wordpiece": 100, "byte-bpe": 330, "bpe": 100, "sentencepiece": 80, "words": 40}
HOSTILE = [
    "Café CAFE\u0301 déjà-vu",
    "中国 the中国",
    "a\u00a0b\tc\u2003d\u3000e",
    "x\u200dy\u00ad z\0w",
    "don't stop!!",
    "ΑΣ İx ﬁ 한국",
    "the\x85the \x1c a\u2028b",
    "e\u0301\u0327 \u0300",
    "a\u2260b x\u037ey",
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files with all words of a small artificial language."""
    rng = random.Random(0)
    directory = tmp_path_factory.mktemp("corpus")
    words = [stem + end for stem in STEMS for end in ENDS]
    files = []
    for number in range(2):
        lines = [" ".join(rng.choices(words, k=8)) + " , é 中 ." for _ in range(200)]
        files.append(directory / f"{number}.txt")
        files[-1].write_text("\n".join([lines[0].upper(), "", *lines]) + "\n", encoding="utf-8")
    return files


@only_in("extended", "bpe", "sentencepiece", "byte-bpe")
@pytest.mark.parametrize("kind", KINDS)
def test_trained_tokenizers_load_and_tokenize(corpus, tmp_path, kind):
    made = train_vocabulary(kind, corpus, tmp_path / "out", size=SIZES[kind])
    assert made.vocab_size == SIZES[kind]
    special = KINDS[kind][1]
    assert [made.token_to_id(token) for token in special] == list(range(len(special)))
    loaded = load_tokenizer(tmp_path / "out")
    assert type(loaded) is type(made)
    assert loaded.get_config() == made.get_config()
    text = "walkers painted , 中 ."
    pieces = loaded.id_to_token(loaded.tokenize(text)).numpy().tolist()
    if kind != "words":
        assert special[1].encode() not in pieces
        again = loaded.detokenize(loaded.tokenize(text)).numpy().decode()
        assert again.split() == text.split()
    # The text repeats stems and endings, so that pieces longer than letters are learned.
    assert len(pieces) < 12


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_vocabulary(corpus, tmp_path, kind):
    for name in "ab":
        train_vocabulary(kind, corpus, tmp_path / name, size=SIZES[kind])
    files = [sorted((tmp_path / name).iterdir()) for name in "ab"]
    assert len(files[0]) == len(files[1]) > 1
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("kind", "special", "roles", "additional"),
    [
        ("wordpiece", ["<pad>", "<unk>", "[CLS]", "[E1]", "[EOS]"],
         {"pad": 0, "unk": 1, "cls": 2}, ("[E1]", "[EOS]")),
        ("byte-bpe", ["<|endoftext|>"], {"unk": 0, "bos": 0, "eos": 0}, ()),
        ("words", ["<unk>", "<pad>", "<formula>"], {"unk": 0, "pad": 1}, ("<formula>",)),
    ],
)  # fmt: skip
def test_special_tokens(corpus, tmp_path, kind, special, roles, additional):
    train_vocabulary(kind, corpus, tmp_path / "out", size=SIZES[kind], special=special)
    loaded = load_tokenizer(tmp_path / "out")
    assert loaded.vocabulary[: len(special)] == special
    assert loaded.special_ids == roles
    assert loaded.get_config()["additional_special_tokens"] == additional


def test_words_without_a_size(corpus, tmp_path):
    every = train_vocabulary("words", corpus, tmp_path / "every")
    text = "\n".join(file.read_text("utf-8") for file in corpus)
    assert every.vocab_size == 2 + len(set(text.split()))
    frequent = train_vocabulary("words", corpus, tmp_path / "frequent", min_count=3)
    assert frequent.vocab_size == 2 + sum(n >= 3 for n in Counter(text.split()).values())
    small = train_vocabulary("words", corpus, tmp_path / "small", lower_case=True)
    assert small.vocab_size == 2 + len(set(text.lower().split()))


@pytest.mark.parametrize("lower_case", [True, False])
def test_words_are_counted_as_the_tokenizer_splits_them(tmp_path, lower_case):
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "text").write_bytes("\n".join(HOSTILE).encode())
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    expected = Counter(
        word
        for line in HOSTILE
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line))
    )
    rules = Rules(lower_case, strip_accents=lower_case, split_chinese=True, clean_text=True)
    assert _bert_words([tmp_path / "text"], rules) == expected


def test_every_letter_and_mark_is_a_piece(corpus, tmp_path):
    made = train_vocabulary("wordpiece", corpus, tmp_path / "out", size=100)
    letters = set("".join(STEMS + ENDS)) | {"e"}
    assert {*letters, *(f"##{letter}" for letter in letters), ",", ".", "中"} <= {*made.vocabulary}
    assert not {"##,", "##.", "##中"} & {*made.vocabulary}


def test_the_most_frequent_ideographs_are_pieces(tmp_path):
    ideographs = [chr(0x4E00 + i) for i in range(300)]
    text = "".join(4 * ideographs[:200] + 3 * ideographs[200:]) + " some words" * 3
    (tmp_path / "text").write_text(text, encoding="utf-8")
    made = train_vocabulary("wordpiece", [tmp_path / "text"], tmp_path / "out", size=219)
    # Beside five special tokens and seven letters in two forms.
    assert {*ideographs[:200]} == {*ideographs} & {*made.vocabulary}


def test_a_small_text_gives_fewer_pieces(corpus, tmp_path, caplog):
    caplog.set_level("INFO")
    made = train_vocabulary("wordpiece", corpus, tmp_path / "out", size=5_000)
    assert 100 < made.vocab_size < 5_000
    assert f"no more than {made.vocab_size} pieces, 5000 were requested" in caplog.text


@pytest.mark.parametrize("size", [50, 1_000, 20_000, 10_000_000])
@pytest.mark.parametrize("power", [0.3, 0.6, 1.5, 3.0])
def test_thresholds_are_found(size, power):
    tried = []

    def learn(threshold):
        tried.append(threshold)
        return range(int(1_000_000 * threshold**-power))

    found = len(_search(learn, size, 2, 100_000))
    enough = [t for t in range(2, 100_001) if 1_000_000 * t**-power >= size]
    closest = len(learn(max(enough, default=2)))
    assert found == closest or size <= found <= 1.1 * size
    assert len(set(tried)) <= 16


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "word"}, ValueError, "kind must be one of wordpiece, byte-bpe, "),
        ({"size": None}, ValueError, "kind 'wordpiece' needs a size"),
        ({"size": 5}, ValueError, "size must be above the 5 special tokens, got 5"),
        ({"special": ["[UNK]", ""]}, ValueError, "must be distinct and not empty"),
        ({"special": ["[UNK]", "[UNK]"]}, ValueError, "must be distinct and not empty"),
        ({"special": ["[PAD]"]}, ValueError, r"no '\[UNK\]'"),
        ({"size": 40}, ValueError, "size 40 is too small: the text has 20 different letters"),
        ({"kind": "byte-bpe", "size": 260}, ValueError, "need 261 entries"),
        ({"kind": "byte-bpe", "lower_case": True}, ValueError, "does not lower-case"),
        ({"kind": "sentencepiece", "size": 10}, ValueError, "size is smaller than required_chars"),
        ({"kind": "sentencepiece", "min_count": 2}, ValueError, "does not support min_count"),
        ({"kind": "sentencepiece", "special": ["<s>"]}, ValueError, "one for unknown text"),
        ({"kind": "bpe", "lower_case": False}, ValueError, "always lower-cases"),
        ({"kind": "bpe", "size": 30}, ValueError, "size 30 is too small: the text has 2"),
        ({"files": ["absent.txt"]}, FileNotFoundError, "there is no file absent.txt"),
    ],
)
def test_errors(corpus, tmp_path, arguments, error, message):
    usual = {"kind": "wordpiece", "files": corpus, "output": tmp_path / "out", "size": 300}
    with pytest.raises(error, match=message):
        train_vocabulary(**usual | arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a walk\nb\xff\n",
            "bad.txt: line 2 is not UTF-8: the byte 0xff after 'b'. Convert the file, such as with "
            "iconv -f WINDOWS-1252 -t UTF-8.",
        ),
        (b"PAR1 a walk\n", "bad.txt is a Parquet file, expected text in UTF-8."),
        (b" \n\n", "there are no words in the input"),
    ],
)
def test_text_that_cannot_be_used(tmp_path, kind, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        train_vocabulary(kind, [tmp_path / "bad.txt"], tmp_path / "out", size=300)
    assert str(caught.value).removeprefix(f"{tmp_path}/") == message
    assert not (tmp_path / "out").exists()


def test_a_text_without_spaces(tmp_path):
    (tmp_path / "thai.txt").write_text("ไม่มีช่องว่าง" * 9, "utf-8")
    with pytest.raises(ValueError, match="all words in the input have more than 50 characters"):
        train_vocabulary("wordpiece", [tmp_path / "thai.txt"], tmp_path / "out", size=300)
    assert not (tmp_path / "out").exists()
    with (tmp_path / "thai.txt").open("a") as file:
        file.write("\n" + " a walk" * 20)
    with pytest.warns(
        UserWarning, match="1 of 3 different words have .* left out, 45% of the text"
    ):
        train_vocabulary("wordpiece", [tmp_path / "thai.txt"], tmp_path / "out", size=300)


@pytest.mark.extended
def test_a_book_in_one_line(tmp_path):
    words = random.Random(0).choices(["walk", "talk", "help", "paint"], k=250_000)
    (tmp_path / "book.txt").write_text(" ".join(words), "utf-8")
    made = train_vocabulary("sentencepiece", [tmp_path / "book.txt"], tmp_path / "out", size=30)
    assert {"▁walk", "▁talk", "▁help", "▁paint"} <= {*made.vocabulary}


def test_nothing_is_overwritten(corpus, tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file"):
        with pytest.raises(FileExistsError, match="expected a new or empty directory"):
            train_vocabulary("words", corpus, output)


@pytest.mark.parametrize(
    ("kind", "module"), [("byte-bpe", "tokenizers"), ("sentencepiece", "sentencepiece")]
)
def test_trainers_that_are_not_installed(corpus, tmp_path, monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"needs the package {module}: pip install .*vocabulary"):
        train_vocabulary(kind, corpus, tmp_path / "out", size=330)

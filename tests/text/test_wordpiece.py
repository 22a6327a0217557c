"""WordPieceTokenizer: hostile texts, files, graphs, and comparison with the reference."""

import copy
import json
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bertfam_tf.text import SpecialTokens, WordPieceTokenizer
from bertfam_tf.text.tokenizers.wordpiece import SPECIAL_TOKENS
from tests.selection import in_full, only_in
from tests.support import texts
from tests.support.compare_tokenizers import count_differences
from tests.support.subjects import bert_reference
from tests.text.graphs import (
    assert_the_same_in_a_dataset,
    assert_the_same_in_a_saved_model,
    assert_the_same_in_tflite,
)

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    "the", "cafe", "un", "##able", "##s", "a", "##a", "!", ",", "[", "]", "mask", "#",
    "\u4e2d", "\u56fd", "\u4e2d\u56fd", "ss", "i", "\u03c3", "##\u03c3", "ﬁ", "don", "'", "t",
    "\u1112", "##\u1161", "##\u11ab", "\u0938", "##\u093e", "x", "##y", "B", "cls", "é", "##é",
]  # fmt: skip
ID = {piece: index for index, piece in enumerate(PIECES)}

# Text, the expected pieces, and the bytes that each covers.
UNCASED = [
    ("", [], []),
    (" \t\r\n\u00a0\u3000\u2028 ", [], []),
    ("The unable!", ["the", "un", "##able", "!"], ["The", "un", "able", "!"]),
    ("THE,the", ["the", ",", "the"], ["THE", ",", "the"]),
    ("Café", ["cafe"], ["Café"]),
    ("Cafe\u0301 a", ["cafe", "a"], ["Cafe", "a"]),
    ("c\u0301a\u0301fe", ["cafe"], ["c\u0301a\u0301fe"]),
    ("t\0h\u00ad\u200de", ["the"], ["t\0h\u00ad\u200de"]),
    ("th\0e\ufffd\ue000", ["the"], ["th\0e"]),
    ("the\u200bthe", ["[UNK]"], ["the\u200bthe"]),
    ("the\u202ethe the", ["[UNK]", "the"], ["the\u202ethe", "the"]),
    ("the\x85the", ["[UNK]"], ["the\x85the"]),
    ("x\u1680y", ["x", "[UNK]"], ["x", "y"]),
    ("xy", ["x", "##y"], ["x", "y"]),
    ("\u4e2d\u56fdx\u4e2d", ["\u4e2d", "\u56fd", "x", "\u4e2d"], list("\u4e2d\u56fdx\u4e2d")),
    ("\u9fff", ["[UNK]"], ["\u9fff"]),
    ("a\U0002b820", ["[UNK]"], ["a\U0002b820"]),
    ("\u0130", ["i"], ["\u0130"]),
    ("ß", ["[UNK]"], ["ß"]),
    ("Σσ ς", ["σ", "##σ", "[UNK]"], ["Σ", "σ", "ς"]),
    ("ﬁ", ["ﬁ"], ["ﬁ"]),
    ("한", ["\u1112", "##\u1161", "##\u11ab"], ["한", "한", "한"]),
    ("सा", ["\u0938", "##\u093e"], ["\u0938", "\u093e"]),
    ("Ậ the", ["a", "the"], ["Ậ", "the"]),
    ("don't", ["don", "'", "t"], ["don", "'", "t"]),
    ("##s #", ["#", "#", "[UNK]", "#"], ["#", "#", "s", "#"]),
    ("👩‍👩‍👧a the", ["[UNK]", "the"], ["👩‍👩‍👧a", "the"]),
    ("a" * 100, ["a"] + ["##a"] * 99, ["a"] * 100),
    ("a" * 101 + " a", ["[UNK]", "a"], ["a" * 101, "a"]),
    ("á" * 100, ["a"] + ["##a"] * 99, ["á"] * 100),
    ("á" * 101, ["[UNK]"], ["á" * 101]),
    ("σ" * 101 + "!", ["[UNK]", "!"], ["σ" * 101, "!"]),
    ("!" * 101, ["!"] * 101, ["!"] * 101),
    ("the [MASK].a[CLS]", ["the", "[MASK]", "[UNK]", "a", "[CLS]"],
     ["the", "[MASK]", ".", "a", "[CLS]"]),
    ("[PAD][SEP][[UNK]]", ["[PAD]", "[SEP]", "[", "[UNK]", "]"],
     ["[PAD]", "[SEP]", "[", "[UNK]", "]"]),
    ("[mask] [ MASK ]", ["[", "mask", "]"] * 2, ["[", "mask", "]", "[", "MASK", "]"]),
    ("[MA\u0301SK]", ["[", "mask", "]"], ["[", "MA\u0301SK", "]"]),
    ("[MASK]\u0301", ["[MASK]"], ["[MASK]"]),
    ("a" * 101 + "[MASK]é", ["[UNK]", "[MASK]", "[UNK]"], ["a" * 101, "[MASK]", "é"]),
]  # fmt: skip

INVALID = [
    (b"th\xffe", ["the"], [(0, 4)]),
    (b"\xc3 the\xe4\xb8", ["the"], [(2, 5)]),
    (b"\xed\xa0\x80the", ["the"], [(3, 6)]),
    (b"a\xf0\x9f\x98 a", ["a", "a"], [(0, 1), (5, 6)]),
    (b"[MA\xffSK]", ["[", "mask", "]"], [(0, 1), (1, 6), (6, 7)]),
    (b"\x80\xc0\xaf\xf8\xfe", [], []),
]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(PIECES)


@only_in("extended", "-pieces0-covered0")
@pytest.mark.parametrize(("text", "pieces", "covered"), UNCASED)
def test_hostile_text(tokenizer, text, pieces, covered):
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    assert [PIECES[i] for i in ids.numpy()] == pieces
    data = text.encode("utf-8")
    slices = [data[a:b].decode("utf-8") for a, b in zip(starts.numpy(), ends.numpy(), strict=True)]
    assert slices == covered
    assert tokenizer.tokenize(text).numpy().tolist() == ids.numpy().tolist()


@pytest.mark.parametrize(("data", "pieces", "offsets"), INVALID)
def test_text_that_is_not_utf8(tokenizer, data, pieces, offsets):
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(data))
    assert [PIECES[i] for i in ids.numpy()] == pieces
    assert list(zip(starts.numpy(), ends.numpy(), strict=True)) == offsets


def test_random_bytes_read_as_python_reads_them(tokenizer):
    rng = random.Random(0)
    mix = b"the a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xed\xa0\x80\xff\x80\xe0\x80\xf4\x90\xcc\x81"
    rows = [bytes(rng.choices(mix, k=rng.randint(0, 30))) for _ in range(2000)]
    clean = [row.decode("utf-8", errors="replace") for row in rows]
    assert tokenizer.tokenize(tf.constant(rows)).to_list() == tokenizer.tokenize(clean).to_list()


def test_examples_of_a_batch_are_independent(tokenizer):
    """Texts whose offsets happen to be adjacent, with long words and special tokens."""
    texts = [text for text, _, _ in UNCASED]
    texts = [*texts, "a" * 60, " " * 60 + "a" * 60, "", "[MASK", "]", *reversed(texts)]
    rows = tokenizer.tokenize_with_offsets(texts)
    for part, whole in enumerate(rows):
        alone = [tokenizer.tokenize_with_offsets(text)[part].numpy().tolist() for text in texts]
        assert whole.to_list() == alone


@pytest.mark.extended
def test_cased_keeps_case_and_accents():
    cased = WordPieceTokenizer(PIECES, lower_case=False)
    assert cased.tokenize("B éé the The").numpy().tolist() == [
        ID["B"], ID["é"], ID["##é"], ID["the"], ID["[UNK]"],
    ]  # fmt: skip
    stripped = WordPieceTokenizer(PIECES, lower_case=False, strip_accents=True)
    assert stripped.tokenize("Bé cafés").numpy().tolist() == [ID["[UNK]"], ID["cafe"], ID["##s"]]
    kept = WordPieceTokenizer(PIECES, strip_accents=False)
    assert kept.tokenize("É CAFÉ").numpy().tolist() == [ID["é"], ID["[UNK]"]]


def test_chinese_words_when_not_split():
    whole = WordPieceTokenizer(PIECES, split_chinese=False)
    text = "\u4e2d\u56fd \u4e2d! \u4e2dx \u56fd\u56fd"
    ids, starts, ends = whole.tokenize_with_offsets(text)
    expected = ["\u4e2d\u56fd", "\u4e2d", "!", "[UNK]", "[UNK]"]
    assert [PIECES[i] for i in ids.numpy()] == expected
    covered = [text.encode()[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    assert covered == ["\u4e2d\u56fd", "\u4e2d", "!", "\u4e2dx", "\u56fd\u56fd"]


def test_special_tokens_may_be_plain_text():
    special = replace(SPECIAL_TOKENS, special_tokens_in_text=False)
    plain = WordPieceTokenizer(PIECES, special_tokens=special)
    assert plain.tokenize("[MASK]").numpy().tolist() == [ID["["], ID["mask"], ID["]"]]


@pytest.mark.extended
def test_special_tokens_of_other_shapes():
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "<e1>", "b"]
    special = SpecialTokens(
        unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>",
        mask_token="<mask>", additional_special_tokens=("<e1>",),
    )  # fmt: skip
    tokenizer = WordPieceTokenizer(pieces, special_tokens=special)
    ids = tokenizer.tokenize("<s>a<e1>b<mask></s>c<pad><").numpy().tolist()
    assert ids == [2, 5, 6, 7, 4, 3, 1, 0, 1]
    plain = SpecialTokens("UNK", special_tokens_in_text=False)
    # Added tokens are found all the same, but only in text as it is.
    special = replace(plain, added_tokens=("b",))
    tokenizer = WordPieceTokenizer(["UNK", "a", "b"], special_tokens=special)
    assert tokenizer.tokenize("aba B").numpy().tolist() == [1, 2, 1, 0]
    tokenizer = WordPieceTokenizer(["UNK", "a"], special_tokens=plain)
    assert tokenizer.tokenize("a b").numpy().tolist() == [1, 0]


def test_lone_surrogates_are_named(tokenizer):
    for text in ("a\ud800", [["a"], ["b", "a\ud800"]]):
        with pytest.raises(ValueError, match=r"the string 'a\\ud800' with a lone surrogate"):
            tokenizer.tokenize(text)


def test_custom_word_length():
    short = WordPieceTokenizer(PIECES, max_chars_per_word=3)
    assert short.tokenize("the aaa aaaa é").numpy().tolist() == [
        ID["the"], ID["a"], ID["##a"], ID["##a"], ID["[UNK]"], ID["[UNK]"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", [["the a", "!"], [["the", "a !"], ["x"]], [["a", "b"], ["x", "the"]], [], "the", [""]]
)
def test_shapes(tokenizer, text):
    ids = tokenizer.tokenize(text)
    ragged = tf.ragged.constant(text, tf.string) if isinstance(text, list) else tf.constant(text)
    assert ids.dtype == tf.int32
    assert ids.shape.rank == ragged.shape.rank + 1
    again = tokenizer.tokenize_with_offsets(ragged)
    assert all(part.shape.rank == ids.shape.rank and part.dtype == tf.int32 for part in again)
    if isinstance(ids, tf.RaggedTensor):
        assert again[0].to_list() == ids.to_list()


def test_tensor_of_rank_two(tokenizer):
    ids = tokenizer.tokenize(tf.constant([["the", "a a"], ["", "!"]]))
    assert ids.to_list() == [[[ID["the"]], [ID["a"]] * 2], [[], [ID["!"]]]]


def test_one_megabyte(tokenizer):
    text = "the café! " * 100_000
    ids, _, ends = tokenizer.tokenize_with_offsets([text])
    assert ids.to_list()[0] == [ID["the"], ID["cafe"], ID["!"]] * 100_000
    assert ends.numpy()[0, -1] == len(text.encode()) - 1
    word = tokenizer.tokenize("a" * 1_000_000).numpy().tolist()
    assert word == [ID["[UNK]"]]


def test_wrong_input(tokenizer):
    with pytest.raises(TypeError, match="int32"):
        tokenizer.tokenize(tf.constant([1]))
    with pytest.raises(ValueError, match="rank"):
        tokenizer.detokenize(tf.zeros([1, 1, 1], tf.int32))

    @tf.function(input_signature=[tf.TensorSpec(None, tf.string)])
    def unknown(text):
        return tokenizer.tokenize(text)

    with pytest.raises(ValueError, match="rank"):
        unknown(tf.constant("a"))


def test_detokenize(tokenizer):
    rows = tokenizer.tokenize(["The UNABLE café!", "", "[MASK] don't"])
    assert tokenizer.detokenize(rows).numpy().tolist() == [
        b"the unable cafe !", b"", b"[MASK] don ' t",
    ]  # fmt: skip
    dense = rows.to_tensor(tokenizer.pad_id)
    assert tokenizer.detokenize(dense).numpy()[1] == b" ".join([b"[PAD]"] * 5)
    assert tokenizer.detokenize([ID["##s"], ID["##s"], ID["a"]]).numpy() == b"##ss a"
    with pytest.raises(tf.errors.InvalidArgumentError):
        tokenizer.detokenize([[len(PIECES)]])


def test_names_and_numbers(tokenizer):
    assert tokenizer.vocabulary == PIECES
    assert tokenizer.vocab_size == len(PIECES)
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id] == [0, 1, 2]
    assert [tokenizer.sep_id, tokenizer.mask_id] == [3, 4]
    assert tokenizer.token_to_id("##able") == ID["##able"]
    assert tokenizer.id_to_token(5) == "the"
    assert tokenizer.id_to_token(tf.constant([[5, 6]])).numpy().tolist() == [[b"the", b"cafe"]]
    assert tokenizer.id_to_token(tf.ragged.constant([[5], []])).to_list() == [[b"the"], []]
    with pytest.raises(ValueError, match="'nothing'"):
        tokenizer.token_to_id("nothing")
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.id_to_token(-1)
    with pytest.raises(ValueError, match=r"\[CLS\]"):
        _ = WordPieceTokenizer(["[UNK]"]).cls_id


@pytest.mark.full
def test_config_round_trip():
    one = WordPieceTokenizer(PIECES, lower_case=False, strip_accents=True, max_chars_per_word=7)
    two = WordPieceTokenizer.from_config(one.get_config())
    for other in (two, copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other.get_config() == one.get_config()
        assert other.tokenize("é B").numpy().tolist() == one.tokenize("é B").numpy().tolist()


def test_save_and_load(tmp_path):
    odd = {
        "lower_case": False, "strip_accents": True, "split_chinese": False,
        "special_tokens_in_text": False, "max_chars_per_word": np.int64(9),
    }  # fmt: skip
    for number, options in enumerate(({}, odd)):
        one = WordPieceTokenizer.from_config({"vocabulary": PIECES, **options})
        one.save(tmp_path / str(number))
        two = WordPieceTokenizer.load(tmp_path / str(number))
        assert two.get_config() == one.get_config()
    config = json.loads((tmp_path / "1" / "tokenizer_config.json").read_text("utf-8"))
    assert config["do_lower_case"] is False
    assert config["strip_accents"] is True
    assert config["tokenize_chinese_chars"] is False
    assert WordPieceTokenizer.load(tmp_path / "1", lower_case=True).get_config()["lower_case"]


def test_load_vocabulary_alone(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(["[UNK]", "[CLS]", "the", "\u2028"]).encode())
    tokenizer = WordPieceTokenizer.load(tmp_path)
    assert tokenizer.vocabulary == ["[UNK]", "[CLS]", "the", "\u2028"]
    assert tokenizer.get_config()["lower_case"] is True
    path.write_text("[UNK]\n<S>\nThe\n")
    assert WordPieceTokenizer.load(path).get_config()["lower_case"] is False
    assert WordPieceTokenizer.load(tmp_path, lower_case=True).get_config()["lower_case"] is True
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "unk_token": {"content": "<S>", "lstrip": False}})
    )
    config = WordPieceTokenizer.load(tmp_path).get_config()
    assert (config["lower_case"], config["unk_token"]) == (True, "<S>")


def tokenizer_json(**changes):
    return {
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False,
            "strip_accents": False, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "added_tokens": [
            {"id": 0, "content": "[UNK]", "special": True},
            {"id": 2, "content": "[E]", "special": True, "lstrip": False},
        ],
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 50, "vocab": {"é": 1, "[UNK]": 0},
        },
    } | changes  # fmt: skip


def test_load_tokenizer_json_alone(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    tokenizer = WordPieceTokenizer.load(tmp_path)
    config = tokenizer.get_config()
    assert tokenizer.vocabulary == ["[UNK]", "é", "[E]"]
    assert config["strip_accents"] is False
    assert config["split_chinese"] is False
    assert config["max_chars_per_word"] == 50
    assert tokenizer.tokenize("É[E]").numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"vocab.txt: found 0 pieces but no '\[UNK\]'"),
        (b"a\nb\n", r"vocab.txt: found 2 pieces but no '\[UNK\]'"),
        (b"[UNK]\na\nb\na\n", r"vocab.txt: line 4 repeats 'a' of line 2"),
        (b"[UNK]\n\na\n", "vocab.txt: line 2 is blank"),
        (b"[UNK]\na\n\xff\n", "vocab.txt: line 3 contains the byte 0xff, expected UTF-8"),
    ],
)
def test_damaged_vocabulary(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer.load(tmp_path)
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}}}, "the model is 'BPE', expected 'WordPiece'"),
        ({"normalizer": {"type": "NFC"}}, "the normalizer is 'NFC'"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}]}}, "is 'NFD'"),
        ({"pre_tokenizer": {"type": "ByteLevel"}}, "the pre-tokenizer is 'ByteLevel'"),
        ({"added_tokens": [{"id": 7, "content": "[X]", "special": True}]}, "are not 0 to 2"),
    ],
)
def test_foreign_tokenizer_json(tmp_path, changes, message):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(**changes)))
    with pytest.raises(ValueError, match=f"tokenizer.json: .*{message}"):
        WordPieceTokenizer.load(tmp_path)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither vocab\.txt nor tokenizer\.json"):
        WordPieceTokenizer.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        WordPieceTokenizer(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not JSON"):
        WordPieceTokenizer.load(tmp_path)


def test_inside_a_dataset(tokenizer):
    assert_the_same_in_a_dataset(tokenizer, [text for text, _, _ in UNCASED])


@pytest.mark.full
def test_built_inside_a_traced_function():
    made = []

    @tf.function
    def function(text):
        if not made:
            made.append(WordPieceTokenizer(PIECES))
        return made[0].tokenize(text)

    assert function(tf.constant(["the"])).to_list() == [[ID["the"]]]
    assert made[0].tokenize(["a"]).to_list() == [[ID["a"]]]


@pytest.mark.full
def test_saved_model(tokenizer, tmp_path):
    rows = [text for text, _, _ in UNCASED]
    assert_the_same_in_a_saved_model(tokenizer, [rows, rows[:1], rows * 8, []], tmp_path)


@pytest.mark.full
def test_tflite(tokenizer):
    texts = [text for text, _, _ in UNCASED if "\0" not in text]
    batches = (texts, texts[:3], ["[MASK]", "a" * 101], ["the"])
    assert_the_same_in_tflite(tokenizer, batches)
    special = replace(SPECIAL_TOKENS, additional_special_tokens=("un", "the u", "able"))
    words = WordPieceTokenizer([*PIECES, "the u", "able"], special_tokens=special)
    assert_the_same_in_tflite(words, (["the unable!", "[MASK]the un", ""], ["able"]))


# Comparison with the `tokenizers` library.


def test_own_vocabulary_equals_the_reference(tokenizer, tmp_path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    lines = [text for text, _, _ in UNCASED]
    assert count_differences(tokenizer, bert_reference(path, True), lines, 3) == (0, 0)


SWITCHES = [
    ("uncased", {"strip_accents": False}, {"strip_accents": False}),
    ("cased", {"lower_case": False, "strip_accents": True},
     {"lowercase": False, "strip_accents": True}),
    ("multilingual-cased", {"split_chinese": False}, {"handle_chinese_chars": False}),
    ("uncased", {"clean_text": False}, {"clean_text": False}),
]  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize(("name", "ours", "theirs"), in_full(SWITCHES, SWITCHES[:1]))
def test_switches_equal_the_reference(real_data, name, ours, theirs):
    pytest.importorskip("tokenizers")
    path = real_data(f"vocab/bert-base-{name}/vocab.txt")
    lines = texts.hostile_lines(800, seed=1)
    reference = bert_reference(path, True, **theirs)
    ids, offsets = count_differences(WordPieceTokenizer(path, **ours), reference, lines, 3)
    assert ids == 0
    # Marks that stripping keeps but NFD moves: see `WordPieceTokenizer`.
    assert offsets <= 5


@pytest.mark.extended
def test_published_tokenizer_json_alone(minilm, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    content = json.loads((minilm / "tokenizer.json").read_text("utf-8")) | {
        "truncation": None,
        "padding": None,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ours = WordPieceTokenizer.load(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    lines = texts.hostile_lines(300, seed=3)
    assert count_differences(ours, theirs, lines, 3)[0] == 0


@pytest.mark.full
def test_the_comparison_can_fail(real_data, real_corpus):
    pytest.importorskip("tokenizers")
    path = real_data("vocab/bert-base-uncased/vocab.txt")
    wrong = WordPieceTokenizer(path, strip_accents=False)
    reference = bert_reference(path, True)
    assert count_differences(wrong, reference, real_corpus(500), 0)[0] > 20


@pytest.mark.full
def test_tokens_of_normalized_text(tmp_path):
    """As tokenizers finds those with ``normalized``: also where case or an accent hides them."""
    special = replace(SPECIAL_TOKENS, normalized_tokens=("[MASK]",))
    tokenizer = WordPieceTokenizer(PIECES, special_tokens=special)
    mask, words = ["[MASK]"], ["[", "mask", "]"]
    cases = {
        "[MASK]": mask, "[mask]": mask, "[m\u0301ask]": mask, "[\0mas\u200bk]": mask,
        "[ mask]": words, "[mask ]": words, "[": ["["], "": [],
        "[masks]": ["[", "mask", "##s", "]"],
        "a[mask]the[Mask][CLS]": ["a", *mask, "the", *mask, "[CLS]"],
        "[[mask]]": ["[", *mask, "]"], "[mask\u4e2d]": ["[", "mask", "\u4e2d", "]"],
        "[mas": ["[", "[UNK]"], "x" * 200 + "[mask]": ["[UNK]", *mask],
    }  # fmt: skip
    given = list(cases)
    found = tokenizer.id_to_token(tokenizer.tokenize(given))
    assert [[p.decode() for p in row] for row in found.to_list()] == list(cases.values())
    ids, starts, ends = tokenizer.tokenize_with_offsets(["the [M\u0301ask]!"])
    assert ids.to_list() == [[ID["the"], ID["[MASK]"], ID["!"]]]
    assert (starts.to_list(), ends.to_list()) == ([[0, 4, 12]], [[3, 12, 13]])
    assert_the_same_in_a_dataset(tokenizer, given)
    assert_the_same_in_a_saved_model(tokenizer, [given], tmp_path)
    tokenizer.save(tmp_path / "saved")
    again = WordPieceTokenizer.load(tmp_path / "saved")
    assert again.special_tokens == special
    for token, message in (
        ("[q]", "has characters that no piece of the vocabulary has"),
        (" un", "or white space around it"),
    ):
        tokens = replace(
            SPECIAL_TOKENS, additional_special_tokens=(token,), normalized_tokens=(token,)
        )
        with pytest.raises(ValueError, match=message):
            WordPieceTokenizer([*PIECES, *{token} - {*PIECES}], special_tokens=tokens)

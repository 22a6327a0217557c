"""BPETokenizer: compared with brute force; Moses' rules, offsets, files and graphs."""

import copy
import itertools
import json
import random
import re
import string
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from bertfam_tf.text.kernels import unicode
from bertfam_tf.text.kernels.moses import DOT, LANGUAGES, MosesWords, nonbreaking_prefixes
from bertfam_tf.text.special_tokens import SpecialTokens
from bertfam_tf.text.tokenizers.bpe import SPECIAL_TOKENS, BPETokenizer
from bertfam_tf.text.tokenizers.bpe_files import END
from tests.support.texts import decoded, hostile
from tests.text.graphs import assert_the_same_in_a_saved_model

SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
SNIPPETS = [
    "a", "b", "c", "ab", "abc", "É", "é", "ς", "ΑΣ", "Σ", "x", "日", "本", "ﬁ", "İ", "가", "\u0301",
    "\u302e", "!", "...", "'", "-", "<", ">", "w", " ", "  ", "\n", "\t", "\u00a0", "\u3000",
    "\x00",
    "\u200b", "\ufffd", "\ue000", "\ue001", "\ue004", "\U0001fae8", "😀", "abcabcabc", "</w>",
    "\u2028", "\x85", "\u037e", "\u1fef", "\u2260", "1", "²",
]  # fmt: skip


def mixed_lines(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(SNIPPETS, k=rng.randint(0, 20))) for _ in range(count)]


def random_bpe(seed, alphabet="abcé日!1", size=40):
    """Random pieces and merges with marked word ends, as learned by byte-pair encoding."""
    rng = random.Random(seed)
    symbols = [*alphabet, *(char + END for char in alphabet)]
    merges = []
    while len(merges) < size:
        left = rng.choice([symbol for symbol in symbols if not symbol.endswith(END)])
        right = rng.choice(symbols)
        if left + right not in symbols:
            merges.append((left, right))
            symbols.append(left + right)
    # Some symbols have no id.
    kept = [symbol for symbol in symbols if rng.random() < 0.9]
    return ["<unk>", *kept], merges


def brute_force(word, ranks):
    """Merges the best pair, the leftmost among equal ones, until there is none."""
    parts = [*word[:-1], word[-1] + END]
    while len(parts) > 1:
        best, at = min(
            (ranks.get(pair, 9_999), at) for at, pair in enumerate(itertools.pairwise(parts))
        )
        if best == 9_999:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def bert_words(text):
    """BERT's words as split by the Python class, lower-cased and without accents."""
    kept = []
    for char in (char.lower() for char in text):
        for part in char:
            kind = unicodedata.category(part)
            if part in "\t\n\r":
                kept.append(" ")
            elif part != "\ufffd" and kind[0] != "C":
                kept.append(f" {part} " if _is_chinese(ord(part)) else part)
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFC", "".join(kept)))
    text = "".join(part for part in text if unicodedata.category(part) != "Mn")
    return "".join(
        f" {part} " if part in string.punctuation or unicodedata.category(part)[0] == "P" else part
        for part in text
    ).split()


def _is_chinese(code):
    blocks = (
        (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
    )  # fmt: skip
    return any(start <= code <= end for start, end in blocks)


@pytest.mark.full
@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="needs Python 3.11's Unicode")
@pytest.mark.parametrize("seed", range(4))
def test_by_brute_force(seed):
    pieces, merges = random_bpe(seed)
    ids = {piece: index for index, piece in enumerate(pieces)}
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    plain = replace(SPECIAL_TOKENS, special_tokens_in_text=False)
    tokenizer = BPETokenizer(pieces, merges, special_tokens=plain)
    lines = [line.encode() for line in mixed_lines(300, seed)] + list(hostile()[seed:5_000:25])
    found = tokenizer.tokenize(lines).to_list()
    with_offsets = tokenizer.tokenize_with_offsets(lines)[0].to_list()
    for line, row, other in zip(lines, found, with_offsets, strict=True):
        wanted = [
            ids.get(symbol, 0)
            for word in bert_words(decoded(line))
            for symbol in brute_force(word, ranks)
        ]
        assert row == wanted, line
        assert other == row


# A small tokenizer like GPT's.


@pytest.fixture(scope="module")
def reference():
    pieces, merges = random_bpe(1, "abcdehilorstw.,!?'ü", 120)
    singles = list("abcdehilorstw.,!?'ü")
    pieces = list(dict.fromkeys([*pieces, *singles, *(p + END for p in singles)]))
    pieces += [left + right for left, right in merges if left + right not in pieces]
    made = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            end_of_word_suffix=END,
        )
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([AddedToken("<unk>", special=True, normalized=False)])
    return made


@pytest.fixture(scope="module")
def directory(reference, tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe")
    reference.model.save(str(path))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return BPETokenizer.load(directory)


def test_offsets_of_the_fast_class(reference, tokenizer):
    rng = random.Random(0)
    letters = ["a", "b", "D", "the", "hi", "É", " ", "  ", ".", "!?", "'s", "tower", "\u200b", "\n"]
    lines = ["".join(rng.choices(letters, k=30)) for _ in range(300)]
    ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(lines))
    for line, *found in zip(lines, ids, starts, ends, strict=True):
        encoding = reference.encode(line, add_special_tokens=False)
        at = list(itertools.accumulate((len(char.encode()) for char in line), initial=0))
        first, last = zip(*encoding.offsets, strict=True) if encoding.offsets else ((), ())
        assert found == [encoding.ids, [at[i] for i in first], [at[i] for i in last]], line


def test_each_unknown_character_is_a_piece(tokenizer):
    ids, starts, ends = tokenizer.tokenize_with_offsets("ŋŋ日a漢xŋ".encode() + b" \xff\xe4\xb8")
    unk, a = tokenizer.unk_id, tokenizer.token_to_id("a" + END)
    # Invalid UTF-8 becomes U+FFFD, which is removed.
    assert ids.numpy().tolist() == [unk, unk, unk, a, unk, unk, unk]
    assert starts.numpy().tolist() == [0, 2, 4, 7, 8, 11, 12]
    assert ends.numpy().tolist() == [2, 4, 7, 8, 11, 12, 14]


def test_words_too_long_for_the_table(tokenizer, reference):
    lines = ["the" * 3_000, "ŋ" * 2_000, "a" * 300 + " a"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(lines)
    wanted = reference.encode(lines[0], add_special_tokens=False)
    assert ids[0].numpy().tolist() == wanted.ids
    assert list(zip(starts[0].numpy(), ends[0].numpy(), strict=True)) == wanted.offsets
    assert ids[1].numpy().tolist() == [tokenizer.unk_id] * 2_000


@pytest.mark.extended
def test_special_tokens_in_any_case(tokenizer, directory):
    unk = tokenizer.unk_id
    a = tokenizer.token_to_id("a" + END)
    for text in ("a<unk>a", "a <UNK> A", "a<uNk>a", "a<un\N{KELVIN SIGN}>a"):
        assert tokenizer.tokenize(text).numpy().tolist() == [a, unk, a], text
    assert tokenizer.tokenize_with_offsets("a<UNK>")[1].numpy().tolist() == [0, 1]
    plain = BPETokenizer.load(directory, special_tokens_in_text=False)
    assert len(plain.tokenize("<unk>").numpy()) == 5
    special = SpecialTokens(unk_token="<unk>", additional_special_tokens=("<A>",))
    exact = BPETokenizer(["<unk>", "<A>", "a", "a" + END], [], special_tokens=special)
    assert exact.tokenize("<A>").numpy().tolist() == [1]
    assert exact.tokenize("<a>").numpy().tolist() == [0, 3, 0]


def test_detokenize(tokenizer):
    text = tokenizer.detokenize(tokenizer.tokenize(["The tower,  is HOT!", "a<unk>b", ""]))
    assert [row.decode() for row in text.numpy()] == ["the tower , is hot !", "a <unk> b", ""]


def test_unicode_is_that_of_python_3_11(tokenizer):
    # U+1FAE8 was added in Unicode 15; unassigned characters are removed.
    assert tokenizer.tokenize("a\U0001fae8a").numpy().tolist() == (
        tokenizer.tokenize("aa").numpy().tolist()
    )
    tables = unicode.python_classes()
    if unicodedata.unidata_version == "14.0.0":
        for code in random.Random(0).sample(range(0x110000), 20_000):
            kind = unicodedata.category(chr(code))
            if not 0xD800 <= code < 0xE000 and code > 0x20 and code != 0xFFFD:
                assert tables.removed[code] == (kind[0] == "C"), hex(code)
            assert tables.mark[code] == (kind == "Mn"), hex(code)


# Moses.

# Made with the reference: the text lower-cased, Moses' words.
MOSES = [
    ("en", "It's the dogs' 'bone', isn't it? O'Neill's 1990's.",
     "it 's the dogs ' ' bone ' , isn 't it ? o 'neill 's 1990 's ."),
    ("en", "Mr. Smith (of U.S. Steel) paid 1,000,000 , or 5,  i.e. 3. Rev. Jones",
     "mr. smith ( of u.s. steel ) paid 1,000,000 , or 5 , i.e. 3. rev. jones"),
    ("en", "pp. 5 and pp. x... Wait.... what..?", "pp. 5 and pp. x ... wait .... what .. ?"),
    ("en", 'He said "no". She said "yes", and “maybe”...',
     'he said " no . " she said " yes , " and " maybe ... "'),
    ("en", "``quoted'' text''' — well–known … 5 % (50 %) : a ; b",
     "\" quoted \" text \" ' - well-known ... 5 % ( 50 % ) : a ; b"),
    ("en", "end.'", "end . '"),
    ("en", "'tis 'n' 5's ,5 5,", "'tis ' n ' 5 's , 5 5 ,"),
    ("en", "tab\tand\u200bzero\x85x\u3000y\u2003z\xa0?  5\xa0000\r\n", "tabandzerox y z ? 5.000"),
    ("fr", "L'été «\xa0d'où\xa0» qu'il\xa0: n'a\xa0! 10\xa0000,5 \"fin\". Oui",
     "l' été \" d' où \" qu' il : n' a ! 10,000,5 \" fin \" . oui"),
    ("fr", "M. Dupont av. J.-C. etc. Et 'x' d'", "m. dupont av. j.-c. etc. et ' x ' d'"),
    ("de", 'Er sagte: „Nein“, z.B. am 3. Mai. "Ja", Hr. Müller. Ende',
     'er sagte : " nein " , z.b. am 3. mai . " ja " , hr. müller. ende'),
    ("es", '¿Qué? ¡Sí! Sr. López "a", nº\xa0: 5 º\xa0ºC',
     '¿ qué ? ¡ sí ! sr. lópez " a " , nº : 5 º ºc'),
    ("it", "dell'arte, l' 'x'. Sig. Rossi", "dell' arte , l ' ' x ' . sig. rossi"),
    ("ro", "Şi ţară, înălţa „Și” dl. Popescu", 'si tara , inalta " si " dl. popescu'),
    ("ru", "Москва, ул. Ленина 5. Он", "москва , ул. ленина 5. он"),
    ("el", "Ο κ. Παπαδόπουλος είπε «ναι».", 'ο κ. παπαδόπουλος είπε " ναι " .'),
    ("ar", "قال: «نعم»، ثم ذهب؟ 1.5", 'قال : " نعم " ، ثم ذهب ؟ 1.5'),
    ("hi", "डॉ. राम ने कहा, क़", "डॉ. राम ने कहा , क़"),
    ("zh", "他 说 ： “ 是 ” 。 （ ５ ％ ）", '他 说: " 是 " . (5%)'),
    ("cs", "10\xa0000 tj. Řekl", "10,000 tj. řekl"),
]  # fmt: skip


@pytest.mark.parametrize("language", sorted({case[0] for case in MOSES}))
def test_moses(language):
    words = MosesWords(language, True, nonbreaking_prefixes(language))
    cases = [case for case in MOSES if case[0] == language]
    found = words(tf.constant([text for _, text, _ in cases]))
    spaced, _, _ = words.with_sources(tf.constant([text for _, text, _ in cases]))
    assert spaced.numpy().tolist() == found.numpy().tolist()
    for (_, text, wanted), row in zip(cases, found.numpy(), strict=True):
        assert row.decode().replace(DOT, ".").split() == wanted.split(), text


def test_moses_keeps_full_stops_before_small_letters_and_numbers():
    words = MosesWords("en", False, nonbreaking_prefixes("en"))
    text = words(tf.constant(["Mr. No. 5 No. X. He. said. 5 U.S. Xy. 5"])).numpy()[0].decode()
    assert text.split() == "Mr. No. 5 No . X. He. said . 5 U.S. Xy . 5".split()


def test_unknown_language():
    with pytest.raises(ValueError, match="language must be one of ar, bg, cs, de"):
        BPETokenizer(["<unk>", "a" + END], [], splitter="moses", language="tlh")
    with pytest.raises(ValueError, match="splitter must be bert or moses"):
        BPETokenizer(["<unk>", "a" + END], [], splitter="spacy")
    assert {"ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi",
            "zh"} <= set(LANGUAGES)  # fmt: skip


@pytest.fixture(scope="module")
def fast_bpe(tmp_path_factory):
    """XLM's own files: a piece in two parts, words, and marks."""
    path = tmp_path_factory.mktemp("fast_bpe")
    words = ["hello", "world", ",", ".", '"', "'s", "...", "he", "said", "5,000", "ete"]
    merges = ["h e", "l l", "l o</w>", "he ll", "hell o</w>", "w o", "r l", "wo rl", "worl d</w>",
              "' s</w>", ". .</w>", ". ..</w>", "h e</w>", "\u00a0 \u00a0"]  # fmt: skip
    pieces = [f"{word} {100 - index}" for index, word in enumerate(words)]
    pieces += ["he@@ 9", "l@@ 8", "é 7", "e@@ 6", "t@@ 5", "e 4", "lo 3", "ll 2"]
    (path / "vocab_small").write_text("".join(f"{line}\n" for line in pieces), "utf-8")
    codes = [f"{pair} {100 - rank}\n" for rank, pair in enumerate(merges)]
    (path / "codes_small").write_text("".join(codes), "utf-8")
    return path


@pytest.fixture(scope="module")
def xlm(fast_bpe):
    return BPETokenizer.load(fast_bpe)


@pytest.mark.extended
def test_fast_bpe_files(fast_bpe, xlm, tmp_path):
    tokenizer = xlm
    assert tokenizer.vocabulary[:14] == SPECIAL
    assert tokenizer.vocabulary[14] == "hello" + END
    assert "he" in tokenizer.vocabulary
    assert [tokenizer.bos_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id] == [0, 1, 1, 2]
    assert tokenizer.mask_id == tokenizer.token_to_id("<special1>")
    assert tokenizer.layout.pair == ("cls", "a", "sep", "b", "sep")
    found = tokenizer.tokenize("Hello “world”... HE's </S>").numpy()
    assert [tokenizer.id_to_token(int(index)) for index in found] == [
        "hello" + END, '"' + END, "world" + END, "..." + END, '"' + END, "he" + END, "'s" + END,
        "</s>",
    ]  # fmt: skip
    (tmp_path / "hub").mkdir()
    ids = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
    (tmp_path / "hub" / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "hub" / "merges.txt").write_bytes((fast_bpe / "codes_small").read_bytes())
    assert BPETokenizer.load(tmp_path / "hub").get_config() == tokenizer.get_config()
    small = BPETokenizer.load(fast_bpe, max_pieces=20)
    assert small.vocab_size == 20
    (tmp_path / "config.json").write_text('{"n_words": 17}')
    for file in fast_bpe.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert BPETokenizer.load(tmp_path).vocab_size == 17


@pytest.mark.extended
def test_moses_offsets(xlm):
    tokenizer = xlm
    texts = ["“Hello”\u200b… «\u00a0World\u00a0». HÉ's\r\n\u3000été", "'", "", "''he'' he"]
    lines = [*(text.encode() for text in texts), b"e\xff t", b"e\x80\x80t\xe4\xb8"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(lines)
    assert ids.to_list() == tokenizer.tokenize(lines).to_list()
    pieces = [
        (tokenizer.id_to_token(int(i)), lines[0][a:b].decode())
        for i, a, b in zip(ids[0], starts[0], ends[0], strict=True)
    ]
    assert pieces == [
        ('"' + END, "“"), ("hello" + END, "Hello"), ('"' + END, "”"), ("..." + END, "…"),
        ('"' + END, "«"), ("world" + END, "World"), ("." + END, "»"), ('"' + END, "."),
        ("he" + END, "HÉ"), ("'s" + END, "'s"), ("e", "é"), ("t", "t"), ("e" + END, "é"),
    ]  # fmt: skip
    for line, row_starts, row_ends in zip(lines, starts.to_list(), ends.to_list(), strict=True):
        assert row_starts == sorted(row_starts)
        spans = zip(row_starts, row_ends, strict=True)
        assert all(0 <= start < end <= len(line) for start, end in spans)
    spans = [
        list(zip(*row, strict=True)) for row in zip(starts.to_list(), ends.to_list(), strict=True)
    ]
    # The first of two single quotation marks is covered; invalid UTF-8 counts as a character.
    assert spans[3] == [(0, 1), (2, 4), (4, 5), (7, 9)]
    assert spans[4] == [(0, 1), (1, 2), (3, 4)]
    assert spans[5] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 6)]


@pytest.mark.extended
def test_moses_offsets_stay_inside_whatever_the_text(xlm):
    tokenizer = xlm
    lines = [*hostile()[::11], *(line.encode() for line in mixed_lines(300, 9))]
    ids, starts, ends = tokenizer.tokenize_with_offsets(lines)
    assert ids.to_list() == tokenizer.tokenize(lines).to_list()
    length = np.repeat([len(line) for line in lines], ids.row_lengths())
    assert (starts.values.numpy() >= 0).all()
    assert (starts.values.numpy() < ends.values.numpy()).all()
    assert (ends.values.numpy() <= length).all()


# Files and graphs.


@pytest.mark.extended
def test_files(directory, reference, tokenizer, tmp_path, fast_bpe):
    for index, made in enumerate((tokenizer, BPETokenizer.load(fast_bpe, language="de"))):
        made.save(tmp_path / f"{index}")
        again = BPETokenizer.load(tmp_path / f"{index}")
        assert again.get_config() == made.get_config()
        assert again.layout == made.layout
    (tmp_path / "2").mkdir()
    reference.save(str(tmp_path / "2" / "tokenizer.json"))
    alone = BPETokenizer.load(tmp_path / "2" / "tokenizer.json")
    expected = tokenizer.get_config() | {"fast": True, "layout": alone.layout}
    assert alone.get_config() == expected
    assert (
        copy.deepcopy(alone).tokenize("the").numpy().tolist()
        == tokenizer.tokenize("the").numpy().tolist()
    )
    renamed = tmp_path / "3"
    renamed.mkdir()
    (renamed / "encoder_bpe_40000.json").write_bytes((directory / "vocab.json").read_bytes())
    (renamed / "vocab_40000.bpe").write_bytes((directory / "merges.txt").read_bytes())
    assert BPETokenizer.load(renamed).get_config() == tokenizer.get_config()
    assert tokenizer.layout.pair == ("a", "b")


def write(path, vocabulary, merges):
    (path / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(vocabulary)}))
    (path / "merges.txt").write_text(merges)
    return path


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        (["<unk>", "a"], "a b c\n", r"merges.txt: line 1 is 'a b c', expected two symbols and a c"),
        (["<unk>", "a"], "a b\na b 3\n", r"merges.txt: line 2 is 'a b 3', expected two symbols"),
        (["a", "b"], "", r"found 2 pieces but no '<unk>'"),
        (["<unk>", "a", "b"], "a b\n", r"none of the pieces that these merges make"),
        (["<unk>", "abc", "ab"], "ab c\na b\n", r"merge \d+ uses 'ab', which only merge \d+ makes"),
    ],
)
def test_damaged_files(tmp_path, vocabulary, merges, message):
    with pytest.raises(ValueError, match=message):
        BPETokenizer.load(write(tmp_path, vocabulary, merges))


def test_damaged_fast_bpe_files(fast_bpe, tmp_path):
    (tmp_path / "vocab_x").write_bytes((fast_bpe / "vocab_small").read_bytes())
    with pytest.raises(FileNotFoundError, match=r"nor one vocab… and one codes… of fastBPE"):
        BPETokenizer.load(tmp_path)
    (tmp_path / "codes_x").write_text("a b 3\nc d\n")
    with pytest.raises(ValueError, match=r"codes_x: line 2 is 'c d', expected two symbols and a c"):
        BPETokenizer.load(tmp_path)
    (tmp_path / "vocab_x").write_text("a 3\nb\n")
    with pytest.raises(ValueError, match=r"vocab_x: line 2 is 'b', expected a piece, a count"):
        BPETokenizer.load(tmp_path)


def test_tokenizer_json_of_another_kind(tmp_path, reference):
    content = json.loads(reference.to_str())
    for change, message in (
        ({"model": {"type": "Unigram"}}, "the model is 'Unigram', expected 'BPE'"),
        ({"model": content["model"] | {"end_of_word_suffix": None}}, "the suffix of words is ''"),
        ({"normalizer": None}, "the cleaning of text is False, expected True"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=re.escape(message)):
            BPETokenizer.load(tmp_path)


@pytest.mark.extended
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
    assert tokenizer.tokenize(["", " ", "a", ""]).row_lengths().numpy().tolist() == [0, 0, 1, 0]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["gpt", "xlm"])
def test_saved_model(kind, tokenizer, xlm, tmp_path):
    made, lines = tokenizer if kind == "gpt" else xlm, mixed_lines(40, 6)
    batches = ([*lines, ""], lines[:1], [])
    assert_the_same_in_a_saved_model(made, batches, tmp_path, frozenset({"While"}))


# Published files; the ids were made with the reference.

GPT_IDS = [6373, 3599, 5139, 8419, 28452, 0, 2310, 256, 241, 240, 289, 284, 267, 0, 0, 0, 0]
XLM_IDS = [35, 181, 17, 49, 129, 17, 47, 1578, 4496, 3144, 29424, 514, 719, 45074, 16875, 950,
           3079, 5]  # fmt: skip


@pytest.mark.extended
def test_gpt(real_data):
    tokenizer = BPETokenizer.load(real_data("vocab/openai-gpt"))
    assert tokenizer.vocab_size == 40_478
    assert tokenizer.unk_id == 0
    text = "Ünïted supercalifragilistic — don't, $5! 日本 <UNK> ŋ\n"
    assert tokenizer.tokenize(text).numpy().tolist() == GPT_IDS
    starts, ends = (part.numpy() for part in tokenizer.tokenize_with_offsets(text)[1:])
    assert (starts[1:] >= ends[:-1]).all()


@pytest.mark.full
def test_xlm(real_data):
    tokenizer = BPETokenizer.load(real_data("vocab/xlm-mlm-xnli15-1024"), language="fr")
    assert tokenizer.vocab_size == 95_000
    text = "L'été «\xa0d'où\xa0» est supercalifragilistique… 10\xa0000 € ! 日 <SPECIAL1>"
    assert tokenizer.tokenize(text).numpy().tolist() == XLM_IDS

"""tokenizer.json of every kind: ids, offsets and templates of the library; refusals by name."""

import copy
import functools
import io
import json
import random

import pytest
import tensorflow as tf

from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import Layout, Packer, load_tokenizer
from bertfam_tf.text.json_writer import tokenizer_json
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters
from tests.selection import only_in
from tests.support import texts
from tests.support.subjects import expected_rows
from tests.text import graphs

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROLES = dict(zip(("pad", "unk", "cls", "sep", "mask"), NAMES, strict=True))
WORDS = "the cafe un ##able ##s a ##a ! , [ ] mask i σ ##σ ä ß é 中 国 É".split()
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ã", "©"), ("a", "a"), ("Ġ", "a"), ("Ġ", "Ġ")]
SCORES = {
    "▁": -2.0, "▁the": -1.0, "the": -2.5, "▁caf": -3.0, "é": -2.25, "e": -3.0, "fi": -4.0,
    "t": -4.5, "h": -4.5, "f": -5.0, "i": -5.0, "9": -3.0, "99": -5.0, "▁9": -4.0, ",": -3.0,
    '"': -3.0, "中国": -4.0, "a": -3.5, "aa": -6.0, "x": -6.5, "▁a": -2.0, "ṩ": -3.0, "ß": -3.5,
    "각": -3.0,
}  # fmt: skip


def added(names=NAMES, first=0, **settings):
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return [{"id": first + i, "content": name, **plain, **settings} for i, name in enumerate(names)]


def template(*pair):
    tokens = [f"[{name}]" for name in ("CLS", "SEP")]

    def entries(parts):
        return [
            {"Sequence": {"id": name, "type_id": segment}}
            if name in ("A", "B") else {"SpecialToken": {"id": name, "type_id": segment}}
            for name, segment in parts
        ]  # fmt: skip

    single = [("[CLS]", 0), ("A", 0), ("[SEP]", 0)]
    return {
        "type": "TemplateProcessing",
        "single": entries(single),
        "pair": entries(pair or [*single, ("B", 1), ("[SEP]", 1)]),
        "special_tokens": {t: {"id": t, "ids": [NAMES.index(t)], "tokens": [t]} for t in tokens},
    }


def whole(model, pre_tokenizer, normalizer=None, tokens=(), **more):
    return {
        "version": "1.0",
        "truncation": {"max_length": 7, "strategy": "LongestFirst", "stride": 0,
                       "direction": "Right"},
        "padding": None,
        "added_tokens": [*added(), *tokens],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template(),
        "decoder": None,
        "model": model,
        **more,
    }  # fmt: skip


def sequence(name, *steps):
    return {"type": "Sequence", name: list(steps)}


def numbered(pieces):
    return {piece: i for i, piece in enumerate([*NAMES, *pieces])}


def bert_normalizer(**options):
    plain = dict(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
    return {"type": "BertNormalizer", **plain, **options}


BERT = {"type": "BertPreTokenizer"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
LOWER = {"type": "Lowercase"}


def wordpiece(normalizer=None, **more):
    model = {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 12, "vocab": numbered(WORDS),
    }  # fmt: skip
    return whole(model, BERT, normalizer or bert_normalizer(), **more)


def byte_bpe(normalizer=None, tokens=(), prefix=False, **more):
    pieces = [*byte_characters(), *("".join(pair) for pair in MERGES)]
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": numbered(pieces), "merges": list(map(list, MERGES)),
    }  # fmt: skip
    splitter = {
        "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    return whole(model, splitter, normalizer, tokens, **more)


def bpe():
    merges = [("t", "h"), ("th", "e</w>"), ("a", "a"), ("a", "a</w>"), ("aa", "aa</w>")]
    letters = [letter + end for letter in "theacfs!<>[]mk中国" for end in ("", "</w>")]
    model = {
        "type": "BPE", "unk_token": "[UNK]", "end_of_word_suffix": "</w>", "fuse_unk": False,
        "vocab": numbered([*letters, *("".join(pair) for pair in merges)]),
        "merges": [" ".join(pair) for pair in merges],
    }  # fmt: skip
    return whole(model, BERT, bert_normalizer())


def unigram(*steps, split_spaces=False, byte_fallback=False, tokens=(), **more):
    scores = [[name, 0.0] for name in NAMES[:4]] + [list(pair) for pair in SCORES.items()]
    if byte_fallback:
        scores += [[f"<0x{byte:02X}>", -9.5] for byte in range(256)]
    scores.insert(4, ["[MASK]", 0.0])
    model = {"type": "Unigram", "unk_id": 1, "vocab": scores, "byte_fallback": byte_fallback}
    spaces = [{"type": "WhitespaceSplit"}] if split_spaces else []
    return whole(
        model, sequence("pretokenizers", *spaces, METASPACE),
        sequence("normalizers", *steps) if steps else None, tokens, **more,
    )  # fmt: skip


def words():
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": numbered(["the", "a", "é!"])}
    return whole(model, {"type": "WhitespaceSplit"}, LOWER)


@functools.cache
def rules():
    """SentencePiece's default rules, in base64."""
    spm = pytest.importorskip("sentencepiece")
    from base64 import b64encode

    from sentencepiece import sentencepiece_model_pb2 as model_pb

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 3), model_writer=model, vocab_size=6, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    proto = model_pb.ModelProto.FromString(model.getvalue())
    return b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


def replace(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def precompiled():
    return {"type": "Precompiled", "precompiled_charsmap": rules()}


SPACES = added([" " * n for n in (4, 3, 2)], 1000, special=False)
ROBERTA = {
    "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True,
    "add_prefix_space": False,
}  # fmt: skip


def later(tokens):
    return [{**token, "normalized": True} for token in tokens]


def renumbered(content):
    """Gives added tokens beyond the vocabulary the ids that follow it."""
    vocabulary = content["model"]["vocab"]
    free = len(vocabulary)
    for token in content["added_tokens"]:
        if token["id"] >= 1000:
            token["id"] = free
            free += 1
    return content


def with_lstrip(content):
    for token in content["added_tokens"]:
        token["lstrip"] = token["content"] == "[MASK]"
    return renumbered(content)


CASES = {
    "BERT": lambda: wordpiece(),
    "BERT, cased": lambda: wordpiece(bert_normalizer(lowercase=False)),
    "BERT, lower case first": lambda: wordpiece(
        sequence("normalizers", LOWER, bert_normalizer(lowercase=False))
    ),
    "BERT, accents and lower case": lambda: wordpiece(
        sequence("normalizers", bert_normalizer(lowercase=False, strip_accents=True), LOWER)
    ),
    "RoBERTa": lambda: byte_bpe(post_processor=ROBERTA),
    "ModernBERT": lambda: with_lstrip(byte_bpe({"type": "NFC"}, SPACES)),
    "ModernBERT, later": lambda: with_lstrip(byte_bpe({"type": "NFC"}, later(SPACES))),
    "GPT": bpe,
    "XLM-R": lambda: with_lstrip(unigram(precompiled(), split_spaces=True)),
    "XLM-R, later": lambda: with_lstrip(
        unigram(precompiled(), split_spaces=True, tokens=later(added(["<9>"], 1000)))
    ),
    "ALBERT": lambda: unigram(
        replace("String", "``", '"'), replace("String", "''", '"'), {"type": "NFKD"},
        {"type": "StripAccents"}, LOWER, precompiled(), replace("Regex", " {2,}", " "),
    ),
    "ALBERT, written here": lambda: unigram(
        replace("Regex", r"[\x{9}-\x{D}\x{3000}-\x{3000}]", " "), {"type": "NFKD"},
        replace("Regex", r"[\x{300}-\x{304}\x{302}-\x{36F}]", ""), LOWER, split_spaces=True,
    ),
    "DeBERTa": lambda: unigram(
        replace("Regex", r"\s{2,}|[\n\r\t]", " "), {"type": "NFC"},
        {"type": "Strip", "strip_left": False, "strip_right": True}, byte_fallback=True,
    ),
    "words": words,
}  # fmt: skip


def lines(count, seed=0):
    """Hostile lines, and mixes of what the small vocabularies have."""
    rng = random.Random(seed)
    parts = ["the", " ", "  ", "   ", "\t", "\n ", "a", "aa", "café", "cafe\u0301", "s\u0307\u0323",
             "\u1e69\u0301", "ﬁ", "ﬁ\u0301", "99", "9,", "``", "''", "'''", '"', "中国", "가\u11a8",
             "\u1100\u1161\u11a8", "▁", "▁▁", "x", "\u0301", "ß", "É", "[MASK]", " [MASK]", "[UNK]",
             "[PAD", "<9>", "＜9＞", "<9", "\u200d", "©\u200d©", "क\u094dक\u0308", "\r\n",
             "\u0600a", "\x1c", "\u3000", "unables", "mask"]  # fmt: skip
    mixed = ["".join(rng.choices(parts, k=rng.randint(0, 12))).encode() for _ in range(count)]
    hostile = texts.hostile_lines(count // 2, seed) + texts.broken_lines(count // 4, seed)
    return [*mixed, *hostile, b"", b" ", b"a" * 40]


def load(content, directory, **config):
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    said = {f"{role}_token": name for role, name in ROLES.items()} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    return load_tokenizer(directory)


@pytest.mark.extended
@only_in(
    "full",
    "BERT",
    "BERT, cased",
    "BERT, accents and lower case",
    "RoBERTa",
    "ModernBERT",
    "XLM-R",
    "ALBERT",
    "DeBERTa",
    "XLM-R, later",
)
@pytest.mark.parametrize("name", CASES)
def test_ids_offsets_and_templates_are_the_librarys(name, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    content = CASES[name]()
    ours = load(content, tmp_path)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    theirs.no_truncation()
    given = lines(400)
    ids, starts, ends = (part.to_list() for part in ours.tokenize_with_offsets(given))
    assert ours.tokenize(given).to_list() == ids
    removes = "Precompiled" in json.dumps(content)
    for line, *found, wanted in zip(
        given, ids, starts, ends, expected_rows(theirs, given), strict=True
    ):
        assert found[0] == wanted[0], line
        # Where rules remove characters, the library's offsets are shifted.
        if not removes or texts.decoded(line).isascii():
            assert tuple(found) == wanted or b"\0" <= line[:1] < b"\x20", line
    packer = Packer(ours.layout, ours.special_ids, 1 << 10)
    a, b = given[:60], given[60:120]
    for batch in ([a], [a, b]):
        packed = packer([ours.tokenize(part) for part in batch])
        rows = list(zip(*(map(texts.decoded, part) for part in batch), strict=True))
        encodings = theirs.encode_batch(rows if len(batch) > 1 else [row[0] for row in rows])
        for i, row in enumerate(encodings):
            used = packed["padding_mask"][i] == 1
            assert packed["token_ids"][i][used].numpy().tolist() == row.ids
            assert packed["segment_ids"][i][used].numpy().tolist() == row.type_ids


@pytest.mark.extended
@only_in("full", "ModernBERT, later", "XLM-R, later", "DeBERTa")
@pytest.mark.parametrize("name", ["ModernBERT, later", "XLM-R, later", "DeBERTa", "words"])
def test_in_graphs(name, tmp_path):
    ours = load(CASES[name](), tmp_path)
    given = lines(60, seed=1)
    graphs.assert_the_same_in_a_dataset(ours, given)
    graphs.assert_the_same_in_a_saved_model(ours, [given, given[:1], []], tmp_path / "saved")


@only_in("full", "ModernBERT", "DeBERTa", "XLM-R, later")
@only_in("extended", "GPT")
@pytest.mark.parametrize("name", ["ModernBERT", "XLM-R, later", "DeBERTa", "GPT", "words"])
def test_files(name, tmp_path):
    """Saved and loaded, copied, and written as a tokenizer.json again."""
    ours = load(CASES[name](), tmp_path / "given")
    ours.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    if name != "words":  # the default of its `eos_token` is no piece here
        assert again.get_config() == ours.get_config()
    given = lines(40, seed=2)
    expected = ours.tokenize(given).to_list()
    assert copy.deepcopy(again).tokenize(given).to_list() == expected
    if name != "words":
        written = load(tokenizer_json(ours), tmp_path / "written")
        assert written.tokenize(given).to_list() == expected
        assert written.layout == ours.layout


@pytest.mark.full
def test_detokenize(tmp_path):
    ours = load(CASES["DeBERTa"](), tmp_path)
    assert ours.detokenize(ours.tokenize(["the  café", "a the9"])).numpy().tolist() == [
        "the café".encode(), b"a the9",
    ]  # fmt: skip


@pytest.mark.extended
def test_long_unknown_words_take_memory_in_proportion(tmp_path):
    """One word of 20,000 unknown characters, in a batch of as many others."""
    ours = load(CASES["DeBERTa"](), tmp_path)
    ids = ours.tokenize(["\u4e00" * 20_000, "9 " * 20_000])
    assert ids.row_lengths().numpy().tolist() == [60_001, 20_000]


@pytest.mark.extended
def test_near_ties_are_decided_in_float64(tmp_path):
    """In float32, the sums of both ways to write the word are equal."""
    content = unigram()
    extra = [["▁ab", -10.0], ["cd", -5.00000001], ["▁abc", -10.0], ["d", -5.0], ["b", -20.0]]
    content["model"]["vocab"] += extra
    ours = load(content, tmp_path)
    pieces = ours.id_to_token(ours.tokenize(["abcd"]))[0].numpy().tolist()
    assert pieces == ["▁abc".encode(), b"d"]
    extra[1][1], extra[3][1] = -5.0, -5.00000001
    ours = load(content, tmp_path)
    pieces = ours.id_to_token(ours.tokenize(["abcd"]))[0].numpy().tolist()
    assert pieces == ["▁ab".encode(), b"cd"]


def test_roles_and_layout(tmp_path):
    """Without tokenizer_config.json: by position; padding from the file; and from the left."""
    content = wordpiece(padding={"pad_token": "[PAD]", "pad_id": 0})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    ours = load_tokenizer(tmp_path)
    assert ours.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    content = byte_bpe(padding={"pad_token": "[PAD]", "pad_id": 0})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    ours = load_tokenizer(tmp_path)
    assert {ours.id_to_token(ours.special_ids[role]) for role in ("cls", "sep", "pad")} == {
        "[CLS]", "[SEP]", "[PAD]",
    }  # fmt: skip
    assert ours.layout == Layout()
    left = load(content, tmp_path, padding_side="left")
    assert left.layout == Layout(pad_left=True)
    # A file without a post-processor adds nothing.
    bare = load(wordpiece(post_processor=None), tmp_path)
    assert bare.layout == Layout(("a",), ("a", "b"), (0,), (0, 1))


def test_settings_of_the_class(tmp_path):
    """A class named, or that of the model, reads them; a generic one runs the file as it is."""
    given = ["the CAFÉ", "un中国é"]
    expected = load(wordpiece(), tmp_path).tokenize(given).to_list()
    cased = wordpiece(bert_normalizer(lowercase=False))
    plain = load(cased, tmp_path).tokenize(given).to_list()
    assert plain != expected
    named = load(cased, tmp_path, tokenizer_class="BertTokenizer", do_lower_case=True)
    assert named.tokenize(given).to_list() == expected
    assert load(cased, tmp_path, do_lower_case=True).tokenize(given).to_list() == plain
    (tmp_path / "config.json").write_text('{"model_type": "electra"}', "utf-8")
    assert load(cased, tmp_path, do_lower_case=True).tokenize(given).to_list() == expected
    generic = load(cased, tmp_path, tokenizer_class="PreTrainedTokenizerFast", do_lower_case=True)
    assert generic.tokenize(given).to_list() == plain


def test_added_tokens_beside_lists_without_them(tmp_path):
    """As transformers 4 saved a GPT with a new padding token."""
    content = bpe()
    ids, merges = dict(content["model"]["vocab"]), content["model"]["merges"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids), "utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), "utf-8")
    said = {"tokenizer_class": "OpenAIGPTTokenizer", "pad_token": "<new>"}
    content["added_tokens"] += added(["<new>"], len(ids))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": len(ids)}), "utf-8")
    ours = load(content, tmp_path, **said)
    assert (ours.pad_id, ours.vocab_size) == (len(ids), len(ids) + 1)
    assert ours.tokenize("the<new>").numpy().tolist() == [ids["the</w>"], len(ids)]


def test_only_listed_tokens_are_found(tmp_path):
    content = wordpiece()
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    ours = load_tokenizer(tmp_path)
    assert ours.vocabulary.index("[MASK]") not in ours.tokenize("[MASK]").numpy().tolist()


@pytest.mark.extended
@pytest.mark.parametrize("make", [wordpiece, functools.partial(unigram, LOWER)])
def test_added_words_are_found_in_normalized_text(make, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    content = make()
    content["added_tokens"] += later(added(["Cask", "cask,a", "a b", "[i]"], 1000, special=False))
    content = renumbered(content)
    ours = load(content, tmp_path)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(content))
    theirs.no_truncation()
    given = ["the Cask, acÁsks", "cask,a cask ,a caska", "a b a  b", "[MASK][I]s a[i", "un"]
    rows = (part.to_list() for part in ours.tokenize_with_offsets(given))
    found = list(zip(*rows, strict=True))
    assert found == expected_rows(theirs, [text.encode() for text in given])
    ours.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").tokenize(given).to_list() == [row[0] for row in found]


@pytest.mark.extended
@pytest.mark.parametrize("make", [byte_bpe, wordpiece])
def test_overlapping_tokens(make, tmp_path):
    """Of overlapping tokens the left one is found, of those that begin together the longest."""
    names = ["ab", "abc", "bcd", "cda", "a b", " ", "  ", "bb", "aé", "éa", "CD"]
    content = make()
    content["added_tokens"] += added(names, 1000, special=False)
    content = renumbered(content)
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(0)
    given = ["".join(rng.choices("abcd éABCD\0", k=rng.randint(0, 30))) for _ in range(500)]
    ours = load(content, tmp_path)
    for each in (content, tokenizer_json(ours)):
        theirs = tokenizers.Tokenizer.from_str(json.dumps(each))
        theirs.no_truncation()
        found = theirs.encode_batch(given, add_special_tokens=False)
        assert ours.tokenize(given).to_list() == [row.ids for row in found]


# Refusals.


def put(content, path, value):
    """Returns a copy with another value at a path of keys."""
    changed = copy.deepcopy(content)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def token(**settings):
    return added(["<x>"], 1000, **settings)


def model(make, **options):
    content = make()
    return {**content, "model": {**content["model"], **options}}


def step(kind, **options):
    return {"type": kind, **options}


REFUSED = {
    "accents of all kinds": (
        lambda: wordpiece(sequence("normalizers", step("NFD"), step("StripAccents"), LOWER)),
        r"the normalizer is \['NFD', 'StripAccents', 'Lowercase'\], expected 'BertNormalizer'",
    ),
    "an unknown option": (
        lambda: wordpiece(bert_normalizer(handle_emoji=True)),
        "BertNormalizer of normalizer has the option 'handle_emoji', expected clean_text",
    ),
    "an option of another type": (
        lambda: wordpiece(bert_normalizer(lowercase="yes")),
        "lowercase of BertNormalizer is 'yes', expected one like True",
    ),
    "WordPiece of words": (
        lambda: put(wordpiece(), ["pre_tokenizer"], step("Whitespace")),
        "the pre-tokenizer is 'Whitespace', expected 'BertPreTokenizer'",
    ),
    "another prefix": (
        lambda: model(wordpiece, continuing_subword_prefix="@@"),
        "the continuing prefix is '@@', expected '##'",
    ),
    "a token that is a whole word": (
        lambda: renumbered(byte_bpe(tokens=token(single_word=True))),
        "added token '<x>' with single_word, expected one without",
    ),
    "a token that takes the space after it": (
        lambda: renumbered(byte_bpe(tokens=token(rstrip=True))),
        "added token '<x>' with rstrip",
    ),
    "a token of normalized text with white space": (
        lambda: renumbered(put(wordpiece(), ["added_tokens", 4], later(added([" a"], 1000))[0])),
        "the special token ' a' of the normalized text has",
    ),
    "a token that normalization removes": (
        lambda: renumbered(unigram(step("Strip"), tokens=later(added([" "], 1000)))),
        "nothing is left of the added token ' ' in normalized text",
    ),
    "Llama's pattern": (
        lambda: put(
            byte_bpe(), ["pre_tokenizer"],
            sequence("pretokenizers", step("Split", pattern={"Regex": r"\p{N}{1,3}"}),
                     step("ByteLevel", use_regex=False)),
        ),
        r"the pre-tokenizer is \['Split', 'ByteLevel'\], expected 'ByteLevel'",
    ),
    "no pattern": (
        lambda: put(byte_bpe(), ["pre_tokenizer", "use_regex"], False),
        "the pattern of words is False, expected True",
    ),
    "ignored merges": (
        lambda: model(byte_bpe, ignore_merges=True),
        "the ignoring of merges is True, expected False",
    ),
    "dropped merges": (lambda: model(byte_bpe, dropout=0.1), "the dropout of merges is 0.1"),
    "bytes normalized to NFKC": (
        lambda: byte_bpe(step("NFKC")), r"the normalizer is \['NFKC'\], expected none or 'NFC'"
    ),
    "another prefix space": (
        lambda: byte_bpe(post_processor={**ROBERTA, "add_prefix_space": True}),
        "RobertaProcessing's prefix space is True, expected False",
    ),
    "Gemma": (
        lambda: put(model(byte_bpe, byte_fallback=True), ["pre_tokenizer"],
                    step("Split", pattern={"String": " "})),
        "the model is 'BPE', expected WordPiece, .*, or BPE that is byte-level or marks",
    ),
    "CLIP": (
        lambda: put(bpe(), ["normalizer"], sequence("normalizers", step("NFC"), LOWER)),
        r"the normalizer is \['NFC', 'Lowercase'\], expected 'BertNormalizer'",
    ),
    "a prefix of the first text": (
        lambda: put(unigram(), ["pre_tokenizer", "pretokenizers", 0, "prepend_scheme"], "first"),
        "the prepend_scheme is 'first', expected 'always' or 'never'",
    ),
    "split punctuation": (
        lambda: put(unigram(), ["pre_tokenizer", "pretokenizers"],
                    [step("Punctuation", behavior="Isolated"), METASPACE]),
        r"the pre-tokenizer is \['Punctuation', 'Metaspace'\], expected 'Metaspace'",
    ),
    "another pattern": (
        lambda: unigram(replace("Regex", "[a-z]+", "x")),
        r"the replacement of '\[a-z\]\+' by 'x' is not one of a character",
    ),
    "overlapping spans": (
        lambda: unigram(replace("Regex", r"[\x{1}-\x{FFFFF}\x{2}-\x{FFFFF}]", "x")),
        "the replacement of .* is not one of a character",
    ),
    "most characters, again and again": (
        lambda: unigram(*[replace("Regex", r"[\x{1}-\x{FFFFF}]", "x")] * 1000),
        "the 1000 steps of the normalizer replace 1048575 characters, expected at most",
    ),
    "another step": (
        lambda: unigram(step("Nmt")), "the normalizer is 'Nmt', expected one of Lowercase"
    ),
    "no unknown piece": (
        lambda: model(unigram, unk_id=None), "the unk_id is None, expected the id of a piece"
    ),
    "scores of text": (
        lambda: model(unigram, vocab=[["a", "b"]]), "vocab is .*, expected pieces and their scores"
    ),
    "missing bytes": (
        lambda: model(unigram, byte_fallback=True), "byte_fallback needs the piece '<0x00>'"
    ),
    "a text twice": (
        lambda: wordpiece(post_processor=template(("A", 0), ("A", 1))),
        r"the post-processor: layout.pair must contain 'a' and then 'b' once",
    ),
    "a token of two ids": (
        lambda: put(wordpiece(), ["post_processor", "special_tokens", "[SEP]", "ids"], [3, 3]),
        "of the post-processor's single, expected a text or one special token",
    ),
    "a token of no vocabulary": (
        lambda: put(wordpiece(), ["post_processor", "special_tokens", "[SEP]", "ids"], [10**6]),
        "of the post-processor's single, expected a text or one special token",
    ),
    "an unknown post-processor": (
        lambda: wordpiece(post_processor=step("Other")), "the post-processor is 'Other', expected"
    ),
    "words and punctuation": (
        lambda: put(words(), ["pre_tokenizer"], step("Whitespace")),
        "the pre-tokenizer is 'Whitespace', expected 'WhitespaceSplit'",
    ),
    "an unknown piece that is not added": (
        lambda: put(wordpiece(), ["added_tokens"], added()[2:3]),
        r"unknown piece '\[UNK\]' is not one of the added tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_by_name(name, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: .*{message}"):
        load(make(), tmp_path)


def test_a_file_of_rules_that_lead_nowhere(tmp_path):
    content = unigram(step("Precompiled", precompiled_charsmap="AAAA"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*normalization rules"):
        load(content, tmp_path)
    content = unigram(step("Precompiled", precompiled_charsmap="?"))
    with pytest.raises(CheckpointError, match="precompiled_charsmap is not base64"):
        load(content, tmp_path)


@pytest.mark.extended
def test_no_tokens_of_text_in_untrusted_text(tmp_path):
    content = with_lstrip(byte_bpe({"type": "NFC"}, SPACES))
    ours = load(content, tmp_path, split_special_tokens=True)
    found = ours.tokenize(["[MASK]    a"])[0].numpy().tolist()
    assert ours.mask_id not in found
    assert ours.token_to_id("    ") in found
    assert tf.reduce_max(found) < ours.vocab_size

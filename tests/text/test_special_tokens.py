"""Special tokens in text that absorb the white space before them, compared with Hugging Face's
`tokenizers`."""

import json
import random

import pytest
import tensorflow as tf

from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import SpecialTokens, WordPieceTokenizer, load_tokenizer
from bertfam_tf.text.special_tokens import A_THEN_B, Layout
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<mask>", "<m>", "<m>>",
          "the", "a", "<", ">", "[", "]", "mask", "sep", "é"]  # fmt: skip
SPACES = " \t\n\v\f\r\x1c\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def _lines(count):
    rng = random.Random(0)
    special = ["<mask>"] * 8 + ["[MASK]"] * 3 + ["<m>", "<m>>", "[SEP]"]
    other = ["the", "é", "\u0301", "<", "mask>", "[SEP", "", "<m"]
    mix = [*SPACES, *" " * 6, *special, *other]
    return ["".join(rng.choices(mix, k=rng.randint(0, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    special = SpecialTokens(
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="<mask>",
        additional_special_tokens=("[MASK]", "<m>", "<m>>"),
        lstrip_tokens=("<mask>", "<m>>"),
    )
    return WordPieceTokenizer(PIECES, strip_accents=False, special_tokens=special)


@pytest.mark.extended
def test_ids_and_offsets_equal_the_reference(tokenizer):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {piece: index for index, piece in enumerate(PIECES)}
    reference = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=True, strip_accents=False)
    lstrip = [tokenizers.AddedToken(token, lstrip=True) for token in ("<mask>", "<m>>")]
    reference.add_special_tokens([*PIECES[:5], "<m>", *lstrip])
    with_spaces = 0
    lines = _lines(3_000)
    for first in range(0, len(lines), 250):
        batch = lines[first : first + 250]
        ids, starts, ends = (part.to_list() for part in tokenizer.tokenize_with_offsets(batch))
        assert tokenizer.tokenize(batch).to_list() == ids
        expected = reference.encode_batch(batch, add_special_tokens=False)
        for i, (line, row) in enumerate(zip(batch, expected, strict=True)):
            assert ids[i] == row.ids, line
            spans = [[len(line[:place].encode()) for place in pair] for pair in row.offsets]
            assert [list(pair) for pair in zip(starts[i], ends[i], strict=True)] == spans, line
            with_spaces += any(line[a].isspace() for a, _ in row.offsets)
    assert with_spaces > 500


@pytest.mark.extended
def test_the_end_of_a_row_is_no_space(tokenizer):
    alone = tokenizer.tokenize_with_offsets(["a \t", "<mask>"])
    assert [part.to_list() for part in alone] == [[[9], [5]], [[0], [0]], [[1], [6]]]
    bytes_before = tf.constant([b"a\xe2\x80 <mask>", b"\xff<mask>", b" \xc2<mask>"])
    _, starts, ends = tokenizer.tokenize_with_offsets(bytes_before)
    assert starts.to_list() == [[0, 3], [1], [2]]
    assert ends.to_list() == [[1, 10], [7], [8]]


def test_files_keep_them(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).get_config() == tokenizer.get_config()


def test_files_have_no_other_tokens(tmp_path):
    """Neither those that the class usually has, nor its usual treatment of white space."""
    few = SpecialTokens("[UNK]", added_tokens=("<m>",), lstrip_tokens=("<m>",))
    WordPieceTokenizer(PIECES, special_tokens=few).save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.special_tokens == few
    assert loaded.tokenize("the <m>[MASK]").numpy().tolist() == [8, 6, 12, 14, 13]


@pytest.mark.parametrize(
    ("cls", "name"),
    [("<s>", "RobertaTokenizer"), (None, "GPT2Tokenizer"), ("<c>", "ByteBPETokenizer")],
)
def test_byte_level_files_name_the_class_of_their_tokens(tmp_path, cls, name):
    pieces = [*byte_characters(), "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<c>"]
    special = SpecialTokens("<unk>", cls, mask_token="<mask>")
    one = ByteBPETokenizer(pieces, [], special_tokens=special, layout=A_THEN_B)
    one.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert config["tokenizer_class"] == name
    assert load_tokenizer(tmp_path).get_config() == one.get_config()


def test_settings_of_tokens_are_written_as_transformers_reads_them(tmp_path):
    """Its classes refuse an object without a type."""
    special = SpecialTokens(unk_token="[UNK]", mask_token="<mask>", lstrip_tokens=("<mask>",))
    one = ByteBPETokenizer(
        ["[UNK]", "<mask>", *byte_characters()], [], special_tokens=special, layout=A_THEN_B
    )
    one.save(tmp_path)
    mask = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))["mask_token"]
    assert mask.pop("__type") == "AddedToken"
    assert (mask["content"], mask["lstrip"], mask["special"]) == ("<mask>", True, True)
    assert load_tokenizer(tmp_path).get_config() == one.get_config()


def test_texts_that_lose_their_beginnings(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n", "utf-8")
    said = {"tokenizer_class": "BertTokenizer", "truncation_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.layout == Layout(truncate_left=True)
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").layout == tokenizer.layout
    # As transformers saves files of ours again after the side was changed.
    file = tmp_path / "saved" / "tokenizer_config.json"
    changed = {**json.loads(file.read_text("utf-8")), "truncation_side": "right"}
    file.write_text(json.dumps(changed), "utf-8")
    assert load_tokenizer(tmp_path / "saved").layout == Layout()
    assert load_tokenizer(tmp_path / "saved", layout=tokenizer.layout).layout == tokenizer.layout
    said["truncation_side"] = "start"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    with pytest.raises(CheckpointError, match="truncation_side must be left or right, got 'start'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("vocabulary", [True, False])
def test_the_side_in_a_tokenizer_json(tmp_path, vocabulary):
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    tokens = [{"id": i, "content": piece, "special": True} for i, piece in enumerate(pieces)]
    content = {
        "truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst"},
        "added_tokens": tokens,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(pieces)}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    if vocabulary:
        (tmp_path / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    assert load_tokenizer(tmp_path).layout.truncate_left
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "right"}', "utf-8")
    assert not load_tokenizer(tmp_path).layout.truncate_left


def test_tokens_that_were_changed_after_loading(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n<end>\n", "utf-8")
    said = {"tokenizer_class": "BertTokenizer", "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    changed = {"eos_token": {"content": "<end>", "lstrip": False}, "pad_token": "[PAD]"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(changed), "utf-8")
    assert load_tokenizer(tmp_path).eos_id == 4
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": 4}', "utf-8")
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json: special token 4"):
        load_tokenizer(tmp_path)
    # Newer files have all tokens in the config.
    said["added_tokens_decoder"] = {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), "utf-8")
    assert "eos" not in load_tokenizer(tmp_path).special_ids

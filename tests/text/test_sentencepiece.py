"""SentencePieceTokenizer: against sentencepiece itself, with the published treatments around it."""

import copy
import io
import os
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from bertfam_tf.text.sentencepiece import PRESETS, SentencePieceTokenizer
from tools.texts import hostile

DATA = Path(os.environ.get("BERTFAM_DATA", Path(__file__).parents[3] / "shared" / "data"))
SPECIAL = ["<pad>", "[CLS]", "[SEP]", "[MASK]"]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, 12,345 times in 1,999 days!",
    "Café naïve Ünïcödé “quoted” text… it's the fox's dog (and don't you forget it).",
    "In 2018, 2019, and 2020 they'd gone; ½ of ² are ﬁne ﬂags — ＦＵＬＬ width.",
    "русский язык и ещё ёлка, 中文字符 在这里, العربية 한국어 日本語 かな",
    "a ab abc abcd aab aabb abab baba bbbb aaaa aaaaaa thing things nothing anything",
]
SNIPPETS = [
    " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\x1c", "\u200b", "\u2028", "the", "Fox", "dog's",
    "9,", "12,", "2018,", "1,999", ",", "''", "``", "'''", '"', "`", "´", "\u1fef", "\u1fef\u1fef",
    "é", "e\u0301", "\u0301", "İ", "Σ", "ΑΣ", "ﬁ", "½", "Ａ", "가", "각", "中", "😀", "▁", "▁▁the",
    "x\u0323", "\x00", "\x7f", "<unk>", "[CLS]", "[MASK]", " [MASK]", "[mask]", "[sep]", "<pad>",
    "zzz", "ʘʘ", "aaaa", "(", ")", "-", "--",
]  # fmt: skip


def mixed_lines(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(SNIPPETS, k=rng.randint(0, 20))) for _ in range(count)]


def trained(**options):
    model = io.BytesIO()
    settings = {"vocab_size": 125, "character_coverage": 0.98, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20), model_writer=model, **settings
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model():
    return trained(
        control_symbols=",".join(SPECIAL[1:]), user_defined_symbols="(,)", pad_id=0, unk_id=1,
        bos_id=-1, eos_id=-1, pad_piece="<pad>",
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(model):
    return SentencePieceTokenizer(model, special_tokens_in_text=False)


@pytest.fixture(scope="module")
def albert(model):
    return SentencePieceTokenizer(model, **PRESETS["AlbertTokenizer"])


def test_without_options_sentencepiece_itself(model, plain):
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    lines = [
        *SENTENCES,
        *mixed_lines(1_000, 0),
        *map(_decoded, hostile()[:1_000]),
        "ab" * 5_000,
        "",
    ]
    found = plain.tokenize(lines).to_list()
    ties = 0
    for line, row in zip(lines, found, strict=True):
        wanted = reference.encode(line)
        # 99|9 and 9|99 are equally good; the last bit of a sum decides.
        ties += row != wanted
        assert sorted(row) == sorted(wanted), ascii(line)[:200]
    assert ties < 0.01 * len(lines)
    assert plain.tokenize_with_offsets(lines)[0].to_list() == found
    decoded = [text.decode() for text in plain.detokenize(plain.tokenize(SENTENCES)).numpy()]
    assert decoded == [reference.decode(reference.encode(line)) for line in SENTENCES]


def _decoded(line):
    return line.decode("utf-8", "replace") if isinstance(line, bytes) else line


def by_hand(reference, line, lower_case):
    """ALBERT's and XLNet's treatment, step by step."""
    line = " ".join(line.split()).replace("``", '"').replace("''", '"')
    decomposed = unicodedata.normalize("NFKD", line)
    line = "".join(char for char in decomposed if not unicodedata.combining(char))
    pieces = []
    for piece in reference.encode(line.lower() if lower_case else line, out_type=str):
        if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
            pieces.append(piece)
            continue
        parts = reference.encode(piece[:-1].replace("▁", ""), out_type=str)
        if piece[0] != "▁" and parts[0][0] == "▁":
            parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
        pieces += [*parts, ","]
    return [reference.piece_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("lower_case", [True, False])
def test_published_treatment(model, lower_case):
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    options = {"lower_case": lower_case, "special_tokens_in_text": False}
    ours = SentencePieceTokenizer(model, **(PRESETS["AlbertTokenizer"] | options))
    # str.lower looks at a word's end for a sigma, the published class at one character at a time.
    # What is spelled like a special token has its id in the published classes.
    lines = [line for line in mixed_lines(2_500, 1) if not {*"Σ<["} & {*line}]
    lines += SENTENCES
    for line, row in zip(lines, ours.tokenize(lines).to_list(), strict=True):
        assert row == by_hand(reference, line, lower_case), ascii(line)


def test_special_tokens_in_text(albert):
    ids, starts, ends = albert.tokenize_with_offsets("the [MASK]dog[SEP] <unk>")
    pieces = [albert.id_to_token(int(i)) for i in ids]
    assert [piece for piece in pieces if piece in (*SPECIAL, "<unk>")] == [
        "[MASK]",
        "[SEP]",
        "<unk>",
    ]
    at = pieces.index("[MASK]")
    assert (int(starts[at]), int(ends[at])) == (3, 10)
    assert pieces[at + 1].startswith("▁")


def test_offsets_cover_the_words(albert):
    text = "  Café\u3000Ünïcödé ½ the''fox ﬁne"
    ids, starts, ends = albert.tokenize_with_offsets(text)
    data = text.encode()
    pieces = [albert.id_to_token(int(i)) for i in ids]
    spans = zip(pieces, starts.numpy(), ends.numpy(), strict=True)
    # A blank piece covers the first letter of its word, which the next piece covers too.
    covered = [data[a:b].decode() for piece, a, b in spans if piece != "▁"]
    assert "".join(covered).replace("½½½", "½").replace("ﬁﬁ", "ﬁ") == "".join(text.split())


def test_damaged_text(albert):
    lines = [b"the\xffdog", b"\xc3", b"caf\xc3\xa9\xe4\xb8", b"\xed\xa0\x80 the", b"\xf0\x9f\x98"]
    clean = [line.decode("utf-8", "replace") for line in lines]
    ids, starts, ends = albert.tokenize_with_offsets(lines)
    assert ids.to_list() == albert.tokenize(clean).to_list() == albert.tokenize(lines).to_list()
    for line, first, last in zip(lines, starts.to_list(), ends.to_list(), strict=True):
        assert first == sorted(first)
        assert all(0 <= a <= b <= len(line) for a, b in zip(first, last, strict=True))


def test_fairseq_ids():
    model = trained()
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = SentencePieceTokenizer(model, **PRESETS["XLMRobertaTokenizer"])
    assert ours.vocab_size == reference.vocab_size() + 2
    assert [ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id] == [0, 1, 2, 3]
    assert ours.mask_id == ours.vocab_size - 1
    lines = [*SENTENCES, *(line for line in mixed_lines(300, 2) if "<" not in line)]
    unknown = reference.unk_id()
    for line, row in zip(lines, ours.tokenize(lines).to_list(), strict=True):
        assert row == [3 if i == unknown else i + 1 for i in reference.encode(line)], ascii(line)
    text = ours.detokenize(ours.tokenize(SENTENCES[:1])).numpy()[0].decode()
    assert text == SENTENCES[0]


def test_sampling(plain):
    line = "abab thing anything nothing"
    assert {tuple(plain.tokenize(line).numpy()) for _ in range(5)} == {
        tuple(plain.tokenize(line).numpy())
    }
    drawn = [plain.sample([line], alpha=0.1).to_list()[0] for _ in range(20)]
    assert len(set(map(tuple, drawn))) > 3
    assert {plain.detokenize(tf.ragged.constant([row])).numpy()[0] for row in drawn} == {
        line.encode()
    }


def test_shapes_and_batches(albert):
    lines = mixed_lines(257, 3)
    rows = albert.tokenize(lines).to_list()
    for size in (1, 256):
        dataset = tf.data.Dataset.from_tensor_slices(lines).batch(size).map(albert.tokenize)
        assert [row for batch in dataset for row in batch.to_list()] == rows
    assert albert.tokenize([]).shape == [0, None]
    assert albert.tokenize(["", " ", "the"]).row_lengths().numpy().tolist() == [0, 0, 1]


def test_files(albert, model, tmp_path):
    albert.save(tmp_path)
    again = SentencePieceTokenizer.load(tmp_path)
    assert again.get_config() == albert.get_config()
    lines = mixed_lines(50, 4)
    assert again.tokenize(lines).to_list() == copy.deepcopy(albert).tokenize(lines).to_list()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "spiece.model").write_bytes(model[:-7])
    with pytest.raises(ValueError, match=r"spiece\.model"):
        SentencePieceTokenizer.load(tmp_path / "damaged")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="model"):
        SentencePieceTokenizer.load(tmp_path / "empty")
    with pytest.raises(ValueError, match="BPE"):
        SentencePieceTokenizer(trained(model_type="bpe"))


class Endpoint(tf.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def serve(self, text):
        parts = self.tokenizer.tokenize_with_offsets(text)
        ids, starts, ends = (part.to_tensor(-1) for part in parts)
        return {"ids": ids, "starts": starts, "ends": ends}


def test_saved_model(albert, tmp_path):
    texts = tf.constant([*SENTENCES, *mixed_lines(100, 5), ""])
    endpoint = Endpoint(albert)
    wanted = endpoint.serve(texts)
    tf.saved_model.save(endpoint, str(tmp_path), signatures=endpoint.serve)
    # TF Serving runs the graph in a session, without the object graph.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
        signature = meta.signature_def["serving_default"]
        served = session.run(
            {name: info.name for name, info in signature.outputs.items()},
            {signature.inputs["text"].name: texts.numpy()},
        )
    for name, value in wanted.items():
        np.testing.assert_array_equal(served[name], value)


@pytest.mark.skipif(not (DATA / "vocab").is_dir(), reason="no data folder ($BERTFAM_DATA)")
@pytest.mark.parametrize("name", ["albert-base-v2", "xlnet-base-cased"])
def test_published_models(name):
    ours = SentencePieceTokenizer.load(DATA / "vocab" / name, special_tokens_in_text=False)
    (file,) = (DATA / "vocab" / name).glob("*.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(file))
    lines = [line for line in mixed_lines(2_000, 6) if not {*"Σ<["} & {*line}]
    lines += SENTENCES
    lower_case = name == "albert-base-v2"
    for line, row in zip(lines, ours.tokenize(lines).to_list(), strict=True):
        assert row == by_hand(reference, line, lower_case), ascii(line)

"""Tokenizers whose published vocabularies are not at hand, beside transformers' classes."""

import unicodedata

import pytest
import sentencepiece

from bertfam_tf import registry
from bertfam_tf.text import load_tokenizer
from tests.support import texts
from tests.support.compare_tokenizers import count_differences

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.live
PAIRS = [("a bc", "def"), ("", "x"), ("a <mask> b", "[MASK]")]


def _mpnet(real_data, directory):
    """BERT's pieces, with the special tokens where MPNet has them."""
    pieces = real_data("vocab/bert-base-uncased/vocab.txt").read_text("utf-8").split("\n")[:-1]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces[100:], "<mask>"]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    ids = {piece: index for index, piece in enumerate(pieces)}
    return transformers.MPNetTokenizer(vocab=ids)


CASES = {"mpnet": _mpnet}


def test_deberta_equals_the_class_where_the_model_does_not_normalize(tmp_path):
    """transformers 5 replaces the model's rules by NFC, which most text is in already."""
    lines = [texts.decoded(line) for line in texts.corpus_lines(2000)]
    lines = [unicodedata.normalize("NFC", " ".join(line.split())) for line in lines]
    with (tmp_path / "spm.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines[:1000]), model_writer=file, vocab_size=2500,
            hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2,
            control_symbols=["[CLS]", "[SEP]"], pad_id=0, unk_id=3, bos_id=-1, eos_id=-1,
            pad_piece="[PAD]", unk_piece="[UNK]",
        )  # fmt: skip
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert type(theirs) is transformers.DebertaV2Tokenizer
    assert ours.special_ids["mask"] == theirs.mask_token_id == ours.vocab_size - 1
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert ours.tokenize(lines).to_list() == model.encode(lines)
    # Of equally good segmentations (0|00, 00|0) the library tokenizers may find another one.
    ids, _ = count_differences(ours, theirs._tokenizer, lines, 0)
    assert ids <= 0.001 * len(lines)
    _assert_packed_alike(ours, theirs)


@pytest.mark.parametrize("family", CASES)
def test_ids_equal_the_class(family, real_data, tmp_path):
    """From its own files and from the ``tokenizer.json`` that transformers writes."""
    (tmp_path / "own").mkdir()
    theirs = CASES[family](real_data, tmp_path / "own")
    (tmp_path / "own" / "config.json").write_text(
        f'{{"model_type": "{registry.get(family).huggingface.model_type}"}}'
    )
    theirs.save_pretrained(tmp_path / "saved")
    lines = texts.hostile_lines(600, seed=4) + texts.broken_lines(200, seed=5)
    lines += texts.corpus_lines(500)
    for directory in ("own", "saved"):
        ours = load_tokenizer(tmp_path / directory)
        ids, _ = count_differences(ours, theirs._tokenizer, lines, 3)
        assert ids == 0, directory
        _assert_packed_alike(ours, theirs)


def _assert_packed_alike(ours, theirs):
    for a, b in PAIRS:
        packed = theirs(a, b)["input_ids"]
        pieces = {"a": ours.tokenize([a])[0].numpy(), "b": ours.tokenize([b])[0].numpy()}
        found = [
            i
            for entry, _ in ours.layout.entries(2)
            for i in (pieces[entry] if entry in pieces else [ours.special_ids[entry]])
        ]
        assert found == packed

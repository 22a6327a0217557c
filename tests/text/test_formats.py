"""load_tokenizer: which kind of tokenizer a directory holds, by class, by model and by files."""

import json
import os
from pathlib import Path

import pytest

import bertfam_tf.text
from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import WordPieceTokenizer, load_tokenizer
from bertfam_tf.text.formats import FORMATS, Format, find_format
from bertfam_tf.text.words import WordTokenizer

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("BERTFAM_DATA", ROOT.parent / "shared" / "data"))
KINDS = {
    "BertTokenizer": "wordpiece", "DistilBertTokenizer": "wordpiece",
    "ElectraTokenizer": "wordpiece", "MobileBertTokenizer": "wordpiece",
    "RobertaTokenizer": "byte_bpe", "GPT2Tokenizer": "byte_bpe",
    "OpenAIGPTTokenizer": "bpe", "XLMTokenizer": "bpe",
    "AlbertTokenizer": "sentencepiece", "XLNetTokenizer": "sentencepiece",
    "XLMRobertaTokenizer": "sentencepiece", "SentencePieceTokenizer": "sentencepiece",
    "TransfoXLTokenizer": "words",
}  # fmt: skip
MODELS = {
    "bert": "wordpiece", "distilbert": "wordpiece", "electra": "wordpiece",
    "mobilebert": "wordpiece", "roberta": "byte_bpe", "gpt2": "byte_bpe", "openai-gpt": "bpe",
    "xlm": "bpe", "albert": "sentencepiece", "xlnet": "sentencepiece",
    "xlm-roberta": "sentencepiece", "transfo-xl": "words",
}  # fmt: skip


def write(directory, files):
    """Writes files; what is not text as JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize("fast", ["", "Fast"])
@pytest.mark.parametrize(("name", "module"), KINDS.items())
def test_by_class(tmp_path, name, module, fast):
    """The class decides, whatever the model and the files are."""
    files = {"config.json": {"model_type": "bert"}, "vocab.txt": "[UNK]\n"}
    write(tmp_path, files | {"tokenizer_config.json": {"tokenizer_class": name + fast}})
    assert find_format(tmp_path).module == module


def test_every_class_is_tested():
    assert KINDS.keys() == FORMATS.keys()


@pytest.mark.parametrize(("model", "module"), MODELS.items())
def test_by_model(tmp_path, model, module):
    write(tmp_path, {"config.json": {"model_type": model}, "vocab.txt": "[UNK]\n"})
    assert find_format(tmp_path).module == module
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}})
    assert find_format(tmp_path).module == module


def test_the_models_config_may_name_the_class(tmp_path):
    config = {"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizer"}
    assert find_format(write(tmp_path, {"config.json": config})).module == "sentencepiece"


def bpe(**more):
    return {"model": {"type": "BPE", **more}, "pre_tokenizer": {"type": "ByteLevel"}}


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"vocab.txt": "[UNK]\n"}, "wordpiece"),
        ({"vocab.json": {"a": 0}, "merges.txt": "#version: 0.2\na b\n"}, "byte_bpe"),
        ({"vocab.json": {"a": 0}, "merges.txt": "#version: 0.2\na b</w>\n"}, "bpe"),
        ({"tokenizer.json": {"model": {"type": "WordPiece"}}}, "wordpiece"),
        ({"tokenizer.json": {"model": {"continuing_subword_prefix": "##"}}}, "wordpiece"),
        ({"tokenizer.json": bpe()}, "byte_bpe"),
        ({"tokenizer.json": bpe(end_of_word_suffix="</w>")}, "bpe"),
        ({"tokenizer.json": {"model": {"type": "Unigram"}}}, "sentencepiece"),
        ({"spiece.model": ""}, "sentencepiece"),
        ({"encoder_bpe_40000.json": "", "vocab_40000.bpe": ""}, "bpe"),
        ({"vocab_xnli_15": "", "codes_xnli_15": ""}, "bpe"),
        ({"vocab.pkl": ""}, "words"),
    ],
)
def test_by_files(tmp_path, files, module):
    write(tmp_path, files)
    assert find_format(tmp_path).module == module
    # A class that reads anything says no more, nor does a model whose tokenizer such a class is.
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "TokenizersBackend"}})
    write(tmp_path, {"config.json": {"model_type": "modernbert"}})
    assert find_format(tmp_path).module == module


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "found no tokenizer, expected tokenizer_config.json or config.json that names its "
             "kind, or one of vocab.txt, vocab.json with merges.txt, tokenizer.json, "
             r"\*.model, \*.bpe, codes\*, vocab.pkl"),
        ({"vocab.json": {}}, "found no tokenizer"),
        ({"tokenizer_config.json": {"tokenizer_class": "T5TokenizerFast"}},
         "tokenizer_config.json: the tokenizer_class 'T5Tokenizer' is not supported, expected one "
         "of BertTokenizer, .*, TransfoXLTokenizer"),
        ({"config.json": {"model_type": "t5"}, "vocab.txt": "[UNK]"},
         "config.json: no tokenizer is known for the model_type 't5', expected one of bert,"),
        ({"tokenizer.json": {"model": {"type": "WordLevel"}}},
         "tokenizer.json: the model is 'WordLevel', expected WordPiece, Unigram, or BPE"),
        ({"tokenizer.json": {"model": {"type": "BPE"}}}, "the model is 'BPE'"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json is not JSON"),
        ({"config.json": "[]"}, "config.json: found a list, expected a JSON object"),
        ({"config.json": {"model_type": "bert"}}, "found neither vocab.txt nor tokenizer.json"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, files, message):
    write(tmp_path, files)
    with pytest.raises(CheckpointError, match=f"The tokenizer of .*: .*{message}"):
        load_tokenizer(tmp_path)


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="No checkpoint at"):
        load_tokenizer(tmp_path / "absent")


def test_saved_tokenizers_come_back_as_their_kind(tmp_path):
    made = {
        "wordpiece": WordPieceTokenizer(["[UNK]", "a"], lower_case=False),
        "words": WordTokenizer(["<unk>", "a"], add_eos=False, cutoffs=[1]),
    }
    for name, tokenizer in made.items():
        tokenizer.save(tmp_path / name)
        loaded = load_tokenizer(tmp_path / name)
        assert type(loaded) is type(tokenizer)
        assert loaded.get_config() == tokenizer.get_config()


def test_options_go_before_the_files(tmp_path, monkeypatch):
    """Argument, file, what the class fixes: the first that states an option."""
    preset = Format("words", "WordTokenizer", {"lower_case": True, "add_eos": True})
    monkeypatch.setitem(FORMATS, "TransfoXLTokenizer", preset)
    files = {"vocab.txt": "<unk>\n<eos>\na\n"}
    config = {"tokenizer_class": "TransfoXLTokenizer", "lower_case": False}
    write(tmp_path, files | {"tokenizer_config.json": config})
    found = load_tokenizer(tmp_path).get_config()
    assert (found["lower_case"], found["add_eos"]) == (False, True)
    found = load_tokenizer(tmp_path, lower_case=True, add_eos=False).get_config()
    assert (found["lower_case"], found["add_eos"]) == (True, False)


@pytest.mark.parametrize("name", bertfam_tf.text.__all__)
def test_names(name):
    assert getattr(bertfam_tf.text, name).__name__ == name
    assert name in dir(bertfam_tf.text)


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'WordsTokenizer'"):
        _ = bertfam_tf.text.WordsTokenizer


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("bert-base-uncased", "WordPieceTokenizer", 30_522),
        ("bert-base-cased", "WordPieceTokenizer", 28_996),
        ("gpt2", "ByteBPETokenizer", 50_257),
        ("roberta-base", "ByteBPETokenizer", 50_265),
        ("openai-gpt", "BPETokenizer", 40_478),
        ("albert-base-v2", "SentencePieceTokenizer", 30_000),
        ("xlnet-base-cased", "SentencePieceTokenizer", 32_000),
    ],
)
def test_published_vocabularies(name, kind, size):
    directory = DATA / "vocab" / name
    if not directory.exists():
        pytest.skip(f"no vocab/{name} in the data folder ($BERTFAM_DATA)")
    tokenizer = load_tokenizer(directory)
    assert (type(tokenizer).__name__, tokenizer.vocab_size) == (kind, size)


def test_a_model_with_another_tokenizer_than_usual(tmp_path):
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n"
    write(tmp_path, {"config.json": {"model_type": "albert"}, "vocab.txt": pieces})
    assert isinstance(load_tokenizer(tmp_path), WordPieceTokenizer)
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer"}})
    with pytest.raises(CheckpointError, match="model"):
        load_tokenizer(tmp_path)


def test_merges_with_counts(tmp_path):
    write(tmp_path, {"vocab.json": {"a</w>": 0}, "merges.txt": "a b</w> 17\n"})
    assert find_format(tmp_path).module == "bpe"

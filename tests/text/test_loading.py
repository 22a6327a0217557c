"""load_tokenizer: detects the tokenizer of a directory by class, model and files."""

import json
from dataclasses import replace

import pytest

import bertfam_tf.text
from bertfam_tf import registry
from bertfam_tf.registry import TokenizerSpec
from bertfam_tf.sources import CheckpointError
from bertfam_tf.text import Layout, SpecialTokens, WordPieceTokenizer, load_tokenizer, presets
from bertfam_tf.text.loading import CLASSES, find_kind
from bertfam_tf.text.tokenizers.byte_bpe import byte_characters
from bertfam_tf.text.tokenizers.words import WordTokenizer
from tests.selection import only_in

KINDS = {
    "BertTokenizer": "wordpiece", "DistilBertTokenizer": "wordpiece",
    "ElectraTokenizer": "wordpiece", "MPNetTokenizer": "wordpiece",
    "MobileBertTokenizer": "wordpiece",
    "RobertaTokenizer": "byte_bpe", "ModernBertTokenizer": "byte_bpe", "GPT2Tokenizer": "byte_bpe",
    "OpenAIGPTTokenizer": "bpe", "XLMTokenizer": "bpe",
    "AlbertTokenizer": "sentencepiece", "XLNetTokenizer": "sentencepiece",
    "XLMRobertaTokenizer": "sentencepiece", "DebertaV2Tokenizer": "sentencepiece",
    "TransfoXLTokenizer": "words",
    # Our classes, which do not correspond to a published class.
    "WordPieceTokenizer": "wordpiece", "ByteBPETokenizer": "byte_bpe", "BPETokenizer": "bpe",
    "SentencePieceTokenizer": "sentencepiece", "WordTokenizer": "words",
    "UnigramTokenizer": "unigram", "CharacterTokenizer": "characters",
}  # fmt: skip
MODELS = {
    "bert": "wordpiece", "distilbert": "wordpiece", "electra": "wordpiece", "mpnet": "wordpiece",
    "modernbert": "byte_bpe", "mobilebert": "wordpiece",
    "roberta": "byte_bpe", "gpt2": "byte_bpe", "openai-gpt": "bpe",
    "xlm": "bpe", "albert": "sentencepiece", "xlnet": "sentencepiece",
    "xlm-roberta": "sentencepiece", "deberta-v2": "sentencepiece", "transfo-xl": "words",
}  # fmt: skip


def write(directory, files):
    """Writes files, as JSON if the content is not a string."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize("fast", ["", "Fast"])
@pytest.mark.parametrize(("name", "module"), KINDS.items())
def test_by_class(tmp_path, name, module, fast):
    """The class takes precedence over the model and the files."""
    files = {"config.json": {"model_type": "bert"}, "vocab.txt": "[UNK]\n"}
    write(tmp_path, files | {"tokenizer_config.json": {"tokenizer_class": name + fast}})
    assert find_kind(tmp_path) == module


def test_every_class_is_tested():
    assert KINDS.keys() == presets.specs().keys() | set(CLASSES.values())


@pytest.mark.parametrize(("model", "module"), MODELS.items())
def test_by_model(tmp_path, model, module):
    write(tmp_path, {"config.json": {"model_type": model}, "vocab.txt": "[UNK]\n"})
    assert find_kind(tmp_path) == module
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}})
    assert find_kind(tmp_path) == module


def test_the_models_config_may_name_the_class(tmp_path):
    config = {"model_type": "bert", "tokenizer_class": "XLMRobertaTokenizer"}
    assert find_kind(write(tmp_path, {"config.json": config})) == "sentencepiece"


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
        ({"tokenizer.json": {"model": {"type": "Unigram"}}}, "unigram"),
        ({"tokenizer.json": {"model": {"type": "WordLevel"}}}, "words"),
        ({"spiece.model": ""}, "sentencepiece"),
        ({"encoder_bpe_40000.json": "", "vocab_40000.bpe": ""}, "bpe"),
        ({"vocab_xnli_15": "", "codes_xnli_15": ""}, "bpe"),
        ({"vocab.pkl": ""}, "words"),
        ({"elmo_options.json": ""}, "characters"),
    ],
)
def test_by_files(tmp_path, files, module):
    write(tmp_path, files)
    assert find_kind(tmp_path) == module
    # Generic classes, and models with such a class, are ignored.
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "TokenizersBackend"}})
    write(tmp_path, {"config.json": {"model_type": "t5"}})
    assert find_kind(tmp_path) == module


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "found no tokenizer, expected tokenizer_config.json or config.json that names its "
             "kind, or one of vocab.txt, vocab.json with merges.txt, tokenizer.json, "
             r"\*.model, \*.bpe, codes\*, vocab.pkl, \*options.json"),
        ({"vocab.json": {}}, "found no tokenizer"),
        ({"tokenizer_config.json": {"tokenizer_class": "T5TokenizerFast"}},
         "tokenizer_config.json: the tokenizer_class 'T5Tokenizer' is not supported, expected one "
         "of BertTokenizer, .*, TransfoXLTokenizer"),
        ({"config.json": {"model_type": "t5"}, "vocab.txt": "[UNK]"},
         "no tokenizer is known for the model_type 't5', expected one of albert, bert,"),
        ({"tokenizer.json": {"model": {"type": "Word"}}},
         "tokenizer.json: the model is 'Word', expected WordPiece, Unigram, WordLevel, or BPE"),
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


@pytest.fixture
def made_up_family():
    """A family with its own tokenizer, which no other module refers to."""
    tokenizer = TokenizerSpec(
        "words", "MadeUpTokenizer", dict(lower_case=True, add_eos=True, layout=dict(pad_left=True))
    )
    like = registry.get("bert")
    names = replace(like.huggingface, model_type="made-up")
    registry.register(replace(like, name="made_up", huggingface=names, tokenizer=tokenizer))
    yield
    del registry._FAMILIES["made_up"]


@pytest.mark.parametrize("by", ["class", "model"])
def test_a_familys_spec_is_all_that_its_tokenizer_needs(tmp_path, made_up_family, by):
    """An option is taken from the argument, the file or the family, in this order."""
    config = {"tokenizer_class": "MadeUpTokenizer"} if by == "class" else {}
    write(
        tmp_path, {"vocab.txt": "<unk>\n<eos>\n[CLS]\n[SEP]\na\n", "tokenizer_config.json": config}
    )
    write(tmp_path, {"config.json": {"model_type": "made-up"}})
    tokenizer = load_tokenizer(tmp_path)
    found = tokenizer.get_config()
    assert (type(tokenizer), found["lower_case"], found["add_eos"]) == (WordTokenizer, True, True)
    assert tokenizer.layout == Layout(pad_left=True)
    write(tmp_path, {"tokenizer_config.json": {**config, "lower_case": False}})
    found = load_tokenizer(tmp_path).get_config()
    assert (found["lower_case"], found["add_eos"]) == (False, True)
    found = load_tokenizer(tmp_path, lower_case=True, add_eos=False).get_config()
    assert (found["lower_case"], found["add_eos"]) == (True, False)
    found = WordTokenizer.load(tmp_path, preset="").get_config()
    assert (found["lower_case"], found["add_eos"]) == (False, False)


def test_special_tokens_override_the_files(tmp_path):
    files = {"vocab.txt": "[UNK]\n<m>\n[M]\n[C]\n", "tokenizer_config.json": {"cls_token": "[C]"}}
    write(tmp_path, files)
    special = SpecialTokens("[UNK]", mask_token="<m>")
    assert load_tokenizer(tmp_path, special_tokens=special).special_tokens == special
    assert load_tokenizer(tmp_path, mask_token="[M]").special_ids == {"unk": 0, "cls": 3, "mask": 2}
    with pytest.raises(TypeError, match=r"WordPieceTokenizer\(\).*'lowercase'.*mean 'lower_case'"):
        load_tokenizer(tmp_path, lowercase=True)


def test_families_with_the_same_vocabulary_are_distinguished(tmp_path):
    """The class named in the files takes precedence over special tokens in the vocabulary."""
    pieces = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>", *byte_characters()]
    files = {"vocab.json": {piece: i for i, piece in enumerate(pieces)}, "merges.txt": ""}
    write(tmp_path, files)
    assert load_tokenizer(tmp_path).special_tokens.cls_token == "<s>"
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}})
    special = load_tokenizer(tmp_path).special_tokens
    assert (special.cls_token, special.eos_token) == (None, "<|endoftext|>")


@pytest.mark.parametrize("name", bertfam_tf.text.__all__)
def test_names(name):
    assert getattr(bertfam_tf.text, name).__name__ == name
    assert name in dir(bertfam_tf.text)


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'WordsTokenizer'"):
        _ = bertfam_tf.text.WordsTokenizer


@only_in("extended", "roberta-base-ByteBPETokenizer-50265", "openai-gpt-BPETokenizer-40478")
@only_in("extended", "albert-base-v2-SentencePieceTokenizer-30000")
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
def test_published_vocabularies(real_data, name, kind, size):
    tokenizer = load_tokenizer(real_data(f"vocab/{name}"))
    assert (type(tokenizer).__name__, tokenizer.vocab_size) == (kind, size)


def test_a_model_with_another_tokenizer_than_usual(tmp_path):
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n"
    write(tmp_path, {"config.json": {"model_type": "albert"}, "vocab.txt": pieces})
    assert isinstance(load_tokenizer(tmp_path), WordPieceTokenizer)
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer"}})
    with pytest.raises(CheckpointError, match="model"):
        load_tokenizer(tmp_path)


def test_tokens_that_were_added_to_a_vocabulary(tmp_path):
    write(tmp_path, {"vocab.txt": "[UNK]\na\n", "added_tokens.json": {"a": 1, "[E1]": 2}})
    with pytest.raises(CheckpointError, match=r"added_tokens.json: '\[E1\]' and 0 more tokens are"):
        load_tokenizer(tmp_path)
    write(tmp_path, {"vocab.txt": "[UNK]\na\n[E1]\n"})
    assert load_tokenizer(tmp_path).vocab_size == 3


def test_tokens_that_only_a_tokenizer_json_has(tmp_path):
    pieces = {"model": {"type": "Unigram", "vocab": [["[UNK]", 0.0]]}}
    files = {"spm.model": "", "tokenizer.json": pieces, "added_tokens.json": {"[MASK]": 1}}
    write(tmp_path, {**files, "tokenizer_config.json": {"tokenizer_class": "DebertaV2Tokenizer"}})
    assert find_kind(tmp_path) == "sentencepiece"
    write(tmp_path, {"added_tokens.json": {"[MASK]": 1, "<e1>": 2}})
    assert find_kind(tmp_path) == "unigram"


def test_merges_with_counts(tmp_path):
    write(tmp_path, {"vocab.json": {"a</w>": 0}, "merges.txt": "a b</w> 17\n"})
    assert find_kind(tmp_path) == "bpe"

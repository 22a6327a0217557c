"""Small tasks for all families with the required heads and tokenizers."""

import functools
import io

import numpy as np
import sentencepiece

import bertfam_tf as bf
from bertfam_tf import models, registry  # noqa: F401  (registers the families)
from bertfam_tf.text import SentencePieceTokenizer, presets
from bertfam_tf.text.tokenizers.bpe import BPETokenizer
from bertfam_tf.text.tokenizers.byte_bpe import ByteBPETokenizer, byte_characters
from bertfam_tf.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.seeding import seed

TEXTS = [
    "a good film , was it not ?",
    "the cast the cast of it all",
    "bad",
    "日本語 Film é , 9,000 good",
    "  a   plot ",
]
LABELS = ["good", "bad", "neither of both"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC"]
WORDS = "a good film was it not the cast of bad plot neither both all".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz,.?"


_WORD_PIECES = [*WORDS, *LETTERS[1:], *(f"##{c}" for c in LETTERS)]


def _word_piece():
    return WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORD_PIECES])


def _mpnet():
    pieces = ["<s>", "<pad>", "</s>", "[UNK]", *_WORD_PIECES, "<mask>"]
    return WordPieceTokenizer.from_config(
        {"vocabulary": pieces, **presets.options("MPNetTokenizer")}
    )


_MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("o", "o"), ("Ġ", "g")]


def _byte_bpe(*special, **arguments):
    pieces = [*special, *byte_characters(), *map("".join, _MERGES)]
    return ByteBPETokenizer.from_config({"vocabulary": pieces, "merges": _MERGES, **arguments})


def _roberta():
    arguments = {**presets.options("RobertaTokenizer"), "trim_offsets": False}
    return _byte_bpe("<s>", "<pad>", "</s>", "<unk>", "<mask>", **arguments)


def _gpt2():
    return _byte_bpe("<|endoftext|>", **presets.options("GPT2Tokenizer"))


def _modernbert():
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    return _byte_bpe(*special, **presets.options("ModernBertTokenizer"))


def _bpe(preset, special, **arguments):
    merges = [("t", "h"), ("th", "e</w>"), ("i", "t</w>"), ("o", "o"), ("a", "l")]
    letters = [*LETTERS, *(f"{c}</w>" for c in LETTERS)]
    pieces = [*special, *letters, *map("".join, merges)]
    return BPETokenizer.from_config(
        {"vocabulary": pieces, "merges": merges, **presets.options(preset), **arguments}
    )


def _gpt():
    return _bpe("OpenAIGPTTokenizer", ["<unk>"])


def _xlm():
    special = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
    return _bpe("XLMTokenizer", special, lower_case=False)


@functools.cache
def _model(*control, **ids):
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((TEXTS + WORDS) * 9),
        model_writer=made,
        vocab_size=70,
        hard_vocab_limit=False,
        control_symbols=list(control),
        user_defined_symbols=[".", ","],
        minloglevel=2,
        **ids,
    )
    return made.getvalue()


def _sentencepiece(model, preset):
    return SentencePieceTokenizer.from_config({"model": model, **presets.options(preset)})


def _albert():
    model = _model("[CLS]", "[SEP]", "[MASK]", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1)
    return _sentencepiece(model, "AlbertTokenizer")


def _xlnet():
    control = ("<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    model = _model(*control, unk_id=0, bos_id=1, eos_id=2)
    return _sentencepiece(model, "XLNetTokenizer")


def _xlm_roberta():
    return _sentencepiece(_model(unk_id=0, bos_id=1, eos_id=2), "XLMRobertaTokenizer")


def _deberta():
    model = _model("[CLS]", "[SEP]", pad_id=0, unk_id=3, bos_id=-1, eos_id=-1,
                   pad_piece="[PAD]", unk_piece="[UNK]")  # fmt: skip
    return _sentencepiece(model, "DebertaV2Tokenizer")


_KINDS = {"wordpiece": _word_piece, "byte_bpe": _roberta, "bpe": _gpt, "sentencepiece": _albert}
_OF_FAMILY = {
    "deberta": _deberta,
    "gpt2": _gpt2,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
    "xlm": _xlm,
    "xlnet": _xlnet,
    "xlm_roberta": _xlm_roberta,
}


@functools.cache
def tokenizer(family):
    """A small tokenizer of the family's published kind."""
    return _OF_FAMILY.get(family, _KINDS.get(registry.get(family).tokenizer.kind))()


_LABELLED = dict(pair=False, max_length=48)
TASKS = {
    "TextClassifier": ("sequence", dict(labels=LABELS, **_LABELLED)),
    "MultiLabelClassifier": ("sequence", dict(labels=LABELS, **_LABELLED)),
    "TextRegressor": ("sequence", _LABELLED),
    "TokenTagger": ("tokens", dict(tags=TAGS, max_length=48)),
    "SpanQA": ("span", dict(max_length=48, max_question=20, max_answer=8)),
    "Reranker": ("sequence", dict(max_length=48)),
    "MultipleChoice": ("choice", dict(num_choices=2, **_LABELLED)),
    "MaskedLM": ("masked_lm", dict(max_length=48)),
    "CausalLM": ("causal_lm", dict(max_length=48)),
    "TextEmbedder": (None, dict(max_length=48)),
}


def families(name):
    """The families that support a task: with the head and a tokenizer in transformers.

    Of families that are the same model in transformers, the one that reads its checkpoints.
    """
    head, _ = TASKS[name]
    records = map(registry.get, bf.families())
    return [
        record.name
        for record in records
        if record.huggingface is not None
        and record.tokenizer.kind != "words"
        and (head is None or head in record.heads)
        and registry.of_model_type(record.huggingface.model_type) is record
    ]


def task(name, family):
    """A task of that class, perturbed so that all weights matter."""
    made = tokenizer(family)
    shape = dict(
        vocab_size=made.vocab_size, hidden_size=16, embedding_size=8, inner_size=8, num_heads=2,
        intermediate_size=64, num_layers=2, max_positions=60, num_languages=1,
        pad_id=made.special_ids.get("pad"),
    )  # fmt: skip
    known = registry.get(family).config.__dataclass_fields__
    seed(3)
    backbone = bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in known})
    found = getattr(bf, name)(backbone, made, **TASKS[name][1])
    size = 0.7 if name == "CausalLM" else 0.3  # so that generated text is not empty
    if getattr(found.backbone.config, "norm", "") == "no_norm":
        size = 0.1  # or outputs grow with each layer, and rounding errors with them
    for i, variable in enumerate(found.weights):
        noise = np.random.default_rng(i).normal(0, size, variable.shape)
        variable.assign_add(noise.astype("float32"))
    if family == "mobilebert":
        # The last tokens of transformers' read padding, which is zeros unless it was trained.
        table = backbone.parts["token_embedding"].embeddings
        table.assign(table.numpy() * (np.arange(made.vocab_size) != made.pad_id)[:, None])
    return found

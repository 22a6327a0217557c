"""Small tasks of every family that has their heads, with a tokenizer of its kind."""

import functools
import io

import keras
import numpy as np
import sentencepiece

import bertfam_tf as bf
from bertfam_tf import models, registry  # noqa: F401  (fills the registry)
from bertfam_tf.text.bpe import PRESETS as BPE_PRESETS
from bertfam_tf.text.bpe import BPETokenizer
from bertfam_tf.text.byte_bpe import ByteBPETokenizer, byte_characters
from bertfam_tf.text.packing import CLS_A_SEP_SEP
from bertfam_tf.text.sentencepiece import PRESETS, SentencePieceTokenizer
from bertfam_tf.text.wordpiece import WordPieceTokenizer

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


def _word_piece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return WordPieceTokenizer([*special, *WORDS, *LETTERS[1:], *(f"##{c}" for c in LETTERS)])


_MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("o", "o"), ("Ġ", "g")]


def _byte_bpe(**special):
    layout = {"layout": CLS_A_SEP_SEP} if "cls_token" in special else {}
    lstrip = [token for role, token in special.items() if role == "mask_token"]
    pieces = [*dict.fromkeys(special.values()), *byte_characters(), *map("".join, _MERGES)]
    return ByteBPETokenizer(pieces, _MERGES, lstrip_tokens=lstrip, **layout, **special)


def _roberta():
    return _byte_bpe(
        bos_token="<s>", cls_token="<s>", pad_token="<pad>", eos_token="</s>", sep_token="</s>",
        unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip


def _gpt2():
    end = "<|endoftext|>"
    return _byte_bpe(bos_token=end, eos_token=end, unk_token=end)


def _bpe(preset, special, **options):
    merges = [("t", "h"), ("th", "e</w>"), ("i", "t</w>"), ("o", "o"), ("a", "l")]
    letters = [*LETTERS, *(f"{c}</w>" for c in LETTERS)]
    pieces = [*special, *letters, *map("".join, merges)]
    return BPETokenizer(pieces, merges, **{**BPE_PRESETS[preset], **options})


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


def _albert():
    model = _model("[CLS]", "[SEP]", "[MASK]", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1)
    return SentencePieceTokenizer(model, **PRESETS["AlbertTokenizer"])


def _xlnet():
    control = ("<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
    model = _model(*control, unk_id=0, bos_id=1, eos_id=2)
    return SentencePieceTokenizer(model, **PRESETS["XLNetTokenizer"])


def _xlm_roberta():
    return SentencePieceTokenizer(
        _model(unk_id=0, bos_id=1, eos_id=2), **PRESETS["XLMRobertaTokenizer"]
    )


_KINDS = {"wordpiece": _word_piece, "byte_bpe": _roberta, "bpe": _gpt, "sentencepiece": _albert}
_OF_FAMILY = {"gpt2": _gpt2, "xlm": _xlm, "xlnet": _xlnet, "xlm_roberta": _xlm_roberta}


@functools.cache
def tokenizer(family):
    """A small tokenizer of the kind that the family was published with."""
    return _OF_FAMILY.get(family, _KINDS.get(registry.get(family).tokenizer))()


_LABELLED = dict(pair=False, max_length=48)
TASKS = {
    "TextClassifier": ("sequence", dict(labels=LABELS, **_LABELLED)),
    "MultiLabelClassifier": ("sequence", dict(labels=LABELS, **_LABELLED)),
    "TextRegressor": ("sequence", _LABELLED),
    "TokenTagger": ("tokens", dict(tags=TAGS, max_length=48)),
    "SpanQA": ("span", dict(max_length=48, max_question=20, max_answer=8)),
    "MultipleChoice": ("choice", dict(num_choices=2, **_LABELLED)),
    "MaskedLM": ("masked_lm", dict(max_length=48)),
    "CausalLM": ("causal_lm", dict(max_length=48)),
    "TextEmbedder": (None, dict(max_length=48)),
}


def families(name):
    """Those that the task is published for: with the head, and a tokenizer of transformers'.

    Of families that are one model to transformers the one that reads its checkpoints.
    """
    head, _ = TASKS[name]
    cards = map(registry.get, bf.families())
    return [
        card.name
        for card in cards
        if card.tokenizer != "words"
        and (head is None or head in card.heads)
        and registry.reader(card.huggingface.model_type) is card
    ]


def task(name, family):
    """A task of that class, perturbed so that every weight matters."""
    made = tokenizer(family)
    shape = dict(
        vocab_size=made.vocab_size, hidden_size=16, embedding_size=16, num_heads=2,
        intermediate_size=64, num_layers=2, max_positions=60, num_languages=1,
        pad_id=made.special_ids.get("pad"),
    )  # fmt: skip
    known = registry.get(family).config.__dataclass_fields__
    keras.utils.set_random_seed(3)
    backbone = bf.build(family, "tiny", **{k: v for k, v in shape.items() if k in known})
    found = getattr(bf, name)(backbone, made, **TASKS[name][1])
    size = 0.7 if name == "CausalLM" else 0.3  # so that it writes something
    for i, variable in enumerate(found.weights):
        noise = np.random.default_rng(i).normal(0, size, variable.shape)
        variable.assign_add(noise.astype("float32"))
    return found

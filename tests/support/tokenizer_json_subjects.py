"""Tokenizers of the tokenizers library, as published models have them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.support import texts
from tests.support.subjects import VOCABULARIES

# A tokenizer of the library, and the names of its special tokens by role.
Made = tuple[Any, dict[str, str]]
BERT = dict(
    unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]"
)
ROBERTA = dict(
    bos_token="<s>", eos_token="</s>", unk_token="<unk>", cls_token="<s>", sep_token="</s>",
    pad_token="<pad>", mask_token="<mask>",
)  # fmt: skip
XLNET = {**ROBERTA, "cls_token": "<cls>", "sep_token": "<sep>"}
ALBERT = {**BERT, "unk_token": "<unk>", "pad_token": "<pad>"}


def _add(made: Any, names: Sequence[str], lstrip: Sequence[str] = (), **settings: Any) -> None:
    from tokenizers import AddedToken

    settings = {"special": True, "normalized": False} | settings
    tokens = [AddedToken(name, lstrip=name in lstrip, **settings) for name in names]
    (made.add_special_tokens if settings["special"] else made.add_tokens)(tokens)


def _template(made: Any, single: str, pair: str) -> None:
    from tokenizers import processors

    names = {part.split(":")[0] for part in pair.split() if "$" not in part}
    ids = [(name, made.token_to_id(name)) for name in sorted(names)]
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=ids
    )


def _bert_template(made: Any) -> None:
    _template(made, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")


# WordPiece.


def _wordpiece(name: str, normalizer: Callable[[Any], Any]) -> Made:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    lines = (VOCABULARIES / name / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    made = Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(lines)}, unk_token="[UNK]")
    )
    made.normalizer = normalizer(normalizers)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _add(made, [*BERT.values()])
    _bert_template(made)
    return made, BERT


def _cased(normalizers: Any) -> Any:
    return normalizers.BertNormalizer(lowercase=False)


def _lower_cased(normalizers: Any) -> Any:
    return normalizers.Sequence([normalizers.Lowercase(), _cased(normalizers)])


def _lower_cased_later(normalizers: Any) -> Any:
    accents = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    return normalizers.Sequence([accents, normalizers.Lowercase()])


# Byte-level BPE.


def _byte_bpe(name: str, prefix: bool = False) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = VOCABULARIES / name
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    return made


def _gpt2() -> Made:
    from tokenizers import processors

    made = _byte_bpe("gpt2")
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    _add(made, ["<|endoftext|>"], normalized=True)
    return made, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def _roberta(prefix: bool) -> Made:
    from tokenizers import processors

    made = _byte_bpe("roberta-base", prefix)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=prefix
    )
    _add(made, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], ["<mask>"])
    return made, ROBERTA


def _modernbert(normalized: bool) -> Made:
    """GPT-2's pieces with the other parts of ModernBERT's file."""
    from tokenizers import normalizers

    made = _byte_bpe("gpt2")
    made.normalizer = normalizers.NFC()
    _add(made, ["<|endoftext|>", "<|padding|>"])
    plain = ["|||IP_ADDRESS|||", "|||EMAIL_ADDRESS|||", "|||PHONE_NUMBER|||"]
    plain += [" " * count for count in range(24, 1, -1)]
    _add(made, plain, special=False, normalized=normalized)
    _add(made, [*BERT.values()], ["[MASK]"])
    _add(made, [f"[unused{i}]" for i in range(83)], special=False, normalized=normalized)
    _bert_template(made)
    return made, BERT


# BPE with marked word ends.


def _openai_gpt() -> Made:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    folder = VOCABULARIES / "openai-gpt"
    ids = json.loads((folder / "encoder_bpe_40000.json").read_text("utf-8"))
    lines = (folder / "vocab_40000.bpe").read_text("utf-8").split("\n")[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    made = Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False)
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix="</w>")
    _add(made, ["<unk>"])
    return made, {"unk_token": "<unk>"}


# Unigram.


@functools.cache
def _sentencepiece(path: str) -> tuple[tuple[tuple[str, float], ...], bytes]:
    from sentencepiece import sentencepiece_model_pb2 as model_pb

    proto = model_pb.ModelProto.FromString((VOCABULARIES / path).read_bytes())
    scores = tuple((piece.piece, piece.score) for piece in proto.pieces)
    return scores, proto.normalizer_spec.precompiled_charsmap


def _unigram(
    vocabulary: Sequence[tuple[str, float]],
    unk_id: int,
    steps: Sequence[Any],
    split_spaces: bool,
    byte_fallback: bool = False,
) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    made = Tokenizer(models.Unigram(list(vocabulary), unk_id, byte_fallback))
    made.normalizer = normalizers.Sequence(list(steps))
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    first = [pre_tokenizers.WhitespaceSplit()] if split_spaces else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, metaspace])
    made.decoder = decoders.Metaspace()
    return made


def _quotes_and_accents(lower_case: bool) -> list[Any]:
    from tokenizers import normalizers

    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
             normalizers.StripAccents()]  # fmt: skip
    return steps + [normalizers.Lowercase()] * lower_case


def _single_spaces(by: str = " ") -> Any:
    from tokenizers import Regex, normalizers

    return normalizers.Replace(Regex(" {2,}"), by)


def _albert(split_spaces: bool) -> Made:
    from tokenizers import normalizers

    scores, rules = _sentencepiece("albert-base-v2/30k-clean.model")
    steps = [*_quotes_and_accents(True), normalizers.Precompiled(rules)]
    steps += [] if split_spaces else [_single_spaces()]
    made = _unigram(scores, 1, steps, split_spaces)
    _add(made, [*ALBERT.values()], ["[MASK]"])
    _bert_template(made)
    return made, ALBERT


def _xlnet() -> Made:
    from tokenizers import normalizers

    scores, rules = _sentencepiece("xlnet-base-cased/spiece.model")
    steps = [*_quotes_and_accents(False), normalizers.Precompiled(rules), _single_spaces()]
    made = _unigram(scores, 0, steps, split_spaces=False)
    _add(made, ["<s>", "</s>", "<unk>", "<sep>", "<pad>", "<cls>", "<mask>", "<eop>", "<eod>"],
         ["<mask>"])  # fmt: skip
    _template(made, "$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2")
    return made, XLNET


def _xlm_roberta(steps: Callable[[Any], list[Any]], split_spaces: bool, later: bool) -> Made:
    """XLNet's pieces with the other parts of XLM-RoBERTa's file, and fairseq's ids."""
    from tokenizers import normalizers

    scores, rules = _sentencepiece("xlnet-base-cased/spiece.model")
    head = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*head, *scores[9:], ("<mask>", 0.0)]
    chosen = [normalizers.Precompiled(rules), *steps(normalizers)]
    made = _unigram(vocabulary, 3, chosen, split_spaces)
    _add(made, [name for name, _ in head])
    _add(made, ["<mask>"], ["<mask>"], normalized=later)
    _template(made, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return made, ROBERTA


def _deberta(with_rules: bool, byte_fallback: bool = False) -> Made:
    """ALBERT's pieces with the other parts of DeBERTa-v3's file, also as transformers 5 has it."""
    from tokenizers import Regex, normalizers

    scores, _ = _sentencepiece("albert-base-v2/30k-clean.model")
    _, rules = _sentencepiece("xlnet-base-cased/spiece.model")
    head = [(name, 0.0) for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
    rest = [(piece, score) for piece, score in scores[5:]]
    if byte_fallback:
        rest += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    if with_rules:
        steps = [normalizers.Strip(), normalizers.Precompiled(rules), _single_spaces()]
    else:
        steps = [
            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]  # fmt: skip
    made = _unigram([*head, *rest], 3, steps, False, byte_fallback)
    _add(made, [name for name, _ in head])
    _add(made, ["[MASK]"])
    _bert_template(made)
    return made, BERT


# Trained by the library.


def _trained(kind: str) -> Made:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    lines = [texts.decoded(line) for line in texts.book_lines()[:20_000]]
    names = [*BERT.values()]
    if kind == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=4_000, special_tokens=names,
                                                 show_progress=False)  # fmt: skip
    elif kind == "BPE":
        made = Tokenizer(models.BPE())
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=4_000, special_tokens=names, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    elif kind == "Unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=4_000, special_tokens=names,
                                          unk_token="[UNK]", show_progress=False)  # fmt: skip
    else:
        made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(vocab_size=4_000, special_tokens=names,
                                            show_progress=False)  # fmt: skip
    made.train_from_iterator(lines, trainer)
    _bert_template(made)
    return made, BERT


SUBJECTS: dict[str, Callable[[], Made]] = {
    "bert-base-uncased": lambda: _wordpiece("bert-base-uncased", lambda n: n.BertNormalizer()),
    "bert-base-multilingual-cased": lambda: _wordpiece("bert-base-multilingual-cased", _cased),
    "bert-base-cased, Lowercase before": lambda: _wordpiece("bert-base-cased", _lower_cased),
    "bert-base-uncased, Lowercase after": lambda: _wordpiece(
        "bert-base-uncased", _lower_cased_later
    ),
    "gpt2": _gpt2,
    "roberta-base": lambda: _roberta(False),
    "roberta-base, prefix space": lambda: _roberta(True),
    "modernbert": lambda: _modernbert(False),
    "modernbert, tokens in normalized text": lambda: _modernbert(True),
    "openai-gpt": _openai_gpt,
    "albert": lambda: _albert(True),
    "albert, converted": lambda: _albert(False),
    "xlnet": _xlnet,
    "xlm-roberta": lambda: _xlm_roberta(lambda n: [], True, False),
    "xlm-roberta, <mask> in normalized text": lambda: _xlm_roberta(lambda n: [], True, True),
    "bge-m3": lambda: _xlm_roberta(
        lambda n: [n.Strip(left=False, right=True), _single_spaces("▁")], False, False
    ),
    "deberta-v3": lambda: _deberta(True),
    "deberta-v3, transformers 5": lambda: _deberta(False),
    "unigram with bytes": lambda: _deberta(False, byte_fallback=True),
    "trained WordPiece": lambda: _trained("WordPiece"),
    "trained byte-level BPE": lambda: _trained("BPE"),
    "trained Unigram": lambda: _trained("Unigram"),
    "trained WordLevel": lambda: _trained("WordLevel"),
}

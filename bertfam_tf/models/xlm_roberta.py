"""XLM-RoBERTa: Conneau et al. 2019, arXiv 1911.02116."""

from dataclasses import dataclass, replace

from bertfam_tf.models import formats, roberta
from bertfam_tf.registry import Family, TokenizerSpec, register


@dataclass(frozen=True)
class XlmRobertaConfig(roberta.RobertaConfig):
    """Differs from RoBERTa: 250,002 subword tokens of a hundred languages."""

    vocab_size: int = 250002


HUGGINGFACE = replace(
    roberta.HUGGINGFACE,
    model_type="xlm-roberta",
    model="XLMRoberta",
    defaults={**roberta.HUGGINGFACE.defaults, "vocab_size": 30522},
)

_TOKENIZER = {"vocabulary.spm": "sentencepiece.bpe.model"}
KERAS_HUB = formats.keras_hub_without_segments("XLMRoberta", _TOKENIZER)

register(
    Family(
        name="xlm_roberta",
        config=XlmRobertaConfig,
        wire=roberta.wire,
        sizes=roberta.SIZES,
        tokenizer=TokenizerSpec(
            "sentencepiece",
            "XLMRobertaTokenizer",
            {**roberta.SPECIAL_TOKENS, "fairseq_ids": True},
        ),
        heads=roberta.HEADS,
        objectives=("mlm",),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

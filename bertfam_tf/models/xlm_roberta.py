"""XLM-RoBERTa: Conneau et al. 2019, arXiv 1911.02116."""

from dataclasses import dataclass, replace

from bertfam_tf.models import roberta
from bertfam_tf.registry import Family, register


@dataclass(frozen=True)
class XlmRobertaConfig(roberta.RobertaConfig):
    """Differs from RoBERTa: 250,002 pieces of a hundred languages."""

    vocab_size: int = 250002


HUGGINGFACE = replace(
    roberta.HUGGINGFACE,
    model_type="xlm-roberta",
    model="XLMRoberta",
    defaults={**roberta.HUGGINGFACE.defaults, "vocab_size": 30522},
)

register(
    Family(
        name="xlm_roberta",
        config=XlmRobertaConfig,
        wire=roberta.wire,
        sizes=roberta.SIZES,
        huggingface=HUGGINGFACE,
        tokenizer="sentencepiece",
        heads=roberta.HEADS,
        objectives=("mlm",),
    )
)

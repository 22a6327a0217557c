"""TinyBERT: Jiao et al. 2019, arXiv 1909.10351."""

from dataclasses import dataclass

from bertfam_tf.models import bert
from bertfam_tf.registry import Family, register


@dataclass(frozen=True)
class TinyBertConfig(bert.BertConfig):
    """Differs from BERT: two small shapes, trained to imitate BERT layer by layer."""


register(
    Family(
        name="tinybert",
        config=TinyBertConfig,
        wire=bert.wire,
        sizes={
            "tiny": bert.SIZES["tiny"],
            "4l_312d": dict(hidden_size=312, num_layers=4, intermediate_size=1200),
            "6l_768d": dict(num_layers=6),
        },
        tokenizer=bert.TOKENIZER,
        heads=bert.HEADS,
        objectives=("distillation",),
        # Its checkpoints have BERT's model type: load them as family="tinybert".
        huggingface=bert.HUGGINGFACE,
        formats=bert.FORMATS,
    )
)

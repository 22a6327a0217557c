"""SpanBERT: Joshi et al. 2019, arXiv 1907.10529."""

from dataclasses import dataclass, replace

from bertfam_tf.models import bert
from bertfam_tf.registry import Family, register


@dataclass(frozen=True)
class SpanBertConfig(bert.BertConfig):
    """Differs from BERT: the cased vocabulary; trained on spans and their boundaries, no pairs."""

    vocab_size: int = 28996


register(
    Family(
        name="spanbert",
        config=SpanBertConfig,
        wire=bert.wire,
        sizes={size: bert.SIZES[size] for size in ("tiny", "base", "large")},
        tokenizer=bert.TOKENIZER,
        heads=bert.SINGLE_HEADS,
        objectives=("mlm", "sbo"),
        # Its checkpoints have BERT's model type, or none: load them as family="spanbert".
        huggingface=replace(bert.HUGGINGFACE, defaults={"vocab_size": 30522}),
        formats=bert.FORMATS,
    )
)

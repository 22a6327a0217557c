"""RoBERTa: Liu et al. 2019, arXiv 1907.11692."""

from dataclasses import dataclass, replace

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import Family, Field, register


@dataclass(frozen=True)
class RobertaConfig(bert.BertConfig):
    """Differs from BERT: one segment; positions count real tokens, in rows from pad_id + 1."""

    vocab_size: int = 50265
    num_segments: int = 1
    norm_epsilon: float = 1e-5
    pad_id: int = 1


def wire(config: RobertaConfig, parts: Parts) -> tuple[dict, dict]:
    """As BERT's; padding has the position in row ``pad_id``."""
    inputs = encoder.inputs(config)
    position_ids = layers.position_ids_from_padding(inputs["padding_mask"])
    x = encoder.embed(config, parts, inputs, position_ids=position_ids, offset=config.pad_id + 1)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"])


HUGGINGFACE = replace(bert.HUGGINGFACE, model_type="roberta", model="Roberta", prefix="roberta.",
    ignored=(bert.HUGGINGFACE.ignored[0], r"(classifier|qa_outputs|lm_head)\..*"),
    defaults=dict(pad_token_id=1, layer_norm_eps=1e-12, type_vocab_size=2)
    | dict(max_position_embeddings=512),
    # Theirs counts all rows of the table.
    read=lambda f: {**f, "max_positions": f["max_positions"] - f["pad_id"] - 1},
    write=lambda f: {**f, "max_positions": f["max_positions"] + f["pad_id"] + 1},
)  # fmt: skip
SIZES = {size: bert.SIZES[size] for size in ("tiny", "base", "large")}
HEADS = {**bert.SINGLE_HEADS, "sequence": heads.first_token("tanh")}
HEADS |= {"choice": heads.pooled(Field("dropout"), 1), "masked_lm": heads.lm_head("gelu")}
register(Family("roberta", RobertaConfig, wire, SIZES, HUGGINGFACE, "byte_bpe", HEADS, ("mlm",)))

"""MPNet: Song et al. 2020, arXiv 2004.09297."""

from dataclasses import dataclass, replace
from typing import Any

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads, roberta
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import TORCH, Family, Field, TokenizerSpec, register


@dataclass(frozen=True)
class MpnetConfig(roberta.RobertaConfig):
    """Differs from RoBERTa: all layers add one bias for each head and distance; no segments.

    Distances are put into 32 buckets, the widest of them from 91 tokens on.
    """

    vocab_size: int = 30527
    num_segments: int = 0


_NUM_BUCKETS, _MAX_DISTANCE = 32, 128


def _block(config: MpnetConfig, *, name: str, dtype: Any = None) -> layers.TransformerBlock:
    attention = encoder.attention(config, positions=layers.add_bias, dtype=dtype)
    return encoder.block(config, attention=attention, name=name, dtype=dtype)


def wire(config: MpnetConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires RoBERTa with a relative bias that all blocks share."""
    inputs = encoder.inputs(config)
    padding_mask = inputs["padding_mask"]
    position_ids = layers.position_ids_from_padding(padding_mask)
    offset = config.pad_id + 1
    x = encoder.embed(config, parts, inputs, position_ids=position_ids, offset=offset)
    buckets = layers.symmetric_buckets(
        parts("distances", layers.Distances)(inputs["token_ids"]), _NUM_BUCKETS, _MAX_DISTANCE
    )
    bias = parts(
        "relative_bias",
        layers.RelativeBias,
        _NUM_BUCKETS,
        config.num_heads,
        config.initializer_range,
    )
    block_arguments = {
        "attention_mask": layers.attention_mask_from_padding(padding_mask),
        "positions": bias(buckets),
    }
    blocks = [parts(f"layer_{i}", _block, config) for i in range(config.num_layers)]
    return inputs, encoder.encode(
        config, parts, x, padding_mask, blocks=blocks, call_with=lambda i: block_arguments
    )


_DROPOUT = Field("dropout")
HEADS = {
    **bert.SINGLE_HEADS,
    "sequence": heads.first_token("tanh"),
    "choice": heads.pooled(_DROPOUT, 1),
    "masked_lm": heads.lm_head("gelu"),
}

_LAYER = "encoder.layer.{i}."
_ATTENTION = _LAYER + "attention."
_ABSENT = ("classifier_dropout", "type_vocab_size")

HUGGINGFACE = replace(
    roberta.HUGGINGFACE,
    model_type="mpnet",
    model="MPNet",
    prefix="mpnet.",
    config={k: v for k, v in roberta.HUGGINGFACE.config.items() if k not in _ABSENT},
    # Both are fixed in its code.
    required={"pad_token_id": (1,), "relative_attention_num_buckets": (_NUM_BUCKETS,)},
    weights={
        **{k: v for k, v in bert.HUGGINGFACE.weights.items() if "segment" not in k},
        **TORCH.embedding("relative_bias", "encoder.relative_attention_bias"),
        **TORCH.dense("layer_{i}/attention/query", _ATTENTION + "attn.q"),
        **TORCH.dense("layer_{i}/attention/key", _ATTENTION + "attn.k"),
        **TORCH.dense("layer_{i}/attention/value", _ATTENTION + "attn.v"),
        **TORCH.dense("layer_{i}/attention/output", _ATTENTION + "attn.o"),
        **TORCH.norm("layer_{i}/attention_norm", _ATTENTION + "LayerNorm"),
    },
    defaults=dict(max_position_embeddings=512, pad_token_id=1, layer_norm_eps=1e-12),
)

TOKENIZER = TokenizerSpec(
    "wordpiece", "MPNetTokenizer", {**roberta.SPECIAL_TOKENS, "unk_token": "[UNK]"}
)
register(
    Family(
        name="mpnet",
        config=MpnetConfig,
        wire=wire,
        sizes={"tiny": bert.SIZES["tiny"], "base": {}},
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm",),
        huggingface=HUGGINGFACE,
    )
)

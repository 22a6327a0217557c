"""XLNet: Yang et al. 2019, arXiv 1906.08237."""

from dataclasses import dataclass

from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import encoder, heads, relative
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    LABELS,
    TORCH,
    DenseSpec,
    DropoutSpec,
    Family,
    Field,
    HeadSpec,
    HuggingFaceNames,
    Labels,
    TiedOutputSpec,
    TokenizerSpec,
    register,
)
from bertfam_tf.validation import one_of


@dataclass(frozen=True)
class XlnetConfig(relative.RelativeConfig):
    """Differs from Transformer-XL: permutation language model; relative segments; one table.

    ``attn_type`` is ``"bi"``, or ``"uni"`` for a causal model, where with ``same_length`` a query
    attends to as many keys as the memory is long. ``reuse_len`` is the number of positions of each
    segment that enter the memory, None for all. With ``bi_data`` the second half of a batch is
    reversed text.
    """

    attn_type: str = "bi"
    bi_data: bool = False
    reuse_len: int | None = None
    classifier_dropout: float = 0.1
    pad_id: int = 5


def wire(config: XlnetConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires a content stream, and a query stream that does not attend to its own position."""
    one_of("attn_type", config.attn_type, ("bi", "uni"))
    head_size = encoder.head_size(config)
    both = config.attn_type == "bi"
    inputs = relative.inputs(config, parts, "segment_ids", "perm_mask", "target_mapping")
    tokens, memory = inputs["token_ids"], inputs["memory"][0]
    x = parts("token_embedding", encoder.table, config, config.vocab_size)(tokens)
    positions = parts(
        "positions",
        layers.RelativePositions,
        config.hidden_size,
        config.clamp_len,
        future=both,
        bi_data=config.bi_data,
    )(tokens, memory)
    distances = parts("distances", layers.Distances)(tokens, memory)
    mask = parts("mask", layers.MemoryMask)(
        inputs["padding_mask"], memory, tokens, inputs["perm_mask"]
    )
    if not both:
        # The distance of the first query and the first key is the length of the memory.
        window = distances[:1, :1] + 1 if config.same_length else None
        mask = ops.logical_and(mask, layers.causal_mask(distances, window))
    shared = {
        "positions": relative.dropout(config, parts, positions, "position"),
        "other_segment": layers.other_segment(inputs["segment_ids"], memory),
    }
    blocks = relative.blocks(config, parts, head_size, segments=True)
    outputs, contexts = relative.encode(
        config,
        parts,
        x,
        inputs,
        blocks,
        ops.logical_or(mask, ops.equal(distances, 0)),
        reuse_len=config.reuse_len,
        **shared,
    )
    targets = inputs["target_mapping"]
    query = parts(
        "mask_embedding", layers.MaskEmbedding, config.hidden_size, config.initializer_range
    )(targets)
    query = relative.dropout(config, parts, query, "query")
    for block, context in zip(blocks, contexts, strict=True):
        query, _ = block(query, context=context, attention_mask=mask, targets=targets, **shared)
    query = relative.dropout(config, parts, query, "query_output")
    return inputs, {**outputs, "query_output": query}


def _summary(width: int | Labels) -> HeadSpec:
    return HeadSpec(
        "last_token",
        (
            DenseSpec("dense", "sequence_summary.summary", Field("hidden_size"), "tanh"),
            DropoutSpec(Field("classifier_dropout")),
            DenseSpec("classifier", "logits_proj", width),
        ),
        {
            "summary_type": ("last",),
            "summary_use_proj": (True,),
            "summary_proj_to_labels": (False,),
            "summary_activation": ("tanh",),
        },
    )


_LM = (TiedOutputSpec("lm_loss.bias", "lm_loss"),)
HEADS = {
    "sequence": _summary(LABELS),
    "tokens": HeadSpec("sequence_output", (DenseSpec("classifier", "classifier", LABELS),)),
    "choice": _summary(1),
    "span": heads.span(),
    "permutation_lm": HeadSpec("query_output", _LM),
    "causal_lm": HeadSpec("sequence_output", _LM),
}

_LAYER = "layer.{i}."
_ATTENTION = _LAYER + "rel_attn."


# Theirs has one rate for all dropout, and for a memory without end two values.
def _read(fields: dict) -> dict:
    rate = fields.get("dropout", XlnetConfig.dropout)
    return {**fields, "attention_dropout": rate, "mem_len": fields.get("mem_len") or None}


HUGGINGFACE = HuggingFaceNames(
    model_type="xlnet",
    model="XLNet",
    prefix="transformer.",
    config={
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_inner": "intermediate_size",
        "ff_activation": "activation",
        "layer_norm_eps": "norm_epsilon",
        "dropout": "dropout",
        "summary_last_dropout": "classifier_dropout",
        "initializer_range": "initializer_range",
        "attn_type": "attn_type",
        "mem_len": "mem_len",
        "reuse_len": "reuse_len",
        "bi_data": "bi_data",
        "clamp_len": "clamp_len",
        "same_length": "same_length",
        "pad_token_id": "pad_id",
    },
    required={"attn_type": ("bi", "uni"), "untie_r": (True,)},
    weights={
        **TORCH.embedding("token_embedding", "word_embedding"),
        "mask_embedding/embedding": "mask_emb",
        "layer_{i}/attention/query/kernel": _ATTENTION + "q",
        "layer_{i}/attention/key/kernel": _ATTENTION + "k",
        "layer_{i}/attention/value/kernel": _ATTENTION + "v",
        "layer_{i}/attention/position/kernel": _ATTENTION + "r",
        "layer_{i}/attention/output/kernel": _ATTENTION + "o",
        "layer_{i}/attention/content_bias/bias": _ATTENTION + "r_w_bias",
        "layer_{i}/attention/position_bias/bias": _ATTENTION + "r_r_bias",
        "layer_{i}/attention/segments/segment_bias/bias": _ATTENTION + "r_s_bias",
        "layer_{i}/attention/segments/embeddings": _ATTENTION + "seg_embed",
        **TORCH.norm("layer_{i}/attention_norm", _ATTENTION + "layer_norm"),
        **TORCH.dense("layer_{i}/feed_forward/intermediate", _LAYER + "ff.layer_1"),
        **TORCH.dense("layer_{i}/feed_forward/output", _LAYER + "ff.layer_2"),
        **TORCH.norm("layer_{i}/feed_forward_norm", _LAYER + "ff.layer_norm"),
    },
    ignored=(
        r"(lm_loss|sequence_summary|logits_proj|classifier|qa_outputs|start_logits|end_logits"
        r"|answer_class)\..*",
    ),
    defaults=dict(d_model=1024, n_layer=24, n_head=16, d_inner=4096, mem_len=512),
    synonyms=relative.SYNONYMS,
    read=_read,
    # Their ForQuestionAnswering searches with beams: another head.
    classes={"span": "ForQuestionAnsweringSimple"},
)

TOKENIZER = TokenizerSpec(
    "sentencepiece",
    "XLNetTokenizer",
    dict(
        strip_accents=True, unify_spaces=True, unify_quotes=True, split_digit_comma=True,
        unk_token="<unk>", cls_token="<cls>", sep_token="<sep>", pad_token="<pad>",
        mask_token="<mask>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=("<eop>", "<eod>"), lstrip_tokens=("<mask>",),
        layout=dict(
            single=("a", "sep", "cls"), pair=("a", "sep", "b", "sep", "cls"),
            single_segments=(0, 0, 2), pair_segments=(0, 0, 1, 1, 2),
            pad_left=True, pad_segment=3,
        ),
    ),
)  # fmt: skip
register(
    Family(
        name="xlnet",
        config=XlnetConfig,
        wire=wire,
        sizes={
            "tiny": dict(hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512),
            "base_cased": {},
            "large_cased": dict(
                hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096
            ),
        },
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("plm",),
        huggingface=HUGGINGFACE,
    )
)

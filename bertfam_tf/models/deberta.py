"""DeBERTa-v3: He et al. 2020 and 2021, arXiv 2006.03654 and 2111.09543."""

from dataclasses import dataclass, replace
from typing import Any

from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, formats, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    LABELS,
    TORCH,
    DenseSpec,
    DropoutSpec,
    Family,
    Field,
    HeadSpec,
    Labels,
    TokenizerSpec,
    register,
)


@dataclass(frozen=True)
class DebertaConfig(Config):
    """Differs from BERT: attention also scores distances; no absolute positions, segments, pooler.

    Distances of ``max_distance`` or more count as one, and smaller ones as ``num_buckets`` on
    either side, on a logarithmic scale from half of these on; 0 for a bucket for each distance.
    Heads of texts have a layer with ``pooler_dropout`` and ``pooler_activation`` of their own.
    ``lm_activation`` and ``lm_norm_epsilon`` are as in BERT.
    """

    vocab_size: int = 128100
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    num_segments: int = 0
    num_buckets: int = 256
    max_distance: int = 512
    activation: str = "gelu"
    pooler_activation: str = "gelu"
    norm_epsilon: float = 1e-7
    dropout: float = 0.1
    attention_dropout: float = 0.1
    pooler_dropout: float = 0.0
    classifier_dropout: float | None = None
    initializer_range: float = 0.02
    pad_id: int = 0
    lm_activation: str | None = None
    lm_norm_epsilon: float | None = None


def _block(config: DebertaConfig, *, name: str, dtype: Any = None) -> layers.TransformerBlock:
    # The score is a sum of three products, and the variance of each is the head size.
    scale = (3 * encoder.head_size(config)) ** -0.5
    attention = encoder.attention(config, scale=scale, dtype=dtype)
    attention.positions = layers.DisentangledScores(
        attention.query, attention.key, scale, config.dropout, dtype=dtype
    )
    return encoder.block(config, attention=attention, name=name, dtype=dtype)


def wire(config: DebertaConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token embeddings, norm; blocks that share a normalized table of distances.

    Padding is masked as a key. The reference also masks it as a query and sets its embeddings to
    zero, which no output at a real token depends on.
    """
    inputs = encoder.inputs(config)
    padding_mask = inputs["padding_mask"]
    x = encoder.embed(config, parts, inputs, positions=None)
    distances = parts("distances", layers.Distances)(inputs["token_ids"])
    distances = ops.concatenate([ops.flip(distances[:, 0]), distances[0, 1:]], axis=0)
    count = config.num_buckets or config.max_distance
    if config.num_buckets:
        distances = layers.log_buckets(distances, config.num_buckets, config.max_distance)
    rows = ops.clip(distances + count, 0, 2 * count - 1)
    table = parts(
        "relative_embedding", layers.DistanceEmbedding, 2 * count, config.initializer_range
    )(x)
    table = parts("relative_norm", encoder.norm, config)(table)
    block_arguments = {
        "attention_mask": layers.attention_mask_from_padding(padding_mask),
        "positions": (table, rows),
    }
    blocks = [parts(f"layer_{i}", _block, config) for i in range(config.num_layers)]
    return inputs, encoder.encode(
        config, parts, x, padding_mask, blocks=blocks, call_with=lambda i: block_arguments
    )


def _first_token(width: int | Labels) -> HeadSpec:
    dense = DenseSpec("pooler", "pooler.dense", Field("hidden_size"), Field("pooler_activation"))
    dropout, after = DropoutSpec(Field("pooler_dropout")), DropoutSpec(Field("classifier_dropout"))
    last = DenseSpec("classifier", "classifier", width)
    return HeadSpec("first_token", (dropout, dense, after, last))


HEADS = {
    "sequence": _first_token(LABELS),
    "tokens": heads.tokens(Field("dropout")),
    "span": heads.span(),
    "choice": _first_token(1),
    "masked_lm": bert.HEADS["masked_lm"],
}

# The values in the published configs, which differ from the defaults of absent keys.
_FIXED = dict(
    relative_attention=True, share_att_key=True, pos_att_type=["p2c", "c2p"],
    norm_rel_ebd="layer_norm", position_biased_input=False,
)  # fmt: skip


def _read(fields: dict) -> dict:
    known = {name: value for name, value in fields.items() if name not in _FIXED}
    farthest = known.pop("max_relative_positions", -1)
    if farthest not in (-1, 0):
        known["max_distance"] = farthest
    if known["num_buckets"] == -1:
        known["num_buckets"] = 0
    return known


def _write(fields: dict) -> dict:
    buckets = fields["num_buckets"] or -1
    return {**fields, **_FIXED, "num_buckets": buckets, "max_relative_positions": -1}


_ABSENT = ("max_position_embeddings", "classifier_dropout")
_SAME = {name: name for name in (*_FIXED, "max_relative_positions")}
_LAYER = "encoder.layer.{i}.attention.self."
HUGGINGFACE = replace(
    bert.HUGGINGFACE,
    model_type="deberta-v2",
    model="DebertaV2",
    prefix="deberta.",
    config={
        **{k: v for k, v in bert.HUGGINGFACE.config.items() if k not in _ABSENT},
        **_SAME,
        "max_position_embeddings": "max_distance",
        "position_buckets": "num_buckets",
        "pooler_hidden_act": "pooler_activation",
        "pooler_dropout": "pooler_dropout",
        "cls_dropout": "classifier_dropout",
    },
    required={
        **{name: (value,) for name, value in _FIXED.items()},
        "pos_att_type": (["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
        "conv_kernel_size": (0,),
    },
    weights={
        **{
            path: name
            for path, name in bert.HUGGINGFACE.weights.items()
            if not path.startswith(("position", "pooler"))
        },
        **TORCH.embedding("relative_embedding", "encoder.rel_embeddings"),
        **TORCH.norm("relative_norm", "encoder.LayerNorm"),
        **TORCH.dense("layer_{i}/attention/query", _LAYER + "query_proj"),
        **TORCH.dense("layer_{i}/attention/key", _LAYER + "key_proj"),
        **TORCH.dense("layer_{i}/attention/value", _LAYER + "value_proj"),
    },
    ignored=(
        r"embeddings\.position_(ids|embeddings\.weight)",
        r"(classifier|qa_outputs|cls|pooler|(lm|mask)_predictions)\..*",
    ),
    # Published checkpoints, and configs with ``legacy`` false, have this layout of the same head.
    aliases={
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.": "cls.predictions.transform.",
    },
    defaults=dict(
        hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144,
        position_buckets=-1, relative_attention=False, share_att_key=False, pos_att_type=None,
        norm_rel_ebd="none", position_biased_input=True,
    ),
    read=_read,
    write=_write,
)  # fmt: skip

_KERAS_HUB = formats.keras_hub(
    "DebertaV3",
    formats.KERAS_HUB_DISENTANGLED | formats.keras_hub_heads(dense="pooler"),
    {"vocabulary.spm": "spm.model"},
)
KERAS_HUB = replace(
    _KERAS_HUB,
    config={
        **{k: v for k, v in formats.KERAS_HUB_CONFIG.items() if k != "num_segments"},
        "max_sequence_length": ("max_distance",),
        "bucket_size": ("num_buckets",),
    },
    fixed=dict(activation="gelu", pooler_activation="gelu", norm_epsilon=1e-7, pad_id=0),
    tasks=formats.keras_hub_tasks(
        ("pooler_dropout",), inner=True, masked_lm=dict(lm_norm_epsilon=1e-5)
    ),
)

TOKENIZER = TokenizerSpec(
    "sentencepiece",
    "DebertaV2Tokenizer",
    dict(
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]", appended_pieces=("[MASK]",),
    ),
)  # fmt: skip
_LARGE = dict(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
register(
    Family(
        name="deberta",
        config=DebertaConfig,
        wire=wire,
        sizes={
            "tiny": bert.SIZES["tiny"],
            "xsmall": dict(hidden_size=384, num_heads=6, intermediate_size=1536),
            "small": dict(num_layers=6),
            "base": {},
            "large": _LARGE,
            "multilingual_base": dict(vocab_size=251000),
        },
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm",),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

"""ALBERT: Lan et al. 2019, arXiv 1909.11942."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, formats, heads
from bertfam_tf.models.base import MAX_LAYERS
from bertfam_tf.models.formats import TF1
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    TORCH,
    DenseSpec,
    DropoutSpec,
    Family,
    Field,
    FormatNames,
    HeadSpec,
    TokenizerSpec,
    register,
)
from bertfam_tf.validation import one_of

# Whether the layers of a group share their (attention, feed-forward).
_SHARED = {
    "all": (True, True),
    "attention": (True, False),
    "feed_forward": (False, True),
    "none": (False, False),
}


@dataclass(frozen=True)
class AlbertConfig(bert.BertConfig):
    """Differs from BERT: layers share their weights, embeddings are factorized.

    The ``num_layers`` layers are divided into ``num_groups`` groups of consecutive layers, which
    share the weights of ``"all"``, ``"attention"``, ``"feed_forward"`` or ``"none"``, as
    ``sharing`` says, with the norms. A layer consists of ``layers_per_group`` blocks, which do not
    share weights. ``project_embeddings`` is false for checkpoints with ``embedding_size`` =
    ``hidden_size`` and no projection between the two, as in the paper.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    num_groups: int = 1
    layers_per_group: int = 1
    sharing: str = "all"
    project_embeddings: bool = True
    activation: str = "gelu_new"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    classifier_dropout: float | None = 0.1


def wire(config: AlbertConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires BERT with a projection after the embeddings and shared layers in the blocks."""
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs, width=config.embedding_size)
    if config.project_embeddings:
        x = encoder.project(config, parts, x)
    elif config.embedding_size != config.hidden_size:
        raise ValueError(
            "embedding_size must equal hidden_size without a projection, got "
            f"{config.embedding_size} and {config.hidden_size}."
        )
    blocks = _blocks(config, parts)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"], blocks=blocks)


def _blocks(config: AlbertConfig, parts: Parts) -> list[layers.TransformerBlock]:
    one_of("sharing", config.sharing, _SHARED)
    if not 1 <= config.num_groups <= config.num_layers:
        raise ValueError(f"{config.num_groups} groups do not fit {config.num_layers} layers.")
    if config.num_layers * config.layers_per_group > MAX_LAYERS:
        raise ValueError(
            f"{config.num_layers} layers of {config.layers_per_group} blocks are more than "
            f"{MAX_LAYERS} blocks."
        )
    share_attention, share_feed_forward = _SHARED[config.sharing]

    def part(make, kind, *index):
        shared = parts("_".join(map(str, (kind, *index))), make, config)
        if not shared.built:
            # Built here, so that its weights' paths do not start with the first block's name.
            shared.build((None, None, config.hidden_size))
        return shared

    blocks = []
    for i in range(config.num_layers):
        group = int(i / (config.num_layers / config.num_groups))
        for k in range(config.layers_per_group):
            a = (group if share_attention else i, k)
            f = (group if share_feed_forward else i, k)
            blocks.append(
                parts(
                    f"layer_{i}_{k}",
                    encoder.block,
                    config,
                    attention=part(encoder.attention, "attention", *a),
                    attention_norm=part(encoder.norm, "attention_norm", *a),
                    feed_forward=part(encoder.feed_forward, "feed_forward", *f),
                    feed_forward_norm=part(encoder.norm, "feed_forward_norm", *f),
                )
            )
    return blocks


HEADS = {
    **bert.HEADS,
    "masked_lm": heads.masked_lm(
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions.bias",
        "predictions.decoder",
        width=Field("embedding_size"),
    ),
    "pair": HeadSpec(
        "pooled_output",
        (
            DropoutSpec(Field("classifier_dropout")),
            DenseSpec("classifier", "sop_classifier.classifier", 2),
        ),
    ),
}

_LAYER = "encoder.albert_layer_groups.{g}.albert_layers.{k}."
_EMBEDDINGS = {k: v for k, v in bert.HUGGINGFACE.weights.items() if "embedding" in k}

HUGGINGFACE = replace(
    bert.HUGGINGFACE,
    model_type="albert",
    model="Albert",
    classes={"pair": "ForPreTraining"},
    prefix="albert.",
    config={
        **{k: v for k, v in bert.HUGGINGFACE.config.items() if k != "classifier_dropout"},
        "classifier_dropout_prob": "classifier_dropout",
        "embedding_size": "embedding_size",
        "num_hidden_groups": "num_groups",
        "inner_group_num": "layers_per_group",
    },
    weights={
        **_EMBEDDINGS,
        **TORCH.dense("embedding_projection", "encoder.embedding_hidden_mapping_in"),
        **TORCH.dense("attention_{g}_{k}/query", _LAYER + "attention.query"),
        **TORCH.dense("attention_{g}_{k}/key", _LAYER + "attention.key"),
        **TORCH.dense("attention_{g}_{k}/value", _LAYER + "attention.value"),
        **TORCH.dense("attention_{g}_{k}/output", _LAYER + "attention.dense"),
        **TORCH.norm("attention_norm_{g}_{k}", _LAYER + "attention.LayerNorm"),
        **TORCH.dense("feed_forward_{g}_{k}/intermediate", _LAYER + "ffn"),
        **TORCH.dense("feed_forward_{g}_{k}/output", _LAYER + "ffn_output"),
        **TORCH.norm("feed_forward_norm_{g}_{k}", _LAYER + "full_layer_layer_norm"),
        **TORCH.dense("pooler/dense", "pooler"),
    },
    ignored=(
        bert.HUGGINGFACE.ignored[0],
        r"(classifier|qa_outputs|predictions|sop_classifier)\..*",
    ),
    defaults=dict(hidden_size=4096, num_attention_heads=64, intermediate_size=16384)
    | dict(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
)


def _grouped(weights: Mapping[str, str], layer: str, grouped: str) -> dict[str, str]:
    """Adapts a table of BERT to ALBERT's paths, with ``grouped`` in place of ``layer`` in names."""
    return {
        re.sub(r"layer_\{i\}/(\w+)/", r"\1_{g}_{k}/", path): name.replace(layer, grouped)
        for path, name in weights.items()
    }


_TF1_GROUP = "bert/encoder/transformer/group_{g}/inner_group_{k}/"
_TF1_INTERMEDIATE = _TF1_GROUP + "ffn_1/intermediate/"
FORMATS = {
    "tf1": FormatNames(
        ("albert_config.json",),
        {
            **{p: name for p, name in formats.TF1_ENCODER.items() if not p.startswith("layer_")},
            **TF1.dense("embedding_projection", "bert/encoder/embedding_hidden_mapping_in"),
            **TF1.dense("attention_{g}_{k}/query", _TF1_GROUP + "attention_1/self/query"),
            **TF1.dense("attention_{g}_{k}/key", _TF1_GROUP + "attention_1/self/key"),
            **TF1.dense("attention_{g}_{k}/value", _TF1_GROUP + "attention_1/self/value"),
            **TF1.dense("attention_{g}_{k}/output", _TF1_GROUP + "attention_1/output/dense"),
            **TF1.norm("attention_norm_{g}_{k}", _TF1_GROUP + "LayerNorm"),
            **TF1.dense("feed_forward_{g}_{k}/intermediate", _TF1_INTERMEDIATE + "dense"),
            **TF1.dense("feed_forward_{g}_{k}/output", _TF1_INTERMEDIATE + "output/dense"),
            **TF1.norm("feed_forward_norm_{g}_{k}", _TF1_GROUP + "LayerNorm_1"),
        },
        gelu="gelu_new",
        marker="num_hidden_groups",
    ),
    "model_garden": replace(
        formats.MODEL_GARDEN,
        kinds=("albert",),
        weights=_grouped(formats.MODEL_GARDEN.weights, "/{i}/", "/{g}/"),
        config={
            **formats.MODEL_GARDEN.config,
            "embedding_width": ("embedding_size",),
            "embedding_size": ("embedding_size",),
        },
    ),
    "keras_hub": replace(
        formats.keras_hub("Albert"),
        weights=_grouped(
            formats.KERAS_HUB_PROJECTED | formats.keras_hub_heads(), "_{i}/", "_{g}.{k}/"
        ),
        tasks=formats.keras_hub_tasks(masked_lm=dict(lm_norm_epsilon=1e-5)),
        config={
            **formats.KERAS_HUB_CONFIG,
            "embedding_dim": ("embedding_size",),
            "num_groups": ("num_groups",),
            "num_inner_repetitions": ("layers_per_group",),
        },
        tokenizer={"vocabulary.spm": "spiece.model"},
    ),
}

TOKENIZER = TokenizerSpec(
    "sentencepiece",
    "AlbertTokenizer",
    dict(
        lower_case=True, strip_accents=True, unify_spaces=True, unify_quotes=True,
        split_digit_comma=True,
        unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]", pad_token="<pad>",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]", lstrip_tokens=("[MASK]",),
    ),
)  # fmt: skip
register(
    Family(
        name="albert",
        config=AlbertConfig,
        wire=wire,
        sizes={
            "tiny": {**bert.SIZES["tiny"], "embedding_size": 64},
            "base": {},
            "large": bert.SIZES["large"],
            "xlarge": dict(hidden_size=2048, num_layers=24, num_heads=16, intermediate_size=8192),
            "xxlarge": dict(hidden_size=4096, num_heads=64, intermediate_size=16384),
        },
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm", "sop"),
        huggingface=HUGGINGFACE,
        formats=FORMATS,
        indices={"g": "num_groups", "k": "layers_per_group"},
    )
)

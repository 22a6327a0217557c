"""ALBERT: Lan et al. 2019, arXiv 1909.11942."""

from dataclasses import dataclass, replace

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
from bertfam_tf.models.base import MAX_LAYERS
from bertfam_tf.models.parts import Parts
from bertfam_tf.names import unknown
from bertfam_tf.registry import DenseSpec, DropoutSpec, Family, Field, HeadSpec, register

# Which parts of a layer stand in all layers of a group: attention, feed-forward.
_SHARED = {
    "all": (True, True),
    "attention": (True, False),
    "feed_forward": (False, True),
    "none": (False, False),
}


@dataclass(frozen=True)
class AlbertConfig(bert.BertConfig):
    """Differs from BERT: layers share their weights, embeddings have a width of their own.

    The ``num_layers`` layers fall into ``num_groups`` runs of neighbours that share what
    ``sharing`` says: ``"all"``, ``"attention"``, ``"feed_forward"`` or ``"none"``, each part with
    its norm. A layer consists of ``layers_per_group`` blocks, which share nothing.
    ``project_embeddings`` is false for checkpoints with ``embedding_size`` = ``hidden_size`` that
    have no projection between the two, as the paper's.
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
    """As BERT's, with a projection after the embeddings and shared parts in the blocks."""
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs, width=config.embedding_size)
    if config.project_embeddings:
        x = encoder.project(config, parts, x)
    elif config.embedding_size != config.hidden_size:
        raise ValueError(
            f"Without a projection embedding_size {config.embedding_size} has to be hidden_size."
        )
    blocks = _blocks(config, parts)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"], blocks=blocks)


def _blocks(config: AlbertConfig, parts: Parts) -> list[layers.TransformerBlock]:
    if config.sharing not in _SHARED:
        raise ValueError(unknown("sharing", config.sharing, _SHARED))
    if not 1 <= config.num_groups <= config.num_layers:
        raise ValueError(f"{config.num_groups} groups do not fit {config.num_layers} layers.")
    if config.num_layers * config.layers_per_group > MAX_LAYERS:
        raise ValueError(
            f"{config.num_layers} layers of {config.layers_per_group} blocks are more than "
            f"{MAX_LAYERS} blocks."
        )
    if config.heads_per_layer:
        raise ValueError("ALBERT's layers share their heads; heads_per_layer does not apply.")
    share_attention, share_feed_forward = _SHARED[config.sharing]

    def part(make, kind, *place):
        shared = parts("_".join(map(str, (kind, *place))), make, config)
        if not shared.built:
            # Built here, a part's weights are named after it and not after its first block.
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
_NORM, _ATTENTION = _LAYER + "full_layer_layer_norm.", _LAYER + "attention."
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
        "embedding_projection/kernel": "encoder.embedding_hidden_mapping_in.weight|T",
        "embedding_projection/bias": "encoder.embedding_hidden_mapping_in.bias",
        "attention_{g}_{k}/query/kernel": _ATTENTION + "query.weight|T",
        "attention_{g}_{k}/query/bias": _ATTENTION + "query.bias",
        "attention_{g}_{k}/key/kernel": _ATTENTION + "key.weight|T",
        "attention_{g}_{k}/key/bias": _ATTENTION + "key.bias",
        "attention_{g}_{k}/value/kernel": _ATTENTION + "value.weight|T",
        "attention_{g}_{k}/value/bias": _ATTENTION + "value.bias",
        "attention_{g}_{k}/output/kernel": _ATTENTION + "dense.weight|T",
        "attention_{g}_{k}/output/bias": _ATTENTION + "dense.bias",
        "attention_norm_{g}_{k}/gamma": _ATTENTION + "LayerNorm.weight",
        "attention_norm_{g}_{k}/beta": _ATTENTION + "LayerNorm.bias",
        "feed_forward_{g}_{k}/intermediate/kernel": _LAYER + "ffn.weight|T",
        "feed_forward_{g}_{k}/intermediate/bias": _LAYER + "ffn.bias",
        "feed_forward_{g}_{k}/output/kernel": _LAYER + "ffn_output.weight|T",
        "feed_forward_{g}_{k}/output/bias": _LAYER + "ffn_output.bias",
        "feed_forward_norm_{g}_{k}/gamma": _NORM + "weight",
        "feed_forward_norm_{g}_{k}/beta": _NORM + "bias",
        "pooler/dense/kernel": "pooler.weight|T",
        "pooler/dense/bias": "pooler.bias",
    },
    ignored=(
        bert.HUGGINGFACE.ignored[0],
        r"(classifier|qa_outputs|predictions|sop_classifier)\..*",
    ),
    defaults=dict(hidden_size=4096, num_attention_heads=64, intermediate_size=16384)
    | dict(hidden_act="gelu_new", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    indices={"g": "num_groups", "k": "layers_per_group"},
)

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
        huggingface=HUGGINGFACE,
        tokenizer="sentencepiece",
        heads=HEADS,
        objectives=("mlm", "sop"),
    )
)

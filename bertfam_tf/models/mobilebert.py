"""MobileBERT: Sun et al. 2020, arXiv 2004.02984."""

from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import TORCH, Family, HeadSpec, TiedOutputSpec, TokenizerSpec, register
from bertfam_tf.sources import CheckpointError
from bertfam_tf.validation import one_of


@dataclass(frozen=True)
class MobileBertConfig(bert.BertConfig):
    """Differs from BERT: blocks narrower inside, with several feed-forwards; trigrams; no norms.

    Inside, blocks have ``inner_size`` units. Queries and keys come from a projection of their own
    if ``shared_projection``, and values from the block's input; otherwise all come from the
    narrowed input. ``norm`` is ``"no_norm"`` or ``"layer_norm"``. ``pooled_activation`` is false
    for a pooled output that is the first token's. With ``reads_padding`` a text's last token
    depends on the padding after it, as in the reference and by default in its checkpoints;
    otherwise all texts end as those without padding do, and batches do not matter.
    """

    hidden_size: int = 512
    num_layers: int = 24
    num_heads: int = 4
    intermediate_size: int = 512
    embedding_size: int = 128
    inner_size: int = 128
    extra_feed_forwards: int = 3
    shared_projection: bool = True
    activation: str = "relu"
    norm: str = "no_norm"
    dropout: float = 0.0
    pooled_activation: bool = True
    reads_padding: bool = False


def _norm(
    config: MobileBertConfig, epsilon: float | None = None, *, name: str, dtype: Any = None
) -> keras.layers.Layer:
    if config.norm == "no_norm":
        return layers.NoNorm(name=name, dtype=dtype)
    epsilon = config.norm_epsilon if epsilon is None else epsilon
    return layers.LayerNormalization(epsilon=epsilon, name=name, dtype=dtype)


# The reference does not configure the epsilon of these.
_FIXED_EPSILON = 1e-5


def _block(config: MobileBertConfig, *, name: str, dtype: Any = None) -> layers.BottleneckBlock:
    inside = replace(config, hidden_size=config.inner_size)

    def norm(name: str, epsilon: float | None = None) -> keras.layers.Layer:
        return _norm(config, epsilon, name=name, dtype=dtype)

    names = [f"feed_forward_{k}" for k in range(config.extra_feed_forwards)]
    return layers.BottleneckBlock(
        encoder.attention(inside, dtype=dtype),
        encoder.feed_forward(inside, dtype=dtype),
        narrow=config.inner_size,
        narrow_norm=norm("narrow_norm"),
        shared_norm=norm("shared_norm") if config.shared_projection else None,
        attention_norm=norm("attention_norm"),
        more=[
            (encoder.feed_forward(inside, name=layer_name, dtype=dtype), norm(f"{layer_name}_norm"))
            for layer_name in names
        ],
        feed_forward_norm=norm("feed_forward_norm", _FIXED_EPSILON),
        wide_norm=norm("wide_norm"),
        stddev=config.initializer_range,
        dropout=config.dropout,
        name=name,
        dtype=dtype,
    )


def wire(config: MobileBertConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires BERT with projected trigrams for token embeddings, and bottlenecks for blocks."""
    one_of("norm", config.norm, ("no_norm", "layer_norm"))
    inputs = encoder.inputs(config)
    table = parts(
        "token_embedding", encoder.table, config, config.vocab_size, config.embedding_size
    )
    embedded = table(inputs["token_ids"])
    x = layers.zero_padding(embedded, inputs["padding_mask"])
    if config.reads_padding:  # which the reference does not train
        x = x + ops.stop_gradient(embedded - x)
    trigrams = parts("trigrams", layers.Trigrams)(x)
    tokens = encoder.project(config, parts, trigrams)
    parts("embedding_norm", _norm, config, _FIXED_EPSILON)  # instead of the one in ``embed``
    x = encoder.embed(config, parts, inputs, tokens=tokens)
    blocks = [parts(f"layer_{i}", _block, config) for i in range(config.num_layers)]
    outputs = encoder.encode(config, parts, x, inputs["padding_mask"], blocks=blocks)
    if not config.pooled_activation:
        outputs["pooled_output"] = outputs["first_token"]
    return inputs, outputs


_DENSE, _NORM, _TIED = bert.HEADS["masked_lm"].parts
HEADS = {
    **bert.HEADS,
    "masked_lm": HeadSpec(
        "sequence_output",
        (
            _DENSE,
            _NORM,
            # Units beyond the width of the embeddings have a matrix of their own.
            TiedOutputSpec(
                "cls.predictions.bias",
                "cls.predictions.decoder",
                more="cls.predictions.dense.weight",
            ),
        ),
    ),
}


def _read(fields: dict) -> dict:
    known = dict(fields)
    known["extra_feed_forwards"] -= 1
    narrow = known.pop("use_bottleneck_attention")
    known["shared_projection"] = known["shared_projection"] and not narrow
    if not (known["shared_projection"] or narrow):
        raise CheckpointError(
            "config.json has neither use_bottleneck_attention nor key_query_shared_bottleneck; "
            "queries and keys of a block's input are not supported."
        )
    return known


def _write(fields: dict) -> dict:
    narrow = {"use_bottleneck_attention": not fields["shared_projection"]}
    return {**fields, **narrow, "extra_feed_forwards": fields["extra_feed_forwards"] + 1}


_LAYER, _FFN = "encoder.layer.{i}.", "encoder.layer.{i}.ffn.{f}."
HUGGINGFACE = replace(
    bert.HUGGINGFACE,
    model_type="mobilebert",
    model="MobileBert",
    prefix="mobilebert.",
    config={
        **bert.HUGGINGFACE.config,
        "embedding_size": "embedding_size",
        "intra_bottleneck_size": "inner_size",
        "num_feedforward_networks": "extra_feed_forwards",
        "key_query_shared_bottleneck": "shared_projection",
        "use_bottleneck_attention": "use_bottleneck_attention",
        "normalization_type": "norm",
        "classifier_activation": "pooled_activation",
        "reads_padding": "reads_padding",  # ours
    },
    required={"use_bottleneck": (True,), "trigram_input": (True,)},
    weights={
        **bert.HUGGINGFACE.weights,
        **TORCH.dense("embedding_projection", "embeddings.embedding_transformation"),
        **TORCH.dense("layer_{i}/narrow", _LAYER + "bottleneck.input.dense"),
        **TORCH.norm("layer_{i}/narrow_norm", _LAYER + "bottleneck.input.LayerNorm"),
        **TORCH.dense("layer_{i}/shared", _LAYER + "bottleneck.attention.dense"),
        **TORCH.norm("layer_{i}/shared_norm", _LAYER + "bottleneck.attention.LayerNorm"),
        **TORCH.dense("layer_{i}/feed_forward_{f}/intermediate", _FFN + "intermediate.dense"),
        **TORCH.dense("layer_{i}/feed_forward_{f}/output", _FFN + "output.dense"),
        **TORCH.norm("layer_{i}/feed_forward_{f}_norm", _FFN + "output.LayerNorm"),
        **TORCH.dense("layer_{i}/wide", _LAYER + "output.bottleneck.dense"),
        **TORCH.norm("layer_{i}/wide_norm", _LAYER + "output.bottleneck.LayerNorm"),
    },
    # Stored, but not used, where all come from the narrowed input.
    ignored=(*bert.HUGGINGFACE.ignored, r"encoder\.layer\.\d+\.bottleneck\.attention\..*"),
    defaults=dict(
        hidden_size=512, num_hidden_layers=24, num_attention_heads=4, intermediate_size=512,
        hidden_act="relu", hidden_dropout_prob=0.0, num_feedforward_networks=4,
        key_query_shared_bottleneck=True, use_bottleneck_attention=False, reads_padding=True,
    ),
    read=_read,
    write=_write,
)  # fmt: skip

register(
    Family(
        name="mobilebert",
        config=MobileBertConfig,
        wire=wire,
        sizes={
            "tiny": dict(hidden_size=128, num_layers=2, num_heads=2, intermediate_size=128)
            | dict(embedding_size=16, inner_size=32),
            "base": {},
        },
        tokenizer=TokenizerSpec("wordpiece", "MobileBertTokenizer"),
        heads=HEADS,
        objectives=("mlm", "nsp", "distillation"),
        huggingface=HUGGINGFACE,
        indices={"i": "num_layers", "f": "extra_feed_forwards"},
    )
)

"""DistilBERT: Sanh et al. 2019, arXiv 1910.01108."""

from dataclasses import dataclass, replace
from typing import Any

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, formats, heads
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
    register,
)


@dataclass(frozen=True)
class DistilBertConfig(bert.BertConfig):
    """Differs from BERT: half the layers, no segments, no pooler, no dropout of attention's output.

    With ``sinusoidal_positions`` the positions are sinusoidal and not trained. ``span_dropout`` is
    the rate in the head for answer spans.
    """

    num_layers: int = 6
    num_segments: int = 0
    pooler: bool = False
    sinusoidal_positions: bool = False
    classifier_dropout: float | None = 0.2
    span_dropout: float = 0.1


def wire(config: DistilBertConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token + position embeddings, norm; blocks."""
    sines = config.sinusoidal_positions
    positions = layers.SinusoidalEmbedding if sines else layers.PositionEmbedding
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs, positions=positions)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"], make_block=_block)


def _block(
    config: DistilBertConfig, num_heads: int, *, dtype: Any = None, **options: Any
) -> layers.TransformerBlock:
    kept = layers.Dropout(0.0, dtype=dtype)
    return encoder.block(config, num_heads, attention_output_dropout=kept, dtype=dtype, **options)


def _classifier(width: int | Labels) -> HeadSpec:
    return HeadSpec(
        "first_token",
        (
            DenseSpec("dense", "pre_classifier", Field("hidden_size"), "relu"),
            DropoutSpec(Field("classifier_dropout")),
            DenseSpec("classifier", "classifier", width),
        ),
    )


HEADS = {
    "sequence": _classifier(LABELS),
    "tokens": heads.tokens(Field("dropout")),
    "span": heads.span(DropoutSpec(Field("span_dropout"))),
    "choice": _classifier(1),
    "masked_lm": heads.masked_lm(
        "vocab_transform",
        "vocab_layer_norm",
        "vocab_projector.bias",
        "vocab_projector",
        epsilon=1e-12,
    ),
}

_LAYER = "transformer.layer.{i}."

HUGGINGFACE = HuggingFaceNames(
    model_type="distilbert",
    model="DistilBert",
    prefix="distilbert.",
    config={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "hidden_dim": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "seq_classif_dropout": "classifier_dropout",
        "qa_dropout": "span_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_id",
        "sinusoidal_pos_embds": "sinusoidal_positions",
    },
    required={},
    weights={
        **TORCH.embedding("token_embedding", "embeddings.word_embeddings"),
        **TORCH.embedding("position_embedding", "embeddings.position_embeddings"),
        **TORCH.norm("embedding_norm", "embeddings.LayerNorm"),
        **TORCH.dense("layer_{i}/attention/query", _LAYER + "attention.q_lin"),
        **TORCH.dense("layer_{i}/attention/key", _LAYER + "attention.k_lin"),
        **TORCH.dense("layer_{i}/attention/value", _LAYER + "attention.v_lin"),
        **TORCH.dense("layer_{i}/attention/output", _LAYER + "attention.out_lin"),
        **TORCH.norm("layer_{i}/attention_norm", _LAYER + "sa_layer_norm"),
        **TORCH.dense("layer_{i}/feed_forward/intermediate", _LAYER + "ffn.lin1"),
        **TORCH.dense("layer_{i}/feed_forward/output", _LAYER + "ffn.lin2"),
        **TORCH.norm("layer_{i}/feed_forward_norm", _LAYER + "output_layer_norm"),
    },
    ignored=(
        r"embeddings\.position_ids",
        r"(vocab_(transform|layer_norm|projector)|(pre_)?classifier|qa_outputs)\..*",
    ),
    synonyms={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
    },
)

KERAS_HUB = replace(
    formats.keras_hub(
        "DistilBert", formats.KERAS_HUB_JOINT | formats.keras_hub_heads(dense="dense")
    ),
    tasks=formats.keras_hub_tasks(inner=True, masked_lm=dict(lm_norm_epsilon=1e-5)),
    fixed=dict(
        activation="gelu", norm_epsilon=1e-12, pad_id=0, pooler=False, sinusoidal_positions=False
    ),
)

register(
    Family(
        name="distilbert",
        config=DistilBertConfig,
        wire=wire,
        sizes={
            "tiny": bert.SIZES["tiny"],
            "base": {},
            "base_cased": dict(vocab_size=28996),
            "multilingual_cased": dict(vocab_size=119547),
        },
        tokenizer=replace(bert.TOKENIZER, class_name="DistilBertTokenizer"),
        heads=HEADS,
        objectives=("distillation", "mlm"),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

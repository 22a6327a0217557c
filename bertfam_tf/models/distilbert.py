"""DistilBERT: Sanh et al. 2019, arXiv 1910.01108."""

from dataclasses import dataclass

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    LABELS,
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
    """Differs from BERT: half the layers, no segments, no pooler.

    ``sinusoidal_positions`` starts the positions as sines that are not trained. ``span_dropout``
    is that of the head for answers.
    """

    num_layers: int = 6
    num_segments: int = 0
    pooler: bool = False
    sinusoidal_positions: bool = False
    classifier_dropout: float | None = 0.2
    span_dropout: float = 0.1


def wire(config: DistilBertConfig, parts: Parts) -> tuple[dict, dict]:
    """Token + position embeddings, norm; blocks."""
    sines = config.sinusoidal_positions
    positions = layers.SinusoidalEmbedding if sines else layers.PositionEmbedding
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs, positions=positions)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"])


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
        "token_embedding/embeddings": "embeddings.word_embeddings.weight",
        "position_embedding/embeddings": "embeddings.position_embeddings.weight",
        "embedding_norm/gamma": "embeddings.LayerNorm.weight",
        "embedding_norm/beta": "embeddings.LayerNorm.bias",
        "layer_{i}/attention/query/kernel": _LAYER + "attention.q_lin.weight|T",
        "layer_{i}/attention/query/bias": _LAYER + "attention.q_lin.bias",
        "layer_{i}/attention/key/kernel": _LAYER + "attention.k_lin.weight|T",
        "layer_{i}/attention/key/bias": _LAYER + "attention.k_lin.bias",
        "layer_{i}/attention/value/kernel": _LAYER + "attention.v_lin.weight|T",
        "layer_{i}/attention/value/bias": _LAYER + "attention.v_lin.bias",
        "layer_{i}/attention/output/kernel": _LAYER + "attention.out_lin.weight|T",
        "layer_{i}/attention/output/bias": _LAYER + "attention.out_lin.bias",
        "layer_{i}/attention_norm/gamma": _LAYER + "sa_layer_norm.weight",
        "layer_{i}/attention_norm/beta": _LAYER + "sa_layer_norm.bias",
        "layer_{i}/feed_forward/intermediate/kernel": _LAYER + "ffn.lin1.weight|T",
        "layer_{i}/feed_forward/intermediate/bias": _LAYER + "ffn.lin1.bias",
        "layer_{i}/feed_forward/output/kernel": _LAYER + "ffn.lin2.weight|T",
        "layer_{i}/feed_forward/output/bias": _LAYER + "ffn.lin2.bias",
        "layer_{i}/feed_forward_norm/gamma": _LAYER + "output_layer_norm.weight",
        "layer_{i}/feed_forward_norm/beta": _LAYER + "output_layer_norm.bias",
    },
    ignored=(
        r"embeddings\.position_ids",
        r"(vocab_(transform|layer_norm|projector)|(pre_)?classifier|qa_outputs)\..*",
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
        huggingface=HUGGINGFACE,
        tokenizer="wordpiece",
        heads=HEADS,
        objectives=("distillation", "mlm"),
    )
)

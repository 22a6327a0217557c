"""BERT: Devlin et al. 2018, arXiv 1810.04805."""

from dataclasses import dataclass, replace

from bertfam_tf.models import encoder, formats, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    TORCH,
    DenseSpec,
    Family,
    FormatNames,
    HeadSpec,
    HuggingFaceNames,
    TokenizerSpec,
    register,
)


@dataclass(frozen=True)
class BertConfig(Config):
    """The root of the family: learned positions, two segments, norms after the residual sums.

    ``heads_per_layer`` is the number of heads of each layer of a model with pruned heads; empty for
    ``num_heads`` in all. ``pooler`` is false for checkpoints that were published without one.
    ``classifier_dropout`` is the rate in classification heads; None for ``dropout``.
    ``lm_activation`` and ``lm_norm_epsilon`` belong to the masked LM head, for libraries in which
    they differ from the published model's; None for the published model's.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    heads_per_layer: tuple[int, ...] = ()
    intermediate_size: int = 3072
    max_positions: int = 512
    num_segments: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None
    initializer_range: float = 0.02
    pad_id: int = 0
    pooler: bool = True
    lm_activation: str | None = None
    lm_norm_epsilon: float | None = None


def wire(config: BertConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token + position + segment embeddings, norm; blocks; tanh pooler on the first token."""
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"])


_MLM = "cls.predictions."
HEADS = {
    "sequence": heads.pooled(),
    "tokens": heads.tokens(),
    "span": heads.span(),
    "choice": heads.pooled(width=1),
    "masked_lm": heads.masked_lm(
        _MLM + "transform.dense", _MLM + "transform.LayerNorm", _MLM + "bias", _MLM + "decoder"
    ),
    "pair": HeadSpec("pooled_output", (DenseSpec("classifier", "cls.seq_relationship", 2),)),
}
SINGLE_HEADS = {name: head for name, head in HEADS.items() if name != "pair"}
_LAYER = "encoder.layer.{i}."

HUGGINGFACE = HuggingFaceNames(
    model_type="bert",
    model="Bert",
    prefix="bert.",
    config={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "num_segments",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_epsilon",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "classifier_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_id",
    },
    required={
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    },
    weights={
        **TORCH.embedding("token_embedding", "embeddings.word_embeddings"),
        **TORCH.embedding("segment_embedding", "embeddings.token_type_embeddings"),
        **TORCH.embedding("position_embedding", "embeddings.position_embeddings"),
        **TORCH.norm("embedding_norm", "embeddings.LayerNorm"),
        **TORCH.dense("layer_{i}/attention/query", _LAYER + "attention.self.query"),
        **TORCH.dense("layer_{i}/attention/key", _LAYER + "attention.self.key"),
        **TORCH.dense("layer_{i}/attention/value", _LAYER + "attention.self.value"),
        **TORCH.dense("layer_{i}/attention/output", _LAYER + "attention.output.dense"),
        **TORCH.norm("layer_{i}/attention_norm", _LAYER + "attention.output.LayerNorm"),
        **TORCH.dense("layer_{i}/feed_forward/intermediate", _LAYER + "intermediate.dense"),
        **TORCH.dense("layer_{i}/feed_forward/output", _LAYER + "output.dense"),
        **TORCH.norm("layer_{i}/feed_forward_norm", _LAYER + "output.LayerNorm"),
        **TORCH.dense("pooler/dense", "pooler.dense"),
    },
    # Buffers of positions, and heads, which tasks read. ``fit_dense`` is left over from TinyBERT's
    # distillation, whose checkpoints have BERT's model type.
    ignored=(
        r"embeddings\.(position_ids|token_type_ids)",
        r"(classifier|qa_outputs|cls|fit_denses?)\..*",
    ),
)

FORMATS = {
    # Its code computed the tanh approximation of GELU from 2019 on, but the published weights were
    # trained with the exact function of the first release.
    "tf1": FormatNames(("bert_config.json",), formats.TF1_ENCODER),
    "model_garden": replace(formats.MODEL_GARDEN, kinds=("bert", "bert_v2")),
    "keras_hub": replace(
        formats.keras_hub("Bert", formats.KERAS_HUB_ENCODER | formats.keras_hub_heads()),
        # Its blocks compute the approximation, and its head the exact function.
        tasks=formats.keras_hub_tasks(masked_lm=dict(lm_activation="gelu", lm_norm_epsilon=1e-5)),
    ),
}

SIZES: dict[str, dict] = {
    # Turc et al. 2019, arXiv 1908.08962.
    "tiny": dict(hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512),
    "mini": dict(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=1024),
    "small": dict(hidden_size=512, num_layers=4, num_heads=8, intermediate_size=2048),
    "medium": dict(hidden_size=512, num_layers=8, num_heads=8, intermediate_size=2048),
    "base": {},
    "base_cased": dict(vocab_size=28996),
    "multilingual_cased": dict(vocab_size=119547),
    "large": dict(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096),
    "large_cased": dict(
        vocab_size=28996,
        hidden_size=1024,
        num_layers=24,
        num_heads=16,
        intermediate_size=4096,
    ),
    # Wang et al. 2020, arXiv 2002.10957.
    "minilm_l6": dict(hidden_size=384, num_layers=6, intermediate_size=1536),
}

TOKENIZER = TokenizerSpec("wordpiece", "BertTokenizer")
register(
    Family(
        name="bert",
        config=BertConfig,
        wire=wire,
        sizes=SIZES,
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm", "nsp"),
        huggingface=HUGGINGFACE,
        formats=FORMATS,
    )
)

"""BERT: Devlin et al. 2018, arXiv 1810.04805."""

from dataclasses import dataclass

from bertfam_tf.models import encoder, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import DenseSpec, Family, HeadSpec, HuggingFaceNames, register


@dataclass(frozen=True)
class BertConfig(Config):
    """The root of the family: learnt positions, two segments, norms after the residual sums.

    ``heads_per_layer`` is how many heads each layer has left where some were removed; empty for
    ``num_heads``. ``pooler`` is false for checkpoints that were published without one.
    ``classifier_dropout`` is that of classification heads; None means ``dropout``.
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


def wire(config: BertConfig, parts: Parts) -> tuple[dict, dict]:
    """Token + position + segment embeddings, norm; blocks; tanh pooler on the first token."""
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
        "token_embedding/embeddings": "embeddings.word_embeddings.weight",
        "segment_embedding/embeddings": "embeddings.token_type_embeddings.weight",
        "position_embedding/embeddings": "embeddings.position_embeddings.weight",
        "embedding_norm/gamma": "embeddings.LayerNorm.weight",
        "embedding_norm/beta": "embeddings.LayerNorm.bias",
        "layer_{i}/attention/query/kernel": _LAYER + "attention.self.query.weight|T",
        "layer_{i}/attention/query/bias": _LAYER + "attention.self.query.bias",
        "layer_{i}/attention/key/kernel": _LAYER + "attention.self.key.weight|T",
        "layer_{i}/attention/key/bias": _LAYER + "attention.self.key.bias",
        "layer_{i}/attention/value/kernel": _LAYER + "attention.self.value.weight|T",
        "layer_{i}/attention/value/bias": _LAYER + "attention.self.value.bias",
        "layer_{i}/attention/output/kernel": _LAYER + "attention.output.dense.weight|T",
        "layer_{i}/attention/output/bias": _LAYER + "attention.output.dense.bias",
        "layer_{i}/attention_norm/gamma": _LAYER + "attention.output.LayerNorm.weight",
        "layer_{i}/attention_norm/beta": _LAYER + "attention.output.LayerNorm.bias",
        "layer_{i}/feed_forward/intermediate/kernel": _LAYER + "intermediate.dense.weight|T",
        "layer_{i}/feed_forward/intermediate/bias": _LAYER + "intermediate.dense.bias",
        "layer_{i}/feed_forward/output/kernel": _LAYER + "output.dense.weight|T",
        "layer_{i}/feed_forward/output/bias": _LAYER + "output.dense.bias",
        "layer_{i}/feed_forward_norm/gamma": _LAYER + "output.LayerNorm.weight",
        "layer_{i}/feed_forward_norm/beta": _LAYER + "output.LayerNorm.bias",
        "pooler/dense/kernel": "pooler.dense.weight|T",
        "pooler/dense/bias": "pooler.dense.bias",
    },
    # Buffers of positions, and heads: those are read by the tasks that have them.
    # ``fit_dense`` is what TinyBERT's distillation leaves in checkpoints that say they are BERT's.
    ignored=(
        r"embeddings\.(position_ids|token_type_ids)",
        r"(classifier|qa_outputs|cls|fit_denses?)\..*",
    ),
)

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

register(
    Family(
        name="bert",
        config=BertConfig,
        wire=wire,
        sizes=SIZES,
        huggingface=HUGGINGFACE,
        tokenizer="wordpiece",
        heads=HEADS,
        objectives=("mlm", "nsp"),
    )
)

"""BERT: Devlin et al. 2018, arXiv 1810.04805."""

from dataclasses import dataclass

import keras

from bertfam_tf import layers
from bertfam_tf.models.base import Config
from bertfam_tf.registry import Family, HuggingFaceNames, register


@dataclass(frozen=True)
class BertConfig(Config):
    """The root of the family: learnt positions, two segments, norms after the residual sums.

    ``pooler`` is false for checkpoints that were published without one.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    num_segments: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int = 0
    pooler: bool = True


def wire(config: BertConfig) -> tuple[dict, dict]:
    """Token + position + segment embeddings, norm; blocks; tanh pooler on the first token."""
    stddev = config.initializer_range
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask", "segment_ids")
    }

    def table(rows, name):
        return keras.layers.Embedding(
            rows, config.hidden_size, embeddings_initializer=layers.normal(stddev), name=name
        )

    x = table(config.vocab_size, "token_embedding")(inputs["token_ids"])
    x = x + table(config.num_segments, "segment_embedding")(inputs["segment_ids"])
    x = x + layers.PositionEmbedding(config.max_positions, stddev, name="position_embedding")(x)
    x = keras.layers.LayerNormalization(epsilon=config.norm_epsilon, name="embedding_norm")(x)
    x = keras.layers.Dropout(config.dropout, name="embedding_dropout")(x)

    attention_mask = layers.keys_from_padding(inputs["padding_mask"])
    hidden_states, attention_scores = [x], []
    for i in range(config.num_layers):
        x, scores = layers.TransformerBlock(
            layers.SelfAttention(
                config.hidden_size,
                config.num_heads,
                config.attention_dropout,
                stddev,
                name="attention",
            ),
            layers.FeedForward(
                config.intermediate_size,
                layers.activation(config.activation),
                stddev,
                name="feed_forward",
            ),
            epsilon=config.norm_epsilon,
            dropout=config.dropout,
            name=f"layer_{i}",
        )(x, attention_mask=attention_mask)
        hidden_states.append(x)
        attention_scores.append(scores)

    outputs = {
        "sequence_output": x,
        "hidden_states": hidden_states,
        "attention_scores": attention_scores,
    }
    if config.pooler:
        outputs["pooled_output"] = layers.FirstTokenPooler(stddev, name="pooler")(x)
    return inputs, outputs


_LAYER = "encoder.layer.{i}."

HUGGINGFACE = HuggingFaceNames(
    model_type="bert",
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
    heads={
        "sequence": {
            "sequence_head/classifier/kernel": "classifier.weight|T",
            "sequence_head/classifier/bias": "classifier.bias",
        },
    },
    # Buffers of positions, and heads: those are read by the tasks that have them.
    ignored=(r"embeddings\.(position_ids|token_type_ids)", r"classifier\..*", r"cls\..*"),
)

register(
    Family(
        name="bert",
        config=BertConfig,
        wire=wire,
        sizes={
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
        },
        huggingface=HUGGINGFACE,
        tokenizer="wordpiece",
        heads=("sequence",),
        objectives=("mlm", "nsp"),
    )
)

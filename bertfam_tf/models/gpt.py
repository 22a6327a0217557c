"""GPT: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"."""

from dataclasses import dataclass, replace

from bertfam_tf.models import bert, decoder, heads
from bertfam_tf.models.base import Config
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import TORCH, Family, HuggingFaceNames, TokenizerSpec, register


@dataclass(frozen=True)
class GptConfig(Config):
    """Differs from BERT: causal; no segments, no pooler, no norm of the embeddings.

    ``pad_id`` is None for a vocabulary without a padding token; models do not need it.
    """

    vocab_size: int = 40478
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    activation: str = "gelu_new"
    norm_epsilon: float = 1e-5
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    summary_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int | None = None


def wire(config: GptConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token + position embeddings; blocks with norms after the residual sums."""
    inputs = decoder.inputs(config, parts)
    blocks = [parts(f"layer_{i}", decoder.block, config, "post") for i in range(config.num_layers)]
    return inputs, decoder.decode(config, parts, inputs, blocks)


# Their "gelu" is the tanh approximation; the intermediate size is four times the hidden size.
def _read(fields: dict) -> dict:
    activation = fields.get("activation", "gelu")
    activation = "gelu_new" if activation == "gelu" else activation
    width = 4 * fields.get("hidden_size", GptConfig.hidden_size)
    return {**fields, "activation": activation, "intermediate_size": width}


def _write(fields: dict) -> dict:
    activation = fields["activation"]
    return {**fields, "activation": "gelu" if activation == "gelu_new" else activation}


HEADS = {
    "causal_lm": heads.causal_lm("lm_head"),
    "sequence": heads.last_token("score"),
    "choice": heads.last_token_choice("multiple_choice_head.summary"),
}

_LAYER = "h.{i}."
# Their layers are convolutions of width 1, whose kernels are (in, out).
CONV1D = replace(TORCH, kernel=".weight")
HUGGINGFACE = HuggingFaceNames(
    model_type="openai-gpt",
    model="OpenAIGPT",
    classes={"choice": "DoubleHeadsModel"},
    prefix="transformer.",
    config={
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_positions",
        "afn": "activation",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_pdrop": "dropout",
        "embd_pdrop": "embedding_dropout",
        "attn_pdrop": "attention_dropout",
        "summary_first_dropout": "summary_dropout",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_id",
    },
    required={"afn": ("gelu", "relu", "silu", "swish")},
    weights={
        **CONV1D.embedding("token_embedding", "tokens_embed"),
        **CONV1D.embedding("position_embedding", "positions_embed"),
        **CONV1D.dense("layer_{i}/attention/query_key_value", _LAYER + "attn.c_attn"),
        **CONV1D.dense("layer_{i}/attention/output", _LAYER + "attn.c_proj"),
        **CONV1D.norm("layer_{i}/attention_norm", _LAYER + "ln_1"),
        **CONV1D.dense("layer_{i}/feed_forward/intermediate", _LAYER + "mlp.c_fc"),
        **CONV1D.dense("layer_{i}/feed_forward/output", _LAYER + "mlp.c_proj"),
        **CONV1D.norm("layer_{i}/feed_forward_norm", _LAYER + "ln_2"),
    },
    # Buffers of masks and positions; heads.
    ignored=(
        r"h\.\d+\.attn\.(masked_)?bias|position_ids",
        r"(lm_head|score|multiple_choice_head|classifier|qa_outputs)\..*",
    ),
    synonyms={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    read=_read,
    write=_write,
)

register(
    Family(
        name="gpt",
        config=GptConfig,
        wire=wire,
        sizes={"tiny": bert.SIZES["tiny"], "base": {}},
        tokenizer=TokenizerSpec("bpe", "OpenAIGPTTokenizer", {"splitter": "bert"}),
        heads=HEADS,
        objectives=("clm",),
        huggingface=HUGGINGFACE,
    )
)

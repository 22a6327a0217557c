"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""

from dataclasses import dataclass, replace

from bertfam_tf.models import bert, decoder, encoder, formats, gpt, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import TORCH, Family, FormatNames, TaskNames, TokenizerSpec, register


@dataclass(frozen=True)
class Gpt2Config(gpt.GptConfig):
    """Differs from GPT: norms before attention and feed-forward, a final norm, 1024 positions.

    Initial weights of the residual branches' output layers are scaled by 1/√(2 layers).
    ``scale_attention`` divides scores by √(head size), ``scale_by_layer`` also by the layer's
    number, from 1. ``classifier_dropout`` is the rate in the head for tokens.
    """

    vocab_size: int = 50257
    max_positions: int = 1024
    classifier_dropout: float = 0.1
    scale_attention: bool = True
    scale_by_layer: bool = False


def wire(config: Gpt2Config, parts: Parts) -> tuple[dict, dict]:
    """Wires token + position embeddings; blocks with norms before each sublayer; a final norm."""
    inputs = decoder.inputs(config, parts)
    scale = encoder.head_size(config) ** -0.5 if config.scale_attention else 1.0
    blocks = [
        parts(
            f"layer_{i}",
            decoder.block,
            config,
            "pre",
            scale / (i + 1 if config.scale_by_layer else 1),
            config.initializer_range * (2 * config.num_layers) ** -0.5,
        )
        for i in range(config.num_layers)
    ]
    final_norm = parts("final_norm", encoder.norm, config)
    return inputs, decoder.decode(config, parts, inputs, blocks, final_norm)


# Their None for the intermediate size is four times the hidden size.
def _read(fields: dict) -> dict:
    width = fields.get("intermediate_size")
    if width is None:
        width = 4 * fields.get("hidden_size", Gpt2Config.hidden_size)
    return {**fields, "intermediate_size": width}


def _write(fields: dict) -> dict:
    width = fields["intermediate_size"]
    return {
        **fields,
        "intermediate_size": None if width == 4 * fields["hidden_size"] else width,
    }


HEADS = gpt.HEADS | {"tokens": heads.tokens(), "span": heads.span()}

_CONFIG = {theirs: ours for theirs, ours in gpt.HUGGINGFACE.config.items() if theirs != "afn"}
HUGGINGFACE = replace(
    gpt.HUGGINGFACE,
    model_type="gpt2",
    model="GPT2",
    config={
        **_CONFIG,
        "n_inner": "intermediate_size",
        "activation_function": "activation",
        "scale_attn_weights": "scale_attention",
        "scale_attn_by_inverse_layer_idx": "scale_by_layer",
    },
    # The last is about the order of operations in half precision, where ours are in float32.
    required={"add_cross_attention": (False,), "reorder_and_upcast_attn": (False, True)},
    weights={
        **gpt.HUGGINGFACE.weights,
        **TORCH.embedding("token_embedding", "wte"),
        **TORCH.embedding("position_embedding", "wpe"),
        **TORCH.norm("final_norm", "ln_f"),
    },
    read=_read,
    write=_write,
)


KERAS_HUB = FormatNames(
    kinds=("GPT2",),
    weights=formats.KERAS_HUB_DECODER,
    config={
        **{k: v for k, v in formats.KERAS_HUB_CONFIG.items() if k != "num_segments"},
        "dropout": ("dropout", "embedding_dropout", "attention_dropout"),
    },
    fixed=dict(activation="gelu_new", norm_epsilon=1e-5),
    tokenizer=formats.BYTE_BPE_FILES,
    tasks={"CausalLM": TaskNames("causal_lm")},
    joined={"query_key_value": ("query_dense", "key_dense", "value_dense")},
)


def _size(width: int, num_layers: int, num_heads: int) -> dict:
    return dict(
        hidden_size=width,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=4 * width,
    )


_END = "<|endoftext|>"
register(
    Family(
        name="gpt2",
        config=Gpt2Config,
        wire=wire,
        sizes={
            "tiny": bert.SIZES["tiny"],
            "base": {},
            "medium": _size(1024, 24, 16),
            "large": _size(1280, 36, 20),
            "xl": _size(1600, 48, 25),
        },
        tokenizer=TokenizerSpec(
            "byte_bpe", "GPT2Tokenizer", dict(bos_token=_END, eos_token=_END, unk_token=_END)
        ),
        heads=HEADS,
        objectives=("clm",),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

"""ModernBERT: Warner et al. 2024, arXiv 2412.13663."""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder
from bertfam_tf.models.base import MAX_LAYERS
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
    NormSpec,
    TiedOutputSpec,
    TokenizerSpec,
    register,
)
from bertfam_tf.validation import one_of


@dataclass(frozen=True)
class ModernBertConfig(bert.BertConfig):
    """Differs from BERT: rotary positions, gated feed-forward, pre-norm, local layers, no biases.

    Every ``global_every``-th layer, from the first, attends to all tokens; the others attend to at
    most half of ``local_attention`` tokens on either side. ``global_base`` and ``local_base`` are
    the bases of their rotary frequencies. Initial weights of the residual branches' output layers
    are scaled by 1/√(2 layers). Heads of texts read the first token or the mean of all, as
    ``pooling`` (``"cls"`` or ``"mean"``) says. ``dropout`` is the embeddings' rate.
    """

    vocab_size: int = 50368
    num_layers: int = 22
    intermediate_size: int = 1152
    max_positions: int = 8192
    num_segments: int = 0
    norm_epsilon: float = 1e-5
    norm_bias: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    classifier_dropout: float | None = 0.0
    pad_id: int = 50283
    pooler: bool = False
    pooling: str = "cls"
    global_every: int = 3
    global_base: float = 160000.0
    local_base: float = 10000.0
    local_attention: int = 128


def _block(config: ModernBertConfig, first: bool, *, name: str, dtype: Any = None) -> Any:
    # Megatron's initialization (arXiv 1909.08053), which the paper follows.
    output_stddev = config.initializer_range * (2 * config.num_layers) ** -0.5
    feed_forward = layers.GatedFeedForward(
        config.intermediate_size,
        layers.activation(config.activation),
        config.initializer_range,
        dropout=config.feed_forward_dropout,
        output_stddev=output_stddev,
        use_bias=False,
        name="feed_forward",
        dtype=dtype,
    )
    # The embeddings' norm is the first block's.
    norm = keras.layers.Identity if first else lambda **options: encoder.norm(config, **options)
    return layers.TransformerBlock(
        encoder.attention(
            config,
            positions=layers.rotate,
            output_stddev=output_stddev,
            use_bias=False,
            dtype=dtype,
        ),
        feed_forward,
        "pre",
        attention_norm=norm(name="attention_norm", dtype=dtype),
        feed_forward_norm=encoder.norm(config, name="feed_forward_norm", dtype=dtype),
        name=name,
        dtype=dtype,
    )


def wire(config: ModernBertConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token embeddings, norm; blocks with one of two masks and rotations each; norm."""
    one_of("pooling", config.pooling, ("cls", "mean"))
    inputs = encoder.inputs(config)
    tokens, padding_mask = inputs["token_ids"], inputs["padding_mask"]
    x = encoder.embed(config, parts, inputs, positions=None)
    distances = parts("distances", layers.Distances, config.max_positions)(tokens)
    places = ops.expand_dims(distances[:, 0], 0)
    mask = layers.attention_mask_from_padding(padding_mask)
    near = layers.local_mask(distances, config.local_attention // 2)

    def arguments(kind: str, base: float, allowed: Any) -> dict:
        angles = parts(f"{kind}_angles", layers.RotaryAngles, encoder.head_size(config), base)
        return {"attention_mask": allowed, "positions": angles(places)}

    kinds = [
        arguments("global", config.global_base, mask),
        arguments("local", config.local_base, ops.logical_and(mask, near)),
    ]
    outputs = encoder.encode(
        config,
        parts,
        x,
        padding_mask,
        blocks=[parts(f"layer_{i}", _block, config, i == 0) for i in range(config.num_layers)],
        call_with=lambda i: kinds[int(i % config.global_every > 0)],
        final_norm=parts("final_norm", encoder.norm, config),
    )
    mean = parts("mean", layers.TokenPooling, ("mean",))
    pooled = outputs["first_token"]
    if config.pooling == "mean":
        pooled = mean(outputs["sequence_output"], padding_mask)
    return inputs, {**outputs, "pooled_output": pooled}


_FIXED = {"classifier_bias": (False,), "classifier_activation": ("gelu",), "decoder_bias": (True,)}
_TRANSFORM = (
    DenseSpec("dense", "head.dense", Field("hidden_size"), "gelu", bias=False),
    NormSpec("norm", "head.norm", bias=False),
)


def _head(reads: str, width: int | Labels) -> HeadSpec:
    last = (DropoutSpec(Field("classifier_dropout")), DenseSpec("classifier", "classifier", width))
    return HeadSpec(reads, (*_TRANSFORM, *last), _FIXED)


HEADS = {
    "sequence": _head("pooled_output", LABELS),
    "tokens": _head("sequence_output", LABELS),
    "span": _head("sequence_output", 2),
    "choice": _head("pooled_output", 1),
    "masked_lm": HeadSpec(
        "sequence_output", (*_TRANSFORM, TiedOutputSpec("decoder.bias", "decoder")), _FIXED
    ),
}


# Current configs name each layer's kind and each kind's rotation, earlier ones a period and two
# bases. Where current configs do not fit the earlier form, their keys stay as unknown fields.
def _current(fields: dict) -> dict:
    kinds = ("full_attention", "sliding_attention")
    bases = (fields["global_base"], fields["local_base"])
    every, count = fields["global_every"], fields["num_layers"]
    return {
        # More are refused later, before anything of their size is made.
        "layer_types": [kinds[int(i % every > 0)] for i in range(min(count, MAX_LAYERS))],
        "rope_parameters": {
            kind: {"rope_theta": 1.0 * base, "rope_type": "default"}
            for kind, base in zip(kinds, bases, strict=True)
        },
    }


def _read(fields: dict) -> dict:
    known = {"num_layers": ModernBertConfig.num_layers, **_PERIOD, **fields}
    types, rotations = fields.get("layer_types"), fields.get("rope_parameters")
    if types and types != _current(known)["layer_types"]:
        known["global_every"] = [*types[1:], types[0]].index(types[0]) + 1
    if rotations:
        for field, kind in (("global", "full_attention"), ("local", "sliding_attention")):
            known[f"{field}_base"] = rotations[kind]["rope_theta"]
    for name, value in _current(known).items():
        if known.get(name) in (None, value):
            known.pop(name, None)
    return known


_PERIOD = dict(global_every=3, global_base=160000.0, local_base=10000.0)
_LAYER = "layers.{i}."
HUGGINGFACE = HuggingFaceNames(
    model_type="modernbert",
    model="ModernBert",
    prefix="model.",
    config={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "hidden_activation": "activation",
        "norm_eps": "norm_epsilon",
        "embedding_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "mlp_dropout": "feed_forward_dropout",
        "classifier_dropout": "classifier_dropout",
        "classifier_pooling": "pooling",
        "initializer_range": "initializer_range",
        "pad_token_id": "pad_id",
        "local_attention": "local_attention",
        "global_attn_every_n_layers": "global_every",
        "global_rope_theta": "global_base",
        "local_rope_theta": "local_base",
        "layer_types": "layer_types",
        "rope_parameters": "rope_parameters",
    },
    required={
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "norm_bias": (False,),
        "rope_scaling": (None,),
    },
    weights={
        **TORCH.embedding("token_embedding", "embeddings.tok_embeddings"),
        **TORCH.norm("embedding_norm", "embeddings.norm", bias=False),
        "layer_{i}/attention/query/kernel": _LAYER + "attn.Wqkv.weight|0/3T",
        "layer_{i}/attention/key/kernel": _LAYER + "attn.Wqkv.weight|1/3T",
        "layer_{i}/attention/value/kernel": _LAYER + "attn.Wqkv.weight|2/3T",
        **TORCH.dense("layer_{i}/attention/output", _LAYER + "attn.Wo", bias=False),
        **TORCH.norm("layer_{i}/attention_norm", _LAYER + "attn_norm", bias=False),
        "layer_{i}/feed_forward/intermediate/kernel": _LAYER + "mlp.Wi.weight|0/2T",
        "layer_{i}/feed_forward/gate/kernel": _LAYER + "mlp.Wi.weight|1/2T",
        **TORCH.dense("layer_{i}/feed_forward/output", _LAYER + "mlp.Wo", bias=False),
        **TORCH.norm("layer_{i}/feed_forward_norm", _LAYER + "mlp_norm", bias=False),
        **TORCH.norm("final_norm", "final_norm", bias=False),
    },
    ignored=(r"(head|decoder|classifier)\..*",),
    read=_read,
    write=lambda fields: {**fields, **_current(fields)},
)

# Its vocabulary was published as a tokenizer.json without a class of its own.
TOKENIZER = TokenizerSpec(
    "byte_bpe",
    "ModernBertTokenizer",
    dict(
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        mask_token="[MASK]", lstrip_tokens=("[MASK]",),
    ),
)  # fmt: skip
register(
    Family(
        name="modernbert",
        config=ModernBertConfig,
        wire=wire,
        sizes={
            "tiny": dict(hidden_size=128, num_layers=2, num_heads=2, intermediate_size=256),
            "base": {},
            "large": dict(hidden_size=1024, num_layers=28, num_heads=16, intermediate_size=2624),
        },
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm",),
        huggingface=HUGGINGFACE,
    )
)

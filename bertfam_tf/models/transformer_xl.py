"""Transformer-XL: Dai et al. 2019, arXiv 1901.02860."""

from dataclasses import dataclass

from keras import ops

from bertfam_tf import layers
from bertfam_tf.models import heads, relative
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    TORCH,
    AdaptiveSoftmaxSpec,
    Family,
    HeadSpec,
    HuggingFaceNames,
    TokenizerSpec,
    register,
)


@dataclass(frozen=True)
class TransformerXlConfig(relative.RelativeConfig):
    """Differs from BERT: causal, with a memory; relative positions; no pooler.

    ``cutoffs``, ``div_val`` and ``embedding_size`` are arguments of ``AdaptiveEmbedding``, whose
    vocabulary consists of words. With ``same_length`` a query attends to ``mem_len`` keys, its own
    included.
    """

    vocab_size: int = 267735
    cutoffs: tuple[int, ...] = (20000, 40000, 200000)
    div_val: int = 4
    embedding_size: int = 1024
    hidden_size: int = 1024
    num_layers: int = 18
    num_heads: int = 16
    head_size: int = 64
    intermediate_size: int = 4096
    activation: str = "relu"
    norm_epsilon: float = 1e-5
    attention_dropout: float = 0.0
    mem_len: int | None = 1600
    clamp_len: int = 1000
    same_length: bool = True
    pad_id: int | None = None

    @property
    def num_tables(self) -> int:
        """Number of tables of the embedding."""
        return 1 if self.div_val == 1 else len(self.cutoffs) + 1


def wire(config: TransformerXlConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires an adaptive embedding, and blocks that attend to the memory and to earlier tokens."""
    window = config.mem_len if config.same_length else None
    if window == 0:
        raise ValueError("same_length must be false with mem_len 0: no token would attend to any.")
    inputs = relative.inputs(config, parts)
    tokens, memory = inputs["token_ids"], inputs["memory"][0]
    x = parts(
        "token_embedding",
        layers.AdaptiveEmbedding,
        config.vocab_size,
        config.hidden_size,
        config.embedding_size,
        config.cutoffs,
        config.div_val,
        config.initializer_range,
    )(tokens)
    positions = parts("positions", layers.RelativePositions, config.hidden_size, config.clamp_len)(
        tokens, memory
    )
    mask = parts("mask", layers.MemoryMask)(inputs["padding_mask"], memory, tokens)
    distances = parts("distances", layers.Distances)(tokens, memory)
    mask = ops.logical_and(mask, layers.causal_mask(distances, window))
    outputs, _ = relative.encode(
        config,
        parts,
        x,
        inputs,
        relative.blocks(config, parts, config.head_size),
        mask,
        positions=relative.dropout(config, parts, positions, "position"),
    )
    return inputs, outputs


HEADS = {
    "sequence": heads.last_token("score"),
    "causal_lm": HeadSpec("sequence_output", (AdaptiveSoftmaxSpec("crit"),)),
}

_LAYER = "layers.{i}."
_ATTENTION = _LAYER + "dec_attn."

HUGGINGFACE = HuggingFaceNames(
    model_type="transfo-xl",
    model="TransfoXL",
    prefix="transformer.",
    config={
        "vocab_size": "vocab_size",
        "cutoffs": "cutoffs",
        "div_val": "div_val",
        "d_embed": "embedding_size",
        "d_model": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_head": "head_size",
        "d_inner": "intermediate_size",
        "layer_norm_epsilon": "norm_epsilon",
        "dropout": "dropout",
        "dropatt": "attention_dropout",
        "init_std": "initializer_range",
        "mem_len": "mem_len",
        "clamp_len": "clamp_len",
        "same_length": "same_length",
        "untie_r": "untie_r",
        "pad_token_id": "pad_id",
    },
    required={
        "attn_type": (0,),
        "pre_lnorm": (False,),
        "adaptive": (True,),
        "sample_softmax": (-1, 0),
        "tie_weight": (True,),
        "tie_word_embeddings": (True,),
        # All projections but the first are the embedding's.
        "proj_share_all_but_first": (True,),
        "tie_projs": tuple([False] + [True] * n for n in range(6)),
    },
    weights={
        "token_embedding/embeddings_{c}": "word_emb.emb_layers.{c}.weight",
        "token_embedding/projection_{c}": "word_emb.emb_projs.{c}|T",
        "content_bias/bias": "r_w_bias",
        "position_bias/bias": "r_r_bias",
        "layer_{i}/attention/query/kernel": _ATTENTION + "qkv_net.weight|0/3TF",
        "layer_{i}/attention/key/kernel": _ATTENTION + "qkv_net.weight|1/3TF",
        "layer_{i}/attention/value/kernel": _ATTENTION + "qkv_net.weight|2/3TF",
        "layer_{i}/attention/position/kernel": _ATTENTION + "r_net.weight|TF",
        "layer_{i}/attention/output/kernel": _ATTENTION + "o_net.weight|F",
        "layer_{i}/attention/content_bias/bias": _ATTENTION + "r_w_bias",
        "layer_{i}/attention/position_bias/bias": _ATTENTION + "r_r_bias",
        **TORCH.norm("layer_{i}/attention_norm", _ATTENTION + "layer_norm"),
        **TORCH.dense("layer_{i}/feed_forward/intermediate", _LAYER + "pos_ff.CoreNet.0"),
        **TORCH.dense("layer_{i}/feed_forward/output", _LAYER + "pos_ff.CoreNet.3"),
        **TORCH.norm("layer_{i}/feed_forward_norm", _LAYER + "pos_ff.layer_norm"),
    },
    # Frequencies of the sines; the copies below; heads.
    ignored=(
        r"pos_emb\.inv_freq",
        r"layers\.\d+\.dec_attn\.r_[wr]_bias",
        r"(crit|score)\..*",
    ),
    # Biases that the layers share.
    copies={_ATTENTION + "r_w_bias": "r_w_bias", _ATTENTION + "r_r_bias": "r_r_bias"},
    synonyms=relative.SYNONYMS,
)

SIZES: dict[str, dict] = {
    # Cut-offs that any vocabulary reaches.
    "tiny": dict(
        cutoffs=(12, 24),
        div_val=2,
        embedding_size=128,
        hidden_size=128,
        num_layers=2,
        num_heads=2,
        intermediate_size=512,
        mem_len=64,
    ),
    # As published in Hugging Face's format.
    "wt103": {},
    # The paper's smaller models of WikiText-103 and enwik8.
    "wt103_base": dict(
        div_val=1,
        embedding_size=410,
        hidden_size=410,
        num_layers=16,
        num_heads=10,
        head_size=41,
        intermediate_size=2100,
        mem_len=150,
        clamp_len=-1,
        same_length=False,
    ),
    "enwik8_base": dict(
        vocab_size=204,
        cutoffs=(),
        div_val=1,
        embedding_size=512,
        hidden_size=512,
        num_layers=12,
        num_heads=8,
        intermediate_size=2048,
        mem_len=512,
        clamp_len=-1,
        same_length=False,
    ),
}

register(
    Family(
        name="transformer_xl",
        config=TransformerXlConfig,
        wire=wire,
        sizes=SIZES,
        tokenizer=TokenizerSpec("words", "TransfoXLTokenizer"),
        heads=HEADS,
        objectives=("clm",),
        huggingface=HUGGINGFACE,
        indices={"i": "num_layers", "c": "num_tables"},
    )
)

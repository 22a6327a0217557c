"""Configs of the reference's models: small ones, and settings that use different code paths."""

from __future__ import annotations

# A small config of each family, with the field names of transformers' config classes.
_BERT = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=24,
)
_SMALLER = dict(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=24,
)
_ROBERTA = {**_SMALLER, "max_position_embeddings": 30, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_MPNET = {**_SMALLER, "max_position_embeddings": 30}
_MOBILEBERT = dict(
    vocab_size=16,
    hidden_size=8,
    embedding_size=6,
    intra_bottleneck_size=4,
    num_attention_heads=2,
    intermediate_size=6,
    num_feedforward_networks=3,
    num_hidden_layers=1,
)
_DEBERTA = dict(
    relative_attention=True,
    position_buckets=8,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type="p2c|c2p",
    position_biased_input=False,
)
_XLM = dict(vocab_size=32, emb_dim=16, n_layers=2, n_heads=4, max_position_embeddings=24)
_XLNET = dict(vocab_size=32, d_model=16, n_layer=2, n_head=4, d_inner=24, mem_len=4)
_TRANSFORMER_XL = dict(
    vocab_size=32,
    cutoffs=[8, 20],
    div_val=2,
    d_model=16,
    d_embed=12,
    d_head=6,
    n_layer=2,
    n_head=4,
    d_inner=24,
    mem_len=4,
    clamp_len=-1,
    same_length=False,
)
_GPT = dict(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=24, pad_token_id=0)
SMALL: dict[str, dict] = {
    "albert": {**_SMALLER, "num_hidden_layers": 3, "embedding_size": 8},
    "bert": _BERT,
    "deberta": {
        **_SMALLER,
        **_DEBERTA,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 12,
    },
    "distilbert": dict(
        vocab_size=32, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=24
    ),
    "electra": {**_SMALLER, "embedding_size": 8},
    "gpt": _GPT,
    "gpt2": _GPT,
    "mobilebert": {**_SMALLER, **_MOBILEBERT},
    "modernbert": {**_SMALLER, "num_hidden_layers": 4, "local_attention": 4, "pad_token_id": 0},
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "spanbert": _SMALLER,
    "tinybert": _SMALLER,
    "transformer_xl": _TRANSFORMER_XL,
    "xlm": {**_XLM, "n_langs": 3},
    "xlm_roberta": _ROBERTA,
    "xlnet": _XLNET,
}
# With the width of the tiny sizes, and long enough for 130 tokens.
TINY: dict[str, dict] = {
    family: dict(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=140,
    )
    for family in SMALL
} | {
    "deberta": {
        **_DEBERTA,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
        "position_buckets": 32,
        "max_position_embeddings": 100,
    },
    # Without norms, wider layers with perturbed weights multiply their input by thousands.
    "mobilebert": dict(
        hidden_size=32,
        embedding_size=16,
        intra_bottleneck_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_feedforward_networks=2,
        max_position_embeddings=140,
    ),
    "distilbert": dict(dim=128, n_layers=2, n_heads=2, hidden_dim=512),
    "gpt": dict(n_embd=128, n_layer=2, n_head=2, pad_token_id=0),
    "gpt2": dict(n_embd=128, n_layer=2, n_head=2, pad_token_id=0),
    "xlm": dict(emb_dim=128, n_layers=2, n_heads=2, n_langs=2),
    "transformer_xl": {**_TRANSFORMER_XL, "d_model": 128, "d_embed": 128, "d_inner": 512},
    "xlnet": dict(d_model=128, n_layer=2, n_head=2, d_inner=512),
}
# Settings of each family that use different code paths; each has a golden and a live comparison.
VARIANTS: dict[str, dict[str, dict]] = {
    "albert": {
        "default": {},
        "groups": dict(num_hidden_groups=2, hidden_act="gelu", layer_norm_eps=1e-5),
        "inner_groups": dict(inner_group_num=2, num_hidden_layers=2, num_hidden_groups=2),
        "embeddings_as_wide": dict(embedding_size=16, type_vocab_size=3, pad_token_id=4),
    },
    "bert": {
        "default": {},
        "tanh_gelu": dict(hidden_act="gelu_new", layer_norm_eps=1e-5, type_vocab_size=3),
        "relu": dict(hidden_act="relu", layer_norm_eps=1e-3, pad_token_id=5),
    },
    "deberta": {
        "default": {},
        "no_buckets": dict(
            position_buckets=-1, type_vocab_size=2, hidden_act="relu", layer_norm_eps=1e-3
        ),
    },
    "distilbert": {
        "default": {},
        "sinusoidal_relu": dict(sinusoidal_pos_embds=True, activation="relu", pad_token_id=3),
    },
    "electra": {
        "default": dict(layer_norm_eps=1e-5),
        "embeddings_as_wide": dict(embedding_size=16, hidden_act="relu"),
    },
    "gpt": {
        "default": {},
        "relu": dict(afn="relu", layer_norm_epsilon=1e-3),
    },
    "gpt2": {
        "default": {},
        "scaled_by_layer": dict(scale_attn_by_inverse_layer_idx=True, n_inner=24, n_layer=3),
        "exact_gelu_unscaled": dict(
            scale_attn_weights=False, activation_function="gelu", layer_norm_epsilon=1e-12
        ),
    },
    "mobilebert": {
        "default": {},
        "layer_norm": dict(
            normalization_type="layer_norm",
            use_bottleneck_attention=True,
            key_query_shared_bottleneck=False,
            num_hidden_layers=2,
            num_feedforward_networks=1,
            hidden_act="gelu",
            classifier_activation=False,
        ),
    },
    "modernbert": {
        "default": {},
        "every_second": dict(
            global_attn_every_n_layers=2, local_rope_theta=500.0, hidden_activation="relu"
        ),
    },
    "mpnet": {"default": {}, "relu": dict(hidden_act="relu", layer_norm_eps=1e-3)},
    "roberta": {
        "default": {},
        "pad_0_two_segments": dict(pad_token_id=0, type_vocab_size=2, layer_norm_eps=1e-3),
        "pad_3_tanh_gelu": dict(pad_token_id=3, hidden_act="gelu_new", layer_norm_eps=1e-12),
    },
    "spanbert": {"default": {}},
    "tinybert": {"default": {}, "relu": dict(hidden_act="relu")},
    "xlm": {
        "default": {},
        "sinusoidal_relu": dict(sinusoidal_embeddings=True, gelu_activation=False, n_langs=1),
        "no_language_embedding": dict(use_lang_emb=False, layer_norm_eps=1e-5, pad_token_id=5),
    },
    "xlm_roberta": {"default": {}},
    "transformer_xl": {
        "default": {},
        "same_length_clamped": dict(same_length=True, clamp_len=2),
        "shared_biases": dict(untie_r=False, cutoffs=[10]),
        "one_table": dict(div_val=1),
        "plain_embedding": dict(div_val=1, cutoffs=[], d_embed=16, mem_len=9),
    },
    "xlnet": {
        "default": {},
        "left_to_right": dict(attn_type="uni", ff_activation="relu", layer_norm_eps=1e-5),
        "same_length": dict(attn_type="uni", same_length=True, clamp_len=2),
        "clamped_and_cut": dict(clamp_len=2, reuse_len=2, mem_len=3),
        "both_directions": dict(bi_data=True, mem_len=None, pad_token_id=3),
    },
}
# The activations and epsilons of heads are from the config in some families and fixed in others.
UNUSUAL: dict[str, dict] = {
    family: {**SMALL[family], "num_hidden_layers": 1, "hidden_act": "relu", "layer_norm_eps": 1e-3}
    for family in SMALL
} | {
    "bert": {**_SMALLER, "num_hidden_layers": 1, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "distilbert": {**SMALL["distilbert"], "n_layers": 1, "activation": "relu"},
    "mobilebert": {
        **SMALL["mobilebert"],
        "num_feedforward_networks": 1,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-3,
    },
    "gpt": {**_GPT, "n_layer": 1, "layer_norm_epsilon": 1e-3},
    "gpt2": {**_GPT, "n_layer": 1, "layer_norm_epsilon": 1e-3},
    "xlm": {**SMALL["xlm"], "n_layers": 1, "layer_norm_eps": 1e-3},
    "transformer_xl": {**_TRANSFORMER_XL, "n_layer": 1, "d_embed": 16, "pad_token_id": 3},
    "xlnet": {**_XLNET, "n_layer": 1, "layer_norm_eps": 1e-3},
}

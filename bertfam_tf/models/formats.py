"""Names of weights in the checkpoints of libraries other than Hugging Face's.

Families list their formats with these; ``bertfam_tf.checkpoints`` reads files by them.
"""

import re
from collections.abc import Mapping
from typing import Any

from bertfam_tf.registry import Convention, FormatNames, TaskNames

# Google's TF1 releases ---------------------------------------------------------------------------

TF1 = Convention("/kernel", "/bias", "/gamma", "/beta", "")
# The output layers of heads, (out, in).
_TF1_OUTPUT = Convention("output_weights|T", "output_bias", "", "", "")
_LAYER = "bert/encoder/layer_{i}/"
TF1_ENCODER: Mapping[str, str] = {
    **TF1.embedding("token_embedding", "bert/embeddings/word_embeddings"),
    **TF1.embedding("position_embedding", "bert/embeddings/position_embeddings"),
    **TF1.embedding("segment_embedding", "bert/embeddings/token_type_embeddings"),
    **TF1.norm("embedding_norm", "bert/embeddings/LayerNorm"),
    **TF1.dense("layer_{i}/attention/query", _LAYER + "attention/self/query"),
    **TF1.dense("layer_{i}/attention/key", _LAYER + "attention/self/key"),
    **TF1.dense("layer_{i}/attention/value", _LAYER + "attention/self/value"),
    **TF1.dense("layer_{i}/attention/output", _LAYER + "attention/output/dense"),
    **TF1.norm("layer_{i}/attention_norm", _LAYER + "attention/output/LayerNorm"),
    **TF1.dense("layer_{i}/feed_forward/intermediate", _LAYER + "intermediate/dense"),
    **TF1.dense("layer_{i}/feed_forward/output", _LAYER + "output/dense"),
    **TF1.norm("layer_{i}/feed_forward_norm", _LAYER + "output/LayerNorm"),
    **TF1.dense("pooler/dense", "bert/pooler/dense"),
    **TF1.dense("masked_lm_head/dense", "cls/predictions/transform/dense"),
    **TF1.norm("masked_lm_head/norm", "cls/predictions/transform/LayerNorm"),
    "masked_lm_head/decoder/bias": "cls/predictions/output_bias",
    **_TF1_OUTPUT.dense("pair_head/classifier", "cls/seq_relationship/"),
    **_TF1_OUTPUT.dense("span_head/classifier", "cls/squad/"),
    **_TF1_OUTPUT.dense("sequence_head/classifier", ""),
    **_TF1_OUTPUT.dense("tokens_head/classifier", ""),
    **_TF1_OUTPUT.dense("choice_head/classifier", ""),
}

# TF Model Garden ---------------------------------------------------------------------------------

_GARDEN = Convention("/kernel", "/bias", "/gamma", "/beta", "/embeddings")
_LAYER = "_transformer_layers/{i}/"
MODEL_GARDEN = FormatNames(
    kinds=(),  # each family has its own
    weights={
        **_GARDEN.embedding("token_embedding", "_embedding_layer"),
        **_GARDEN.embedding("position_embedding", "_position_embedding_layer"),
        **_GARDEN.embedding("segment_embedding", "_type_embedding_layer"),
        **_GARDEN.norm("embedding_norm", "_embedding_norm_layer"),
        **_GARDEN.dense("embedding_projection", "_embedding_projection"),
        **_GARDEN.dense(
            "layer_{i}/attention/query", _LAYER + "_attention_layer/_query_dense", "out"
        ),
        **_GARDEN.dense("layer_{i}/attention/key", _LAYER + "_attention_layer/_key_dense", "out"),
        **_GARDEN.dense(
            "layer_{i}/attention/value", _LAYER + "_attention_layer/_value_dense", "out"
        ),
        **_GARDEN.dense(
            "layer_{i}/attention/output", _LAYER + "_attention_layer/_output_dense", "in"
        ),
        **_GARDEN.norm("layer_{i}/attention_norm", _LAYER + "_attention_layer_norm"),
        **_GARDEN.dense("layer_{i}/feed_forward/intermediate", _LAYER + "_intermediate_dense"),
        **_GARDEN.dense("layer_{i}/feed_forward/output", _LAYER + "_output_dense"),
        **_GARDEN.norm("layer_{i}/feed_forward_norm", _LAYER + "_output_layer_norm"),
        **_GARDEN.dense("pooler/dense", "_pooler_layer"),
        **_GARDEN.dense("sequence_head/classifier", "sequence"),
        **_GARDEN.dense("tokens_head/classifier", "tokens"),
        **_GARDEN.dense("span_head/classifier", "span"),
        **_GARDEN.dense("masked_lm_head/dense", "masked_lm/dense"),
        **_GARDEN.norm("masked_lm_head/norm", "masked_lm/layer_norm"),
        "masked_lm_head/decoder/bias": "masked_lm/output_bias.Sbias",
    },
    config={
        "vocab_size": ("vocab_size",),
        "hidden_size": ("hidden_size",),
        "num_layers": ("num_layers",),
        "num_attention_heads": ("num_heads",),
        "intermediate_size": ("intermediate_size",),
        "hidden_activation": ("activation",),
        "dropout_rate": ("dropout",),
        "attention_dropout_rate": ("attention_dropout",),
        "max_position_embeddings": ("max_positions",),
        "type_vocab_size": ("num_segments",),
        "initializer_range": ("initializer_range",),
    },
    gelu="gelu_new",
)

# KerasHub ----------------------------------------------------------------------------------------

_HUB = Convention("/vars/0", "/vars/1", "/vars/0", "/vars/1", "/vars/0")
_LAYER = "layers/transformer_encoder_{i}/"
_LAYERS = {
    **_HUB.dense("layer_{i}/attention/query", _LAYER + "self_attention_layer/query_dense", "out"),
    **_HUB.dense("layer_{i}/attention/key", _LAYER + "self_attention_layer/key_dense", "out"),
    **_HUB.dense("layer_{i}/attention/value", _LAYER + "self_attention_layer/value_dense", "out"),
    **_HUB.dense("layer_{i}/attention/output", _LAYER + "self_attention_layer/output_dense", "in"),
    **_HUB.norm("layer_{i}/attention_norm", _LAYER + "self_attention_layer_norm"),
    **_HUB.dense("layer_{i}/feed_forward/intermediate", _LAYER + "feedforward_intermediate_dense"),
    **_HUB.dense("layer_{i}/feed_forward/output", _LAYER + "feedforward_output_dense"),
    **_HUB.norm("layer_{i}/feed_forward_norm", _LAYER + "feedforward_layer_norm"),
    **_HUB.norm("embedding_norm", "layers/layer_normalization_0"),
}
KERAS_HUB_ENCODER: dict[str, str] = {
    **_LAYERS,
    **_HUB.embedding("token_embedding", "layers/reversible_embedding_0"),
    **_HUB.embedding("position_embedding", "layers/position_embedding_0"),
    **_HUB.embedding("segment_embedding", "layers/embedding_0"),
    **_HUB.dense("pooler/dense", "layers/dense_0"),
}
KERAS_HUB_PROJECTED: dict[str, str] = {
    **KERAS_HUB_ENCODER,
    **_HUB.dense("embedding_projection", "layers/dense_0"),
    **_HUB.dense("pooler/dense", "layers/dense_1"),
}
_DISENTANGLED = "layers/disentangled_attention_encoder_{i}/"
KERAS_HUB_DISENTANGLED: dict[str, str] = {
    **{path: name.replace(_LAYER, _DISENTANGLED) for path, name in _LAYERS.items()},
    **_HUB.dense("layer_{i}/attention/output", _DISENTANGLED + "self_attention_layer/output_dense"),
    **_HUB.embedding("token_embedding", "layers/reversible_embedding_0"),
    **_HUB.embedding("relative_embedding", "layers/relative_embedding_0"),
    **_HUB.norm("relative_norm", "layers/relative_embedding_0/layer_norm"),
}
_DECODER = "layers/transformer_decoder_{i}/"
KERAS_HUB_DECODER: Mapping[str, str] = {
    **{
        path: name.replace(_LAYER, _DECODER)
        for path, name in _LAYERS.items()
        if not re.search("attention/(query|key|value)/|embedding_norm", path)
    },
    **_HUB.dense(
        "layer_{i}/attention/query_key_value", _DECODER + "self_attention_layer/query_key_value"
    ),
    **_HUB.norm("final_norm", "layers/layer_normalization_0"),
    **_HUB.embedding("token_embedding", "layers/reversible_embedding_0"),
    **_HUB.embedding("position_embedding", "layers/position_embedding_0"),
}
_JOINT = "layers/token_and_position_embedding_0/"
# Two embeddings in one layer.
KERAS_HUB_JOINT: dict[str, str] = {
    **_LAYERS,
    **_HUB.embedding("token_embedding", _JOINT + "token_embedding"),
    **_HUB.embedding("position_embedding", _JOINT + "position_embedding"),
}
KERAS_HUB_CONFIG: Mapping[str, tuple[str, ...]] = {
    "vocabulary_size": ("vocab_size",),
    "num_layers": ("num_layers",),
    "num_heads": ("num_heads",),
    "hidden_dim": ("hidden_size",),
    "intermediate_dim": ("intermediate_size",),
    "dropout": ("dropout", "attention_dropout"),
    "max_sequence_length": ("max_positions",),
    "num_segments": ("num_segments",),
}
WORDPIECE_FILES: Mapping[str, str] = {"vocabulary.txt": "vocab.txt"}
BYTE_BPE_FILES: Mapping[str, str] = {"vocabulary.json": "vocab.json", "merges.txt": "merges.txt"}


def keras_hub_heads(dense: str | None = None) -> dict[str, str]:
    """Returns names of the weights of KerasHub's heads; ``dense`` is a classifier's inner layer.

    They are in a file of their own, whose tensors the reader prefixes with ``task/``.
    """
    masked, last = "task/layers/masked_lm_head_0", 0 if dense is None else 1
    inner = {} if dense is None else _HUB.dense(f"sequence_head/{dense}", "task/layers/dense_0")
    return {
        **inner,
        **_HUB.dense("sequence_head/classifier", f"task/layers/dense_{last}"),
        **_HUB.dense("masked_lm_head/dense", f"{masked}/intermediate_dense"),
        **_HUB.norm("masked_lm_head/norm", f"{masked}/intermediate_layer_norm"),
        "masked_lm_head/decoder/bias": f"{masked}/vars/0",
    }


_POOLINGS = {"mean": "mean", "cls": "first", "max": "max"}


def keras_hub_tasks(
    dropout: tuple[str, ...] = ("classifier_dropout",),
    *,
    inner: bool = False,
    masked_lm: Mapping[str, Any] | None = None,
) -> dict[str, TaskNames]:
    """Returns KerasHub's classes of encoders with a head.

    Args:
        dropout: our config fields for the rate of a classifier.
        inner: whether a classifier has a dense layer before the last.
        masked_lm: our config fields that the head for masked tokens hard-codes.
    """
    classifier = TaskNames(
        "sequence", {"dropout": dropout}, same={"hidden_dim": "hidden_size"} if inner else {}
    )
    return {
        "TextClassifier": classifier,
        "Classifier": classifier,  # its name before KerasHub
        "MaskedLM": TaskNames("masked_lm", fixed=masked_lm or {}),
        "TextEmbedder": TaskNames(
            None,
            options={
                "pooling_mode": ("pooling", _POOLINGS),
                "normalize": ("normalize", {True: True, False: False}),
            },
        ),
    }


def keras_hub(
    model: str,
    weights: Mapping[str, str] = KERAS_HUB_ENCODER,
    tokenizer: Mapping[str, str] = WORDPIECE_FILES,
) -> FormatNames:
    """Returns a backbone of KerasHub: ``model`` is its class without ``Backbone``."""
    return FormatNames(
        kinds=(model,),
        weights=weights,
        config=KERAS_HUB_CONFIG,
        fixed=dict(activation="gelu_new", norm_epsilon=1e-12, pad_id=0),
        tokenizer=tokenizer,
    )


def keras_hub_without_segments(model: str, tokenizer: Mapping[str, str]) -> FormatNames:
    """Returns a backbone of KerasHub without segments, pooler, and the positions of padding."""
    return FormatNames(
        kinds=(model,),
        weights=KERAS_HUB_JOINT | keras_hub_heads(dense="dense"),
        config=KERAS_HUB_CONFIG,
        tasks=keras_hub_tasks(inner=True),
        fixed=dict(activation="gelu", norm_epsilon=1e-5, pad_id=1, num_segments=1, pooler=False),
        offset=2,
        absent={"segment_embedding/embeddings": ("num_segments", "hidden_size")},
        tokenizer=tokenizer,
    )


# AllenNLP ----------------------------------------------------------------------------------------


def _lstm(direction: str, number: int) -> Mapping[str, str]:
    cell, layer = f"RNN_{number}/RNN/MultiRNNCell/Cell{{i}}/LSTMCell/", f"layer_{{i}}/{direction}_"
    return {
        # One matrix for the input and the states.
        f"{layer}input/kernel": f"{cell}W_0|0/2",
        f"{layer}kernel": f"{cell}W_0|1/2",
        f"{layer}input/bias": f"{cell}B",
        f"{layer}projection": f"{cell}W_P_0",
    }


_CHARACTERS = "token_encoder/"
ALLENNLP = FormatNames(
    kinds=("elmo",),
    weights={
        f"{_CHARACTERS}embedding/embeddings": "char_embed",
        f"{_CHARACTERS}filter_{{f}}/kernel": "CNN/W_cnn_{f}",
        f"{_CHARACTERS}filter_{{f}}/bias": "CNN/b_cnn_{f}",
        f"{_CHARACTERS}highway_{{h}}/gate/kernel": "CNN_high_{h}/W_carry",
        f"{_CHARACTERS}highway_{{h}}/gate/bias": "CNN_high_{h}/b_carry",
        f"{_CHARACTERS}highway_{{h}}/transform/kernel": "CNN_high_{h}/W_transform",
        f"{_CHARACTERS}highway_{{h}}/transform/bias": "CNN_high_{h}/b_transform",
        f"{_CHARACTERS}projection/kernel": "CNN_proj/W_proj",
        f"{_CHARACTERS}projection/bias": "CNN_proj/b_proj",
        **_lstm("forward", 0),
        **_lstm("backward", 1),
    },
    config={
        "char_cnn.n_characters": ("vocab_size",),
        "char_cnn.max_characters_per_token": ("max_characters",),
        "char_cnn.embedding.dim": ("embedding_size",),
        "char_cnn.filters.widths": ("filter_widths",),
        "char_cnn.filters.counts": ("filter_counts",),
        "char_cnn.activation": ("activation",),
        "char_cnn.n_highway": ("num_highways",),
        "lstm.projection_dim": ("hidden_size",),
        "lstm.dim": ("cell_size",),
        "lstm.cell_clip": ("cell_clip",),
        "lstm.proj_clip": ("projection_clip",),
        "lstm.n_layers": ("num_layers",),
    },
    absent={"scalar_mix/scalars": ("num_states",), "scalar_mix/gamma": ()},
)

"""XLM: Conneau and Lample 2019, arXiv 1901.07291."""

from dataclasses import dataclass

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
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
    TiedOutputSpec,
    TokenizerSpec,
    register,
)


@dataclass(frozen=True)
class XlmConfig(bert.BertConfig):
    """Differs from BERT: languages instead of segments, zeros at padding, no pooler.

    A model with several languages (and ``language_embedding``) has the input ``language_ids``. In a
    translation pair, ``position_ids`` may restart at 0 in the second sentence.
    """

    vocab_size: int = 30145
    hidden_size: int = 2048
    num_heads: int = 16
    intermediate_size: int = 8192
    num_segments: int = 0
    num_languages: int = 1
    language_embedding: bool = True
    sinusoidal_positions: bool = False
    classifier_dropout: float | None = 0.1
    pad_id: int = 2
    pooler: bool = False


def wire(config: XlmConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires token + position + language embeddings, norm; blocks; zeros at padding after each."""
    languages = config.language_embedding and config.num_languages > 1
    inputs = encoder.inputs(config, "position_ids", *["language_ids"] * languages)
    more = []
    if languages:
        table = parts("language_embedding", encoder.table, config, config.num_languages)
        more.append(table(inputs["language_ids"]))
    sines = config.sinusoidal_positions
    x = encoder.embed(
        config,
        parts,
        inputs,
        positions=layers.SinusoidalEmbedding if sines else layers.PositionEmbedding,
        position_ids=inputs["position_ids"],
        more=more,
    )

    padding_mask = inputs["padding_mask"]
    zeroed = layers.zero_padding
    x = zeroed(x, layers.unpad(padding_mask, parts.layout(padding_mask)))
    return inputs, encoder.encode(config, parts, x, padding_mask, after=zeroed)


# Their intermediate size is four times the hidden size, and their activation one of two.
def _read(fields: dict) -> dict:
    activation = "gelu" if fields.get("activation", True) else "relu"
    return {**fields, "activation": activation, "intermediate_size": 4 * fields["hidden_size"]}


def _write(fields: dict) -> dict:
    return {**fields, "activation": fields["activation"] == "gelu"}


def _summary(*parts: DenseSpec) -> HeadSpec:
    required = {
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_proj_to_labels": (True,),
        "summary_activation": (None, ""),
    }
    return HeadSpec("first_token", (DropoutSpec(Field("classifier_dropout")), *parts), required)


_SUMMARY = "sequence_summary.summary"
HEADS = {
    "sequence": _summary(DenseSpec("classifier", _SUMMARY, LABELS)),
    "tokens": heads.tokens(Field("dropout")),
    "span": heads.span(),
    # The width between the layers is their number of labels, which is 2 by default.
    "choice": _summary(DenseSpec("dense", _SUMMARY, 2), DenseSpec("classifier", "logits_proj", 1)),
    "masked_lm": HeadSpec(
        "sequence_output", (TiedOutputSpec("pred_layer.proj.bias", "pred_layer.proj"),)
    ),
}

HUGGINGFACE = HuggingFaceNames(
    model_type="xlm",
    model="XLM",
    prefix="transformer.",
    config={
        "vocab_size": "vocab_size",
        "n_words": "vocab_size",
        "emb_dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "max_position_embeddings": "max_positions",
        "gelu_activation": "activation",
        "layer_norm_eps": "norm_epsilon",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "summary_first_dropout": "classifier_dropout",
        "init_std": "initializer_range",
        "pad_token_id": "pad_id",
        "pad_index": "pad_id",
        "n_langs": "num_languages",
        "use_lang_emb": "language_embedding",
        "sinusoidal_embeddings": "sinusoidal_positions",
    },
    required={
        "gelu_activation": (True, False),
        "causal": (False,),
        "asm": (False,),
        "is_encoder": (True,),
    },
    weights={
        **TORCH.embedding("token_embedding", "embeddings"),
        **TORCH.embedding("position_embedding", "position_embeddings"),
        **TORCH.embedding("language_embedding", "lang_embeddings"),
        **TORCH.norm("embedding_norm", "layer_norm_emb"),
        **TORCH.dense("layer_{i}/attention/query", "attentions.{i}.q_lin"),
        **TORCH.dense("layer_{i}/attention/key", "attentions.{i}.k_lin"),
        **TORCH.dense("layer_{i}/attention/value", "attentions.{i}.v_lin"),
        **TORCH.dense("layer_{i}/attention/output", "attentions.{i}.out_lin"),
        **TORCH.norm("layer_{i}/attention_norm", "layer_norm1.{i}"),
        **TORCH.dense("layer_{i}/feed_forward/intermediate", "ffns.{i}.lin1"),
        **TORCH.dense("layer_{i}/feed_forward/output", "ffns.{i}.lin2"),
        **TORCH.norm("layer_{i}/feed_forward_norm", "layer_norm2.{i}"),
    },
    ignored=(
        r"position_ids",
        r"(pred_layer|sequence_summary|logits_proj|qa_outputs|classifier)\..*",
    ),
    defaults=dict(emb_dim=2048),
    synonyms={
        "hidden_size": "emb_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
    },
    read=_read,
    write=_write,
    # Their ForQuestionAnswering searches with beams: another head.
    classes={"span": "ForQuestionAnsweringSimple", "masked_lm": "WithLMHeadModel"},
)

TOKENIZER = TokenizerSpec(
    "bpe",
    "XLMTokenizer",
    dict(
        splitter="moses",
        unk_token="<unk>", cls_token="</s>", sep_token="</s>", pad_token="<pad>",
        mask_token="<special1>", bos_token="<s>",
        additional_special_tokens=tuple(f"<special{i}>" for i in range(10)),
        # As in training: XLM's code puts </s> around a text, transformers' class starts with <s>.
        layout=dict(single=("cls", "a", "sep"), pair=("cls", "a", "sep", "b", "sep")),
    ),
)  # fmt: skip
register(
    Family(
        name="xlm",
        config=XlmConfig,
        wire=wire,
        sizes={
            "tiny": {**bert.SIZES["tiny"], "num_languages": 3},
            "mlm_en_2048": {},
            "mlm_tlm_xnli15_1024": dict(
                vocab_size=95000,
                hidden_size=1024,
                num_heads=8,
                intermediate_size=4096,
                num_languages=15,
            ),
        },
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm", "tlm"),
        huggingface=HUGGINGFACE,
    )
)

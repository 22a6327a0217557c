"""XLM: Conneau and Lample 2019, arXiv 1901.07291."""

from dataclasses import dataclass

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import (
    LABELS,
    DenseSpec,
    DropoutSpec,
    Family,
    Field,
    HeadSpec,
    HuggingFaceNames,
    TiedOutputSpec,
    register,
)


@dataclass(frozen=True)
class XlmConfig(bert.BertConfig):
    """Differs from BERT: languages in place of segments, padding is set to zero, no pooler.

    With several languages (and ``language_embedding``) each token has one: the input
    ``language_ids``. The input ``position_ids`` lets positions start again in the second sentence
    of a translation pair; left out, they count from 0.
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
    """Token + position + language embeddings, norm; blocks; zeros at padding after each."""
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

    def zeroed(x):
        return layers.zero_padding(x, padding_mask)

    return inputs, encoder.encode(config, parts, zeroed(x), padding_mask, after=zeroed)


# Their feed-forward parts are four times as wide as the rest, and have one of two activations.
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
    # As wide in the middle as their config has labels, and it has two if nobody says otherwise.
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
        "token_embedding/embeddings": "embeddings.weight",
        "position_embedding/embeddings": "position_embeddings.weight",
        "language_embedding/embeddings": "lang_embeddings.weight",
        "embedding_norm/gamma": "layer_norm_emb.weight",
        "embedding_norm/beta": "layer_norm_emb.bias",
        "layer_{i}/attention/query/kernel": "attentions.{i}.q_lin.weight|T",
        "layer_{i}/attention/query/bias": "attentions.{i}.q_lin.bias",
        "layer_{i}/attention/key/kernel": "attentions.{i}.k_lin.weight|T",
        "layer_{i}/attention/key/bias": "attentions.{i}.k_lin.bias",
        "layer_{i}/attention/value/kernel": "attentions.{i}.v_lin.weight|T",
        "layer_{i}/attention/value/bias": "attentions.{i}.v_lin.bias",
        "layer_{i}/attention/output/kernel": "attentions.{i}.out_lin.weight|T",
        "layer_{i}/attention/output/bias": "attentions.{i}.out_lin.bias",
        "layer_{i}/attention_norm/gamma": "layer_norm1.{i}.weight",
        "layer_{i}/attention_norm/beta": "layer_norm1.{i}.bias",
        "layer_{i}/feed_forward/intermediate/kernel": "ffns.{i}.lin1.weight|T",
        "layer_{i}/feed_forward/intermediate/bias": "ffns.{i}.lin1.bias",
        "layer_{i}/feed_forward/output/kernel": "ffns.{i}.lin2.weight|T",
        "layer_{i}/feed_forward/output/bias": "ffns.{i}.lin2.bias",
        "layer_{i}/feed_forward_norm/gamma": "layer_norm2.{i}.weight",
        "layer_{i}/feed_forward_norm/beta": "layer_norm2.{i}.bias",
    },
    ignored=(
        r"position_ids",
        r"(pred_layer|sequence_summary|logits_proj|qa_outputs|classifier)\..*",
    ),
    defaults=dict(emb_dim=2048),
    read=_read,
    write=_write,
    # Their ForQuestionAnswering searches with beams: another head.
    classes={"span": "ForQuestionAnsweringSimple", "masked_lm": "WithLMHeadModel"},
)

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
        huggingface=HUGGINGFACE,
        tokenizer="bpe",
        heads=HEADS,
        objectives=("mlm", "clm", "tlm"),
    )
)

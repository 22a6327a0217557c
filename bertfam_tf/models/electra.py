"""ELECTRA: Clark et al. 2020, arXiv 2003.10555."""

from dataclasses import dataclass, replace

from bertfam_tf.models import bert, encoder, formats, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import TORCH, DenseSpec, DropoutSpec, Family, Field, HeadSpec, register


@dataclass(frozen=True)
class ElectraConfig(bert.BertConfig):
    """Differs from BERT: embeddings may be narrower than the blocks, no pooler.

    Generator and discriminator are the same encoder in different sizes. ``summary_dropout`` is the
    rate in the head for multiple choice.
    """

    embedding_size: int = 768
    summary_dropout: float = 0.1
    pooler: bool = False


def wire(config: ElectraConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires BERT with a projection of embeddings whose width differs from the blocks'."""
    inputs = encoder.inputs(config)
    x = encoder.embed(config, parts, inputs, width=config.embedding_size)
    if config.embedding_size != config.hidden_size:
        x = encoder.project(config, parts, x)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"])


_RTD = "discriminator_predictions."
HEADS = {
    "sequence": heads.first_token("gelu"),
    "tokens": bert.HEADS["tokens"],
    "span": bert.HEADS["span"],
    "choice": HeadSpec(
        "first_token",
        (
            DenseSpec("dense", "sequence_summary.summary", Field("hidden_size"), "gelu"),
            DropoutSpec(Field("summary_dropout")),
            DenseSpec("classifier", "classifier", 1),
        ),
        required={
            "summary_type": ("first",),
            "summary_use_proj": (True,),
            "summary_activation": ("gelu",),
        },
    ),
    "masked_lm": heads.masked_lm(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        "generator_lm_head",
        width=Field("embedding_size"),
        activation="gelu",
    ),
    "rtd": HeadSpec(
        "sequence_output",
        (
            DenseSpec("dense", _RTD + "dense", Field("hidden_size"), Field("activation")),
            DenseSpec("classifier", _RTD + "dense_prediction", 1),
        ),
    ),
}

HUGGINGFACE = replace(
    bert.HUGGINGFACE,
    model_type="electra",
    model="Electra",
    prefix="electra.",
    config={
        **bert.HUGGINGFACE.config,
        "embedding_size": "embedding_size",
        "summary_last_dropout": "summary_dropout",
    },
    weights={
        **{k: v for k, v in bert.HUGGINGFACE.weights.items() if not k.startswith("pooler/")},
        **TORCH.dense("embedding_projection", "embeddings_project"),
    },
    ignored=(
        bert.HUGGINGFACE.ignored[0],
        r"(classifier|qa_outputs|sequence_summary)\..*",
        r"(discriminator_predictions|generator_predictions|generator_lm_head)\..*",
    ),
    defaults=dict(
        embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    ),
)

KERAS_HUB = replace(
    formats.keras_hub("Electra", formats.KERAS_HUB_PROJECTED),
    config={
        **formats.KERAS_HUB_CONFIG,
        "embedding_dim": ("embedding_size",),
        "vocab_size": ("vocab_size",),
    },
    fixed=dict(activation="gelu_new", norm_epsilon=1e-12, pad_id=0, pooler=False),
    # Its pooler, the last dense layer, was never trained: the published models have none.
    ignored=(r"layers/dense_[01]/.*",),
)

_QUARTER = dict(hidden_size=256, num_heads=4, intermediate_size=1024)
_LARGE = bert.SIZES["large"]

register(
    Family(
        name="electra",
        config=ElectraConfig,
        wire=wire,
        sizes={
            "tiny": {**bert.SIZES["tiny"], "embedding_size": 64},
            "small": {**_QUARTER, "embedding_size": 128},
            "base": {},
            "large": {**_LARGE, "embedding_size": 1024},
            # As published, the small generator is as large as its discriminator.
            "small_generator": {**_QUARTER, "embedding_size": 128},
            "base_generator": _QUARTER,
            "large_generator": {**_QUARTER, "num_layers": 24, "embedding_size": 1024},
        },
        tokenizer=replace(bert.TOKENIZER, class_name="ElectraTokenizer"),
        heads=HEADS,
        objectives=("mlm", "rtd"),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

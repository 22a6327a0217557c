"""RoBERTa: Liu et al. 2019, arXiv 1907.11692."""

from dataclasses import dataclass, replace

from bertfam_tf import layers
from bertfam_tf.models import bert, encoder, formats, heads
from bertfam_tf.models.parts import Parts
from bertfam_tf.registry import Family, Field, TokenizerSpec, register


@dataclass(frozen=True)
class RobertaConfig(bert.BertConfig):
    """Differs from BERT: one segment; positions count real tokens, from index pad_id + 1."""

    vocab_size: int = 50265
    num_segments: int = 1
    norm_epsilon: float = 1e-5
    pad_id: int = 1


def wire(config: RobertaConfig, parts: Parts) -> tuple[dict, dict]:
    """Wires BERT; padding has the position embedding at index ``pad_id``."""
    inputs = encoder.inputs(config)
    position_ids = layers.position_ids_from_padding(inputs["padding_mask"])
    x = encoder.embed(config, parts, inputs, position_ids=position_ids, offset=config.pad_id + 1)
    return inputs, encoder.encode(config, parts, x, inputs["padding_mask"])


HUGGINGFACE = replace(
    bert.HUGGINGFACE,
    model_type="roberta",
    model="Roberta",
    prefix="roberta.",
    ignored=(bert.HUGGINGFACE.ignored[0], r"(classifier|qa_outputs|lm_head)\..*"),
    defaults=dict(pad_token_id=1, layer_norm_eps=1e-12, type_vocab_size=2)
    | dict(max_position_embeddings=512),
    # Their number of positions is the size of the table.
    read=lambda f: {**f, "max_positions": f["max_positions"] - f["pad_id"] - 1},
    write=lambda f: {**f, "max_positions": f["max_positions"] + f["pad_id"] + 1},
)
SIZES = {size: bert.SIZES[size] for size in ("tiny", "base", "large")}
HEADS = {**bert.SINGLE_HEADS, "sequence": heads.first_token("tanh")}
HEADS |= {"choice": heads.pooled(Field("dropout"), 1), "masked_lm": heads.lm_head("gelu")}
KERAS_HUB = formats.keras_hub_without_segments("Roberta", formats.BYTE_BPE_FILES)
SPECIAL_TOKENS = dict(
    unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>",
    bos_token="<s>", eos_token="</s>", lstrip_tokens=("<mask>",),
    layout=dict(pair=("cls", "a", "sep", "sep", "b", "sep"), pair_segments=(0,) * 6),
)  # fmt: skip
TOKENIZER = TokenizerSpec("byte_bpe", "RobertaTokenizer", {**SPECIAL_TOKENS, "trim_offsets": True})

register(
    Family(
        name="roberta",
        config=RobertaConfig,
        wire=wire,
        sizes=SIZES,
        tokenizer=TOKENIZER,
        heads=HEADS,
        objectives=("mlm",),
        huggingface=HUGGINGFACE,
        formats={"keras_hub": KERAS_HUB},
    )
)

"""Hugging Face's ``config.json``, read through the tables of the cards."""

import contextlib
import logging
from pathlib import Path
from typing import Any

from bertfam_tf import parsing, registry
from bertfam_tf.names import short, shown
from bertfam_tf.sources import CheckpointError

CONFIG = "config.json"
# So many that are not known are logged one by one.
_MOST_KEYS = 20
_log = logging.getLogger(__name__)

# Config fields of ours that a Hugging Face checkpoint shows by its tensors alone.
_SHOWN_BY_TENSORS = ("pooler",)

# Keys that say nothing about what an encoder computes: bookkeeping, generation, training.
_SILENT = frozenset(
    """
    _name_or_path architectures attn_implementation bos_token_id chunk_size_feed_forward
    classifier_dropout directionality dtype eos_token_id finetuning_task gradient_checkpointing
    id2label label2id model_type output_attentions output_hidden_states output_past
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type problem_type return_dict sep_token_id cls_token_id tie_word_embeddings
    tokenizer_class torch_dtype transformers_version use_cache _attn_implementation_autoset
    is_encoder_decoder cross_attention_hidden_size torchscript num_labels
    classifier_dropout_prob down_scale_factor embed_init_std end_n_top gap_size id2lang lang2id
    lang_id layers_to_keep mask_index mask_token_id max_vocab min_count net_structure_type
    num_memory_blocks qa_dropout same_enc_dec seq_classif_dropout share_inout_emb start_n_top
    summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels
    summary_type summary_use_proj tie_weights_ unk_index bos_index eos_index
    d_head do_sample ext_len init init_range proj_init_std task_specific_params tgt_len
    trainer_compatible use_mems use_mems_eval use_mems_train
    n_ctx n_special predict_special_tokens task_specific_params
    """.split()
)


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json``.

    Raises:
        CheckpointError: when it is missing, or is not a JSON object.
    """
    file = directory / CONFIG
    if not file.is_file():
        raise CheckpointError(f"No {CONFIG} in {directory}.")
    values = parsing.read_json(file, CheckpointError)
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} has no 'model_type'; expected a Hugging Face config.")
    return values


def translate(
    values: dict[str, Any], family: str | None = None, **overrides: Any
) -> tuple[registry.Family, Any]:
    """The family and config that a Hugging Face config describes.

    Args:
        values: from ``read_config``.
        family: the family that it is read as; None takes the one that the config names.
        **overrides: config fields to set otherwise.

    Raises:
        CheckpointError: for a model type that no card claims, or a value that the card refuses.
        ValueError: for an override that is not a field, or of another type.
    """
    card = _card(values, family)
    names = card.huggingface
    for key, supported in names.required.items():
        if key in values and values[key] not in supported:
            raise CheckpointError(
                f"{CONFIG} has {key} = {shown(values[key])}, which {card.name} does not support; "
                f"supported: {', '.join(map(repr, supported))}."
            )
    known = _SILENT | names.config.keys() | names.required.keys()
    strange = sorted(values.keys() - known)
    for key in strange[:_MOST_KEYS]:
        _log.warning("%s: the key %r is not known and has no effect.", CONFIG, short(key))
    if len(strange) > _MOST_KEYS:
        _log.warning("%s: so are %d more keys.", CONFIG, len(strange) - _MOST_KEYS)
    values = {**names.defaults, **values}
    fields = {ours: values[theirs] for theirs, ours in names.config.items() if theirs in values}
    # A value of a wrong type stays as it is: the check behind names it.
    with contextlib.suppress(TypeError):
        fields = names.read(fields)
    try:
        card.config.from_dict(fields)
    except ValueError as error:
        raise CheckpointError(f"{CONFIG}: {error}") from error
    return card, card.config.from_dict({**fields, **overrides})


def _card(values: dict[str, Any], family: str | None) -> registry.Family:
    kind = values.get("model_type")
    if family is not None:
        card = registry.get(family)
        if kind not in (None, card.huggingface.model_type):
            raise CheckpointError(
                f"{CONFIG} has the model type {shown(kind)}, which is not {family}'s."
            )
        return card
    if kind is None:
        raise CheckpointError(
            f"{CONFIG} has no 'model_type'; name the family if this is a Hugging Face config."
        )
    found = registry.reader(kind)
    if found is None:
        known = {registry.get(name).huggingface.model_type for name in registry.families()}
        raise CheckpointError(
            f"No family reads the model type {shown(kind)}. Known: {', '.join(sorted(known))}."
        )
    return found


def describe(family: registry.Family, config: Any) -> dict[str, Any]:
    """The Hugging Face config of a backbone: what ``translate`` reads.

    Raises:
        CheckpointError: for fields that the format cannot say; the text names them.
    """
    names = family.huggingface
    fields = names.write(config.to_dict())
    values = {"model_type": names.model_type}
    values |= {theirs: fields[ours] for theirs, ours in names.config.items()}
    shown = {name: getattr(config, name) for name in _SHOWN_BY_TENSORS if hasattr(config, name)}
    _, back = translate(values, family.name, **shown)
    lost = [name for name in back.to_dict() if getattr(back, name) != getattr(config, name)]
    if lost:
        listing = ", ".join(f"{name} = {getattr(config, name)!r}" for name in lost)
        raise CheckpointError(f"Hugging Face's {family.name} format has no way to say {listing}.")
    return values


def labels(values: dict[str, Any]) -> list[str] | None:
    """The label names of ``id2label`` in order, or None where the config has none."""
    table = values.get("id2label")
    if not isinstance(table, dict):
        return None
    try:
        return [str(table[key]) for key in sorted(table, key=int)]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{CONFIG}: the keys of id2label are not numbers: {error}") from error


def classes(values: dict[str, Any]) -> list[str]:
    """The names in ``architectures``, none where the config has no such list."""
    said = values.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def languages(values: dict[str, Any]) -> dict[str, int]:
    """The table ``lang2id``, empty where the config has none."""
    table = values.get("lang2id") or {}
    if not isinstance(table, dict) or not all(isinstance(i, int) for i in table.values()):
        raise CheckpointError(f"{CONFIG}: lang2id is a table of numbers, not {shown(table)}.")
    return table

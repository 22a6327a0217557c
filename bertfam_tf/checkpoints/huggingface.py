"""Hugging Face's ``config.json``, read through the tables of the cards."""

import json
import logging
from pathlib import Path
from typing import Any

from bertfam_tf import registry
from bertfam_tf.sources import CheckpointError

CONFIG = "config.json"
_log = logging.getLogger(__name__)

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
    """.split()
)


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json``.

    Raises:
        CheckpointError: when it is missing, or is not a JSON object with a ``model_type``.
    """
    file = directory / CONFIG
    if not file.is_file():
        raise CheckpointError(f"No {CONFIG} in {directory}.")
    try:
        values = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise CheckpointError(f"{file} has no 'model_type'; expected a Hugging Face config.")
    return values


def translate(values: dict[str, Any], **overrides: Any) -> tuple[registry.Family, Any]:
    """The family and config that a Hugging Face config describes.

    Args:
        values: from ``read_config``.
        **overrides: config fields to set otherwise.

    Raises:
        CheckpointError: for a model type that no card claims, or a value that the card refuses.
        ValueError: for an override that is not a field, or of another type.
    """
    kind = values["model_type"]
    cards = {registry.get(name).huggingface.model_type: name for name in registry.families()}
    if not isinstance(kind, str) or kind not in cards:
        raise CheckpointError(
            f"No family reads the model type {kind!r}. Known: {', '.join(sorted(cards))}."
        )
    card = registry.get(cards[kind])
    names = card.huggingface
    for key, supported in names.required.items():
        if key in values and values[key] not in supported:
            raise CheckpointError(
                f"{CONFIG} has {key} = {values[key]!r}, which {card.name} does not support; "
                f"supported: {', '.join(map(repr, supported))}."
            )
    known = _SILENT | names.config.keys() | names.required.keys()
    for key in sorted(values.keys() - known):
        _log.warning("%s: the key %r is not known and has no effect.", CONFIG, key)
    fields = {ours: values[theirs] for theirs, ours in names.config.items() if theirs in values}
    try:
        card.config.from_dict(fields)
    except ValueError as error:
        raise CheckpointError(f"{CONFIG}: {error}") from error
    return card, card.config.from_dict({**fields, **overrides})


def labels(values: dict[str, Any]) -> list[str] | None:
    """The label names of ``id2label`` in order, or None where the config has none."""
    table = values.get("id2label")
    if not isinstance(table, dict):
        return None
    try:
        return [str(table[key]) for key in sorted(table, key=int)]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{CONFIG}: the keys of id2label are not numbers: {error}") from error

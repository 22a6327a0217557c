"""Hugging Face's checkpoints: ``config.json`` and weights, read with the families' tables."""

import contextlib
import logging
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam_tf import parsing, registry
from bertfam_tf.checkpoints import pytorch, safetensors
from bertfam_tf.checkpoints.source import Format, Source
from bertfam_tf.checkpoints.tensors import Tensors
from bertfam_tf.models.base import MAX_LAYERS, Config
from bertfam_tf.names import truncated, truncated_repr
from bertfam_tf.registry import Family, HuggingFaceNames
from bertfam_tf.sources import CheckpointError, UnrepresentableError

CONFIG = "config.json"
# The maximum number of unknown keys that are logged by name.
_MAX_LOGGED_KEYS = 20
_log = logging.getLogger(__name__)

# TensorFlow's names of norm weights, which early converted checkpoints have.
_OLD_NORM_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_TOKEN_EMBEDDING = "token_embedding/embeddings"
# Config fields that are determined by the tensors of a Hugging Face checkpoint, not by its config.
_SHOWN_BY_TENSORS = ("pooler",)
# For models with pruned heads: the key of the pruned heads, and our field of the remaining ones.
_PRUNED, _HEADS = "pruned_heads", "heads_per_layer"

# Keys that do not affect an encoder's computation: bookkeeping, generation, training.
_IGNORED_KEYS = frozenset(
    """
    _name_or_path architectures attn_implementation bos_token_id chunk_size_feed_forward
    classifier_dropout directionality dtype eos_token_id finetuning_task gradient_checkpointing
    id2label label2id model_type output_attentions output_hidden_states output_past
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type problem_type return_dict sbert_ce_default_activation_function
    sentence_transformers sep_token_id cls_token_id tie_word_embeddings
    tokenizer_class torch_dtype transformers_version use_cache _attn_implementation_autoset
    is_encoder_decoder cross_attention_hidden_size torchscript num_labels
    classifier_dropout_prob down_scale_factor embed_init_std end_n_top gap_size id2lang lang2id
    lang_id layers_to_keep mask_index mask_token_id max_vocab min_count net_structure_type
    num_memory_blocks qa_dropout same_enc_dec seq_classif_dropout share_inout_emb start_n_top
    summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels
    summary_type summary_use_proj tie_weights_ unk_index bos_index eos_index
    d_head do_sample ext_len init init_range proj_init_std task_specific_params tgt_len
    trainer_compatible use_mems use_mems_eval use_mems_train
    classifier_activation classifier_bias decoder_bias deterministic_flash_attn
    initializer_cutoff_factor reference_compile repad_logits_with_grad sparse_pred_ignore_index
    sparse_prediction
    n_ctx n_special predict_special_tokens
    legacy pooler_hidden_size true_hidden_size
    """.split()
)
# Of DistributedDataParallel and of torch.compile.
_WRAPPERS = ("module.", "_orig_mod.")
_ADAPTER = "adapter_config.json"
# transformers does not use the other ones.
_PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def has_weights(directory: Path) -> bool:
    """Returns whether the directory has weights of this format."""
    return safetensors.matches(directory) or pytorch.matches(directory)


def read(directory: Path, family: str | None = None) -> Source:
    """Opens a checkpoint; arguments and errors as for ``Format.read``."""
    values = read_config(directory)
    record, config = translate(values, family)
    names = names_of(record)
    tensors = _unwrapped(read_weights(directory))
    tensors = tensors.renamed(lambda name: _canonical(name, names.prefix))
    others = {name: _by_alias(name, names.aliases) for name in tensors}
    tensors = tensors.renamed(lambda name: name if others[name] in tensors else others[name])
    weights, copies = dict(names.weights), {}
    for head, spec in record.heads.items():
        weights |= spec.weights(head)
        if spec.tied_output:
            copies[f"{spec.tied_output.theirs}.weight"] = names.weights[_TOKEN_EMBEDDING]
            if spec.tied_output.bias:
                copies[f"{spec.tied_output.theirs}.bias"] = spec.tied_output.bias
    # A file may contain only the copy of a tied tensor.
    only = {copy: name for copy, name in copies.items() if name not in tensors}
    tensors = tensors.renamed(lambda name: only.get(name, name))
    return Source(
        record,
        config,
        tensors,
        weights,
        names.ignored,
        copies,
        values,
        outputs=problem_type(values),
    )


def read_weights(directory: Path) -> Tensors:
    """Returns the tensors of a directory, as its files name them.

    Raises:
        CheckpointError: if there are no weights, or the readers of their formats raise it.
    """
    # safetensors first: it is memory-mapped and cannot run code.
    for reader in (safetensors, pytorch):
        if reader.matches(directory):
            return reader.read(directory)
    check_no_adapter(directory)
    raise CheckpointError(
        f"No weights in {directory}: expected {safetensors.SINGLE}, {safetensors.INDEX}, "
        f"{pytorch.SINGLE} or {pytorch.INDEX}."
    )


def check_no_adapter(directory: Path) -> None:
    """Raises ``CheckpointError`` if a directory without a model has an adapter of PEFT."""
    file = directory / _ADAPTER
    if file.is_file():
        base = parsing.read_object(file, CheckpointError).get("base_model_name_or_path")
        raise CheckpointError(
            f"{directory} has only an adapter of PEFT ({_ADAPTER}), for the model "
            f"{truncated_repr(base)}. Load it with peft, call merge_and_unload() and "
            "save_pretrained(FOLDER), and load that folder."
        )


def _unwrapped(tensors: Tensors) -> Tensors:
    """Returns tensors without the prefixes of PyTorch's wrappers around a whole model."""
    for prefix in _WRAPPERS * 2:  # either may be around the other
        if all(name.startswith(prefix) for name in tensors):
            tensors = tensors.renamed(operator.itemgetter(slice(len(prefix), None)))
    return tensors


def _canonical(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    for old, new in _OLD_NORM_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _by_alias(name: str, aliases: Mapping[str, str]) -> str:
    for theirs, ours in aliases.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def matches(directory: Path) -> bool:
    """Returns whether the directory has a ``config.json``."""
    return (directory / CONFIG).is_file()


FORMAT = Format(
    f"{CONFIG} with {safetensors.SINGLE}, {safetensors.INDEX}, {pytorch.SINGLE} or "
    f"{pytorch.INDEX} (Hugging Face)",
    matches,
    read,
)


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the parsed ``config.json``.

    Raises:
        CheckpointError: if it is missing or not a JSON object.
    """
    file = directory / CONFIG
    if not file.is_file():
        raise CheckpointError(f"No {CONFIG} in {directory}.")
    return parsing.read_object(file, CheckpointError)


def names_of(record: Family) -> HuggingFaceNames:
    """Returns the family's names in Hugging Face's format.

    Raises:
        UnrepresentableError: if Hugging Face lacks the family.
    """
    if record.huggingface is None:
        raise UnrepresentableError(
            f"Hugging Face has no {record.name} models, so there is no format for them."
        )
    return record.huggingface


def translate(
    values: dict[str, Any], family: str | None = None, file: object = CONFIG
) -> tuple[Family, Config]:
    """Returns the family and config that a Hugging Face config describes.

    Args:
        values: the config, from ``read_config``.
        family: the family to read it as; None for the one that the config names.
        file: the source of the values, for error messages.

    Raises:
        CheckpointError: if the model type is unknown, or the family does not support a value.
    """
    record = _record(values, family)
    names = names_of(record)
    others = {key: values[name] for name, key in names.synonyms.items() if name in values}
    values = {**values, **others}
    for key, supported in names.required.items():
        stated = {**names.defaults, **values}
        if key in stated and stated[key] not in supported:
            value = truncated_repr(stated[key]) + ("" if key in values else ", by default")
            raise CheckpointError(
                f"{file} has {key} = {value}, which {record.name} does not support; supported: "
                f"{', '.join(map(repr, supported))}."
            )
    known = names.config.keys() | names.required.keys() | names.synonyms.keys()
    unknown_keys = sorted(values.keys() - known - _IGNORED_KEYS - {_PRUNED})
    for key in unknown_keys[:_MAX_LOGGED_KEYS]:
        _log.warning("%s: the key %r is not known and has no effect.", file, truncated(key))
    if len(unknown_keys) > _MAX_LOGGED_KEYS:
        _log.warning(
            "%s: %d more keys are not known and have no effect.",
            file,
            len(unknown_keys) - _MAX_LOGGED_KEYS,
        )
    values = {**names.defaults, **values}
    fields = {ours: values[theirs] for theirs, ours in names.config.items() if theirs in values}
    # A wrong value is kept: the validation below reports it.
    with contextlib.suppress(TypeError, LookupError, ArithmeticError):
        fields = names.read(fields)
    if values.get(_PRUNED):
        fields[_HEADS] = _heads_left(values[_PRUNED], fields, file)
    return record, config_from(record, fields, file)


def _heads_left(pruned: Any, fields: dict[str, Any], file: object) -> list[int]:
    """Returns the number of heads of each layer.

    Args:
        pruned: the lists of pruned heads in the config, by layer.
        fields: the fields of the family's config.
        file: the file's name for error messages.

    Raises:
        CheckpointError: if the structure is another one, or a layer or head does not exist.
    """
    layers: Any = fields.get("num_layers")
    heads: Any = fields.get("num_heads")
    valid = type(layers) is int and layers <= MAX_LAYERS and type(heads) is int
    try:
        by_layer = {int(layer): {*heads_of_layer} for layer, heads_of_layer in pruned.items()}
        valid &= all(
            0 <= i < layers
            and all(type(head) is int and 0 <= head < heads for head in heads_of_layer)
            for i, heads_of_layer in by_layer.items()
        )
    except (AttributeError, TypeError, ValueError):
        valid = False
    if not valid:
        raise CheckpointError(
            f"{file}: {_PRUNED} must be lists of heads by layer, of {layers} layers with {heads} "
            f"heads, got {truncated_repr(pruned)}."
        )
    return [heads - len(by_layer.get(i, ())) for i in range(layers)]


def config_from(record: Family, fields: dict[str, Any], file: object) -> Config:
    """Builds the family's config.

    Raises:
        CheckpointError: if fields are invalid; the message names ``file``.
    """
    try:
        return record.config.from_dict(fields)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _record(values: dict[str, Any], family: str | None) -> Family:
    kind = values.get("model_type")
    if family is not None:
        record = registry.get(family)
        if kind not in (None, names_of(record).model_type):
            raise CheckpointError(
                f"{CONFIG} has the model type {truncated_repr(kind)}, which is not {family}'s."
            )
        return record
    if kind is None:
        raise CheckpointError(
            f"{CONFIG} has no 'model_type'; name the family if this is a Hugging Face config."
        )
    family_of_type = registry.of_model_type(kind)
    if family_of_type is None:
        names = [registry.get(name).huggingface for name in registry.families()]
        known = sorted({names_of_family.model_type for names_of_family in names if names_of_family})
        raise CheckpointError(
            f"{CONFIG}: no family has the model type {truncated_repr(kind)}. Known: "
            f"{', '.join(known)}."
        )
    return family_of_type


def describe(family: Family, config: Any) -> dict[str, Any]:
    """Returns the Hugging Face config of a backbone, the inverse of ``translate``.

    Raises:
        UnrepresentableError: if Hugging Face lacks the family, or its format cannot represent
            fields; the message names them.
    """
    names = names_of(family)
    fields = names.write(config.to_dict())
    values: dict[str, Any] = {"model_type": names.model_type}
    values |= {theirs: fields[ours] for theirs, ours in names.config.items()}
    left = getattr(config, _HEADS, ())
    if left:
        # Which ones they were is not known; transformers only reads their number. Its version 5
        # does not read models with pruned heads any more.
        total = config.num_heads
        values[_PRUNED] = {str(i): [*range(n, total)] for i, n in enumerate(left) if n < total}
    try:
        _, back = translate(values, family.name)
    except CheckpointError as error:
        raise UnrepresentableError(str(error)) from error
    lost = [
        name
        for name, value in back.to_dict().items()
        if value != config.to_dict()[name] and name not in _SHOWN_BY_TENSORS
    ]
    if lost:
        listing = ", ".join(f"{name} = {getattr(config, name)!r}" for name in lost)
        raise UnrepresentableError(
            f"Hugging Face's {family.name} format cannot represent {listing}."
        )
    return values


def labels(values: dict[str, Any]) -> list[str] | None:
    """Returns the label names of ``id2label`` in order, or None if the config has none."""
    table = values.get("id2label")
    if not isinstance(table, dict):
        return None
    try:
        return [str(table[key]) for key in sorted(table, key=int)]
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{CONFIG}: the keys of id2label are not numbers: {error}") from error


def classes(values: dict[str, Any]) -> list[str]:
    """Returns the names in ``architectures``, empty if the config has no such list."""
    said = values.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def problem_type(values: dict[str, Any]) -> str | None:
    """Returns ``problem_type``, or None if the config has none or an unknown one."""
    said = values.get("problem_type")
    return said if said in _PROBLEM_TYPES else None


def language_id(values: dict[str, Any]) -> int | None:
    """Returns the id ``lang_id``, or None if the config has none."""
    identifier = values.get("lang_id")
    return identifier if type(identifier) is int else None


def languages(values: dict[str, Any]) -> dict[str, int]:
    """Returns the table ``lang2id``, empty if the config has none."""
    table = values.get("lang2id") or {}
    if not isinstance(table, dict) or not all(type(i) is int for i in table.values()):
        raise CheckpointError(
            f"{CONFIG}: lang2id must map languages to integers, got {truncated_repr(table)}."
        )
    return table


def default_labels(count: int) -> list[str]:
    """Returns transformers' names of labels without names: ``LABEL_0``, ``LABEL_1``, …"""
    return [f"LABEL_{i}" for i in range(count)]

"""Tasks in transformers' format: weights with the head, labels, tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam_tf.checkpoints import CheckpointError, save
from bertfam_tf.heads import Head
from bertfam_tf.models import Backbone
from bertfam_tf.sources import UnrepresentableError
from bertfam_tf.tasks.hub_card import CARD, CardInfo, card
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.published import save_published

if TYPE_CHECKING:
    from bertfam_tf.tasks.task import Task

_log = logging.getLogger(__name__)

# Names of a backbone's inputs in transformers.
INPUTS = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "padding_mask": "attention_mask",
}


def save_pretrained(model: Backbone | Task, directory: str | Path, **about: Any) -> None:
    """Writes a backbone, or a task with its head and tokenizer, as transformers loads them.

    Args:
        model: the backbone or task.
        directory: the directory, new or empty; it appears whole or not at all.
        **about: for a task, the same as for ``Task.save_pretrained``.

    Raises:
        FileExistsError: for a task, if the directory exists and is not empty.
        CheckpointError: if the format cannot represent the model, or weights are not finite.
    """
    if isinstance(model, Backbone):
        save.save_pretrained(model, directory, **about)
    else:
        model.save_pretrained(directory, **about)


def publish(task: Task, directory: str | Path, info: CardInfo, name: str | None = None) -> None:
    """Writes a task as ``Task.save_pretrained``, with a model card.

    Args:
        task: the task.
        directory: new or empty; it appears whole or not at all.
        info: further facts for the card.
        name: the model's name in the card; None for the directory's.

    Raises:
        FileExistsError, CheckpointError: as ``Task.save_pretrained`` does.
    """
    values: dict[str, Any] = {}
    if task.problem_type:
        values["problem_type"] = task.problem_type
    if task.language_id is not None:
        values["lang_id"] = task.language_id
        if task.languages:
            values["lang2id"] = dict(task.languages)
        _log.info(
            "transformers' pipelines pass no languages to a model: call it with langs=%d at each "
            "token for the same answers.",
            task.language_id,
        )
    if task.head is not None and task.head.layers:
        raise CheckpointError(
            f"Not written: the {task.head.kind} head reads the layers "
            f"{', '.join(map(str, task.head.layers))}, and transformers' heads read the last one "
            "alone. bertfam_tf.save_pretrained(task.backbone, …) writes the backbone alone."
        )
    with save.new_directory(directory) as temporary:
        write(
            temporary,
            task.backbone,
            task.tokenizer,
            [] if task.head is None else [task.head],
            inputs=task.published_inputs,
            max_length=task.max_length,
            labels=task.class_names,
            values=values,
            any_language=task.language_id is not None,
        )
        task.published_type.write(task, temporary)
        text = card(task, name or Path(directory).resolve().name, info)
        (temporary / CARD).write_text(text, "utf-8")


def write(
    directory: Path,
    backbone: Backbone,
    tokenizer: Tokenizer,
    heads: Sequence[Head],
    *,
    inputs: Collection[str],
    max_length: int,
    labels: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    any_language: bool = False,
) -> None:
    """Writes a model and its tokenizer, as transformers loads them, into an existing directory.

    Args:
        directory: the directory.
        backbone: the model.
        tokenizer: its tokenizer.
        heads: the heads on the model.
        inputs: the model's inputs, by the names of this package.
        max_length: the maximum number of tokens of an input.
        labels: names of the classes of a head that has labels; None for numbers.
        values: additional entries of ``config.json``.
        any_language: the same as for ``save_published``.

    Raises:
        UnrepresentableError: for a model or tokenizer that the format cannot represent.
        CheckpointError: for weights that are not finite.
    """
    ids, configured = tokenizer.special_ids, getattr(backbone.config, "pad_id", None)
    last = any(head.reads == "last_token" for head in heads)
    pad_id = _pad_id(ids, configured, last)
    described: dict[str, Any] = {f"{role}_token_id": ids.get(role) for role in ("bos", "eos")}
    # Some families compute position ids from the config's pad id, so it is kept; heads that read
    # the last token need the tokenizer's, and transformers loads no id outside of the vocabulary.
    outside = configured is None or configured >= backbone.config.vocab_size
    if pad_id is not None and (last or outside):
        described["pad_token_id"] = pad_id
    try:
        described["tokenizer_class"] = save_published(
            tokenizer,
            directory,
            inputs=[INPUTS[name] for name in INPUTS if name in inputs],
            max_length=max_length,
            pad_id=pad_id,
            any_language=any_language,
        )
    except (ValueError, ImportError) as error:
        raise UnrepresentableError(
            "Not written, because transformers would tokenize texts otherwise: "
            f"{str(error).rstrip('.')}. bertfam_tf.save_pretrained(task.backbone, …) writes the "
            "backbone alone."
        ) from error
    save.write(
        backbone,
        directory,
        heads={head.kind: head for head in heads},
        labels=labels,
        values={**described, **(values or {})},
    )


def _pad_id(ids: Mapping[str, int], configured: int | None, last: bool) -> int | None:
    """The pad token's id: the tokenizer's, else another special token that may replace it."""
    if "pad" in ids:
        return ids["pad"]
    if configured in ids.values():
        return configured
    # transformers' heads for last tokens look for the last token that is not padding, and refuse
    # batches without a padding token.
    return ids.get("eos") if last else None

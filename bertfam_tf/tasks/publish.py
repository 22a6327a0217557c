"""Tasks in transformers' format: weights with the head, labels, tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam_tf.checkpoints import CheckpointError, save
from bertfam_tf.models import Backbone
from bertfam_tf.text.published import save_published

if TYPE_CHECKING:
    from bertfam_tf.tasks.base import Task

# Names of a backbone's inputs in transformers.
INPUTS = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "padding_mask": "attention_mask",
}


def save_pretrained(model: Backbone | Task, directory: str | Path) -> None:
    """Writes a backbone, or a task with its head and tokenizer, as transformers loads them.

    Args:
        model: as ``bertfam_tf.checkpoints.save_pretrained`` writes it, or ``Task.save_pretrained``.
        directory: of a task new or empty; it appears whole or not at all.

    Raises:
        FileExistsError: of a task, when the directory exists and is not empty.
        CheckpointError: for what the format cannot represent, or weights that are not finite.
    """
    if isinstance(model, Backbone):
        save.save_pretrained(model, directory)
    else:
        _publish(model, directory)


def _publish(task: Task, directory: str | Path) -> None:
    head, backbone, tokenizer = task.head, task.backbone, task.tokenizer
    if task.language_id is not None:
        raise CheckpointError(
            f"Not written: the answers depend on the language ({task.language_id}), which "
            "transformers' pipelines do not pass to a model. backbone.save_pretrained writes the "
            "backbone alone."
        )
    ids, pad_id = tokenizer.special_ids, _pad_id(task)
    values: dict[str, Any] = {f"{role}_token_id": ids.get(role) for role in ("bos", "eos")}
    # Some families compute position ids from the config's pad id, so it is kept; heads that read
    # the last token need the tokenizer's.
    if pad_id is not None and (_reads_last(task) or _configured(task) is None):
        values["pad_token_id"] = pad_id
    if task.problem_type:
        values["problem_type"] = task.problem_type
    with save.new_directory(directory) as temporary:
        try:
            values["tokenizer_class"] = save_published(
                tokenizer,
                temporary,
                inputs=[INPUTS[name] for name in INPUTS if name in task.published_inputs],
                max_length=task.max_length,
                pad_id=pad_id,
            )
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"Not written, because transformers would tokenize texts otherwise: {error}. "
                "backbone.save_pretrained writes the backbone alone."
            ) from error
        heads = {} if head is None else {head.kind: head}
        save.write(backbone, temporary, heads=heads, labels=task.class_names, values=values)


def _pad_id(task: Task) -> int | None:
    """The pad token's id: the tokenizer's, else another special token that may replace it."""
    ids = task.tokenizer.special_ids
    if "pad" in ids:
        return ids["pad"]
    if _configured(task) in ids.values():
        return _configured(task)
    # transformers' heads for last tokens look for what is not padding, and refuse batches where
    # no token is.
    return ids.get("eos") if _reads_last(task) else None


def _configured(task: Task) -> int | None:
    return getattr(task.backbone.config, "pad_id", None)


def _reads_last(task: Task) -> bool:
    return task.head is not None and task.head.reads == "last_token"

"""From a published checkpoint to a task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.tasks.base import tokenizer_and_language

_log = logging.getLogger(__name__)


def open_task(
    cls: Callable[..., Any],
    head: str,
    path: str | Path,
    *,
    width: int | None = None,
    language: str | int | None = None,
    overrides: dict[str, Any],
    **options: Any,
) -> Any:
    """A task without labels; its own head is used where the checkpoint has one.

    Args:
        cls: what makes the task, such as its class: ``cls(backbone, tokenizer, language_id=…,
            **options)``.
        head: the head's name on the family's card; the task has it as ``head``.
        path, language: as the tasks' ``from_pretrained`` take them.
        width: how many scores the head gives, where its width is not fixed; one of another width
            is not used.
        overrides: config fields of the backbone.
        **options: of the constructor.

    Raises:
        CheckpointError, ValueError: as the tasks' ``from_pretrained`` do.
    """
    checkpoint = Checkpoint(path, **overrides)
    task = _build(cls, checkpoint, language, **options)
    stored = checkpoint.head_labels(head) if width is not None else None
    if stored is not None and len(stored) != width:
        _log.warning(
            "The %s head starts at random: that of %s gives %d scores, not %d.",
            head,
            path,
            len(stored),
            width,
        )
    elif checkpoint.has_head(head):
        checkpoint.fill_head(task.head, head)
    else:
        _log.info("The %s head starts at random: %s has none.", head, path)
    return task


def open_labelled_task(
    cls: Callable[..., Any],
    head: str,
    path: str | Path,
    labels: Sequence[str] | None,
    *,
    language: str | int | None = None,
    overrides: dict[str, Any],
    **options: Any,
) -> Any:
    """A task whose head has a score for each label; arguments as for ``open_task``.

    The checkpoint's own head is used when it has one for the same labels; otherwise the head
    starts at random, and a log line says so. Without ``labels`` they are those of its head.

    Raises:
        CheckpointError, ValueError: as the tasks' ``from_pretrained`` do.
    """
    checkpoint = Checkpoint(path, **overrides)
    stored = checkpoint.head_labels(head)
    if labels is None:
        if stored is None:
            raise ValueError(f"{path} has no {head} head; say which labels to learn.")
        labels = stored
    task = _build(cls, checkpoint, language, labels=labels, **options)
    if stored == list(labels):
        checkpoint.fill_head(task.head, head)
    elif stored is None:
        _log.info("The %s head starts at random: %s has none.", head, path)
    else:
        _log.warning(
            "The %s head starts at random: that of %s is for the labels %s.",
            head,
            path,
            ", ".join(stored),
        )
    return task


def _build(
    cls: Callable[..., Any],
    checkpoint: Checkpoint,
    language: str | int | None,
    **options: Any,
) -> Any:
    backbone = checkpoint.backbone()
    tokenizer, language_id = tokenizer_and_language(checkpoint, backbone, language)
    return cls(backbone, tokenizer, language_id=language_id, **options)


def checked_labels(labels: Sequence[str]) -> list[str]:
    """The labels as a list.

    Raises:
        ValueError: for fewer than two, a repeated one, or one that is not a string.
    """
    found = list(labels)
    repeated = [label for label, count in Counter(found).items() if count > 1]
    if len(found) < 2 or repeated or not all(isinstance(label, str) for label in found):
        raise ValueError(f"labels are two or more different strings, not {found!r}.")
    return found

"""Loads a published checkpoint as a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np

from bertfam_tf import parsing
from bertfam_tf.checkpoints import Checkpoint, CheckpointError
from bertfam_tf.checkpoints.huggingface import default_labels
from bertfam_tf.models import Backbone
from bertfam_tf.names import unknown
from bertfam_tf.sources import resolve
from bertfam_tf.tasks import options as declared
from bertfam_tf.tasks.languages import LANGUAGES
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.user_warnings import UntrainedWarning, warn

if TYPE_CHECKING:
    from bertfam_tf.tasks.task import Task

# The number of classes in transformers and in KerasHub.
_COUNTS = ("num_labels", "num_classes")
# Options that were chosen by the scores of a head, and do not fit a new one's.
_OF_SCORES = {"temperature", "threshold"}
_TOKENIZER, _LENGTH, _NO_LENGTH = "tokenizer_config.json", "model_max_length", 1 << 30


class Published:
    """A published checkpoint's files for other things than model, head and tokenizer: none here.

    Args:
        directory: the checkpoint.

    Attributes:
        model: the directory of the model and the tokenizer.
        options: the task's options that the checkpoint stores.
        library, loader: the library that these files are for, and its class that loads them; None
            for a pipeline of transformers.

    Raises:
        CheckpointError: for files that are damaged or not supported.
    """

    library: ClassVar[str] = "transformers"
    loader: ClassVar[str | None] = None

    def __init__(self, directory: Path):
        self.model = directory
        self.options: dict[str, Any] = tokenizer_length(directory)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Returns the checkpoint's tokenizer, given the model's."""
        return tokenizer

    def fill(self, task: Any) -> None:
        """Loads more weights of the task."""

    @classmethod
    def matches(cls, directory: Path) -> bool:
        """Returns whether a checkpoint has files of this class, which say what task it is for."""
        return False

    @staticmethod
    def write(task: Any, directory: Path) -> None:
        """Writes the files that this class reads into the directory of the model."""


def tokenizer_length(directory: Path) -> dict[str, Any]:
    """Returns ``max_length`` from ``model_max_length``, to which transformers truncates texts.

    Empty if it is missing, or the huge number that means no limit.

    Raises:
        CheckpointError: for a file that is damaged, or a length below 1.
    """
    file = directory / _TOKENIZER
    said = parsing.read_json(file, CheckpointError) if file.is_file() else {}
    length = said.get(_LENGTH) if isinstance(said, dict) else None
    if type(length) is not int or length > _NO_LENGTH:
        return {}
    if length < 1:
        raise CheckpointError(f"{file} has {_LENGTH} = {length}, expected at least 1.")
    return {"max_length": length}


def open_task(
    cls: type[Task],
    path: str | Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    classes: Mapping[str, type[Task]],
) -> Any:
    """Returns the result of ``cls.from_pretrained(path, *args, **kwargs)``.

    Args:
        cls, path, args, kwargs: of that call.
        classes: the classes of tasks by their names.

    Raises:
        CheckpointError, ValueError, TypeError: for the reasons of ``Task.from_pretrained``.
    """
    kind, overrides = cls.options_type, dict(kwargs)
    names, positional = declared.names(kind), declared.positional(kind)
    if len(args) > len(positional):
        expected = ", ".join(["path", *positional])
        raise TypeError(
            f"from_pretrained() takes {expected} by position, got {len(args) + 1} values."
        )
    language = overrides.pop("language", None)
    arguments = dict(zip(positional, args, strict=False))
    for name in names:
        if name in overrides and name != "language_id":
            arguments[name] = overrides.pop(name)
    class_option = declared.class_option(kind)
    for name in _COUNTS if class_option is not None and arguments.get(class_option) is None else ():
        if name in overrides:
            arguments[class_option or ""] = overrides.pop(name)
    published = cls.published_type(resolve(path))
    try:
        checkpoint = Checkpoint(published.model, **overrides)
    except ValueError as error:
        for name in overrides:
            similar = get_close_matches(name, names, n=1)
            if similar and repr(name) in str(error):
                error.add_note(f"{cls.__name__} has an option {similar[0]!r}.")
        raise
    saved = classes.get(checkpoint.task or "", cls).options_type
    kept = {n: checkpoint.options[n] for n in declared.shared(kind, saved) & {*checkpoint.options}}
    # A library's own files take precedence over the options of its format.
    stored = kept | published.options
    stored_language = stored.pop("language_id", None)
    # None is the stored value, except for an option whose default is another value.
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    options = stored | {
        name: value
        for name, value in arguments.items()
        if value is not None or name not in stored or defaults.get(name) is not None
    }
    head = cls.head_of(checkpoint.family.name)
    if class_option is not None and not isinstance(options.get(class_option), list | tuple):
        options[class_option] = _class_names(
            checkpoint, head or "", class_option, options.get(class_option), path
        )
    if class_option in stored:
        labels, before = list(options[class_option]), stored[class_option]
        if not isinstance(before, list) or not _same_outputs(before, labels):
            for name in _OF_SCORES - arguments.keys():
                options.pop(name, None)
    new_pooler = _needs_new_pooler(checkpoint, head, overrides)
    if not new_pooler and "pooler" not in overrides:
        checkpoint.without_missing_pooler()
    backbone = checkpoint.backbone(new_pooler=new_pooler)
    if arguments.get("max_length") is None and backbone.max_length and "max_length" in stored:
        options["max_length"] = min(stored["max_length"], backbone.max_length)
    if LANGUAGES in backbone.input and options.get("languages") is None:
        options["languages"] = checkpoint.languages or None
    tokenizer, language_id = tokenizer_and_language(
        checkpoint,
        backbone,
        stored_language if language is None else language,
        options.get("languages"),
    )
    task = cls(backbone, published.tokenizer(tokenizer), language_id=language_id, **options)
    if not _fill_others(task, checkpoint):
        published.fill(task)
    if head is not None:
        _fill_head(task, head, checkpoint, path, new_pooler)
    return task


def _class_names(
    checkpoint: Checkpoint, head: str, option: str, count: Any, path: str | Path
) -> Any:
    """Returns the names of the classes for their number, or for None the stored ones."""
    if not isinstance(count, int | np.integer | None):
        return count
    stored = checkpoint.head_labels(head) if head else None
    if count is not None and (stored is None or len(stored) != count):
        return default_labels(int(count))
    if not head:
        raise ValueError(f"The task needs {option}, the names of its labels.")
    if stored is None:
        raise ValueError(f"{path} has no {head} head; pass {option}.")
    if len(stored) < 2:
        raise ValueError(
            f"The {head} head of {path} has one output, expected one for each label; for a score "
            f"use TextRegressor or Reranker, and for a new head pass {option}."
        )
    return stored


def _needs_new_pooler(
    checkpoint: Checkpoint, head: str | None, overrides: Mapping[str, Any]
) -> bool:
    """Returns whether the head reads a pooler that the checkpoint lacks."""
    if head is None or overrides.get("pooler") is False or not checkpoint.lacks_pooler:
        return False
    return checkpoint.family.heads[head].reads == "pooled_output"


def _fill_others(task: Task, checkpoint: Checkpoint) -> bool:
    """Loads weights beside the backbone and the head from a saved task.

    Returns:
        Whether there are any, and it has them.
    """
    excluded = [*task.backbone.weights, *([] if task.head is None else task.head.weights)]
    labels, stored, last = task.class_names, checkpoint.labels or [], task.layers[-1]
    if labels and not _same_outputs(stored, labels):
        excluded += last.weights
    known = set(map(id, excluded))
    others = [variable for variable in task.weights if id(variable) not in known]
    if not others or not checkpoint.fill_by_path(others):
        return False
    if task.head is None:
        _reorder(last, stored, labels)
    return True


def _fill_head(
    task: Task, head: str, checkpoint: Checkpoint, path: str | Path, new_pooler: bool
) -> None:
    """Loads the head from the checkpoint, if it has one for the same labels."""
    if not checkpoint.has_head(head) and not task.needs_head:
        which = f"{'pooler and the ' if new_pooler else ''}{head} head"
        verb = "are" if new_pooler else "is"
        warn(UntrainedWarning(which, verb, path, type(task).__name__))
        return
    other, stored, labels = None, [], task.class_names
    if task.head.layers and not _reads_same_layers(task, checkpoint):
        other = "reads other layers"
    elif checkpoint.family.heads[head].has_labels:
        stored, count = checkpoint.head_labels(head) or [], task.head.num_labels
        if labels and checkpoint.labels and not _same_outputs(stored, labels):
            other = f"is for the labels {', '.join(stored)}"
        elif len(stored) != count:
            other = f"has {len(stored)} outputs, expected {count}"
    if other is None:
        if checkpoint.outputs and task.problem_type not in (None, checkpoint.outputs):
            raise CheckpointError(
                f"The {head} head of {path} is one for {checkpoint.outputs}, expected one for "
                f"{task.problem_type}, which {type(task).__name__} computes."
            )
        if not task.head.layers or not checkpoint.fill_by_path(task.head.weights):
            checkpoint.fill_head(task.head, head)
        _reorder(task.head.parts[-1], stored, labels)
    else:
        warn(f"The {head} head is initialized at random: the head of {path} {other}.")


def _same_outputs(stored: Sequence[str], labels: Sequence[str]) -> bool:
    """Returns whether the outputs of a head for the stored labels are for these labels, too.

    They may have another order. Transformers' default names stand for the labels in order.
    """
    # Labels that are no strings are an error of the task's constructor.
    same = sorted(map(str, stored)) == sorted(map(str, labels))
    return same or list(stored) == default_labels(len(labels))


def _reorder(layer: keras.layers.Layer, stored: Sequence[str], labels: Sequence[str]) -> None:
    """Moves the outputs of a layer from the order of the stored labels to that of the labels."""
    if labels != stored and set(labels) == set(stored):
        places = {label: place for place, label in enumerate(stored)}
        order = [places[label] for label in labels]
        for variable in layer.weights:
            variable.assign(np.take(variable.numpy(), order, axis=-1))


def _reads_same_layers(task: Task, checkpoint: Checkpoint) -> bool:
    """Returns whether the checkpoint is a saved task whose head reads the same layers."""
    options = task.options.stored()
    layers, combine = map(options.get, ("feature_layers", "combine_layers"))
    saved = checkpoint.options.get("feature_layers"), checkpoint.options.get("combine_layers")
    return saved == (list(layers) if isinstance(layers, tuple) else layers, combine)


def tokenizer_and_language(
    checkpoint: Checkpoint,
    backbone: Backbone,
    language: str | int | None,
    languages: Mapping[str, int] | None = None,
) -> tuple[Tokenizer, int | None]:
    """A checkpoint's tokenizer, and the language's number if the backbone has languages.

    Args:
        checkpoint: the checkpoint.
        backbone: loaded from it.
        language: its code, such as ``"de"``, or its number; None for the tokenizer's, or for
            ``lang_id`` of a checkpoint whose tokenizer has none.
        languages: ids by code; None for the checkpoint's.

    Raises:
        CheckpointError: as ``load_tokenizer`` raises it.
        ValueError: for a language that the checkpoint does not have.
    """
    ids = checkpoint.languages if languages is None else languages
    if isinstance(language, str) and not ids:
        raise ValueError(f"{checkpoint.directory} names no languages to choose {language!r} from.")
    tokenizer = load_tokenizer(checkpoint.directory)
    if language is None:
        if LANGUAGES not in backbone.input:
            return tokenizer, None
        language = tokenizer.get_config().get("language", checkpoint.language_id)
    if isinstance(language, int):
        codes = {number: code for code, number in ids.items()}
        code = codes.get(language)
        return tokenizer if code is None else tokenizer.in_language(code), language
    if language is None:
        expected = f"one of {', '.join(ids)}" if ids else "its number"
        raise ValueError(
            f"{checkpoint.directory} has embeddings of several languages; choose the language of "
            f"the texts, {expected}."
        )
    if language not in ids:
        raise ValueError(unknown("language", language, ids))
    number = ids[language] if LANGUAGES in backbone.input else None
    return tokenizer.in_language(language), number


def checked_labels(labels: Sequence[str] | int) -> list[str]:
    """The labels as a list; of a number of labels, ``LABEL_0``, ``LABEL_1`` and so on.

    Raises:
        ValueError: for fewer than two, a repeated one, or one that is not a string.
    """
    names = list(default_labels(int(labels)) if isinstance(labels, int | np.integer) else labels)
    repeated = [label for label, count in Counter(names).items() if count > 1]
    if len(names) < 2 or repeated or not all(isinstance(label, str) for label in names):
        raise ValueError(f"labels must be at least two distinct strings, got {names!r}.")
    return names

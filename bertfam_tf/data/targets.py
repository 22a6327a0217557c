"""Converts labels in files to tensors, for each kind of task."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bertfam_tf.data.labels import not_listed
from bertfam_tf.names import truncated_repr

# As Python, NumPy and JSON write lists of strings or numbers.
_LIST = re.compile(r"\[\s*(['\"].*|\d[^\[\]]*)?\]", re.DOTALL)
_STRING = tf.TensorSpec([], tf.string)
_INT32 = tf.TensorSpec([], tf.int32)
NO_ANSWER = "no answer"


class Target:
    """Converts labels. ``read`` is called for all rows before ``value`` is called for any.

    Args:
        names: the valid labels, in order; or a dict from labels in the file to names; None
            collects the labels in the file. Numbers take a dict only, and choices and answers none.

    Raises:
        ValueError: for names that the target does not take.

    Attributes:
        what: the word for a label in error messages.
        spec: the label of a row as a tensor, or a dict of tensors.
        column: the usual name of the column in published tables.
    """

    what = "label"
    spec: Any = _STRING
    column = "label"

    def __init__(self, names: Sequence[str] | Mapping[str, str] | None = None):
        self._table = dict(names) if isinstance(names, Mapping) else None
        self._known = None if names is None else list(names)
        self._found: dict[str, None] = {}
        self._normalized: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """The labels in order; labels collected from the file are sorted."""
        if self._table is not None:
            return list(dict.fromkeys(self._table.values()))
        return sorted(self._found) if self._known is None else self._known

    def _named(self, labels: Sequence[str]) -> list[str]:
        """Returns the names of a row's labels, which are only collected if all of them are valid.

        Raises:
            ValueError: if one is not.
        """
        for label in labels:
            _check_encodable(label)
            if self._known is not None:
                if label not in self._known:
                    raise ValueError(not_listed(label, self._known, self.what))
            elif not label or label != label.strip():
                problem = "begins or ends with white space" if label else "is empty"
                raise ValueError(
                    f"The {self.what} {label!r} {problem}; data.labels may give it a name."
                )
            elif not label.isascii():
                self._check_normalized(label)
        if self._known is None:
            self._found.update(dict.fromkeys(labels))
        return list(labels) if self._table is None else [self._table[label] for label in labels]

    def _check_normalized(self, label: str) -> None:
        """Raises ValueError for a label that looks like another one, such as after editing."""
        same = self._normalized.setdefault(unicodedata.normalize("NFC", label), label)
        if same != label:
            raise ValueError(
                f"The {self.what} {label!a} is another spelling of {same!a}, which looks the same "
                "(Unicode's normal forms); data.labels may give both one name."
            )

    def _texts(self, value: Any, separator: str | None, separated: str) -> list[str]:
        """Returns the labels of a row: a list, or a text in which a separator stands between them.

        Raises:
            ValueError: if the text is a list as Python, NumPy or JSON writes it.
        """
        if isinstance(value, list):
            return value
        text = _one(value, self.what).strip()
        if self._known is None and _LIST.fullmatch(text):
            raise ValueError(
                f"{truncated_repr(text)} is a list that was written as text, expected "
                f"{self.what}s {separated}; JSON lines and Parquet files may have lists."
            )
        return text.split(separator)

    def read(self, value: Any, features: Mapping[str, Any]) -> Any:
        """Validates a row's label.

        Raises:
            ValueError: if it is not valid.
        """
        raise NotImplementedError

    def value(self, label: Any) -> Any:
        """Converts the result of ``read`` to values with the ``spec``."""
        return label

    def names_in(self, label: Any) -> list[str]:
        """Returns the names in the result of ``read``, to be counted; none for numbers."""
        return []


class Name(Target):
    """A class name: a string."""

    def read(self, value: Any, features: Mapping[str, Any]) -> bytes:
        [name] = self._named([_one(value, self.what)])
        return name.encode()

    def names_in(self, label: bytes) -> list[str]:
        return [label.decode()]


class Tags(Target):
    """Tags of words, separated by spaces: a string.

    Attributes:
        iob2: whether to convert tags from IOB1, where B- only separates adjacent entities, to IOB2,
            where every entity starts with B-.
    """

    what = "tag"
    iob2 = False

    def read(self, value: Any, features: Mapping[str, Any]) -> bytes:
        tags = self._texts(value, None, "with spaces between them")
        # As the graph splits the text, also at white space outside of ASCII.
        text = features["text"].decode("utf-8", "replace")
        words = text.split()
        if len(tags) != len(words):
            other = next((c for c in text if c.isspace() and c != " "), None)
            reason = "" if other is None else f" Words are separated at {other!a} too."
            raise ValueError(f"{len(tags)} tags for {len(words)} words.{reason}")
        if any(not tag or " " in tag for tag in tags):
            raise ValueError("A tag is empty or has a space in it.")
        if self.iob2:
            tags = _to_iob2(tags)
        named = self._named(tags)
        if self.iob2 and self._table is not None:
            # The file may have numbers, which have prefixes only by name.
            named, known = _to_iob2(named), self.names
            for tag in named:
                if tag not in known:
                    raise ValueError(not_listed(tag, known, self.what))
        return " ".join(named).encode()

    def names_in(self, label: bytes) -> list[str]:
        return label.decode().split()


class Number(Target):
    """A number, as written in the file: a string. ``names`` may only be a dict, to numbers."""

    what = "number"

    def __init__(self, names: Mapping[str, str] | None = None):
        if names is not None and not isinstance(names, Mapping):
            raise ValueError(
                f"data.labels must be null, or a table from labels to numbers, got {names!r}."
            )
        super().__init__(names)

    def read(self, value: Any, features: Mapping[str, Any]) -> bytes:
        text = _one(value, self.what).strip()
        if self._table is not None:
            [text] = self._named([text])
        try:
            finite = math.isfinite(float(text))
        except ValueError:
            finite = False
        # Python accepts 1_000 as a number, TensorFlow does not.
        if not finite or "_" in text or not text.isascii():
            raise ValueError(f"{text!r} is not a number.")
        return text.encode()


class Names(Target):
    """Any number of class names, separated by commas or in a list: int32 (classes,) of 0 and 1."""

    @property
    def spec(self) -> tf.TensorSpec:  # type: ignore[override]
        return tf.TensorSpec([len(self.names)], tf.int32)

    def read(self, value: Any, features: Mapping[str, Any]) -> list[str]:
        names = self._texts(value, ",", "with commas between them")
        if not isinstance(value, list):
            names = [name.strip() for name in names if name.strip()]
        return list(dict.fromkeys(self._named(names)))

    def names_in(self, label: list[str]) -> list[str]:
        return label

    def value(self, label: list[str]) -> list[int]:
        return [int(name in label) for name in self.names]


class Choice(Target):
    """The index of the correct choice, int32. Files have an index from 0, or a letter."""

    what = "choice"
    spec = _INT32

    def __init__(self, names: None = None):
        _check_no_names(names, "indices or letters of choices")
        super().__init__()

    def read(self, value: Any, features: Mapping[str, Any]) -> int:
        text = _one(value, self.what).strip()
        if len(text) == 1 and "A" <= text.upper() <= "Z":
            index = ord(text.upper()) - ord("A")
        elif text.isascii() and text.isdigit():
            index = int(text)
        else:
            raise ValueError(f"{text!r} is not the number or letter of a choice.")
        if index >= len(features["choices"]):
            raise ValueError(f"{text!r} is beyond the {len(features['choices'])} choices.")
        return index

    def names_in(self, label: int) -> list[str]:
        return [str(label)]


class Answers(Target):
    """Answer spans: ``answer`` string and ``answer_start`` int32, in characters.

    Questions without an answer have "" and -1. ``answers`` has all gold answers, padded with "" to
    the maximum number of answers in any row. Files have a list of (text, start).
    """

    what = "answer"
    column = "answers"

    def __init__(self, names: None = None):
        _check_no_names(names, "answers")
        super().__init__()
        self._most = 1
        # Hundreds of questions may have the same context, one after the other.
        self._context = (b"", "")

    @property
    def spec(self) -> dict[str, tf.TensorSpec]:  # type: ignore[override]
        answers = tf.TensorSpec([self._most], tf.string)
        return {"answer": _STRING, "answer_start": _INT32, "answers": answers}

    def read(self, value: Any, features: Mapping[str, Any]) -> list[tuple[str, int]]:
        value = pairs_of(value)
        if self._context[0] != features["context"]:
            encoded = features["context"]
            self._context = (encoded, encoded.decode("utf-8", "replace"))
        context = self._context[1]
        for text, start in value:
            if not isinstance(text, str) or not isinstance(start, int):
                raise ValueError(
                    f"An answer must be a string and an integer, got {text!r} and {start!r}."
                )
            if start < 0 or context[start : start + len(text)] != text:
                raise ValueError(f"The answer {text!r} is not at character {start}.")
        # An empty answer, which matches anywhere, means no answer.
        answers = [(text, start) for text, start in value if text]
        self._most = max(self._most, len(answers))
        return answers

    def names_in(self, label: list[tuple[str, int]]) -> list[str]:
        return ["answer" if label else NO_ANSWER]

    def value(self, label: list[tuple[str, int]]) -> dict[str, Any]:
        text, start = label[0] if label else ("", -1)
        answers = [answer.encode() for answer, _ in label]
        padding = [b""] * (self._most - len(answers))
        return {
            "answer": text.encode(),
            "answer_start": start,
            "answers": answers + padding,
        }


def pairs_of(answers: Any) -> list[tuple[Any, Any]]:
    """Returns the answers of a question as pairs of a text and its start.

    Args:
        answers: a list of such pairs; or as SQuAD has them, in JSON ``[{"text": …, "answer_start":
            …}]`` and in tables ``{"text": […], "answer_start": […]}``.

    Raises:
        ValueError: for another structure.
    """
    if isinstance(answers, Mapping) and {"text", "answer_start"} <= answers.keys():
        texts, starts = answers["text"], answers["answer_start"]
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        if len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    elif isinstance(answers, list):
        try:
            return [
                (answer["text"], answer["answer_start"])
                if isinstance(answer, Mapping)
                else (answer[0], answer[1])
                for answer in answers
            ]
        except (KeyError, IndexError, TypeError):
            pass
    raise ValueError("There is no list of answers.")


def _check_no_names(names: Any, labels: str) -> None:
    if names is not None:
        raise ValueError(f"data.labels must be null if labels are {labels}, got {names!r}.")


def _to_iob2(tags: Sequence[str]) -> list[str]:
    converted, before = [], "O"
    for tag in tags:
        kind = tag[2:]
        begins = tag.startswith("I-") and (before == "O" or before[2:] != kind)
        converted.append(f"B-{kind}" if begins else tag)
        before = tag
    return converted


def _check_encodable(name: str) -> None:
    """Raises ValueError if the name is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} is not UTF-8.") from None


def _one(label: Any, what: str) -> str:
    if isinstance(label, str):
        return label
    raise ValueError(f"There is no {what}." if label is None else f"{label!r} is not one {what}.")

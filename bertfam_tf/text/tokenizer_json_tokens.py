"""The added tokens and the post-processor of a ``tokenizer.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.files import section, token_text
from bertfam_tf.text.special_tokens import (
    ROLES,
    TEXTS,
    TOKEN_LISTS,
    Layout,
    SpecialTokens,
    token_settings,
)

PROCESSORS: dict[str, dict[str, Any]] = {
    "BertProcessing": dict(sep=None, cls=None),
    "ByteLevel": dict(add_prefix_space=True, trim_offsets=True, use_regex=True),
    "RobertaProcessing": dict(sep=None, cls=None, trim_offsets=True, add_prefix_space=True),
    "TemplateProcessing": dict(single=(), pair=(), special_tokens={}),
}
# Preferred roles of a token with several roles, and roles for tokens without one.
_PREFERRED = ("cls", "sep", "bos", "eos", "mask", "pad", "unk")
_FREE = {False: ("cls", "bos"), True: ("sep", "eos")}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a part: its type, and all its options."""

    kind: str | None
    options: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.options[name]


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of a template: one of ``TEXTS`` or a special token, and its segment."""

    name: str
    is_text: bool
    segment: int


@dataclasses.dataclass(frozen=True)
class AddedTokens:
    """The added tokens of a file, and the templates of its post-processor.

    Other files define the roles of tokens, so ``completed`` is called after they were read.

    Args:
        path: the file.
        lists: the fields ``TOKEN_LISTS`` of ``SpecialTokens``.
        unk_token: the model's unknown piece, or None.
        pad_token: the token of the file's padding, or None.
        single, pair: the templates.
    """

    path: Path
    lists: Mapping[str, tuple[str, ...]]
    unk_token: str | None
    pad_token: str | None
    single: tuple[Entry, ...]
    pair: tuple[Entry, ...]

    def completed(
        self,
        arguments: Mapping[str, Any],
        stated: Mapping[str, Any],
        default: SpecialTokens,
        pad_left: bool | None,
    ) -> dict[str, Any]:
        """Returns a tokenizer's arguments with the roles and positions of special tokens.

        Args:
            arguments: the arguments by name, special tokens as separate fields.
            stated: the arguments that take precedence over the file.
            default: the special tokens of the class.
            pad_left: whether padding is on the left; None if no file says so.

        Raises:
            ValueError: if a token of the post-processor is not among the added tokens, or has no
                role.
        """
        result = dict(arguments)
        in_text = {*self.lists["additional_special_tokens"], *self.lists["added_tokens"]}
        for role in ROLES:
            name = f"{role}_token"
            token = result.get(name, default.of(role))
            # The library does not look for other tokens in text.
            result[name] = token if name in stated or token in in_text else None
        if self.unk_token is not None:
            result["unk_token"] = self.unk_token
        if self.pad_token in in_text and result["pad_token"] is None:
            result["pad_token"] = self.pad_token
        for name in TOKEN_LISTS:
            known = (*stated.get(name, ()), *self.lists[name])
            result[name] = tuple(dict.fromkeys(known))
        if "layout" not in stated:
            result["layout"] = self._layout(result, pad_left)
        roles = {result[f"{role}_token"] for role in ROLES}
        others = (token for token in result["additional_special_tokens"] if token not in roles)
        return result | {"additional_special_tokens": tuple(others)}

    def _layout(self, arguments: dict[str, Any], pad_left: bool | None) -> Layout:
        """Returns the templates as a layout, after naming their tokens in ``arguments``."""
        before = arguments.get("layout") or Layout()
        if isinstance(before, dict):
            before = Layout(**before)
        try:
            return Layout(
                self._roles(self.single, arguments),
                self._roles(self.pair, arguments),
                tuple(entry.segment for entry in self.single),
                tuple(entry.segment for entry in self.pair),
                pad_left=before.pad_left if pad_left is None else pad_left,
                pad_segment=before.pad_segment,
            )
        except ValueError as error:
            raise ValueError(f"{self.path}: the post-processor: {error}") from error

    def _roles(self, entries: Iterable[Entry], arguments: dict[str, Any]) -> tuple[str, ...]:
        result, after = [], False
        for entry in entries:
            if entry.is_text:
                after = True
                result.append(entry.name)
                continue
            role = next((r for r in _PREFERRED if arguments[f"{r}_token"] == entry.name), None)
            if role is None:
                role = next((r for r in _FREE[after] if arguments[f"{r}_token"] is None), None)
                if role is None or entry.name not in self.lists["additional_special_tokens"]:
                    raise ValueError(
                        f"{self.path}: the post-processor adds {truncated_repr(entry.name)}, "
                        "expected a special token with a role in tokenizer_config.json."
                    )
                arguments[f"{role}_token"] = entry.name
            result.append(role)
        return tuple(result)


def added_section(
    special: SpecialTokens, ids: Mapping[str, int], normalized: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Returns the list of added tokens that a file has.

    Args:
        special: the special tokens; those that are not in the vocabulary are left out.
        ids: the ids of the vocabulary.
        normalized: further tokens that are looked for in normalized text.
    """
    later = {*special.normalized_tokens, *normalized}
    names = {name for name in (*special, *special.added_tokens) if name in ids}
    return [
        {
            "id": ids[name],
            **token_settings(name, special.lstrip_tokens),
            "normalized": name in later,
            "special": name not in special.added_tokens,
        }
        for name in sorted(names, key=ids.__getitem__)
    ]


def joined_names(kinds: list[str | None]) -> Any:
    return (kinds or [None])[0] if len(kinds) < 2 else kinds


def added_list(content: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError(
            f"{path}: added_tokens is {truncated_repr(added)}, expected a list of objects."
        )
    return added


def added_tokens(
    content: dict[str, Any],
    model: Step,
    pieces: list[str],
    processors: tuple[Step, ...],
    path: Path,
) -> AddedTokens:
    lists: dict[str, list[str]] = {name: [] for name in TOKEN_LISTS}
    for token in added_list(content, path):
        text = token_text(token, path)
        for setting in ("single_word", "rstrip"):
            if token.get(setting):
                raise ValueError(
                    f"{path}: added token {text!r} with {setting}, expected one without."
                )
        special = token.get("special")
        lists["additional_special_tokens" if special else "added_tokens"].append(text)
        for setting, name in (("lstrip", "lstrip_tokens"), ("normalized", "normalized_tokens")):
            if token.get(setting):
                lists[name].append(text)
    unk = model.options.get("unk_token")
    if model.kind == "Unigram" and type(model["unk_id"]) is int:
        unk = pieces[model["unk_id"]] if 0 <= model["unk_id"] < len(pieces) else None
    listed = {*lists["additional_special_tokens"], *lists["added_tokens"]}
    if unk is not None and unk not in listed:
        raise ValueError(
            f"{path}: the unknown piece {truncated_repr(unk)} is not one of the added tokens, "
            "expected it among them."
        )
    single, pair = _templates(processors, pieces, path)
    return AddedTokens(
        path,
        {name: tuple(tokens) for name, tokens in lists.items()},
        unk,
        section(content, "padding", path).get("pad_token"),
        single,
        pair,
    )


def _templates(
    processors: tuple[Step, ...], pieces: list[str], path: Path
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Returns the templates of single texts and of pairs."""
    adding = [step for step in processors if step.kind != "ByteLevel"]
    if not adding:
        texts = (Entry("a", True, 0), Entry("b", True, 1))
        return texts[:1], texts
    step = adding[0]
    if len(adding) > 1 or step.kind not in PROCESSORS:
        kinds = joined_names([s.kind for s in processors])
        raise ValueError(
            f"{path}: the post-processor is {truncated_repr(kinds)},"
            f" expected one of {', '.join(PROCESSORS)}."
        )
    if step.kind == "TemplateProcessing":
        single, pair = (_template(step, name, pieces, path) for name in ("single", "pair"))
        return single, pair
    cls, sep = (_special(step, name, pieces, path) for name in ("cls", "sep"))
    roberta = step.kind == "RobertaProcessing"
    middle, second = ([sep, sep], 0) if roberta else ([sep], 1)
    a, b = (Entry(text, True, segment) for text, segment in zip(TEXTS, (0, second), strict=True))
    entries = [Entry(token, False, 0) for token in (cls, *middle)]
    return (
        (entries[0], a, Entry(sep, False, 0)),
        (entries[0], a, *entries[1:], b, Entry(sep, False, second)),
    )


def _special(step: Step, name: str, pieces: list[str], path: Path) -> str:
    value = step[name]
    if (
        not isinstance(value, list)
        or len(value) != 2
        or type(value[1]) is not int
        or not 0 <= value[1] < len(pieces)
        or pieces[value[1]] != value[0]
    ):
        raise ValueError(
            f"{path}: {name} of {step.kind} is {truncated_repr(value)}, expected a piece and its "
            "id."
        )
    return pieces[value[1]]


def _template(step: Step, name: str, pieces: list[str], path: Path) -> tuple[Entry, ...]:
    tokens = step["special_tokens"]
    result = []
    entries: list[Any] = step[name] if isinstance(step[name], list) else [None]
    for entry in entries:
        try:
            ((kind, value),) = entry.items()
            segment = value["type_id"]
            if kind == "Sequence":
                parsed = Entry({"A": "a", "B": "b"}[value["id"]], True, segment)
            else:
                (index,) = {"SpecialToken": tokens}[kind][value["id"]]["ids"]
                if type(index) is not int or index < 0:
                    raise ValueError
                parsed = Entry(pieces[index], False, segment)
            if type(segment) is not int or segment < 0:
                raise ValueError
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: entry {truncated_repr(entry)} of the post-processor's {name}, expected a "
                "text or one special token, and its segment."
            ) from error
        result.append(parsed)
    return tuple(result)

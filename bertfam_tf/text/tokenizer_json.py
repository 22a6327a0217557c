"""Reads Hugging Face's ``tokenizer.json``: normalizer, pre-tokenizer, model, post-processor.

Each part is read once, into plain values; a tokenizer takes those that it computes exactly and
refuses the others by name.  The reference is the library ``tokenizers``, which runs such a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from bertfam_tf.names import truncated_repr
from bertfam_tf.text.files import in_order, read_json, section, token_text
from bertfam_tf.text.special_tokens import ROLES, TEXTS, TOKEN_LISTS, Layout, SpecialTokens

# Defaults of the options of each step; a file with any other option is refused.
_NORMALIZERS: dict[str, dict[str, Any]] = {
    "BertNormalizer": dict(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    ),
    "Lowercase": {},
    "NFC": {},
    "NFD": {},
    "NFKC": {},
    "NFKD": {},
    "Precompiled": dict(precompiled_charsmap=""),
    "Replace": dict(pattern=None, content=""),
    "Strip": dict(strip_left=True, strip_right=True),
    "StripAccents": {},
}
_SPLITTERS: dict[str, dict[str, Any]] = {
    "BertPreTokenizer": {},
    "ByteLevel": dict(add_prefix_space=True, trim_offsets=True, use_regex=True),
    "Metaspace": dict(
        replacement="▁", add_prefix_space=None, prepend_scheme=None, split=True, str_rep="▁"
    ),
    "WhitespaceSplit": {},
}
_MODELS: dict[str, dict[str, Any]] = {
    "WordPiece": dict(
        unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100
    ),
    "BPE": dict(
        dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
        fuse_unk=False, byte_fallback=False, ignore_merges=False, merges=None,
    ),
    "Unigram": dict(unk_id=None, byte_fallback=False),
    "WordLevel": dict(unk_token="<unk>"),
}  # fmt: skip
_PROCESSORS: dict[str, dict[str, Any]] = {
    "BertProcessing": dict(sep=None, cls=None),
    "ByteLevel": dict(add_prefix_space=True, trim_offsets=True, use_regex=True),
    "RobertaProcessing": dict(sep=None, cls=None, trim_offsets=True, add_prefix_space=True),
    "TemplateProcessing": dict(single=(), pair=(), special_tokens={}),
}
# Which role a token of a template has if it has several, and those for tokens without one.
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
    """An entry of a template: one of `TEXTS` or a special token, and its segment."""

    name: str
    is_text: bool
    segment: int


@dataclasses.dataclass(frozen=True)
class AddedTokens:
    """The file's added tokens, and where its post-processor puts them.

    Which token has which role is in other files, so `completed` is called after these were read.

    Args:
        path: the file.
        lists: the fields `TOKEN_LISTS` of `SpecialTokens`.
        unk_token: the model's unknown piece, or None.
        pad_token: that of the file's padding, or None.
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
            stated: those that take precedence over the file.
            default: the special tokens of the class.
            pad_left: whether padding is on the left; None if no file says so.

        Raises:
            ValueError: a token of the post-processor is not among the added tokens, or has no role.
        """
        result = dict(arguments)
        found = {*self.lists["additional_special_tokens"], *self.lists["added_tokens"]}
        for role in ROLES:
            name = f"{role}_token"
            token = result.get(name, default.of(role))
            # The library does not look for other tokens in text.
            result[name] = token if name in stated or token in found else None
        if self.unk_token is not None:
            result["unk_token"] = self.unk_token
        if self.pad_token in found and result["pad_token"] is None:
            result["pad_token"] = self.pad_token
        for name in TOKEN_LISTS:
            known = (*stated.get(name, ()), *self.lists[name])
            result[name] = tuple(dict.fromkeys(known))
        if "layout" not in stated:
            result["layout"] = self._layout(result, pad_left)
        roles = {result[f"{role}_token"] for role in ROLES}
        others = (each for each in result["additional_special_tokens"] if each not in roles)
        return result | {"additional_special_tokens": tuple(others)}

    def _layout(self, arguments: dict[str, Any], pad_left: bool | None) -> Layout:
        """Returns the templates as a layout, after naming their tokens in `arguments`."""
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
                        "expected a special token with a role in tokenizer_config.json"
                    )
                arguments[f"{role}_token"] = entry.name
            result.append(role)
        return tuple(result)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The parts of a ``tokenizer.json``.

    Args:
        path: the file.
        normalizers, splitters, processors: the steps of the normalizer, the pre-tokenizer and the
            post-processor, in order.
        model: the type and the options of the model.
        pieces: the vocabulary in the order of the ids, added tokens included.
        scores: the scores of a unigram model's pieces, without added tokens beyond its end; None
            for other models.
        added: the added tokens.
    """

    path: Path
    normalizers: tuple[Step, ...]
    splitters: tuple[Step, ...]
    processors: tuple[Step, ...]
    model: Step
    pieces: list[str]
    scores: list[float] | None
    added: AddedTokens

    def refuse(self, what: str, found: Any, expected: Any) -> NoReturn:
        """Raises ValueError for a part that a tokenizer does not compute."""
        raise ValueError(f"{self.path}: the {what} is {truncated_repr(found)}, expected {expected}")

    def expect(self, what: str, found: Any, *expected: Any) -> Any:
        """Returns what was found, or raises ValueError if it is none of the expected values."""
        if found not in expected:
            self.refuse(what, found, " or ".join(map(repr, expected)))
        return found

    def splitter(self, kind: str) -> Step:
        """Returns the only step of the pre-tokenizer, or raises ValueError if it is another."""
        kinds = [step.kind for step in self.splitters]
        if kinds != [kind]:
            self.refuse("pre-tokenizer", _names(kinds), repr(kind))
        return self.splitters[0]

    def bert_rules(self) -> dict[str, bool]:
        """Returns the options of the one BertNormalizer that equals the normalizer.

        Lower-casing before or after it gives the same text as its own, for every character; without
        it, all options are off.

        Raises:
            ValueError: there is no such normalizer.
        """
        kinds = [step.kind for step in self.normalizers]
        if [kind for kind in kinds if kind != "Lowercase"] not in ([], ["BertNormalizer"]):
            self.refuse("normalizer", _names(kinds), "'BertNormalizer', 'Lowercase' or both")
        if "BertNormalizer" not in kinds:
            names = ("strip_accents", "split_chinese", "clean_text")
            return {"lower_case": bool(kinds), **dict.fromkeys(names, False)}
        step = self.normalizers[kinds.index("BertNormalizer")]
        accents = step["strip_accents"]
        return {
            "lower_case": step["lowercase"] or len(kinds) > 1,
            "strip_accents": step["lowercase"] if accents is None else accents,
            "split_chinese": step["handle_chinese_chars"],
            "clean_text": step["clean_text"],
        }

    def without_normalized_tokens(self) -> None:
        """Raises ValueError if the normalizer changes text before added tokens are looked for."""
        later = self.added.lists["normalized_tokens"]
        if later and self.normalizers:
            self.refuse("text in which an added token is found", later[0], "text as it is given")

    def merges(self) -> list[tuple[str, str]]:
        """Returns the pairs of a BPE model, best first, or raises ValueError."""
        merges = self.model["merges"]
        if not isinstance(merges, list):
            self.refuse("list of merges", merges, "a list")
        pairs = []
        for number, pair in enumerate(merges):
            parts = pair.split(" ") if isinstance(pair, str) else pair
            if (
                not isinstance(parts, list)
                or len(parts) != 2
                or not all(isinstance(part, str) and part for part in parts)
            ):
                self.refuse(f"merge {number}", pair, "two symbols")
            pairs.append((parts[0], parts[1]))
        return pairs

    def arguments(self) -> dict[str, Any]:
        """Returns what the file says about any tokenizer: its vocabulary and added tokens."""
        return {"vocabulary": self.pieces, "added": self.added}


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
            "content": name,
            "single_word": False,
            "lstrip": name in special.lstrip_tokens,
            "rstrip": False,
            "normalized": name in later,
            "special": name not in special.added_tokens,
        }
        for name in sorted(names, key=ids.__getitem__)
    ]


def read(path: Path, kind: str) -> Pipeline:
    """Reads a file.

    Args:
        path: the file.
        kind: the type that its model has to have.

    Raises:
        ValueError: the file is damaged, of another model, or has an option that is not known here.
    """
    content = read_json(path)
    model = _model(section(content, "model", path), kind, path)
    pieces, scores = _vocabulary(content, model.kind, path)
    processors = _steps(content, "post_processor", "processors", _PROCESSORS, path)
    return Pipeline(
        path,
        _steps(content, "normalizer", "normalizers", _NORMALIZERS, path),
        _steps(content, "pre_tokenizer", "pretokenizers", _SPLITTERS, path),
        processors,
        model,
        pieces,
        scores,
        _added_tokens(content, model, pieces, processors, path),
    )


def kind_of(path: Path) -> str:
    """Returns the kind of tokenizer that a file describes, as in `registry.TokenizerSpec`.

    Raises:
        ValueError: the file is damaged, or of no such kind.
    """
    content = read_json(path)
    model = section(content, "model", path)
    kind = _model_kind(model)
    kinds = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    if kind == "BPE" and model.get("end_of_word_suffix"):
        return "bpe"
    if kind == "BPE" and "ByteLevel" in str(content.get("pre_tokenizer")):
        return "byte_bpe"
    raise ValueError(
        f"{path}: the model is {truncated_repr(kind)}, expected {', '.join(kinds)}, or BPE that is "
        "byte-level or marks the ends of words"
    )


# Parts.


def _names(kinds: list[str | None]) -> Any:
    return (kinds or [None])[0] if len(kinds) < 2 else kinds


def _model_kind(model: Mapping[str, Any]) -> Any:
    # Files of early versions have no type; only WordPiece has the prefix.
    implied = "WordPiece" if "continuing_subword_prefix" in model else None
    kind = model.get("type")
    return implied if kind is None else kind


def _model(model: Mapping[str, Any], kind: str, path: Path) -> Step:
    found = _model_kind(model)
    if found != kind:
        raise ValueError(f"{path}: the model is {truncated_repr(found)}, expected {kind!r}")
    known = {kind: {**_MODELS[kind], "vocab": None}}
    return _step({**model, "type": kind}, "model", known, path)


def _steps(
    content: dict[str, Any], name: str, inner: str, known: Mapping[str, Any], path: Path
) -> tuple[Step, ...]:
    """Returns the steps of a part, those of sequences included."""
    whole = section(content, name, path)
    if not whole:
        return ()
    if whole.get("type") != "Sequence":
        return (_step(whole, name, known, path),)
    steps = whole.get(inner)
    if not isinstance(steps, list):
        raise ValueError(f"{path}: {inner} of {name} is {truncated_repr(steps)}, expected a list")
    return tuple(each for step in steps for each in _steps({name: step}, name, inner, known, path))


def _step(whole: Mapping[str, Any], part: str, known: Mapping[str, Any], path: Path) -> Step:
    """Returns a step with all its options; one of an unknown type has none."""
    kind = whole.get("type")
    defaults = known.get(kind) if isinstance(kind, str) else None
    if defaults is None:
        return Step(str(kind), {})
    given = {name: value for name, value in whole.items() if name != "type"}
    strange = [name for name in given if name not in defaults]
    if strange:
        raise ValueError(
            f"{path}: {kind} of {part} has the option {truncated_repr(strange[0])}, expected "
            f"{', '.join(defaults) or 'none'}"
        )
    options = {**defaults, **given}
    for name, value in options.items():
        default = defaults[name]
        wrong = isinstance(default, bool) and not isinstance(value, bool)
        wrong |= isinstance(default, str) and not isinstance(value, str)
        wrong |= type(default) is int and type(value) is not int
        if name == "strip_accents":
            wrong = not isinstance(value, bool | None)
        if wrong:
            raise ValueError(
                f"{path}: {name} of {kind} is {truncated_repr(value)}, expected one like {default}"
            )
    return Step(kind, options)


def _vocabulary(
    content: dict[str, Any], kind: str | None, path: Path
) -> tuple[list[str], list[float] | None]:
    """Returns the pieces in the order of their ids, added tokens included, and their scores."""
    model = section(content, "model", path)
    scores = None
    ids: dict[str, Any]
    if kind == "Unigram":
        rows = model.get("vocab")
        if not isinstance(rows, list) or not all(map(_is_scored, rows)):
            raise ValueError(
                f"{path}: vocab is {truncated_repr(rows)}, expected pieces and their scores"
            )
        ids = {piece: index for index, (piece, _) in enumerate(rows)}
        scores = [float(score) for _, score in rows]
        if len(ids) != len(rows):
            raise ValueError(f"{path}: vocab repeats a piece, expected each piece once")
    else:
        ids = dict(section(model, "vocab", path))
    for token in _added(content, path):
        text, number = token_text(token, path), token.get("id")
        if ids.setdefault(text, number) != number:
            raise ValueError(
                f"{path}: {text!r} has the ids {truncated_repr(ids[text])} and "
                f"{truncated_repr(number)}"
            )
    return in_order(ids, path), scores


def _is_scored(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], int | float)
        and not isinstance(row[1], bool)
        and abs(row[1]) < float("inf")
    )


def _added(content: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError(
            f"{path}: added_tokens is {truncated_repr(added)}, expected a list of objects"
        )
    return added


def _added_tokens(
    content: dict[str, Any],
    model: Step,
    pieces: list[str],
    processors: tuple[Step, ...],
    path: Path,
) -> AddedTokens:
    lists: dict[str, list[str]] = {name: [] for name in TOKEN_LISTS}
    for token in _added(content, path):
        text = token_text(token, path)
        for setting in ("single_word", "rstrip"):
            if token.get(setting):
                raise ValueError(
                    f"{path}: added token {text!r} with {setting}, expected one without"
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
            "expected it among them"
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


# Templates.


def _templates(
    processors: tuple[Step, ...], pieces: list[str], path: Path
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Returns the template of single texts and that of pairs."""
    adding = [step for step in processors if step.kind != "ByteLevel"]
    if not adding:
        texts = (Entry("a", True, 0), Entry("b", True, 1))
        return texts[:1], texts
    step = adding[0]
    if len(adding) > 1 or step.kind not in _PROCESSORS:
        raise ValueError(
            f"{path}: the post-processor is {truncated_repr(_names([s.kind for s in processors]))},"
            f" expected one of {', '.join(_PROCESSORS)}"
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
            f"{path}: {name} of {step.kind} is {truncated_repr(value)}, expected a piece and its id"
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
                found = Entry({"A": "a", "B": "b"}[value["id"]], True, segment)
            else:
                (index,) = {"SpecialToken": tokens}[kind][value["id"]]["ids"]
                if type(index) is not int or index < 0:
                    raise ValueError
                found = Entry(pieces[index], False, segment)
            if type(segment) is not int or segment < 0:
                raise ValueError
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: entry {truncated_repr(entry)} of the post-processor's {name}, expected a "
                "text or one special token, and its segment"
            ) from error
        result.append(found)
    return tuple(result)

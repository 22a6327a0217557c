"""The roles of special tokens, and their positions in packed texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from bertfam_tf.names import truncated_repr

# The roles of special tokens; each has a field ``<role>_token`` in ``SpecialTokens``.
ROLES = ("unk", "cls", "sep", "pad", "mask", "bos", "eos")
TEXTS = ("a", "b")
# The fields of ``SpecialTokens`` with several tokens.
TOKEN_LISTS = ("additional_special_tokens", "lstrip_tokens", "added_tokens", "normalized_tokens")


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """A tokenizer's special tokens, and how they are recognized in text.

    Attributes:
        unk_token: the piece for unknown words or characters.
        cls_token: the first piece of a sequence, whose output represents it.
        sep_token: the piece that ends a segment.
        pad_token: the piece for padding.
        mask_token: the piece for masked words.
        bos_token: the piece that begins a text.
        eos_token: the piece that ends a text.
        additional_special_tokens: further special pieces of the vocabulary.
        lstrip_tokens: special tokens that absorb the white space before them.
        special_tokens_in_text: whether a special token that occurs in a text, such as "[MASK]", is
            converted to its id, as in Hugging Face's tokenizers. Use False for untrusted texts,
            which could otherwise contain a [SEP]; it is then tokenized like any other text.
        added_tokens: other pieces that are found in a text before it is split, such as a run of
            spaces; they are not special.
        normalized_tokens: the tokens, of all kinds, that are looked for in the normalized text.
    """

    unk_token: str | None = None
    cls_token: str | None = None
    sep_token: str | None = None
    pad_token: str | None = None
    mask_token: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    additional_special_tokens: tuple[str, ...] = ()
    lstrip_tokens: tuple[str, ...] = ()
    special_tokens_in_text: bool = True
    added_tokens: tuple[str, ...] = ()
    normalized_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in TOKEN_LISTS:
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def of(self, role: str) -> str | None:
        """Returns the token with a role, one of ``ROLES``, or None."""
        return getattr(self, f"{role}_token")

    def __iter__(self) -> Iterator[str]:
        """Yields each special token once: tokens with roles, then additional ones."""
        tokens = [*map(self.of, ROLES), *self.additional_special_tokens]
        yield from (token for token in dict.fromkeys(tokens) if token is not None)


NO_SPECIAL_TOKENS = SpecialTokens()
SPECIAL_TOKEN_FIELDS = frozenset(field.name for field in dataclasses.fields(SpecialTokens))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of special tokens in single texts and in pairs.

    Args:
        single: the roles of the special tokens (``"cls"``, ``"sep"``, ``"bos"``, …) and the text
            ``"a"``, in order.
        pair: the same for the two texts ``"a"`` and ``"b"``.
        single_segments: the segment id of each entry of ``single``.
        pair_segments: the segment id of each entry of ``pair``.
        pad_left: whether padding is on the left instead of on the right.
        pad_segment: the segment id of padding.
        truncate_left: whether texts that are too long lose their beginnings instead of their ends.

    Raises:
        ValueError: if an entry is neither a role nor a text; a text is missing, repeated or out of
            order; the number of segment ids is not the number of entries; or a segment id is not
            an integer from 0 to 2**31 - 1.
    """

    single: tuple[str, ...] = ("cls", "a", "sep")
    pair: tuple[str, ...] = ("cls", "a", "sep", "b", "sep")
    single_segments: tuple[int, ...] = (0, 0, 0)
    pair_segments: tuple[int, ...] = (0, 0, 0, 1, 1)
    pad_left: bool = False
    pad_segment: int = 0
    truncate_left: bool = False

    def __post_init__(self) -> None:
        # Lists, from a JSON file, would not compare equal to tuples.
        for name in ("single", "pair", "single_segments", "pair_segments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, count in (("single", 1), ("pair", 2)):
            entries, segments = getattr(self, name), getattr(self, f"{name}_segments")
            unknown = [entry for entry in entries if entry not in ROLES + TEXTS]
            if unknown:
                raise ValueError(
                    f"entries of layout.{name} must be 'a', 'b' or one of the roles "
                    f"{', '.join(ROLES)}, got {truncated_repr(unknown[0])}."
                )
            texts = tuple(entry for entry in entries if entry in TEXTS)
            if texts != TEXTS[:count]:
                expected = " and then ".join(map(repr, TEXTS[:count]))
                raise ValueError(
                    f"layout.{name} must contain {expected} once, got {truncated_repr(entries)}."
                )
            if len(segments) != len(entries):
                raise ValueError(
                    f"layout.{name}_segments must have {len(entries)} entries like layout.{name}, "
                    f"got {len(segments)}."
                )
            for segment in segments:
                _check_segment(f"layout.{name}_segments", segment)
        _check_segment("layout.pad_segment", self.pad_segment)
        for name in ("pad_left", "truncate_left"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(
                    f"layout.{name} must be True or False, got {truncated_repr(value)}."
                )

    def entries(self, texts: int) -> tuple[tuple[str, int], ...]:
        """Returns ``(role or text, segment id)`` of each entry, for one or two texts."""
        if texts == 1:
            return tuple(zip(self.single, self.single_segments, strict=True))
        return tuple(zip(self.pair, self.pair_segments, strict=True))

    def special_count(self, texts: int) -> int:
        """Returns the number of special tokens for one or two texts."""
        return len(self.entries(texts)) - texts


def _check_segment(name: str, segment: Any) -> None:
    if type(segment) is not int or not 0 <= segment < 2**31:
        raise ValueError(
            f"{name} must be integers from 0 to 2**31 - 1, got {truncated_repr(segment)}."
        )


CLS_A_SEP = Layout()
CLS_A_SEP_SEP = Layout(
    pair=("cls", "a", "sep", "sep", "b", "sep"), pair_segments=(0, 0, 0, 0, 0, 0)
)
A_THEN_B = Layout(("a",), ("a", "b"), (0,), (0, 0))


def flat(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer's arguments with the fields of ``special_tokens`` in its place."""
    rest = dict(arguments)
    special = rest.pop("special_tokens", None)
    return rest if special is None else {**dataclasses.asdict(special), **rest}


def grouped(arguments: dict[str, Any], default: SpecialTokens) -> dict[str, Any]:
    """Returns a tokenizer's arguments with the fields of special tokens as one ``SpecialTokens``.

    Args:
        arguments: the arguments by name; special tokens as fields or as one object, the layout as
            an object or a dict.
        default: provides the fields that are not among the arguments.
    """
    values = flat(arguments)
    rest = {name: value for name, value in values.items() if name not in SPECIAL_TOKEN_FIELDS}
    fields = {name: values[name] for name in values.keys() - rest.keys()}
    rest["special_tokens"] = dataclasses.replace(default, **fields)
    if isinstance(rest.get("layout"), dict):
        rest["layout"] = Layout(**rest["layout"])
    return rest


def token_entry(token: str, lstrip_tokens: Collection[str]) -> Any:
    """Returns a special token as transformers stores it: an object if it has settings."""
    if token not in lstrip_tokens:
        return token
    return {"__type": "AddedToken", **token_settings(token, lstrip_tokens), "special": True}


def token_settings(token: str, lstrip_tokens: Collection[str]) -> dict[str, Any]:
    """Returns the settings of an added token, as ``tokenizers`` and transformers name them."""
    return {
        "content": token,
        "single_word": False,
        "lstrip": token in lstrip_tokens,
        "rstrip": False,
        "normalized": False,
    }


def special_config(special: SpecialTokens, layout: Layout) -> dict[str, Any]:
    """Returns the entries of ``tokenizer_config.json`` for special tokens and their layout."""

    def stored(token: str) -> Any:
        return token_entry(token, special.lstrip_tokens)

    tokens = {f"{role}_token": special.of(role) for role in ROLES}
    return {
        # With null, transformers does not take the usual token of its class either.
        **{name: token and stored(token) for name, token in tokens.items()},
        "additional_special_tokens": list(map(stored, special.additional_special_tokens)),
        **{
            name: list(map(stored, tokens))
            for name in ("added_tokens", "normalized_tokens")
            if (tokens := getattr(special, name))
        },
        "split_special_tokens": not special.special_tokens_in_text,
        "layout": dataclasses.asdict(layout),
    }

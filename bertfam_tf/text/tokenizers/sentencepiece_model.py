"""Builds kernels that tokenize like a SentencePiece model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow_text as tf_text
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as model_pb

from bertfam_tf.text.kernels import charsmap
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.charsmap import Rules
from bertfam_tf.text.kernels.internals import fast_sentencepiece
from bertfam_tf.text.kernels.unicode import CODEPOINTS

# Represents a space in pieces.
SPACE = "▁"
# The types of pieces in a model, and those that occur in text.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
FOUND = (NORMAL, USER_DEFINED)
FAIRSEQ_HEAD = ("<s>", "<pad>", "</s>", "<unk>")
FAIRSEQ_TAIL = "<mask>"
# In texts for computing offsets: an unknown character, and the quotation marks that can form pairs.
ONE_UNKNOWN, APOSTROPHE, GRAVE = 1, 2, 3
_UNKNOWN_PENALTY = np.float32(10)


class Kernels(NamedTuple):
    """The kernels of a model.

    Fields:
        model: the adapted ``ModelProto``, serialized.
        tokenizer: the FastSentencepiece kernel for it.
        unknown_pieces: the number of pieces at its end that are unknown characters.
        normalizer: the FastBertNormalize kernel to apply before it, or None.
        per_character: the FastBertNormalize kernel that normalizes each character separately, from
            which the offsets of pieces are computed.
        byte_counts, character_counts: int32 [pieces], without spaces; 1 for unknown pieces.
        first_bytes: int32 [pieces], after spaces, as ``per_character`` writes them.
        unknown_quotes: which of ' ` " the vocabulary lacks.
        blank: bool [pieces], which pieces consist only of "▁"; None if they cannot occur at the end
            of a text.
    """

    model: bytes
    tokenizer: tf_text.FastSentencepieceTokenizer
    unknown_pieces: int
    normalizer: tf_text.FastBertNormalizer | None
    per_character: tf_text.FastBertNormalizer
    byte_counts: np.ndarray
    character_counts: np.ndarray
    first_bytes: np.ndarray
    unknown_quotes: tuple[bool, ...]
    blank: np.ndarray | None


def parse_model(content: bytes, source: str) -> Any:
    """Returns a ``ModelProto``, or raises ValueError if it is not supported."""
    proto = model_pb.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{source}: not a SentencePiece model ({error}).") from error
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kinds = [piece.type for piece in proto.pieces]
    kind = trainer.ModelType.Name(trainer.model_type)
    for what, actual, expected in (
        ("number of pieces for unknown text", kinds.count(UNKNOWN), 1),
        ("presence of pieces for text", NORMAL in kinds, True),
        ("model", kind, "UNIGRAM"),
        ("byte_fallback", trainer.byte_fallback or BYTE in kinds, False),
        ("treat_whitespace_as_suffix", trainer.treat_whitespace_as_suffix, False),
        ("escape_whitespaces", normalizer.escape_whitespaces, True),
        ("add_dummy_prefix", normalizer.add_dummy_prefix, True),
    ):
        if actual != expected:
            raise ValueError(f"{source}: the {what} is {actual!r}, expected {expected!r}.")
    return proto


def fairseq_vocabulary(
    pieces: list[str], kinds: list[int], source: str
) -> tuple[list[str], np.ndarray]:
    """Returns the vocabulary in fairseq's order, and the new id of each of the model's pieces."""
    head = [FAIRSEQ_HEAD[3], FAIRSEQ_HEAD[0], FAIRSEQ_HEAD[2]]
    if pieces[:3] != head or kinds[:3] != [UNKNOWN, CONTROL, CONTROL]:
        raise ValueError(
            f"{source}: the first pieces are {', '.join(pieces[:3])}, expected "
            f"{', '.join(head)}, which fairseq's ids require."
        )
    ids = np.arange(1, len(pieces) + 1, dtype=np.int32)
    ids[:3] = 3, 0, 2
    return [*FAIRSEQ_HEAD, *pieces[3:], FAIRSEQ_TAIL], ids


def build_kernels(
    proto: Any, prepared: Mapping[int, str], unify_quotes: bool, openings: set[str]
) -> Kernels:
    """Builds the kernels.

    Args:
        proto: the model; modified.
        prepared: the replacements by the Python code before it, see ``charsmap.preparation``.
        unify_quotes: whether `` and '' become " before everything else.
        openings: the first characters of special tokens, which must be distinguished from other
            unknown characters.

    Raises:
        ValueError: if the model's normalization rules are damaged.
    """
    rules = Rules(proto.normalizer_spec.precompiled_charsmap)
    rules.check()
    for piece in proto.pieces:
        # SentencePiece does not normalize user-defined symbols.
        if piece.type == USER_DEFINED and rules.apply(piece.piece) != piece.piece:
            rules.add(piece.piece.encode("utf-8"), piece.piece.encode("utf-8"))
    letters = _Letters.of(proto, openings, rules, prepared)
    known = np.zeros(CODEPOINTS, bool)
    known[[ord(char) for char in letters.known | {" "}]] = True
    composed = charsmap.compose(
        rules, prepared, unify_quotes, known, _unknown_character(known), letters.substitutes
    )
    normalizer = None
    if composed is None:
        altered = {ord(char): text for char, text in rules.singles().items()}
        altered |= {code: rules.apply(text) for code, text in prepared.items()}
        if unify_quotes:
            prepared = charsmap.staged(rules, prepared)
        normalizer = _staged_normalizer(rules, prepared, known, letters.substitutes)
    else:
        rules, altered = composed
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = rules.to_bytes()
    spec.escape_whitespaces = not letters.spaced
    proto.ClearField("denormalizer_spec")
    # These can contain samples, on which the kernel would test the modified model.
    proto.DiscardUnknownFields()
    scores = [piece.score for piece in proto.pieces if piece.type == NORMAL]
    unknown_score = float(np.float32(min(scores)) - _UNKNOWN_PENALTY)
    _adapt_pieces(proto, letters, unknown_score)
    back = {ord(char): chr(code) for code, char in letters.substitutes.items()}
    bodies = [chr(ONE_UNKNOWN) if piece.type == UNKNOWN else
              piece.piece.replace(SPACE, "").replace(" ", "").translate(back)
              for piece in proto.pieces]  # fmt: skip
    quotes = {"'": APOSTROPHE, "`": GRAVE} if unify_quotes else {}
    firsts = [quotes.get(body[:1], (body.encode("utf-8") or b"\0")[0]) for body in bodies]
    blank = np.array([not body for body in bodies])
    model = proto.SerializeToString()
    return Kernels(
        model,
        fast_sentencepiece(model, unknown_score, tolerance=2 * float(_UNKNOWN_PENALTY)),
        len(letters.rare),
        normalizer,
        _per_character_kernel(altered, known, unify_quotes),
        np.array([len(body.encode("utf-8")) for body in bodies], np.int32),
        np.array(list(map(len, bodies)), np.int32),
        np.array(firsts, np.int32),
        tuple(mark not in letters.known for mark in ("'", "`", '"')),
        None if letters.spaced or not spec.remove_extra_whitespaces else blank,
    )


class _Letters(NamedTuple):
    """The characters of a vocabulary.

    Fields:
        known: all characters of pieces, and the first characters of special tokens.
        rare: the known characters that are not pieces themselves.
        spaced: whether normalized text never contains "▁", so that pieces can contain a space
            instead, which saves the kernel a pass.
        substitutes: replacements of rare single-byte characters. FastSentencepiece prefers
            "unknown" to a piece of the same score, and adds its score once per byte.
    """

    known: set[str]
    rare: list[str]
    spaced: bool
    substitutes: dict[int, str]

    @classmethod
    def of(
        cls, proto: Any, openings: set[str], rules: Rules, prepared: Mapping[int, str]
    ) -> _Letters:
        """Collects the characters; ``openings`` are the first characters of special tokens."""
        texts = {piece.piece for piece in proto.pieces if _is_findable(piece)}
        known = {*"".join(texts), *openings}
        rare = sorted(known - texts)
        free = (
            chr(code) for code in range(0x80, 0x800)
            if chr(code) not in known and code not in prepared
            and rules.apply(chr(code)) == chr(code)
        )  # fmt: skip
        substitutes = {ord(char): next(free) for char in rare if char.isascii()}
        return cls(known, rare, rules.apply(SPACE) == " " and SPACE in texts, substitutes)


def _is_findable(piece: Any) -> bool:
    # SentencePiece replaces all spaces in text before it looks for pieces.
    return piece.type in FOUND and " " not in piece.piece


def _per_character_kernel(
    altered: Mapping[int, str], known: np.ndarray, unify_quotes: bool
) -> tf_text.FastBertNormalizer:
    """Returns the kernel that normalizes each character separately."""
    changes = {ord(SPACE): " ", **altered}
    spelled = {
        code: "".join(
            char if known[ord(char)] and char != SPACE else
            " " if char == SPACE else chr(ONE_UNKNOWN)
            for char in text
        )
        for code, text in changes.items()
    }  # fmt: skip
    if unify_quotes:
        spelled |= {ord("'"): chr(APOSTROPHE), ord("`"): chr(GRAVE)}
    return _replacing(spelled, known, chr(ONE_UNKNOWN))


def _unknown_character(known: np.ndarray) -> str:
    """Returns a character that the vocabulary lacks."""
    # This excludes tab, line feed and carriage return, which the kernel treats as spaces.
    return next(chr(code) for code in range(1, 9) if not known[code])


def _staged_normalizer(
    rules: Rules, prepared: Mapping[int, str], known: np.ndarray, substitutes: Mapping[int, str]
) -> tf_text.FastBertNormalizer:
    """Returns the kernel that applies the Python preprocessing before unchanged rules.

    Adds a rule that keeps the character that represents unknown characters.
    """
    unknown, joined = _unknown_character(known), rules.joined()
    kept = known.copy()
    singles = {ord(char): char for char in rules.singles()}
    kept[[*map(ord, joined), *singles]] = True
    # If the rules remove that character, another removed one replaces it in texts that contain it:
    # a text that normalizes to nothing is handled differently from an empty text.
    dropped = [chr(code) for code in singles if not rules.apply(chr(code)) and chr(code) > unknown]
    alias = rules.apply(unknown) or min(dropped, default="")
    changes = singles | {ord(unknown): alias, **prepared}
    rules.add(unknown.encode(), unknown.encode())
    texts = dict(substitutes)
    for code, text in changes.items():
        text = "".join(char if kept[ord(char)] else unknown for char in text)
        # The kernel adds the score of an unknown character once per byte.
        result = rules.apply(text)
        if result and joined.isdisjoint(text) and not any(known[ord(char)] for char in result):
            text = unknown * len(result)
        texts[code] = text
    return _replacing(texts, kept, unknown)


def _replacing(
    changes: Mapping[int, str], kept: np.ndarray, unknown: str
) -> tf_text.FastBertNormalizer:
    """Returns a kernel that replaces characters.

    Args:
        changes: replacements by code point.
        kept: bool [0x110000], which of the other characters are kept.
        unknown: the replacement of all remaining characters.
    """
    characters = CharacterMap(unknown)
    characters.keep(kept)
    for code, text in changes.items():
        characters.put(code, text)
    return characters.kernel()


def _adapt_pieces(proto: Any, letters: _Letters, unknown_score: float) -> None:
    """Modifies the pieces so that both kernels treat them as SentencePiece treats the original
    ones, and appends the rare characters."""

    def written(text: str) -> str:
        text = text.translate(letters.substitutes)
        return text.replace(SPACE, " ") if letters.spaced else text

    for piece in proto.pieces:
        if piece.type == USER_DEFINED:
            # SentencePiece 0.2.3 ignores their scores and uses these.
            piece.score = np.float32(0.1) * np.float32(len(piece.piece.encode("utf-8")) - 1)
        if _is_findable(piece):
            piece.type = NORMAL
            piece.piece = written(piece.piece)
        elif piece.type in (*FOUND, UNUSED):
            piece.type = CONTROL
    # SentencePiece uses the type of the piece, FastSentencepiece this field.
    proto.trainer_spec.unk_id = [piece.type for piece in proto.pieces].index(UNKNOWN)
    for char in letters.rare:
        proto.pieces.add(piece=written(char), score=unknown_score, type=NORMAL)


def character_model(content: bytes) -> bytes:
    """Returns a model with the same normalization that splits text into characters."""
    proto = model_pb.ModelProto()
    proto.ParseFromString(content)
    letters = {char for piece in proto.pieces if piece.type == NORMAL for char in piece.piece}
    space = SPACE if proto.normalizer_spec.escape_whitespaces else " "
    del proto.pieces[:]
    proto.trainer_spec.model_type = model_pb.TrainerSpec.CHAR
    proto.pieces.add(piece="<unk>", type=UNKNOWN)
    for char in [space, *sorted(letters - {space})]:
        proto.pieces.add(piece=char, type=NORMAL)
    return proto.SerializeToString()

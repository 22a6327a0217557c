"""Moses' punctuation normalizer and word tokenizer in the graph.

Koehn et al., "Moses: Open Source Toolkit for Statistical Machine Translation" (2007), as in the
Python port ``sacremoses`` and transformers' XLMTokenizer. The rules are regular expressions that
are applied in order. TensorFlow runs them with RE2, which has no look-ahead and different character
classes from Python; therefore FastBertNormalize replaces single characters, and private-use
characters represent decisions that a later rule makes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bertfam_tf.text.kernels import unicode
from bertfam_tf.text.kernels.character_map import CharacterMap
from bertfam_tf.text.kernels.graph import flags, row_of_each, text_begins

# Languages that need external word segmentation; here they are split at spaces.
SPACED = ("ja", "th", "zh")
# Languages without a list of abbreviations, for which Moses uses the English one.
_AS_ENGLISH = ("ar", "bg", "sw", "tr", "ur", "vi")
_WITH_PREFIXES = (
    "cs", "de", "el", "en", "es", "fr", "hi", "it", "nl", "pl", "pt", "ro", "ru", "sv",
)  # fmt: skip
LANGUAGES = tuple(sorted({*_WITH_PREFIXES, *_AS_ENGLISH, *SPACED}))
# Marks an abbreviation that keeps its full stop only before a number.
_NUMERIC = "#"

# Private-use characters, which are removed from texts: a character to remove, one of several full
# stops, and a full stop that may be a word of its own.
_NOTHING, DOT, _LAST_DOT = "\ue003", "\ue004", "\ue005"
_HARD_SPACE, _WIDE_SPACE = "\xa0", "\u2003"
_WHITE = f"[\t\r {_HARD_SPACE}{_WIDE_SPACE}]"

_REPLACED = {
    **dict(zip("，、∶：？）！（；～’％━", ",,::?)!(;~'%-", strict=True)),
    **dict(zip("〈〉【】０１２３４５６７８９", "<>[]0123456789", strict=True)),
    **dict.fromkeys("”“《》」「", '"'),
    "…": "...",
    "．": "。",
    # Moses replaces these later, but no earlier rule applies to them.
    "`": "'",
    "„": '"',
    "–": "-",
}
_ROMANIAN = (
    ("[ŞȘ]", "S"), ("[şș]", "s"), ("[ŢȚ]", "T"), ("[ţț]", "t"),
    ("[ĂÂ]", "A"), ("[ăâ]", "a"), ("Î", "I"), ("î", "i"),
)  # fmt: skip


def nonbreaking_prefixes(language: str) -> list[str]:
    """Returns Moses' list of words that keep their full stop, such as abbreviations.

    Args:
        language: ISO 639-1 code, one of ``LANGUAGES``.

    Returns:
        The words, followed by "#" if they keep it only before a number.

    Raises:
        ImportError: if the package sacremoses, which has the lists, is not installed.
    """
    try:
        from sacremoses.corpus import NonbreakingPrefixes
    except ImportError as error:
        raise ImportError(
            "Moses' lists of abbreviations come with the package sacremoses, which is not "
            "installed: pip install 'bertfam_tf[xlm]'."
        ) from error
    listed = language if language in _WITH_PREFIXES else "en"
    words = [word.split() for word in dict.fromkeys(NonbreakingPrefixes().words(listed))]
    # An entry that contains a space never matches a word.
    return [
        parts[0] + _NUMERIC * (len(parts) - 1)
        for parts in words
        if len(parts) == 1 or parts[1:] == ["#NUMERIC_ONLY#"]
    ]


class MosesWords(tf.Module):
    """Normalizes texts and separates their words by spaces.

    Args:
        language: ISO 639-1 code, one of ``LANGUAGES``.
        lower_case: whether to lower-case first.
        prefixes: the abbreviations, as ``nonbreaking_prefixes`` returns them.
    """

    def __init__(self, language: str, lower_case: bool, prefixes: Sequence[str]) -> None:
        super().__init__(name="moses_words")
        self._before = _normalizing_rules(language)
        self._after = () if language in SPACED else _splitting_rules(language, lower_case, prefixes)
        with tf.init_scope():
            self._characters = _character_map(lower_case)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the texts, string [n], with spaces between words, string [n]."""
        return self._words(self._characters.normalize(texts))

    def with_sources(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the same, and the offset in the original text of each of its bytes.

        The words have the characters of the text in the same order, except for spaces, removed
        characters, and pairs of marks that become one. Where Moses moves a full stop or comma
        inside the quotation mark before it, each of the two has the other's offset.

        Returns:
            ``(words, offsets, splits)``: string [n]; int64 [bytes + 1], for each byte of the words
            the offset of its character's first byte in the text, and one 0; int64 [n + 1], the
            row splits of the offsets.
        """
        first, source = self._characters.normalize_with_offsets(texts)
        words = self._words(first)
        data = tf.io.decode_raw(tf.strings.reduce_join(first), tf.uint8)
        splits = text_begins(source)
        kept = tf.where(_kept_characters(data, flags(splits, tf.size(data, tf.int64))))[:, 0]
        begins = tf.searchsorted(kept, splits, out_type=tf.int64)
        row = tf.searchsorted(splits, kept, side="right", out_type=tf.int64) - 1
        places = tf.concat([tf.gather(source.values, kept + row), [0]], 0)

        data = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
        lengths = tf.cast(tf.strings.length(words), tf.int64)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        solid = (data != ord(" ")) & ((data < 0x80) | (data >= 0xC0))
        count = tf.concat([[0], tf.cumsum(tf.cast(solid, tf.int64))], 0)
        row = row_of_each(splits, tf.size(data, tf.int64))
        # Clipped, so that a miscounted rare mark cannot produce an offset outside of the text.
        index = tf.gather(begins, row) + count[1:] - tf.gather(count, tf.gather(splits, row)) - 1
        last = tf.maximum(tf.gather(begins, row + 1) - 1, tf.gather(begins, row))
        values = tf.gather(places, tf.clip_by_value(index, tf.gather(begins, row), last))
        return words, tf.concat([values, [0]], 0), splits

    def _words(self, texts: tf.Tensor) -> tf.Tensor:
        for pattern, rewrite in self._before:
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        texts = tf.strings.strip(texts)
        for pattern, rewrite in self._after:
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        return texts


def _kept_characters(data: tf.Tensor, starts_text: tf.Tensor) -> tf.Tensor:
    """Returns bool [n], which bytes begin a character that is still present in the words.

    Args:
        data: uint8 [n], the bytes of all texts after the character map.
        starts_text: bool [n], the first byte of each text.
    """
    data = tf.cast(data, tf.int32)
    padded = tf.concat([[0, 0], data, [0, 0]], 0)
    before, after, second = padded[1:-3], padded[3:-1], padded[4:]

    def begins(text: str) -> tf.Tensor:
        matches = tf.ones_like(data, tf.bool)
        for byte, expected in zip((data, after, second), text.encode("utf-8"), strict=False):
            matches &= byte == expected
        return matches

    def digit(byte: tf.Tensor) -> tf.Tensor:
        return (byte >= ord("0")) & (byte <= ord("9"))

    gone = (data >= 0x80) & (data < 0xC0)
    for char in ("\t", "\r", " ", _WIDE_SPACE, _NOTHING):
        gone |= begins(char)
    # Between digits, a no-break space becomes a punctuation mark.
    gone |= begins(_HARD_SPACE) & ~(digit(before) & digit(second))
    # Two single quotation marks become a double one.
    single = data == ord("'")
    opens = single & ((before != ord("'")) | starts_text)
    run = tf.cumsum(tf.cast(opens, tf.int32))
    position = tf.cumsum(tf.ones_like(data))
    first = tf.gather(tf.concat([[0], position[opens]], 0), run)
    return ~gone & ~(single & ((position - first) % 2 == 1))


# Rules.


def _normalizing_rules(language: str) -> tuple[tuple[str, str], ...]:
    """Returns ``(pattern, rewrite)`` for punctuation and control characters, in order."""
    if language == "en":
        quotes = [(r'"([,.]+)', r'\1"')]
    elif language in ("de", "es", "fr"):
        quotes = [(',"', '",'), (rf'(\.+)"({_WHITE}*[^<])', r'"\1\2')]
    else:
        quotes = []
    between_digits = "," if language in ("de", "es", "cs", "fr") else "."
    return (
        (f"。{_WHITE}*", ". "),
        (r"\r", ""),
        (r"\(", " ("),
        (r"\)", ") "),
        (" +", " "),
        (r"\) ([.!:?;,])", r")\1"),
        (r"\( ", "("),
        (r" \)", ")"),
        (r"(\p{Nd}) %", r"\1%"),
        (" ([:;])", r"\1"),
        ("''", ' " '),
        ("—", " - "),
        ("[´‘‚]", "'"),
        ("''", '"'),
        (f"{_HARD_SPACE}«{_HARD_SPACE}|«{_HARD_SPACE}?", '"'),
        (f"{_HARD_SPACE}»{_HARD_SPACE}|{_HARD_SPACE}?»", '"'),
        (f"{_HARD_SPACE}%", "%"),
        (f"nº{_HARD_SPACE}", "nº "),
        (f"{_HARD_SPACE}([:?!;])", r"\1"),
        *quotes,
        (rf"(\p{{Nd}}){_HARD_SPACE}(\p{{Nd}})", rf"\1{between_digits}\2"),
        (f"[\t{_NOTHING}]+", ""),
        (f"[{_HARD_SPACE}{_WIDE_SPACE}]", " "),
        *(_ROMANIAN if language == "ro" else ()),
    )


def _splitting_rules(
    language: str, lower_case: bool, prefixes: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Returns ``(pattern, rewrite)`` that separate words, in order."""
    number, alpha = _set("NUMBER"), _set("ALPHA")
    if language == "en":
        apostrophes = [
            (f"([^{alpha}])'([^{alpha}])", r"\1 ' \2"),
            (f"([^{alpha}{number}])'([{alpha}])", r"\1 ' \2"),
            (f"([{alpha}])'([^{alpha}])", r"\1 ' \2"),
            (f"([{alpha}])'([{alpha}])", r"\1 '\2"),
            (f"([{number}])'s", r"\1 's"),
        ]
    elif language in ("fr", "it"):
        apostrophes = [
            (f"([^{alpha}])'([^{alpha}])", r"\1 ' \2"),
            (f"([^{alpha}])'([{alpha}])", r"\1 ' \2"),
            (f"([{alpha}])'([^{alpha}])", r"\1 ' \2"),
            (f"([{alpha}])'([{alpha}])", r"\1' \2"),
        ]
    else:
        apostrophes = [("'", " ' ")]
    return (
        (rf"[^{_set('ALNUM')} .',\-]", r" \0 "),
        (r"\.\.", DOT * 2),
        (rf"{DOT}\.", DOT * 2),
        (f"{DOT}+", r" \0 "),
        (f"([^{number}]),", r"\1 , "),
        (f",([^{number}])", r" , \1"),
        (f"([{number}]),$", r"\1 , "),
        *apostrophes,
        (" +", " "),
        *_full_stop_rules(prefixes, lower_case, alpha),
        (r"\.' ?$", " . ' "),
    )


def _full_stop_rules(
    prefixes: Sequence[str], lower_case: bool, alpha: str
) -> list[tuple[str, str]]:
    """Returns ``(pattern, rewrite)`` that keep or split off the full stop at the end of a word."""
    prefixes = [word for word in prefixes if not lower_case or word == word.lower()]
    always = "|".join(re.escape(word) for word in prefixes if not word.endswith(_NUMERIC))
    numeric = "|".join(re.escape(word[:-1]) for word in prefixes if word.endswith(_NUMERIC))
    inner = rf"[^ ]*[{alpha}][^ ]*\.[^ ]*|[^ ]*\.[^ ]*[{alpha}][^ ]*"
    rules = [
        (r"([^ ])\.( |$)", rf"\1{_LAST_DOT}\2"),
        (f"(^| )({inner}){_LAST_DOT}", r"\1\2."),
        (f"{_LAST_DOT} ([{_set('LOWER')}])", r". \1"),
    ]
    if always:
        rules.append((f"(^| )({always}){_LAST_DOT}", r"\1\2."))
    if numeric:
        rules.append((f"(^| )({numeric}){_LAST_DOT} ([0-9])", r"\1\2. \3"))
    return [*rules, (_LAST_DOT, " .")]


def _set(name: str) -> str:
    """Returns one of Moses' classes as the content of a regular expression's ``[…]``."""
    members = unicode.members(unicode.tables("moses")[name])
    edges = np.flatnonzero(np.diff(np.r_[0, members.astype(int), 0]))
    return "".join(rf"\x{{{start:X}}}-\x{{{end - 1:X}}}" for start, end in edges.reshape(-1, 2))


# Characters.


def _character_map(lower_case: bool) -> tf_text.FastBertNormalizer:
    """Returns the replacements of single characters, which precede the rules."""
    known = unicode.python_classes()
    table = CharacterMap()
    for codepoint, text in known.lower.items() if lower_case else ():
        table.put(codepoint, text)
    for char, text in _REPLACED.items():
        table.put(ord(char), text)
    control = known.removed.copy()
    control[0xFFFD] = False
    table.put(control, _NOTHING)
    table.put([*range(0x09, 0x0D), *range(0x1C, 0x20), 0x85], "\t")
    white = known.space & ~control
    white[[0x09, 0x0A, 0x0D, 0x20, 0xA0]] = False
    table.put(white, _WIDE_SPACE)
    return table.kernel()

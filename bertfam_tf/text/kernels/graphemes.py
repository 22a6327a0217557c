"""Applies SentencePiece's normalization rules to graphemes, as the ``tokenizers`` library does."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bertfam_tf.text.kernels.charsmap import Rules
from bertfam_tf.text.kernels.graph import following, previous, repeats, unlikely
from bertfam_tf.text.kernels.normalization import Characters, Lookup, utf8_widths
from bertfam_tf.text.kernels.normalization_forms import running_maximum
from bertfam_tf.text.kernels.unicode import CODEPOINTS, HANGUL, members, tables

# Hangul.
_LEADING = ((0x1100, 0x1160), (0xA960, 0xA97D))
_VOWEL = ((0x1160, 0x11A8), (0xD7B0, 0xD7C7))
_TRAILING = ((0x11A8, 0x1200), (0xD7CB, 0xD7FC))
# The library replaces graphemes of fewer bytes as a whole.
_GRAPHEME_BYTES = 6
_JOINER = 0x200D
# No rule's replacement, which ends at a zero.
_NONE = "\0"


class Graphemes(tf.Module):
    """Replaces short graphemes of several characters by the rules of a SentencePiece model.

    The library replaces a grapheme of fewer than 6 bytes by what its shortest beginning is replaced
    by, and so drops the rest of it.

    Args:
        rules: the model's rules.

    Raises:
        ValueError: if a replacement would be replaced itself.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(name="graphemes")
        singles = rules.singles()
        longer = dict(rules.longer(np.ones(CODEPOINTS, bool), _GRAPHEME_BYTES - 1))
        texts = {key: text for key, text in (singles | longer).items()
                 if len(key.encode("utf-8")) < _GRAPHEME_BYTES}  # fmt: skip
        for text in dict.fromkeys(texts.values()):
            if any(singles.get(char, char) != char for char in text):
                raise ValueError(f"a rule's replacement {text[:20]!r} has a rule itself.")
        names = ("JOINED", "PREFIX", "CONTROL", "PICTURE", "CONSONANT", "LINKER", "LINKED")
        bits = {name: 1 << index for index, name in enumerate((*names, "L", "V", "T", "LV", "LVT"))}
        kinds = np.zeros(CODEPOINTS, np.int32)
        for name in names:
            kinds[members(tables("tokenizers")[name])] |= bits[name]
        for name, spans in (("L", _LEADING), ("V", _VOWEL), ("T", _TRAILING)):
            for start, end in spans:
                kinds[start:end] |= bits[name]
        syllables = np.array(HANGUL)
        kinds[syllables] |= np.where((syllables - HANGUL.start) % 28, bits["LVT"], bits["LV"])
        self._bits = bits
        self._kinds = Lookup(kinds)
        joining = kinds & ~(bits["CONTROL"] | bits["PICTURE"] | bits["CONSONANT"] | bits["L"]
                            | bits["LV"] | bits["LVT"])  # fmt: skip
        joining[ord("\r")] = 1
        self._joining = Lookup(joining > 0)
        with tf.init_scope():
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant([*texts], tf.string), tf.constant([*texts.values()], tf.string)
                ),
                _NONE,
            )

    def __call__(self, text: Characters) -> Characters:
        def replaced(*parts: tf.Tensor) -> list[tf.Tensor]:
            return list(self._replaced(Characters(*parts)))

        may_change = tf.reduce_any(self._joining(text.codes))
        return Characters(*unlikely(may_change, replaced, list(text), []))

    def _replaced(self, text: Characters) -> Characters:
        size = tf.size(text.codes, tf.int64)
        begin = tf.where(self._opens(text))[:, 0]
        end = following(begin, size)
        bytes_before = tf.concat([[0], tf.cumsum(utf8_widths(text.codes))], 0)
        count = tf.gather(bytes_before, end) - tf.gather(bytes_before, begin)
        short = (end - begin > 1) & (count < _GRAPHEME_BYTES)
        begin, end = (tf.boolean_mask(tensor, short) for tensor in (begin, end))
        replacements = tf.fill(tf.shape(begin), _NONE)
        for length in range(1, _GRAPHEME_BYTES):
            place = tf.minimum(begin[:, tf.newaxis] + tf.range(length, dtype=tf.int64), size - 1)
            key = tf.strings.unicode_encode(tf.gather(text.codes, place), "UTF-8")
            new = (replacements == _NONE) & (begin + length <= end)
            replacements = tf.where(new, self._table.lookup(key), replacements)
        hit = replacements != _NONE
        begin, end, replacements = (
            tf.boolean_mask(tensor, hit) for tensor in (begin, end, replacements)
        )
        values = tf.strings.unicode_decode(replacements, "UTF-8")
        # Each character becomes one, except in the graphemes, where the first becomes all.
        parts = tf.cast(end - begin, tf.int32)
        change = tf.tensor_scatter_nd_add(
            tf.zeros([size + 1], tf.int32),
            tf.concat([begin, end], 0)[:, tf.newaxis],
            tf.concat([parts, -parts], 0),
        )
        parts = tf.cumsum(change)[:-1]  # of the grapheme of each character, 0 for others
        counts = tf.tensor_scatter_nd_update(
            tf.where(parts > 0, tf.constant(0, tf.int64), 1),
            begin[:, tf.newaxis],
            tf.cast(values.row_lengths(), tf.int64),
        )
        which, inside, splits = repeats(counts)
        part = tf.cast(tf.gather(parts, which), tf.int64)
        codes = tf.tensor_scatter_nd_update(
            tf.gather(text.codes, which), tf.where(part > 0), values.values
        )
        place = which + tf.minimum(inside, tf.maximum(part - 1, 0))
        return Characters(
            codes,
            tf.gather(text.starts, place),
            tf.gather(text.ends, place),
            tf.gather(splits, text.splits),
        )

    def _opens(self, text: Characters) -> tf.Tensor:
        """Returns bool [n], which characters begin a grapheme.

        The rules follow Unicode's annex 29. Flags are left out: each has 4 bytes, so no
        grapheme with one is short.
        """
        bits, kind = self._bits, self._kinds(text.codes)

        def has(which: tf.Tensor, *names: str) -> tf.Tensor:
            mask = sum(bits[name] for name in names)
            return tf.bitwise.bitwise_and(which, mask) > 0

        before = previous(kind, 0)
        code_before = previous(text.codes, 0)
        crlf = (code_before == ord("\r")) & (text.codes == ord("\n"))
        apart = has(before, "CONTROL") | has(kind, "CONTROL")
        joins = has(kind, "JOINED") | has(before, "PREFIX")
        joins |= has(before, "L") & has(kind, "L", "V", "LV", "LVT")
        joins |= has(before, "LV", "V") & has(kind, "V", "T")
        joins |= has(before, "LVT", "T") & has(kind, "T")
        # A picture after a joiner whose row of signs follows a picture.
        row = text.opens_row()
        place = tf.range(tf.size(kind))
        extends = has(kind, "JOINED") & ~row
        base = running_maximum(tf.where(extends, -1, place))
        base_before = previous(base, 0)
        joins |= (
            has(kind, "PICTURE")
            & (code_before == _JOINER)
            & has(tf.gather(kind, base_before), "PICTURE")
        )
        # A consonant after signs with a linker among them that follow a consonant.
        links = has(kind, "LINKER", "LINKED") & ~row
        base = running_maximum(tf.where(links, -1, place))
        linkers = tf.cumsum(tf.cast(has(kind, "LINKER"), tf.int32))
        since = linkers - tf.gather(linkers, base)
        base_before = previous(base, 0)
        since_before = previous(since, 0)
        joins |= (
            has(kind, "CONSONANT")
            & (since_before > 0)
            & has(tf.gather(kind, base_before), "CONSONANT")
        )
        return row | ~(crlf | (joins & ~apart))

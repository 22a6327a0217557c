"""Writes `bertfam_tf/text/kernels/unicode_tables.py` with the help of the `tokenizers` library.

The library combines several versions of Unicode (its list of punctuation is older than its list of
capital letters), so no version of Python's `unicodedata` reproduces it.  Each of the 1,112,064
characters is therefore passed to the library, and the results are stored as ranges.

    python tools/make_unicode_tables.py            # rewrite the table
    python tools/make_unicode_tables.py --check    # exit 1 if the committed table is out of date
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import unicodedata
from collections.abc import Iterable

import tokenizers
from tokenizers import normalizers, pre_tokenizers

TARGET = pathlib.Path(__file__).parents[1] / "bertfam_tf" / "text" / "kernels" / "unicode_tables.py"
GRAPHEMES = {
    "JOINED": "Parts of the grapheme of the character before them.",
    "PREFIX": "Parts of the grapheme of the character after them.",
    "CONTROL": "Graphemes of their own.",
    "PICTURE": "Joined by U+200D with the picture before it.",
    "CONSONANT": "Joined by a linker with the consonant before it.",
    "LINKER": "Signs that join two consonants.",
    "LINKED": "May be between linkers and consonants.",
}
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def base36(number: int) -> str:
    text = ""
    while number or not text:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return text


def signed36(number: int) -> str:
    return ("-" if number < 0 else "") + base36(abs(number))


def ranges(codepoints: Iterable[int]) -> str:
    """'gap length gap length …' in base 36, each gap counted from the end of the last range."""
    runs: list[list[int]] = []
    for codepoint in sorted(codepoints):
        if runs and runs[-1][1] == codepoint:
            runs[-1][1] += 1
        else:
            runs.append([codepoint, codepoint + 1])
    words, last = [], 0
    for start, end in runs:
        words += [base36(start - last), base36(end - start)]
        last = end
    return " ".join(words)


def shifts(mapping: dict[int, int]) -> str:
    """'gap count step delta …': `count` codepoints, `step` apart, each move by `delta`."""
    runs: list[list[int]] = []
    for source in sorted(mapping):
        delta = mapping[source] - source
        if runs:
            start, count, step, run_delta = runs[-1]
            gap = source - (start + (count - 1) * step)
            if delta == run_delta and gap <= 2 and (count == 1 or gap == step):
                runs[-1] = [start, count + 1, gap, delta]
                continue
        runs.append([source, 1, 1, delta])
    words, last = [], 0
    for start, count, step, delta in runs:
        words += [base36(start - last), base36(count), base36(step), signed36(delta)]
        last = start
    return " ".join(words)


def literal(name: str, comment: str, text: str) -> str:
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > 90:
            lines.append(line)
            line = ""
        line += word + " "
    lines.append(line.rstrip())
    body = "\n".join(f'    "{line}"' for line in lines)
    return f"# {comment}\n{name} = (\n{body}\n)\n"


def every_character() -> list[int]:
    return [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def rules_for_every_character() -> bytes:
    """Returns a `precompiled_charsmap` that replaces every character by "X".

    The library applies it to graphemes of up to 5 bytes, and to each character of longer ones.
    """
    pages, leaf = 6, 5 * 256
    units = [0] * (256 * pages)

    def unit(slot: int, base: int, label: int, has_value: bool = False) -> None:
        units[slot] = (slot ^ base) << 10 | has_value << 8 | label

    units[leaf] = 1 << 31
    unit(0, 256, 0)
    # Page 1 has the first bytes; pages 2 to 4 the last, the second-last and the third-last byte.
    bases = [leaf, 2 * 256, 3 * 256, 4 * 256]
    for after, base in enumerate(bases[1:]):
        for label in range(0x80, 0xC0):
            unit(base ^ label, bases[after], label, has_value=after == 0)
    widths = {1: range(1, 0x80), 2: range(0xC2, 0xE0), 3: range(0xE0, 0xF0), 4: range(0xF0, 0xF5)}
    for width, labels in widths.items():
        for label in labels:
            unit(256 ^ label, bases[width - 1], label, has_value=width == 1)
    data = b"".join(number.to_bytes(4, "little") for number in units)
    return len(data).to_bytes(4, "little") + data + b"X\0"


def normalization_tables() -> list[str]:
    """The characters that Unicode's normalization forms change in the library."""
    nfd, nfkd, strip = normalizers.NFD(), normalizers.NFKD(), normalizers.StripAccents()
    ordered, compatible, accent = [], [], []
    for codepoint in every_character():
        char = chr(codepoint)
        if unicodedata.combining(char) == 1:
            moves = nfd.normalize_str(f"a\u0345{char}") == f"a{char}\u0345"
        else:
            moves = nfd.normalize_str(f"a{char}\u0334") == f"a\u0334{char}" != f"a{char}\u0334"
        if moves:
            ordered.append(codepoint)
        apart = nfkd.normalize_str(char)
        if apart not in (char, nfd.normalize_str(char)):
            if apart != unicodedata.normalize("NFKD", char):
                raise SystemExit(f"U+{codepoint:04X}: this Python decomposes it differently")
            compatible.append(codepoint)
        if not strip.normalize_str(char):
            accent.append(codepoint)
    return [
        literal("ORDERED", "Marks that normalization puts in order.", ranges(ordered)),
        literal("COMPATIBLE", "Characters that NFKD, but not NFD decomposes.", ranges(compatible)),
        literal("ACCENT", "Removed by StripAccents.", ranges(accent)),
    ]


def grapheme_tables() -> list[str]:
    """The classes of characters by which the library finds graphemes."""
    joined = normalizers.Precompiled(rules_for_every_character()).normalize_str
    known: dict[str, list[int]] = {name: [] for name in GRAPHEMES}
    syllable, sign = "\u0915\u094d", "\u0915\u0308"
    for codepoint in every_character()[1:]:
        char = chr(codepoint)
        if joined(f"a{char}") == "X":
            known["JOINED"].append(codepoint)
        prefix = joined(f"{char}a") == "X"
        if prefix:
            known["PREFIX"].append(codepoint)
        # Apart from it, two signs are a grapheme of 4 bytes.
        if joined(f"{char}\u0308\u0308") == "XX":
            known["CONTROL"].append(codepoint)
        if joined(f"a\u200d{char}") != joined(f"\xa9\u200d{char}"):
            known["PICTURE"].append(codepoint)
        if joined(f"{char}\u094d{sign}") == "XXXX":
            known["CONSONANT"].append(codepoint)
        if not prefix and joined(f"\u0915{char}{sign}") == "XXXX":
            known["LINKER"].append(codepoint)
        elif not prefix and joined(f"{syllable}{char}{sign}") == "XXXXX":
            known["LINKED"].append(codepoint)
    return [literal(name, comment, ranges(known[name])) for name, comment in GRAPHEMES.items()]


def build() -> str:
    def bert(**on: bool) -> normalizers.BertNormalizer:
        flags = {
            "clean_text": False,
            "handle_chinese_chars": False,
            "strip_accents": False,
            "lowercase": False,
        }
        return normalizers.BertNormalizer(**(flags | on))

    clean, strip, lower = bert(clean_text=True), bert(strip_accents=True), bert(lowercase=True)
    nfd, split = normalizers.NFD(), pre_tokenizers.BertPreTokenizer()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letter, number, blank = [], [], []
    removed, space, mark, punctuation, decomposed = [], [], [], [], []
    lowered: dict[int, int] = {}
    for codepoint in range(0x110000):
        if 0xD800 <= codepoint < 0xE000:
            continue
        char = chr(codepoint)
        if clean.normalize_str(char) == "":
            removed.append(codepoint)
        if strip.normalize_str(char) == "":
            mark.append(codepoint)
        small = lower.normalize_str(char)
        if len(small) == 1 and small != char:
            lowered[codepoint] = ord(small)
        elif small != char and (codepoint, small) != (0x130, "i\u0307"):
            raise SystemExit(f"U+{codepoint:04X} lower-cases to {small!r}: the format lacks this")
        words = [word for word, _ in split.pre_tokenize_str(f"a{char}b")]
        if words == ["a", "b"]:
            space.append(codepoint)
        elif words == ["a", char, "b"]:
            punctuation.append(codepoint)
        # Characters of the same class are not split; a space is joined with what follows it unless
        # that is white space.
        for kind, example in ((letter, "a"), (number, "1")):
            if len(byte_level.pre_tokenize_str(example + char)) == 1:
                kind.append(codepoint)
        if len(byte_level.pre_tokenize_str(f"a {char}b")) == 4:
            blank.append(codepoint)
        apart = nfd.normalize_str(char)
        if apart != char:
            if apart != unicodedata.normalize("NFD", char):
                raise SystemExit(f"U+{codepoint:04X}: this Python decomposes it differently")
            if not 0xAC00 <= codepoint < 0xD7A4:
                decomposed.append(codepoint)
    return "\n".join(
        [
            '"""The classes of characters in the `tokenizers` library.\n\n'
            "Generated by tools/make_unicode_tables.py from `tokenizers` "
            f"{tokenizers.__version__}; do not edit.\nNumbers are in base 36.  Ranges are pairs "
            '(gap since the last range, length).\n"""\n',
            literal("REMOVED", "Control, format and private-use characters.", ranges(removed)),
            literal("SPACE", "White space: separates words and is removed.", ranges(space)),
            literal(
                "PUNCTUATION",
                "Punctuation: each character is a word of its own.",
                ranges(punctuation),
            ),
            literal("MARK", "Accents: removed by strip_accents.", ranges(mark)),
            literal(
                "DECOMPOSED",
                "Characters that NFD decomposes, except Hangul syllables.",
                ranges(decomposed),
            ),
            literal(
                "LOWER",
                "Upper case: (gap between first ones, count, step, distance), except U+0130.",
                shifts(lowered),
            ),
            literal("BYTE_LETTER", "Letters in byte-level BPE's pattern.", ranges(letter)),
            literal("BYTE_NUMBER", "Numbers in byte-level BPE's pattern.", ranges(number)),
            literal("BYTE_SPACE", "White space in byte-level BPE's pattern.", ranges(blank)),
            *normalization_tables(),
            *grapheme_tables(),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    text = build()
    if arguments.check:
        if TARGET.read_text(encoding="utf-8") != text:
            sys.exit(
                f"{TARGET.name} differs from the output for tokenizers {tokenizers.__version__}"
            )
        return
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.name}: {len(text):,} bytes")


if __name__ == "__main__":
    main()

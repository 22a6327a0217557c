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

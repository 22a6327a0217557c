"""Writes `bertfam_tf/text/kernels/unicode_tables.json`: the classes of characters of a source.

    python -m tools.make_unicode_tables             # classes of the `tokenizers` library
    python3.11 -m tools.make_unicode_tables python  # of `unicodedata`, Unicode 14.0
    python -m tools.make_unicode_tables moses       # of sacremoses
    python -m tools.make_unicode_tables --check     # exit 1 if the committed table is out of date
    python3.11 -m tools.make_unicode_tables python --list    # characters that differ

The `tokenizers` library combines several versions of Unicode (its list of punctuation is older than
its list of capital letters), so no version of Python's `unicodedata` reproduces it. Each of the
1,112,064 characters is therefore passed to the library. The tokenizers of GPT and XLM are Python
programs, which the version of Python changes; for these only the differences are stored. Numbers
are in base 36. Ranges are pairs (gap since the last range, length).
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

KERNELS = Path(__file__).parents[1] / "bertfam_tf" / "text" / "kernels"
TARGET = KERNELS / "unicode_tables.json"
PYTHON_UNICODE = "14.0.0"
WHITE_CONTROLS = "\t\n\r"
DIGITS = string.digits + string.ascii_lowercase


def base36(number: int) -> str:
    text, number, sign = "", abs(number), "-" * (number < 0)
    while number or not text:
        number, digit = divmod(number, 36)
        text = DIGITS[digit] + text
    return sign + text


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
        words += [base36(start - last), base36(count), base36(step), base36(delta)]
        last = start
    return " ".join(words)


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


def normalization_tables() -> dict[str, str]:
    """The characters that Unicode's normalization forms change in the library.

    ORDERED are the marks that they put in order, COMPATIBLE what NFKD, but not NFD decomposes, and
    ACCENT what StripAccents removes.
    """
    from tokenizers import normalizers

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
    tables = {"ORDERED": ordered, "COMPATIBLE": compatible, "ACCENT": accent}
    return {name: ranges(codepoints) for name, codepoints in tables.items()}


def grapheme_tables() -> dict[str, str]:
    """The classes of characters by which the library finds graphemes.

    JOINED belong to the grapheme of the character before them, PREFIX to the next one's, and
    CONTROL are graphemes of their own. U+200D joins a PICTURE with the one before it, and a LINKER
    joins two CONSONANTs; LINKED may be between them.
    """
    from tokenizers import normalizers

    joined = normalizers.Precompiled(rules_for_every_character()).normalize_str
    names = ("JOINED", "PREFIX", "CONTROL", "PICTURE", "CONSONANT", "LINKER", "LINKED")
    known: dict[str, list[int]] = {name: [] for name in names}
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
    return {name: ranges(codepoints) for name, codepoints in known.items()}


def tokenizers_tables() -> dict[str, str]:
    """The classes of the `tokenizers` library."""
    from tokenizers import normalizers, pre_tokenizers

    def bert(**on: bool) -> normalizers.BertNormalizer:
        flags = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
        return normalizers.BertNormalizer(**(dict.fromkeys(flags, False) | on))

    clean, strip, lower = bert(clean_text=True), bert(strip_accents=True), bert(lowercase=True)
    nfd, split = normalizers.NFD(), pre_tokenizers.BertPreTokenizer()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letter, number, blank = [], [], []
    removed, space, mark, punctuation, decomposed = [], [], [], [], []
    lowered: dict[int, int] = {}
    for codepoint in every_character():
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
    return {
        "REMOVED": ranges(removed),  # control, format and private-use characters
        "SPACE": ranges(space),
        "PUNCTUATION": ranges(punctuation),
        "MARK": ranges(mark),  # what strip_accents removes
        "DECOMPOSED": ranges(decomposed),  # by NFD, except Hangul syllables
        # (gap between first ones, count, step, distance), except U+0130.
        "LOWER": shifts(lowered),
        # Of the pattern of byte-level BPE.
        "BYTE_LETTER": ranges(letter),
        "BYTE_NUMBER": ranges(number),
        "BYTE_SPACE": ranges(blank),
        **normalization_tables(),
        **grapheme_tables(),
    }


def members(test: Callable[[str], bool]) -> np.ndarray:
    """The mask of the characters for which `test` is true."""
    mask = np.zeros(0x110000, bool)
    mask[[code for code in every_character() if test(chr(code))]] = True
    return mask


def python_tables() -> dict[str, str]:
    """The classes of this Python, which has to be the one that the reference runs with."""
    from bertfam_tf.text.kernels import unicode

    category = unicodedata.category
    if unicodedata.unidata_version != PYTHON_UNICODE:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}, not {PYTHON_UNICODE}")
    known = unicode.classes()
    removed = members(lambda char: category(char)[0] == "C" and char not in WHITE_CONTROLS)
    kept = ~removed

    def must_equal(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        different = np.flatnonzero((ours != theirs) & kept)
        if different.size:
            raise SystemExit(f"{what}: the format lacks U+{different[0]:04X}")

    space = members(lambda char: char in WHITE_CONTROLS or category(char)[0] == "Z")
    must_equal("white space", space, known.space)
    decomposed = members(lambda char: unicodedata.normalize("NFD", char) != char)
    more = decomposed & ~known.decomposed & kept
    must_equal("decompositions", decomposed & ~more, known.decomposed)
    for code in np.flatnonzero(kept).tolist():
        if chr(code).lower() != known.lower.get(code, chr(code)):
            raise SystemExit(f"U+{code:04X} lower-cases differently: the format lacks this")
    masks = {
        "ASSIGNED": members(lambda char: category(char) != "Cn"),
        "REMOVED": removed,
        "PUNCTUATION": members(lambda char: char in string.punctuation or category(char)[0] == "P"),
        "MARK": members(lambda char: category(char) == "Mn"),
        "DECOMPOSED": more,
    }
    return {name: ranges(np.flatnonzero(mask).tolist()) for name, mask in masks.items()}


def list_differences() -> None:
    """Prints the characters that BERT's rules treat differently under the two tables."""
    from bertfam_tf.text.kernels import unicode

    python, library = unicode.python_classes(), unicode.classes()
    assigned = ~python.removed
    for name in ("removed", "punctuation", "mark", "decomposed", "chinese"):
        ours, theirs = getattr(python, name), getattr(library, name)
        for where, mask in (("python", ours & ~theirs), ("tokenizers", theirs & ~ours)):
            mask = mask if name == "removed" else mask & assigned
            edges = np.flatnonzero(np.diff(np.r_[0, mask.astype(int), 0]))
            pairs = [
                f"{start:04X}" if end == start + 1 else f"{start:04X}-{end - 1:04X}"
                for start, end in edges.reshape(-1, 2).tolist()
            ]
            print(f"{name} only in {where}: {mask.sum():,}\n  {' '.join(pairs)}")


def moses_tables() -> dict[str, str]:
    """The classes of Moses' tokenizer, by which XLM's splits words."""
    from sacremoses import MosesTokenizer

    letters = {
        "ALNUM": MosesTokenizer.IsAlnum,
        "ALPHA": MosesTokenizer.IsAlpha,
        "NUMBER": MosesTokenizer.IsN,
        "LOWER": MosesTokenizer.IsLower,
    }
    return {
        name: ranges({ord(char) for char in text if char > " "}) for name, text in letters.items()
    }


def main() -> None:
    makers = {"tokenizers": tokenizers_tables, "python": python_tables, "moses": moses_tables}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", nargs="?", choices=makers, default="tokenizers")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--list", action="store_true", help="what differs in Python's tables")
    options = parser.parse_args()
    if options.list:
        list_differences()
        return
    committed = json.loads(TARGET.read_text("utf-8"))
    made = {**committed, options.source: makers[options.source]()}
    if not options.check:
        TARGET.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    elif made != committed:
        sys.exit(f"{TARGET.name} differs from the output for {options.source}")


if __name__ == "__main__":
    main()

"""Texts for comparing tokenizers: real lines, hostile ones, and every character.

Needs only Python, so that reference implementations can read the same lines in other environments.
Real data are in $BERTFAM_DATA or in data/, to which `python -m tools.fetch_data` downloads them.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("BERTFAM_DATA") or ROOT / "data")

# The special tokens of all families; each is ordinary text for other families.
SPECIAL_TOKENS = (
    "[UNK] [SEP] [PAD] [CLS] [MASK] <unk> <s> </s> <pad> <mask> <|endoftext|> <cls> <sep> <eod> "
    "<eop> <special0> <special1> <special9>"
).split()


@dataclasses.dataclass(frozen=True)
class Section:
    """Lines from one source.

    Args:
        group: "corpus", "hostile" or "characters".
        name: the source.
        lines: texts without their line ends, not all of them UTF-8.
        language: ISO 639-1 code.
    """

    group: str
    name: str
    lines: tuple[bytes, ...]
    language: str = "en"

    def digest(self) -> str:
        """Returns a checksum of the lines."""
        whole = hashlib.sha256()
        for line in self.lines:
            whole.update(b"%d:" % len(line) + line)
        return whole.hexdigest()

    def sample(self, count: int) -> Section:
        """Returns about `count` lines, spread evenly over the section."""
        step = max(1, len(self.lines) // count)
        return dataclasses.replace(self, lines=self.lines[::step])


def sections() -> Iterator[Section]:
    """Yields all sections: the corpus, the hostile strings, the characters by plane."""
    yield from corpus()
    yield Section("hostile", "hostile strings", hostile())
    yield from characters()


# Real text.

CORPUS = (
    *("gutenberg", "glue/SST-2", "conll2003", "squad", "tydiqa", "xnli", "multi30k/raw"),
    "wikitext-2",
)


def corpus() -> Iterator[Section]:
    """Yields the data folder's texts, each section without blank and repeated lines."""
    books = [path.read_bytes() for path in sorted((DATA / "gutenberg").glob("*.txt"))]
    yield _section("books, lines", [line for book in books for line in book.split(b"\n")])
    yield _section("books, paragraphs", [part for book in books for part in _paragraphs(book)])
    columns = [*_column("glue/SST-2/train.tsv", 0), *_column("glue/SST-2/dev.tsv", 0)]
    yield _section("SST-2", columns + _column("glue/SST-2/test.tsv", 1))
    conll = (_sentences(DATA / f"conll2003/eng.{name}") for name in ("train", "testa", "testb"))
    yield _section("CoNLL-2003", list(itertools.chain.from_iterable(conll)))
    yield _section("SQuAD contexts", _contexts("squad/dev-v1.1.json", "squad/cs224n-dev-v2.0.json"))
    yield _section("TyDi QA contexts", _contexts("tydiqa/tydiqa.goldp.en.train.json",
                                                 "tydiqa/tydiqa.goldp.en.dev.json"))  # fmt: skip
    for language in ("en", "fr", "de", "es", "zh", "ar"):
        name = f"xnli/dev-{language}.tsv"
        yield _section(f"XNLI {language}", _column(name, 0) + _column(name, 1), language)
    for language in ("en", "fr", "de", "cs"):
        files = sorted((DATA / "multi30k/raw").glob(f"*.{language}.gz"))
        lines = [line for file in files for line in gzip.decompress(file.read_bytes()).split(b"\n")]
        yield _section(f"Multi30k {language}", lines, language)
    wiki = ((DATA / f"wikitext-2/{name}.txt").read_bytes() for name in ("valid", "test"))
    yield _section("WikiText-2", [line for text in wiki for line in text.split(b"\n")])


def _section(name: str, lines: list[bytes], language: str = "en") -> Section:
    kept = tuple(dict.fromkeys(line for line in lines if line.strip()))
    return Section("corpus", name, kept, language)


def _paragraphs(book: bytes) -> list[bytes]:
    return book.replace(b"\r", b"").split(b"\n\n")


def _column(name: str, index: int) -> list[bytes]:
    lines = (DATA / name).read_bytes().split(b"\n")
    return [line.split(b"\t")[index] for line in lines if line]


def sst2(split: str) -> list[tuple[str, str]]:
    """Sentences and labels, "0" or "1", of SST-2's "train" or "dev" set."""
    lines = (DATA / "glue" / "SST-2" / f"{split}.tsv").read_text("utf-8").split("\n")[1:]
    return [(sentence, label) for sentence, label in (x.split("\t") for x in lines if x)]


def _sentences(path: Path) -> list[bytes]:
    blocks = path.read_bytes().split(b"\n\n")
    return [b" ".join(line.split(b" ")[0] for line in block.strip().split(b"\n"))
            for block in blocks if b"-DOCSTART-" not in block]  # fmt: skip


def _contexts(*names: str) -> list[bytes]:
    return [
        paragraph["context"].encode("utf-8")
        for name in names
        for article in json.loads((DATA / name).read_bytes())["data"]
        for paragraph in article["paragraphs"]
    ]


def corpus_lines(count: int = 15_000) -> list[bytes]:
    """Returns real lines, the same number from each source."""
    sources = list(corpus())
    samples = (source.sample(count // len(sources)).lines for source in sources)
    return list(itertools.chain.from_iterable(samples))


def book_lines() -> list[bytes]:
    """Returns the original lines of the books, without line ends."""
    lines = next(corpus()).lines
    return [line.removesuffix(b"\r") for line in lines]


def book_paragraphs() -> list[bytes]:
    """Returns the books' paragraphs."""
    return list(next(itertools.islice(corpus(), 1, None)).lines)


# Synthetic text.


def characters() -> Iterator[Section]:
    """Yields every Unicode character between letters, in a section for each plane."""
    for plane in range(17):
        lines = (f"a{chr(code)}b".encode() for code in range(plane << 16, plane + 1 << 16)
                 if not 0xD800 <= code < 0xE000)  # fmt: skip
        yield Section("characters", f"plane {plane}", tuple(lines))


def every_character() -> list[bytes]:
    """Returns every Unicode character between letters."""
    return [line for plane in characters() for line in plane.lines]


def hostile() -> tuple[bytes, ...]:
    """Returns texts that are hard for tokenizers: mixed, not UTF-8, long words, spaces, empty."""
    return (*hostile_lines(5_000), *broken_lines(1_000), *long_lines(), *blank_lines())


def hostile_lines(count: int = 5_000, seed: int = 0) -> list[bytes]:
    """Returns random mixes of characters that tokenizers disagree about."""
    rng = random.Random(seed)
    alphabets = _alphabets()
    lines = []
    for _ in range(count):
        kind = rng.random()
        size = rng.randint(1, 40)
        if kind < 0.15:
            line = list(map(chr, rng.sample(_codepoints(), size)))
        elif kind < 0.55:
            alphabet = rng.choice(alphabets)
            line = [rng.choice(alphabet) for _ in range(size)]
        else:
            line = [rng.choice(rng.choice(alphabets)) for _ in range(size)]
        gap = rng.choice(["", "", " "])
        lines.append(gap.join(line).encode("utf-8"))
    return lines


@functools.cache
def _codepoints() -> list[int]:
    return [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


@functools.cache
def _alphabets() -> list[list[str]]:
    ranges = [
        [range(0x20, 0x7F)],
        [range(0x80, 0x250)],
        [range(0x300, 0x370), range(0x483, 0x48A), [0x20DD, 0x302E, 0x1D165]],
        [range(0x370, 0x530)],
        [range(0x590, 0x700)],
        [range(0x900, 0xE80)],
        [range(0x1100, 0x1200), range(0xAC00, 0xD7A4, 7)],
        [range(0x1E00, 0x2000)],
        [range(0x2000, 0x2C00)],
        [range(0x3000, 0x3400), range(0x4E00, 0xA000, 11)],
        [range(0xA000, 0xA800, 3), range(0xE000, 0xFB50, 9)],
        [range(0xFB00, 0xFFFE)],
        [range(0x10000, 0x1FB00, 17)],
        [[0x2B820, 0x2B91F, 0x2B920, 0x2CEAF], range(0x20000, 0x30000, 997)],
        [range(0x1F300, 0x1FA00), [0x200D, 0xFE0F, 0x20E3]],
        [range(0xFF00, 0xFFF0), [0x2047, 0x2026, 0xFB01, 0x33A1]],
    ]
    return [
        *([chr(code) for part in parts for code in part] for parts in ranges),
        list("\0\t\n\r\x0b\x0c\x1c\x1d\x85\xa0\xad\u1680\u180e\u200b\u200e\u202e\u2028\u2029"
             "\u202f\u205f\u2060\u3000\ufeff\ufffd\ufffc\x7f\ue000\U000f0000\x01\x02\x11"),
        list("İıſßẞŉǰΣσςΐΰﬁﬃǅǆÅÅΩΩKK½²①ĲŁØÐÞæ" "가각힣ậệẤ"),
        [*SPECIAL_TOKENS, "[MASK", "CLS]", "[mask]", "<MASK>", "[ MASK ]", "[MA\u0301SK]", "[[",
         "]]", "##", "#", "<", ">", "<|", "</", "<special", "▁", "</w>", "@@", "Ġ"],
        ["a" * 99, "b" * 100, "c" * 101, "é" * 100, "é" * 101, "ま" * 34, "ま" * 101, "-" * 120],
        ["the", "un", "##able", "able", "ing", "don't", "U.S.", "3.14", "e\u0301", "x\u0323\u0301",
         "9,", "9,9", "1,000,", "we'll", "'S", "'ll", "``", "''", " \n ", "\n\n", "  ", "\t\t", "à",
         "l'", "…", "。", "，", "（", "-", "--", "http://x.org/a?b=c&d", "a@b.c", "100%", "$5"],
    ]  # fmt: skip


def broken_lines(count: int = 1_000, seed: int = 1) -> list[bytes]:
    """Returns texts that are not UTF-8: bytes changed, removed, or random."""
    rng = random.Random(seed)
    # Truncated, overlong, a surrogate, beyond the last plane, bytes that never occur.
    parts = [b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80",
             b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff", b"\xfe",
             b"\x80", b"\xbf\xbf", b"[MA\xffSK]", b"<s\xe2\x96>", b" \x80 "]  # fmt: skip
    lines = []
    for index, line in enumerate(hostile_lines(count, seed)):
        data = bytearray(line[:120])
        if index % 5 == 0:
            data = bytearray(rng.randbytes(rng.randint(1, 60)))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            choice = rng.random()
            if choice < 0.4:
                data[at:at] = rng.choice(parts)
            elif choice < 0.7:
                data[at : at + 1] = b""
            else:
                data[at : at + 1] = rng.randbytes(1)
        lines.append(bytes(data))
    return lines


def long_lines(size: int = 10_000, seed: int = 2) -> list[bytes]:
    """Returns words, and a few texts, of `size` characters."""
    rng = random.Random(seed)
    alphabets = [
        "a", "é", "ま", "한", "中", "ß", "1", "-", "\u0301", "👩\u200d", "ab", "the", "er", "aA1!",
        "abcdefghijklmnopqrstuvwxyz", "etaoinshr", "0123456789", "абвгд", "ابتث", "\u200b", " ",
        "\n", "a ", " \n", "[MASK]", "<s>", "'", ",9", "\ufffd",
    ]  # fmt: skip
    lines = ["".join(itertools.islice(itertools.cycle(alphabet), size)) for alphabet in alphabets]
    lines += ["".join(rng.choices(alphabet, k=size)) for alphabet in alphabets if len(alphabet) > 2]
    lines.append("".join(map(chr, rng.choices(_codepoints(), k=size))))
    return [line.encode("utf-8") for line in lines]


def blank_lines() -> list[bytes]:
    """Returns an empty text, and white space of every kind."""
    spaces = [" ", "\t", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680",
              "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff",
              "\0"]  # fmt: skip
    around = [("", ""), ("a", "b"), ("", "a"), ("a", ""), ("<s>", "[MASK]"), ("<s> a", "<mask>")]
    lines = [
        before + space * count + after
        for space in spaces
        for count in (1, 2, 3, 17)
        for before, after in around
    ]
    return [b"", *(line.encode("utf-8") for line in lines)]


# Invalid UTF-8.

_replaced: list[tuple[int, int]] = []


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    _replaced.append((error.start, error.end))
    return "\ufffd", error.end


codecs.register_error("bertfam-replace", _replace)


def decoded(line: bytes | str) -> str:
    """Returns the text as `bytes.decode(errors="replace")` reads it."""
    return line if isinstance(line, str) else line.decode("utf-8", "replace")


def decoded_with_offsets(line: bytes | str) -> tuple[str, list[int]]:
    """Returns the text, and the byte offset of each character and of the end."""
    if isinstance(line, str):
        line = line.encode("utf-8")
    _replaced.clear()
    text = line.decode("utf-8", "bertfam-replace")
    replaced = dict(_replaced)
    at = [0]
    for char in text:
        at.append(replaced.get(at[-1]) or at[-1] + len(char.encode("utf-8")))
    assert at[-1] == len(line)
    return text, at

"""Compares WordPieceTokenizer with Hugging Face's `tokenizers`: ids, offsets and speed.

    python tools/compare_wordpiece.py differences     # lines that differ, per vocabulary
    python tools/compare_wordpiece.py speed           # MB/s on one thread, with ratios

The data folder (see its README) is found at $BERTFAM_DATA or at ../shared/data beside the
repository.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
DATA = pathlib.Path(os.environ.get("BERTFAM_DATA", ROOT.parent / "shared" / "data"))
VOCABULARIES = {"bert-base-uncased": True, "bert-base-cased": False,
                "bert-base-multilingual-cased": False}  # fmt: skip
SPECIAL = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]


def reference(vocabulary: pathlib.Path, lower_case: bool, **flags):
    """Builds the `tokenizers` pipeline that transformers' BertTokenizerFast is."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

    pieces = vocabulary.read_text(encoding="utf-8").split("\n")[:-1]
    model = models.WordPiece({piece: index for index, piece in enumerate(pieces)},
                             unk_token="[UNK]", max_input_chars_per_word=100)  # fmt: skip
    tokenizer = Tokenizer(model)
    settings = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    tokenizer.normalizer = normalizers.BertNormalizer(
        **(settings | {"lowercase": lower_case} | flags)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token in SPECIAL])  # fmt: skip
    return tokenizer


def expected(tokenizer, line: str) -> tuple[list[int], list[int], list[int]]:
    """Returns the reference's ids and its offsets, turned from characters into bytes."""
    encoding = tokenizer.encode(line, add_special_tokens=False)
    at = [0]
    for char in line:
        at.append(at[-1] + len(char.encode("utf-8", "surrogatepass")))
    starts, ends = zip(*encoding.offsets, strict=True) if encoding.offsets else ((), ())
    return encoding.ids, [at[i] for i in starts], [at[i] for i in ends]


def corpus_lines(count: int = 15_000) -> list[str]:
    """Returns real lines, spread evenly over every text the folder has."""
    sources: list[list[str]] = []
    for language in ("en", "fr", "de", "es", "zh", "ar"):
        text = (DATA / f"xnli/dev-{language}.tsv").read_text(encoding="utf-8")
        sources.append([field for line in text.split("\n") for field in line.split("\t")[:2]])
    for language in ("en", "de", "fr", "cs"):
        packed = (DATA / f"multi30k/raw/train.{language}.gz").read_bytes()
        sources.append(gzip.decompress(packed).decode("utf-8").split("\n"))
    for path in sorted((DATA / "gutenberg").glob("*.txt")):
        sources.append(path.read_bytes().decode("utf-8").split("\n"))
    for path in (DATA / "wikitext-2/valid.txt", DATA / "glue/SST-2/train.tsv",
                 DATA / "glue/CoLA/train.tsv"):  # fmt: skip
        sources.append(path.read_text(encoding="utf-8").split("\n"))
    questions = json.loads((DATA / "tydiqa/tydiqa.goldp.en.dev.json").read_text(encoding="utf-8"))
    sources.append([paragraph["context"] for article in questions["data"]
                    for paragraph in article["paragraphs"]])  # fmt: skip
    share = count // len(sources)
    chosen = [
        line
        for lines in ([line for line in lines if line.strip()] for lines in sources)
        for line in lines[:: max(1, len(lines) // share)]
    ]
    return chosen


def every_character() -> Iterator[str]:
    """Yields every Unicode character between letters."""
    for codepoint in range(0x110000):
        if not 0xD800 <= codepoint < 0xE000:
            yield f"a{chr(codepoint)}b"


def hostile_lines(count: int = 5_000, seed: int = 0) -> list[str]:
    """Returns random mixes of characters that tokenizers disagree about."""
    rng = random.Random(seed)
    alphabets = [
        [chr(c) for c in range(0x20, 0x7F)],
        [chr(c) for c in range(0x80, 0x250)],
        [chr(c) for c in [*range(0x300, 0x370), *range(0x483, 0x48A), 0x20DD, 0x302E, 0x1D165]],
        [chr(c) for c in range(0x370, 0x530)],
        [chr(c) for c in range(0x590, 0x700)],
        [chr(c) for c in range(0x900, 0xE80)],
        [chr(c) for c in [*range(0x1100, 0x1200), *range(0xAC00, 0xD7A4, 7)]],
        [chr(c) for c in range(0x1E00, 0x2000)],
        [chr(c) for c in range(0x2000, 0x2C00)],
        [chr(c) for c in [*range(0x3000, 0x3400), *range(0x4E00, 0xA000, 11)]],
        [chr(c) for c in [*range(0xA000, 0xA800, 3), *range(0xE000, 0xFB50, 9)]],
        [chr(c) for c in range(0xFB00, 0x10000) if c < 0xFFFE],
        [chr(c) for c in range(0x10000, 0x1FB00, 17)],
        [chr(c) for c in [0x2B820, 0x2B91F, 0x2B920, 0x2CEAF, *range(0x20000, 0x30000, 997)]],
        [chr(c) for c in range(0x1F300, 0x1FA00)] + ["\u200d", "\ufe0f", "\u20e3"],
        list("\0\t\n\r\x0b\x0c\x1c\x1d\x85\xa0\xad\u1680\u180e\u200b\u200e\u202e\u2028\u2029"
             "\u202f\u205f\u2060\u3000\ufeff\ufffd\ufffc\x7f\ue000\U000f0000\x01\x02\x11"),
        list("İıſßẞŉǰΣσςΐΰﬁﬃǅǆÅÅΩΩKK½²①ĲŁØÐÞæ" "가각힣ậệẤ"),
        [*SPECIAL, "[MASK", "CLS]", "[mask]", "[ MASK ]", "[MA\u0301SK]", "[[", "]]", "##", "#"],
        ["a" * 99, "b" * 100, "c" * 101, "é" * 100, "é" * 101, "ま" * 34, "ま" * 101, "-" * 120],
        ["the", "un", "##able", "able", "ing", "don't", "U.S.", "3.14", "e\u0301", "x\u0323\u0301"],
    ]  # fmt: skip
    assigned = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    lines = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.15:
            line = [chr(c) for c in rng.sample(assigned, rng.randint(1, 40))]
        elif kind < 0.55:
            alphabet = rng.choice(alphabets)
            line = [rng.choice(alphabet) for _ in range(rng.randint(1, 40))]
        else:
            line = [rng.choice(rng.choice(alphabets)) for _ in range(rng.randint(1, 40))]
        gap = rng.choice(["", "", " "])
        lines.append(gap.join(line))
    return lines


def count_differences(ours, theirs, lines: list[str], show: int) -> tuple[int, int]:
    """Returns on how many lines the ids differ, and on how many of the others the offsets."""
    wrong_ids = wrong_offsets = 0
    for begin in range(0, len(lines), 1024):
        batch = lines[begin : begin + 1024]
        ids, starts, ends = (value.to_list() for value in ours.tokenize_with_offsets(batch))
        plain = ours.tokenize(batch).to_list()
        for line, row, alone, start, end in zip(batch, ids, plain, starts, ends, strict=True):
            want = expected(theirs, line)
            if row != want[0] or alone != want[0]:
                wrong_ids += 1
            elif start != want[1] or end != want[2]:
                wrong_offsets += 1
            else:
                continue
            if wrong_ids + wrong_offsets <= show:
                print("   ", ascii(line)[:300])
                print("      ours  ", row[:40], list(zip(start, end, strict=True))[:40])
                print("      theirs", want[0][:40], list(zip(want[1], want[2], strict=True))[:40])
    return wrong_ids, wrong_offsets


def differences(show: int) -> int:
    from bertfam_tf.text.wordpiece import WordPieceTokenizer

    groups = {"corpus": corpus_lines(), "hostile": hostile_lines(),
              "every character": list(every_character())}  # fmt: skip
    total = 0
    for name, lower_case in VOCABULARIES.items():
        path = DATA / "vocab" / name / "vocab.txt"
        ours = WordPieceTokenizer(path, lower_case=lower_case)
        theirs = reference(path, lower_case)
        for group, lines in groups.items():
            ids, offsets = count_differences(ours, theirs, lines, show)
            total += ids + offsets
            print(f"{name:30} {group:16} {len(lines):>9,} lines: {ids} differ in ids, "
                  f"{offsets} more in offsets")  # fmt: skip
    return total


def speed() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tensorflow as tf
    import tensorflow_text as tf_text

    from bertfam_tf.text.wordpiece import WordPieceTokenizer

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    books = "".join(path.read_bytes().decode("utf-8")
                    for path in sorted((DATA / "gutenberg").glob("*.txt")))  # fmt: skip
    lines = [line for line in books.replace("\r", "").split("\n\n") if line.strip()][:20_000]
    megabytes = sum(len(line.encode("utf-8")) for line in lines) / 1e6
    batches = [tf.constant(lines[i : i + 256]) for i in range(0, len(lines), 256)]
    plain = [lines[i : i + 256] for i in range(0, len(lines), 256)]
    print(f"{len(lines):,} paragraphs, {megabytes:.1f} MB, batches of 256")
    for name, lower_case in VOCABULARIES.items():
        path = DATA / "vocab" / name / "vocab.txt"
        ours = WordPieceTokenizer(path, lower_case=lower_case)
        ids = tf.function(ours.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
        offsets = tf.function(ours.tokenize_with_offsets,
                              input_signature=[tf.TensorSpec([None], tf.string)])  # fmt: skip
        fast = tf_text.FastBertTokenizer(
            vocab=ours.vocabulary, lower_case_nfd_strip_accents=lower_case, token_out_type=tf.int32
        )
        fast_ids = tf.function(fast.tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
        theirs = reference(path, lower_case)
        runs: dict[str, Callable[[], object]] = {
            "ours, ids": lambda ids=ids: [ids(batch) for batch in batches],
            "ours, ids and offsets": lambda f=offsets: [f(batch) for batch in batches],
            "tf_text.FastBertTokenizer": lambda f=fast_ids: [f(batch) for batch in batches],
            "tokenizers, no offsets": lambda t=theirs: [
                t.encode_batch_fast(batch, add_special_tokens=False) for batch in plain
            ],
            "tokenizers": lambda t=theirs: [t.encode_batch(batch, add_special_tokens=False)
                                            for batch in plain],
        }  # fmt: skip
        rates: dict[str, list[float]] = {what: [] for what in runs}
        for run in runs.values():
            run()
        # In turns, so that a busy machine is unfair to all alike.
        for _ in range(3):
            for what, run in runs.items():
                begin = time.process_time()
                run()
                rates[what].append(megabytes / (time.process_time() - begin))
        middle = {what: statistics.median(values) for what, values in rates.items()}
        print(name)
        for what, rate in middle.items():
            print(f"  {what:28} {rate:6.2f} MB/s   {rate / middle['tokenizers']:.2f} x tokenizers"
                  f"   {rate / middle['tf_text.FastBertTokenizer']:.2f} x FastBert")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("differences", "speed"))
    parser.add_argument("--show", type=int, default=3, help="differing lines to print")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if not DATA.is_dir():
        sys.exit(f"no data at {DATA}; set BERTFAM_DATA")
    if arguments.what == "speed":
        speed()
    elif differences(arguments.show):
        sys.exit(1)


if __name__ == "__main__":
    main()

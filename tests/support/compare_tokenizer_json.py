"""Compares tokenizers read from `tokenizer.json` with the library that the file is written for.

    python -m tests.support.compare_tokenizer_json                 # all files; writes the table
    python -m tests.support.compare_tokenizer_json gpt2 xlnet      # these; replaces their rows
    python -m tests.support.compare_tokenizer_json --quick gpt2    # fewer lines; writes nothing

The files are those of published kinds, made from the vocabularies in the data folder, and small
ones that the library's trainers write.  Nothing but `tokenizer.json`, and the names of special
tokens in `tokenizer_config.json`, is read.  tests/support/texts.py has the text,
tools/results/tokenizer_json.md the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tests.support import texts
from tests.support.compare_tokenizers import BATCH, GROUPS, RESULTS, Count, compare
from tests.support.subjects import expected_rows
from tests.support.tokenizer_json_subjects import SUBJECTS, Made

# Lines that are packed, alone and with the next one.
PACKED = 600
# Characters in a line.
TOGETHER = 64
TABLE = RESULTS / "tokenizer_json.md"


def write(made: Made, directory: Path) -> Path:
    """Writes the two files of a tokenizer; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    made[0].save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **made[1]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return directory


# Comparisons.


def packed_differences(ours: Any, reference: Any, lines: Sequence[bytes]) -> int:
    """Returns how many lines, alone and in pairs, differ with special tokens."""
    from bertfam_tf.text import Packer

    packer = Packer(ours.layout, {"pad": 0, **ours.special_ids}, 1 << 20)
    wrong = 0
    for begin in range(0, len(lines), 256):
        a = list(lines[begin : begin + 256])
        b = [*a[1:], *a[:1]]
        for batch in ([a], [a, b]):
            packed = packer([ours.tokenize(part) for part in batch])
            found = {name: part.numpy() for name, part in packed.items()}
            rows = list(zip(*(map(texts.decoded, part) for part in batch), strict=True))
            given = rows if len(batch) > 1 else [row[0] for row in rows]
            for i, row in enumerate(reference.encode_batch(given)):
                used = found["padding_mask"][i] == 1
                wrong += (
                    found["token_ids"][i][used].tolist() != row.ids
                    or found["segment_ids"][i][used].tolist() != row.type_ids
                )
    return wrong


def in_graph_differences(ours: Any, reference: Any, lines: Sequence[bytes]) -> int:
    """Returns how many lines differ in tf.data and in a SavedModel."""
    import tensorflow as tf

    from tests.support.compare_tokenizers import export

    expected = [row[0] for row in expected_rows(reference, lines)]
    dataset = tf.data.Dataset.from_tensor_slices(list(lines)).batch(64).map(ours.tokenize)
    rows = [row for batch in dataset for row in batch.to_list()]
    wrong = sum(map(_differ, rows, expected))
    with tempfile.TemporaryDirectory() as directory:
        export(ours, directory)
        served = tf.saved_model.load(directory).signatures["serving_default"]
        found = {name: part.numpy() for name, part in served(text=tf.constant(list(lines))).items()}
        for name in ("ids", "plain"):
            spans = itertools.pairwise(found["splits"].tolist())
            rows = [found[name][begin:end].tolist() for begin, end in spans]
            wrong += sum(map(_differ, rows, expected))
    return wrong


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other)


@functools.cache
def sections(sample: int, every: int) -> list[texts.Section]:
    """Returns lines of each corpus, the hostile strings, and characters, 64 to a line.

    Args:
        sample: about how many lines of a corpus; 0 for all.
        every: which of the other lines are left: one of so many.
    """
    result = []
    for section in texts.sections():
        if section.group == "corpus":
            result.append(section.sample(sample) if sample else section)
            continue
        lines = section.lines
        if section.group == "characters":
            starts = range(0, len(lines), TOGETHER)
            lines = tuple(b" ".join(lines[at : at + TOGETHER]) for at in starts)
        result.append(dataclasses.replace(section, lines=lines[::every]))
    return result


def differences(
    name: str, parts: Sequence[texts.Section], show: int, bar: Any = None
) -> tuple[list[Count], int, int]:
    """Compares one tokenizer: the counts of each section, those packed, those in graphs."""
    from bertfam_tf.text import load_tokenizer

    made = SUBJECTS[name]()
    with tempfile.TemporaryDirectory() as directory:
        ours = load_tokenizer(write(made, Path(directory)))
    counts = []
    mixed: list[bytes] = []
    for part in parts:
        counts.append(compare(ours, part, _rows_of(made[0], part), show))
        mixed += part.sample(40).lines if part.group != "characters" else ()
        if bar is not None:
            bar.update(len(part.lines))
    mixed += texts.hostile_lines(PACKED // 2, seed=11)
    lines = mixed[:: max(1, len(mixed) // PACKED)]
    packed = packed_differences(ours, made[0], lines)
    return counts, packed, in_graph_differences(ours, made[0], lines)


def _rows_of(reference: Any, section: texts.Section) -> Iterator[Any]:
    for begin in range(0, len(section.lines), BATCH):
        yield from expected_rows(reference, section.lines[begin : begin + BATCH])


def _cells(counts: list[Count]) -> Iterator[str]:
    for group in GROUPS:
        found = [count for count in counts if count.section.group == group]
        yield (
            f"{sum(c.ids for c in found):,} + {sum(c.offsets or 0 for c in found):,} of "
            f"{sum(c.lines for c in found):,}"
        )


def _earlier_rows() -> list[list[str]]:
    lines = TABLE.read_text("utf-8").split("\n") if TABLE.is_file() else []
    rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] in SUBJECTS]


def table(rows: list[list[str]]) -> str:
    """Returns the results in Markdown."""
    packages = ("tensorflow", "tensorflow-text", "tokenizers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    head = ["tokenizer.json", *GROUPS, "packed", "in graphs"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return (
        "# tokenizer.json compared with the library tokenizers\n\n"
        f"`python -m tests.support.compare_tokenizer_json`, {datetime.date.today()}: "
        f"{versions}.\n\n"
        "“a + b of n”: of n lines, a differ in ids, b others in offsets. Packed: lines that "
        "differ with their special tokens and segment ids, alone or in pairs. In graphs: lines "
        f"that differ in tf.data or in a SavedModel, with or without offsets. "
        f"A line of characters has {TOGETHER} of them, each between two letters.\n\n{body}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="files, or all")
    parser.add_argument("--quick", action="store_true", help="fewer lines; writes no table")
    parser.add_argument("--sample", type=int, default=1_500, help="lines of a corpus; 0 for all")
    parser.add_argument("--show", type=int, default=0, help="differing lines to print a section")
    arguments = parser.parse_args()
    names = arguments.names or list(SUBJECTS)
    if set(names) - set(SUBJECTS):
        parser.error(f"files are {', '.join(SUBJECTS)}")
    if not texts.DATA.is_dir():
        sys.exit(f"No data at {texts.DATA}: make data, or set BERTFAM_DATA.")
    parts = sections(150, 30) if arguments.quick else sections(arguments.sample, 1)
    rows, right = [] if arguments.quick else _earlier_rows(), True
    with tqdm(unit=" lines", unit_scale=True) as bar:
        for name in names:
            bar.set_description(name)
            counts, packed, served = differences(name, parts, arguments.show, bar)
            row = [name, *_cells(counts), str(packed), str(served)]
            rows = [*(each for each in rows if each[0] != name), row]
            right &= not (packed or served or any(count.ids for count in counts))
            bar.write(" | ".join(row))
            if not arguments.quick:
                rows.sort(key=lambda each: list(SUBJECTS).index(each[0]))
                TABLE.write_text(table(rows), "utf-8")
    sys.exit(not right)


if __name__ == "__main__":
    main()

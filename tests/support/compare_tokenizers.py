"""Compares our tokenizers with the references: ids, offsets, and the results of SavedModels.

    python -m tests.support.compare_tokenizers                  # ids and offsets; writes the table
    python -m tests.support.compare_tokenizers --quick gpt2     # a sample; writes nothing
    python -m tests.support.compare_tokenizers saved-model      # exports, run without bertfam_tf

The references for BERT, GPT-2 and RoBERTa are computed by the `tokenizers` library; those for
ALBERT, XLNet, GPT and XLM are files written by `make tokenizer-references`.
tests/support/texts.py has the text, tools/results/tokenizers.md the table.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from tests.support import texts
from tests.support.subjects import SUBJECTS, Subject, expected_rows
from tests.support.tokenizer_references import DIRECTORY, path_of, read_ids

RESULTS = texts.ROOT / "tools" / "results"
GROUPS = ("corpus", "hostile", "characters")
BATCH = 1024

Row = tuple[list[int], list[int], list[int]]


@dataclasses.dataclass
class Count:
    """The results for one section.

    Args:
        section: the section, without its lines.
        lines: the number of lines compared.
        ids: the number of lines with different ids.
        offsets: the number of other lines with different offsets; None without reference offsets.
        common, most: the sums over lines of the number of common pieces, and of the larger number
            of pieces.
        differing: the lines that differ.
    """

    section: texts.Section
    lines: int = 0
    ids: int = 0
    offsets: int | None = None
    common: int = 0
    most: int = 0
    differing: list[bytes] = dataclasses.field(default_factory=list)


def _rows_of_ours(tokenizer: Any, lines: Sequence[bytes | str]) -> Iterator[tuple[list[int], Row]]:
    """Yields each line's ids from `tokenize`, and the result of `tokenize_with_offsets`."""
    for begin in range(0, len(lines), BATCH):
        batch = list(lines[begin : begin + BATCH])
        plain = tokenizer.tokenize(batch).to_list()
        with_offsets = (value.to_list() for value in tokenizer.tokenize_with_offsets(batch))
        yield from zip(plain, zip(*with_offsets, strict=True), strict=True)


def _rows_of_reference(reference: Any, section: texts.Section) -> Iterator[Row]:
    for begin in range(0, len(section.lines), BATCH):
        yield from expected_rows(reference, section.lines[begin : begin + BATCH])


def compare(
    tokenizer: Any,
    section: texts.Section,
    expected: Iterable[Row | list[int]],
    show: int = 0,
) -> Count:
    """Compares one section.

    Args:
        tokenizer: ours.
        section: the text.
        expected: for each line ids, or ids, starts and ends.
        show: the number of differing lines to print.
    """
    count = Count(dataclasses.replace(section, lines=()))
    ours = _rows_of_ours(tokenizer, section.lines)
    for line, (plain, found), wanted in zip(section.lines, ours, expected, strict=True):
        has_offsets = isinstance(wanted, tuple)
        ids = wanted[0] if has_offsets else wanted
        count.lines += 1
        if has_offsets and count.offsets is None:
            count.offsets = 0
        count.most += max(len(plain), len(ids))
        if plain == found[0] == ids:
            count.common += len(ids)
            if not has_offsets or found == wanted:
                continue
            count.offsets += 1
        else:
            shared = collections.Counter(plain) & collections.Counter(ids)
            count.common += shared.total()
            count.ids += 1
        count.differing.append(line)
        if len(count.differing) <= show:
            _show(line, plain, found, wanted if has_offsets else (ids, [], []))
    return count


def _show(line: bytes | str, plain: list[int], found: Row, wanted: Row) -> None:
    """Prints a line's pieces from the first difference."""
    at = next((i for i, pair in enumerate(zip(plain, found[0], wanted[0], strict=False))
               if len(set(pair)) > 1), 0)  # fmt: skip
    tqdm.write(f"    {ascii(line)[:300]}, from piece {at} on")
    tqdm.write(f"      ours without offsets {plain[at : at + 20]}")
    tqdm.write(f"      ours with offsets    {found[0][at : at + 20]}")
    tqdm.write(f"      theirs               {wanted[0][at : at + 20]}")
    if wanted[1] and plain == found[0] == wanted[0]:
        spans = zip(*found[1:], *wanted[1:], strict=True)
        differing = [span for span in spans if span[:2] != span[2:]]
        tqdm.write(f"      start and end, ours and theirs: {differing[:10]}")


def count_differences(
    tokenizer: Any, reference: Any, lines: Sequence[bytes | str], show: int
) -> tuple[int, int]:
    """Returns the number of lines with different ids, and of others with different offsets."""
    section = texts.Section("corpus", "lines", tuple(lines))
    count = compare(tokenizer, section, _rows_of_reference(reference, section), show)
    return count.ids, count.offsets or 0


# All sections.


def differences(subjects: list[Subject], sample: int, show: int) -> dict[str, list[Count]]:
    """Compares everything, or about `sample` lines of each section."""
    sections = list(texts.sections())
    counts: dict[str, list[Count]] = {}
    total = sum(len(section.lines) for section in sections) * len(subjects)
    with tqdm(total=total, unit=" lines", unit_scale=True) as bar:
        for subject in subjects:
            found = counts[subject.name] = []
            reference = subject.reference() if subject.live else None
            languages: dict[str, Any] = {}
            for section in sections:
                bar.set_description(f"{subject.name}: {section.name}")
                language = section.language if subject.by_language else "en"
                if language not in languages:
                    languages[language] = subject.ours(language)
                ours = languages[language]
                part = section.sample(sample) if sample else section
                if reference is not None:
                    found.append(compare(ours, part, _rows_of_reference(reference, part), show))
                else:
                    rows = _rows_of_files(subject.name, section)[:: _step(section, sample)]
                    found.append(compare(ours, part, rows, show))
                    if language == "zh":
                        found.append(compare(ours, _segmented(part), rows, show))
                bar.update(len(section.lines))
            for line in _summary(subject.name, found):
                bar.write(line)
    return counts


def _rows_of_files(name: str, section: texts.Section) -> list[list[int]]:
    rows = read_ids(path_of(name, "python", section), section)
    if rows is None:
        raise SystemExit(
            f"no reference ids for {name} on {section.name!r} in {DIRECTORY}: "
            "make tokenizer-references"
        )
    return rows


def _segmented(section: texts.Section) -> texts.Section:
    """Returns Chinese lines segmented into words, as in the reference."""
    import rjieba

    lines = (" ".join(rjieba.cut(texts.decoded(line))).encode("utf-8") for line in section.lines)
    return dataclasses.replace(
        section, group="cut", lines=tuple(lines), language="zh, words segmented by rjieba"
    )


def _step(section: texts.Section, sample: int) -> int:
    return max(1, len(section.lines) // sample) if sample else 1


def _summary(name: str, counts: list[Count]) -> Iterator[str]:
    for group in GROUPS:
        of_group = [count for count in counts if count.section.group == group]
        lines, ids, offsets = totals(of_group)
        text = "no offsets in the reference" if offsets is None else f"{offsets} more in offsets"
        yield f"{name:30} {group:10} {lines:>9,} lines: {ids} differ in ids, {text}"


def totals(counts: list[Count]) -> tuple[int, int, int | None]:
    offsets = [count.offsets for count in counts if count.offsets is not None]
    return (
        sum(count.lines for count in counts),
        sum(count.ids for count in counts),
        sum(offsets) if offsets else None,
    )


# The table.


def table(counts: dict[str, list[Count]], command: str) -> str:
    """Returns the results in Markdown."""
    parts = [
        "# Tokenizers compared with their references",
        _made_by(command),
        "The number of lines with different ids, and of the other lines, those with different byte "
        "offsets. Each line is tokenized twice, with and without offsets.",
        _main_table(counts),
        "## Text",
        _text_table(counts),
    ]
    if any(subject.by_language and subject.name in counts for subject in SUBJECTS.values()):
        parts += ["## Agreement by language", _language_table(counts)]
    parts += ["## Characters that differ", *_character_lists(counts)]
    fast = _fast_table(counts)
    if fast:
        parts += [
            "## Differences between the fast and the Python classes of the reference",
            "The number of lines with different ids in the two classes; this library follows the "
            "Python classes.",
            fast,
        ]
    return "\n\n".join(parts) + "\n"


def _made_by(command: str) -> str:
    packages = ("tensorflow", "tensorflow-text", "tokenizers", "sentencepiece")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    requirements = (texts.ROOT / "tools/references-requirements.txt").read_text("utf-8")
    pinned = dict(line.split("==") for line in requirements.split("\n") if "==" in line)
    theirs = ", ".join(
        f"{name} {pinned[name]}" for name in ("transformers", "sentencepiece", "sacremoses")
    )
    return (
        f"`{command}`, {datetime.date.today()}: Python {sys.version.split()[0]} (Unicode "
        f"{unicodedata.unidata_version}), {versions}. References made with {theirs}."
    )


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _main_table(counts: dict[str, list[Count]]) -> str:
    def cells(name: str) -> Iterator[str]:
        yield name
        yield "`tokenizers`" if SUBJECTS[name].live else "Python class"
        for group in GROUPS:
            _, ids, offsets = totals([c for c in counts[name] if c.section.group == group])
            yield f"{ids:,} + {offsets:,}" if offsets is not None else f"{ids:,}"

    def total(group: str) -> int:
        return totals([c for c in next(iter(counts.values())) if c.section.group == group])[0]

    head = ["tokenizer", "reference", *(f"{group}: {total(group):,} lines" for group in GROUPS)]
    return markdown(head, (list(cells(name)) for name in counts)) + (
        "\n\n“a + b”: a lines differ in ids, b other lines in offsets."
    )


def _text_table(counts: dict[str, list[Count]]) -> str:
    first = next(iter(counts.values()))
    rows = [[c.section.name, f"{c.lines:,}"] for c in first if c.section.group == "corpus"]
    return markdown(["corpus", "lines"], rows) + (
        "\n\nHostile strings: mixes of scripts and controls, special tokens of every family, bytes "
        "that are not UTF-8, words of 10,000 characters, all types of white space, empty strings. "
        "Characters: every Unicode character between two letters."
    )


def _language_table(counts: dict[str, list[Count]]) -> str:
    rows = []
    for name in counts:
        if not SUBJECTS[name].by_language:
            continue
        by_language = collections.defaultdict(list)
        for count in counts[name]:
            if count.section.group in ("corpus", "cut"):
                by_language[count.section.language].append(count)
        for language, of_language in by_language.items():
            lines, ids, _ = totals(of_language)
            common = sum(c.common for c in of_language)
            most = sum(c.most for c in of_language)
            rows.append([name, language, f"{lines:,}", f"{1 - ids / lines:.4%}",
                         f"{common / max(most, 1):.4%}"])  # fmt: skip
    return markdown(["tokenizer", "language", "lines", "equal lines", "common pieces"], rows)


def _character_lists(counts: dict[str, list[Count]]) -> Iterator[str]:
    for name, of_name in counts.items():
        codes = sorted(ord(texts.decoded(line)[1]) for count in of_name for line in count.differing
                       if count.section.group == "characters")  # fmt: skip
        yield f"{name}: {len(codes):,}" + (f" ({_ranges(codes)})." if codes else ".")
        lines = [texts.decoded(line) for count in of_name for line in count.differing
                 if count.section.group in ("corpus", "hostile")]  # fmt: skip
        if SUBJECTS[name].by_language or not lines:
            continue
        listed = set(map(chr, codes))
        yield (
            f"Of the {len(lines):,} lines of the corpus and hostile strings on which {name} "
            f"differs, {sum(not listed.isdisjoint(line) for line in lines):,} contain one of these"
            f", and {sum(any(map(_moves, line)) for line in lines):,} a mark that accent stripping "
            "leaves and canonical order moves (see `WordPieceTokenizer`). The shortest: "
            + ", ".join(f"`{line!a}`" for line in sorted(lines, key=len)[:3]) + "."
        )  # fmt: skip


def _moves(char: str) -> bool:
    return unicodedata.combining(char) > 0 and unicodedata.category(char) != "Mn"


def _ranges(codes: list[int]) -> str:
    """Returns sorted code points as ranges, with the general category of each range's first."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ", ".join(
        f"U+{first:04X}" + (f"–{last:04X}" if last > first else "")
        + f" {unicodedata.category(chr(first))}"
        for first, last in ranges
    )  # fmt: skip


def _fast_table(counts: dict[str, list[Count]]) -> str:
    folders = [folder for name in counts for folder in sorted((DIRECTORY / name).glob("fast-*"))]
    rows = [_fast_row(folder.parent.name, folder.name) for folder in folders]
    return markdown(["tokenizer", "transformers", *GROUPS, "examples"], rows) if rows else ""


def _fast_row(name: str, kind: str) -> list[str]:
    lines: collections.Counter[str] = collections.Counter()
    differing: dict[str, list[bytes]] = {group: [] for group in GROUPS}
    for section in texts.sections():
        fast = read_ids(path_of(name, kind, section), section)
        python = read_ids(path_of(name, "python", section), section)
        if fast is not None and python is not None:
            lines[section.group] += len(section.lines)
            pairs = zip(section.lines, fast, python, strict=True)
            differing[section.group] += [line for line, one, other in pairs if one != other]
    cells = [f"{len(differing[group]):,} of {lines[group]:,}" for group in GROUPS]
    shortest = [min(found, key=len) for found in differing.values() if found]
    examples = (ascii(texts.decoded(line)).replace("|", "\\|") for line in shortest)
    return [name, kind.removeprefix("fast-"), *cells, ", ".join(f"`{e}`" for e in examples)]


# SavedModels.


def saved_models(subjects: list[Subject]) -> tuple[list[str], bool]:
    """Exports each tokenizer, runs it without bertfam_tf, and lists its operations.

    Returns:
        a line for each, and whether all results are as expected.
    """
    lines = [line for section in texts.sections() if section.group != "characters"
             for line in section.sample(30).lines]  # fmt: skip
    lines = [*(lines * 2)[:511], b""]
    batches = [lines[:256], lines[256:512], [], *([line] for line in lines[::64])]
    rows, right = [], True
    for subject in subjects:
        with tempfile.TemporaryDirectory() as directory:
            ours = subject.ours()
            export(ours, directory)
            served = _run(directory, batches)
            pairs = zip(served, batches, strict=True)
            wrong = sum(answer != _answer(ours, batch) for answer, batch in pairs)
            operations = json.loads(_script("list_ops.py", directory))
        right &= not (wrong or operations["python"] or operations["unknown"])
        rows.append(
            f"{subject.name}: {wrong} of {len(batches)} batches of 256, 1 and 0 differ; "
            f"{len(operations['core'])} operations of TensorFlow, {len(operations['text'])} of "
            f"tensorflow-text ({', '.join(operations['text'])}), Python: "
            f"{operations['python'] or 'none'}, others: {operations['unknown'] or 'none'}"
        )
        print(rows[-1], flush=True)
    return rows, right


def _saved_models_table(rows: list[str], command: str) -> str:
    return (
        f"# Tokenizers in SavedModels\n\n{_made_by(command)}\n\nEach is exported, loaded by "
        "TensorFlow's C++ loader in a process that can import neither bertfam_tf nor Keras, and "
        "its ids and offsets are compared with those computed here; then the operations of its "
        "graph and functions are listed.\n\n" + "\n".join(f"- {line}" for line in rows) + "\n"
    )


def export(tokenizer: Any, directory: str) -> None:
    """Writes a SavedModel from strings (batch,) to values and row splits of ids and offsets."""
    import tensorflow as tf

    module = tf.Module()
    module.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def serve(text):
        ids, starts, ends = tokenizer.tokenize_with_offsets(text)
        plain = tokenizer.tokenize(text)
        return {
            "ids": ids.values,
            "starts": starts.values,
            "ends": ends.values,
            "splits": ids.row_splits,
            "plain": plain.values,
        }

    module.serve = serve
    tf.saved_model.save(module, directory, signatures=serve)


def _answer(tokenizer: Any, batch: list[bytes]) -> dict[str, list[int]]:
    ids, starts, ends = tokenizer.tokenize_with_offsets(batch)
    parts = {"ids": ids.values, "starts": starts.values, "ends": ends.values,
             "splits": ids.row_splits, "plain": tokenizer.tokenize(batch).values}  # fmt: skip
    return {name: part.numpy().tolist() for name, part in parts.items()}


def _run(directory: str, batches: list[list[bytes]]) -> list[dict[str, list[int]]]:
    """Returns the results of another process for each batch."""
    requests = "\n".join(
        json.dumps({"text": [line.decode("utf-8", "surrogateescape") for line in batch]})
        for batch in batches
    )
    return [
        json.loads(line) for line in _script("run_saved_model.py", directory, requests).splitlines()
    ]


def _script(name: str, directory: str, given: str = "") -> str:
    command = [sys.executable, str(texts.ROOT / "tests" / "support" / name), directory]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=directory)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="saved-model; tokenizers, or all")
    parser.add_argument("--quick", action="store_true", help="a sample; writes no table")
    parser.add_argument("--show", type=int, default=0, help="differing lines to print a section")
    arguments = parser.parse_intermixed_args()
    names = list(arguments.names)
    served = "saved-model" in names
    names = [name for name in names if name != "saved-model"] or list(SUBJECTS)
    if set(names) - set(SUBJECTS):
        parser.error(f"tokenizers are {', '.join(SUBJECTS)}")
    if not texts.DATA.is_dir():
        sys.exit(f"No data at {texts.DATA}: make data, or set BERTFAM_DATA.")
    subjects = [SUBJECTS[name] for name in names]
    command = " ".join(["python -m tests.support.compare_tokenizers", *sys.argv[1:]])
    complete = len(subjects) == len(SUBJECTS) and not arguments.quick
    RESULTS.mkdir(exist_ok=True)
    if served:
        text, right = saved_models(subjects)
        if complete:
            (RESULTS / "saved_models.md").write_text(_saved_models_table(text, command), "utf-8")
        sys.exit(not right)
    counts = differences(subjects, 200 if arguments.quick else 0, arguments.show)
    if complete:
        (RESULTS / "tokenizers.md").write_text(table(counts, command), "utf-8")
    sys.exit(any(_fails(SUBJECTS[name], of_name) for name, of_name in counts.items()))


def _fails(subject: Subject, counts: list[Count]) -> bool:
    """Returns whether there are unexplained differences."""
    corpus = [count for count in counts if count.section.group == "corpus"]
    ids = sum(count.ids for count in counts if count.section.group != "cut")
    return not subject.by_language and bool(ids or totals(corpus)[2])


if __name__ == "__main__":
    main()

"""Checks and measures the corpus pipeline of pretraining, on books.

    make batch-env
    python -m tools.check_corpus --garden DIR       # writes tools/results/corpus.md
    python -m tools.check_corpus --parts kills      # one part; writes nothing

``workers``: shards by one worker and by four are compared byte by byte. ``kills``: the pipeline is
killed at random moments, with all of its processes, and run again; the result is compared with that
of an uninterrupted run. ``speed``: beside the Model Garden's ``create_pretraining_data``, each in
one process on one core. ``memory``: of reading one pass of shards, of a corpus of growing size.

DIR has the packages ``official`` (tf-models-official) and ``tf_keras``, unpacked.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bertfam_tf.corpora.documents import split_sentences
from tools import books, texts
from tools.bench import machine
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "corpus.md"
BEAM = ROOT / "build" / "batch" / "bin" / "python"
PARTS = ("workers", "kills", "speed", "memory")
BOOKS = texts.DATA / "gutenberg" / "*.txt"
VOCABULARY = texts.DATA / "vocab" / "bert-base-uncased"
LENGTH = 128
COPIES = (1, 4, 16)
# The buffer is filled before the first batch: in several passes that does not count.
PASSES = 8


class Cost(NamedTuple):
    """Of a process and those that it started.

    Fields:
        seconds: from start to end.
        cpu: seconds of processor time.
        peak: resident memory in bytes, of the largest process.
        said: its standard output.
    """

    seconds: float
    cpu: float
    peak: int
    said: str


def pipeline(inputs: Path, output: Path, *others: str) -> list[str]:
    """The command of the pipeline."""
    script = str(ROOT / "serving" / "batch" / "corpus.py")
    given = ["--input", str(inputs), "--tokenizer", str(VOCABULARY), "--output", str(output)]
    given += ["--format", "segment_pairs", "--length", str(LENGTH)]
    return [str(BEAM), script, *given, *others]


def run(command: list[str], **variables: str) -> Cost:
    """Runs a command to its end. Raises RuntimeError if it fails."""
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | variables)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begin
        for file in (out, err):
            file.seek(0)
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with {status}:\n{err.read()[-4000:]}")
        said = out.read()
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, said)


def content(folder: Path) -> dict[str, str]:
    """The sha256 of each file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a folder"
        for path in folder.iterdir()
    }


def examples(folder: Path) -> collections.Counter[bytes]:
    """How often a folder has each record."""
    import tensorflow as tf

    files = sorted(map(str, folder.glob("*.tfrecord")))
    return collections.Counter(tf.data.TFRecordDataset(files).as_numpy_iterator())


def workers(work: Path) -> list[str]:
    """Compares one worker with four."""
    units = ("--unit-bytes", "300000")
    one, four = work / "one", work / "four"
    run(pipeline(BOOKS, one, *units))
    parallel = ("--direct_num_workers", "4", "--direct_running_mode", "multi_processing")
    said = run(pipeline(BOOKS, four, *units, *parallel)).said.splitlines()[-1]
    same, found = content(one) == content(four), examples(one)
    assert same
    assert found == examples(four)
    return [
        "## Workers",
        "",
        f"14 books, paragraphs as documents, units of 300,000 bytes: {said}, in "
        f"{len(list(four.glob('*.tfrecord')))} shards. One worker and four processes: each shard "
        f"and the data card have the same bytes; {sum(found.values()):,} records on both sides.",
        "",
    ]


def kills(work: Path, points: int = 10, seed: int = 0) -> list[str]:
    """Kills the pipeline at random moments while it writes shards."""
    units = ("--unit-bytes", "100000")
    whole, draw = work / "whole", random.Random(seed)
    process = subprocess.Popen(pipeline(BOOKS, whole, *units), stdout=subprocess.DEVNULL)
    _wait(process, whole / "job.json")
    begin = time.monotonic()
    assert process.wait() == 0
    seconds = time.monotonic() - begin
    expected, records, rows = content(whole), examples(whole), []
    total = len(list(whole.glob("*.tfrecord")))
    while len(rows) < points:
        folder = work / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        moment = draw.uniform(0, seconds)
        process = subprocess.Popen(
            pipeline(BOOKS, folder, *units), stdout=subprocess.DEVNULL, start_new_session=True
        )
        _wait(process, folder / "job.json")
        time.sleep(moment)
        if process.poll() is not None:
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        complete = len(list(folder.glob("counts-*")))
        left = [path.name for path in folder.glob(".*.tmp")]
        kept = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.tfrecord")}
        done = {
            f"examples-{p.stem.removeprefix('counts-')}.tfrecord" for p in folder.glob("counts-*")
        }
        run(pipeline(BOOKS, folder, *units))
        found = examples(folder)
        lost, twice = records - found, found - records
        again = [n for n in done if (folder / n).stat().st_mtime_ns != kept[n]]
        assert content(folder) == expected
        assert not lost
        assert not twice
        assert not again
        rows.append([f"{moment:.1f}", complete, len(left), sum(lost.values()), sum(twice.values())])
        print(*rows[-1], flush=True)
    head = ["killed after s", "complete shards", "half-written", "lost", "duplicate"]
    return [
        "## Kills",
        "",
        f"The same books in {total} units of 100,000 bytes; an uninterrupted run writes shards for "
        f"{seconds:.1f} s. Killed (SIGKILL to all processes) at {points} random moments of these, "
        "and run again: each result equals the uninterrupted one byte by byte "
        f"({sum(records.values()):,} records), no complete shard was written again, and nothing "
        "else remained.",
        "",
        *_table([head, *rows]),
    ]


def _wait(process: subprocess.Popen, file: Path) -> None:
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.002)


def speed(work: Path, garden: Path) -> list[str]:
    """Forms examples of the same text, on one core."""
    text = work / "books.txt"
    found = [
        [each for line in books.paragraphs(book) for each in split_sentences(line)]
        for book in sorted(BOOKS.parent.glob(BOOKS.name))
    ]
    text.write_text("\n\n".join("\n".join(lines) for lines in found) + "\n", "utf-8")
    size = text.stat().st_size / 1e6
    command = pipeline(text, work / "ours")
    ours = run(command)
    start = run(command)  # with nothing left to do
    card = json.loads((work / "ours" / "card.json").read_text("utf-8"))["counts"]
    masked = run(
        [sys.executable, "-m", "tools.check_corpus", "--read", str(work / "ours"), str(PASSES)]
    )
    steps = json.loads(masked.said.splitlines()[-1])
    theirs = garden_script(garden, text, work / "garden.tfrecord")
    little = work / "little.txt"
    little.write_text("A film.\nA plot.\n\nA book.\nA line.\n")
    their_start = garden_script(garden, little, work / "little.tfrecord")
    import tensorflow as tf

    number = sum(1 for _ in tf.data.TFRecordDataset(str(work / "garden.tfrecord")))
    rows = []
    for name, examples, cost, cpu in (
        ("ours: examples to shards, without masks", card["examples"], ours, ours.cpu),
        (
            "ours, without starting Beam and TensorFlow",
            card["examples"],
            ours,
            ours.cpu - start.cpu,
        ),
        (
            f"ours: shards to masked batches of 32, {PASSES} passes",
            steps["examples"],
            masked,
            steps["cpu"],
        ),
        ("Model Garden: examples with masks, padded, written", number, theirs, theirs.cpu),
        (
            "Model Garden, without starting TensorFlow",
            *(number, theirs, theirs.cpu - their_start.cpu),
        ),
    ):
        text_size = size * (PASSES if cost is masked else 1)
        row = [name, f"{examples:,}", f"{cpu:.1f}", f"{examples / cpu:,.0f}"]
        row.append(f"{text_size / cpu:.2f}")
        rows.append([*row, f"{cost.peak / 1e6:,.0f}"])
        print(*rows[-1], f"({cost.seconds:.1f} s)", flush=True)
    head = ["", "examples", "CPU s", "examples/s", "MB/s", "peak MB"]
    return [
        "## Speed",
        "",
        f"14 books of {size:.1f} MB, a sentence in each line, a book is a document; segment pairs "
        f"of {LENGTH} tokens with next sentence prediction, bert-base-uncased, one process on one "
        "core; seconds and rates are of processor time. Ours forms examples once and masks them "
        "while training, in each pass anew; the Model Garden's script masks once, writes each mask "
        "of an example (`dupe_factor`, here 1) with padding, and truncates what ours divides, "
        "which is why it has other numbers of examples. Starting is not counted for batches. MB "
        "are of text.",
        "",
        *_table([head, *rows]),
    ]


def garden_script(garden: Path, text: Path, output: Path) -> Cost:
    """Runs the Model Garden's script, with one copy of each example."""
    command = [sys.executable, "-m", "official.nlp.data.create_pretraining_data"]
    command += ["--input_file", str(text), "--output_file", str(output), "--dupe_factor", "1"]
    command += ["--vocab_file", str(VOCABULARY / "vocab.txt"), "--max_seq_length", str(LENGTH)]
    command += ["--max_predictions_per_seq", "20"]
    return run(command, PYTHONPATH=f"{garden}:{ROOT}")


def memory(work: Path) -> list[str]:
    """Reads one pass of growing folders of shards."""
    source = work / "small"
    run(pipeline(BOOKS, source, "--unit-bytes", "300000"))
    card = json.loads((source / "card.json").read_text("utf-8"))
    rows = []
    for copies in COPIES:
        folder, shards = work / f"copies-{copies}", []
        folder.mkdir()
        for number in range(copies):
            for row in card["shards"]:
                name = f"{number}-{row['file']}"
                shutil.copyfile(source / row["file"], folder / name)
                shards.append({**row, "file": name})
        counts = {**card["counts"], "examples": copies * card["counts"]["examples"]}
        (folder / "card.json").write_text(
            json.dumps({**card, "counts": counts, "shards": shards}), "utf-8"
        )
        cost = run([sys.executable, "-m", "tools.check_corpus", "--read", str(folder), "1"])
        found = json.loads(cost.said.splitlines()[-1])
        assert found["examples"] == counts["examples"]
        size = sum(row["bytes"] for row in shards) / 1e6
        rows.append([f"{found['examples']:,}", f"{size:.1f}", f"{cost.peak / 1e6:,.0f}"])
        print(*rows[-1], f"({cost.seconds:.1f} s)", flush=True)
    head = ["examples", "MB of shards", "peak MB of the process"]
    return [
        "## Memory",
        "",
        "One pass over shards as masked batches of 32, buffer of 10,000 examples, with all of "
        "TensorFlow:",
        "",
        *_table([head, *rows]),
    ]


def read(folder: Path, passes: int) -> None:
    """Reads passes with masks, and prints what it took from the second batch on."""
    from bertfam_tf.corpora import Format, Masking, Shards
    from bertfam_tf.text import load_tokenizer

    tokenizer = load_tokenizer(VOCABULARY)
    made = Shards([folder], Format(tokenizer, LENGTH, "segment_pairs"))
    batches = iter(made.batches(32, Masking(tokenizer), passes=passes))
    number = len(next(batches)[2])
    begin = time.process_time()
    number += sum(len(weights) for _, _, weights in batches)
    cpu = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"examples": number, "cpu": cpu, "peak": peak}))


def _table(rows: list[list[object]]) -> list[str]:
    lines = [[*map(str, row)] for row in rows]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--garden", type=Path, help="a folder with the Model Garden's package")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(Path(options.read[0]), int(options.read[1]))
        return
    if "speed" in options.parts and options.garden is None:
        parser.error("the part speed needs --garden")
    lines = [
        "# The corpus pipeline of pretraining",
        "",
        f"`python -m tools.check_corpus --garden DIR`, {datetime.date.today()}, {machine.cpu()}, "
        f"one core: {machine.versions(['tensorflow'])}, apache-beam 2.77.0, tf-models-official "
        "2.20.0.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            work = Path(folder) / part
            work.mkdir()
            if part == "speed":
                lines += speed(work, options.garden)
            else:
                lines += {"workers": workers, "kills": kills, "memory": memory}[part](work)
    text = "\n".join(lines)
    print(text)
    if options.parts == list(PARTS):
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

"""Damages checkpoints, tokenizers, recipes and saved tasks, loads them, and counts the outcomes.

    python -m tools.fuzz_files --cases 2000 --seed 0 --output tools/results/fuzz_files.md

Each case copies a small valid directory, changes one of its files
(``tests.support.file_mutations``), and calls ``load_backbone``, ``convert``, ``from_pretrained``,
``load_tokenizer``, ``load`` or
``load_recipe`` in worker processes whose time and memory are measured. Success and ``ValueError``
(including ``CheckpointError``) are allowed outcomes. Everything else is an escape: another type of
error, a process that dies, more than 10 s or 1 GB, a file outside of the directory in the output of
``convert``, executed code. Escapes, and errors that do not name a file, are printed with their case
number, which ``--only`` repeats. The exit status is 1 if there were any.
"""

import argparse
import collections
import contextlib
import gc
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tests.support import file_mutations
from tests.support.compare_tokenizers import markdown
from tests.support.fuzz_subjects import ROOT, subjects
from tests.support.mutated_values import EXECUTED

LIMIT_S, LIMIT_MB = 10.0, 1000.0
# A worker is killed after this processor time, or ten times as long in all.
_KILL_S, _RECYCLE = 60.0, 400
_TEXTS = ["Good news!", "größe ½ 🙂 \u200b", "", "hello world the cat"]


# Workers ---------------------------------------------------------------------------------------


def run(verb: str, directory: Path, out: Path) -> None:
    """Calls one of the functions on a directory."""
    import bertfam_tf as bf
    from bertfam_tf.checkpoints import convert
    from bertfam_tf.recipes.reading import load_recipe

    if verb == "backbone":
        bf.load_backbone(directory)
    elif verb == "convert":
        convert(directory, out)
    elif verb == "classifier":
        bf.TextClassifier.from_pretrained(directory)
    elif verb == "tokenizer":
        bf.load_tokenizer(directory).tokenize_with_offsets(_TEXTS)
    elif verb == "task":
        bf.load(directory)
    else:
        load_recipe(directory / "recipe.yaml").to_yaml()


def check_subjects(base: Path, made: dict[str, list[str]]) -> None:
    """Runs every function on its undamaged directories.

    A subject that is refused as it is would make all of its cases pass.

    Args:
        base: the parent directory.
        made: the functions of each subject, by its name.

    Raises:
        ValueError: if one fails, with its name and its error.
    """
    for name, verbs in made.items():
        for verb in verbs:
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    run(verb, base / name, Path(scratch, "out"))
                except Exception as error:
                    raise ValueError(
                        f"{verb} of the subject {name} fails without a mutation: {error}"
                    ) from error


def chosen(made: dict[str, list[str]], seed: int, number: int) -> tuple[random.Random, str, str]:
    """The random generator of a case, its directory, and the function to call."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(sorted(made))
    return rng, name, rng.choice(made[name])


def case(base: Path, made: dict[str, list[str]], seed: int, number: int) -> dict[str, Any]:
    """Runs one case in this process; returns the function, the outcome, seconds and MB."""
    rng, name, verb = chosen(made, seed, number)
    result: dict[str, Any] = {"case": number, "subject": name, "verb": verb}
    with tempfile.TemporaryDirectory() as scratch:
        secret = Path(scratch, "secret")
        secret.write_bytes(file_mutations.SECRET * 4096)
        directory = Path(shutil.copytree(base / name, Path(scratch, "given"), symlinks=True))
        previous = os.getcwd()
        os.chdir(scratch)
        try:
            result["mutation"] = file_mutations.mutate(directory, base, secret, rng)
            before = _reset_peak()
            begun = time.monotonic(), time.process_time()
            result["outcome"], result["text"] = _outcome(verb, directory, Path(scratch, "out"))
            # Processor time: on a busy machine a case waits, and a process may have several
            # threads.
            spent = time.monotonic() - begun[0], time.process_time() - begun[1]
            result["seconds"] = min(spent)
            result["mb"] = max(0.0, _memory("VmHWM") - before)
            # The file that code in a pickle or a YAML tag would have created.
            if Path(scratch, EXECUTED).exists():
                result["outcome"] = "ESCAPE: code ran"
            if _leaked(Path(scratch, "out")):
                result["outcome"] = "ESCAPE: a file outside was read"
        finally:
            os.chdir(previous)
    if result["outcome"][:6] != "ESCAPE" and result["seconds"] > LIMIT_S:
        result["outcome"] = "ESCAPE: time"
    if result["outcome"][:6] != "ESCAPE" and result["mb"] > LIMIT_MB:
        result["outcome"] = "ESCAPE: memory"
    return result


def _outcome(verb: str, directory: Path, out: Path) -> tuple[str, str]:
    from bertfam_tf.checkpoints import CheckpointError

    try:
        run(verb, directory, out)
    except ValueError as error:
        kind = "CheckpointError" if isinstance(error, CheckpointError) else type(error).__name__
        named = any(file.name in str(error) for file in [directory, *_entries(directory)])
        allowed = (
            isinstance(error, CheckpointError) or verb == "recipe" or type(error) is ValueError
        )
        if not allowed:
            return f"ESCAPE: {kind}", str(error)
        return kind if named else f"{kind} that names no file", str(error)
    except BaseException as error:
        return f"ESCAPE: {type(error).__name__}", str(error)
    return "loaded", ""


def _entries(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.name != "given"]


def _leaked(out: Path) -> bool:
    files = [file for file in out.rglob("*") if file.is_file()] if out.is_dir() else []
    return any(file_mutations.SECRET in file.read_bytes() for file in files)


def _memory(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def _reset_peak() -> float:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _work(base: Path, seed: int) -> None:
    """Reads case numbers, and writes one line of JSON for each."""
    import keras

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made = json.loads((base / "subjects.json").read_text())
    for name in sorted({"wordpiece", "hf_bert", *list(made)[:1]} & made.keys()):
        run(made[name][0], base / name, base / "none")  # initialization is not part of a case
    for line in sys.stdin:
        print(json.dumps(case(base, made, seed, int(line))), file=answers, flush=True)
        keras.utils.clear_session()
        gc.collect()


class _Worker:
    """A process that runs cases, replaced when it dies or hangs."""

    def __init__(self, base: Path, seed: int, log: Path):
        self._arguments = [sys.executable, "-m", "tools.fuzz_files", "--worker", str(base)]
        self._arguments += ["--seed", str(seed)]
        self._base, self._seed, self._log = base, seed, log
        self._process: subprocess.Popen | None = None
        self._done = 0

    def run(self, number: int) -> dict[str, Any]:
        if self._process is None or self._done >= _RECYCLE:
            self.close()
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._done += 1
        begun, spent, expired = time.monotonic(), _processor_time(process.pid), False
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        while not select.select([process.stdout], [], [], 1.0)[0] and not expired:
            # On a busy machine a case waits.
            waited = (time.monotonic() - begun) / 10
            expired = max(_processor_time(process.pid) - spent, waited) > _KILL_S
        if expired:
            process.kill()
        if line := process.stdout.readline():
            return json.loads(line)
        code = process.wait()
        self._process = None
        what = "hang" if expired else f"death (signal {-code})"
        made = json.loads((self._base / "subjects.json").read_text())
        _, name, verb = chosen(made, self._seed, number)
        result = {"case": number, "subject": name, "verb": verb, "outcome": f"ESCAPE: {what}"}
        return {**result, "seconds": 0.0, "mb": 0.0, "text": ""}

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, cwd=ROOT,
            )  # fmt: skip
        self._done = 0

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _processor_time(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The report ------------------------------------------------------------------------------------


def report(results: list[dict[str, Any]], seed: int) -> str:
    """The table for tools/results."""
    outcomes = collections.Counter(result["outcome"] for result in results)
    subjects_of = collections.Counter(result.get("subject", "?") for result in results)
    slowest = max(results, key=lambda result: result["seconds"])
    largest = max(results, key=lambda result: result["mb"])

    def of(result: dict[str, Any]) -> str:
        return (
            f"{result['seconds']:.1f} s, {result['mb']:.0f} MB: case {result['case']}, "
            f"{result.get('verb')} of {result.get('subject')}, {result.get('mutation')}"
        )

    return f"""# Damaged and hostile files

`python -m tools.fuzz_files --cases {len(results)} --seed {seed}`: {len(results)} cases over \
{len(subjects_of)} kinds of directory.

{markdown(["outcome", "cases"], outcomes.most_common())}

Escapes: {sum(n for o, n in outcomes.items() if o.startswith("ESCAPE"))}. \
Slowest: {of(slowest)}. Most memory: {of(largest)}.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", type=int, nargs="*", help="run these cases, and print all of them"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, help="the file of the table")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.worker, options.seed)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        base, log = Path(scratch, "base"), Path(scratch, "log")
        base.mkdir()
        made = subjects(base)
        check_subjects(base, made)
        (base / "subjects.json").write_text(json.dumps(made))
        numbers = list(options.only or range(options.cases))
        workers = [_Worker(base, options.seed, log) for _ in range(options.processes)]
        chunks = [numbers[i :: len(workers)] for i in range(len(workers))]
        bar = tqdm(total=len(numbers), mininterval=5)

        def all_of(worker: _Worker, chunk: list[int]) -> list[dict[str, Any]]:
            found = []
            for number in chunk:
                result = worker.run(number)
                found.append(result)
                bar.update()
                unnamed = result["outcome"].endswith("names no file")
                if unnamed or result["outcome"].startswith("ESCAPE") or options.only:
                    tqdm.write(json.dumps(result)[:1500])
            worker.close()
            return found

        with ThreadPoolExecutor(len(workers)) as threads:
            results = [r for part in threads.map(all_of, workers, chunks) for r in part]
        bar.close()
        if any("death" in result["outcome"] for result in results):
            print(log.read_text(errors="replace")[-4000:])
    text = report(results, options.seed)
    print(text)
    if options.output:
        options.output.write_text(text, "utf-8")
    return int(any(result["outcome"].startswith("ESCAPE") for result in results))


if __name__ == "__main__":
    sys.exit(main())

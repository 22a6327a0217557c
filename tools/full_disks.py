"""Runs each command on disks that are full at several points, and twice at once on one output.

    python -m tools.full_disks [--verbs train index …]

A command that finds the disk full has to end with one line that says so, the status 1, and no
damage: started again after the disk has grown, it has to end as on a large disk. Of two processes
that write one output, each has to end as a single one does, or with one line that names the output;
the output has to have the content of a single one. Mounting a disk needs root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

import bertfam_tf as bf
import bertfam_tf.distill
import bertfam_tf.export
import bertfam_tf.objectives
import bertfam_tf.recipes
import bertfam_tf.search
from bertfam_tf.checkpoints import save_pretrained
from tools.kill_runs import VERBS as KILLED
from tools.kill_runs import check_export, command, write_inputs

_FULL = "No space left on device"
# Their outputs contain no times, random names or paths.
_REPEATED = ("vocabulary", "convert", "save_pretrained", "shards", "predict", "index")
_SECONDS = 600


def _shards(inputs: Path, directory: Path) -> int:
    from bertfam_tf.corpora import shards
    from bertfam_tf.corpora.examples import Format

    file = str(inputs / "texts.txt")
    form = Format(bf.load_tokenizer(inputs / "checkpoint"), 32, "full_sentences")
    options = {"documents": "line", "sentences": "line", "seed": 0}
    job = shards.description(form, files=[{"name": file}], unit=1 << 15, **options)
    units = shards.units_of([(file, os.path.getsize(file))], 1 << 15, "line")
    folder = directory / "shards"
    shards.begin(folder, job)
    for unit in shards.missing(folder, units):
        shards.write_shard(folder, unit, form, **options)
    shards.finish(folder, job, units)
    return 0


def _save_pretrained(inputs: Path, directory: Path) -> int:
    save_pretrained(bf.load(inputs / "new").backbone, directory / "published")
    return 0


VERBS: dict[str, Callable[[Path, Path], int]] = {
    "vocabulary": command(
        *("vocabulary", "wordpiece", "--size", "300", "--input", "{inputs}/texts.txt"),
        *("--output", "{directory}/vocabulary"),
    ),
    "convert": KILLED["convert"].run,
    "save": KILLED["save"].run,
    "save_pretrained": _save_pretrained,
    "shards": _shards,
    "predict": KILLED["predict"].run,
    "index": command(
        *("index", "{inputs}/checkpoint", "--input", "{inputs}/texts.txt"),
        *("--output", "{directory}/index"),
    ),
    "export": KILLED["export"].run,
    "export --tflite": KILLED["export --tflite"].run,
    "train": KILLED["fit"].run,
    "pretrain": KILLED["pretrain"].run,
    "distill": command("distill", "{inputs}/distillation.yaml", "output={directory}/run"),
    "sweep": command(
        *("sweep", "{inputs}/recipe.yaml", "output={directory}/runs", "train.epochs=1"),
        *("train.patience=null", "--over", "train.seed=0,1"),
    ),
}


class Run:
    """A command in a process of its own.

    Args:
        function: the command, which returns the exit status.
        log: the file of its messages.
    """

    def __init__(self, function: Callable[[], int], log: Path):
        self._log = log
        self._process = os.fork()
        if not self._process:
            with log.open("w") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            status = 99
            try:
                status = function()
            except OSError as error:  # of functions, which are not commands
                print(error, file=sys.stderr, flush=True)
                status = 1
            except BaseException:
                import traceback

                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)

    def wait(self) -> tuple[int, str]:
        """The exit status, and the messages."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        return status, self._log.read_text("utf-8", "replace")


class Disk:
    """A file system of a given size in a directory.

    Args:
        directory: where it is mounted.
        size: bytes.
    """

    def __init__(self, directory: Path, size: int):
        self.directory = directory
        directory.mkdir()
        self._mount(f"size={size}", "-t", "tmpfs", "tmpfs")

    def _mount(self, options: str, *arguments: str) -> None:
        command = ["mount", "-o", options, *arguments, str(self.directory)]
        subprocess.run(command, check=True)

    def grow(self) -> None:
        """Makes it large."""
        self._mount("remount,size=1g")

    def used(self) -> int:
        """Bytes that are not free."""
        found = os.statvfs(self.directory)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.directory)], check=True)
        self.directory.rmdir()


def _files(directory: Path) -> set[str]:
    found = (str(x.relative_to(directory)) for x in directory.rglob("*") if x.is_file())
    return {name for name in found if "tensorboard" not in name}


def _content(directory: Path) -> dict[str, bytes]:
    """A digest of each file that a repeated command writes again byte by byte."""
    return {
        name: hashlib.sha256((directory / name).read_bytes()).digest() for name in _files(directory)
    }


def _last(messages: str) -> str:
    lines = [line for line in messages.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else ""


def check(name: str, work: Path, shares: Sequence[float]) -> list[str]:
    """What a command does wrong."""
    verb, inputs = VERBS[name], work / "inputs"
    wrong: list[str] = []

    def run(directory: Path, log: str = "log") -> Run:
        return Run(lambda: verb(inputs, directory), work / log)

    disk = Disk(work / "disk", 1 << 30)
    status, messages = run(disk.directory).wait()
    if status:
        disk.close()
        return [f"fails on a large disk: {_last(messages)}"]
    size, whole, content = disk.used(), _files(disk.directory), _content(disk.directory)
    disk.close()
    for share in shares:
        disk = Disk(work / "disk", max(int(size * share) >> 12, 1) << 12)
        status, messages = run(disk.directory).wait()
        if "Traceback" in messages:
            wrong.append(f"{share}: traceback: {_last(messages)}")
        elif status == 1 and _FULL not in _last(messages):
            wrong.append(f"{share}: {_last(messages)}")
        elif status not in (0, 1):
            wrong.append(f"{share}: status {status}: {_last(messages)}")
        elif status and str(disk.directory) not in _last(messages):
            wrong.append(f"{share}: names no file: {_last(messages)}")
        if list(disk.directory.rglob("*.tmp")):
            wrong.append(f"{share}: leaves temporary files")
        disk.grow()
        status, messages = run(disk.directory).wait()
        if status and not (status == 1 and "not overwritten" in messages):
            wrong.append(f"{share}: the next run: status {status}: {_last(messages)}")
        elif _files(disk.directory) != whole:
            wrong.append(f"{share}: then {sorted(_files(disk.directory) ^ whole)[:5]} differ")
        disk.close()
    directory = work / "twice"
    directory.mkdir()
    both = [run(directory, f"log{i}") for i in range(2)]
    ends = [each.wait() for each in both]
    for status, messages in ends:
        if "Traceback" in messages or status not in (0, 1):
            wrong.append(f"two processes: status {status}: {_last(messages)}")
    if not any(status == 0 for status, _ in ends):
        wrong.append(f"two processes: both failed: {_last(ends[0][1])}")
    for version in directory.glob("model/*/"):
        check_export(version)
    if differs := sorted(_files(directory) ^ whole):
        wrong.append(f"two processes: {differs[:5]} differ")
    elif name in _REPEATED:
        both_content = _content(directory)
        different = [path for path in content if both_content[path] != content[path]]
        if different:
            wrong.append(f"two processes: the content of {different[:5]} differs")
    shutil.rmtree(directory)
    return wrong


def main() -> None:
    """Prints a line for each command, and ends with the status 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.02, 0.3, 0.6, 0.9])
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        (work / "inputs").mkdir()
        status, messages = Run(lambda: _inputs(work / "inputs"), work / "log").wait()
        assert not status, messages
        for name in options.verbs:
            wrong = check(name, work, options.shares)
            failed |= bool(wrong)
            print(f"{name}: {'; '.join(wrong) or 'held'}", flush=True)
    sys.exit(int(failed))


def _inputs(directory: Path) -> int:
    write_inputs(directory)
    train = {"epochs": 1, "batch_size": 8, "backup_steps": 2, "learning_rate": 0.01}
    stage = {"terms": {"soft_targets": {}}, "teacher_outputs": "cached", "train": train}
    values = {
        "output": "?",
        "teacher": str(directory / "new"),
        "student": {"num_layers": 1, "layers": "none"},
        "data": {name: str(directory / "letters.tsv") for name in ("train", "dev")},
        "stages": [stage],
    }
    rows = "".join(f"a good film {i}\t{'abc'[i % 3]}\n" for i in range(40))
    (directory / "letters.tsv").write_text("text\tlabel\n" + rows)
    (directory / "distillation.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(values))))
    return 0


if __name__ == "__main__":
    main()

"""``bertfam experiment``: recipes with changed settings, over seeds, in one table."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from bertfam_tf.cli.common import Commands, add_command
from bertfam_tf.names import printable

TEXT = "run a table of recipes: rows of settings, columns of metrics, over seeds; it resumes"
_WIDTH = 24
_log = logging.getLogger(__name__)


def add(commands: Commands) -> None:
    parser = add_command(commands, "experiment", run, TEXT, resumes=True, in_batches=True)
    parser.add_argument("file", help="a YAML file of an experiment")
    parser.add_argument(
        "override",
        nargs="*",
        help="key=value for all rows, such as train.steps=10, and output=DIR; the table is then "
        "printed, and only written into the output directory",
    )
    parser.add_argument("--seeds", metavar="N,N", help="such as 0,1,2 (default: the file's)")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs at once (default: one for each processor core, or one on a GPU); 0 runs all in "
        "this process",
    )
    parser.add_argument(
        "--plan", action="store_true", help="check the file and its recipes, and print the commands"
    )
    parser.add_argument(
        "--report-only", action="store_true", help="write the table of what is finished"
    )


def run(options: argparse.Namespace) -> None:
    """Runs the command."""
    from bertfam_tf.files import LOCK, exclusive_lock, write
    from bertfam_tf.recipes.experiments.cells import plan_cells
    from bertfam_tf.recipes.experiments.running import default_workers, runs_of
    from bertfam_tf.recipes.experiments.settings import load_experiment
    from bertfam_tf.recipes.reading import expand

    if options.workers is not None and options.workers < 0:
        raise ValueError(f"--workers must be at least 0, got {options.workers}.")
    experiment = load_experiment(options.file, options.override)
    seeds = _seeds(options.seeds)
    cells = plan_cells(experiment, options.file, seeds)
    if options.plan:
        for command in experiment.prepare:
            print(f"prepare\tby hand\t{command}")
        for run in runs_of(cells):
            state = "finished" if run.finished else "begun" if run.started else "to do"
            print(f"{printable(run.name)}\t{state}\t{run.command}")
        return
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes.experiments.figure import draw
    from bertfam_tf.recipes.experiments.report import table
    from bertfam_tf.recipes.experiments.running import run_cells
    from bertfam_tf.training.callbacks.curves import drawable

    failure: Exception | None = None
    output = expand(experiment.output)
    if not options.report_only:
        workers = default_workers() if options.workers is None else options.workers
        shown = _Bar()
        try:
            with exclusive_lock(output, output / LOCK):
                run_cells(cells, workers, flops=flops_per_token, progress=shown)
        except KeyboardInterrupt:
            _log.warning("Interrupted; the same command resumes.")
            raise
        except BlockingIOError:  # another process runs the experiment
            raise
        except (ValueError, OSError) as error:
            failure = error
        finally:
            shown.end()
    if any(run.finished for run in runs_of(cells)):
        text = table(experiment, cells, _command(options), flops=flops_per_token)
        files = [output / "table.md"]
        if experiment.table is not None and not options.override and seeds is None:
            files.append(Path(options.file).parent / experiment.table)
        for file in files:
            link = ""
            if drawable():
                picture = file.with_name(f"{file.stem}_values.png")
                draw(experiment, cells, picture)
                link = f"\n![The same values, a dot for each seed]({picture.name})\n"
            write(file, text + link)
        print(text)
    elif options.report_only:
        _log.warning("No run in %s is finished, so there is no table.", output)
    if failure is not None:
        if experiment.prepare:
            commands = "\n".join(experiment.prepare)
            _log.warning("The recipes read files that these commands write:\n%s", commands)
        raise failure


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers) or len(set(numbers)) < len(
        numbers
    ):
        raise ValueError(f"--seeds must be different numbers such as 0,1,2, got {text!r}.")
    return [int(number) for number in numbers]


def _command(options: argparse.Namespace) -> str:
    seeds = [] if options.seeds is None else ["--seeds", options.seeds]
    return shlex.join(["bertfam", "experiment", options.file, *options.override, *seeds])


class _Bar:
    """Shows the progress: a bar on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._length = 0

    def __call__(self, progress: Any) -> None:
        done, total = progress.finished, progress.total
        text = f"{done} of {total} runs"
        if progress.running:
            text += f"; running {', '.join(progress.running)}"
        if not self._terminal:
            _log.info("%s", text)
            return
        filled = _WIDTH * done // max(total, 1)
        line = printable(f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {text}"[:160])
        sys.stderr.write(f"\r{line.ljust(self._length)}")
        sys.stderr.flush()
        self._length = len(line)

    def end(self) -> None:
        """Ends the line of the bar."""
        if self._terminal and self._length:
            sys.stderr.write("\n")

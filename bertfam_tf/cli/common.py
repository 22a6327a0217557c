"""Functions that several commands share."""

import argparse
import io
import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from bertfam_tf.names import NO_TEXT, join_names, printable, truncated, unknown

Commands = argparse._SubParsersAction
# Help texts.
LANGUAGES = "such as de, for models with language embeddings (default: the task's)"
MODELS = (
    "a saved task, the output directory of a recipe, or a checkpoint: a directory, package:NAME, "
    "a hub id or a KerasHub preset"
)
TASK = (
    "for a checkpoint, the task's class, such as TextClassifier (default: by its head); for "
    "several tasks saved together, the name of one"
)
LABELS = (
    "for a checkpoint, separated by commas, or their number (default: the names that are stored "
    "with its head)"
)


# The dtypes of exports, the same as for ``export_saved_model``.
DTYPES = ("float32", "bfloat16", "bfloat16-weights", "int8-weights", "int8")


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], None],
    text: str,
    *,
    resumes: bool = False,
    in_batches: bool = False,
) -> argparse.ArgumentParser:
    """Adds a command and returns its parser.

    Args:
        commands: the subparsers of ``bertfam``.
        name: the command's name.
        run: runs the command; it imports what it needs, so that usage errors are fast.
        text: one line of help.
        resumes: whether the same command continues an interrupted run.
        in_batches: whether it computes batches, for which oneDNN is faster on all x86 CPUs.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, resumes=resumes, in_batches=in_batches)
    return parser


def add_recipe(parser: argparse.ArgumentParser, example: str) -> None:
    """Adds the arguments ``recipe`` and ``override``.

    Args:
        parser: the command's parser.
        example: help on the overrides, such as ``"such as train.epochs=1"``.
    """
    parser.add_argument("recipe", help="a YAML file")
    parser.add_argument("override", nargs="*", help=f"key=value, {example}")


def print_table(rows: list[list[str]], right: int | None = None) -> None:
    """Prints a table; one column may be aligned on the right."""
    rows = [[printable(truncated(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if right is not None:
            cells[right] = row[right].rjust(widths[right])
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Prints one line of JSON, in which characters that a terminal would obey are escapes."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    print(text)


def stdin_lines() -> list[str]:
    """Returns the lines of standard input, as a file of texts is read.

    Raises:
        ValueError: if there are none.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        # As files are read, whatever the encoding of the system is.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    lines = [line.removesuffix("\n").removesuffix("\r") for line in sys.stdin]
    if not lines:
        raise ValueError(NO_TEXT)
    return [lines[0].removeprefix("\ufeff"), *lines[1:]]


def column(name: str) -> str | int:
    """Returns a column of an option: its index if it is a number, else its name."""
    return int(name) if name.isdecimal() else name


def check_batch_size(options: argparse.Namespace) -> None:
    """Raises ``ValueError`` for a ``--batch-size`` below 1."""
    if options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}.")


def prompt_name(task: Any, requested: str | None, usual: tuple[str, ...]) -> str | None:
    """Returns the name of a prompt; None for no prompt.

    Args:
        task: the embedder.
        requested: the option's value; ``""`` for no prompt, None for the first usual one.
        usual: names of prompts, in order of preference.
    """
    if requested is not None:
        return requested or None
    return next((name for name in usual if name in task.prompts), task.default_prompt)


def set_language(task: Any, options: argparse.Namespace) -> None:
    """Sets the task's language to ``--language``, a code or an id; unchanged without it."""
    language = chosen_language(options)
    if language is not None:
        task.language = language


def chosen_language(options: argparse.Namespace) -> str | int | None:
    """Returns ``--language`` of a command that has it, a code or an id; None without it."""
    name = getattr(options, "language", None)
    return int(name) if name is not None and name.isdecimal() else name


def calibration_texts(options: argparse.Namespace, task: Any) -> list[tuple[Any, ...]] | None:
    """Returns the examples of ``--calibration``, if any: lines, with texts separated by tabs.

    Args:
        options: the options of the command.
        task: the task to calibrate, whose features may be lists, such as choices; None for several.

    Raises:
        ValueError: if a line does not have the texts of such a task.
    """
    from bertfam_tf.text.files import read_lines

    if options.calibration is None:
        return None
    file = Path(options.calibration)
    lines = [line.split("\t") for line in read_lines(file)]
    specs = {} if task is None else task.feature_specs
    lengths = {name: spec.shape[1] for name, spec in specs.items() if spec.shape.rank == 2}
    if not lengths:
        return [tuple(texts) for texts in lines]
    expected = sum(lengths.get(name, 1) for name in specs)
    names = join_names(
        f"{lengths[name]} {name}" if name in lengths else f"the {name}" for name in specs
    )
    examples = []
    for number, texts in enumerate(lines, 1):
        if len(texts) != expected:
            raise ValueError(
                f"{file}, line {number}: expected {expected} texts with tabs between them, "
                f"{names}, got {len(texts)}."
            )
        left = iter(texts)
        examples.append(
            tuple(
                list(islice(left, lengths[name])) if name in lengths else next(left)
                for name in specs
            )
        )
    return examples


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments ``model``, ``--task`` and ``--labels``."""
    parser.add_argument("model", help=MODELS)
    add_task(parser)


def add_task(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments ``--task`` and ``--labels``."""
    parser.add_argument("--task", metavar="NAME", help=TASK)
    parser.add_argument("--labels", metavar="NAMES", help=LABELS)


def loaded_task(options: argparse.Namespace, *, several: bool = False) -> Any:
    """Loads the task of ``model``, ``--task`` and ``--labels``; a checkpoint in ``--language``.

    Args:
        options: the options of a parser with the arguments of ``add_model``.
        several: whether to return all of several tasks that were saved together, if ``--task`` does
            not choose one.

    Raises:
        ValueError: if ``--task`` is missing for several tasks, unknown, or given for a single task;
            and as ``tasks.load_checkpoint``.
    """
    from bertfam_tf import tasks
    from bertfam_tf.recipes.directory import model_directory

    path, name = options.model, options.task
    directory = model_directory(path)
    if Path(directory).suffix != ".keras" and not tasks.is_saved(directory):
        names = options.labels
        labels = None if names is None else int(names) if names.isdecimal() else names.split(",")
        return tasks.load_checkpoint(directory, name, labels, chosen_language(options))
    if options.labels is not None:
        raise ValueError(f"--labels is for checkpoints; {path} is a saved task, which has labels.")
    loaded = tasks.load(directory)
    if not isinstance(loaded, tasks.MultiTask):
        if name not in (None, type(loaded).__name__):
            raise ValueError(f"{path} is a {type(loaded).__name__}, without a task named {name!r}")
        return loaded
    if name is None and not several:
        raise ValueError(f"{path} has several tasks; choose one with --task: {', '.join(loaded)}")
    if name is not None and name not in loaded.tasks:
        raise ValueError(unknown("task", name, loaded.tasks))
    return loaded if name is None else loaded[name]

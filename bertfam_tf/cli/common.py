"""Functions that several commands share."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from bertfam_tf.names import NO_TEXT, unknown

Commands = argparse._SubParsersAction
# Packages that Keras imports for its wrappers and pictures wherever they are installed.
_UNUSED_BY_COMMANDS = ("sklearn", "matplotlib.pyplot")
# Help texts.
LANGUAGES = "such as de, for models with language embeddings (default: the task's)"
SEVERAL = "one of several tasks that were saved together"


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    """Adds a command and returns its parser.

    Args:
        commands: the subparsers of ``bertfam``.
        name: the command's name.
        run: runs the command; it imports what it needs, so that usage errors are fast.
        text: one line of help.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def add_recipe(
    parser: argparse.ArgumentParser, example: str, *, recipe: str = "a YAML file"
) -> None:
    """Adds the arguments ``recipe`` and ``override``.

    Args:
        parser: the command's parser.
        example: help on the overrides, such as ``"such as train.epochs=1"``.
        recipe: help on the recipe.
    """
    parser.add_argument("recipe", help=recipe)
    parser.add_argument("override", nargs="*", help=f"key=value, {example}")


def import_keras() -> None:
    """Imports Keras without packages that no command uses through it.

    They take a quarter of the time of the import. ``keras.wrappers`` and ``keras.visualization`` do
    not work in this process afterwards; the packages themselves do.
    """
    if "keras" in sys.modules:
        return
    hidden = [name for name in _UNUSED_BY_COMMANDS if name not in sys.modules]
    # None makes an import fail as if the package were not installed.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import keras  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


def print_table(rows: list[list[str]], right: int | None = None) -> None:
    """Prints a table; one column may be aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if right is not None:
            cells[right] = row[right].rjust(widths[right])
        print("  ".join(cells).rstrip())


def stdin_lines() -> list[str]:
    """Returns the lines of standard input.

    Raises:
        ValueError: if there are none.
    """
    lines = [line.rstrip("\n") for line in sys.stdin]
    if not lines:
        raise ValueError(NO_TEXT)
    return lines


def column(name: str) -> str | int:
    """Returns a column of an option: its index if it is a number, else its name."""
    return int(name) if name.isdecimal() else name


def check_batch_size(options: argparse.Namespace) -> None:
    """Raises ``ValueError`` for a ``--batch-size`` below 1."""
    if options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}.")


def prompt_name(task: Any, given: str | None, usual: tuple[str, ...]) -> str | None:
    """Returns the name of a prompt; None for no prompt.

    Args:
        task: the embedder.
        given: the option's value; ``""`` for no prompt, None for the first usual one.
        usual: names of prompts, in order of preference.
    """
    if given is not None:
        return given or None
    return next((name for name in usual if name in task.prompts), task.default_prompt)


def set_language(task: Any, options: argparse.Namespace) -> None:
    """Sets the task's language to ``--language``, a code or an id; unchanged without it."""
    given = options.language
    if given is not None:
        task.language = int(given) if given.isdecimal() else given


def saved_task(path: str, name: str | None = None, *, several: bool = False) -> Any:
    """Loads a saved task.

    Args:
        path: its directory, or the output directory of a recipe.
        name: of one of several tasks that were saved together.
        several: whether to return all of them if ``name`` is None.

    Raises:
        ValueError: if ``name`` is missing for several tasks, unknown, or given for a single task.
    """
    from bertfam_tf import tasks
    from bertfam_tf.recipes.directory import model_directory

    found = tasks.load(model_directory(path))
    if not isinstance(found, tasks.MultiTask):
        if name is not None:
            raise ValueError(f"{path} is a {type(found).__name__}, without a task named {name!r}")
        return found
    if name is None and not several:
        raise ValueError(f"{path} has several tasks; choose one with --task: {', '.join(found)}")
    if name is not None and name not in found.tasks:
        raise ValueError(unknown("task", name, found.tasks))
    return found if name is None else found[name]

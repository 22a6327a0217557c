"""Warnings that point at the user's line, not at a line of this package."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from logging import Logger
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_PACKAGE = str(Path(__file__).parent)


class UntrainedWarning(UserWarning):
    """A task whose head has random weights, because its checkpoint has no such head.

    Args:
        weights: the weights, such as ``"sequence head"``.
        verb: ``"is"`` or ``"are"``.
        path: the checkpoint.
        task: the class of the task.
    """

    def __init__(self, weights: str, verb: str, path: object, task: str):
        self.reason = f"The {weights} {verb} initialized at random: {path} has none."
        super().__init__(f"{self.reason} Train the {task} before you use its answers.")


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warns, with the file and line of the first caller outside of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that also takes arguments by their names in version 0.1, and warns.

    Args:
        **names: the new name by old name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments: dict[str, Any] = dict(kwargs)
            for old in names.keys() & arguments.keys():
                warn(
                    f"{function.__name__}: {old} is now {names[old]}; the old name is for version "
                    "0.1 only.",
                    FutureWarning,
                )
                arguments[names[old]] = arguments.pop(old)
            return function(*args, **arguments)

        return renamed

    return decorate


@contextmanager
def new_heads_logged(log: Logger) -> Iterator[None]:
    """Logs that a head is new instead of warning, because the task is trained next."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if isinstance(warning.message, UntrainedWarning):
            log.info("%s", warning.message.reason)
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )

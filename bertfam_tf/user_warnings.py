"""Warnings that point at the user's line, not at a line of this package."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from pathlib import Path

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


@contextmanager
def new_heads_logged(log: Logger) -> Iterator[None]:
    """Logs that a head is new, in place of the warning, where the task is trained next."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        if isinstance(each.message, UntrainedWarning):
            log.info("%s", each.message.reason)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

"""The ``bertfam`` command."""

import argparse
import logging
import os
import platform
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import bertfam_tf
from bertfam_tf.cli import (
    analyze,
    convert,
    doctor,
    evaluate,
    experiment,
    export,
    families,
    index,
    init,
    plan,
    predict,
    runs,
    search,
    serve,
    sweep,
    tokenize,
    train,
    vocabulary,
)
from bertfam_tf.names import printable, printable_lines, truncated

# Characters of an error that are printed.
_LONGEST = 8000
# In the order of the help text.
_MODULES = (
    families, doctor, init, train, runs, sweep, experiment, plan, evaluate,
    analyze, predict, index, search, export, convert, serve, tokenize, vocabulary,
)  # fmt: skip
_MODULE_OF = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
_MODULE_OF |= dict.fromkeys(("pretrain", "distill"), train)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit status. User errors are one line on stderr.

    The status is 2 for wrong usage, a wrong recipe or option and a wrong or missing file, 1 for
    errors that may be temporary, such as a full disk, 130 for Ctrl-C, and 141 if the reader of the
    output has ended.
    """
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    if options.in_batches:
        _enable_onednn()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(handlers=[handler])
    # Messages of other libraries, such as TensorFlow's about each file it writes, are not shown.
    logging.getLogger("bertfam_tf").setLevel(logging.INFO)
    try:
        with _plain_warnings():
            options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if sys.stdout.isatty():
            print(flush=True)  # ends the line of a progress bar
        again = "; the same command continues it" if options.resumes else ""
        print(f"bertfam {options.command}: interrupted{again}", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Python writes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if not _is_user_error(error):
            raise
        text = printable(truncated(" ".join(str(error).split("\n")), _LONGEST))
        print(f"bertfam {options.command}: {text}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | FileNotFoundError) else 1
    return 0


def _enable_onednn() -> None:
    """Makes TensorFlow use oneDNN's operations, its default on CPUs newer than AVX2."""
    if platform.machine() in ("x86_64", "AMD64") and "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


class _Printable(logging.Formatter):
    """Escapes control characters, such as those in names of files and labels."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Prints warnings without file and line, which are this package's and not the user's."""
    default = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"{printable_lines(str(message))}\n"  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.formatwarning = default


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """Parses arguments; options may stand before, between and after positional ones."""
    parser = argparse.ArgumentParser(prog="bertfam", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {bertfam_tf.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    name = arguments[0] if arguments else ""
    if name not in _MODULE_OF:
        for module in _MODULES:
            module.add(commands)
        return parser.parse_args(arguments)
    _MODULE_OF[name].add(commands)
    options = commands.choices[name].parse_intermixed_args(arguments[1:])
    options.command = name
    return options


def _is_user_error(error: Exception) -> bool:
    # By name: an import may fail here too, and would hide the error of a broken package.
    return isinstance(error, ValueError | OSError) or type(error).__name__ in (
        "ExportError",
        "ServingError",
    )

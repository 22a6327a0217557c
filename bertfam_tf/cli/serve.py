"""``bertfam serve``."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bertfam_serve.__main__ import add_flags
from bertfam_serve.__main__ import run as run_server
from bertfam_tf.cli.common import Commands, add_command, add_task, loaded_task


def add(commands: Commands) -> None:
    text = "serve exported models over REST and gRPC on this machine"
    parser = add_command(commands, "serve", run, text)
    add_flags(parser)
    parser.description = (
        f"{text}. A saved task, the output directory of a recipe or a checkpoint (a directory, "
        "package:NAME, a hub id or a KerasHub preset) in place of the directory with the versions "
        "is exported first, into a temporary directory."
    )
    add_task(parser)


def run(options: argparse.Namespace) -> None:
    if not _is_model(options):
        for name in ("task", "labels"):
            if getattr(options, name) is not None:
                raise ValueError(f"--{name} is for models that are not exported yet.")
        run_server(options)
        return
    options.model = options.base_path
    with _exits_when_terminated(), TemporaryDirectory(prefix="bertfam-serve-") as folder:
        task = loaded_task(options, several=True)
        print(
            f"Exporting {options.model} for this server. `bertfam export {options.model} "
            "DIRECTORY` keeps the export, and `bertfam serve DIRECTORY` starts without waiting.",
            file=sys.stderr,
        )
        task.export(folder)
        options.base_path = folder
        run_server(options)


@contextmanager
def _exits_when_terminated() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit, until the server handles it: the export is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_model(options: argparse.Namespace) -> bool:
    """Whether the base path is a model that has to be exported first."""
    path = options.base_path
    if path is None or options.model_config_file:
        return False
    if not Path(path).is_dir():
        from bertfam_tf.sources import is_name

        return Path(path).suffix == ".keras" or is_name(path)
    if any(child.name.isdecimal() for child in Path(path).iterdir()):
        return False  # without Keras, which checkpoints need
    from bertfam_tf.checkpoints import formats
    from bertfam_tf.recipes.directory import model_directory

    return formats.matches(Path(model_directory(path)))

"""``bertfam runs``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, print_table


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "runs", run, "print finished and running runs beside each other")
    parser.add_argument("directory", nargs="+", help="output directories, or directories of them")
    parser.add_argument("--plot", metavar="FILE", help="write a picture (PNG) of the runs' curves")
    parser.add_argument("--metric", help="of the picture, such as val_accuracy (default: the loss)")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes import runs

    found = runs.read_runs(options.directory)
    print_table(runs.table(found))
    if options.plot:
        runs.draw(found, options.plot, options.metric)

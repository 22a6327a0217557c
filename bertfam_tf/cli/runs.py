"""``bertfam runs``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, print_table


def add(commands: Commands) -> None:
    parser = add_command(commands, "runs", run, "compare finished and running runs in a table")
    parser.add_argument("directory", nargs="+", help="output directories, or directories of them")
    parser.add_argument("--plot", metavar="FILE", help="write a picture (PNG) of the runs' curves")
    parser.add_argument("--metric", help="of the picture, such as val_accuracy (default: the loss)")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes import runs

    entries = runs.read_runs(options.directory)
    print_table(runs.table(entries))
    if options.plot:
        runs.draw(entries, options.plot, options.metric)

"""``bertfam sweep``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, add_recipe, print_table


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands, "sweep", run, "fine-tune with a recipe for several seeds or values", resumes=True
    )
    add_recipe(parser, "for all runs")
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=VALUE,VALUE",
        help="values of a key, such as train.seed=0,1,2; several for all combinations",
    )


def run(options: argparse.Namespace) -> None:
    values = {}
    for given in options.over:
        key, equals, listed = given.partition("=")
        if not equals or not key or not listed:
            raise ValueError(f"--over must be KEY=VALUE,VALUE, got {given!r}.")
        values[key] = listed.split(",")
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import runs

    found = runs.sweep(options.recipe, values, options.override, flops=flops_per_token)
    print_table(runs.table(found))
    print()
    print_table(runs.summary(found))

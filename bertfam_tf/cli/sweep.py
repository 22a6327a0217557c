"""``bertfam sweep``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command, add_recipe, print_table


def add(commands: Commands) -> None:
    text = "fine-tune with a recipe for several seeds or values"
    parser = add_command(commands, "sweep", run, text, resumes=True, in_batches=True)
    add_recipe(parser, "for all runs")
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=VALUE,VALUE",
        help="values of a key, such as train.seed=0,1,2; for random search also "
        "train.learning_rate='log_uniform(1e-5, 1e-3)', uniform(0.0, 0.3) or choice(16, 32); "
        "several for all combinations",
    )
    parser.add_argument(
        "--search",
        choices=("grid", "random"),
        default="grid",
        help="all combinations, or samples of them (%(default)s)",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="the runs of a random search")
    parser.add_argument("--seed", type=int, default=0, help="of a random search (%(default)s)")


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.search_space import Values, values_of

    values: dict[str, Values] = {}
    for axis in options.over:
        key, equals, listed = axis.partition("=")
        if not equals or not key or not listed or key in values:
            raise ValueError(f"--over must be KEY=VALUE,VALUE, once for each key, got {axis!r}.")
        values[key] = values_of(key, listed)
    if (options.trials is None) == (options.search == "random"):
        raise ValueError(
            "--trials must be given for --search random, and only for it, got "
            f"{options.trials} for {options.search}."
        )
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import runs

    results = runs.sweep(
        options.recipe,
        values,
        options.override,
        search=options.search,
        trials=options.trials,
        seed=options.seed,
        flops=flops_per_token,
    )
    print_table(runs.table(results))
    print()
    if options.search == "grid":
        print_table(runs.summary(results))
    elif (best := runs.best(results)) is not None:
        metric, run = best
        print(f"Best {metric}: {run.metrics[metric]:.4g} in {run.path}")

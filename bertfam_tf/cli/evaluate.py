"""``bertfam evaluate``."""

import argparse
import json
from pathlib import Path

from bertfam_tf.cli.common import (
    LANGUAGES,
    Commands,
    add_command,
    check_batch_size,
    language_model,
    set_language,
)


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "evaluate", run, "print a trained run's metrics as JSON")
    parser.add_argument(
        "run_dir",
        metavar="RUN",
        help="the output directory of a recipe; with --blimp also a saved task or a checkpoint",
    )
    parser.add_argument(
        "override", nargs="*", help="key=value after RUN, such as data.dev=other.tsv"
    )
    parser.add_argument("--language", help=f"of the split's texts, {LANGUAGES}")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument(
        "--report", metavar="FILE", help="write a page about a classifier's mistakes (HTML)"
    )
    parser.add_argument(
        "--submission",
        metavar="FILE",
        help="write the predictions of the split for GLUE's server, such as CoLA.tsv or MNLI-m.tsv",
    )
    parser.add_argument(
        "--blimp",
        metavar="DIR",
        help="of a language model: how often it prefers the acceptable sentence of minimal pairs, "
        "by paradigm (DIR/*.jsonl or *.jsonl.gz)",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="with --blimp (%(default)s)")


def run(options: argparse.Namespace) -> None:
    if options.blimp:
        _minimal_pairs(options)
        return
    from bertfam_tf.recipes.directory import MODEL, RECIPE
    from bertfam_tf.recipes.reading import load_run

    run_dir = Path(options.run_dir)
    recipe = load_run(run_dir / RECIPE, options.override)
    from bertfam_tf import tasks
    from bertfam_tf.recipes.fine_tuning import evaluate
    from bertfam_tf.recipes.multi_task import evaluate_tasks

    task = tasks.load(run_dir / MODEL)
    if isinstance(task, tasks.MultiTask):
        if options.report or options.language is not None:
            raise ValueError("--report and --language are for a run of one task.")
        print(json.dumps(evaluate_tasks(task, recipe, options.split)))
        return
    set_language(task, options)
    if options.submission:
        from bertfam_tf.recipes.submissions import write_submission

        count = write_submission(task, recipe, options.submission, options.split)
        print(f"{count:,} predictions in {options.submission}")
        return
    language = None if options.language is None else task.language
    print(json.dumps(evaluate(task, recipe, options.split, language)))
    if options.report:
        from bertfam_tf.analysis import report
        from bertfam_tf.recipes import read_split

        rows = read_split(recipe.data, options.split, recipe.task, task.class_names or None)
        found = list(rows.as_numpy_iterator())
        texts = {name: [x[name] for x, *_ in found] for name in task.feature_names}
        title = f"{run_dir.name}, {options.split} split"
        report(task, texts, [y for _, y, *_ in found]).write(options.report, title)


def _minimal_pairs(options: argparse.Namespace) -> None:
    """Prints the scores of minimal pairs."""
    check_batch_size(options)
    from bertfam_tf import metrics

    task = language_model(options.run_dir)
    set_language(task, options)
    found = metrics.minimal_pairs(task, options.blimp, batch_size=options.batch_size)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))

"""``bertfam evaluate``."""

import argparse
import json
from pathlib import Path

from bertfam_tf.cli.common import LANGUAGES, Commands, add_command, import_keras, set_language


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "evaluate", run, "print a trained run's metrics as JSON")
    parser.add_argument("run_dir", metavar="RUN", help="the output directory of a recipe")
    parser.add_argument(
        "override", nargs="*", help="key=value after RUN, such as data.dev=other.tsv"
    )
    parser.add_argument("--language", help=f"of the split's texts, {LANGUAGES}")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument(
        "--report", metavar="FILE", help="write a page about a classifier's mistakes (HTML)"
    )


def run(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.directory import MODEL, RECIPE
    from bertfam_tf.recipes.reading import load_run

    run_dir = Path(options.run_dir)
    recipe = load_run(run_dir / RECIPE, options.override)
    import_keras()
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

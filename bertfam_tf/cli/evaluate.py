"""``bertfam evaluate``."""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from bertfam_tf.cli.common import (
    DTYPES,
    LANGUAGES,
    Commands,
    add_command,
    add_model,
    calibration_texts,
    check_batch_size,
    loaded_task,
    set_language,
)


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "evaluate", run, "print a model's metrics on a split as JSON", in_batches=True
    )
    add_model(parser)
    parser.add_argument(
        "override",
        nargs="*",
        help="key=value after the model, such as data.dev=other.tsv, which a model without a "
        "recipe needs",
    )
    parser.add_argument("--language", help=f"of the split's texts, {LANGUAGES}")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="score the model as an export in this dtype (%(default)s)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="typical texts for --dtype int8, as for bertfam export",
    )
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
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="with --blimp, a JSON file with the scores of paradigms; an interrupted run resumes",
    )
    parser.add_argument("--batch-size", type=int, help="with --blimp (32)")


def run(options: argparse.Namespace) -> None:
    if options.report and options.dtype != "float32":
        raise ValueError("--report is for --dtype float32.")
    if options.report and options.submission:
        raise ValueError("--report needs labels, which --submission's split lacks; choose one.")
    if options.blimp:
        _minimal_pairs(options)
        return
    if options.output or options.batch_size is not None:
        raise ValueError("--output and --batch-size are for --blimp.")
    from bertfam_tf.recipes.directory import RECIPE
    from bertfam_tf.recipes.reading import load_finished

    file = Path(options.model) / RECIPE
    recipe = load_finished(file, options.override) if file.is_file() else None
    from bertfam_tf import tasks
    from bertfam_tf.recipes.fine_tuning import evaluate
    from bertfam_tf.recipes.multi_task import evaluate_tasks
    from bertfam_tf.recipes.schema import MultiTaskRecipe

    task = loaded_task(options, several=recipe is not None)
    if isinstance(task, tasks.MultiTask):
        assert recipe is not None
        one = (options.report, options.submission, options.language, options.calibration)
        if any(one) or options.dtype != "float32":
            raise ValueError(
                "--report, --submission, --language, --dtype and --calibration are for one task; "
                f"choose it with --task: {', '.join(task)}."
            )
        print(json.dumps(evaluate_tasks(task, recipe, options.split)))
        return
    if recipe is None:
        recipe = _recipe(options, type(task).__name__)
    elif isinstance(recipe, MultiTaskRecipe):
        recipe = recipe.of(options.task)
    set_language(task, options)
    if options.submission:
        from bertfam_tf.recipes.submissions import write_submission

        with _computing_in(task, options):
            count = write_submission(task, recipe, options.submission, options.split)
        print(f"{count:,} predictions in {options.submission}")
        return
    if options.report:
        from bertfam_tf.analysis.report import check_task, report
        from bertfam_tf.files import HTML, check_kind

        check_task(task)
        check_kind(options.report, *HTML)
    language = None if options.language is None else task.language
    with _computing_in(task, options):
        print(json.dumps(evaluate(task, recipe, options.split, language)))
    if options.report:
        from bertfam_tf.recipes import read_split

        rows = read_split(recipe.data, options.split, recipe.task, task.class_names or None)
        examples = list(rows.as_numpy_iterator())
        texts = {name: [x[name] for x, *_ in examples] for name in task.feature_names}
        title = f"{Path(options.model).name}, {options.split} split"
        report(task, texts, [y for _, y, *_ in examples]).write(options.report, title)


def _computing_in(task: Any, options: argparse.Namespace) -> contextlib.AbstractContextManager:
    """Returns the context for ``--dtype``."""
    if options.dtype == "float32" and options.calibration is None:
        return contextlib.nullcontext()
    from bertfam_tf.export.saved_model import computing_in

    return computing_in(task, options.dtype, calibration_texts(options, task))


def _minimal_pairs(options: argparse.Namespace) -> None:
    """Prints the scores of minimal pairs."""
    if options.dtype != "float32" or options.calibration or options.report or options.submission:
        raise ValueError("--dtype, --calibration, --report and --submission are not for --blimp.")
    if options.batch_size is None:
        options.batch_size = 32
    check_batch_size(options)
    from bertfam_tf import metrics
    from bertfam_tf.recipes.reading import expand

    options.resumes = options.output is not None
    pairs = expand(options.blimp)
    task = loaded_task(options)
    if not hasattr(task, "log_likelihood"):
        raise ValueError(
            f"--blimp is for a MaskedLM or a CausalLM; {options.model} is a {type(task).__name__}."
        )
    set_language(task, options)
    # Only the result is written to stdout, not the progress bar.
    with contextlib.redirect_stdout(sys.stderr):
        scores = metrics.minimal_pairs(
            task, pairs, batch_size=options.batch_size, file=options.output
        )
    print(json.dumps({name: round(value, 4) for name, value in scores.items()}))


def _recipe(options: argparse.Namespace, task: str) -> Any:
    """Returns a recipe for a model that was not trained by one.

    Raises:
        ValueError: if the overrides do not name the split.
    """
    from bertfam_tf.recipes.reading import build_with
    from bertfam_tf.recipes.schema import Recipe

    key = f"data.{options.split}"
    files = [x.removeprefix(f"{key}=") for x in options.override if x.startswith(f"{key}=")]
    if not files:
        raise ValueError(
            f"{options.model} has no recipe that names its data; add {key}=FILE, and data.text="
            "COLUMN data.label=COLUMN if the columns have other names."
        )
    # Only the split is read, but a recipe's data have training files, whose format is the split's.
    train = f"data.train={files[0]}"
    values = {"output": "", "model": {"path": str(options.model)}, "task": task}
    return build_with(values, [train, *options.override], Path("evaluate"), Recipe)

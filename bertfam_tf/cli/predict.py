"""``bertfam predict``."""

import argparse
from pathlib import Path
from typing import Any

from bertfam_tf.cli.common import (
    LANGUAGES,
    Commands,
    add_command,
    add_model,
    check_batch_size,
    column,
    loaded_task,
    print_json,
    set_language,
    stdin_lines,
)
from bertfam_tf.names import join_names

# Features that are read from one column each.
_FEATURES = ("text", "text_pair", "question", "context")


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "predict", run, "print predictions, one line of JSON per text", in_batches=True
    )
    add_model(parser)
    parser.add_argument("text", nargs="*", help="texts (default: lines of standard input)")
    parser.add_argument("--language", help=f"of the texts, {LANGUAGES}")
    parser.add_argument("--input", metavar="FILE", help="read a file of any size, with --output")
    parser.add_argument(
        "--output", metavar="FILE", help="one line of JSON per row; an interrupted run resumes"
    )
    parser.add_argument(
        "--format",
        help="of the input (default: by file name, then the recipe's); txt has one text per line",
    )
    for name in _FEATURES:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"column_{name}",
            metavar="COLUMN",
            help=f"column of the {name}, by name, or index from 0 in a file without a line of "
            "names (default: the recipe's)",
        )
    parser.add_argument(
        "--choices", metavar="COLUMNS", help="columns of the choices, separated by commas"
    )
    parser.add_argument(
        "--id",
        metavar="COLUMN",
        help="column that identifies a row in the output (default: the number of the row, from 0)",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="(%(default)s)")
    parser.add_argument(
        "--top", type=int, metavar="K", help="only the K best scores of classifiers (default: all)"
    )


def run(options: argparse.Namespace) -> None:
    if options.input or options.output:
        options.resumes = True
        _predict_file(options)
        return
    for name in (*(f"column_{name}" for name in _FEATURES), "choices", "id", "format"):
        if getattr(options, name) is not None:
            option = name.removeprefix("column_").replace("_", "-")
            raise ValueError(
                f"--{option} is for --input; texts need no option: bertfam predict MODEL TEXT."
            )
    from bertfam_tf.recipes import as_json

    texts = options.text or stdin_lines()
    task = loaded_task(options)
    names = task.feature_names
    if len(names) > 1:
        raise ValueError(
            f"This {type(task).__name__} reads {join_names(names)}: write them to columns of a "
            "file, and predict with --input FILE --output FILE."
        )
    set_language(task, options)
    _check_top(options.top, task)
    for answer in task.predict(texts):
        print_json(as_json(answer, task, options.top))


def _check_top(top: int | None, task: Any) -> None:
    if top is None:
        return
    if not task.ranked_scores:
        raise ValueError(
            "--top is for classifiers with the same labels for all texts, such as TextClassifier, "
            f"got a {type(task).__name__}."
        )
    if top < 1:
        raise ValueError(f"--top must be at least 1, got {top}")


def _predict_file(options: argparse.Namespace) -> None:
    if not (options.input and options.output) or options.text:
        raise ValueError("predicting on a file needs both --input and --output, and no texts")
    check_batch_size(options)
    from bertfam_tf import tasks
    from bertfam_tf.data import format_of, read_rows
    from bertfam_tf.recipes import answer_file, source_of
    from bertfam_tf.recipes.directory import RECIPE, model_directory
    from bertfam_tf.recipes.reading import kind_of, load_finished, read_values
    from bertfam_tf.recipes.schema import MultiTaskRecipe, PretrainRecipe
    from bertfam_tf.recipes.splits import columns

    task = loaded_task(options)
    set_language(task, options)
    _check_top(options.top, task)
    data, recipe_file = None, Path(options.model) / RECIPE
    # Text of pretraining has no columns.
    if recipe_file.is_file() and kind_of(read_values(recipe_file)) is not PretrainRecipe:
        recipe = load_finished(recipe_file)
        data = (recipe.of(options.task) if isinstance(recipe, MultiTaskRecipe) else recipe).data
    column_names = {name: name for name in task.feature_names}
    by_recipe = {} if data is None else columns(data) or {}
    if options.language is None:
        column_names |= {name: name for name in task.fields.described if name in by_recipe}
    column_options = {name: getattr(options, f"column_{name}") for name in _FEATURES}
    chosen: dict[str, Any] = {
        name: column(text) for name, text in column_options.items() if text is not None
    }
    if options.id is not None:
        chosen["id"] = column(options.id)
    if options.choices:
        chosen["choices"] = list(map(column, options.choices.split(",")))
    columns_to_read = {
        name: by_recipe.get(name, own) for name, own in column_names.items()
    } | chosen
    file = Path(options.input)
    local = data is not None and data.format not in (None, "tfds")
    kind = options.format or format_of(file, default=data.format if local else "tsv")  # type: ignore[union-attr]
    numbered = kind == "conll" and chosen.keys() == {"text"} and isinstance(chosen["text"], int)
    if chosen and kind in ("conll", "race", "txt") and not numbered:
        option = next(iter(chosen)).replace("_", "-")
        raise ValueError(
            f"--{option} is for columns with names, which {file} ({kind}) does not have."
        )
    rows = read_rows(file, columns_to_read, format=kind)
    how = {} if options.language is None else {"language": task.language}
    directory = model_directory(options.model)
    model = Path(directory) if tasks.is_saved(directory) else task
    source = source_of(file, model, format=kind, columns=columns_to_read, **how)
    count = answer_file(
        task, rows, options.output, source, batch_size=options.batch_size, top=options.top
    )
    print(f"{count:,} answers in {options.output}")

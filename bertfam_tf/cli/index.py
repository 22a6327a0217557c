"""``bertfam index``."""

import argparse
from pathlib import Path
from typing import Any

from bertfam_tf.cli.common import (
    LANGUAGES,
    Commands,
    add_command,
    check_batch_size,
    chosen_language,
    column,
    prompt_name,
)

_USUAL_PROMPTS = ("document", "passage")


def add(commands: Commands) -> None:
    text = "embed the texts of a file, for search; it resumes"
    parser = add_command(commands, "index", run, text, resumes=True, in_batches=True)
    parser.add_argument(
        "model", help="an embedder: a saved task, a recipe's output, or a checkpoint"
    )
    parser.add_argument("--input", required=True, metavar="FILE", help="the documents, one per row")
    parser.add_argument("--output", required=True, metavar="DIR", help="the index")
    parser.add_argument("--language", help=f"of the documents, {LANGUAGES}")
    parser.add_argument(
        "--format", help="of the input (default: by file name); txt has one text per line"
    )
    parser.add_argument(
        "--text",
        default="text",
        metavar="COLUMN",
        help="by name, or index from 0 in a file without a line of names (%(default)s)",
    )
    parser.add_argument("--id", metavar="COLUMN", help="(default: the number of the row)")
    parser.add_argument(
        "--precision",
        default="float32",
        help="of vectors: float32, int8 (a quarter) or binary (a 32nd of the size) (%(default)s)",
    )
    parser.add_argument(
        "--prompt", help="its name; '' for none (default: document or passage if there is one)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="(%(default)s)")


def run(options: argparse.Namespace) -> None:
    check_batch_size(options)
    from bertfam_tf import search
    from bertfam_tf.data import format_of, read_rows
    from bertfam_tf.recipes.answers import input_of
    from bertfam_tf.recipes.directory import model_directory

    file = Path(options.input)
    kind = options.format or format_of(file, default="txt")  # type: ignore[arg-type]
    column_options = {"text": options.text, "id": options.id}
    columns: dict[str, Any] = {
        name: column(text) for name, text in column_options.items() if text is not None
    }
    rows = read_rows(file, columns, format=kind)
    task = search.embedder(model_directory(options.model), chosen_language(options))
    source = {**input_of(file), "format": kind, "columns": columns}
    if options.language is not None:
        source["language"] = options.language
    count = search.build(
        task,
        rows,
        options.output,
        source,
        precision=options.precision,
        prompt=prompt_name(task, options.prompt, _USUAL_PROMPTS),
        batch_size=options.batch_size,
    )
    print(f"{count:,} documents in {options.output}")

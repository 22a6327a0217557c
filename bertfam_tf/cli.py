"""The ``bertfam`` command."""

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

# Each command imports what it needs, so that --help and mistakes answer at once.


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit status. Errors of the user's are one line on stderr."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        options.run(options)
    except Exception as error:
        if not _is_users(error):
            raise
        text = " ".join(str(error).split("\n"))
        print(f"bertfam {options.command}: {text}", file=sys.stderr)
        return 1
    return 0


def _is_users(error: Exception) -> bool:
    if isinstance(error, ValueError | OSError):
        return True
    from bertfam_tf.export import ExportError
    from bertfam_tf.serve import ServingError

    return isinstance(error, ExportError | ServingError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bertfam", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    families = command("families", _families, "print every family and its sizes' parameters")
    families.add_argument("name", nargs="*", help="families to print; all if there is none")

    train = command("train", _train, "fine-tune by a recipe; a killed run goes on")
    train.add_argument("recipe", help="a YAML file")
    train.add_argument("override", nargs="*", help="key=value, such as train.epochs=1")

    evaluate = command("evaluate", _evaluate, "print a trained run's metrics as JSON")
    evaluate.add_argument("run_dir", metavar="RUN", help="the output directory of a recipe")
    evaluate.add_argument("--split", choices=("dev", "test"), default="dev")

    predict = command("predict", _predict, "print answers, a line of JSON for each text")
    predict.add_argument("model", help="a saved task, or the output directory of a recipe")
    predict.add_argument("text", nargs="*", help="texts; lines of standard input if there is none")

    export = command("export", _export, "write a SavedModel for TF Serving")
    export.add_argument("model", help="a saved task, or the output directory of a recipe")
    export.add_argument("directory", help="gets a subdirectory named by the next version")

    convert = command("convert", _convert, "write any supported checkpoint in another format")
    convert.add_argument("source", help="a directory, package:NAME, or a hub id")
    convert.add_argument("target", help="the directory to make; it is never overwritten")
    convert.add_argument("--to", choices=("hf",), default="hf", help="Hugging Face's (%(default)s)")
    convert.add_argument("--family", help="what it is, where the checkpoint does not say")

    serve = command("serve", _serve, "serve exported models over REST on this machine")
    serve.add_argument("directory", help="holds a subdirectory for each version")
    serve.add_argument("--name", default="model", help="of the model in URLs (%(default)s)")
    serve.add_argument("--host", default="127.0.0.1", help="(%(default)s)")
    serve.add_argument("--port", type=int, default=8501, help="0 takes a free one (%(default)s)")
    return parser


def _families(options: argparse.Namespace) -> None:
    from bertfam_tf import models, registry

    cards = [registry.get(name) for name in options.name or models.families()]
    # Counting takes a while for large sizes: each row is printed when it is known.
    rows = [
        [card.name, size, "", card.tokenizer, ", ".join(card.objectives), ", ".join(card.heads)]
        for card in cards
        for size in card.sizes
    ]
    header = ["family", "size", "parameters", "tokenizer", "objectives", "heads"]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    widths[2] = len("9,999,999,999")

    def line(cells: list[str]) -> str:
        aligned = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        aligned[2] = cells[2].rjust(widths[2])
        return "  ".join(aligned).rstrip()

    print(line(header))
    for row in rows:
        row[2] = f"{models.count_parameters(row[0], row[1]):,}"
        print(line(row), flush=True)


def _train(options: argparse.Namespace) -> None:
    from bertfam_tf.config import load_recipe

    recipe = load_recipe(options.recipe, options.override)
    from bertfam_tf.train import run

    print(json.dumps(run(recipe)))


def _evaluate(options: argparse.Namespace) -> None:
    from bertfam_tf import tasks
    from bertfam_tf.config import load_recipe
    from bertfam_tf.train.run import MODEL, RECIPE, evaluate

    run_dir = Path(options.run_dir)
    recipe = load_recipe(run_dir / RECIPE)
    print(json.dumps(evaluate(tasks.load(run_dir / MODEL), recipe, options.split)))


def _predict(options: argparse.Namespace) -> None:
    import numpy as np

    texts = options.text or [line.rstrip("\n") for line in sys.stdin]
    for answer in _saved_task(options.model).predict(texts):
        values = answer if isinstance(answer, dict) else {"embedding": answer}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        print(json.dumps(plain, ensure_ascii=False))


def _export(options: argparse.Namespace) -> None:
    print(_saved_task(options.model).export(options.directory))


def _convert(options: argparse.Namespace) -> None:
    from bertfam_tf.checkpoints import convert

    print(convert(options.source, options.target, options.to, family=options.family))


def _serve(options: argparse.Namespace) -> None:
    from bertfam_tf.serve import serve

    serve(options.directory, model_name=options.name, host=options.host, rest_port=options.port)


def _saved_task(path: str) -> Any:
    from bertfam_tf import tasks
    from bertfam_tf.train.run import MODEL, RECIPE

    directory = Path(path)
    return tasks.load(directory / MODEL if (directory / RECIPE).is_file() else directory)


if __name__ == "__main__":
    sys.exit(main())

"""The ``bertfam`` command."""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import bertfam_tf
from bertfam_tf.cli import experiment
from bertfam_tf.files import write
from bertfam_tf.names import unknown
from bertfam_tf.serve.__main__ import add_flags as add_serve_flags

# Features that are read from one column each.
_FEATURES = ("text", "text_pair", "question", "context")

# Each command imports what it needs, so that --help and usage errors are fast.


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit status. User errors are one line on stderr.

    The status is 2 for a wrong recipe or option and a wrong or missing file, with which the
    command fails again (as for wrong usage), 1 for errors that may pass, such as a full disk, and
    130 for Ctrl-C.
    """
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    # Messages of other libraries, such as TensorFlow's about each file it writes, are not shown.
    logging.getLogger("bertfam_tf").setLevel(logging.INFO)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print(f"bertfam {options.command}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if not _is_user_error(error):
            raise
        text = " ".join(str(error).split("\n"))
        print(f"bertfam {options.command}: {text}", file=sys.stderr)
        return 2 if isinstance(error, ValueError | FileNotFoundError) else 1
    return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of a command, which may stand before, between and after its other arguments."""
    parser = _parser()
    name = arguments[0] if arguments else ""
    [commands] = (x for x in parser._actions if isinstance(x, argparse._SubParsersAction))
    if name not in commands.choices:
        return parser.parse_args(arguments)
    options = commands.choices[name].parse_intermixed_args(arguments[1:])
    options.command = name
    return options


def _is_user_error(error: Exception) -> bool:
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

    families = command("families", _families, "print all families with the parameters of each size")
    families.add_argument("name", nargs="*", help="families to print (default: all)")

    command("doctor", _doctor, "print versions, devices, and what is missing for which feature")

    train = command("train", _train, "fine-tune with a recipe; an interrupted run resumes")
    train.add_argument("recipe", help="a YAML file")
    train.add_argument("override", nargs="*", help="key=value, such as train.epochs=1")

    pretrain = command("pretrain", _pretrain, "train a language model with a recipe")
    pretrain.add_argument("recipe", help="a YAML file")
    pretrain.add_argument("override", nargs="*", help="key=value, such as train.epochs=1")

    distill = command("distill", _distill, "train a student to imitate a teacher with a recipe")
    distill.add_argument("recipe", help="a YAML file")
    distill.add_argument("override", nargs="*", help="key=value, such as data.limit=1000")

    runs = command("runs", _runs, "print finished and running runs beside each other")
    runs.add_argument("directory", nargs="+", help="output directories, or directories of them")
    runs.add_argument("--plot", metavar="FILE", help="write a picture (PNG) of the runs' curves")
    runs.add_argument("--metric", help="of the picture, such as val_accuracy (default: the loss)")

    sweep = command("sweep", _sweep, "fine-tune with a recipe for several seeds or values")
    sweep.add_argument("recipe", help="a YAML file")
    sweep.add_argument("override", nargs="*", help="key=value, for all runs")
    sweep.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=VALUE,VALUE",
        help="values of a key, such as train.seed=0,1,2; several for all combinations",
    )

    experiment.add(command("experiment", experiment.run, experiment.TEXT))

    plan = command("plan", _plan, "print what a recipe's run will take, without running it")
    plan.add_argument("recipe", help="a YAML file, of pretraining or fine-tuning")
    plan.add_argument(
        "override", nargs="*", help="key=value after the recipe, such as train.steps=1000"
    )
    plan.add_argument("--devices", type=int, default=1, metavar="N", help="(%(default)s)")
    plan.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="devices of a copy of the model"
    )
    plan.add_argument(
        "--accumulation", type=int, metavar="N", help="parts of a device's batch (the recipe's)"
    )
    plan.add_argument(
        "--recompute",
        action="store_true",
        help="keep only the inputs of blocks (checkpointing), also if the recipe does not",
    )
    plan.add_argument(
        "--dtype", default="float32", help="float32, mixed_bfloat16 or mixed_float16 (%(default)s)"
    )
    plan.add_argument(
        "--peak", type=float, required=True, help="FLOP/s of a device, such as 312e12 of an A100"
    )
    plan.add_argument(
        "--share", type=float, default=0.4, help="of the peak that is reached (%(default)s)"
    )
    plan.add_argument("--memory", type=float, metavar="GIB", help="of a device")
    plan.add_argument(
        "--bandwidth", type=float, help="bytes/s between devices (default: in the share)"
    )
    plan.add_argument("--price", type=float, help="of a device and hour")
    plan.add_argument("--steps", type=int, metavar="N", help="if the recipe has none")
    plan.add_argument("--json", action="store_true", help="all numbers, as one line of JSON")

    languages = "such as de, for models with language embeddings (default: the task's)"
    evaluate = command("evaluate", _evaluate, "print a trained run's metrics as JSON")
    evaluate.add_argument("run_dir", metavar="RUN", help="the output directory of a recipe")
    evaluate.add_argument(
        "override", nargs="*", help="key=value after RUN, such as data.dev=other.tsv"
    )
    evaluate.add_argument("--language", help=f"of the split's texts, {languages}")
    evaluate.add_argument("--split", choices=("dev", "test"), default="dev")
    evaluate.add_argument(
        "--report", metavar="FILE", help="write a page about a classifier's mistakes (HTML)"
    )

    several = "one of several tasks that were saved together"
    analyze = command(
        "analyze", _analyze, "show which words made an answer, attention, and which heads matter"
    )
    analyze.add_argument("model", help="a saved task, or the output directory of a recipe")
    analyze.add_argument(
        "text", nargs="*", help="the texts of one example, such as a question and its context"
    )
    analyze.add_argument(
        "--output", required=True, metavar="DIR", help="of the page and the pictures"
    )
    analyze.add_argument("--task", metavar="NAME", help=several)
    analyze.add_argument("--target", help="the label that is explained (default: the answer)")
    analyze.add_argument(
        "--word", type=int, metavar="N", help="of a tagger: the word that is explained, from 0"
    )
    analyze.add_argument(
        "--heads",
        action="store_true",
        help="score the dev split of a run without each head, and without each layer's heads",
    )
    analyze.add_argument(
        "--pairs",
        type=int,
        default=0,
        metavar="N",
        help="with --heads: also without each pair of the N heads that change the score most",
    )
    analyze.add_argument("--metric", help="with --heads (default: the first but the loss)")
    analyze.add_argument(
        "--mode",
        choices=("zero", "uniform"),
        default="zero",
        help="with --heads: what a head that is off gives: nothing (default), or the mean of the "
        "values that it may attend to, as Kovaleva et al. (2019) have it",
    )

    predict = command("predict", _predict, "print predictions, one line of JSON per text")
    predict.add_argument("model", help="a saved task, or the output directory of a recipe")
    predict.add_argument("text", nargs="*", help="texts (default: lines of standard input)")
    predict.add_argument("--task", metavar="NAME", help=several)
    predict.add_argument("--language", help=f"of the texts, {languages}")
    predict.add_argument("--input", metavar="FILE", help="read a file of any size, with --output")
    predict.add_argument(
        "--output", metavar="FILE", help="one line of JSON per row; an interrupted run resumes"
    )
    predict.add_argument(
        "--format",
        help="of the input (default: by file name, then the recipe's); txt has one text per line",
    )
    for name in _FEATURES:
        predict.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"column_{name}",
            metavar="COLUMN",
            help=f"column of the {name}, by name or index from 0 (default: the recipe's)",
        )
    predict.add_argument(
        "--choices", metavar="COLUMNS", help="columns of the choices, separated by commas"
    )
    predict.add_argument("--batch-size", type=int, default=32, help="(%(default)s)")
    predict.add_argument(
        "--top", type=int, metavar="K", help="only the K best scores of classifiers (default: all)"
    )

    index = command("index", _index, "embed the texts of a file, for search; it resumes")
    index.add_argument(
        "model", help="an embedder: a saved task, a recipe's output, or a checkpoint"
    )
    index.add_argument("--input", required=True, metavar="FILE", help="the documents, one per row")
    index.add_argument("--output", required=True, metavar="DIR", help="the index")
    index.add_argument(
        "--format", help="of the input (default: by file name); txt has one text per line"
    )
    index.add_argument(
        "--text", default="text", metavar="COLUMN", help="by name or index from 0 (%(default)s)"
    )
    index.add_argument("--id", metavar="COLUMN", help="(default: the number of the row)")
    index.add_argument(
        "--precision",
        default="float32",
        help="of vectors: float32, int8 (a quarter) or binary (a 32nd of the size) (%(default)s)",
    )
    index.add_argument(
        "--prompt", help="its name; '' for none (default: document or passage if there is one)"
    )
    index.add_argument("--batch-size", type=int, default=32, help="(%(default)s)")

    search = command("search", _search, "print the nearest documents, one line of JSON per query")
    search.add_argument("model", help="the embedder that made the index")
    search.add_argument("index", help="the directory of bertfam index")
    search.add_argument("query", nargs="*", help="texts (default: lines of standard input)")
    search.add_argument("--top", type=int, default=10, metavar="K", help="(%(default)s)")
    search.add_argument("--prompt", help="its name; '' for none (default: query, if there is one)")

    export = command("export", _export, "write a SavedModel for TF Serving, or a .tflite file")
    export.add_argument("model", help="a saved task, or the output directory of a recipe")
    export.add_argument(
        "directory", help="parent of the version's directory; with --tflite, the file"
    )
    export.add_argument("--version", type=int, help="version number (default: the next one)")
    export.add_argument("--task", metavar="NAME", help=f"{several} (default: all)")
    export.add_argument("--language", help=f"of texts that come without one, {languages}")
    export.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8-weights", "int8"),
        help="dtype of stored weights (default: float32); int8 also computes in int8, on x86 CPUs",
    )
    export.add_argument(
        "--calibration",
        metavar="FILE",
        help="typical texts, one per line, for --dtype int8 and --quantize int8-full",
    )
    export.add_argument(
        "--fallback",
        action="store_true",
        default=None,
        help="with --dtype int8, write DIRECTORY-float32 too, for other CPUs",
    )
    export.add_argument(
        "--batching",
        action="store_true",
        default=None,
        help="batch concurrent requests inside the graph",
    )
    export.add_argument(
        "--attention",
        type=int,
        metavar="TOKENS",
        help="add a signature that returns the attention of so many tokens, for the server's page",
    )
    export.add_argument("--tflite", action="store_true", help="write a .tflite file for phones")
    phone = export.add_argument_group("with --tflite")
    phone.add_argument(
        "--inputs", choices=("text", "ids"), help="inputs of the model (default: text)"
    )
    phone.add_argument("--quantize", choices=("fp16", "int8", "int8-full"), help="its weights")
    phone.add_argument("--length", type=int, help="maximum number of tokens (default: the task's)")

    convert = command(
        "convert",
        _convert,
        "convert a saved task or any supported checkpoint to Hugging Face's format",
    )
    convert.add_argument(
        "source",
        help="a saved task, the output directory of a recipe, or a checkpoint: a directory, "
        "package:NAME, or a hub id",
    )
    convert.add_argument("target", help="the directory to create; it is never overwritten")
    convert.add_argument("--family", help="its family, if the checkpoint does not name it")

    serve = command("serve", _serve, "serve exported models over REST and gRPC on this machine")
    add_serve_flags(serve)

    tokenize = command("tokenize", _tokenize, "show the pieces, ids and byte offsets of text")
    tokenize.add_argument("path", help="a checkpoint: directory, package:NAME or hub id")
    tokenize.add_argument("text", nargs="*", help="texts (default: lines of --input)")
    tokenize.add_argument(
        "--input", metavar="FILE", help="a file with one text per line (default: standard input)"
    )
    tokenize.add_argument("--pair", metavar="TEXT", help="a second text; implies --packed")
    tokenize.add_argument(
        "--packed",
        action="store_true",
        help="show model inputs, with special tokens and padding",
    )
    tokenize.add_argument(
        "--max-length", type=int, default=512, help="of packed texts (default: %(default)s)"
    )
    machine = tokenize.add_mutually_exclusive_group()
    machine.add_argument("--ids", action="store_true", help="only ids, one line per text")
    machine.add_argument("--json", action="store_true", help="one line of JSON per text")

    vocabulary = command("vocabulary", _vocabulary, "train a vocabulary on text files")
    vocabulary.add_argument("kind", help="wordpiece, byte-bpe, bpe, sentencepiece or words")
    vocabulary.add_argument(
        "--input", nargs="+", required=True, metavar="FILE", help="text in UTF-8"
    )
    vocabulary.add_argument("--size", type=int, help="number of entries, special tokens included")
    vocabulary.add_argument("--output", required=True, metavar="DIR", help="new or empty")
    vocabulary.add_argument(
        "--special", metavar="TOKENS", help="separated by commas: '[PAD],[UNK]'"
    )
    vocabulary.add_argument("--min-count", type=int, help="minimum frequency of entries")
    vocabulary.add_argument(
        "--lower-case", action=argparse.BooleanOptionalAction, help="(depends on the kind)"
    )
    return parser


def _families(options: argparse.Namespace) -> None:
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
    _print_table(rows, right=2)


def _doctor(options: argparse.Namespace) -> None:
    from bertfam_tf import doctor

    findings = doctor.check()
    print(doctor.table(findings))
    if any(finding.problem is not None for finding in findings):
        raise ValueError("something is missing or does not run; see the lines with →")


def _print_table(rows: list[list[str]], right: int | None = None) -> None:
    """Prints columns, of which one is aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if right is not None:
            cells[right] = row[right].rjust(widths[right])
        print("  ".join(cells).rstrip())


def _train(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_run

    recipe = load_run(options.recipe, options.override)
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes.multi_task import train

    print(json.dumps(train(recipe, flops=flops_per_token)))


def _pretrain(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import PretrainRecipe

    recipe = load_recipe(options.recipe, options.override, PretrainRecipe)
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import pretrain

    print(json.dumps(pretrain(recipe, flops=flops_per_token), ensure_ascii=False))


def _distill(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes.reading import load_recipe
    from bertfam_tf.recipes.schema import DistillRecipe

    recipe = load_recipe(options.recipe, options.override, DistillRecipe)
    from bertfam_tf.recipes import distill

    print(json.dumps(distill(recipe)))


def _runs(options: argparse.Namespace) -> None:
    from bertfam_tf.recipes import runs

    found = runs.read_runs(options.directory)
    _print_table(runs.table(found))
    if options.plot:
        runs.draw(found, options.plot, options.metric)


def _sweep(options: argparse.Namespace) -> None:
    from bertfam_tf.plan import flops_per_token
    from bertfam_tf.recipes import runs

    values = {}
    for given in options.over:
        key, equals, listed = given.partition("=")
        if not equals or not key or not listed:
            raise ValueError(f"--over must be KEY=VALUE,VALUE, got {given!r}.")
        values[key] = listed.split(",")
    found = runs.sweep(options.recipe, values, options.override, flops=flops_per_token)
    _print_table(runs.table(found))
    print()
    _print_table(runs.summary(found))


def _plan(options: argparse.Namespace) -> None:
    from bertfam_tf import plan

    recipe = plan.read(options.recipe, options.override)
    accumulation, train = options.accumulation, recipe.train
    devices = plan.Devices(
        count=options.devices,
        tensor_parallel=options.tensor_parallel,
        accumulation=train.accumulation_steps if accumulation is None else accumulation,
        recompute=options.recompute or train.recompute == "blocks",
        dtype=options.dtype,
        peak=options.peak,
        share=options.share,
        memory=options.memory,
        bandwidth=options.bandwidth,
        price=options.price,
    )
    found = plan.plan(recipe, devices, options.steps)
    print(json.dumps(found.to_dict()) if options.json else plan.table(found))


def _evaluate(options: argparse.Namespace) -> None:
    from bertfam_tf import tasks
    from bertfam_tf.recipes.directory import MODEL, RECIPE
    from bertfam_tf.recipes.fine_tuning import evaluate
    from bertfam_tf.recipes.multi_task import evaluate_tasks
    from bertfam_tf.recipes.reading import load_run

    run_dir = Path(options.run_dir)
    recipe = load_run(run_dir / RECIPE, options.override)
    task = tasks.load(run_dir / MODEL)
    if isinstance(task, tasks.MultiTask):
        if options.report or options.language is not None:
            raise ValueError("--report and --language are for a run of one task.")
        print(json.dumps(evaluate_tasks(task, recipe, options.split)))
        return
    _set_language(task, options)
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


def _analyze(options: argparse.Namespace) -> None:
    if bool(options.text) == options.heads:
        raise ValueError("analyze needs the texts of an example, or --heads")
    from bertfam_tf import analysis

    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    task = _saved_task(options.model, options.task)
    if options.heads:
        _analyze_heads(options, task, output)
        return
    texts = tuple(options.text)
    target = options.target if options.word is None else (options.word, options.target)
    found = analysis.explain(task, texts, target)
    maps = analysis.attention_maps(task, texts)
    analysis.write_page(output / "example.html", maps, found)
    analysis.draw_words(found, output / "words.png")
    patterns = analysis.patterns(maps) if maps.example.words else None
    analysis.draw_heads(maps, output / "attention.png", patterns)
    words = [{"word": word.text, "share": round(share, 6)} for word, share in found.words]
    scores = {"target": found.target, "score": found.score, "baseline": found.baseline}
    print(json.dumps({**scores, "words": words}, ensure_ascii=False))


def _analyze_heads(options: argparse.Namespace, task: Any, output: Path) -> None:
    from bertfam_tf import analysis
    from bertfam_tf.recipes.directory import RECIPE
    from bertfam_tf.recipes.fine_tuning import evaluate
    from bertfam_tf.recipes.reading import load_run

    file = Path(options.model) / RECIPE
    if not file.is_file():
        raise ValueError(f"--heads needs the output directory of a recipe; {file} is missing")
    recipe = load_run(file)

    def scores() -> dict[str, float]:
        return evaluate(task, recipe, "dev")

    known = [name for name in scores() if name != "loss"]
    metric = options.metric or next(iter(known), "loss")
    if metric not in (*known, "loss"):
        raise ValueError(unknown("metric", metric, known))
    found = analysis.ablation(task, lambda: scores()[metric], mode=options.mode)
    analysis.draw_ablation(found, output / "heads.png", metric)
    changes = {
        "metric": metric,
        "mode": options.mode,
        "score": found.score,
        "without_head": [each.tolist() for each in found.heads],
        "without_layer": found.layers.tolist(),
    }
    if options.pairs:
        sizes = {(i, j): abs(x) for i, row in enumerate(found.heads) for j, x in enumerate(row)}
        heads = sorted(sorted(sizes, key=sizes.__getitem__, reverse=True)[: options.pairs])
        pairs = analysis.pair_ablation(task, lambda: scores()[metric], heads, mode=options.mode)
        analysis.draw_pairs(pairs, heads, output / "pairs.png", metric)
        changes |= {"pairs_of": heads, "without_pair": pairs.tolist()}
    write(output / "heads.json", (json.dumps(changes, indent=1) + "\n").encode())
    print(json.dumps({"metric": metric, "score": found.score}))


def _predict(options: argparse.Namespace) -> None:
    if options.input or options.output:
        _predict_file(options)
        return
    from bertfam_tf.recipes import as_json

    texts = options.text or [line.rstrip("\n") for line in sys.stdin]
    task = _saved_task(options.model, options.task)
    _set_language(task, options)
    _check_top(options.top, task)
    for answer in task.predict(texts):
        print(json.dumps(as_json(answer, task, options.top), ensure_ascii=False))


def _check_top(top: int | None, task: Any) -> None:
    if top is None:
        return
    if not task.ranked_scores:
        raise ValueError(f"--top is for classifiers; a {type(task).__name__} has no such scores")
    if top < 1:
        raise ValueError(f"--top must be at least 1, got {top}")


def _predict_file(options: argparse.Namespace) -> None:
    if not (options.input and options.output) or options.text:
        raise ValueError("predicting on a file needs both --input and --output, and no texts")
    if options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}")
    from bertfam_tf.data import format_of, read_rows
    from bertfam_tf.recipes import answer_file, source_of
    from bertfam_tf.recipes.directory import MODEL, RECIPE
    from bertfam_tf.recipes.reading import load_run
    from bertfam_tf.recipes.splits import columns

    directory, data = Path(options.model), None
    if (directory / RECIPE).is_file():
        data = load_run(directory / RECIPE).data
        directory = directory / MODEL
    task = _saved_task(options.model, options.task)
    _set_language(task, options)
    _check_top(options.top, task)
    named = {name: name for name in task.feature_names}
    by_recipe = {} if data is None else columns(data) or {}
    if options.language is None:
        named |= {name: name for name in task.fields.described if name in by_recipe}
    given = {name: getattr(options, f"column_{name}") for name in _FEATURES}
    chosen: dict[str, Any] = {
        name: int(column) if column.isdecimal() else column
        for name, column in given.items()
        if column is not None
    }
    if options.choices:
        chosen["choices"] = [int(c) if c.isdecimal() else c for c in options.choices.split(",")]
    wanted = {name: by_recipe.get(name, column) for name, column in named.items()} | chosen
    file = Path(options.input)
    local = data is not None and data.format not in (None, "tfds")
    kind = options.format or format_of(file, default=data.format if local else "tsv")  # type: ignore[union-attr]
    rows = read_rows(file, wanted, format=kind)
    how = {} if options.language is None else {"language": task.language}
    source = source_of(file, directory, format=kind, columns=wanted, **how)
    count = answer_file(
        task, rows, options.output, source, batch_size=options.batch_size, top=options.top
    )
    print(f"{count:,} answers in {options.output}")


_OF_DOCUMENTS, _OF_QUERIES = ("document", "passage"), ("query",)


def _index(options: argparse.Namespace) -> None:
    if options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}")
    from bertfam_tf import search
    from bertfam_tf.data import format_of, read_rows

    file = Path(options.input)
    kind = options.format or format_of(file, default="txt")  # type: ignore[arg-type]
    given = {"text": options.text, "id": options.id}
    columns: dict[str, Any] = {
        name: int(column) if column.isdecimal() else column
        for name, column in given.items()
        if column is not None
    }
    rows = read_rows(file, columns, format=kind)
    task = search.embedder(_model_directory(options.model))
    stat = file.stat()
    source = {
        "input": str(file),
        "size": stat.st_size,
        "changed_ns": stat.st_mtime_ns,
        "format": kind,
        "columns": columns,
    }
    count = search.build(
        task,
        rows,
        options.output,
        source,
        precision=options.precision,
        prompt=_prompt_name(task, options.prompt, _OF_DOCUMENTS),
        batch_size=options.batch_size,
    )
    print(f"{count:,} documents in {options.output}")


def _search(options: argparse.Namespace) -> None:
    from bertfam_tf import search

    index = search.Index(options.index)
    task = search.embedder(_model_directory(options.model))
    index.check(task)
    queries = options.query or [line.rstrip("\n") for line in sys.stdin]
    prompt = _prompt_name(task, options.prompt, _OF_QUERIES)
    found = index.search(task, queries, top=options.top, prompt=prompt)
    for query, hits in zip(queries, found, strict=True):
        results = [{**hit._asdict(), "score": round(hit.score, 6)} for hit in hits]
        print(json.dumps({"query": query, "results": results}, ensure_ascii=False))


def _prompt_name(task: Any, given: str | None, usual: tuple[str, ...]) -> str | None:
    """The name of a prompt, that of an option or the first usual one; None for no prompt."""
    if given is not None:
        return given or None
    return next((name for name in usual if name in task.prompts), task.default_prompt)


def _model_directory(path: str) -> str | Path:
    from bertfam_tf.recipes.directory import MODEL, RECIPE

    return Path(path) / MODEL if (Path(path) / RECIPE).is_file() else path


_FOR_SERVING = ("version", "dtype", "batching", "fallback", "attention")
_FOR_PHONES = ("inputs", "quantize", "length")


def _export(options: argparse.Namespace) -> None:
    from bertfam_tf import parsing

    kinds = (_FOR_SERVING, _FOR_PHONES)
    wanted, others = kinds[::-1] if options.tflite else kinds
    wrong = [name for name in others if getattr(options, name) is not None]
    if wrong:
        raise ValueError(f"--{wrong[0]} is for {'SavedModels' if options.tflite else '--tflite'}.")
    given = {name: getattr(options, name) for name in wanted if getattr(options, name) is not None}
    if options.calibration is not None:
        # Several texts of an example are separated by tabs.
        lines = parsing.read_text(Path(options.calibration)).splitlines()
        given["calibration"] = [tuple(line.split("\t")) for line in lines]
    task = _saved_task(options.model, options.task, several=not options.tflite)
    for each in task.served_tasks().values():
        _set_language(each, options)
    if options.tflite:
        print(task.export_tflite(options.directory, **given))
        return
    from bertfam_tf.export import BatchingOptions
    from bertfam_tf.recipes.directory import METRICS

    metrics = Path(options.model) / METRICS
    given["batching"] = BatchingOptions() if options.batching else None
    given["metrics"] = parsing.read_json(metrics) if metrics.is_file() else None
    print(task.export(options.directory, **given))


def _convert(options: argparse.Namespace) -> None:
    from bertfam_tf import tasks
    from bertfam_tf.checkpoints import convert
    from bertfam_tf.recipes.directory import MODEL

    source = Path(options.source)
    saved = source / MODEL if tasks.is_saved(source / MODEL) else source
    if tasks.is_saved(saved):
        if options.family is not None:
            raise ValueError(f"--family is for checkpoints; {saved} is a saved task.")
        tasks.load(saved).save_pretrained(options.target)
        print(options.target)
        return
    print(convert(options.source, options.target, family=options.family))


def _serve(options: argparse.Namespace) -> None:
    from bertfam_tf.serve.__main__ import run

    run(options)


def _tokenize(options: argparse.Namespace) -> None:
    from bertfam_tf.text import Packer, load_tokenizer

    texts = _texts(options)
    tokenizer = load_tokenizer(options.path)
    packer = None
    if options.packed or options.pair is not None:
        packer = Packer(tokenizer.layout, tokenizer.special_ids, options.max_length)
    pair = None if options.pair is None else os.fsencode(options.pair)
    if not (options.ids or options.json):
        special = [
            f"{role} {tokenizer.id_to_token(index)}" + f" {index}" * (not tokenizer.token_shape)
            for role, index in tokenizer.special_ids.items()
        ]
        name = f"{type(tokenizer).__name__}, {tokenizer.vocab_size:,} pieces"
        print("; ".join([name, *special]))
    while batch := list(islice(texts, 64)):
        rows = _packed(tokenizer, packer, batch, pair) if packer else _pieces(tokenizer, batch)
        for text, row in zip(batch, rows, strict=True):
            if options.ids:
                print(*row["token_ids"])
            elif options.json:
                shown = {"text": text.decode("utf-8", "replace")}
                print(json.dumps(shown | row, ensure_ascii=False))
            else:
                print(f"\n{_visible(text)}", *([] if pair is None else [_visible(pair)]))
                if tokenizer.token_shape:
                    del row["token_ids"]  # which the pieces show
                print(_table(row, [text, pair or b""]))


def _texts(options: argparse.Namespace) -> Iterator[bytes]:
    """Yields texts as bytes, because they may not be UTF-8."""
    if options.text and options.input:
        raise ValueError("both texts and --input are given, expected one of them")
    if options.text:
        return map(os.fsencode, options.text)
    # Open until the process ends.
    lines = open(options.input, "rb") if options.input else sys.stdin.buffer  # noqa: SIM115
    return (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)


def _pieces(tokenizer: Any, texts: list[bytes]) -> list[dict[str, list]]:
    """The pieces of each text, by column."""
    rows = zip(*(part.to_list() for part in tokenizer.tokenize_with_offsets(texts)), strict=True)
    return [
        {"token_ids": ids, "pieces": list(map(tokenizer.id_to_token, ids)),
         "starts": starts, "ends": ends}
        for ids, starts, ends in rows
    ]  # fmt: skip


def _packed(
    tokenizer: Any, packer: Any, texts: list[bytes], pair: bytes | None
) -> list[dict[str, list]]:
    """The packed inputs of each text, by column; offsets and text are None at special tokens."""
    parts = [tokenizer.tokenize_with_offsets(texts)]
    if pair is not None:
        parts.append(tokenizer.tokenize_with_offsets([pair] * len(texts)))
    filled = packer.fill([ids for ids, _, _ in parts])
    inputs = {name: value.numpy().tolist() for name, value in filled.inputs.items()}
    places = [filled.pieces(index).numpy().tolist() for index in range(len(parts))]
    rows = []
    for row in range(len(texts)):
        columns = {name: values[row] for name, values in inputs.items()}
        sources: list[Any] = [(None, None, None)] * len(columns["token_ids"])
        for name, (_, starts, ends), place in zip("ab", parts, places, strict=False):
            spans = list(zip(starts[row].numpy().tolist(), ends[row].numpy().tolist(), strict=True))
            sources = [
                (name, *spans[piece]) if piece >= 0 else source
                for piece, source in zip(place[row], sources, strict=True)
            ]
        columns["pieces"] = list(map(tokenizer.id_to_token, columns["token_ids"]))
        for index, name in enumerate(("from", "starts", "ends")):
            columns[name] = [source[index] for source in sources]
        rows.append(columns)
    return rows


_HEADINGS = {"token_ids": "id", "padding_mask": "mask", "segment_ids": "segment", "from": "from"}


def _table(row: dict[str, list], texts: list[bytes]) -> str:
    """Formats a table with one line per piece and the text that it covers."""
    from rich.cells import cell_len

    sources = row.get("from") or ["a"] * len(row["pieces"])
    columns = [
        [heading, *("" if value is None else str(value) for value in row[name])]
        for name, heading in _HEADINGS.items()
        if name in row
    ]
    columns += [["bytes"], ["piece"], ["text"]]
    for piece, source, start, end in zip(
        row["pieces"], sources, row["starts"], row["ends"], strict=True
    ):
        data = b"" if source is None else texts["ab".index(source)][start:end]
        columns[-3].append("" if source is None else f"{start}-{end}")
        columns[-2].append(_visible(piece.encode("utf-8")))
        columns[-1].append("" if source is None else _visible(data))
    widths = [max(map(cell_len, column)) for column in columns]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in zip(*columns, strict=True)
    )


def _visible(data: bytes) -> str:
    """Text in one line, with invisible characters escaped as in Python."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _vocabulary(options: argparse.Namespace) -> None:
    from bertfam_tf.text.training import train_vocabulary

    tokenizer = train_vocabulary(
        options.kind,
        options.input,
        options.output,
        size=options.size,
        special=options.special and options.special.split(","),
        lower_case=options.lower_case,
        min_count=options.min_count,
    )
    print(f"{tokenizer.vocab_size:,} entries in {options.output}")


def _set_language(task: Any, options: argparse.Namespace) -> None:
    """Sets the language of --language, a code or an id, if it is given."""
    given = options.language
    if given is not None:
        task.language = int(given) if given.isdecimal() else given


def _saved_task(path: str, name: str | None = None, *, several: bool = False) -> Any:
    """A saved task.

    Args:
        path: its directory, or the output directory of a recipe.
        name: of one of several tasks that were saved together.
        several: whether all of them together will do.

    Raises:
        ValueError: for several tasks of which none is named, or a name of one task or none.
    """
    from bertfam_tf import tasks

    found = tasks.load(_model_directory(path))
    if not isinstance(found, tasks.MultiTask):
        if name is not None:
            raise ValueError(f"{path} is a {type(found).__name__}, without a task named {name!r}")
        return found
    if name is None and not several:
        raise ValueError(f"{path} has several tasks; choose one with --task: {', '.join(found)}")
    if name is not None and name not in found.tasks:
        raise ValueError(unknown("task", name, found.tasks))
    return found if name is None else found[name]

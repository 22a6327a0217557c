"""``bertfam analyze``."""

import argparse
import json
from pathlib import Path
from typing import Any

from bertfam_tf.cli.common import (
    LANGUAGES,
    Commands,
    add_command,
    add_model,
    loaded_task,
    print_json,
    set_language,
)
from bertfam_tf.files import write
from bertfam_tf.names import unknown
from bertfam_tf.validation import in_range

# Options of either use alone.
_OF_TEXTS, _OF_HEADS = ("target", "word"), ("pairs", "metric", "mode")


def add(commands: Commands) -> None:
    text = "show which words made an answer, attention, and which heads matter"
    parser = add_command(commands, "analyze", run, text)
    add_model(parser)
    parser.add_argument(
        "text", nargs="*", help="the texts of one example, such as a question and its context"
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="of the page and the pictures"
    )
    parser.add_argument("--language", help=f"of the texts, {LANGUAGES}")
    parser.add_argument("--target", help="the label that is explained (default: the answer)")
    parser.add_argument(
        "--word", type=int, metavar="N", help="of a tagger: the word that is explained, from 0"
    )
    parser.add_argument(
        "--heads",
        action="store_true",
        help="score the dev split of a run without each head, and without each layer's heads",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help="with --heads: also without each pair of the N heads that change the score most",
    )
    parser.add_argument("--metric", help="with --heads (default: the first but the loss)")
    parser.add_argument(
        "--mode",
        choices=("zero", "uniform"),
        help="with --heads: what a head that is off gives: nothing (default), or the mean of the "
        "values that it may attend to, as Kovaleva et al. (2019) have it",
    )


def run(options: argparse.Namespace) -> None:
    if bool(options.text) == options.heads:
        raise ValueError("analyze needs the texts of an example, or --heads")
    for name in _OF_TEXTS if options.heads else _OF_HEADS:
        if getattr(options, name) is not None:
            needed = "the texts of an example" if options.heads else "--heads"
            raise ValueError(f"--{name} is for {needed}.")
    from bertfam_tf import analysis

    output = Path(options.output)
    task = loaded_task(options)
    set_language(task, options)
    if options.heads:
        _analyze_heads(options, task, output)
        return
    texts = tuple(options.text)
    target = options.target if options.word is None else (options.word, options.target)
    attribution = analysis.explain(task, texts, target)
    maps = analysis.attention_maps(task, texts)
    output.mkdir(parents=True, exist_ok=True)
    analysis.write_page(output / "example.html", maps, attribution)
    analysis.draw_words(attribution, output / "words.png")
    patterns = analysis.patterns(maps) if maps.example.words else None
    analysis.draw_heads(maps, output / "attention.png", patterns)
    words = [{"word": word.text, "share": round(share, 6)} for word, share in attribution.words]
    scores = {
        "target": attribution.target,
        "score": attribution.score,
        "baseline": attribution.baseline,
    }
    print_json({**scores, "words": words})


def _analyze_heads(options: argparse.Namespace, task: Any, output: Path) -> None:
    from bertfam_tf import analysis
    from bertfam_tf.recipes.directory import RECIPE
    from bertfam_tf.recipes.fine_tuning import evaluate
    from bertfam_tf.recipes.reading import load_finished
    from bertfam_tf.recipes.schema import MultiTaskRecipe

    file = Path(options.model) / RECIPE
    if not file.is_file():
        raise ValueError(f"--heads needs the output directory of a recipe; {file} is missing")
    recipe = load_finished(file)
    if isinstance(recipe, MultiTaskRecipe):
        recipe = recipe.of(options.task)

    def scores() -> dict[str, float]:
        return evaluate(task, recipe, "dev")

    known = [name for name in scores() if name != "loss"]
    metric = options.metric or next(iter(known), "loss")
    if metric not in (*known, "loss"):
        raise ValueError(unknown("metric", metric, known))
    if options.pairs is not None:
        in_range("--pairs", options.pairs, at_least=1)
    output.mkdir(parents=True, exist_ok=True)  # before the scoring, which may take hours
    mode = options.mode or "zero"
    ablation = analysis.ablation(task, lambda: scores()[metric], mode=mode)
    analysis.draw_ablation(ablation, output / "heads.png", metric)
    changes = {
        "metric": metric,
        "mode": mode,
        "score": ablation.score,
        "without_head": [row.tolist() for row in ablation.heads],
        "without_layer": ablation.layers.tolist(),
    }
    if options.pairs:
        sizes = {(i, j): abs(x) for i, row in enumerate(ablation.heads) for j, x in enumerate(row)}
        heads = sorted(sorted(sizes, key=sizes.__getitem__, reverse=True)[: options.pairs])
        pairs = analysis.pair_ablation(task, lambda: scores()[metric], heads, mode=mode)
        analysis.draw_pairs(pairs, heads, output / "pairs.png", metric)
        changes |= {"pairs_of": heads, "without_pair": pairs.tolist()}
    write(output / "heads.json", (json.dumps(changes, indent=1) + "\n").encode())
    print(json.dumps({"metric": metric, "score": ablation.score}))

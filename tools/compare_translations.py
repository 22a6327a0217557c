"""Translation language modeling (TLM): are masked words predicted better with their translation?

    python -m tools.compare_translations            # writes tools/results/translations.md
    python -m tools.compare_translations --quick    # a minute; writes nothing

Reads Multi30k, English and French (make data). A small XLM is trained on pairs of sentences (arXiv
1901.07291, section 3.3), of which half are seen without their translation. Masked words of held-out
English sentences are then predicted with their translation in sight, without it, and with that of
another sentence in its place.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf import heads
from bertfam_tf.corpora import Masking, TranslationPairs
from bertfam_tf.objectives import MaskedTokens
from bertfam_tf.text import Tokenizer
from bertfam_tf.text.training import train_vocabulary
from bertfam_tf.training import optimizers
from bertfam_tf.training.learner import Learner
from tools.bench import machine
from tools.captions import captions
from tools.texts import ROOT

RESULT = ROOT / "tools" / "results" / "translations.md"
LANGUAGES = ("en", "fr")
SIZES = dict(hidden_size=192, num_heads=4, intermediate_size=768, num_layers=3, num_languages=2)
VOCABULARY, LENGTH, BATCH = 8000, 96, 64

Pairs = list[tuple[str, str]]


def sentences(split: str) -> Pairs:
    """Pairs of an English sentence and its French translation."""
    return list(zip(*(captions(split, language) for language in LANGUAGES), strict=True))


class Batches:
    """Masked batches of pairs.

    Args:
        backbone, tokenizer: of the model.
    """

    def __init__(self, backbone: Any, tokenizer: Tokenizer):
        self.pairs = TranslationPairs(backbone, tokenizer, LENGTH)
        self.tokenizer = tokenizer
        self.masking = Masking(tokenizer, unit="word")

    def __call__(
        self, pairs: Pairs, seed: int, *, hidden: float, of_first: bool = False
    ) -> tf.data.Dataset:
        """One pass.

        Args:
            pairs: sentences and translations.
            seed: of the masks, and of which translations are hidden.
            hidden: the share of pairs whose translation is hidden.
            of_first: whether only words of the first sentence are predicted.
        """
        columns = [list(column) for column in zip(*pairs, strict=True)]

        def masked(first: Any, second: Any, index: Any) -> tuple:
            ids = (self.tokenizer.tokenize(each) for each in (first, second))
            inputs = self.pairs(*ids, [0, 1])
            seeds = tf.stack([tf.fill(tf.shape(index), seed), index], axis=1)
            found = self.masking(inputs["token_ids"], inputs["padding_mask"], seeds)
            draws = tf.random.stateless_uniform(tf.shape(index), [seed, index[0]])
            seen = (inputs["language_ids"] == 0) | (draws[:, None] >= hidden)
            mask = inputs["padding_mask"] * tf.cast(seen, tf.int32)
            at = inputs["language_ids"] == 0 if of_first else seen
            weights = found.weights * tf.cast(
                tf.gather(at, found.positions, batch_dims=1), tf.float32
            )
            targets = {"positions": found.positions, "token_ids": found.targets}
            return {**inputs, "token_ids": found.token_ids, "padding_mask": mask}, targets, weights

        data = tf.data.Dataset.from_tensor_slices((*columns, np.arange(len(pairs), dtype="int32")))
        return data.batch(BATCH).map(masked, tf.data.AUTOTUNE).prefetch(2)


def run(epochs: int, limit: int | None, folder: Path) -> dict[str, float]:
    """Trains, and returns the losses of held-out words by what is in sight, and the seconds."""
    train, held_out = sentences("train")[:limit], sentences("val")
    files = [folder / "first", folder / "second"]
    for file, texts in zip(files, zip(*train, strict=True), strict=True):
        file.write_text("\n".join(texts), "utf-8")
    tokenizer = train_vocabulary("wordpiece", files, folder / "pieces", size=VOCABULARY)
    keras.utils.set_random_seed(0)
    backbone = bf.build("xlm", "tiny", vocab_size=tokenizer.vocab_size, **SIZES)
    head = heads.build(backbone, "masked_lm")
    inputs = backbone.token_inputs
    learner = Learner(inputs, backbone(inputs, outputs=head.reads), [MaskedTokens(head)])
    batches = Batches(backbone, tokenizer)
    steps = -(-len(train) // BATCH)
    learner.compile(optimizers.adamw(5e-4, epochs * steps, warmup=0.05))
    begin = time.perf_counter()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(train))
        data = batches([train[i] for i in order], 1 + epoch, hidden=0.5)
        history = learner.fit(data, verbose=2, shuffle=False)
    found = {"trained": history.history["loss"][-1], "seconds": time.perf_counter() - begin}
    others = [
        (first, second)
        for (first, _), (_, second) in zip(held_out, held_out[1:] + held_out[:1], strict=True)
    ]
    for name, pairs, hidden in (
        ("with their translation", held_out, 0.0),
        ("without", held_out, 1.0),
        ("with that of another sentence", others, 0.0),
    ):
        data = batches(pairs, 0, hidden=hidden, of_first=True)
        found[name] = learner.evaluate(data, verbose=0, return_dict=True)["loss"]
    return found


def report(found: dict[str, float], epochs: int) -> str:
    """What the results file holds."""
    names = [name for name in found if name not in ("trained", "seconds")]
    lines = "\n".join(
        f"| {name} | {found[name]:.3f} | {np.exp(found[name]):.1f} |" for name in names
    )
    sizes = ", ".join(f"{name} {value}" for name, value in SIZES.items())
    packages = machine.versions(("tensorflow", "keras"))
    return f"""# Masked words with and without their translation

`python -m tools.compare_translations --epochs {epochs}`, \
{datetime.date.today()}. {machine.cpu()}; {packages}.

A small XLM ({sizes}), trained on {epochs} passes over the 29,000 pairs of Multi30k's English and
French, half of which are seen without French; {found["seconds"] / 60:.0f} minutes. Words
of the 1,014 English sentences of `val` are masked, whole words, 15 % of the tokens.

| masked English words are predicted | loss, nats | perplexity |
|---|---:|---:|
{lines}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    epochs = 1 if options.quick else options.epochs
    with tempfile.TemporaryDirectory() as folder:
        found = run(epochs, 3000 if options.quick else None, Path(folder))
    text = report(found, epochs)
    print(text)
    if not options.quick:
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

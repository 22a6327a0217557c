"""Measures the speed of generation, compared with transformers.

    python -m tools.bench.generation            # writes tools/results/generation_speed.md
    python -m tools.bench.generation --quick    # few tokens; writes nothing
    python -m tools.bench.generation --accuracy DIRECTORY    # of a saved CausalLM; writes
                                                             # tools/results/generation_accuracy.md

GPT-2 of base size with random weights, the same on both sides, continues random prompts of 16
tokens. Each number of threads has a process of its own, pinned to as many cores; in it, contenders
take turns after a round to warm up, and the median of their rounds counts. Ours in int8 and
bfloat16 are the graphs of exports. Needs the packages that `make live` installs.
"""

from __future__ import annotations

import os

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

import argparse
import contextlib
import datetime
import functools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.texts import DATA
from tools.bench import machine

RESULT = Path(__file__).parent.parent / "results" / "generation_speed.md"
PROMPT, VOCABULARY, ROUNDS, QUICK = 16, 50257, 2, 12
PACKAGES = ("tensorflow", "keras", "transformers", "torch")
DTYPES = ("float32", "bfloat16", "int8")
# Instructions without which products in bfloat16 are slower than in float32.
HALF = {"avx512_bf16", "amx_bf16"}


class Row(NamedTuple):
    """How many prompts, how many new tokens, our options, and whether all dtypes are measured."""

    name: str
    batch: int
    tokens: int
    options: dict[str, Any]
    all_dtypes: bool = False


ROWS = [
    Row("greedy", 1, 256, {}, True),
    Row("greedy", 4, 64, {}, True),
    Row("beam search, 4 beams", 1, 64, {"num_beams": 4}),
    Row("sampling, top_p=0.95", 1, 64, {"temperature": 0.7, "top_p": 0.95}),
]


def in_dtype(task: Any, dtype: str, calibration: list[str]) -> Callable[[], Any]:
    """Returns a function that makes scopes in which a task computes as its export does."""
    from bertfam_tf.export.int8 import Int8Layers
    from bertfam_tf.export.weights import StoredWeights

    if dtype == "float32":
        return contextlib.nullcontext
    texts = np.array([text.encode() for text in calibration], object)
    batches = [{"text": texts[i : i + 8]} for i in range(0, len(texts), 8)]
    layers = Int8Layers(task, task.answer, batches) if dtype == "int8" else None
    return StoredWeights(task, dtype, layers).substituted


@functools.cache
def model(directory: str, dtype: str) -> tuple[Any, Callable[[], Any]]:
    """Returns the model as a task whose tokens are words, and its scopes."""
    import bertfam_tf as bf
    from bertfam_tf.text import WordTokenizer

    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(VOCABULARY - 2))]
    task = bf.CausalLM(bf.load_backbone(directory), WordTokenizer(words))
    drawn = np.random.default_rng(1).integers(2, VOCABULARY, (32, 64))
    return task, in_dtype(task, dtype, [" ".join(words[i] for i in row) for row in drawn])


def ours(directory: str, row: Row, tokens: int, dtype: str = "float32") -> Callable:
    """Returns a function from prompts to new tokens, which runs one graph."""
    import tensorflow as tf

    from bertfam_tf import generation

    task, scope = model(directory, dtype)
    step = generation.decoder(task.backbone, task.head.logits_of_few)
    options = generation.Options(max_new_tokens=tokens, **row.options)
    prompts = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[prompts, prompts], autograph=False)
    def generate(token_ids, padding_mask):
        with scope():
            return generation.generate(
                step, token_ids, padding_mask, options, seed=tf.constant([1, 2])
            )

    def run(prompts: np.ndarray) -> np.ndarray:
        token_ids = tf.constant(prompts, tf.int32)
        return generate(token_ids, tf.ones_like(token_ids)).numpy()

    return run


def accuracy(directory: str) -> None:
    """Compares perplexities on WikiText-2's validation split, and the tokens of greedy steps."""
    import tensorflow as tf

    import bertfam_tf as bf
    from bertfam_tf.objectives import next_tokens

    task = bf.load(directory)
    lines = (DATA / "wikitext-2" / "valid.txt").read_text("utf-8").split("\n")
    # The first are for calibration.
    rows, exact = [line.strip() for line in lines if len(line) > 200], np.array([])
    table = []

    def predictor(scope: Callable[[], Any]) -> Callable:
        @tf.function(autograph=False, reduce_retracing=True)
        def predict(texts):
            inputs = task.preprocess({"text": texts})
            with scope():
                logits = task(inputs, training=False)
            targets, weights = next_tokens(inputs["token_ids"], inputs["padding_mask"])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            return tf.argmax(logits, -1), losses * weights, weights

        return predict

    for dtype in DTYPES:
        predict, found = predictor(in_dtype(task, dtype, rows[:128])), []
        for i in range(128, 528, 8):
            found.append([x.numpy().ravel() for x in predict(tf.constant(rows[i : i + 8]))])
        tokens, losses, weights = (np.concatenate(x) for x in zip(*found, strict=True))
        exact = tokens if dtype == "float32" else exact
        agree = (tokens == exact)[weights > 0].mean()
        perplexity = np.exp(losses.sum() / weights.sum())
        table.append(f"| {dtype} | {perplexity:.2f} | {agree:.2%} |\n")
    text = (
        "# Accuracy of generation in int8 and bfloat16\n\n"
        f"`python -m tools.bench.generation --accuracy {directory}`, {datetime.date.today()}, "
        f"{machine.cpu()}, {machine.versions(PACKAGES[:2])}.\n\n"
        f"A {task.backbone.family} of {task.backbone.config.num_layers} layers of width "
        f"{task.backbone.config.hidden_size}, 400 paragraphs of WikiText-2's validation split, "
        "each token predicted from the paragraph's tokens before it. int8 is calibrated on 128 "
        "others.\n\n"
        "| dtype | perplexity | most probable tokens that are float32's |\n| --- | ---: | ---: |\n"
        + "".join(table)
    )
    print(text)
    RESULT.with_name("generation_accuracy.md").write_text(text, "utf-8")


def theirs(directory: str, row: Row, tokens: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the same function with transformers."""
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(directory).eval()
    sampled = {"do_sample": "top_p" in row.options}
    sampled |= {"top_k": 0} if sampled["do_sample"] else {}

    def run(prompts: np.ndarray) -> np.ndarray:
        token_ids = torch.tensor(prompts)
        with torch.inference_mode():
            generated = model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
                **sampled,
                **row.options,
            )
        return generated[:, PROMPT:].numpy()

    return run


def measure(directory: str, threads: int, quick: bool) -> list[dict[str, float]]:
    """Returns the seconds of all and the share of tokens equal in float32, for each row."""
    import tensorflow as tf
    import torch

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    torch.set_num_threads(threads)
    results = []
    for row in ROWS if threads == 1 else ROWS[:1]:
        tokens = QUICK if quick else row.tokens
        dtypes = [x for x in DTYPES if x != "bfloat16" or HALF & {*machine.vectors()}]
        contenders = {x: functools.partial(ours, dtype=x) for x in dtypes if row.all_dtypes}
        contenders = {"float32": ours, **contenders, "transformers": theirs}
        runs = {name: make(directory, row, tokens) for name, make in contenders.items()}
        prompts = np.random.default_rng(0).integers(0, VOCABULARY, (row.batch, PROMPT))
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        answers = {name: run(prompts) for name, run in runs.items()}
        for _ in range(1 if quick else ROUNDS):
            for name, run in runs.items():
                start = time.perf_counter()
                run(prompts)
                seconds[name].append(time.perf_counter() - start)
        result = {name: statistics.median(values) for name, values in seconds.items()}
        result["equal"] = float((answers["float32"] == answers["transformers"]).mean())
        print(f"{threads} threads, {row.name}, {row.batch}: {result}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def save_model(directory: str) -> None:
    """Saves the model, whose logits differ enough that equal tokens show equal computations."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(initializer_range=0.1)
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)


def report(results: dict[int, list[dict[str, float]]]) -> str:
    """Returns the content of the results file."""
    rows = [
        "| threads | search | prompts | new tokens | ours | tokens/s | transformers, tokens/s "
        "| ours / transformers | equal tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for threads, measured in results.items():
        for row, result in zip(ROWS, measured, strict=False):
            count = row.batch * row.tokens
            theirs = count / result["transformers"]
            for dtype in (x for x in DTYPES if x in result):
                speed = count / result[dtype]
                exact = dtype == "float32" and "top_p" not in row.options
                equal = f"{result['equal']:.0%}" if exact else "–"
                rows.append(
                    f"| {threads} | {row.name} | {row.batch} | {row.tokens} | {dtype} "
                    f"| {speed:.1f} | {theirs:.1f} | {speed / theirs:.2f} | {equal} |"
                )
    onednn = "with" if machine.onednn_by_default() else "without"
    return (
        "# Speed of generation\n\n"
        f"`python -m tools.bench.generation`, {datetime.date.today()}, {machine.cpu()} "
        f"({', '.join(machine.vectors())}); TensorFlow runs {onednn} oneDNN. Python "
        f"{platform.python_version()}, {machine.versions(PACKAGES)}.\n\n"
        f"GPT-2 of base size, random weights, prompts of {PROMPT} tokens; times include the "
        "prompt. As many cores as threads; contenders take turns, median of "
        f"{ROUNDS} rounds. transformers computes in float32. bfloat16 is measured on CPUs with "
        "AVX512-BF16 or AMX. Sampling draws different tokens on both sides.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of generation.")
    parser.add_argument("--quick", action="store_true", help="few tokens; write nothing")
    parser.add_argument("--accuracy", metavar="DIRECTORY", help="a saved CausalLM")
    parser.add_argument("--measure", nargs=2, metavar=("DIRECTORY", "THREADS"))
    options = parser.parse_args()
    if options.accuracy:
        accuracy(options.accuracy)
        return
    if options.measure:
        directory, threads = options.measure[0], int(options.measure[1])
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
        print(json.dumps(measure(directory, threads, options.quick)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        save_model(directory)
        for threads in sorted({1, min(2, len(os.sched_getaffinity(0)))}):
            command = [sys.executable, "-m", "tools.bench.generation"]
            command += ["--measure", directory, str(threads), *(["--quick"] * options.quick)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[threads] = json.loads(done.stdout.splitlines()[-1])
    if options.quick:
        return
    text = report(results)
    print(text)
    RESULT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
